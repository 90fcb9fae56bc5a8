/** What a form does when it is submitted, and what its fields are told when that goes wrong. */

import { createContext, type FormEvent, useContext, useState } from "react";
import { type ApiError, asApiError, type FieldProblem } from "../api/http";

/** The faults that the server found, for the fields of the form around. */
export const FieldErrors = createContext<readonly FieldProblem[]>([]);

/** What is wrong with the field called `name`, which is what the API calls it. */
export function useFieldError(name: string | undefined): string | undefined {
  const own = useContext(FieldErrors).filter((one) => one.path[0] === name);
  return own.length > 0 ? own.map((one) => one.detail).join("; ") : undefined;
}

export type Submit = ReturnType<typeof useSubmit>;

/** A form's submit: one at a time, with what went wrong. */
export function useSubmit(action: (form: FormData) => Promise<void>, done?: () => void) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError>();
  return {
    busy,
    error,
    reset: () => setError(undefined),
    onSubmit: (event: FormEvent<HTMLFormElement>) => {
      event.preventDefault();
      if (busy) return;
      setBusy(true);
      setError(undefined);
      action(new FormData(event.currentTarget))
        .then(
          () => done?.(),
          (thrown: unknown) => setError(asApiError(thrown)),
        )
        .finally(() => setBusy(false));
    },
  };
}
