import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import * as calls from "../api/calls";
import { asApiError } from "../api/http";
import type { Member, Role } from "../api/types";
import { queryClient } from "../router";
import { roles, useIdentity, useRights } from "../session";
import { Age, Badge, Button, CopyBlock, Loading, Note, ProblemNote, SelectField, Table, TextField } from "../ui/basics";
import { NotAllowed } from "./Failed";
import { ConfirmDialog, FormDialog, say, sayError } from "../ui/overlays";

export function Members() {
  const { org } = useParams({ from: "/app/o/$org/members" });
  return useRights(org).admin ? <Administered org={org} /> : <NotAllowed what="Members" whose="an admin's" />;
}

function Administered({ org }: { org: string }) {
  const me = useIdentity().user?.id;
  const key = ["members", org];
  const members = useQuery({ queryKey: key, queryFn: () => calls.members(org) });
  const [invited, setInvited] = useState<Member>();
  const refresh = () => queryClient.invalidateQueries({ queryKey: key });

  const change = async (member: Member, role: Role) => {
    try {
      await calls.changeMember(org, member.user.id, role);
      say("Role changed", `${member.user.email} is now ${role}.`);
    } catch (thrown) {
      sayError(thrown);
    }
    await refresh();
  };

  return (
    <main id="content">
      <div className="page-head">
        <h1>Members</h1>
        <FormDialog
          title={`Add somebody to ${org}`}
          trigger={
            <Button look="primary" icon="plus">
              Add member
            </Button>
          }
          submit="Add"
          onSubmit={async (form) => {
            const role = String(form.get("role")) as Role;
            const member = await calls.addMember(org, String(form.get("email")).trim(), role);
            setInvited(member.invitation ? member : undefined);
            if (!member.invitation) say("Member added", `${member.user.email} can sign in as before.`);
            await refresh();
          }}
        >
          <TextField label="E-mail" name="email" type="email" required autoFocus />
          <SelectField label="Role" name="role" options={roles} defaultValue="developer" />
        </FormDialog>
      </div>
      {invited?.invitation && (
        <Note tone="good">
          <strong>Send {invited.user.email} this link.</strong>
          <p>It works once, within seven days, and is shown only now.</p>
          <CopyBlock secret label="the invitation" text={`${location.origin}/accept#${invited.invitation}`} />
        </Note>
      )}
      {members.isPending && <Loading what="members" />}
      {members.error && <ProblemNote error={asApiError(members.error)} />}
      {members.data && (
        <Table label="Members" head={["Name", "E-mail", "Role", "Since", ""]}>
          {members.data.map((member) => (
            <tr key={member.user.id}>
              <th scope="row">
                {member.user.name || <span className="quiet-text">no name yet</span>}
                {member.invited && <Badge tone="busy">invited</Badge>}
                {member.user.id === me && <span className="quiet-text"> (you)</span>}
              </th>
              <td>{member.user.email}</td>
              <td>
                <select
                  aria-label={`Role of ${member.user.email}`}
                  value={member.role}
                  onChange={(event) => void change(member, event.target.value as Role)}
                >
                  {roles.map(({ value }) => (
                    <option key={value}>{value}</option>
                  ))}
                </select>
              </td>
              <td>
                <Age of={member.created_at} />
              </td>
              <td className="row-actions">
                <ConfirmDialog
                  title={`Remove ${member.user.email}?`}
                  trigger={
                    <Button look="quiet" icon="trash" aria-label={`Remove ${member.user.email}`}>
                      Remove
                    </Button>
                  }
                  confirm="Remove"
                  onConfirm={async () => {
                    await calls.removeMember(org, member.user.id);
                    await refresh();
                  }}
                >
                  They lose access to this organisation at once, with the kubeconfigs and API tokens they made.
                </ConfirmDialog>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </main>
  );
}
