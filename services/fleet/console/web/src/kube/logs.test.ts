import { expect, test } from "vitest";
import { split, unseen } from "./logs";

test.each([
  ["2026-12-01T00:00:00.5Z hello world", "2026-12-01T00:00:00.5Z", "hello world"],
  ["2026-12-01T00:00:00+02:00 x", "2026-12-01T00:00:00+02:00", "x"],
  ["2026-12-01T00:00:00.5Z", "2026-12-01T00:00:00.5Z", ""],
  ["no time at all", "", "no time at all"],
])("%s", (line, time, text) => {
  expect(split(line)).toEqual({ time, text });
});

test.each([
  ["the first time, all", "", ["1.1Z a", "1.2Z b"], ["a", "b"]],
  ["then only later ones", "1.1Z", ["1.1Z a", "1.2Z b"], ["b"]],
  ["whose fractions are of unequal length", "1.12Z", ["1.1Z a", "1.12Z b", "1.123Z c", "1.2Z d"], ["c", "d"]],
  ["or that have none", "1.999Z", ["1Z a", "2Z b"], ["b"]],
  ["lines without a time are never dropped", "1.1Z", ["words"], ["words"]],
])("%s", (_, last, arrived, wanted) => {
  const full = (line: string) => line.replace(/^(\d)/, "2026-12-01T00:00:0$1");
  expect(unseen(arrived.map(full), last && full(last)).map((line) => line.text)).toEqual(wanted);
});
