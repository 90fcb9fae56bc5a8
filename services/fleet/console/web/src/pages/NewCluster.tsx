import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import * as calls from "../api/calls";
import { liveOf } from "../live";
import { useRights } from "../session";
import { Button, Form, SelectField, TextField } from "../ui/basics";
import { useSubmit } from "../ui/submit";
import { NotAllowed } from "./Failed";

/** What names of ours look like, as the server's own rule says. */
export const SLUG = "[a-z]([a-z0-9\\-]{0,38}[a-z0-9])?";
export const SLUG_HINT = "Small letters, digits and hyphens, beginning with a letter; at most 40.";

const replicas = [
  { value: "1", text: "1: for trying things out" },
  { value: "3", text: "3: survives the loss of a machine" },
];

export function NewCluster() {
  const { org } = useParams({ from: "/app/o/$org/clusters/new" });
  return useRights(org).developer ? <Create org={org} /> : <NotAllowed what="Making clusters" whose="a developer's" />;
}

function Create({ org }: { org: string }) {
  const navigate = useNavigate();
  const versions = useQuery({ queryKey: ["versions"], queryFn: calls.versions });
  const form = useSubmit(async (data) => {
    const version = String(data.get("kubernetes_version") ?? "");
    const cluster = await calls.createCluster(org, {
      name: String(data.get("name")).trim(),
      ...(version && { kubernetes_version: version }),
      replicas: Number(data.get("replicas")),
    });
    liveOf(org).put({ type: "cluster", value: cluster });
    await navigate({ to: "/o/$org/clusters/$cluster", params: { org, cluster: cluster.name } });
  });
  const known = versions.data ?? [];
  return (
    <main id="content" className="narrow">
      <h1>Create a cluster</h1>
      <Form
        form={form}
        className="card"
        buttons={
          <div className="form-buttons">
            <Button look="primary" type="submit" busy={form.busy}>
              Create
            </Button>
            <Link to="/o/$org/clusters" params={{ org }} className="button">
              Cancel
            </Link>
          </div>
        }
      >
        <TextField
          label="Name"
          name="name"
          required
          autoFocus
          pattern={SLUG}
          maxLength={40}
          title={SLUG_HINT}
          hint={`${SLUG_HINT} It can be changed later.`}
        />
        <SelectField
          label="Kubernetes version"
          name="kubernetes_version"
          key={known.length}
          defaultValue={known.find((one) => one.default)?.version ?? ""}
          options={
            known.length > 0
              ? known.map((one) => ({
                  value: one.version,
                  text: one.default ? `${one.version} (recommended)` : one.version,
                }))
              : [{ value: "", text: "The recommended one" }]
          }
        />
        <SelectField
          label="Replicas of the control plane"
          name="replicas"
          defaultValue="1"
          options={replicas}
          hint="Three need a fleet of at least three cells."
        />
      </Form>
    </main>
  );
}
