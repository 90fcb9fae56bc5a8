import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import * as calls from "../api/calls";
import { asApiError } from "../api/http";
import { organizationsQuery, queryClient } from "../router";
import { useIdentity } from "../session";
import { Age, Badge, Button, Card, Empty, Loading, ProblemNote, Table, TextField } from "../ui/basics";
import { FormDialog, say } from "../ui/overlays";
import { NotAllowed } from "./Failed";
import { SLUG, SLUG_HINT } from "./NewCluster";

/** How often a page about cells looks again; there is no stream for the fleet. */
const REFRESH_MS = 5000;

/** The provider's view: cells and organisations. To anybody else, a page that says what to do. */
export function Fleet() {
  const { provider, memberships } = useIdentity();
  if (!provider && memberships.length > 0) return <NotAllowed what="The fleet" whose="the provider's" />;
  if (!provider) {
    return (
      <main id="content" className="narrow">
        <Empty title="You are in no organisation">
          <p>Ask an admin of your organisation to add your e-mail address to its members.</p>
        </Empty>
      </main>
    );
  }
  return (
    <main id="content">
      <h1>Fleet</h1>
      <Cells />
      <Organizations />
    </main>
  );
}

function Cells() {
  const cells = useQuery({ queryKey: ["cells"], queryFn: calls.cells, refetchInterval: REFRESH_MS });
  return (
    <Card title="Cells">
      {cells.isPending && <Loading what="cells" />}
      {cells.error && <ProblemNote error={asApiError(cells.error)} />}
      {cells.data && (
        <Table label="Cells" head={["Name", "State", "Clusters", "Id"]}>
          {cells.data.map((cell) => (
            <tr key={cell.id}>
              <th scope="row">{cell.name}</th>
              <td>
                <Badge tone={cell.reachable ? "good" : "bad"}>{cell.reachable ? "serving" : "unreachable"}</Badge>
              </td>
              <td>{cell.clusters}</td>
              <td>
                <code>{cell.id}</code>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

function Organizations() {
  const organizations = useQuery(organizationsQuery);
  return (
    <Card
      title="Organisations"
      actions={
        <FormDialog
          title="Create an organisation"
          trigger={<Button icon="plus">Create organisation</Button>}
          submit="Create"
          onSubmit={async (form) => {
            const made = await calls.createOrganization(String(form.get("name")).trim());
            await queryClient.invalidateQueries({ queryKey: organizationsQuery.queryKey });
            say("Organisation created", `Add its first admin on the Members page of ${made.name}.`);
          }}
        >
          <TextField label="Name" name="name" required autoFocus pattern={SLUG} maxLength={40} hint={SLUG_HINT} title={SLUG_HINT} />
        </FormDialog>
      }
    >
      {organizations.isPending && <Loading what="organisations" />}
      {organizations.error && <ProblemNote error={asApiError(organizations.error)} />}
      {organizations.data?.length === 0 && <Empty title="No organisations yet" />}
      {organizations.data && organizations.data.length > 0 && (
        <Table label="Organisations" head={["Name", "Age"]}>
          {organizations.data.map((one) => (
            <tr key={one.id}>
              <th scope="row">
                <Link to="/o/$org/clusters" params={{ org: one.name }}>
                  {one.name}
                </Link>
              </th>
              <td>
                <Age of={one.created_at} />
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}
