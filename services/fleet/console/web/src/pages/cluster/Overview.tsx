import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import * as calls from "../../api/calls";
import { ApiError, asApiError } from "../../api/http";
import type { JoinToken, Kubeconfig } from "../../api/types";
import { useCollection } from "../../kube/hooks";
import { nodeStatus, podStatus } from "../../kube/show";
import type { Node, Pod } from "../../kube/types";
import { liveOf } from "../../live";
import { queryClient } from "../../router";
import { useRights } from "../../session";
import {
  Age, Button, Card, CopyBlock, CopyButton, Definitions, download, ProblemNote, TextField,
} from "../../ui/basics";
import { ConfirmDialog, FormDialog, say } from "../../ui/overlays";
import { SLUG, SLUG_HINT } from "../NewCluster";
import { useCluster } from "./context";
import { labelChanges, parseLabels } from "./labels";

export function Overview() {
  const { org, cluster } = useCluster();
  const { developer } = useRights(org);
  return (
    <div className="columns">
      <Card title="About" actions={developer && <Edit />}>
        <Definitions
          rows={[
            ["Kubernetes", cluster.kubernetes_version],
            ["Replicas", String(cluster.replicas)],
            ["Nodes", <NodeCount key="nodes" />],
            ["Pods", <PodCount key="pods" />],
            ["Created", <span key="age"><Age of={cluster.created_at} /> ago</span>],
            ["TLS server name", <code key="name">{cluster.server_name}</code>],
            ["Id", <code key="id">{cluster.id}</code>],
          ]}
        />
      </Card>
      <div>
        {developer ? (
          <>
            <KubeconfigCard />
            <JoinCard />
            <DeleteCard />
          </>
        ) : (
          <Card title="Access">
            <p>
              You may look at this cluster. Kubeconfigs, join commands and changes need the role developer in{" "}
              {org}; an admin can give it to you.
            </p>
          </Card>
        )}
      </div>
    </div>
  );
}

function NodeCount() {
  const { org, cluster } = useCluster();
  const nodes = useCollection<Node>("/api/v1/nodes");
  if (nodes.phase === "loading" || nodes.phase === "failed") return nodes.error ? nodes.error.title : "…";
  const ready = nodes.items.filter((node) => nodeStatus(node).tone === "good").length;
  return (
    <Link to="/o/$org/clusters/$cluster/nodes" params={{ org, cluster: cluster.name }}>
      {nodes.items.length === 0 ? "none yet" : `${ready} of ${nodes.items.length} ready`}
    </Link>
  );
}

function PodCount() {
  const { org, cluster } = useCluster();
  const pods = useCollection<Pod>("/api/v1/pods");
  if (pods.phase === "loading" || pods.phase === "failed") return pods.error ? pods.error.title : "…";
  const running = pods.items.filter((pod) => podStatus(pod).tone === "good").length;
  const bad = pods.items.filter((pod) => podStatus(pod).tone === "bad").length;
  return (
    <Link to="/o/$org/clusters/$cluster/workloads" params={{ org, cluster: cluster.name }}>
      {pods.items.length === 0 ? "none yet" : `${running} running${bad > 0 ? `, ${bad} in trouble` : ""}`}
    </Link>
  );
}

/** Something that is made on request and shown until the page is left. */
function useMade<T>(make: () => Promise<T>) {
  const [made, setMade] = useState<T>();
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const run = async (): Promise<T | undefined> => {
    setBusy(true);
    setError(undefined);
    try {
      const value = await make();
      setMade(value);
      return value;
    } catch (thrown) {
      setError(asApiError(thrown));
      return undefined;
    } finally {
      setBusy(false);
    }
  };
  return { made, error, busy, run };
}

function KubeconfigCard() {
  const { org, cluster } = useCluster();
  const { made, error, busy, run } = useMade<Kubeconfig>(() => calls.kubeconfig(org, cluster.id));
  const file = `${cluster.name}.kubeconfig`;
  return (
    <Card title="Use it with kubectl">
      <p>A kubeconfig holds a certificate of your own for this cluster. Keep it like a password.</p>
      {!made && (
        <Button look="primary" busy={busy} disabled={cluster.state !== "ready"} onClick={() => void run()}>
          Create kubeconfig
        </Button>
      )}
      {made && (
        <>
          <div className="buttons">
            <Button look="primary" icon="download" onClick={() => download(file, made.kubeconfig, "application/yaml")}>
              Download
            </Button>
            <CopyButton text={made.kubeconfig} label="kubeconfig">
              Copy kubeconfig
            </CopyButton>
          </div>
          <p className="hint">
            Valid until {new Date(made.expires_at).toLocaleString()}, or until you are removed or may less.
          </p>
          <p>Then, where you downloaded it to:</p>
          <CopyBlock label="the command" text={`export KUBECONFIG=$PWD/${file}\nkubectl get nodes`} />
        </>
      )}
      {error && <ProblemNote error={error} />}
    </Card>
  );
}

