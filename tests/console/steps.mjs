// Walks through steps on one watched page, and the few ways in which steps find things there.
//
// Start at `walk`. Not here: the steps themselves (journey.mjs, machines.mjs), the browser (browser.mjs).

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launch, PATIENCE_MS, watchedPage } from "./browser.mjs";

/** A variable of the environment; `tests/tests/console.rs` sets them. */
export const env = (name) => {
  const value = process.env[name];
  assert(value, `${name} is not set`);
  return value;
};

/** Where the console is, who signs in, and the folder for screenshots. */
export const settings = () => ({
  url: env("CONSOLE_URL"),
  email: env("CONSOLE_EMAIL"),
  password: env("CONSOLE_PASSWORD"),
  pictures: env("CONSOLE_PICTURES"),
});

/**
 * Runs the steps that `plan` gives, `[name, step]` each, in order. State is in what the fleet and the pages
 * hold. Fails when a step does, or when a browser complained about anything.
 */
export async function walk(plan) {
  const { pictures } = settings();
  const folder = mkdtempSync(join(tmpdir(), "roadstead-console-"));
  const kubectl = (kubeconfig, ...words) =>
    execFileSync("kubectl", words, {
      env: { ...process.env, KUBECONFIG: kubeconfig, KUBECACHEDIR: join(folder, "cache") },
      encoding: "utf8",
      timeout: PATIENCE_MS,
    });
  const browser = await launch();
  try {
    const first = await watchedPage(browser);
    const watched = [first];
    for (const [name, step] of plan({ browser, watched, folder, kubectl })) {
      const started = Date.now();
      try {
        await step();
      } catch (error) {
        await first.page.screenshot({ path: join(pictures, "failed.png") }).catch(() => {});
        error.message = `${name}: ${error.message}\nat ${first.page.url()}`;
        throw error;
      }
      console.log(`${name}: ${((Date.now() - started) / 1000).toFixed(1)} s`);
    }
    assert.deepEqual(watched.flatMap((one) => one.complaints), [], "the browser complained");
  } finally {
    await browser.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

export const button = (page, name) => page.getByRole("button", { name, exact: true });
export const link = (page, name) => page.getByRole("link", { name, exact: true });
// While a dialog is open the page behind it is hidden, and a row there would seem to be gone.
export const dialogIsGone = (page) => page.getByRole("alertdialog").waitFor({ state: "detached" });
export const row = (page, table, text) =>
  page.getByRole("table", { name: table }).getByRole("row").filter({ hasText: text });
