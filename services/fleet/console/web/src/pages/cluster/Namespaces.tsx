import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCollection } from "../../kube/hooks";
import type { KubeObject } from "../../kube/types";
import { SelectField } from "../../ui/basics";

/** The namespace chosen in the address, so that a link and the back button keep it; `undefined`: all. */
export function useNamespace(): string | undefined {
  return useSearch({ strict: false }).namespace;
}

export function NamespaceSelect({ to }: { to: "/o/$org/clusters/$cluster/workloads" | "/o/$org/clusters/$cluster/events" }) {
  const chosen = useNamespace();
  const navigate = useNavigate();
  const namespaces = useCollection<KubeObject>("/api/v1/namespaces");
  const names = new Set(namespaces.items.map((one) => one.metadata.name));
  if (chosen) names.add(chosen);
  return (
    <SelectField
      compact
      label="Namespace"
      value={chosen ?? ""}
      options={[{ value: "", text: "All" }, ...[...names].sort().map((name) => ({ value: name, text: name }))]}
      onChange={(event) => {
        const namespace = event.target.value;
        void navigate({ to, params: true, search: namespace ? { namespace } : {}, replace: true } as never);
      }}
    />
  );
}
