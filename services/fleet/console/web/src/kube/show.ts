/** How Kubernetes objects read to a person: the words `kubectl get` uses where it has some. Pure. */

import type { Tone } from "../ui/tone";
import type { ContainerStatus, Event, Node, Pod, Service, Workload } from "./types";

export type Shown = { text: string; tone: Tone; why?: string | undefined };

/** A pod's STATUS column: the most telling thing about it rather than its phase. */
export function podStatus(pod: Pod): Shown {
  const status = pod.status ?? {};
  const why = status.message;
  if (pod.metadata.deletionTimestamp) return { text: "Terminating", tone: "busy", why };
  const init = initStatus(pod);
  if (init) return init;
  for (const container of status.containerStatuses ?? []) {
    const bad = trouble(container);
    if (bad) return bad;
  }
  if (status.reason) return { text: status.reason, tone: status.phase === "Failed" ? "bad" : "busy", why };
  switch (status.phase) {
    case "Running": {
      const ready = conditionIs(status.conditions, "Ready", "True");
      return ready ? { text: "Running", tone: "good" } : { text: "Running", tone: "busy", why: "not ready yet" };
    }
    case "Succeeded":
      return { text: "Completed", tone: "idle" };
    case "Failed":
      return { text: "Failed", tone: "bad", why };
    case "Pending": {
      const scheduled = status.conditions?.find((one) => one.type === "PodScheduled");
      const stuck = scheduled?.status === "False" && scheduled.reason === "Unschedulable";
      return { text: "Pending", tone: stuck ? "bad" : "busy", why: stuck ? scheduled.message : why };
    }
    default:
      return { text: status.phase ?? "Pending", tone: "busy", why };
  }
}

/** `Init:0/2` and its kin, as long as init containers are not through. */
function initStatus(pod: Pod): Shown | undefined {
  const statuses = pod.status?.initContainerStatuses ?? [];
  const sidecars = new Set(
    (pod.spec?.initContainers ?? []).filter((one) => one.restartPolicy === "Always").map((one) => one.name),
  );
  const total = pod.spec?.initContainers?.length ?? 0;
  for (const [index, container] of statuses.entries()) {
    const state = container.state ?? {};
    if (state.terminated?.exitCode === 0 || (sidecars.has(container.name) && container.started)) continue;
    const bad = trouble(container);
    return bad ? { ...bad, text: `Init:${bad.text}` } : { text: `Init:${index}/${total}`, tone: "busy" };
  }
  return undefined;
}

/** Waits that are the ordinary course of things. */
const ordinary = new Set(["ContainerCreating", "PodInitializing"]);

function trouble(container: ContainerStatus): Shown | undefined {
  const { waiting, terminated } = container.state ?? {};
  if (waiting?.reason) {
    return { text: waiting.reason, tone: ordinary.has(waiting.reason) ? "busy" : "bad", why: waiting.message };
  }
  if (terminated && terminated.exitCode !== 0) {
    const text =
      terminated.reason ??
      (terminated.signal ? `Signal:${terminated.signal}` : `ExitCode:${terminated.exitCode ?? "?"}`);
    return { text, tone: "bad", why: terminated.message };
  }
  return undefined;
}

function conditionIs(conditions: { type: string; status: string }[] | undefined, type: string, status: string): boolean {
  return (conditions ?? []).some((one) => one.type === type && one.status === status);
}

/** Whether there is a log to ask for: the kubelet answers 400 for a container that never ran. */
export function hasRun(pod: Pod, container: string): boolean {
  const status = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])].find(
    (one) => one.name === container,
  );
  return Boolean(status?.state?.running ?? status?.state?.terminated) || (status?.restartCount ?? 0) > 0;
}

/** The READY column. */
export function podReady(pod: Pod): string {
  const ready = (pod.status?.containerStatuses ?? []).filter((one) => one.ready).length;
  return `${ready}/${pod.spec?.containers?.length ?? 0}`;
}

export function podRestarts(pod: Pod): number {
  return (pod.status?.containerStatuses ?? []).reduce((sum, one) => sum + (one.restartCount ?? 0), 0);
}

export function nodeStatus(node: Node): Shown {
  const ready = node.status?.conditions?.find((one) => one.type === "Ready");
  const cordoned = node.spec?.unschedulable ? ", cordoned" : "";
  // It runs what it runs, and takes nothing new.
  const pressure = node.status?.conditions?.find((one) => one.type.endsWith("Pressure") && one.status === "True");
  if (ready?.status === "True" && pressure) {
    return { text: `Ready, ${pressure.type}${cordoned}`, tone: "bad", why: pressure.message };
  }
  if (ready?.status === "True") return { text: `Ready${cordoned}`, tone: cordoned ? "busy" : "good" };
  if (ready?.status === "Unknown" || !ready) return { text: `Unknown${cordoned}`, tone: "bad", why: ready?.message };
  return { text: `NotReady${cordoned}`, tone: "bad", why: ready.message };
}

