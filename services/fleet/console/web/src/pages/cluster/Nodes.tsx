import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Fragment, useMemo } from "react";
import * as calls from "../../api/calls";
import type { MachineType, NodePool } from "../../api/types";
import { useCollection } from "../../kube/hooks";
import { bytes, memory, nodeAddress, nodeStatus } from "../../kube/show";
import type { Node, Pod } from "../../kube/types";
import { liveOf, poolsOf, useLive } from "../../live";
import { useRights } from "../../session";
import { Age, Badge, Button, Card, Empty, SelectField, StatusBadge, Table, TextField } from "../../ui/basics";
import { ConfirmDialog, FormDialog } from "../../ui/overlays";
import { toneOf } from "../../ui/tone";
import { SLUG, SLUG_HINT } from "../NewCluster";
import { useCluster } from "./context";
import { Collection } from "./Collection";
import { parseLabels } from "./labels";

const MAX_POOL = 1000;

export function Nodes() {
  const { org, cluster } = useCluster();
  const { developer } = useRights(org);
  const pools = poolsOf(useLive(org), cluster);
  return (
    <>
      <Card title="Node pools" actions={developer && <CreatePool />}>
        {pools.length === 0 ? (
          <Empty title="No node pools">
            <p>
              A node pool is a number of machines that the cloud makes, joins and replaces for you. Machines of your
              own join with the command on the Overview page.
            </p>
          </Empty>
        ) : (
          <Table label="Node pools" head={["Name", "State", "Machines", "Type", "Age", ...(developer ? [""] : [])]}>
            {pools.map((pool) => (
              <PoolRows key={pool.id} pool={pool} developer={developer} />
            ))}
          </Table>
        )}
      </Card>
      <NodeList />
    </>
  );
}

function PoolRows({ pool, developer }: { pool: NodePool; developer: boolean }) {
  const machines = pool.machines ?? [];
  return (
    <Fragment>
      <tr>
        <th scope="row">{pool.name}</th>
        <td>
          <Badge tone={toneOf(pool.state)} why={pool.message ?? undefined}>
            {pool.state}
          </Badge>
          {pool.message && <div className="hint">{pool.message}</div>}
        </td>
        <td>
          {pool.ready ?? machines.filter((one) => one.state === "joined").length} of {pool.size} ready
        </td>
        <td>
          {pool.machine_type || "default"}
          {pool.provider && <span className="quiet-text"> on {pool.provider}</span>}
        </td>
        <td>
          <Age of={pool.created_at} />
        </td>
        {developer && (
          <td className="row-actions">
            <ResizePool pool={pool} />
            <DeletePool pool={pool} />
          </td>
        )}
      </tr>
      {machines.map((machine) => (
        <tr key={machine.id} className="sub-row">
          <td>{machine.name}</td>
          <td>
            <Badge tone={toneOf(machine.state)} why={machine.message ?? undefined}>
              {machine.state}
            </Badge>
            {machine.message && <div className="hint">{machine.message}</div>}
          </td>
          <td colSpan={developer ? 4 : 3}>{machine.address ?? ""}</td>
        </tr>
      ))}
    </Fragment>
  );
}

function CreatePool() {
  const { org, cluster } = useCluster();
  const types = useQuery({ queryKey: ["machine-types"], queryFn: calls.machineTypes });
  const known = types.data ?? [];
  return (
    <FormDialog
      title="Create a node pool"
      trigger={<Button icon="plus">Create node pool</Button>}
      submit="Create"
      onSubmit={async (form) => {
        const type = String(form.get("machine_type"));
        const labels = parseLabels(String(form.get("labels")));
        const pool = await calls.createNodePool(org, cluster.id, {
          name: String(form.get("name")).trim(),
          size: Number(form.get("size")),
          ...(type && { machine_type: type }),
          ...(Object.keys(labels).length > 0 && { labels }),
        });
        liveOf(org).put({ type: "nodepool", value: pool });
      }}
    >
      <TextField label="Name" name="name" required autoFocus pattern={SLUG} maxLength={40} title={SLUG_HINT} defaultValue="workers" />
      <TextField label="Machines" name="size" type="number" min={0} max={MAX_POOL} required defaultValue={2} />
      <SelectField
        label="Machine type"
        name="machine_type"
        key={known.length}
        defaultValue={known.find((one) => one.default)?.name ?? ""}
        options={
          known.length > 0
            ? known.map((one) => ({ value: one.name, text: typeText(one) }))
            : [{ value: "", text: "Default" }]
        }
      />
      <TextField label="Labels of its nodes" name="labels" hint="Such as tier=front, disk=ssd; may stay empty." />
    </FormDialog>
  );
}

