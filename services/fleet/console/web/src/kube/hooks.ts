/** Collections of a cluster for React components: each is watched once, however many components show it. */

import { createContext, useContext, useSyncExternalStore } from "react";
import { ListWatch, type Snapshot } from "./listwatch";
import type { KubeObject } from "./types";

/** The collections of one cluster that are, or were lately, on a page. */
export class KubeCluster {
  #watches = new Map<string, ListWatch<KubeObject>>();
  #closed = false;

  /** `base`: the proxy's URL, below which is the cluster's own API. */
  constructor(readonly base: string) {}

  collection<T extends KubeObject>(path: string): ListWatch<T> {
    let watch = this.#watches.get(path);
    if (!watch) {
      watch = new ListWatch<KubeObject>(`${this.base}${path}`);
      this.#watches.set(path, watch);
      if (this.#closed) watch.close();
    }
    return watch as unknown as ListWatch<T>;
  }

  /** The cluster is going: asking it further would only bring errors. */
  close(): void {
    this.#closed = true;
    for (const watch of this.#watches.values()) watch.close();
  }
}

export const KubeContext = createContext<KubeCluster | undefined>(undefined);

export function useKube(): KubeCluster {
  const kube = useContext(KubeContext);
  if (!kube) throw new Error("outside of a cluster's pages");
  return kube;
}

/** The collection at `path` (`/api/v1/pods`), as it is and as it becomes. */
export function useCollection<T extends KubeObject>(path: string): Snapshot<T> {
  const watch = useKube().collection<T>(path);
  return useSyncExternalStore(watch.subscribe, watch.snapshot);
}
