import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError } from "../api/http";
import { afterFailure, apply, ListWatch, type WatchEvent } from "./listwatch";
import type { KubeObject } from "./types";

const object = (uid: string, version: string): KubeObject => ({
  metadata: { name: uid, uid, resourceVersion: version },
});
const event = (type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK", uid: string, version: string): WatchEvent => ({
  type,
  object: object(uid, version),
});

test.each([
  ["ADDED", ["a", "b"]],
  ["MODIFIED", ["a", "b"]],
  ["DELETED", ["a"]],
  ["BOOKMARK", ["a"]],
] as const)("%s changes what is held, and the version", (type, wanted) => {
  const objects = new Map([["a", object("a", "1")]]);
  expect(apply(objects, event(type, "b", "7"))).toBe("7");
  expect([...objects.keys()]).toEqual(wanted);
});

test("an error in a watch is the error it names", () => {
  const gone: WatchEvent = { type: "ERROR", object: { code: 410, message: "too old resource version", reason: "Expired" } };
  expect(() => apply(new Map(), gone)).toThrowError(expect.objectContaining({ status: 410, title: "Expired" }));
});

test.each([
  [403, 0, undefined, "failed", 30_000],
  [404, 5, undefined, "failed", 30_000],
  [0, 0, undefined, "away", 500],
  [503, 3, undefined, "away", 4000],
  [503, 0, 7, "away", 7000],
  [500, 50, undefined, "away", 15_000],
] as const)("after %i for the %ith time, told %s s: %s, %i ms", (status, failures, after, phase, waitMs) => {
  expect(afterFailure(new ApiError(status, "", "", after), failures)).toEqual({ phase, waitMs });
});

/** A server that answers requests in the order of its script, and notes what it was asked. */
class Script {
  asked: string[] = [];
  constructor(readonly answers: ((signal: AbortSignal) => Response | Promise<Response>)[]) {}
  fetch = async (url: string, init: RequestInit): Promise<Response> => {
    const query = new URL(url, "https://host").searchParams;
    this.asked.push(query.has("watch") ? `watch ${query.get("resourceVersion")}` : `list ${query.get("continue") ?? ""}`.trim());
    const answer = this.answers.shift();
    const signal = init.signal as AbortSignal;
    // After the script: a watch that says nothing.
    return answer ? answer(signal) : new Response(new ReadableStream({ start: (c) => signal.addEventListener("abort", () => c.error(signal.reason)) }));
  };
}

const list = (version: string, uids: string[], next?: string) => () =>
  Response.json({ metadata: { resourceVersion: version, continue: next }, items: uids.map((uid) => object(uid, version)) });
const watch = (...events: WatchEvent[]) => () =>
  new Response(events.map((one) => `${JSON.stringify(one)}\n`).join(""));
const refuse = (status: number) => () => new Response("{}", { status });

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

async function run(answers: Script["answers"], forMs: number) {
  const script = new Script(answers);
  const watched = new ListWatch<KubeObject>("/proxy/api/v1/pods", script.fetch);
  const stop = watched.subscribe(() => {});
  await vi.advanceTimersByTimeAsync(forMs);
  const { items, phase } = watched.snapshot();
  const asked = [...script.asked];
  stop();
  await vi.advanceTimersByTimeAsync(30_000);
  return { asked, shown: items.map((one) => one.metadata.uid).sort(), phase };
}

test("one that is closed asks nothing more, and keeps what it showed", async () => {
  const script = new Script([list("5", ["a"]), watch(event("ADDED", "b", "6"))]);
  const watched = new ListWatch<KubeObject>("/proxy/api/v1/pods", script.fetch);
  watched.subscribe(() => {});
  await vi.advanceTimersByTimeAsync(500);
  watched.close();
  watched.subscribe(() => {});
  await vi.advanceTimersByTimeAsync(60_000);
  expect(script.asked).toEqual(["list", "watch 5"]);
  expect(watched.snapshot().items.length).toBe(2);
});

test.each<[string, Script["answers"], number, string[], string[], string]>([
  ["lists, then watches", [list("5", ["a"])], 1000, ["list", "watch 5"], ["a"], "live"],
  ["reads every page", [list("5", ["a"], "next"), list("5", ["b"])], 1000, ["list", "list next", "watch 5"], ["a", "b"], "live"],
  [
    "goes on from the last event when a watch ends",
    [list("5", ["a"]), watch(event("ADDED", "b", "6"), event("BOOKMARK", "", "9"))],
    2500,
    ["list", "watch 5", "watch 9"],
    ["a", "b"],
    "live",
  ],
  [
    "lists anew when the history is gone",
    [list("5", ["a"]), watch({ type: "ERROR", object: { code: 410 } }), list("80", ["c"])],
    2500,
    ["list", "watch 5", "list", "watch 80"],
    ["c"],
    "live",
  ],
  ["lists anew when refused with 410", [list("5", ["a"]), refuse(410), list("8", ["d"])], 2500, ["list", "watch 5", "list", "watch 8"], ["d"], "live"],
  [
    "keeps what it has while the server is away",
    [list("5", ["a"]), refuse(503)],
    100,
    ["list", "watch 5"],
    ["a"],
    "away",
  ],
  ["and is live again afterwards", [list("5", ["a"]), refuse(503)], 5000, ["list", "watch 5", "watch 5"], ["a"], "live"],
  ["waits long where it may not", [refuse(403)], 5000, ["list"], [], "failed"],
])("%s", async (_, answers, forMs, asked, shown, phase) => {
  expect(await run(answers, forMs)).toEqual({ asked, shown, phase });
});