function JoinCard() {
  const { org, cluster } = useCluster();
  const { made, error, busy, run } = useMade<JoinToken>(async () => {
    const token = await calls.createJoinToken(org, cluster.id);
    await queryClient.invalidateQueries({ queryKey: joinTokensKey(cluster.id) });
    return token;
  });
  return (
    <Card title="Join a machine">
      <p>Any Linux machine that reaches the gateway can be a node, from behind NAT too. Run this on it, as root:</p>
      {made ? (
        <>
          <CopyBlock secret label="the join command" text={made.command} />
          <p className="hint">
            {made.expires_at ? `Works until ${new Date(made.expires_at).toLocaleString()}.` : "Works for a day."} The
            machine then shows up under Nodes.
          </p>
        </>
      ) : (
        <Button busy={busy} disabled={cluster.state !== "ready"} onClick={() => void run()}>
          Show join command
        </Button>
      )}
      {error && <ProblemNote error={error} />}
      <JoinTokens />
    </Card>
  );
}

const joinTokensKey = (cluster: string) => ["join-tokens", cluster];

/** The tokens that still let a machine in, so that one that went astray can be ended. */
function JoinTokens() {
  const { org, cluster } = useCluster();
  const key = joinTokensKey(cluster.id);
  const tokens = useQuery({
    queryKey: key,
    queryFn: () => calls.joinTokens(org, cluster.id),
    enabled: cluster.state === "ready",
  });
  if (!tokens.data || tokens.data.length === 0) return null;
  return (
    <ul className="plain-list" aria-label="Join tokens">
      {tokens.data.map((token) => (
        <li key={token.id}>
          <span>
            <code>{token.id}</code>
            <span className="quiet-text">
              {token.description && ` ${token.description}`}
              {token.expires_at && `, until ${new Date(token.expires_at).toLocaleString()}`}
            </span>
          </span>
          <ConfirmDialog
            title={`Delete the join token ${token.id}?`}
            trigger={
              <Button look="quiet" icon="trash" aria-label={`Delete the join token ${token.id}`}>
                Delete
              </Button>
            }
            confirm="Delete"
            onConfirm={async () => {
              await calls.deleteJoinToken(org, cluster.id, token.id);
              await queryClient.invalidateQueries({ queryKey: key });
            }}
          >
            No further machine can join with it. Nodes that have joined stay.
          </ConfirmDialog>
        </li>
      ))}
    </ul>
  );
}

function Edit() {
  const { org, cluster } = useCluster();
  const navigate = useNavigate();
  return (
    <FormDialog
      title={`Change ${cluster.name}`}
      trigger={<Button look="quiet">Rename, label</Button>}
      submit="Save"
      onSubmit={async (form) => {
        const name = String(form.get("name")).trim();
        const labels = labelChanges(cluster.labels ?? {}, parseLabels(String(form.get("labels"))));
        const changed = await calls.changeCluster(org, cluster.id, {
          ...(name !== cluster.name && { name }),
          ...(Object.keys(labels).length > 0 && { labels }),
        });
        liveOf(org).put({ type: "cluster", value: changed });
        if (changed.name !== cluster.name) {
          say("Renamed", "Kubeconfigs in use keep working.");
          await navigate({ to: "/o/$org/clusters/$cluster", params: { org, cluster: changed.name }, replace: true });
        }
      }}
    >
      <TextField
        label="Name"
        name="name"
        defaultValue={cluster.name}
        required
        autoFocus
        pattern={SLUG}
        maxLength={40}
        title={SLUG_HINT}
        hint="Kubeconfigs in use keep working."
      />
      <TextField
        label="Labels"
        name="labels"
        defaultValue={Object.entries(cluster.labels ?? {})
          .map(([key, value]) => `${key}=${value}`)
          .join(", ")}
        hint="Such as team=payments, stage=test; separated by commas."
      />
    </FormDialog>
  );
}

function DeleteCard() {
  const { org, cluster } = useCluster();
  return (
    <Card title="Delete">
      <p>Ends the control plane and destroys its keys. Node pools and load balancers are removed first.</p>
      <ConfirmDialog
        title={`Delete the cluster ${cluster.name}?`}
        trigger={
          <Button look="danger" icon="trash" disabled={cluster.state === "deleting"}>
            Delete cluster
          </Button>
        }
        confirm="Delete for good"
        typed={cluster.name}
        onConfirm={async () => {
          const operation = await calls.deleteCluster(org, cluster.id);
          const live = liveOf(org);
          if (operation) live.put({ type: "operation", value: operation });
          // Unless the stream was faster than the answer, and it is gone already.
          const seen = live.snapshot().shown.clusters.get(cluster.id);
          if (seen) live.put({ type: "cluster", value: { ...seen, state: "deleting" } });
        }}
      >
        Everything in it is lost: its objects, its secrets, the machines of its node pools. Machines you joined
        yourself stay, with nothing to do.
      </ConfirmDialog>
    </Card>
  );
}
