// What people do with the official JavaScript client, against a cluster of ours.
//
// Run as `node journey.mjs [POD]` with KUBECONFIG set; POD is one whose first container has a shell. Each step
// says its name and what it took; the first that does not come out as upstream's server would ends the run.
//
// Not here: leader election by a library, which this client has none of; the Lease's own rules are.

import assert from "node:assert/strict";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import * as k8s from "@kubernetes/client-node";

const NAMESPACE = "node";
const PATIENCE_MS = 20_000;

const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);
const leases = config.makeApiClient(k8s.CoordinationV1Api);
const extensions = config.makeApiClient(k8s.ApiextensionsV1Api);
const custom = config.makeApiClient(k8s.CustomObjectsApi);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);
const namespace = NAMESPACE;

/** The call must fail with this code; gives the Status. */
async function refused(code, call) {
  try {
    await call;
  } catch (error) {
    assert.equal(error.code, code, error.message);
    return typeof error.body === "string" ? JSON.parse(error.body) : error.body;
  }
  assert.fail(`accepted instead of refused with ${code}`);
}

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing within ${PATIENCE_MS} ms`)), PATIENCE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function configMap(name, data, labels) {
  return { apiVersion: "v1", kind: "ConfigMap", metadata: { name, namespace, labels }, data };
}

/** Events of a watch, until there are `wanted` of them. */
async function events(path, query, wanted) {
  const found = [];
  let request;
  const ended = new Promise((resolve, reject) => {
    const done = (error) => (found.length >= wanted ? resolve() : reject(error ?? new Error("ended early")));
    request = new k8s.Watch(config).watch(
      path,
      query,
      (type, object) => {
        if (found.push({ type, object }) >= wanted) resolve();
      },
      done,
    );
  });
  try {
    await within(ended, path);
  } finally {
    (await request).abort();
  }
  return found.slice(0, wanted);
}

const MAPS = `/api/v1/namespaces/${NAMESPACE}/configmaps`;

async function createAndList() {
  for (let number = 0; number < 5; number += 1) {
    const body = configMap(`c${number}`, { n: String(number) }, { odd: String(number % 2) });
    const made = await core.createNamespacedConfigMap({ namespace, body });
    assert.deepEqual(made.data, body.data);
    assert.ok(made.metadata.creationTimestamp instanceof Date);
  }
  const status = await refused(409, core.createNamespacedConfigMap({ namespace, body: configMap("c0") }));
  assert.equal(status.reason, "AlreadyExists");
  const odd = await core.listNamespacedConfigMap({ namespace, labelSelector: "odd=1" });
  assert.deepEqual(odd.items.map((item) => item.metadata.name), ["c1", "c3"]);
  const names = [];
  let token;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, limit: 2, labelSelector: "odd", _continue: token });
    names.push(...page.items.map((item) => item.metadata.name));
    token = page.metadata._continue;
  } while (token);
  assert.deepEqual(names, ["c0", "c1", "c2", "c3", "c4"]);
  await refused(404, core.readNamespacedConfigMap({ namespace, name: "none" }));
  await refused(422, core.createNamespacedConfigMap({ namespace, body: configMap("Not A Name") }));
}

async function watchAndResume() {
  const start = (await core.listNamespacedConfigMap({ namespace })).metadata.resourceVersion;
  await core.createNamespacedConfigMap({ namespace, body: configMap("seen", { a: "1" }) });
  await objects.patch(configMap("seen", { a: "2" }), undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch);
  await core.deleteNamespacedConfigMap({ namespace, name: "seen" });
  const found = await events(MAPS, { resourceVersion: start }, 3);
  assert.deepEqual(found.map((event) => event.type), ["ADDED", "MODIFIED", "DELETED"]);
  assert.deepEqual(found[1].object.data, { a: "2" });
  // From the middle: what came before does not come again.
  const rest = await events(MAPS, { resourceVersion: found[0].object.metadata.resourceVersion }, 2);
  assert.deepEqual(rest.map((event) => event.type), ["MODIFIED", "DELETED"]);
}

async function bookmarks() {
  const { items } = await core.listNamespacedConfigMap({ namespace });
  const query = {
    sendInitialEvents: true,
    allowWatchBookmarks: true,
    resourceVersionMatch: "NotOlderThan",
    timeoutSeconds: 20,
  };
  const found = await events(MAPS, query, items.length + 1);
  const last = found.pop();
  assert.ok(found.every((event) => event.type === "ADDED"));
  assert.equal(last.type, "BOOKMARK");
  assert.equal(last.object.metadata.annotations["k8s.io/initial-events-end"], "true");
}

/** The client's own cache: lists once, then follows. */
async function informer() {
  const cache = k8s.makeInformer(config, MAPS, () => core.listNamespacedConfigMap({ namespace }));
  const told = [];
  let wake = () => {};
  for (const verb of ["add", "update", "delete"]) {
    cache.on(verb, (object) => {
      told.push(`${verb} ${object.metadata.name} ${object.data?.a}`);
      wake();
    });
  }
  const heard = async (line) => {
    while (!told.includes(line)) {
      await within(new Promise((resolve) => (wake = resolve)), line);
    }
  };
  await cache.start();
  try {
    await core.createNamespacedConfigMap({ namespace, body: configMap("cached", { a: "1" }) });
    await heard("add cached 1");
    await objects.patch(configMap("cached", { a: "2" }), undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch);
    await heard("update cached 2");
    await core.deleteNamespacedConfigMap({ namespace, name: "cached" });
    await heard("delete cached 2");
    assert.equal(cache.get("cached", namespace), undefined);
    assert.equal(cache.get("c1", namespace).data.n, "1");
  } finally {
    await cache.stop();
  }
}

async function patches() {
  await core.createNamespacedConfigMap({ namespace, body: configMap("patched", { a: "1", b: "2" }) });
  const operations = [
    { op: "test", path: "/data/a", value: "1" },
    { op: "replace", path: "/data/a", value: "x" },
    { op: "remove", path: "/data/b" },
  ];
  const json = () => core.patchNamespacedConfigMap({ namespace, name: "patched", body: operations });
  assert.deepEqual((await json()).data, { a: "x" });
  // Its own test no longer holds.
  await refused(422, json());
  const selector = { matchLabels: { app: "two" } };
  const two = (containers) => ({
    apiVersion: "apps/v1",
    kind: "Deployment",
    metadata: { name: "two", namespace },
    spec: { template: { spec: { containers } } },
  });
  const body = two([{ name: "one", image: "one:1" }, { name: "two", image: "two:1" }]);
  Object.assign(body.spec, { replicas: 0, selector });
  body.spec.template.metadata = { labels: selector.matchLabels };
  await apps.createNamespacedDeployment({ namespace, body });
  // Containers are merged by name with a strategic patch, and replaced with a plain one.
  for (const [strategy, wanted] of [
    [k8s.PatchStrategy.StrategicMergePatch, { one: "one:1", two: "two:2" }],
    [k8s.PatchStrategy.MergePatch, { two: "two:2" }],
  ]) {
    const change = two([{ name: "two", image: "two:2" }]);
    const patched = await objects.patch(change, undefined, undefined, undefined, undefined, strategy);
    const containers = patched.spec.template.spec.containers;
    assert.deepEqual(Object.fromEntries(containers.map(({ name, image }) => [name, image])), wanted, strategy);
  }
  const scale = await apps.readNamespacedDeploymentScale({ namespace, name: "two" });
  assert.deepEqual([scale.kind, scale.status.selector], ["Scale", "app=two"]);
}

async function serverSideApply() {
  const apply = (manager, data, force) =>
    objects.patch(configMap("applied", data), undefined, undefined, manager, force, k8s.PatchStrategy.ServerSideApply);
  await apply("ann", { a: "1", b: "1" });
  const status = await refused(409, apply("bob", { a: "2" }));
  assert.deepEqual(status.details.causes, [
    { reason: "FieldManagerConflict", message: 'conflict with "ann"', field: ".data.a" },
  ]);
  assert.deepEqual((await apply("bob", { a: "2" }, true)).data, { a: "2", b: "1" });
  const rest = await apply("ann", undefined);
  assert.deepEqual(rest.data, { a: "2" });
  assert.deepEqual(rest.metadata.managedFields.map((entry) => entry.manager), ["bob"]);
}

async function customObjects() {
  const [group, version, plural] = ["node.example.com", "v1", "widgets"];
  const schema = {
    type: "object",
    properties: {
      spec: { type: "object", properties: { size: { type: "integer", minimum: 1 }, colour: { type: "string", _default: "red" } } },
      status: { type: "object", properties: { ready: { type: "boolean" } } },
    },
  };
  const name = `${plural}.${group}`;
  await extensions.createCustomResourceDefinition({
    body: {
      metadata: { name },
      spec: {
        group,
        scope: "Namespaced",
        names: { kind: "Widget", plural },
        versions: [{ name: version, served: true, storage: true, schema: { openAPIV3Schema: schema }, subresources: { status: {} } }],
      },
    },
  });
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const { status } = await extensions.readCustomResourceDefinition({ name });
    if (status?.conditions?.some(({ type, status }) => type === "Established" && status === "True")) break;
    assert.ok(Date.now() < deadline, "the definition is never established");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const where = { group, version, namespace, plural };
  const widget = (size) => ({ apiVersion: `${group}/${version}`, kind: "Widget", metadata: { name: "w", namespace }, spec: { size } });
  const made = await custom.createNamespacedCustomObject({ ...where, body: widget(3) });
  assert.deepEqual(made.spec, { size: 3, colour: "red" });
  const status = await refused(422, objects.patch(widget(0), undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch));
  assert.equal(status.details.causes[0].field, "spec.size");
  const applied = await objects.patch(widget(4), undefined, undefined, "ann", true, k8s.PatchStrategy.ServerSideApply);
  assert.equal(applied.spec.size, 4);
  const listed = await custom.listNamespacedCustomObject(where);
  assert.deepEqual([listed.kind, listed.items.length], ["WidgetList", 1]);
  await custom.deleteNamespacedCustomObject({ ...where, name: "w" });
  await refused(404, custom.getNamespacedCustomObject({ ...where, name: "w" }));
  await extensions.deleteCustomResourceDefinition({ name });
}

/** One of two who write what they read wins. */
async function leaseOfOne() {
  const body = { metadata: { name: "election" }, spec: { holderIdentity: "first", leaseDurationSeconds: 1, renewTime: new k8s.V1MicroTime() } };
  await leases.createNamespacedLease({ namespace, body });
  const read = () => leases.readNamespacedLease({ namespace, name: "election" });
  const [mine, theirs] = [await read(), await read()];
  const take = (lease, holderIdentity) => {
    lease.spec.holderIdentity = holderIdentity;
    lease.spec.renewTime = new k8s.V1MicroTime();
    return leases.replaceNamespacedLease({ namespace, name: "election", body: lease });
  };
  await take(mine, "second");
  assert.equal((await refused(409, take(theirs, "third"))).reason, "Conflict");
  assert.equal((await read()).spec.holderIdentity, "second");
}

async function execute(pod) {
  const { metadata, spec } = await core.readNamespacedPod({ namespace: "default", name: pod });
  const container = spec.containers[0].name;
  const [out, err, input] = [new PassThrough(), new PassThrough(), new PassThrough()];
  const said = { out: "", err: "" };
  out.on("data", (bytes) => (said.out += bytes));
  err.on("data", (bytes) => (said.err += bytes));
  const ended = new Promise((resolve, reject) => {
    new k8s.Exec(config)
      .exec(metadata.namespace, pod, container, ["sh", "-c", "read line; echo $line; echo err >&2; exit 3"], out, err, input, false, resolve)
      .then(() => input.write("hello\n"), reject);
  });
  const status = await within(ended, "exec");
  assert.deepEqual(said, { out: "hello\n", err: "err\n" });
  assert.equal(status.reason, "NonZeroExitCode");
  assert.deepEqual(status.details.causes, [{ reason: "ExitCode", message: "3" }]);
  const log = new PassThrough();
  await new k8s.Log(config).log(metadata.namespace, pod, container, log, { tailLines: 1 });
  const [line] = await within(once(log, "data"), "log");
  assert.equal(String(line).trim(), "ready");
}

const steps = { createAndList, watchAndResume, bookmarks, informer, patches, serverSideApply, customObjects, leaseOfOne };
const pod = process.argv[2];
if (pod) steps.execute = () => execute(pod);
await core.createNamespace({ body: { metadata: { name: NAMESPACE } } });
for (const [name, step] of Object.entries(steps)) {
  const started = Date.now();
  try {
    await step();
  } catch (error) {
    console.log(`failed: ${name}`);
    throw error;
  }
  console.log(`ok: ${name} (${Date.now() - started} ms)`);
}
await core.deleteNamespace({ name: NAMESPACE });
console.log("done");
process.exit(0);
