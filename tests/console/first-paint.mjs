// How long the console takes to show its first page, and how much is sent for it. Prints one JSON object.
//
// Environment: CONSOLE_URL, CONSOLE_ROUNDS (default 5).

import { launch } from "./browser.mjs";

const url = process.env.CONSOLE_URL;
const rounds = Number(process.env.CONSOLE_ROUNDS ?? "5");
const browser = await launch();
const paints = [];
let transferred = 0;
try {
  for (let round = 0; round < rounds; round++) {
    // A context of its own each time: nothing is cached, nothing is connected.
    const context = await browser.newContext({ ignoreHTTPSErrors: true });
    const page = await context.newPage();
    await page.goto(url);
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    const seen = await page.evaluate(() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
      bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .map((entry) => entry.transferSize)
        .reduce((sum, bytes) => sum + bytes, 0),
    }));
    if (seen.paint === undefined) throw new Error("the browser reports no first paint");
    paints.push(seen.paint);
    transferred = seen.bytes;
    await context.close();
  }
} finally {
  await browser.close();
}
paints.sort((a, b) => a - b);
const median = paints[Math.floor(paints.length / 2)];
console.log(JSON.stringify({ first_paint_ms: Math.round(median), slowest_ms: Math.round(paints.at(-1)), transferred_bytes: transferred }));
