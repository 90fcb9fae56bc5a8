/** Deployments, StatefulSets, DaemonSets and Jobs with their pods, and Services, as they are this second. */

import { Link } from "@tanstack/react-router";
import { Fragment, useMemo, useState } from "react";
import { useCollection } from "../../kube/hooks";
import { podsByWorkload } from "../../kube/owners";
import {
  externalAddress, images, podReady, podRestarts, podStatus, servicePorts, type WorkloadKind, workloadStatus,
} from "../../kube/show";
import type { KubeObject, Pod, Service, Workload } from "../../kube/types";
import { Age, Badge, Card, Empty, StatusBadge, Table } from "../../ui/basics";
import { Icon } from "../../ui/icons";
import { Collection } from "./Collection";
import { useCluster } from "./context";
import { NamespaceSelect, useNamespace } from "./Namespaces";

const kinds: readonly { kind: WorkloadKind; title: string; path: string }[] = [
  { kind: "Deployment", title: "Deployments", path: "/apis/apps/v1/deployments" },
  { kind: "StatefulSet", title: "StatefulSets", path: "/apis/apps/v1/statefulsets" },
  { kind: "DaemonSet", title: "DaemonSets", path: "/apis/apps/v1/daemonsets" },
  { kind: "Job", title: "Jobs", path: "/apis/batch/v1/jobs" },
];

export function Workloads() {
  const deployments = useCollection<Workload>("/apis/apps/v1/deployments");
  const statefulSets = useCollection<Workload>("/apis/apps/v1/statefulsets");
  const daemonSets = useCollection<Workload>("/apis/apps/v1/daemonsets");
  const jobs = useCollection<Workload>("/apis/batch/v1/jobs");
  const replicaSets = useCollection<KubeObject>("/apis/apps/v1/replicasets");
  const pods = useCollection<Pod>("/api/v1/pods");
  const services = useCollection<Service>("/api/v1/services");
  const namespace = useNamespace();
  const inNamespace = <T extends KubeObject>(items: readonly T[]): T[] =>
    items
      .filter((one) => namespace === undefined || one.metadata.namespace === namespace)
      .sort((a, b) => sortKey(a).localeCompare(sortKey(b)));
  const groups = useMemo(() => podsByWorkload(pods.items, replicaSets.items), [pods, replicaSets]);
  const snapshots = [deployments, statefulSets, daemonSets, jobs];
  const shown = new Set(snapshots.flatMap((one) => one.items.map((workload) => workload.metadata.uid)));
  const others = inNamespace([...groups].filter(([owner]) => !shown.has(owner)).flatMap(([, group]) => group));
  const settled = snapshots.every((one) => one.phase !== "loading") && pods.phase !== "loading";
  const nothing = snapshots.every((one) => inNamespace(one.items).length === 0) && others.length === 0;
  return (
    <>
      <div className="bar">
        <NamespaceSelect to="/o/$org/clusters/$cluster/workloads" />
      </div>
      {settled && nothing && !deployments.error && (
        <Empty title={namespace ? `Nothing runs in ${namespace}` : "Nothing runs here yet"}>
          <p>
            Start something: <code>kubectl create deployment web --image=… --replicas=3</code>
          </p>
        </Empty>
      )}
      {kinds.map(({ kind, title }, index) => {
        const of = snapshots[index];
        if (!of) return null;
        const items = inNamespace(of.items);
        // What is not used takes no room, unless something is wrong with it.
        if (items.length === 0 && !of.error && (of.phase !== "loading" || kind !== "Deployment")) return null;
        return (
          <Card key={kind} title={title}>
            <Collection of={of} what={title} empty={null}>
              <Table label={title} head={["Name", "Namespace", "State", kind === "Job" ? "Done" : "Ready", "Images", "Age"]}>
                {items.map((workload) => (
                  <WorkloadRows
                    key={workload.metadata.uid}
                    kind={kind}
                    workload={workload}
                    pods={groups.get(workload.metadata.uid) ?? []}
                  />
                ))}
              </Table>
            </Collection>
          </Card>
        );
      })}
      {others.length > 0 && (
        <Card title="Other pods">
          <Table label="Other pods" head={["Name", "Namespace", "State", "Ready", "Node", "Age"]}>
            {others.map((pod) => (
              <PodRow key={pod.metadata.uid} pod={pod} />
            ))}
          </Table>
        </Card>
      )}
      <Services items={inNamespace(services.items).filter(notTheApi)} />
    </>
  );
}

