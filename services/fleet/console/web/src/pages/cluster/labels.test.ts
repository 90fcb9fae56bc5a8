import { expect, test } from "vitest";
import { labelChanges, parseLabels } from "./labels";

test.each([
  ["", {}],
  ["a=1", { a: "1" }],
  ["a=1, b=2  c", { a: "1", b: "2", c: "" }],
  ["a=b=c", { a: "b=c" }],
  [" , ,", {}],
])("%s", (text, wanted) => {
  expect(parseLabels(text)).toEqual(wanted);
});

test.each([
  [{}, { a: "1" }, { a: "1" }],
  [{ a: "1" }, {}, { a: null }],
  [{ a: "1", b: "2" }, { a: "1", b: "3" }, { b: "3" }],
  [{ a: "1" }, { a: "1" }, {}],
])("from %o to %o", (from, to, wanted) => {
  expect(labelChanges(from as Record<string, string>, to as Record<string, string>)).toEqual(wanted);
});
