/** The pages of one cluster, loaded together when the first of them is visited. */
export { Events } from "./Events";
export { ClusterLayout } from "./Layout";
export { Nodes } from "./Nodes";
export { Overview } from "./Overview";
export { PodPage } from "./PodPage";
export { Workloads } from "./Workloads";
