import { expect, test } from "vitest";
import { ApiError } from "./http";
import { initial, type Input, type Live, step } from "./live";
import type { Cluster, Operation } from "./types";

const cluster = (id: string, state = "ready") => ({ id, name: id, state }) as Cluster;
const added = (id: string, state?: string): Input => ({ type: "cluster", value: cluster(id, state) });
const gone = (id: string): Input => ({ type: "deleted", value: { kind: "cluster", id } });
const lost: Input = { type: "failed", error: new ApiError(0, "lost", "") };

/** `phase: a(state), b(state)` */
function words(live: Live): string {
  const shown = [...live.shown.clusters.values()].map((one) => `${one.id}(${one.state})`).join(", ");
  return `${live.phase}: ${shown}`;
}

const rows: [string, Input[], string][] = [
  ["nothing is shown before all of it is there", [{ type: "opened" }, added("a")], "loading: "],
  ["then all of it", [{ type: "opened" }, added("a"), added("b"), { type: "synced" }], "live: a(ready), b(ready)"],
  ["changes come as they are", [{ type: "opened" }, { type: "synced" }, added("a", "creating"), added("a")], "live: a(ready)"],
  ["what is deleted goes", [{ type: "opened" }, added("a"), { type: "synced" }, gone("a")], "live: "],
  ["an unknown deletion is nothing", [{ type: "opened" }, added("a"), { type: "synced" }, gone("b")], "live: a(ready)"],
  ["a lost stream leaves what is shown", [{ type: "opened" }, added("a"), { type: "synced" }, lost], "away: a(ready)"],
  [
    "a new stream replaces it only once whole",
    [{ type: "opened" }, added("a"), { type: "synced" }, lost, { type: "opened" }, added("b")],
    "away: a(ready)",
  ],
  [
    "what was deleted meanwhile is gone then",
    [{ type: "opened" }, added("a"), { type: "synced" }, lost, { type: "opened" }, added("b"), { type: "synced" }],
    "live: b(ready)",
  ],
  [
    "half of a state that broke off is forgotten",
    [{ type: "opened" }, added("x"), lost, { type: "opened" }, added("a"), { type: "synced" }],
    "live: a(ready)",
  ],
];

test.each(rows)("%s", (_, inputs, wanted) => {
  expect(words(inputs.reduce(step, initial))).toBe(wanted);
});

test("finished operations are bounded, running ones are kept", () => {
  const operation = (n: number, state: Operation["state"]): Input => {
    const value = { id: `${n}`, state, created_at: new Date(n * 1000).toISOString() } as Operation;
    return { type: "operation", value };
  };
  const inputs: Input[] = [operation(0, "running")];
  for (let n = 1; n <= 500; n++) inputs.push(operation(n, "succeeded"));
  const live = inputs.reduce(step, initial);
  expect(live.shown.operations.size).toBeLessThanOrEqual(201);
  expect(live.shown.operations.has("0")).toBe(true);
  expect(live.shown.operations.has("500")).toBe(true);
});
