import { Link, useRouter } from "@tanstack/react-router";
import { asApiError } from "../api/http";
import { Button, Empty, ProblemNote } from "../ui/basics";

/** In place of a page that could not be shown. */
export function Failed({ error }: { error: unknown }) {
  const router = useRouter();
  return (
    <main className="narrow">
      <ProblemNote
        error={asApiError(error)}
        action={
          // A page whose files are gone (the console was updated meanwhile) needs a real reload.
          <Button onClick={() => (error instanceof TypeError ? location.reload() : void router.invalidate())}>
            Try again
          </Button>
        }
      />
    </main>
  );
}

export function NotFound() {
  return (
    <main className="narrow">
      <Empty title="There is nothing at this address">
        <p>It may have been deleted or renamed, or you may not have access to it.</p>
        <Link to="/" className="button">
          Back to the clusters
        </Link>
      </Empty>
    </main>
  );
}

/** A page of somebody else's. The server refuses it all the same. */
export function NotAllowed({ what, whose }: { what: string; whose: string }) {
  return (
    <main id="content" className="narrow">
      <Empty title="Not allowed">
        <p>
          {what}: that is {whose} right. <Link to="/">Back to the clusters</Link>
        </p>
      </Empty>
    </main>
  );
}
