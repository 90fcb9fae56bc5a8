import { type FormEvent, useState } from "react";
import { type ApiError, asApiError } from "../api/http";

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
