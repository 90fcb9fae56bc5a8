/**
 * The clusters, node pools and operations of one organisation, kept current by server-sent events.
 *
 * The stream begins with the present state, ends that with `synced`, and goes on with changes; a broken
 * stream begins anew, so there is one road for start and recovery. What to do with an event is the pure
 * {@link step}; {@link LiveOrganization} connects it to the network.
 *
 * Not here: Kubernetes objects inside a cluster (`kube/listwatch.ts`).
 */

import * as calls from "./calls";
import { ApiError, asApiError } from "./http";
import type { Cluster, NodePool, Operation } from "./types";

export type Things = {
  clusters: ReadonlyMap<string, Cluster>;
  pools: ReadonlyMap<string, NodePool>;
  operations: ReadonlyMap<string, Operation>;
};

export type Live = {
  /** `loading` until the first whole state; `away` when what is shown may be old. */
  phase: "loading" | "live" | "away";
  shown: Things;
  /** Arriving after a (re)connect; shown once it is whole, so that a reconnect never flickers. */
  arriving: Things | undefined;
  /** Why it is `loading` or `away`, once known. */
  error: ApiError | undefined;
};

const nothing: Things = { clusters: new Map(), pools: new Map(), operations: new Map() };

export const initial: Live = { phase: "loading", shown: nothing, arriving: undefined, error: undefined };

/** Finished operations kept for the page; the server keeps them all. */
const MAX_OPERATIONS = 200;

export type Input =
  | { type: "opened" }
  | { type: "failed"; error: ApiError }
  | { type: "synced" }
  | { type: "cluster"; value: Cluster }
  | { type: "nodepool"; value: NodePool }
  | { type: "operation"; value: Operation }
  | { type: "deleted"; value: { kind: string; id: string } };

export function step(live: Live, input: Input): Live {
  switch (input.type) {
    case "opened":
      return { ...live, arriving: nothing };
    case "failed":
      return {
        ...live,
        phase: live.phase === "loading" ? "loading" : "away",
        arriving: undefined,
        error: input.error,
      };
    case "synced":
      return { phase: "live", shown: live.arriving ?? live.shown, arriving: undefined, error: undefined };
    default:
      return live.arriving
        ? { ...live, arriving: change(live.arriving, input) }
        : { ...live, shown: change(live.shown, input) };
  }
}

type Change = Exclude<Input, { type: "opened" | "failed" | "synced" }>;

function change(things: Things, input: Change): Things {
  switch (input.type) {
    case "cluster":
      return { ...things, clusters: withValue(things.clusters, input.value) };
    case "nodepool":
      return { ...things, pools: withValue(things.pools, input.value) };
    case "operation":
      return { ...things, operations: bounded(withValue(things.operations, input.value)) };
    case "deleted": {
      const { kind, id } = input.value;
      if (kind === "cluster") return { ...things, clusters: without(things.clusters, id) };
      if (kind === "nodepool") return { ...things, pools: without(things.pools, id) };
      if (kind === "operation") return { ...things, operations: without(things.operations, id) };
      return things;
    }
  }
}

function withValue<T extends { id: string }>(map: ReadonlyMap<string, T>, value: T): ReadonlyMap<string, T> {
  return new Map(map).set(value.id, value);
}

function without<T>(map: ReadonlyMap<string, T>, id: string): ReadonlyMap<string, T> {
  const copy = new Map(map);
  copy.delete(id);
  return copy;
}

function bounded(operations: ReadonlyMap<string, Operation>): ReadonlyMap<string, Operation> {
  if (operations.size <= MAX_OPERATIONS) return operations;
  const byAge = [...operations.values()].sort((a, b) => b.created_at.localeCompare(a.created_at));
  const kept = byAge.filter((one, index) => index < MAX_OPERATIONS || one.state === "running");
  return new Map(kept.map((one) => [one.id, one]));
}

/** After a stream that failed: 1 s, 2 s, … 15 s. */
const RETRY_MS = 1000;
const MAX_RETRY_MS = 15000;

export class LiveOrganization {
  #state = initial;
  #listeners = new Set<() => void>();
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;

  constructor(readonly organization: string) {}

  /** Connects for as long as somebody is subscribed. */
  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    if (this.#listeners.size === 1) this.#connect();
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#disconnect();
    };
  };

  snapshot = (): Live => this.#state;

  /** What the answer to a change already says; the stream says it again a moment later. */
  put(input: Change): void {
    // Into both, or a state that arrives just now would take it back.
    const arriving = this.#state.arriving && change(this.#state.arriving, input);
    this.#set({ ...this.#state, shown: change(this.#state.shown, input), arriving });
  }

  #connect(): void {
    const source = new EventSource(calls.eventsUrl(this.organization));
    this.#source = source;
    source.onopen = () => this.#take({ type: "opened" });
    for (const type of ["cluster", "nodepool", "operation", "deleted"] as const) {
      source.addEventListener(type, (event: MessageEvent<string>) => {
        this.#take({ type, value: JSON.parse(event.data) } as Input);
      });
    }
    source.addEventListener("synced", () => {
      this.#failures = 0;
      this.#take({ type: "synced" });
    });
    // The browser's own retry knows neither back-off nor the reason: always close, ask why, begin anew.
    source.onerror = () => {
      source.close();
      if (this.#source === source) void this.#retry();
    };
  }

  async #retry(): Promise<void> {
    this.#source = undefined;
    const error = await calls.organization(this.organization).then(
      () => new ApiError(0, "Connection lost", "Live updates stopped; connecting again."),
      (thrown: unknown) => asApiError(thrown),
    );
    if (this.#listeners.size === 0 || this.#source) return;
    this.#take({ type: "failed", error });
    const wait = Math.min(MAX_RETRY_MS, RETRY_MS * 2 ** this.#failures++);
    this.#timer = setTimeout(() => this.#connect(), wait * (0.75 + Math.random() / 2));
  }

  #disconnect(): void {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = undefined;
  }

  #take(input: Input): void {
    this.#set(step(this.#state, input));
  }

  #set(state: Live): void {
    this.#state = state;
    for (const listener of this.#listeners) listener();
  }
}
