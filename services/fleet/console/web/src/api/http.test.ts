import { expect, test } from "vitest";
import { describe as describeError } from "./http";

test.each([
  [409, '{"type":"about:blank","title":"Conflict","status":409,"detail":"demo exists"}', "Conflict", "demo exists"],
  [403, '{"kind":"Status","reason":"Forbidden","message":"pods is forbidden"}', "Forbidden", "pods is forbidden"],
  [502, "<html>Bad Gateway</html>", "No answer", "The cluster cannot be reached right now. It is tried again by itself."],
  [503, "", "Try again", "The service is busy or starting. It is tried again by itself."],
  [418, "null", "Error 418", ""],
  [500, '"just words"', "Error 500", ""],
])("%i %s says what to do", (status, text, title, detail) => {
  const error = describeError(status, text);
  expect([error.title, error.detail, error.status]).toEqual([title, detail, status]);
});

test("a refused body names its fields", () => {
  const errors = [
    { field: "/size", detail: "0 to 1000, not 5000" },
    { field: "/labels/example.com~1a~0b", detail: "no" },
    { field: "", detail: "the body is a JSON object" },
  ];
  const error = describeError(400, JSON.stringify({ title: "Invalid request", status: 400, detail: "…", errors }));
  expect(error.fields).toEqual([
    { path: ["size"], detail: "0 to 1000, not 5000" },
    { path: ["labels", "example.com/a~b"], detail: "no" },
    { path: [], detail: "the body is a JSON object" },
  ]);
  expect(describeError(404, "{}").fields).toEqual([]);
});
