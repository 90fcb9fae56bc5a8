/**
 * Every address of the console. What comes after the sign-in is loaded in pieces, when it is first needed or
 * while somebody types their password, so that the first page is there at once.
 */

import { QueryClient } from "@tanstack/react-query";
import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from "@tanstack/react-router";
import * as calls from "./api/calls";
import { ApiError } from "./api/http";
import { Accept } from "./pages/Accept";
import { Failed, NotFound } from "./pages/Failed";
import { SignIn } from "./pages/SignIn";
import { sessionQuery } from "./session";
import { Loading } from "./ui/basics";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      // `request` has asked three times already where asking again makes sense.
      retry: (failures, error) => failures < 2 && error instanceof ApiError && error.status >= 500,
      staleTime: 15_000,
    },
  },
});

export const signedInPages = () => import("./pages/signedIn");

const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound });

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: (search: Record<string, unknown>): { to?: string } => {
    const to = search["to"];
    // Only to a page of ours: `//host` would be somebody else's.
    return typeof to === "string" && /^\/(?!\/|\\)/.test(to) ? { to } : {};
  },
  component: SignIn,
});

const accept = createRoute({ getParentRoute: () => root, path: "/accept", component: Accept });

const app = createRoute({
  getParentRoute: () => root,
  id: "app",
  beforeLoad: async ({ location }) => {
    const identity = await queryClient.ensureQueryData(sessionQuery);
    if (!identity) throw redirect({ to: "/sign-in", search: { to: location.href }, replace: true });
    return { identity };
  },
  component: lazyRouteComponent(signedInPages, "Shell"),
  notFoundComponent: NotFound,
});

const home = createRoute({
  getParentRoute: () => app,
  path: "/",
  beforeLoad: async ({ context }) => {
    // The provider's memberships are none, yet everything is theirs.
    const first =
      context.identity.memberships[0]?.organization ??
      (await queryClient.ensureQueryData(organizationsQuery))[0]?.name;
    if (first) throw redirect({ to: "/o/$org/clusters", params: { org: first }, replace: true });
  },
  component: lazyRouteComponent(() => import("./pages/Fleet"), "Fleet"),
});

export const organizationsQuery = { queryKey: ["organizations"], queryFn: calls.organizations };

const fleet = createRoute({
  getParentRoute: () => app,
  path: "/fleet",
  component: lazyRouteComponent(() => import("./pages/Fleet"), "Fleet"),
});

const account = createRoute({
  getParentRoute: () => app,
  path: "/account",
  component: lazyRouteComponent(() => import("./pages/Account"), "Account"),
});

const organization = createRoute({
  getParentRoute: () => app,
  path: "/o/$org",
  component: lazyRouteComponent(signedInPages, "OrganizationLayout"),
});

const organizationIndex = createRoute({
  getParentRoute: () => organization,
  path: "/",
  beforeLoad: ({ params }) => {
    throw redirect({ to: "/o/$org/clusters", params, replace: true });
  },
});

const clusters = createRoute({ getParentRoute: () => organization, path: "/clusters", component: lazyRouteComponent(signedInPages, "Clusters") });

const newCluster = createRoute({
  getParentRoute: () => organization,
  path: "/clusters/new",
  component: lazyRouteComponent(() => import("./pages/NewCluster"), "NewCluster"),
});

const members = createRoute({
  getParentRoute: () => organization,
  path: "/members",
  component: lazyRouteComponent(() => import("./pages/Members"), "Members"),
});

const tokens = createRoute({
  getParentRoute: () => organization,
  path: "/tokens",
  component: lazyRouteComponent(() => import("./pages/Tokens"), "Tokens"),
});

const clusterPages = () => import("./pages/cluster");

const cluster = createRoute({
  getParentRoute: () => organization,
  path: "/clusters/$cluster",
  component: lazyRouteComponent(clusterPages, "ClusterLayout"),
});

const overview = createRoute({
  getParentRoute: () => cluster,
  path: "/",
  component: lazyRouteComponent(clusterPages, "Overview"),
});

const nodes = createRoute({
  getParentRoute: () => cluster,
  path: "/nodes",
  component: lazyRouteComponent(clusterPages, "Nodes"),
});

const namespaced = (search: Record<string, unknown>): { namespace?: string } => {
  const namespace = search["namespace"];
  return typeof namespace === "string" && namespace !== "" ? { namespace } : {};
};

const workloads = createRoute({
  getParentRoute: () => cluster,
  path: "/workloads",
  validateSearch: namespaced,
  component: lazyRouteComponent(clusterPages, "Workloads"),
});

const events = createRoute({
  getParentRoute: () => cluster,
  path: "/events",
  validateSearch: namespaced,
  component: lazyRouteComponent(clusterPages, "Events"),
});

const pod = createRoute({
  getParentRoute: () => cluster,
  path: "/pods/$namespace/$pod",
  component: lazyRouteComponent(clusterPages, "PodPage"),
});

const clusterTree = cluster.addChildren([overview, nodes, workloads, events, pod]);
const organizationTree = organization.addChildren([
  organizationIndex,
  clusters,
  newCluster,
  members,
  tokens,
  clusterTree,
]);

export const router = createRouter({
  routeTree: root.addChildren([signIn, accept, app.addChildren([home, fleet, account, organizationTree])]),
  context: {},
  defaultErrorComponent: Failed,
  defaultPendingComponent: () => <Loading what="the page" />,
  defaultPreload: "intent",
  scrollRestoration: false,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
