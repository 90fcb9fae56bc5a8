/**
 * One collection of a cluster, listed and then watched.
 *
 * The rules are those of every Kubernetes client: list, watch from the list's resourceVersion, remember
 * the version of each event and bookmark, watch again from there when a stream ends, list anew on 410.
 * What an event does is the pure {@link apply}; {@link ListWatch} is the loop around it and what React
 * subscribes to.
 *
 * Not here: which collections a page needs (`kube/hooks.ts`), writing.
 */

import { ApiError, asApiError, describe, failure, sleep } from "../api/http";
import { lines } from "./stream";
import type { KubeObject } from "./types";

/** What a page sees. A new object for every change, so that `===` tells. */
export type Snapshot<T> = {
  items: readonly T[];
  /** `loading` until the first list; `away` while it is being reached again; `failed` when asking is no use. */
  phase: "loading" | "live" | "away" | "failed";
  error: ApiError | undefined;
  /** There are more objects than are held here. */
  truncated: boolean;
};

export type WatchEvent =
  | { type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK"; object: KubeObject }
  | { type: "ERROR"; object: { code?: number; message?: string; reason?: string } };

/** Objects held of one collection. A page of more rows helps nobody, and memory is the visitor's. */
export const MAX_ITEMS = 5000;

/** Objects asked for at a time. */
const PAGE = 500;

/** The server ends a watch after five minutes; asking for less spreads the new ones. */
const WATCH_SECONDS = 270;

/** Changes within this time are shown together: a rollout brings hundreds a second. */
const SETTLE_MS = 60;

/** A page that is left and entered again finds its list still there. */
const LINGER_MS = 20_000;

/** The version that a watch goes on from after `event`; changes `objects`. */
export function apply<T extends KubeObject>(objects: Map<string, T>, event: WatchEvent): string {
  switch (event.type) {
    case "ERROR": {
      const { code = 500, message = "", reason } = event.object;
      throw describe(code, JSON.stringify({ reason, message }));
    }
    case "ADDED":
    case "MODIFIED":
      if (objects.size < MAX_ITEMS || objects.has(event.object.metadata.uid)) {
        objects.set(event.object.metadata.uid, event.object as T);
      }
      break;
    case "DELETED":
      objects.delete(event.object.metadata.uid);
      break;
    case "BOOKMARK":
      break;
  }
  return event.object.metadata.resourceVersion;
}

/** How long to wait after a failure, and whether what is shown can still become current by itself. */
export function afterFailure(error: ApiError, failures: number): { phase: "away" | "failed"; waitMs: number } {
  // Rights may be given and things made while the page is open, so even these are asked again, rarely.
  if ([401, 403, 404].includes(error.status)) return { phase: "failed", waitMs: 30_000 };
  const backOff = Math.min(15_000, 500 * 2 ** Math.min(failures, 8));
  return { phase: "away", waitMs: Math.max(backOff, (error.retryAfterSeconds ?? 0) * 1000) };
}

type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export class ListWatch<T extends KubeObject> {
  #objects = new Map<string, T>();
  #snapshot: Snapshot<T> = { items: [], phase: "loading", error: undefined, truncated: false };
  #listeners = new Set<() => void>();
  #running: AbortController | undefined;
  #linger: ReturnType<typeof setTimeout> | undefined;
  #settle: ReturnType<typeof setTimeout> | undefined;
  #truncated = false;
  #closed = false;

  /** `url` may have a query (field or label selectors). */
  constructor(
    readonly url: string,
    readonly fetch: Fetch = (input, init) => globalThis.fetch(input, init),
  ) {}

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    clearTimeout(this.#linger);
    if (!this.#running && !this.#closed) {
      this.#running = new AbortController();
      void this.#run(this.#running.signal);
    }
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#linger = setTimeout(() => this.#stop(), LINGER_MS);
    };
  };

  snapshot = (): Snapshot<T> => this.#snapshot;

  /** For good: what is shown stays as it is, and nothing is asked any more. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#linger);
    this.#stop();
  }

  #stop(): void {
    this.#running?.abort();
    this.#running = undefined;
    clearTimeout(this.#settle);
    this.#settle = undefined;
  }

  async #run(stop: AbortSignal): Promise<void> {
    let version: string | undefined;
    let failures = 0;
    while (!stop.aborted) {
      try {
        version ??= await this.#list(stop);
        const started = Date.now();
        for await (const next of this.#watch(version, stop)) {
          version = next;
          failures = 0;
        }
        // A server that ends watches at once would be asked in a tight circle.
        if (Date.now() - started < 1000) await sleep(1000, stop);
      } catch (thrown) {
        if (stop.aborted) return;
        const error = asApiError(thrown);
        // 410: the history from `version` on is gone. Anything else goes on from where it was.
        if (error.status === 410) version = undefined;
        if (error.status === 410 && failures === 0) {
          failures = 1;
          continue;
        }
        const { phase, waitMs } = afterFailure(error, failures++);
        const keepsLoading = this.#snapshot.phase === "loading" && phase === "away";
        this.#publish(keepsLoading ? "loading" : phase, error);
        await sleep(waitMs * (0.75 + Math.random() / 2), stop);
      }
    }
  }

  async #list(stop: AbortSignal): Promise<string> {
    const objects = new Map<string, T>();
    let version = "";
    let next = "";
    do {
      const answer = await this.#get({ limit: String(PAGE), ...(next && { continue: next }) }, stop);
      const list = (await answer.json()) as {
        metadata: { resourceVersion: string; continue?: string };
        items?: T[] | null;
      };
      for (const item of list.items ?? []) objects.set(item.metadata.uid, item);
      version = list.metadata.resourceVersion;
      next = list.metadata.continue ?? "";
    } while (next !== "" && objects.size < MAX_ITEMS);
    this.#truncated = next !== "";
    this.#objects = objects;
    this.#publish("live");
    return version;
  }

  async *#watch(version: string, stop: AbortSignal): AsyncGenerator<string, void, void> {
    const answer = await this.#get(
      {
        watch: "1",
        resourceVersion: version,
        allowWatchBookmarks: "true",
        timeoutSeconds: String(Math.round(WATCH_SECONDS * (0.8 + Math.random() / 5))),
      },
      stop,
    );
    if (!answer.body) throw new ApiError(0, "No connection", "The answer has no body.");
    if (this.#snapshot.phase !== "live") this.#publish("live");
    for await (const batch of lines(answer.body)) {
      let last: string | undefined;
      for (const line of batch) {
        if (line !== "") last = apply(this.#objects, JSON.parse(line) as WatchEvent);
      }
      if (last !== undefined) {
        this.#settle ??= setTimeout(() => {
          this.#settle = undefined;
          this.#publish("live");
        }, SETTLE_MS);
        yield last;
      }
    }
  }

  async #get(query: Record<string, string>, stop: AbortSignal): Promise<Response> {
    const separator = this.url.includes("?") ? "&" : "?";
    const url = `${this.url}${separator}${new URLSearchParams(query)}`;
    const headers = { accept: "application/json" };
    const answer = await this.fetch(url, { headers, signal: stop, credentials: "same-origin", cache: "no-store" });
    if (!answer.ok) throw await failure(answer);
    return answer;
  }

  #publish(phase: Snapshot<T>["phase"], error?: ApiError): void {
    this.#snapshot = { items: [...this.#objects.values()], phase, error, truncated: this.#truncated };
    for (const listener of this.#listeners) listener();
  }
}
