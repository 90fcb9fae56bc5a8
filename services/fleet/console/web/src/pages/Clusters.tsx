import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { useState } from "react";
import * as calls from "../api/calls";
import { asApiError } from "../api/http";
import type { Cluster, Operation } from "../api/types";
import { byName, operationsOf, poolsOf, useLive } from "../live";
import { useRights } from "../session";
import { Age, Badge, Button, download, Empty, Loading, ProblemNote, Progress, Table } from "../ui/basics";
import { Icon } from "../ui/icons";
import { toneOf } from "../ui/tone";

/** The organisation's clusters, as they are this second. */
export function Clusters() {
  const { org } = useParams({ from: "/app/o/$org/clusters" });
  const live = useLive(org);
  const { developer } = useRights(org);
  const clusters = byName(live.shown.clusters);
  const create = developer && (
    <Link to="/o/$org/clusters/new" params={{ org }} className="button primary">
      <Icon name="plus" /> Create cluster
    </Link>
  );
  return (
    <main id="content">
      <div className="page-head">
        <h1>Clusters</h1>
        {clusters.length > 0 && create}
      </div>
      {clusters.length === 0 ? (
        <Empty title="No clusters yet">
          <p>
            {developer
              ? "A cluster is ready within a second or two, and costs next to nothing while it idles."
              : "Whoever has the role developer in this organisation can create one."}
          </p>
          {create}
        </Empty>
      ) : (
        <Table label="Clusters" head={["Name", "State", "Version", "Replicas", "Node pools", "Age"]}>
          {clusters.map((cluster) => (
            <tr key={cluster.id}>
              <th scope="row">
                <Link to="/o/$org/clusters/$cluster" params={{ org, cluster: cluster.name }}>
                  {cluster.name}
                </Link>
                <Labels of={cluster} />
              </th>
              <td>
                <StateOf cluster={cluster} operation={operationsOf(live, cluster)[0]} />
              </td>
              <td>{cluster.kubernetes_version}</td>
              <td>{cluster.replicas}</td>
              <td>{pools(poolsOf(live, cluster))}</td>
              <td>
                <Age of={cluster.created_at} />
              </td>
            </tr>
          ))}
        </Table>
      )}
      <Deleted org={org} />
    </main>
  );
}

/** Receipts of clusters that are gone, read when somebody wants to see them. */
function Deleted({ org }: { org: string }) {
  const [open, setOpen] = useState(false);
  const receipts = useQuery({
    queryKey: ["receipts", org],
    queryFn: () => calls.receipts(org),
    enabled: open,
    staleTime: 0,
  });
  return (
    <section className="below">
      <button type="button" className="disclose" aria-expanded={open} onClick={() => setOpen(!open)}>
        <Icon name={open ? "chevron" : "right"} /> Deleted clusters
      </button>
      {open && receipts.isPending && <Loading what="receipts" />}
      {open && receipts.error && <ProblemNote error={asApiError(receipts.error)} />}
      {open && receipts.data?.length === 0 && <p className="hint">None was deleted yet.</p>}
      {open && receipts.data && receipts.data.length > 0 && (
        <Table label="Deleted clusters" head={["Name", "Deleted", "Resources removed", ""]}>
          {receipts.data.map((receipt) => (
            <tr key={receipt.cluster}>
              <th scope="row">{receipt.name}</th>
              <td>
                <Age of={receipt.deleted_at} /> ago
              </td>
              <td className="message">{kinds(receipt.resources.map((one) => one.kind))}</td>
              <td className="row-actions">
                <Button
                  look="quiet"
                  icon="download"
                  onClick={() => {
                    const text = `${JSON.stringify(receipt, null, 2)}\n`;
                    download(`${receipt.name}-receipt.json`, text, "application/json");
                  }}
                >
                  Receipt
                </Button>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </section>
  );
}

/** `data-key, 2 machine` */
function kinds(names: string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${count} ${name}` : name)).join(", ");
}

export function StateOf({ cluster, operation }: { cluster: Cluster; operation: Operation | undefined }) {
  const running = operation?.state === "running" && operation.kind.startsWith("cluster.") ? operation : undefined;
  return (
    <>
      <Badge tone={toneOf(cluster.state)} why={running?.message}>
        {cluster.state}
      </Badge>
      {running && <Progress value={running.progress} label={running.message || running.kind} />}
    </>
  );
}

export function Labels({ of }: { of: { labels?: Record<string, string> } }) {
  const entries = Object.entries(of.labels ?? {});
  if (entries.length === 0) return null;
  return (
    <span className="labels">
      {entries.map(([key, value]) => (
        <span key={key} className="label">
          {value ? `${key}=${value}` : key}
        </span>
      ))}
    </span>
  );
}

function pools(list: { size: number }[]): string {
  if (list.length === 0) return "none";
  const machines = list.reduce((sum, pool) => sum + pool.size, 0);
  return `${list.length} (${machines} ${machines === 1 ? "machine" : "machines"})`;
}
