/** Labels as people type them, and the difference between two sets of them. Pure. */

/** `a=1, b=2` as an object. Whether keys and values are fine is the server's to say. */
export function parseLabels(text: string): Record<string, string> {
  const entries = text
    .split(/[\s,]+/)
    .filter((part) => part !== "")
    .map((part): [string, string] => {
      const at = part.indexOf("=");
      return at < 0 ? [part, ""] : [part.slice(0, at), part.slice(at + 1)];
    });
  return Object.fromEntries(entries);
}

/** The merge patch that turns `from` into `to`: what is to go becomes null. */
export function labelChanges(from: Record<string, string>, to: Record<string, string>): Record<string, string | null> {
  const gone = Object.keys(from).filter((key) => !(key in to));
  const changed = Object.entries(to).filter(([key, value]) => from[key] !== value);
  return Object.fromEntries<string | null>([...gone.map((key): [string, null] => [key, null]), ...changed]);
}
