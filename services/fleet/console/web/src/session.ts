/** Who is signed in, and what that lets them do. The server decides; this only hides what it would refuse. */

import { queryOptions, useSuspenseQuery } from "@tanstack/react-query";
import * as calls from "./api/calls";
import { ApiError } from "./api/http";
import type { Identity, Role } from "./api/types";

/** `null` when nobody is signed in. Whoever never signed in here is not asked about: the answer is known. */
export const sessionQuery = queryOptions({
  queryKey: ["session"],
  queryFn: async (): Promise<Identity | null> => {
    if (!calls.maybeSignedIn()) return null;
    return await calls.identity().catch((thrown: unknown) => {
      if (!(thrown instanceof ApiError && thrown.status === 401)) throw thrown;
      calls.noteSignedIn(false);
      return null;
    });
  },
  staleTime: Number.POSITIVE_INFINITY,
});

const nobody: Identity = { provider: false, memberships: [] };

export function useIdentity(): Identity {
  return useSuspenseQuery(sessionQuery).data ?? nobody;
}

/** The role in `organization`: the provider has every right everywhere. */
export function roleIn(identity: Identity, organization: string): Role {
  if (identity.provider) return "admin";
  return identity.memberships.find((one) => one.organization === organization)?.role ?? "viewer";
}

export function useRights(organization: string): { admin: boolean; developer: boolean } {
  const role = roleIn(useIdentity(), organization);
  return { admin: role === "admin", developer: role === "admin" || role === "developer" };
}

/** What a role means, in the words of the form that gives it. */
export const roles: readonly { value: Role; text: string }[] = [
  { value: "viewer", text: "Viewer: looks, changes nothing" },
  { value: "developer", text: "Developer: clusters, node pools, kubeconfigs" },
  { value: "admin", text: "Admin: everything, members and tokens too" },
];
