import * as calls from "../api/calls";
import { ApiError } from "../api/http";
import { useIdentity } from "../session";
import { Button, Card, Definitions, Form, TextField } from "../ui/basics";
import { say } from "../ui/overlays";
import { useSubmit } from "../ui/submit";
import { MAX_PASSWORD, MIN_PASSWORD } from "./Accept";

export function Account() {
  const identity = useIdentity();
  const memberships = identity.memberships.map((one) => `${one.organization} (${one.role})`).join(", ");
  return (
    <main id="content" className="narrow">
      <h1>Account</h1>
      <Card>
        <Definitions
          rows={[
            ["Name", identity.user?.name || "–"],
            ["E-mail", identity.user?.email ?? "–"],
            ["Organisations", identity.provider ? "all, as the provider" : memberships || "none"],
          ]}
        />
      </Card>
      {identity.user && <ChangePassword />}
    </main>
  );
}

function ChangePassword() {
  const form = useSubmit(async (data) => {
    const next = String(data.get("new"));
    if (next !== data.get("again")) {
      throw new ApiError(0, "The new passwords differ", "Type the same password twice.");
    }
    await calls.changePassword(String(data.get("current")), next);
    say("Password changed", "You are signed out everywhere else.");
  });
  return (
    <Card title="Change password">
      <Form
        form={form}
        buttons={
          <Button look="primary" type="submit" busy={form.busy}>
            Change password
          </Button>
        }
      >
        <TextField label="Current password" name="current" type="password" autoComplete="current-password" required />
        <TextField
          label="New password"
          name="new"
          type="password"
          autoComplete="new-password"
          required
          minLength={MIN_PASSWORD}
          maxLength={MAX_PASSWORD}
          hint={`${MIN_PASSWORD} to ${MAX_PASSWORD} characters.`}
        />
        <TextField label="The same again" name="again" type="password" autoComplete="new-password" required />
      </Form>
    </Card>
  );
}
