import { expect, test } from "vitest";
import {
  age, bytes, externalAddress, hasRun, memory, nodeStatus, podReady, podStatus, servicePorts, workloadStatus,
} from "./show";
import type { Node, Pod, Service, Workload } from "./types";

const pod = (status: Pod["status"], rest: Partial<Pod> = {}, deleted = false): Pod => ({
  metadata: { name: "p", uid: "1", resourceVersion: "1", ...(deleted && { deletionTimestamp: "2026-12-01T00:00:00Z" }) },
  ...(status && { status }),
  ...rest,
});
const ready = [{ type: "Ready", status: "True" }];
const waiting = (reason: string) => [{ name: "c", state: { waiting: { reason } } }];
const two = { spec: { containers: [{ name: "c" }, { name: "d" }], initContainers: [{ name: "i" }, { name: "j" }] } };

test.each<[string, Pod, string, string]>([
  ["runs", pod({ phase: "Running", conditions: ready }), "Running", "good"],
  ["runs, not ready", pod({ phase: "Running" }), "Running", "busy"],
  ["is being deleted", pod({ phase: "Running", conditions: ready }, {}, true), "Terminating", "busy"],
  ["finished", pod({ phase: "Succeeded" }), "Completed", "idle"],
  ["starts", pod({ phase: "Pending", containerStatuses: waiting("ContainerCreating") }), "ContainerCreating", "busy"],
  ["cannot be pulled", pod({ phase: "Pending", containerStatuses: waiting("ErrImagePull") }), "ErrImagePull", "bad"],
  ["crashes", pod({ phase: "Running", containerStatuses: waiting("CrashLoopBackOff") }), "CrashLoopBackOff", "bad"],
  ["was evicted", pod({ phase: "Failed", reason: "Evicted" }), "Evicted", "bad"],
  [
    "was killed by a signal",
    pod({ phase: "Failed", containerStatuses: [{ name: "c", state: { terminated: { signal: 9, exitCode: 137 } } }] }),
    "Signal:9",
    "bad",
  ],
  [
    "is in its second init container",
    pod(
      {
        phase: "Pending",
        initContainerStatuses: [
          { name: "i", state: { terminated: { exitCode: 0 } } },
          { name: "j", state: { running: {} } },
        ],
      },
      two,
    ),
    "Init:1/2",
    "busy",
  ],
  [
    "fits nowhere",
    pod({ phase: "Pending", conditions: [{ type: "PodScheduled", status: "False", reason: "Unschedulable", message: "no nodes" }] }),
    "Pending",
    "bad",
  ],
  ["is new", pod(undefined), "Pending", "busy"],
])("a pod that %s", (_, given, text, tone) => {
  expect(podStatus(given)).toMatchObject({ text, tone });
});

test.each([
  [{ name: "c", state: { running: {} } }, true],
  [{ name: "c", state: { terminated: { exitCode: 0 } } }, true],
  [{ name: "c", state: { waiting: { reason: "ContainerCreating" } } }, false],
  [{ name: "c", state: { waiting: { reason: "CrashLoopBackOff" } }, restartCount: 1 }, true],
  [{ name: "other", state: { running: {} } }, false],
])("a log is there once there was somebody to write it %#", (status, wanted) => {
  expect(hasRun(pod({ containerStatuses: [status] }), "c")).toBe(wanted);
});

test("ready counts against all containers", () => {
  expect(podReady(pod({ containerStatuses: [{ name: "c", ready: true }, { name: "d" }] }, two))).toBe("1/2");
});

const node = (status: string | undefined, unschedulable = false): Node => ({
  metadata: { name: "n", uid: "1", resourceVersion: "1" },
  spec: { unschedulable },
  status: { conditions: status ? [{ type: "Ready", status }] : [] },
});

test.each([
  [node("True"), "Ready", "good"],
  [node("True", true), "Ready, cordoned", "busy"],
  [node("False"), "NotReady", "bad"],
  [node("Unknown"), "Unknown", "bad"],
  [node(undefined), "Unknown", "bad"],
])("a node %#", (given, text, tone) => {
  expect(nodeStatus(given)).toMatchObject({ text, tone });
});

