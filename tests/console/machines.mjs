// What the console shows of a fleet of three cells: a cluster of three replicas with its kubeconfig and join
// command, and a node pool whose machine really joins. Start at `machines`.
//
// Environment: as of journey.mjs; CONSOLE_MACHINES (1 when the fleet's cloud makes machines).

import assert from "node:assert/strict";
import { join } from "node:path";
import { camera, obstacles } from "./browser.mjs";
import { button, dialogIsGone, link, row, settings, walk } from "./steps.mjs";

const { url, email, password, pictures } = settings();
const hasMachines = process.env.CONSOLE_MACHINES === "1";

/** A machine boots, joins and becomes Ready, or drains and goes, on a busy machine of two cores. */
const MACHINE_MS = 180_000;

function machines({ watched, folder, kubectl }) {
  const [first] = watched;
  const { page } = first;
  const shoot = camera(page, join(pictures, "machines"));
  const picture = async (name, options) => {
    await shoot(name, options);
    assert.deepEqual(await obstacles(page), [], `obstacles in ${name}`);
  };
  const kubeconfig = join(folder, "triple.kubeconfig");
  return [
    ["somebody signs in", async () => {
      await page.goto(`${url}/o/demo/clusters`);
      await page.getByLabel("E-mail").fill(email);
      await page.getByLabel("Password").fill(password);
      await button(page, "Sign in").click();
      await page.getByText("No clusters yet").waitFor();
    }],
    ["a cluster of three replicas is created", async () => {
      await link(page, "Create cluster").click();
      await page.getByLabel("Name").fill("triple");
      await page.getByLabel("Replicas of the control plane").selectOption("3");
      await button(page, "Create").click();
      await page.getByRole("heading", { name: "triple", exact: true }).waitFor();
      await button(page, "Create kubeconfig").click({ timeout: MACHINE_MS });
      await page.getByText("Replicas", { exact: true }).locator("..").getByText("3", { exact: true }).waitFor();
    }],
    ["its kubeconfig works", async () => {
      const downloaded = page.waitForEvent("download");
      await button(page, "Download").click();
      await (await downloaded).saveAs(kubeconfig);
      assert.match(kubectl(kubeconfig, "get", "namespaces", "-o", "name"), /namespace\/default/);
    }],
    ["its join command names the cluster", async () => {
      await button(page, "Show join command").click();
      const command = (await page.getByLabel("the join command").first().textContent()) ?? "";
      const name = /--tls-server-name (\S+)/.exec(command)?.[1];
      await page.getByText(name ?? "no server name", { exact: true }).waitFor();
      const id = /--token ([a-z0-9]{6})\.[a-z0-9]{16}/.exec(command)?.[1];
      // The Secret is in the cluster, whichever of the three made it.
      assert.match(kubectl(kubeconfig, "-n", "kube-system", "get", "secrets", "-o", "name"), new RegExp(`bootstrap-token-${id}`));
      await picture("triple", { fullPage: true });
    }],
    ["a pool's machine joins and is shown", async () => {
      if (!hasMachines) return;
      await link(page, "Nodes").click();
      await page.getByText("No node pools").waitFor();
      await button(page, "Create node pool").click();
      await page.getByLabel("Name").fill("workers");
      await page.getByLabel("Machines").fill("1");
      await button(page, "Create").click();
      const pool = row(page, "Node pools", "workers").first();
      await pool.getByText("1 of 1 ready").waitFor({ timeout: MACHINE_MS });
      // The pool's row says what it is, the one below which machine it has, and the node is of that name.
      const machine = row(page, "Node pools", "joined").first();
      const name = await machine.getByRole("cell").first().textContent();
      await row(page, "Nodes", name ?? "no name").getByText("Ready").waitFor();
      assert.match(kubectl(kubeconfig, "get", "nodes", "-o", "name"), new RegExp(`^node/${name}$`, "m"));
      await picture("pool", { fullPage: true });
    }],
    ["it is resized and deleted", async () => {
      if (!hasMachines) return;
      await button(page, "Resize workers").click();
      await page.getByLabel("Machines").fill("0");
      await button(page, "Resize").click();
      await row(page, "Node pools", "workers").first().getByText("0 of 0 ready").waitFor({ timeout: MACHINE_MS });
      await page.getByText("No nodes yet").waitFor();
      await button(page, "Delete workers").click();
      await page.getByRole("alertdialog").getByRole("button", { name: "Delete" }).click();
      await dialogIsGone(page);
      await page.getByText("No node pools").waitFor({ timeout: MACHINE_MS });
    }],
    ["the provider sees three cells serving", async () => {
      await link(page, "Fleet").click();
      await row(page, "Cells", "serving").nth(2).waitFor();
      await picture("cells");
    }],
  ];
}

await walk(machines);
