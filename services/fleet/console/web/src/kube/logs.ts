/**
 * A container's log, followed.
 *
 * Lines are asked for with their times, so that a broken stream goes on from the last one; those that come
 * twice because times are asked for by the second are dropped. Start at {@link LogFollower}.
 *
 * Not here: showing it (`pages/cluster/Logs.tsx`).
 */

import { type ApiError, asApiError, failure, sleep } from "../api/http";
import { lines } from "./stream";

export type LogLine = { number: number; time: string; text: string };

export type Log = {
  lines: readonly LogLine[];
  phase: "connecting" | "following" | "ended" | "failed";
  error: ApiError | undefined;
  /** Older lines were dropped. */
  cut: boolean;
};

/** Lines shown. A terminal's scrollback, not an archive. */
export const MAX_LINES = 4000;

/** Lines of the past asked for at first. */
const TAIL = 500;

const SETTLE_MS = 80;

/** `2026-12-01T00:00:00.123456789Z some words` into its two parts. */
export function split(line: string): { time: string; text: string } {
  const space = line.indexOf(" ");
  const time = space < 0 ? line : line.slice(0, space);
  return /^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$/.test(time)
    ? { time, text: space < 0 ? "" : line.slice(space + 1) }
    : { time: "", text: line };
}

/** A time as text that sorts: fractions come with their trailing zeros left out. */
export function sortable(time: string): string {
  return time.replace(/(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/, (_, fraction: string = "") => `.${fraction.padEnd(9, "0")}`);
}

/** The lines of `arrived` that come after `last`. */
export function unseen(arrived: readonly string[], last: string): { time: string; text: string }[] {
  const after = sortable(last);
  return arrived.map(split).filter((line) => last === "" || line.time === "" || sortable(line.time) > after);
}

export class LogFollower {
  #lines: LogLine[] = [];
  #log: Log = { lines: [], phase: "connecting", error: undefined, cut: false };
  #listeners = new Set<() => void>();
  #stop: AbortController | undefined;
  #settle: ReturnType<typeof setTimeout> | undefined;
  #last = "";
  #next = 1;
  #cut = false;

  /** `url` of the pod's log subresource with its container; `live` asks whether there may be more to come. */
  constructor(
    readonly url: string,
    readonly live: () => boolean,
  ) {}

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    if (!this.#stop) {
      this.#stop = new AbortController();
      void this.#run(this.#stop.signal);
    }
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size > 0) return;
      clearTimeout(this.#settle);
      this.#settle = undefined;
      this.#stop?.abort();
      this.#stop = undefined;
    };
  };

  snapshot = (): Log => this.#log;

  async #run(stop: AbortSignal): Promise<void> {
    for (let failures = 0; !stop.aborted; ) {
      try {
        for await (const count of this.#follow(stop)) if (count > 0) failures = 0;
        if (!this.live()) return this.#publish("ended");
        // The container was started again, or the node was away: the next stream tells.
        await sleep(1000, stop);
      } catch (thrown) {
        if (stop.aborted) return;
        const error = asApiError(thrown);
        // 400: the container has not started. It is asked again either way, until the page is left.
        this.#publish("failed", error);
        await sleep(Math.min(10_000, 1000 * 2 ** Math.min(failures++, 5)), stop);
      }
    }
  }

  async *#follow(stop: AbortSignal): AsyncGenerator<number, void, void> {
    const resumeAt = this.#last;
    const query = new URLSearchParams({ follow: "true", timestamps: "true" });
    if (resumeAt) query.set("sinceTime", resumeAt);
    else query.set("tailLines", String(TAIL));
    const url = `${this.url}&${query}`;
    const answer = await fetch(url, { signal: stop, credentials: "same-origin", cache: "no-store" });
    if (!answer.ok) throw await failure(answer);
    if (!answer.body) return;
    this.#publish("following");
    for await (const batch of lines(answer.body)) {
      const fresh = unseen(batch.filter((line) => line !== ""), resumeAt);
      for (const line of fresh) this.#lines.push({ number: this.#next++, ...line });
      this.#last = fresh.at(-1)?.time || this.#last;
      if (this.#lines.length > MAX_LINES) {
        this.#lines = this.#lines.slice(-MAX_LINES);
        this.#cut = true;
      }
      this.#settle ??= setTimeout(() => {
        this.#settle = undefined;
        this.#publish("following");
      }, SETTLE_MS);
      yield fresh.length;
    }
    clearTimeout(this.#settle);
    this.#settle = undefined;
    this.#publish("following");
  }

  #publish(phase: Log["phase"], error?: ApiError): void {
    this.#log = { lines: [...this.#lines], phase, error, cut: this.#cut };
    for (const listener of this.#listeners) listener();
  }
}
