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
    // The heading is there before its pixels are; the browser reports the paint once it has happened.
    const paint = await page.evaluate(
      () =>
        new Promise((resolve) => {
          const observer = new PerformanceObserver((list) => {
            const found = list.getEntriesByName("first-contentful-paint")[0];
            if (found) resolve(found.startTime);
          });
          observer.observe({ type: "paint", buffered: true });
        }),
    );
    const bytes = await page.evaluate(() =>
      [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .map((entry) => entry.transferSize)
        .reduce((sum, bytes) => sum + bytes, 0),
    );
    paints.push(paint);
    transferred = bytes;
    await context.close();
  }
} finally {
  await browser.close();
}
paints.sort((a, b) => a - b);
const median = paints[Math.floor(paints.length / 2)];
console.log(JSON.stringify({ first_paint_ms: Math.round(median), slowest_ms: Math.round(paints.at(-1)), transferred_bytes: transferred }));
