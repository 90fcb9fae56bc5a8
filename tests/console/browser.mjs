// Debian's Chromium with a page that is watched: whatever it complains about fails the test.
//
// Not here: what a person does (journey.mjs), how fast it is (first-paint.mjs).

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

/** A busy machine of two cores: far more than anything takes. */
export const PATIENCE_MS = 30_000;

export async function launch() {
  return await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    // Chromium's own sandbox refuses to work for root, as which tests run in CI; the pages are ours.
    args: ["--no-sandbox", "--disable-dev-shm-usage"],
  });
}

/**
 * A page whose errors are kept in `complaints`: exceptions, console errors and warnings, violations of the
 * content security policy (Chromium reports them as console errors), requests that end in 5xx.
 */
export async function watchedPage(browser, options = {}) {
  const context = await browser.newContext({
    // The manager's certificate is from the fleet's own CA, which no browser knows.
    ignoreHTTPSErrors: true,
    acceptDownloads: true,
    viewport: { width: 1200, height: 800 },
    ...options,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const complaints = [];
  const expected = [];
  const isExpected = (text, url) => expected.some((one) => text.includes(one.text) && url.endsWith(one.url));
  page.on("pageerror", (error) => complaints.push(`exception: ${error.stack ?? error}`));
  page.on("console", (message) => {
    if (message.type() !== "error" && message.type() !== "warning") return;
    const url = message.location()?.url ?? "";
    // Pods that start bring network devices to this very machine; Chromium then drops its connections and
    // says so. That the page goes on regardless is what the steps after it show.
    if (message.text().includes("net::ERR_NETWORK_CHANGED")) return;
    if (!isExpected(message.text(), url)) complaints.push(`${message.type()}: ${message.text()} (${url})`);
  });
  page.on("response", (response) => {
    if (response.status() >= 500) complaints.push(`${response.status()} from ${response.url()}`);
  });
  return {
    page,
    context,
    complaints,
    /** Chromium writes a line to the console for every answer of 4xx; this one is meant to come. */
    expectAnswer: (status, url) => expected.push({ text: `status of ${status}`, url }),
  };
}

/** Takes pictures into `folder`, numbered in the order they were taken. */
export function camera(page, folder) {
  mkdirSync(folder, { recursive: true });
  let count = 0;
  return async (name, options = {}) => {
    count += 1;
    const file = join(folder, `${String(count).padStart(2, "0")}-${name}.png`);
    await page.screenshot({ path: file, animations: "disabled", caret: "initial", ...options });
    return file;
  };
}

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** What a reader of screens or a user of the keyboard would stumble over, by axe's rules for WCAG 2.2 AA. */
export async function obstacles(page) {
  // Evaluated by the debugger, so that the page's own policy stays as it is.
  await page.evaluate(AXE);
  const results = await page.evaluate(() =>
    // The library's focus guards hand the focus on at once; nobody is ever on one.
    globalThis.axe.run({ exclude: ["[data-base-ui-focus-guard]"] }, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }),
  );
  return results.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
}