test("a node that is out of disk says so", () => {
  const full = node("True");
  full.status?.conditions?.push({ type: "DiskPressure", status: "True" });
  expect(nodeStatus(full)).toMatchObject({ text: "Ready, DiskPressure", tone: "bad" });
});

const workload = (spec: Workload["spec"], status: Workload["status"]): Workload => ({
  metadata: { name: "w", uid: "1", resourceVersion: "1" },
  ...(spec && { spec }),
  ...(status && { status }),
});

test.each([
  ["Deployment", workload({ replicas: 3 }, { readyReplicas: 3 }), "Ready", "good", 3, 3],
  ["Deployment", workload({ replicas: 3 }, { readyReplicas: 1 }), "Progressing", "busy", 1, 3],
  ["Deployment", workload({ replicas: 0 }, {}), "Scaled to zero", "idle", 0, 0],
  ["Deployment", workload({}, {}), "Progressing", "busy", 0, 1],
  [
    "Deployment",
    workload({ replicas: 1 }, { conditions: [{ type: "Progressing", status: "False", reason: "ProgressDeadlineExceeded" }] }),
    "ProgressDeadlineExceeded",
    "bad",
    0,
    1,
  ],
  ["DaemonSet", workload({}, { desiredNumberScheduled: 2, numberReady: 2 }), "Ready", "good", 2, 2],
  ["Job", workload({ completions: 4 }, { succeeded: 1, active: 1 }), "Running", "busy", 1, 4],
  ["Job", workload({}, { succeeded: 1, conditions: [{ type: "Complete", status: "True" }] }), "Complete", "idle", 1, 1],
  ["Job", workload({}, { conditions: [{ type: "Failed", status: "True" }] }), "Failed", "bad", 0, 1],
] as const)("a %s %#", (kind, given, text, tone, count, wanted) => {
  expect(workloadStatus(kind, given)).toMatchObject({ text, tone, ready: count, wanted });
});

const service = (spec: Service["spec"], ingress?: { ip?: string; hostname?: string }[]): Service => ({
  metadata: { name: "s", uid: "1", resourceVersion: "1" },
  ...(spec && { spec }),
  ...(ingress && { status: { loadBalancer: { ingress } } }),
});

test.each([
  [service({ type: "ClusterIP", ports: [{ port: 80 }] }), undefined, "80/TCP"],
  [service({ type: "LoadBalancer", ports: [{ port: 80, nodePort: 30080 }] }), "<pending>", "80:30080/TCP"],
  [service({ type: "LoadBalancer" }, [{ ip: "127.77.0.1" }, { hostname: "lb.example" }]), "127.77.0.1, lb.example", ""],
  [service({ type: "ExternalName", externalName: "db.example" }), "db.example", ""],
  [service({ ports: [{ port: 53, protocol: "UDP" }, { port: 53 }] }), undefined, "53/UDP, 53/TCP"],
])("a service %#", (given, address, ports) => {
  expect([externalAddress(given), servicePorts(given)]).toEqual([address, ports]);
});

test.each([
  [0, "0s"],
  [119, "119s"],
  [120, "2m"],
  [2 * 3600, "2h"],
  [47 * 3600, "47h"],
  [48 * 3600, "2d"],
])("%i s ago reads %s", (seconds, wanted) => {
  const now = Date.parse("2026-12-01T00:00:00Z");
  expect(age(new Date(now - seconds * 1000).toISOString(), now)).toBe(wanted);
});

test.each([
  ["8123456Ki", "7.7 GiB"],
  ["512Mi", "512 MiB"],
  ["2G", "1.9 GiB"],
  ["odd", "odd"],
])("memory %s reads %s", (quantity, wanted) => {
  expect(memory(quantity)).toBe(wanted);
});

test("bytes below a kibibyte stay whole", () => expect(bytes(12)).toBe("12 B"));
