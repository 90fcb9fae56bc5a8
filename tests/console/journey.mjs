// What a person does with the console, from the sign-in to a deleted cluster, in a real browser against a
// real fleet of one cell. Start at `journey`.
//
// Not here: clusters of several replicas and machines of the cloud (machines.mjs).
//
// Environment: CONSOLE_URL, CONSOLE_EMAIL, CONSOLE_PASSWORD, CONSOLE_KUBECONFIG (of the cluster demo),
// CONSOLE_PICTURES (a folder for screenshots), CONSOLE_NODES (how many worker nodes demo has).
// `tests/tests/console.rs` sets them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { request } from "playwright-core";
import { camera, obstacles, watchedPage } from "./browser.mjs";
import { button, dialogIsGone, env, link, row, settings, walk } from "./steps.mjs";

const { url, email, password, pictures } = settings();
const demoKubeconfig = env("CONSOLE_KUBECONFIG");
const hasNode = Number(process.env.CONSOLE_NODES ?? "0") > 0;

/** Steps by name, in order. State is in what the fleet and the pages hold. */
function journey({ browser, watched, folder, kubectl }) {
  const [first] = watched;
  const { page } = first;
  const shoot = camera(page, pictures);
  const picture = async (name, options) => {
    await shoot(name, options);
    assert.deepEqual(await obstacles(page), [], `obstacles in ${name}`);
  };
  const kubeconfig = join(folder, "azure.kubeconfig");
  return [
    ["a stranger is asked to sign in", async () => {
      await page.goto(`${url}/o/demo/clusters`);
      await page.getByRole("heading", { name: "Sign in" }).waitFor();
    }],
    ["a wrong password is refused with what to do", async () => {
      first.expectAnswer(401, "/api/v1/sessions");
      // By keyboard alone: the first field has the focus.
      await page.keyboard.type(email);
      await page.keyboard.press("Tab");
      await page.keyboard.type("not the password");
      await page.keyboard.press("Enter");
      await page.getByRole("alert").getByText("No account has this e-mail address and password").waitFor();
      await picture("sign-in-refused");
    }],
    ["the right one leads to where they wanted to go", async () => {
      await page.getByLabel("Password").fill(password);
      await page.keyboard.press("Enter");
      await row(page, "Clusters", "demo").getByText("ready").waitFor();
      assert.equal(new URL(page.url()).pathname, "/o/demo/clusters");
      const cookies = await first.context.cookies(url);
      const session = cookies.find((one) => one.name === "__Host-roadstead");
      assert(session?.httpOnly && session.secure && session.sameSite === "Strict", JSON.stringify(cookies));
      await picture("clusters");
    }],
    ["a cluster made elsewhere appears without a reload", async () => {
      const other = await watchedPage(browser, { storageState: await first.context.storageState() });
      watched.push(other);
      await other.page.goto(`${url}/o/demo/clusters/new`);
      await other.page.getByLabel("Name").fill("Blue!");
      await button(other.page, "Create").click();
      // The browser's own check of the pattern keeps it from being sent.
      assert.equal(await other.page.getByLabel("Name").evaluate((field) => field.validity.patternMismatch), true);
      await other.page.getByLabel("Name").fill("blue");
      await button(other.page, "Create").click();
      await row(page, "Clusters", "blue").waitFor();
      await row(page, "Clusters", "blue").getByText("ready").waitFor();
      await other.page.getByRole("heading", { name: "blue", exact: true }).waitFor();
      await picture("clusters-live");
      await other.context.close();
    }],
    ["a name that is taken is refused with what to do", async () => {
      first.expectAnswer(409, "/clusters");
      await link(page, "Create cluster").click();
      await page.getByLabel("Name").fill("blue");
      await picture("create");
      await button(page, "Create").click();
      await page.getByRole("alert").waitFor();
      await picture("create-refused");
      await link(page, "Cancel").click();
    }],
    ["a cluster is renamed and labelled in place", async () => {
      await link(page, "blue").click();
      await button(page, "Rename, label").click();
      await page.getByLabel("Name").fill("azure");
      await page.getByLabel("Labels").fill("team=sea, stage=test");
      await button(page, "Save").click();
      await page.getByRole("heading", { name: "azure", exact: true }).waitFor();
      await page.getByText("stage=test", { exact: true }).waitFor();
      assert.equal(new URL(page.url()).pathname, "/o/demo/clusters/azure");
    }],
    ["its kubeconfig is copied, downloaded and works", async () => {
      await first.context.grantPermissions(["clipboard-read", "clipboard-write"]);
      await button(page, "Create kubeconfig").click();
      const downloaded = page.waitForEvent("download");
      await button(page, "Download").click();
      const download = await downloaded;
      assert.equal(download.suggestedFilename(), "azure.kubeconfig");
      await download.saveAs(kubeconfig);
      await button(page, "Copy kubeconfig").click();
      await page.getByText("Copied").waitFor();
      const copied = await page.evaluate(() => navigator.clipboard.readText());
      assert.equal(copied, readFileSync(kubeconfig, "utf8"));
      const namespaces = kubectl(kubeconfig, "get", "namespaces", "-o", "name");
      assert.match(namespaces, /namespace\/default/);
    }],
    ["the join command is shown", async () => {
      await button(page, "Show join command").click();
      const command = await page.getByLabel("the join command").first().textContent();
      assert.match(command ?? "", /roadstead node join .*--token [a-z0-9]{6}\.[a-z0-9]{16}/s);
      const id = /--token ([a-z0-9]{6})/.exec(command ?? "")?.[1];
      const listed = page.getByRole("list", { name: "Join tokens" }).getByText(id, { exact: true });
      await listed.waitFor();
      await page.waitForTimeout(300); // the toast of the rename slides out
      await picture("overview", { fullPage: true });
      await button(page, `Delete the join token ${id}`).click();
      await page.getByRole("alertdialog").getByRole("button", { name: "Delete" }).click();
      await dialogIsGone(page);
      await listed.waitFor({ state: "detached" });
    }],
    ["nodes are shown", async () => {
      await page.goto(`${url}/o/demo/clusters/demo/nodes`);
      if (hasNode) await row(page, "Nodes", "Ready").first().waitFor();
      else await page.getByText("No nodes yet").waitFor();
      await picture("nodes");
    }],
    ["a node pool is made, resized and deleted", async () => {
      await button(page, "Create node pool").click();
      await page.getByLabel("Name").fill("spare");
      await page.getByLabel("Machines").fill("0");
      await picture("create-pool");
      await button(page, "Create").click();
      await row(page, "Node pools", "spare").getByText("0 of 0 ready").waitFor();
      await button(page, "Delete spare").click();
      await page.getByRole("alertdialog").getByRole("button", { name: "Delete" }).click();
      await dialogIsGone(page);
      await row(page, "Node pools", "spare").waitFor({ state: "detached" });
    }],
    ["a value that is refused is named at its field", async () => {
      const { id } = await page.evaluate(async () => {
        const answer = await fetch("/api/v1/organizations/demo/clusters/demo");
        return await answer.json();
      });
      first.expectAnswer(400, `/clusters/${id}/nodepools`);
      await button(page, "Create node pool").click();
      await page.getByLabel("Name").fill("spare");
      await page.getByLabel("Machines").fill("0");
      await page.getByLabel("Labels of its nodes").fill("team=a/b");
      await button(page, "Create").click();
      await page.getByRole("alert").getByText(/^labels › team: /).waitFor();
      const field = page.getByLabel("Labels of its nodes");
      assert.equal(await field.getAttribute("aria-invalid"), "true");
      const described = await field.getAttribute("aria-describedby");
      assert.match((await page.locator(`[id="${described}"]`).textContent()) ?? "", /at most 63 letters/);
      await picture("create-pool-refused");
      await button(page, "Cancel").click();
      await page.getByRole("dialog").waitFor({ state: "detached" });
    }],
    ["a deployment is watched as it comes up", async () => {
      await link(page, "Workloads").click();
      await page.getByText("Nothing runs here yet").waitFor();
      kubectl(demoKubeconfig, "create", "deployment", "web", "--image=roadstead.local/demo:1", "--replicas=3");
      const web = row(page, "Deployments", "web").first();
      await web.waitFor();
      await button(page, "Pods of web").click();
      await page.getByRole("row").filter({ hasText: /^web-/ }).nth(2).waitFor();
      if (hasNode) {
        await web.getByText("3/3").waitFor();
        await web.getByText("Ready").waitFor();
      } else {
        // The reason is where the trouble is.
        await page.getByText(/no nodes available|0\/0 nodes/).first().waitFor();
      }
      await picture("workloads");
      kubectl(demoKubeconfig, "scale", "deployment", "web", "--replicas=1");
      await web.getByText(hasNode ? "1/1" : "0/1").waitFor();
    }],
    ["the namespace chosen stays in the address", async () => {
      await page.getByLabel("Namespace").selectOption("kube-system");
      await page.getByText("Nothing runs in kube-system").waitFor();
      assert.equal(new URL(page.url()).searchParams.get("namespace"), "kube-system");
      await page.getByLabel("Namespace").selectOption("");
      await row(page, "Deployments", "web").first().waitFor();
    }],
    ["a pod's log is followed", async () => {
      if (!hasNode) return;
      const script = "i=0; while true; do i=$((i+1)); echo tick $i; sleep 1; done";
      kubectl(demoKubeconfig, "run", "ticker", "--image=roadstead.local/demo:1", "--restart=Never", "--", "sh", "-c", script);
      await link(page, "ticker").click();
      await page.getByText("Following live").waitFor();
      await page.getByRole("log").getByText("tick 2", { exact: true }).waitFor();
      const before = await ticks(page);
      await page.getByRole("log").getByText(`tick ${before + 3}`, { exact: true }).waitFor();
      await page.getByLabel("Times").check();
      await page.getByText("Events", { exact: true }).last().waitFor();
      await picture("pod", { fullPage: true });
      kubectl(demoKubeconfig, "delete", "pod", "ticker", "--grace-period=1", "--wait=false");
      await page.getByText("There is no pod ticker").waitFor();
    }],
    ["events are shown, the newest first", async () => {
      await link(page, "Events").click();
      await row(page, "Events", "ScalingReplicaSet").first().waitFor();
      await picture("events");
      kubectl(demoKubeconfig, "delete", "deployment", "web");
    }],
    ["somebody is invited, comes, and sees what a viewer may", async () => {
      await link(page, "Members").click();
      await button(page, "Add member").click();
      await page.getByLabel("E-mail").fill("vera@example.com");
      await page.getByLabel("Role", { exact: true }).selectOption("viewer");
      await button(page, "Add").click();
      const invitation = await page.getByLabel("the invitation").first().textContent();
      assert(invitation?.startsWith(`${url}/accept#`), invitation ?? "no invitation");
      await picture("members");
      const guest = await watchedPage(browser, { viewport: { width: 420, height: 800 }, colorScheme: "dark" });
      watched.push(guest);
      await guest.page.goto(invitation);
      await guest.page.getByLabel("Your name").fill("Vera Viewer");
      await guest.page.getByLabel("Password").fill("a harbour of quiet words");
      await guest.page.getByLabel("The same again").fill("a harbour of quiet words");
      await button(guest.page, "Create account").click();
      await row(guest.page, "Clusters", "azure").waitFor();
      assert.equal(await guest.page.getByRole("link", { name: "Members" }).count(), 0);
      assert.equal(await guest.page.getByRole("link", { name: "Create cluster" }).count(), 0);
      await link(guest.page, "azure").click();
      await guest.page.getByText("You may look at this cluster").waitFor();
      // They read what the cluster holds: nodes and pods, neither of which azure has.
      await guest.page.getByText("none yet").nth(1).waitFor();
      await camera(guest.page, join(pictures, "viewer"))("overview-dark-narrow", { fullPage: true });
      for (const path of ["/fleet", "/o/demo/members", "/o/demo/tokens", "/o/demo/clusters/new"]) {
        await guest.page.goto(`${url}${path}`);
        await guest.page.getByText("Not allowed").waitFor();
        assert.equal(await guest.page.locator("main button").count(), 0, path);
      }

      await button(page, "Remove vera@example.com").click();
      await page.getByRole("alertdialog").getByRole("button", { name: "Remove" }).click();
      await dialogIsGone(page);
      await row(page, "Members", "vera@example.com").waitFor({ state: "detached" });
      guest.expectAnswer(404, "/organizations/demo");
      guest.expectAnswer(404, "/organizations/demo/events");
      await guest.page.goto(`${url}/o/demo/clusters`);
      await guest.page.getByRole("alert").getByText("Not found").waitFor();
      await guest.context.close();
    }],
    ["an API token is made, works, and is deleted", async () => {
      await link(page, "API tokens").click();
      await button(page, "Create token").click();
      await page.getByLabel("What is it for").fill("terraform in CI");
      await button(page, "Create").click();
      const secret = await page.getByLabel("the token").first().textContent();
      await row(page, "API tokens", "terraform in CI").waitFor();
      await picture("tokens");
      const api = await request.newContext({
        ignoreHTTPSErrors: true,
        extraHTTPHeaders: { authorization: `Bearer ${secret}` },
      });
      const clusters = `${url}/api/v1/organizations/demo/clusters`;
      assert.equal((await api.get(clusters)).status(), 200);
      await button(page, "Delete the token terraform in CI").click();
      await page.getByRole("alertdialog").getByRole("button", { name: "Delete" }).click();
      await dialogIsGone(page);
      await row(page, "API tokens", "terraform in CI").waitFor({ state: "detached" });
      assert.equal((await api.get(clusters)).status(), 401);
      await api.dispose();
    }],
    ["the provider sees the fleet", async () => {
      await link(page, "Fleet").click();
      await row(page, "Cells", "cell-1").getByText("serving").waitFor();
      await picture("fleet");
    }],
    ["a cluster is deleted once its name is typed", async () => {
      await page.goto(`${url}/o/demo/clusters/azure`);
      await button(page, "Delete cluster").click();
      assert.equal(await button(page, "Delete for good").isDisabled(), true);
      await page.getByLabel(/Type azure/).fill("azure");
      await picture("delete");
      await button(page, "Delete for good").click();
      await page.getByText("The cluster azure is gone").waitFor();
      await link(page, "All clusters").click();
      await row(page, "Clusters", "demo").waitFor();
      assert.equal(await row(page, "Clusters", "azure").count(), 0);
      await button(page, "Deleted clusters").click();
      const downloaded = page.waitForEvent("download");
      await row(page, "Deleted clusters", "azure").getByRole("button", { name: "Receipt" }).click();
      const receipt = JSON.parse(readFileSync(await (await downloaded).path(), "utf8"));
      assert.equal(receipt.name, "azure");
      assert(receipt.signature.length > 80, "the receipt is not signed");
    }],
    ["it is dark when asked to be", async () => {
      await page.getByRole("button", { name: /^Account of/ }).click();
      await page.getByRole("menuitem", { name: "Look: dark" }).click();
      const paper = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      assert.equal(paper, "rgb(14, 23, 29)");
      await picture("dark");
    }],
    ["whoever signs out is out", async () => {
      await page.getByRole("button", { name: /^Account of/ }).click();
      await page.getByRole("menuitem", { name: "Sign out" }).click();
      await page.getByRole("heading", { name: "Sign in" }).waitFor();
      await page.goto(`${url}/o/demo/clusters`);
      await page.getByRole("heading", { name: "Sign in" }).waitFor();
    }],
  ];
}

/** The last tick that the log shows. */
async function ticks(page) {
  const text = (await page.getByRole("log").textContent()) ?? "";
  return Number([...text.matchAll(/tick (\d+)/g)].at(-1)?.[1] ?? 0);
}

await walk(journey);
