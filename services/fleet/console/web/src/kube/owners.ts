/** Which pods belong to which workload, by owner references. Pure. */

import type { KubeObject, Pod } from "./types";

const controllerOf = (object: KubeObject): string | undefined =>
  object.metadata.ownerReferences?.find((one) => one.controller)?.uid;

/**
 * Pods by the uid of the workload at the top of their chain of controllers. A Deployment's pods are owned
 * by its ReplicaSets, so these are looked through; a pod nobody controls is under `""`, and one whose
 * controller is not shown is under that controller's uid.
 */
export function podsByWorkload(pods: readonly Pod[], replicaSets: readonly KubeObject[]): Map<string, Pod[]> {
  const above = new Map<string, string>();
  for (const set of replicaSets) {
    const owner = controllerOf(set);
    if (owner) above.set(set.metadata.uid, owner);
  }
  const groups = new Map<string, Pod[]>();
  for (const pod of pods) {
    const owner = controllerOf(pod);
    const top = owner === undefined ? "" : (above.get(owner) ?? owner);
    const group = groups.get(top);
    if (group) group.push(pod);
    else groups.set(top, [pod]);
  }
  return groups;
}
