import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import * as calls from "../api/calls";
import { asApiError } from "../api/http";
import type { CreatedToken, Role } from "../api/types";
import { byName, useLive } from "../live";
import { queryClient } from "../router";
import { roles, useRights } from "../session";
import { useNow } from "../ui/clock";
import {
  Age, Badge, Button, CopyBlock, Empty, Loading, Note, ProblemNote, SelectField, Table, TextField,
} from "../ui/basics";
import { NotAllowed } from "./Failed";
import { ConfirmDialog, FormDialog } from "../ui/overlays";

const DAY = 24 * 3600;
const lifetimes = [
  { value: String(DAY), text: "A day" },
  { value: String(30 * DAY), text: "30 days" },
  { value: String(90 * DAY), text: "90 days" },
  { value: String(365 * DAY), text: "A year" },
  { value: "", text: "Until it is deleted" },
];

const key = ["tokens"];

/** Tokens for programs: CI, terraform, scripts. */
export function Tokens() {
  const { org } = useParams({ from: "/app/o/$org/tokens" });
  return useRights(org).admin ? <Administered org={org} /> : <NotAllowed what="API tokens" whose="an admin's" />;
}

function Administered({ org }: { org: string }) {
  const tokens = useQuery({ queryKey: key, queryFn: calls.tokens });
  const clusters = byName(useLive(org).shown.clusters);
  const [created, setCreated] = useState<CreatedToken>();
  const now = useNow();
  const refresh = () => queryClient.invalidateQueries({ queryKey: key });
  const shown = (tokens.data ?? []).filter((token) => token.organization === org);
  return (
    <main id="content">
      <div className="page-head">
        <h1>API tokens</h1>
        <FormDialog
          title="Create an API token"
          trigger={
            <Button look="primary" icon="plus">
              Create token
            </Button>
          }
          submit="Create"
          onSubmit={async (form) => {
            const cluster = String(form.get("cluster"));
            const lifetime = String(form.get("expires_in_seconds"));
            setCreated(
              await calls.createToken({
                description: String(form.get("description")).trim(),
                role: String(form.get("role")) as Role,
                organization: org,
                ...(cluster && { cluster }),
                ...(lifetime && { expires_in_seconds: Number(lifetime) }),
              }),
            );
            await refresh();
          }}
        >
          <TextField
            label="What is it for"
            name="description"
            required
            maxLength={200}
            autoFocus
            hint="So that you know later whether it is still needed."
          />
          <SelectField label="Role" name="role" options={roles} defaultValue="developer" />
          <SelectField
            label="Cluster"
            name="cluster"
            options={[
              { value: "", text: "All of the organisation" },
              ...clusters.map((one) => ({ value: one.name, text: `Only ${one.name}` })),
            ]}
          />
          <SelectField label="Works for" name="expires_in_seconds" options={lifetimes} defaultValue={String(90 * DAY)} />
        </FormDialog>
      </div>
      {created && (
        <Note tone="good">
          <strong>Copy the token “{created.description}” now; it is not shown again.</strong>
          <CopyBlock secret label="the token" text={created.secret} />
        </Note>
      )}
      {tokens.isPending && <Loading what="tokens" />}
      {tokens.error && <ProblemNote error={asApiError(tokens.error)} />}
      {tokens.data && shown.length === 0 && (
        <Empty title="No API tokens">
          <p>A token lets terraform, CI or a script use this organisation without anybody's password.</p>
        </Empty>
      )}
      {shown.length > 0 && (
        <Table label="API tokens" head={["For", "Role", "Cluster", "Expires", "Age", ""]}>
          {shown.map((token) => (
            <tr key={token.id}>
              <th scope="row">
                {token.description}
                {token.created_by && <div className="hint">by {token.created_by}</div>}
              </th>
              <td>{token.role}</td>
              <td>
                {token.cluster
                  ? (clusters.find((one) => one.id === token.cluster)?.name ?? "one that is gone")
                  : "all"}
              </td>
              <td>
                {!token.expires_at ? (
                  "never"
                ) : Date.parse(token.expires_at) < now ? (
                  <Badge tone="bad">expired</Badge>
                ) : (
                  new Date(token.expires_at).toLocaleDateString()
                )}
              </td>
              <td>
                <Age of={token.created_at} />
              </td>
              <td className="row-actions">
                <ConfirmDialog
                  title={`Delete the token “${token.description}”?`}
                  trigger={
                    <Button look="quiet" icon="trash" aria-label={`Delete the token ${token.description}`}>
                      Delete
                    </Button>
                  }
                  confirm="Delete"
                  onConfirm={async () => {
                    await calls.deleteToken(token.id);
                    if (created?.id === token.id) setCreated(undefined);
                    await refresh();
                  }}
                >
                  Whatever uses it is refused from then on.
                </ConfirmDialog>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </main>
  );
}
