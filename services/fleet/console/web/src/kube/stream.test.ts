import { expect, test } from "vitest";
import { lines } from "./stream";

function body(chunks: (string | number[])[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const chunk of chunks) {
        controller.enqueue(typeof chunk === "string" ? new TextEncoder().encode(chunk) : new Uint8Array(chunk));
      }
      controller.close();
    },
  });
}

const rows: [string, (string | number[])[], string[]][] = [
  ["whole lines", ["a\nb\n"], ["a", "b"]],
  ["a line in two pieces", ["a", "b\nc\n"], ["ab", "c"]],
  ["no break at the end", ["a\nb"], ["a", "b"]],
  ["nothing", [], []],
  ["empty lines", ["\n\na\n"], ["", "", "a"]],
  ["a character in two pieces", [[0xc3], [0xa4, 0x0a]], ["ä"]],
];

test.each(rows)("%s", async (_, chunks, wanted) => {
  const got: string[] = [];
  for await (const batch of lines(body(chunks))) got.push(...batch);
  expect(got).toEqual(wanted);
});

test("a line without end is cut rather than held", async () => {
  const got: string[] = [];
  const piece = "x".repeat(1024 * 1024);
  for await (const batch of lines(body([piece, piece, piece, "\nnext\n"]))) got.push(...batch);
  expect(got.map((line) => line.length)).toEqual([2 * 1024 * 1024, 0, 4]);
});

test("whoever stops reading ends the stream", async () => {
  let cancelled = false;
  const endless = new ReadableStream<Uint8Array>({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("a\n")),
    cancel: () => {
      cancelled = true;
    },
  });
  for await (const _ of lines(endless)) break;
  expect(cancelled).toBe(true);
});
