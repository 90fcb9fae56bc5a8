import { expect, test } from "vitest";
import { podsByWorkload } from "./owners";
import type { KubeObject, Pod } from "./types";

const owned = (uid: string, owner?: string, controller = true): KubeObject & Pod => ({
  metadata: {
    name: uid,
    uid,
    resourceVersion: "1",
    ...(owner && { ownerReferences: [{ kind: "X", name: owner, uid: owner, controller }] }),
  },
});

test("pods are found through their ReplicaSets, and otherwise where they say", () => {
  const sets = [owned("set-1", "deployment"), owned("set-2", "deployment"), owned("set-alone")];
  const pods = [
    owned("a", "set-1"),
    owned("b", "set-2"),
    owned("c", "stateful"),
    owned("d"),
    owned("e", "set-alone"),
    owned("f", "deployment", false),
  ];
  const groups = Object.fromEntries(
    [...podsByWorkload(pods, sets)].map(([owner, group]) => [owner, group.map((one) => one.metadata.name).join()]),
  );
  expect(groups).toEqual({ deployment: "a,b", stateful: "c", "": "d,f", "set-alone": "e" });
});
