/** Every call this console makes to the REST API, by name. Paths are written nowhere else. */

import { request } from "./http";
import type {
  ApiToken,
  CellInfo,
  Cluster,
  CreatedToken,
  Identity,
  JoinToken,
  JoinTokenInfo,
  Kubeconfig,
  MachineType,
  Member,
  NodePool,
  Operation,
  Organization,
  Page,
  Receipt,
  Role,
  Session,
  Version,
} from "./types";

const seg = encodeURIComponent;
const org = (name: string) => `/organizations/${seg(name)}`;
const cluster = (o: string, c: string) => `${org(o)}/clusters/${seg(c)}`;

/** Pages read for one list; more rows than anybody reads on a page. */
const MAX_PAGES = 10;

async function all<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const items: T[] = [];
  let next: string | null | undefined;
  for (let page = 0; page < MAX_PAGES; page++) {
    const separator = path.includes("?") ? "&" : "?";
    const where = next ? `${path}${separator}continue=${seg(next)}` : path;
    const answer: Page<T> = await request<Page<T>>(where, signal ? { signal } : {});
    items.push(...answer.items);
    next = answer.continue;
    if (!next) break;
  }
  return items;
}

// ---- who I am ----

const SIGNED_IN = "roadstead-signed-in";

/** False when this browser is known to have no session: the cookie itself is hidden from pages. */
export function maybeSignedIn(): boolean {
  try {
    return localStorage.getItem(SIGNED_IN) !== null;
  } catch {
    return true; // storage may be forbidden
  }
}

export function noteSignedIn(signedIn: boolean): void {
  try {
    if (signedIn) localStorage.setItem(SIGNED_IN, "yes");
    else localStorage.removeItem(SIGNED_IN);
  } catch {
    // The server is asked then.
  }
}

async function noted<T>(signedIn: boolean, call: Promise<T>): Promise<T> {
  const answer = await call;
  noteSignedIn(signedIn);
  return answer;
}

export const signIn = (email: string, password: string) =>
  noted(true, request<Session>("/sessions", { method: "POST", body: { email, password } }));
export const signOut = () => noted(false, request<void>("/session", { method: "DELETE" }));
export const identity = () => request<Identity>("/session");
export const acceptInvitation = (body: { invitation: string; name: string; password: string }) =>
  noted(true, request<Session>("/invitations/accept", { method: "POST", body }));
export const changePassword = (current: string, next: string) =>
  request<void>("/session/password", { method: "PUT", body: { current, new: next } });

// ---- organisations ----

export const organizations = () => all<Organization>("/organizations");
export const organization = (o: string) => request<Organization>(org(o));
export const createOrganization = (name: string) =>
  request<Organization>("/organizations", { method: "POST", body: { name } });
export const members = (o: string) => all<Member>(`${org(o)}/members`);
export const addMember = (o: string, email: string, role: Role) =>
  request<Member>(`${org(o)}/members`, { method: "POST", body: { email, role } });
export const changeMember = (o: string, user: string, role: Role) =>
  request<Member>(`${org(o)}/members/${seg(user)}`, { method: "PATCH", body: { role } });
export const removeMember = (o: string, user: string) =>
  request<void>(`${org(o)}/members/${seg(user)}`, { method: "DELETE" });

export const tokens = () => all<ApiToken>("/tokens");
export type NewToken = {
  description: string;
  role: Role;
  organization?: string;
  cluster?: string;
  expires_in_seconds?: number;
};
export const createToken = (body: NewToken) => request<CreatedToken>("/tokens", { method: "POST", body });
export const deleteToken = (id: string) => request<void>(`/tokens/${seg(id)}`, { method: "DELETE" });

// ---- clusters ----

export const eventsUrl = (o: string) => `/api/v1${org(o)}/events`;
export const proxyUrl = (o: string, c: string) => `/api/v1${cluster(o, c)}/proxy`;

export type NewCluster = { name: string; kubernetes_version?: string; replicas?: number };
export const createCluster = (o: string, body: NewCluster) =>
  request<Cluster>(`${org(o)}/clusters`, { method: "POST", body });
export const changeCluster = (
  o: string,
  c: string,
  body: { name?: string; labels?: Record<string, string | null> },
) => request<Cluster>(cluster(o, c), { method: "PATCH", body });
export const deleteCluster = (o: string, c: string) =>
  request<Operation>(cluster(o, c), { method: "DELETE" });
export const kubeconfig = (o: string, c: string) =>
  request<Kubeconfig>(`${cluster(o, c)}/kubeconfig`, { method: "POST", body: {} });
export const createJoinToken = (o: string, c: string) =>
  request<JoinToken>(`${cluster(o, c)}/join-tokens`, { method: "POST", body: {} });
export const joinTokens = (o: string, c: string) => all<JoinTokenInfo>(`${cluster(o, c)}/join-tokens`);
export const deleteJoinToken = (o: string, c: string, id: string) =>
  request<void>(`${cluster(o, c)}/join-tokens/${seg(id)}`, { method: "DELETE" });
export const receipts = (o: string) => all<Receipt>(`${org(o)}/receipts`);

export type NewNodePool = {
  name: string;
  size: number;
  machine_type?: string;
  labels?: Record<string, string>;
};
export const createNodePool = (o: string, c: string, body: NewNodePool) =>
  request<NodePool>(`${cluster(o, c)}/nodepools`, { method: "POST", body });
export const resizeNodePool = (o: string, c: string, pool: string, size: number) =>
  request<NodePool>(`${cluster(o, c)}/nodepools/${seg(pool)}`, { method: "PATCH", body: { size } });
export const deleteNodePool = (o: string, c: string, pool: string) =>
  request<Operation>(`${cluster(o, c)}/nodepools/${seg(pool)}`, { method: "DELETE" });
export const cancelOperation = (o: string, id: string) =>
  request<Operation>(`${org(o)}/operations/${seg(id)}/cancel`, { method: "POST" });

// ---- the provider's ----

export const versions = () => all<Version>("/versions");
export const machineTypes = () => all<MachineType>("/machine-types");
export const cells = () => all<CellInfo>("/cells");
