/** What everybody sees first once they are signed in, loaded together. */
export { Clusters } from "./Clusters";
export { OrganizationLayout, Shell } from "./Shell";
