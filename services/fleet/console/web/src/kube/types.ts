/** The fields of Kubernetes objects that this console shows. Everything may be missing, as on the wire. */

export type Metadata = {
  name: string;
  namespace?: string;
  uid: string;
  resourceVersion: string;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  ownerReferences?: { kind: string; name: string; uid: string; controller?: boolean }[];
};

export type KubeObject = { kind?: string; metadata: Metadata };

export type Condition = { type: string; status: string; reason?: string; message?: string };

export type Node = KubeObject & {
  spec?: { unschedulable?: boolean; taints?: { key: string; value?: string; effect: string }[]; providerID?: string };
  status?: {
    conditions?: Condition[];
    addresses?: { type: string; address: string }[];
    allocatable?: Record<string, string>;
    nodeInfo?: { kubeletVersion?: string; osImage?: string; containerRuntimeVersion?: string };
  };
};

export type ContainerStatus = {
  name: string;
  ready?: boolean;
  started?: boolean;
  restartCount?: number;
  state?: {
    waiting?: { reason?: string; message?: string };
    running?: { startedAt?: string };
    terminated?: { reason?: string; exitCode?: number; signal?: number; message?: string };
  };
};

export type Container = { name: string; image?: string; restartPolicy?: string };

export type Pod = KubeObject & {
  spec?: { nodeName?: string; containers?: Container[]; initContainers?: Container[] };
  status?: {
    phase?: string;
    reason?: string;
    message?: string;
    podIP?: string;
    conditions?: Condition[];
    containerStatuses?: ContainerStatus[];
    initContainerStatuses?: ContainerStatus[];
  };
};

type Template = { spec?: { containers?: Container[] } };

export type Workload = KubeObject & {
  spec?: {
    replicas?: number;
    completions?: number;
    parallelism?: number;
    suspend?: boolean;
    paused?: boolean;
    template?: Template;
  };
  status?: {
    replicas?: number;
    readyReplicas?: number;
    updatedReplicas?: number;
    desiredNumberScheduled?: number;
    numberReady?: number;
    succeeded?: number;
    failed?: number;
    active?: number;
    conditions?: Condition[];
  };
};

export type Service = KubeObject & {
  spec?: {
    type?: string;
    clusterIP?: string;
    externalName?: string;
    ports?: { port: number; protocol?: string; nodePort?: number }[];
  };
  status?: { loadBalancer?: { ingress?: { ip?: string; hostname?: string }[] } };
};

export type Event = KubeObject & {
  type?: string;
  reason?: string;
  message?: string;
  note?: string;
  count?: number;
  firstTimestamp?: string | null;
  lastTimestamp?: string | null;
  eventTime?: string | null;
  series?: { count?: number; lastObservedTime?: string } | null;
  involvedObject?: { kind?: string; name?: string; namespace?: string; uid?: string };
  source?: { component?: string };
  reportingComponent?: string;
};
