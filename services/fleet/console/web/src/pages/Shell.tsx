/** What surrounds every page of whoever is signed in: where they are, where they can go, who they are. */

import { CSPProvider } from "@base-ui/react/csp-provider";
import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useNavigate, useParams } from "@tanstack/react-router";
import { useState } from "react";
import * as calls from "../api/calls";
import { forgetLive, useLive } from "../live";
import { organizationsQuery, queryClient } from "../router";
import { roleIn, sessionQuery, useIdentity } from "../session";
import { Button, Loading, Note, ProblemNote } from "../ui/basics";
import { Icon } from "../ui/icons";
import { DropMenu, type MenuEntry, sayError, Toasts } from "../ui/overlays";
import { applyTheme, savedTheme, type Theme } from "../ui/theme";

export function Shell() {
  const identity = useIdentity();
  const { org } = useParams({ strict: false });
  return (
    // Our policy forbids `<style>` elements; what Base UI would put into them is in style.css.
    <CSPProvider disableStyleElements>
      <a className="skip" href="#content">
        Skip to content
      </a>
      <header className="top">
        <Link to="/" className="brand">
          <Icon name="anchor" /> Roadstead
        </Link>
        <OrganizationSwitch current={org} />
        <nav aria-label="Main">
          {org && (
            <>
              <Link to="/o/$org/clusters" params={{ org }}>
                Clusters
              </Link>
              {roleIn(identity, org) === "admin" && (
                <>
                  <Link to="/o/$org/members" params={{ org }}>
                    Members
                  </Link>
                  <Link to="/o/$org/tokens" params={{ org }}>
                    API tokens
                  </Link>
                </>
              )}
            </>
          )}
          {identity.provider && <Link to="/fleet">Fleet</Link>}
        </nav>
        <UserMenu />
      </header>
      <Outlet />
      <Toasts />
    </CSPProvider>
  );
}

function OrganizationSwitch({ current }: { current: string | undefined }) {
  const identity = useIdentity();
  const navigate = useNavigate();
  const all = useQuery({ ...organizationsQuery, enabled: identity.provider });
  const names = identity.provider
    ? (all.data ?? []).map((one) => one.name)
    : identity.memberships.map((one) => one.organization);
  if (names.length === 0 && !current) return null;
  const entries: MenuEntry[] = names.map((name) => ({
    text: name,
    checked: name === current,
    onSelect: () => void navigate({ to: "/o/$org/clusters", params: { org: name } }),
  }));
  return (
    <DropMenu
      trigger={
        <Button look="quiet" className="switch">
          {current && <span className="visually-hidden">Organisation: </span>}
          {current ?? "Choose an organisation"} <Icon name="chevron" />
        </Button>
      }
      entries={[{ heading: "Organisations" }, ...entries]}
    />
  );
}

const themes: readonly { value: Theme; text: string }[] = [
  { value: "system", text: "Look: as the system" },
  { value: "light", text: "Look: light" },
  { value: "dark", text: "Look: dark" },
];

function UserMenu() {
  const identity = useIdentity();
  const navigate = useNavigate();
  const [theme, setTheme] = useState(savedTheme);
  const name = identity.user?.name || identity.user?.email || "Account";
  const signOut = async () => {
    try {
      await calls.signOut();
      forgetLive();
      queryClient.clear();
      queryClient.setQueryData(sessionQuery.queryKey, null);
      await navigate({ to: "/sign-in" });
    } catch (thrown) {
      sayError(thrown);
    }
  };
  return (
    <DropMenu
      trigger={
        <Button look="quiet" icon="user" className="account" aria-label={`Account of ${name}`}>
          <span className="user-name">{name}</span>
        </Button>
      }
      entries={[
        { heading: identity.user?.email ?? "" },
        { text: "Account and password", onSelect: () => void navigate({ to: "/account" }) },
        "separator",
        ...themes.map(({ value, text }) => ({
          text,
          checked: theme === value,
          onSelect: () => {
            applyTheme(value);
            setTheme(value);
          },
        })),
        "separator",
        { text: "Sign out", onSelect: () => void signOut() },
      ]}
    />
  );
}

/** Keeps the organisation's live state for as long as one of its pages is open. */
export function OrganizationLayout() {
  const { org } = useParams({ from: "/app/o/$org" });
  const live = useLive(org);
  if (live.phase === "loading") {
    return (
      <main id="content">
        {live.error ? <ProblemNote error={live.error} /> : <Loading what={org} />}
      </main>
    );
  }
  return (
    <>
      {live.phase === "away" && (
        <div className="strip">
          <Note tone="busy">
            {live.error?.detail ?? "Live updates stopped."} What is shown may be a little old.
          </Note>
        </div>
      )}
      <Outlet />
    </>
  );
}
