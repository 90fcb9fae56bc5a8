import { Link, useParams } from "@tanstack/react-router";
import { useState } from "react";
import { useCollection } from "../../kube/hooks";
import { eventTime, hasRun, podReady, podRestarts, podStatus } from "../../kube/show";
import type { Event, Pod } from "../../kube/types";
import { Age, Card, Definitions, Empty, Loading, ProblemNote, SelectField, StatusBadge, Table } from "../../ui/basics";
import { useCluster } from "./context";
import { EventRow } from "./Events";
import { Logs } from "./Logs";

/** One pod: how it is, what happened to it, and what it says. */
export function PodPage() {
  const { org, cluster } = useCluster();
  const { namespace, pod: name } = useParams({ from: "/app/o/$org/clusters/$cluster/pods/$namespace/$pod" });
  const selector = `metadata.name=${encodeURIComponent(name)}`;
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`;
  const pods = useCollection<Pod>(`${path}?fieldSelector=${selector}`);
  const pod = pods.items[0];
  const containers = [...(pod?.spec?.initContainers ?? []), ...(pod?.spec?.containers ?? [])];
  const [chosen, setChosen] = useState<string>();
  const container = chosen ?? pod?.spec?.containers?.[0]?.name;
  if (!pod) {
    if (pods.error) return <ProblemNote error={pods.error} />;
    if (pods.phase === "loading") return <Loading what={name} />;
    return (
      <Empty title={`There is no pod ${name} in ${namespace}`}>
        <p>It may have been replaced by another.</p>
        <Link to="/o/$org/clusters/$cluster/workloads" params={{ org, cluster: cluster.name }} className="button">
          Workloads
        </Link>
      </Empty>
    );
  }
  const status = podStatus(pod);
  return (
    <>
      <div className="page-head">
        <h2>{name}</h2>
        <StatusBadge of={status} />
      </div>
      {status.tone === "bad" && status.why && <p className="hint">{status.why}</p>}
      <Card>
        <Definitions
          inARow
          rows={[
            ["Namespace", namespace],
            ["Ready", podReady(pod)],
            ["Restarts", String(podRestarts(pod))],
            ["Node", pod.spec?.nodeName ?? "none yet"],
            ["Address", pod.status?.podIP ?? "none yet"],
            ["Age", <Age key="age" of={pod.metadata.creationTimestamp} />],
          ]}
        />
      </Card>
      <Card
        title="Log"
        actions={
          containers.length > 1 && (
            <SelectField
              compact
              label="Container"
              value={container ?? ""}
              options={containers.map((one) => ({ value: one.name, text: one.name }))}
              onChange={(event) => setChosen(event.target.value)}
            />
          )
        }
      >
        {container && hasRun(pod, container) ? (
          <Logs
            key={`${pod.metadata.uid}/${container}`}
            path={`${path}/${encodeURIComponent(name)}/log?container=${encodeURIComponent(container)}`}
            name={`${name}-${container}`}
            live={!["Succeeded", "Failed"].includes(pod.status?.phase ?? "")}
          />
        ) : (
          <Empty title="It has not started yet, so there is nothing to read" />
        )}
      </Card>
      <PodEvents namespace={namespace} name={name} uid={pod.metadata.uid} />
    </>
  );
}

function PodEvents({ namespace, name, uid }: { namespace: string; name: string; uid: string }) {
  const selector = `involvedObject.name=${encodeURIComponent(name)}`;
  const events = useCollection<Event>(
    `/api/v1/namespaces/${encodeURIComponent(namespace)}/events?fieldSelector=${selector}`,
  );
  // A StatefulSet's pods follow one another under one name.
  const own = events.items.filter((one) => one.involvedObject?.uid === uid).sort((a, b) => eventTime(b) - eventTime(a));
  if (own.length === 0) return null;
  return (
    <Card title="Events">
      <Table label="Events" head={["Last seen", "Type", "Reason", "Object", "Message"]}>
        {own.map((event) => (
          <EventRow key={event.metadata.uid} event={event} />
        ))}
      </Table>
    </Card>
  );
}
