import type { ReactNode } from "react";
import { MAX_ITEMS, type Snapshot } from "../../kube/listwatch";
import { Loading, Note, ProblemNote } from "../../ui/basics";

type Props = { of: Snapshot<unknown>; what: string; empty: ReactNode; children: ReactNode };

/** A watched collection in whatever state it is: not there yet, out of reach, empty, or shown. */
export function Collection({ of, what, empty, children }: Props) {
  if (of.phase === "loading") return of.error ? <ProblemNote error={of.error} /> : <Loading what={what} />;
  return (
    <>
      {of.error && <ProblemNote error={of.error} />}
      {of.truncated && <Note>Only {MAX_ITEMS} are shown here; kubectl shows all of them.</Note>}
      {of.items.length === 0 && !of.error ? empty : children}
    </>
  );
}