/** Every cluster has the Service `kubernetes`; that it is there says nothing. */
const notTheApi = ({ metadata }: Service) => metadata.namespace !== "default" || metadata.name !== "kubernetes";

function Services({ items }: { items: Service[] }) {
  if (items.length === 0) return null;
  return (
    <Card title="Services">
      <Table label="Services" head={["Name", "Namespace", "Type", "Inside", "Outside", "Ports", "Age"]}>
        {items.map((service) => {
          const outside = externalAddress(service);
          return (
            <tr key={service.metadata.uid}>
              <th scope="row">{service.metadata.name}</th>
              <td>{service.metadata.namespace}</td>
              <td>{service.spec?.type}</td>
              <td>{service.spec?.clusterIP}</td>
              <td>{outside === "<pending>" ? <Badge tone="busy">pending</Badge> : (outside ?? "")}</td>
              <td className="long">{servicePorts(service)}</td>
              <td>
                <Age of={service.metadata.creationTimestamp} />
              </td>
            </tr>
          );
        })}
      </Table>
    </Card>
  );
}

const sortKey = (one: KubeObject) => `${one.metadata.namespace ?? ""}/${one.metadata.name}`;

function WorkloadRows({ kind, workload, pods }: { kind: WorkloadKind; workload: Workload; pods: Pod[] }) {
  const [open, setOpen] = useState(false);
  const status = workloadStatus(kind, workload);
  const { name, namespace, creationTimestamp } = workload.metadata;
  const sorted = [...pods].sort((a, b) => sortKey(a).localeCompare(sortKey(b)));
  return (
    <Fragment>
      <tr>
        <th scope="row">
          <button
            type="button"
            className="disclose"
            aria-expanded={open}
            onClick={() => setOpen(!open)}
            aria-label={`Pods of ${name}`}
          >
            <Icon name={open ? "chevron" : "right"} />
            {name}
          </button>
        </th>
        <td>{namespace}</td>
        <td>
          <StatusBadge of={status} />
        </td>
        <td>
          {status.ready}/{status.wanted}
        </td>
        <td className="long">{images(workload)}</td>
        <td>
          <Age of={creationTimestamp} />
        </td>
      </tr>
      {open && sorted.map((pod) => <PodRow key={pod.metadata.uid} pod={pod} inset />)}
      {open && sorted.length === 0 && (
        <tr className="sub-row">
          <td colSpan={6}>No pods{status.why ? `: ${status.why}` : ""}</td>
        </tr>
      )}
    </Fragment>
  );
}

function PodRow({ pod, inset }: { pod: Pod; inset?: boolean }) {
  const { org, cluster } = useCluster();
  const { name, namespace = "", creationTimestamp } = pod.metadata;
  const status = podStatus(pod);
  const restarts = podRestarts(pod);
  return (
    <tr className={inset ? "sub-row" : undefined}>
      <th scope="row">
        <Link
          to="/o/$org/clusters/$cluster/pods/$namespace/$pod"
          params={{ org, cluster: cluster.name, namespace, pod: name }}
        >
          {name}
        </Link>
      </th>
      <td>{namespace}</td>
      <td>
        <StatusBadge of={status} />
        {status.tone === "bad" && status.why && <div className="hint">{status.why}</div>}
      </td>
      <td>
        {podReady(pod)}
        {restarts > 0 && <span className="quiet-text"> {restarts} restarts</span>}
      </td>
      <td className="long">{pod.spec?.nodeName ?? "no node yet"}</td>
      <td>
        <Age of={creationTimestamp} />
      </td>
    </tr>
  );
}