export function nodeAddress(node: Node): string {
  return node.status?.addresses?.find((one) => one.type === "InternalIP")?.address ?? "";
}

export type WorkloadKind = "Deployment" | "StatefulSet" | "DaemonSet" | "Job";

/** `ready` of `wanted`, and what that means for this kind. */
export function workloadStatus(kind: WorkloadKind, workload: Workload): Shown & { ready: number; wanted: number } {
  const { spec = {}, status = {} } = workload;
  switch (kind) {
    case "DaemonSet": {
      const wanted = status.desiredNumberScheduled ?? 0;
      return counted(status.numberReady ?? 0, wanted, workload);
    }
    case "Job": {
      const wanted = spec.completions ?? 1;
      const done = status.succeeded ?? 0;
      const count = { ready: done, wanted };
      if (conditionIs(status.conditions, "Complete", "True")) return { text: "Complete", tone: "idle", ...count };
      const failed = status.conditions?.find((one) => one.type === "Failed" && one.status === "True");
      if (failed) return { text: "Failed", tone: "bad", why: failed.message, ...count };
      if (spec.suspend) return { text: "Suspended", tone: "idle", ...count };
      return { text: "Running", tone: "busy", ...count };
    }
    default:
      return counted(status.readyReplicas ?? 0, spec.replicas ?? 1, workload);
  }
}

function counted(ready: number, wanted: number, workload: Workload): Shown & { ready: number; wanted: number } {
  const stuck = workload.status?.conditions?.find(
    (one) =>
      (one.type === "Progressing" && one.status === "False") ||
      (one.type === "ReplicaFailure" && one.status === "True"),
  );
  if (workload.metadata.deletionTimestamp) return { text: "Deleting", tone: "busy", ready, wanted };
  if (stuck) return { text: stuck.reason ?? "Stuck", tone: "bad", why: stuck.message, ready, wanted };
  if (wanted === 0) return { text: "Scaled to zero", tone: "idle", ready, wanted };
  if (ready >= wanted) return { text: "Ready", tone: "good", ready, wanted };
  if (workload.spec?.paused) return { text: "Paused", tone: "idle", ready, wanted };
  return { text: "Progressing", tone: "busy", ready, wanted };
}

export function images(workload: Workload): string {
  return (workload.spec?.template?.spec?.containers ?? []).map((one) => one.image ?? "").join(", ");
}

/** Where a Service is reached from outside, in kubectl's words; `undefined` when it is not meant to be. */
export function externalAddress(service: Service): string | undefined {
  switch (service.spec?.type) {
    case "LoadBalancer": {
      const ingress = service.status?.loadBalancer?.ingress ?? [];
      return ingress.map((one) => one.hostname ?? one.ip ?? "").join(", ") || "<pending>";
    }
    case "ExternalName":
      return service.spec.externalName;
    default:
      return undefined;
  }
}

/** `80/TCP, 443:30443/TCP` */
export function servicePorts(service: Service): string {
  return (service.spec?.ports ?? [])
    .map(({ port, nodePort, protocol = "TCP" }) => `${port}${nodePort ? `:${nodePort}` : ""}/${protocol}`)
    .join(", ");
}

/** Milliseconds since the epoch of the last time the event was seen. */
export function eventTime(event: Event): number {
  const seen =
    event.series?.lastObservedTime ??
    event.lastTimestamp ??
    event.eventTime ??
    event.firstTimestamp ??
    event.metadata.creationTimestamp;
  return seen ? Date.parse(seen) : 0;
}

/** `8s`, `5m`, `3h`, `12d`: as much as a list needs. */
export function age(from: string | number | undefined | null, now: number): string {
  if (from === undefined || from === null) return "";
  const then = typeof from === "number" ? from : Date.parse(from);
  if (Number.isNaN(then)) return "";
  const seconds = Math.max(0, Math.floor((now - then) / 1000));
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h` : `${Math.floor(hours / 24)}d`;
}

/** A Kubernetes quantity of memory in words: `8123456Ki` → `7.7 GiB`. */
export function memory(quantity: string | undefined): string {
  const match = /^(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?$/.exec(quantity ?? "");
  if (!match) return quantity ?? "";
  const factors: Record<string, number> = {
    Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, k: 1e3, M: 1e6, G: 1e9, T: 1e12,
  };
  return bytes(Number(match[1]) * (factors[match[2] ?? ""] ?? 1));
}

export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit++;
  }
  return `${count >= 10 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}
