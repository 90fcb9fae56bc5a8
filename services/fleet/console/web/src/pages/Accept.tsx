import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import * as calls from "../api/calls";
import { ApiError } from "../api/http";
import { Button, Form, TextField } from "../ui/basics";
import { useSubmit } from "../ui/submit";
import { Doorway } from "./Doorway";
import { enter } from "./SignIn";

export const MIN_PASSWORD = 12;
export const MAX_PASSWORD = 128;

/**
 * Takes up an invitation. Its secret is in the address's fragment, which browsers keep to themselves: it
 * reaches no server log and no referrer.
 */
export function Accept() {
  const navigate = useNavigate();
  const [given] = useState(() => location.hash.slice(1));
  const [known, setKnown] = useState(false);
  const form = useSubmit(async (data) => {
    const password = String(data.get("password"));
    if (!known && password !== data.get("again")) {
      throw new ApiError(0, "The passwords differ", "Type the same password twice.");
    }
    try {
      await calls.acceptInvitation({
        invitation: given || String(data.get("invitation")).trim(),
        name: String(data.get("name") ?? "").trim(),
        password,
      });
    } catch (thrown) {
      // They have an account under this address and may have forgotten; the form for that is the other one.
      if (thrown instanceof ApiError && thrown.status === 401) setKnown(true);
      throw thrown;
    }
    await enter();
    await navigate({ to: "/", replace: true });
  });
  return (
    <Doorway title="Welcome aboard">
      <p>{known ? "Your password shows that it is you." : "Choose a name and a password, and you are in."}</p>
      <Form
        form={form}
        buttons={
          <Button look="primary" type="submit" busy={form.busy}>
            {known ? "Join" : "Create account"}
          </Button>
        }
      >
        {!given && (
          <TextField label="Invitation" name="invitation" required hint="The code that your admin gave you." />
        )}
        <label className="check">
          <input type="checkbox" checked={known} onChange={(event) => setKnown(event.target.checked)} />
          I have a Roadstead account already
        </label>
        {known ? (
          <TextField label="Password" name="password" type="password" autoComplete="current-password" required />
        ) : (
          <>
            <TextField label="Your name" name="name" autoComplete="name" required maxLength={100} autoFocus />
            <TextField
              label="Password"
              name="password"
              type="password"
              autoComplete="new-password"
              required
              minLength={MIN_PASSWORD}
              maxLength={MAX_PASSWORD}
              hint={`${MIN_PASSWORD} to ${MAX_PASSWORD} characters. A few unrelated words do well.`}
            />
            <TextField label="The same again" name="again" type="password" autoComplete="new-password" required />
          </>
        )}
      </Form>
    </Doorway>
  );
}
