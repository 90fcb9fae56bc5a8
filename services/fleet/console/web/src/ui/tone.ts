/** What a state means to whoever looks: fine, being worked on, in need of them, or of no concern. */
export type Tone = "good" | "busy" | "bad" | "idle";

/** The tone of a state that the REST API names. */
export function toneOf(state: string): Tone {
  switch (state) {
    case "ready":
    case "running":
    case "joined":
    case "succeeded":
      return "good";
    case "failed":
      return "bad";
    case "cancelled":
      return "idle";
    default:
      return "busy";
  }
}