function typeText(type: MachineType): string {
  return `${type.name} (${type.cpu_millis / 1000} CPU, ${bytes(type.memory_bytes)})`;
}

function ResizePool({ pool }: { pool: NodePool }) {
  const { org, cluster } = useCluster();
  return (
    <FormDialog
      title={`Resize ${pool.name}`}
      trigger={
        <Button look="quiet" icon="resize" disabled={pool.state === "deleting"} aria-label={`Resize ${pool.name}`}>
          Resize
        </Button>
      }
      submit="Resize"
      onSubmit={async (form) => {
        const size = Number(form.get("size"));
        const changed = await calls.resizeNodePool(org, cluster.id, pool.id, size);
        liveOf(org).put({ type: "nodepool", value: changed });
      }}
    >
      <TextField
        label="Machines"
        name="size"
        type="number"
        min={0}
        max={MAX_POOL}
        required
        autoFocus
        defaultValue={pool.size}
        hint="Fewer: pods are moved away first, then the newest machines go."
      />
    </FormDialog>
  );
}

function DeletePool({ pool }: { pool: NodePool }) {
  const { org, cluster } = useCluster();
  return (
    <ConfirmDialog
      title={`Delete the node pool ${pool.name}?`}
      trigger={
        <Button look="quiet" icon="trash" disabled={pool.state === "deleting"} aria-label={`Delete ${pool.name}`}>
          Delete
        </Button>
      }
      confirm="Delete"
      onConfirm={async () => {
        const operation = await calls.deleteNodePool(org, cluster.id, pool.id);
        if (operation) liveOf(org).put({ type: "operation", value: operation });
      }}
    >
      Its machines are drained and deleted. Pods that fit nowhere else wait until there is room.
    </ConfirmDialog>
  );
}

function NodeList() {
  const { org, cluster } = useCluster();
  const nodes = useCollection<Node>("/api/v1/nodes");
  const pods = useCollection<Pod>("/api/v1/pods");
  const perNode = useMemo(() => {
    const counts = new Map<string, number>();
    for (const pod of pods.items) {
      const node = pod.spec?.nodeName;
      if (node) counts.set(node, (counts.get(node) ?? 0) + 1);
    }
    return counts;
  }, [pods]);
  const sorted = useMemo(
    () => [...nodes.items].sort((a, b) => a.metadata.name.localeCompare(b.metadata.name)),
    [nodes],
  );
  return (
    <Card title="Nodes">
      <Collection
        of={nodes}
        what="nodes"
        empty={
          <Empty title="No nodes yet">
            <p>
              Create a node pool, or join a machine with the command on the{" "}
              <Link to="/o/$org/clusters/$cluster" params={{ org, cluster: cluster.name }}>
                Overview page
              </Link>
              .
            </p>
          </Empty>
        }
      >
        <Table label="Nodes" head={["Name", "State", "Version", "Address", "CPU", "Memory", "Pods", "Age"]}>
          {sorted.map((node) => {
            const status = nodeStatus(node);
            return (
              <tr key={node.metadata.uid}>
                <th scope="row">{node.metadata.name}</th>
                <td>
                  <StatusBadge of={status} />
                </td>
                <td>{node.status?.nodeInfo?.kubeletVersion}</td>
                <td>{nodeAddress(node)}</td>
                <td>{node.status?.allocatable?.["cpu"]}</td>
                <td>{memory(node.status?.allocatable?.["memory"])}</td>
                <td>{perNode.get(node.metadata.name) ?? 0}</td>
                <td>
                  <Age of={node.metadata.creationTimestamp} />
                </td>
              </tr>
            );
          })}
        </Table>
      </Collection>
    </Card>
  );
}
