/** The live state of an organisation, for React components. */

import { useSyncExternalStore } from "react";
import { type Live, LiveOrganization } from "./api/live";
import type { Cluster, NodePool, Operation } from "./api/types";

/** One per organisation visited; without a subscriber one keeps its last state and no connection. */
const known = new Map<string, LiveOrganization>();

export function liveOf(organization: string): LiveOrganization {
  let live = known.get(organization);
  if (!live) {
    live = new LiveOrganization(organization);
    known.set(organization, live);
  }
  return live;
}

export function useLive(organization: string): Live {
  const live = liveOf(organization);
  return useSyncExternalStore(live.subscribe, live.snapshot);
}

export function forgetLive(): void {
  known.clear();
}

export const byName = <T extends { name: string }>(map: ReadonlyMap<string, T>): T[] =>
  [...map.values()].sort((a, b) => a.name.localeCompare(b.name));

/** By name or by id: addresses name clusters, and a renamed one is still found by what does not change. */
export function findCluster(live: Live, nameOrId: string): Cluster | undefined {
  return live.shown.clusters.get(nameOrId) ?? byName(live.shown.clusters).find((one) => one.name === nameOrId);
}

export function poolsOf(live: Live, cluster: Cluster): NodePool[] {
  return byName(live.shown.pools).filter((one) => one.cluster === cluster.name);
}

/** Of one cluster and what belongs to it, the newest first. */
export function operationsOf(live: Live, cluster: Cluster): Operation[] {
  return [...live.shown.operations.values()]
    .filter((one) => one.cluster === cluster.id)
    .sort((a, b) => b.created_at.localeCompare(a.created_at));
}
