/**
 * One request to the REST API of the host this page came from, signed in by its cookie.
 *
 * Start at {@link request}. Whatever goes wrong is an {@link ApiError} that says what a person can do.
 *
 * Not here: the paths themselves (`calls.ts`), streams (`live.ts`, `kube/stream.ts`).
 */

import type { Problem } from "./types";

/** A field of what was sent, by the names on the way to it, and why it was not taken. */
export type FieldProblem = { path: readonly string[]; detail: string };

/** An answer that is no success, or no answer at all (`status` 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly retryAfterSeconds?: number,
    readonly fields: readonly FieldProblem[] = [],
  ) {
    super(detail ? `${title}: ${detail}` : title);
  }
}

/** Called when the session turns out to be over. */
let onSignedOut: () => void = () => {};
export function whenSignedOut(callback: () => void): void {
  onSignedOut = callback;
}

type Options = {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  body?: unknown;
  signal?: AbortSignal;
  /** For what may be sent twice without harm; a POST gets one of its own otherwise. */
  idempotencyKey?: string;
};

/** Attempts at a request that got no answer. A POST carries the same key each time, so it happens once. */
const ATTEMPTS = 3;

/** Sends JSON, gives back JSON (`undefined` for an empty answer). */
export async function request<T>(path: string, options: Options = {}): Promise<T> {
  const method = options.method ?? "GET";
  const headers = new Headers({ accept: "application/json" });
  if (options.body !== undefined) {
    headers.set("content-type", method === "PATCH" ? "application/merge-patch+json" : "application/json");
  }
  if (method === "POST") headers.set("idempotency-key", options.idempotencyKey ?? crypto.randomUUID());
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (options.body !== undefined) init.body = JSON.stringify(options.body);
  if (options.signal) init.signal = options.signal;
  const response = await send(`/api/v1${path}`, init);
  if (!response.ok) throw await failure(response);
  const text = await response.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** Sends again what got no answer; an answer of any kind is the caller's. */
async function send(url: string, init: RequestInit): Promise<Response> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await fetch(url, init);
    } catch (cause) {
      if (init.signal?.aborted) throw cause;
      if (attempt === ATTEMPTS) {
        throw new ApiError(0, "No connection", "The manager does not answer. Check that it runs and try again.");
      }
      await sleep(300 * attempt);
    }
  }
}

/** The error in an answer that is no success, whatever shape it has. */
export async function failure(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  const after = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  const error = describe(response.status, text, Number.isNaN(after) ? undefined : after);
  if (response.status === 401) onSignedOut();
  return error;
}

/** A problem (RFC 9457), a Kubernetes Status, or neither. */
export function describe(status: number, text: string, retryAfterSeconds?: number): ApiError {
  let said: Partial<Problem> & { message?: string; reason?: string } = {};
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) said = value;
  } catch {
    // A proxy on the way may answer in HTML; its words would help nobody.
  }
  const title = said.title ?? said.reason ?? titles[status] ?? `Error ${status}`;
  const detail = said.detail ?? said.message ?? advice[status] ?? "";
  return new ApiError(status, title, detail, retryAfterSeconds, (said.errors ?? []).map(fieldProblem));
}

function fieldProblem({ field, detail }: { field: string; detail: string }): FieldProblem {
  const path = field.split("/").slice(1);
  return { path: path.map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~")), detail };
}

const titles: Record<number, string> = {
  401: "Signed out",
  403: "Not allowed",
  404: "Not found",
  409: "Conflict",
  422: "Invalid request",
  429: "Too many requests",
  502: "No answer",
  503: "Try again",
  504: "No answer in time",
};

const advice: Record<number, string> = {
  401: "Sign in again.",
  403: "Ask an admin of the organisation for the role this needs.",
  404: "It may have been deleted, or you may not have access to it.",
  409: "Somebody else changed it at the same time. Look again and retry.",
  429: "Wait a moment and try again.",
  502: "The cluster cannot be reached right now. It is tried again by itself.",
  503: "The service is busy or starting. It is tried again by itself.",
  504: "The cluster did not answer in time. It is tried again by itself.",
};

/** What to show for anything that was thrown. */
export function asApiError(thrown: unknown): ApiError {
  if (thrown instanceof ApiError) return thrown;
  const detail = thrown instanceof Error ? thrown.message : String(thrown);
  return new ApiError(0, "Something went wrong", detail);
}

export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", done, { once: true });
    function done(): void {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
  });
}
