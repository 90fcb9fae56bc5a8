import { createContext, useContext } from "react";
import type { Cluster } from "../../api/types";

export const ClusterContext = createContext<{ org: string; cluster: Cluster } | undefined>(undefined);

/** The cluster whose pages these are, as it is now. */
export function useCluster(): { org: string; cluster: Cluster } {
  const context = useContext(ClusterContext);
  if (!context) throw new Error("outside of a cluster's pages");
  return context;
}
