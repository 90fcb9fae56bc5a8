/**
 * What the REST API speaks, as its OpenAPI document says (`/openapi.json`). Times are RFC 3339 strings.
 *
 * Not here: Kubernetes objects (`kube/types.ts`).
 */

export type Page<T> = { items: T[]; continue?: string | null };

/** RFC 9457; `errors` names the fields of the body that were not taken, each by its JSON pointer (RFC 6901). */
export type Problem = {
  type?: string;
  title: string;
  status: number;
  detail: string;
  errors?: { field: string; detail: string }[];
};

export type Role = "provider" | "admin" | "developer" | "viewer";

export type User = { id: string; email: string; name: string };

export type Session = { id: string; expires_at: string; user: User };

export type Identity = {
  user?: User | null;
  token?: ApiToken | null;
  provider: boolean;
  memberships: { organization: string; role: Role }[];
};

export type Organization = { id: string; name: string; created_at: string };

export type Member = {
  user: User;
  role: Role;
  /** They may nothing until they have accepted. */
  invited?: boolean;
  created_at: string;
  /** Shown this once. */
  invitation?: string | null;
};

export type ApiToken = {
  id: string;
  description: string;
  role: Role;
  organization?: string | null;
  /** Id of the one cluster that it is limited to. */
  cluster?: string | null;
  created_by?: string | null;
  created_at: string;
  expires_at?: string | null;
};

export type CreatedToken = ApiToken & { secret: string };

export type Cluster = {
  id: string;
  organization: string;
  name: string;
  state: string;
  kubernetes_version: string;
  replicas: number;
  cells?: string[];
  provider?: string;
  labels?: Record<string, string>;
  server_name: string;
  created_at: string;
  operation?: string | null;
};

export type Taint = { key: string; value?: string; effect: string };

export type Machine = { id: string; name: string; state: string; address?: string | null; message?: string | null };

export type NodePool = {
  id: string;
  /** Name of its cluster. */
  cluster: string;
  name: string;
  size: number;
  provider?: string | null;
  machine_type?: string | null;
  labels?: Record<string, string>;
  taints?: Taint[];
  state: string;
  machines?: Machine[];
  ready?: number;
  message?: string | null;
  created_at: string;
  operation?: string | null;
};

export type Operation = {
  id: string;
  kind: string;
  organization: string;
  /** Id of the cluster it is about, which may be gone. */
  cluster?: string | null;
  /** Name of what it changes. */
  target: string;
  state: "running" | "succeeded" | "failed" | "cancelled";
  progress: number;
  message: string;
  created_at: string;
  finished_at?: string | null;
};

export type Version = { version: string; default: boolean };

export type MachineType = { name: string; provider: string; cpu_millis: number; memory_bytes: number; default?: boolean };

export type CellInfo = { id: string; name: string; clusters: number; reachable: boolean };

export type Kubeconfig = { kubeconfig: string; expires_at: string };

/** A join token as it is listed: never with its secret. */
export type JoinTokenInfo = { id: string; description: string; expires_at?: string | null };

/** The signed end of a cluster. */
export type Receipt = {
  cluster: string;
  name: string;
  organization: string;
  deleted_at: string;
  resources: { kind: string; id: string; name?: string; provider?: string; created_at: string; deleted_at: string }[];
  signature: string;
};

export type JoinToken = {
  id?: string;
  token: string;
  command: string;
  expires_at?: string | null;
  description?: string | null;
};
