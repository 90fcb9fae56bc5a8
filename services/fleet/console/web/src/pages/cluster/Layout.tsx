/** What the pages of a cluster have in common: its name and state, the way between them, its own API. */

import { Link, Outlet, useMatch, useNavigate, useParams } from "@tanstack/react-router";
import { useEffect, useMemo, useRef } from "react";
import * as calls from "../../api/calls";
import type { Operation } from "../../api/types";
import { KubeCluster, KubeContext } from "../../kube/hooks";
import { findCluster, operationsOf, useLive } from "../../live";
import { useRights } from "../../session";
import { Button, Empty, Note, Progress } from "../../ui/basics";
import { sayError } from "../../ui/overlays";
import { Labels, StateOf } from "../Clusters";
import { ClusterContext } from "./context";

export function ClusterLayout() {
  const { org, cluster: name } = useParams({ from: "/app/o/$org/clusters/$cluster" });
  const live = useLive(org);
  const navigate = useNavigate();
  // A cluster keeps its id when its name changes, here or in another window; the page then follows it.
  const seen = useRef<string>(undefined);
  const named = findCluster(live, name);
  const cluster = named ?? (seen.current ? live.shown.clusters.get(seen.current) : undefined);
  useEffect(() => {
    if (!cluster) return;
    seen.current = cluster.id;
    if (cluster.name !== name && cluster.id !== name) {
      void navigate({ to: "/o/$org/clusters/$cluster", params: { org, cluster: cluster.name }, replace: true });
    }
  });
  const inPod = useMatch({ from: "/app/o/$org/clusters/$cluster/pods/$namespace/$pod", shouldThrow: false });
  const id = cluster?.id;
  const kube = useMemo(() => (id ? new KubeCluster(calls.proxyUrl(org, id)) : undefined), [org, id]);
  const going = cluster?.state === "deleting";
  useEffect(() => {
    if (going) kube?.close();
  }, [going, kube]);
  useEffect(() => () => kube?.close(), [kube]);
  const context = useMemo(() => (cluster ? { org, cluster } : undefined), [org, cluster]);
  if (!cluster || !kube || !context) {
    return (
      <main id="content" className="narrow">
        <Empty title={seen.current ? `The cluster ${name} is gone` : `There is no cluster ${name}`}>
          <p>{seen.current ? "It was deleted." : `It may have been deleted or renamed, or it is not in ${org}.`}</p>
          <Link to="/o/$org/clusters" params={{ org }} className="button">
            All clusters
          </Link>
        </Empty>
      </main>
    );
  }
  const operations = operationsOf(live, cluster);
  const params = { org, cluster: name };
  return (
    <main id="content">
      <p className="crumbs">
        <Link to="/o/$org/clusters" params={{ org }}>
          Clusters
        </Link>
      </p>
      <div className="page-head">
        <h1>{cluster.name}</h1>
        <StateOf cluster={cluster} operation={operations[0]} />
        <Labels of={cluster} />
      </div>
      <Running org={org} operations={operations} />
      <nav className="tabs" aria-label={`Pages of ${cluster.name}`}>
        <Link to="/o/$org/clusters/$cluster" params={params} activeOptions={{ exact: true }}>
          Overview
        </Link>
        <Link to="/o/$org/clusters/$cluster/nodes" params={params}>
          Nodes
        </Link>
        <Link
          to="/o/$org/clusters/$cluster/workloads"
          params={params}
          // A pod is looked at on the way from there.
          {...(inPod && { "aria-current": "page" })}
        >
          Workloads
        </Link>
        <Link to="/o/$org/clusters/$cluster/events" params={params}>
          Events
        </Link>
      </nav>
      <ClusterContext value={context}>
        <KubeContext value={kube}>
          {/* Until it serves there is nobody to ask about nodes and pods. */}
          {cluster.state === "creating" ? (
            <Empty title="The cluster is being made">
              <p>This takes a second or two; the page goes on by itself.</p>
            </Empty>
          ) : (
            <Outlet />
          )}
        </KubeContext>
      </ClusterContext>
    </main>
  );
}

const words: Record<string, string> = {
  "cluster.create": "Creating the cluster",
  "cluster.delete": "Deleting the cluster",
  "nodepool.create": "Creating a node pool",
  "nodepool.resize": "Resizing a node pool",
  "nodepool.delete": "Deleting a node pool",
};

/** What is being done to the cluster, and what went wrong the last time. */
function Running({ org, operations }: { org: string; operations: Operation[] }) {
  const { developer } = useRights(org);
  const running = operations.filter((one) => one.state === "running");
  // Of what has failed only the newest, and only if nothing of its kind was done since.
  const failed = operations.find((one, index) => one.state === "failed" && !operations.slice(0, index).some((it) => it.kind === one.kind));
  return (
    <>
      {running.map((one) => (
        <Note key={one.id} tone="busy">
          <div className="operation">
            <span>
              {words[one.kind] ?? one.kind}
              {one.message && `: ${one.message}`}
            </span>
            <Progress value={one.progress} label={words[one.kind] ?? one.kind} />
            {developer && one.kind.startsWith("nodepool.") && one.kind !== "nodepool.delete" && (
              <Button onClick={() => void calls.cancelOperation(org, one.id).catch(sayError)}>
                Cancel
              </Button>
            )}
          </div>
        </Note>
      ))}
      {failed && (
        <Note tone="bad">
          {words[failed.kind] ?? failed.kind} failed: {failed.message}
        </Note>
      )}
    </>
  );
}
