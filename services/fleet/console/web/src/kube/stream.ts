/** Lines of an answer that does not end, as they come. Used by watches and by logs that are followed. */

/** A line longer than this is cut: nobody reads it, and it would be held whole. */
const MAX_LINE = 2 * 1024 * 1024;

/** Yields batches of whole lines; what comes after the last line break is the last line. */
export async function* lines(body: ReadableStream<Uint8Array>): AsyncGenerator<string[], void, void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const parts = rest.split("\n");
      rest = parts.pop() ?? "";
      if (rest.length > MAX_LINE) {
        parts.push(rest.slice(0, MAX_LINE));
        rest = "";
      }
      if (done && rest !== "") parts.push(rest);
      if (parts.length > 0) yield parts;
      if (done) return;
    }
  } finally {
    // Whoever stops listening also stops the sending.
    await reader.cancel().catch(() => {});
  }
}
