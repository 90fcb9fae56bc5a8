import { useMemo, useState } from "react";
import { useCollection } from "../../kube/hooks";
import { eventTime } from "../../kube/show";
import type { Event } from "../../kube/types";
import { Age, Badge, Button, Card, Empty, Table } from "../../ui/basics";
import { Collection } from "./Collection";
import { NamespaceSelect, useNamespace } from "./Namespaces";

/** Rows shown at first and added at a time: a table of thousands would be slow to scroll. */
const ROWS = 100;

/** What happened in the cluster lately, the newest first; Kubernetes keeps it for an hour. */
export function Events() {
  const events = useCollection<Event>("/api/v1/events");
  const namespace = useNamespace();
  const [onlyWarnings, setOnlyWarnings] = useState(false);
  const [rows, setRows] = useState(ROWS);
  const sorted = useMemo(
    () =>
      events.items
        .filter((one) => namespace === undefined || one.metadata.namespace === namespace)
        .filter((one) => !onlyWarnings || one.type === "Warning")
        .sort((a, b) => eventTime(b) - eventTime(a)),
    [events, namespace, onlyWarnings],
  );
  return (
    <>
      <div className="bar">
        <NamespaceSelect to="/o/$org/clusters/$cluster/events" />
        <label className="check">
          <input type="checkbox" checked={onlyWarnings} onChange={(event) => setOnlyWarnings(event.target.checked)} />
          Only warnings
        </label>
      </div>
      <Card>
        <Collection of={events} what="events" empty={<Empty title="Nothing happened in the last hour" />}>
          {sorted.length === 0 ? (
            <Empty title="No such events in the last hour" />
          ) : (
            <Table label="Events" head={["Last seen", "Type", "Reason", "Object", "Message"]}>
              {sorted.slice(0, rows).map((event) => (
                <EventRow key={event.metadata.uid} event={event} />
              ))}
            </Table>
          )}
          {sorted.length > rows && <Button onClick={() => setRows(rows + ROWS)}>Show more</Button>}
        </Collection>
      </Card>
    </>
  );
}

export function EventRow({ event }: { event: Event }) {
  const count = event.series?.count ?? event.count ?? 1;
  const { kind = "", name = "", namespace } = event.involvedObject ?? {};
  return (
    <tr>
      <td>
        <Age of={eventTime(event)} />
        {count > 1 && <span className="quiet-text"> ×{count}</span>}
      </td>
      <td>
        <Badge tone={event.type === "Warning" ? "bad" : "idle"}>{event.type ?? "Normal"}</Badge>
      </td>
      <td>{event.reason}</td>
      <td className="long">
        {kind} {name}
        {namespace && <span className="quiet-text"> in {namespace}</span>}
      </td>
      <td className="message">{event.message ?? event.note}</td>
    </tr>
  );
}
