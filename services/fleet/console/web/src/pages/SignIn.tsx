import { useNavigate, useSearch } from "@tanstack/react-router";
import * as calls from "../api/calls";
import { ApiError } from "../api/http";
import { useEffect } from "react";
import { queryClient, signedInPages } from "../router";
import { forgetLive } from "../live";
import { Button, Form, TextField } from "../ui/basics";
import { useSubmit } from "../ui/submit";
import { Doorway } from "./Doorway";

export function SignIn() {
  const { to } = useSearch({ from: "/sign-in" });
  const navigate = useNavigate();
  // What comes next is here by the time the password is typed.
  useEffect(() => void signedInPages(), []);
  const form = useSubmit(async (data) => {
    try {
      await calls.signIn(String(data.get("email")).trim(), String(data.get("password")));
    } catch (thrown) {
      if (thrown instanceof ApiError && thrown.status === 401) {
        throw new ApiError(
          401,
          "That did not work",
          "No account has this e-mail address and password. Check both; an admin of your organisation can invite you again.",
        );
      }
      throw thrown;
    }
    await enter();
    await navigate({ href: to ?? "/", replace: true });
  });
  return (
    <Doorway title="Sign in">
      <Form
        form={form}
        buttons={
          <Button look="primary" type="submit" busy={form.busy}>
            Sign in
          </Button>
        }
      >
        <TextField label="E-mail" name="email" type="email" autoComplete="username" required autoFocus />
        <TextField label="Password" name="password" type="password" autoComplete="current-password" required />
      </Form>
      <p className="hint">
        Invited, but no password yet? Open the link that your admin gave you. On a fleet that{" "}
        <code>roadstead up</code> started, the first account is <code>admin@roadstead.local</code>, with its
        password in the file <code>admin.password</code>.
      </p>
    </Doorway>
  );
}

/** Nothing of whoever was here before is shown to whoever comes now. */
export async function enter(): Promise<void> {
  forgetLive();
  queryClient.clear();
}
