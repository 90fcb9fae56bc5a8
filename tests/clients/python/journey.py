"""What people do with the official Python client, against a cluster of ours.

Run as `journey.py [POD]` with KUBECONFIG set; POD is one whose first container has a shell. Each step says its
name and what it took; the first that does not come out as upstream's server would ends the run.

Not here: the server's every rule; this is about what the client makes of its answers.
"""

import datetime
import os
import sys
import threading
import time
from queue import Queue

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.stream import stream

NAMESPACE = "python"


def equal(found, wanted):
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def refused(code, call, *args, **kwargs):
    """The call must fail with this code; gives the error."""
    try:
        call(*args, **kwargs)
    except ApiException as error:
        equal(error.status, code)
        return error
    raise AssertionError(f"accepted instead of refused with {code}")


def config_map(name, data=None, **meta):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, **meta), data=data)


def deployment(name, images, replicas=0):
    labels = {"app": name}
    containers = [client.V1Container(name=key, image=image) for key, image in images.items()]
    return client.V1Deployment(
        metadata=client.V1ObjectMeta(name=name),
        spec=client.V1DeploymentSpec(
            replicas=replicas,
            selector=client.V1LabelSelector(match_labels=labels),
            template=client.V1PodTemplateSpec(
                metadata=client.V1ObjectMeta(labels=labels),
                spec=client.V1PodSpec(containers=containers),
            ),
        ),
    )


def create_and_list(core):
    for number in range(5):
        made = core.create_namespaced_config_map(
            NAMESPACE, config_map(f"c{number}", {"n": str(number)}, labels={"odd": str(number % 2)})
        )
        equal(made.data, {"n": str(number)})
    error = refused(409, core.create_namespaced_config_map, NAMESPACE, config_map("c0"))
    equal(error.reason, "Conflict")
    odd = core.list_namespaced_config_map(NAMESPACE, label_selector="odd=1")
    equal([item.metadata.name for item in odd.items], ["c1", "c3"])
    # In pages, and never one twice.
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, limit=2, _continue=token, label_selector="odd")
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    equal(names, [f"c{number}" for number in range(5)])
    table = core.list_namespaced_config_map(
        NAMESPACE, _preload_content=False, _request_timeout=20, field_selector="metadata.name=c2"
    )
    equal(table.headers["content-type"], "application/json")
    refused(404, core.read_namespaced_config_map, "none", NAMESPACE)
    refused(422, core.create_namespaced_config_map, NAMESPACE, config_map("Not A Name"))


def watch_and_resume(core):
    listed = core.list_namespaced_config_map(NAMESPACE)
    start = listed.metadata.resource_version
    core.create_namespaced_config_map(NAMESPACE, config_map("seen", {"a": "1"}))
    core.patch_namespaced_config_map("seen", NAMESPACE, {"data": {"a": "2"}})
    core.delete_namespaced_config_map("seen", NAMESPACE)

    def events(since, wanted):
        watcher, found = watch.Watch(), []
        for event in watcher.stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version=since, timeout_seconds=20
        ):
            found.append(event)
            if len(found) == wanted:
                watcher.stop()
        return found

    found = events(start, 3)
    equal([event["type"] for event in found], ["ADDED", "MODIFIED", "DELETED"])
    equal(found[1]["object"].data, {"a": "2"})
    # From the middle: what came before does not come again.
    rest = events(found[0]["object"].metadata.resource_version, 2)
    equal([event["type"] for event in rest], ["MODIFIED", "DELETED"])
    # One from the future is refused, in words that informers know.
    ahead = str(int(start) + 1_000_000)
    error = refused(504, core.list_namespaced_config_map, NAMESPACE, resource_version=ahead, timeout_seconds=1)
    if "Too large resource version" not in error.body:
        raise AssertionError(error.body)


def bookmarks(core):
    watcher, kinds = watch.Watch(), []
    # A streamed list ends with a bookmark that says so.
    for event in watcher.stream(
        core.list_namespaced_config_map,
        NAMESPACE,
        send_initial_events=True,
        allow_watch_bookmarks=True,
        resource_version_match="NotOlderThan",
        timeout_seconds=20,
    ):
        kinds.append(event["type"])
        if event["type"] == "BOOKMARK":
            equal(event["raw_object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true")
            watcher.stop()
    listed = core.list_namespaced_config_map(NAMESPACE)
    equal(kinds, ["ADDED"] * len(listed.items) + ["BOOKMARK"])


def patches(core, apps):
    core.create_namespaced_config_map(NAMESPACE, config_map("patched", {"a": "1", "b": "2"}))
    operations = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "x"},
        {"op": "remove", "path": "/data/b"},
    ]
    equal(core.patch_namespaced_config_map("patched", NAMESPACE, operations).data, {"a": "x"})
    # Its own test no longer holds.
    refused(422, core.patch_namespaced_config_map, "patched", NAMESPACE, operations)
    merged = core.patch_namespaced_config_map(
        "patched",
        NAMESPACE,
        {"data": {"a": None, "c": "3"}},
        _content_type="application/merge-patch+json",
    )
    equal(merged.data, {"c": "3"})
    apps.create_namespaced_deployment(NAMESPACE, deployment("two", {"one": "one:1", "two": "two:1"}))
    # Containers are merged by name with a strategic patch, and replaced with a plain one.
    change = {"spec": {"template": {"spec": {"containers": [{"name": "two", "image": "two:2"}]}}}}
    for content_type, images in [
        ("application/strategic-merge-patch+json", {"one": "one:1", "two": "two:2"}),
        ("application/merge-patch+json", {"two": "two:2"}),
    ]:
        patched = apps.patch_namespaced_deployment("two", NAMESPACE, change, _content_type=content_type)
        found = {item.name: item.image for item in patched.spec.template.spec.containers}
        equal(found, images)
    scaled = apps.patch_namespaced_deployment_scale("two", NAMESPACE, {"spec": {"replicas": 0}})
    equal((scaled.kind, scaled.status.selector), ("Scale", "app=two"))


def replace_with_a_version(core):
    read = core.create_namespaced_config_map(NAMESPACE, config_map("replaced", {"a": "1"}))
    read.data = {"a": "2"}
    core.replace_namespaced_config_map("replaced", NAMESPACE, read)
    error = refused(409, core.replace_namespaced_config_map, "replaced", NAMESPACE, read)
    if "the object has been modified" not in error.body:
        raise AssertionError(error.body)


def server_side_apply(api):
    maps = dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")

    def apply(manager, data, force=None):
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "applied", "namespace": NAMESPACE},
        }
        if data is not None:
            body["data"] = data
        return maps.server_side_apply(body=body, field_manager=manager, force_conflicts=force)

    apply("ann", {"a": "1", "b": "1"})
    error = refused(409, apply, "bob", {"a": "2"})
    if 'conflict with \\"ann\\": .data.a' not in error.body:
        raise AssertionError(error.body)
    forced = apply("bob", {"a": "2"}, force=True)
    equal(forced.data.to_dict(), {"a": "2", "b": "1"})
    # What she leaves out and nobody else owns goes; what is his by now stays.
    equal(apply("ann", None).data.to_dict(), {"a": "2"})
    equal(sorted({entry.manager for entry in maps.get("applied", NAMESPACE).metadata.managedFields}), ["bob"])


def custom_objects(api):
    extensions, custom = client.ApiextensionsV1Api(api), client.CustomObjectsApi(api)
    schema = client.V1JSONSchemaProps(
        type="object",
        properties={
            "spec": client.V1JSONSchemaProps(
                type="object",
                properties={
                    "size": client.V1JSONSchemaProps(type="integer", minimum=1),
                    "colour": client.V1JSONSchemaProps(type="string", default="red"),
                },
            ),
            "status": client.V1JSONSchemaProps(
                type="object", properties={"ready": client.V1JSONSchemaProps(type="boolean")}
            ),
        },
    )
    name = "widgets.python.example.com"
    extensions.create_custom_resource_definition(
        client.V1CustomResourceDefinition(
            metadata=client.V1ObjectMeta(name=name),
            spec=client.V1CustomResourceDefinitionSpec(
                group="python.example.com",
                names=client.V1CustomResourceDefinitionNames(kind="Widget", plural="widgets"),
                scope="Namespaced",
                versions=[
                    client.V1CustomResourceDefinitionVersion(
                        name="v1",
                        served=True,
                        storage=True,
                        schema=client.V1CustomResourceValidation(open_apiv3_schema=schema),
                        subresources=client.V1CustomResourceSubresources(status={}),
                    )
                ],
            ),
        )
    )
    for event in watch.Watch().stream(
        extensions.list_custom_resource_definition, field_selector=f"metadata.name={name}", timeout_seconds=20
    ):
        conditions = event["object"].status.conditions if event["object"].status else None
        if any(item.type == "Established" and item.status == "True" for item in conditions or []):
            break
    else:
        raise AssertionError("the definition is never established")

    where = ("python.example.com", "v1", NAMESPACE, "widgets")

    def widget(size):
        return {
            "apiVersion": "python.example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "w"},
            "spec": {"size": size},
        }

    made = custom.create_namespaced_custom_object(*where, widget(3))
    equal(made["spec"], {"size": 3, "colour": "red"})
    refused(422, custom.patch_namespaced_custom_object, *where, "w", {"spec": {"size": 0}})
    custom.patch_namespaced_custom_object_status(*where, "w", {"status": {"ready": True}})
    patched = custom.patch_namespaced_custom_object(*where, "w", {"spec": {"size": 4}})
    equal((patched["spec"]["size"], patched["status"]), (4, {"ready": True}))
    listed = custom.list_namespaced_custom_object(*where)
    equal((listed["kind"], len(listed["items"])), ("WidgetList", 1))
    custom.delete_namespaced_custom_object(*where, "w")
    refused(404, custom.get_namespaced_custom_object, *where, "w")
    extensions.delete_custom_resource_definition(name)


class LeaseLock:
    """The package only has a lock on ConfigMaps; this is the same on a Lease, which everybody else uses."""

    def __init__(self, api, name, namespace, identity):
        self.api, self.name, self.namespace, self.identity = api, name, namespace, identity
        self.lease, self.retired = None, False

    def get(self, name, namespace):
        try:
            self.lease = self.api.read_namespaced_lease(name, namespace)
        except ApiException as error:
            return False, error
        spec = self.lease.spec
        times = (str(spec.acquire_time), str(spec.renew_time))
        return True, LeaderElectionRecord(spec.holder_identity, str(spec.lease_duration_seconds), *times)

    def spec(self, record):
        now = datetime.datetime.now(datetime.timezone.utc)
        return client.V1LeaseSpec(
            holder_identity=record.holder_identity,
            lease_duration_seconds=int(record.lease_duration),
            acquire_time=now,
            renew_time=now,
        )

    def create(self, name, namespace, election_record):
        lease = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=self.spec(election_record))
        return self.write(self.api.create_namespaced_lease, namespace, lease)

    def update(self, name, namespace, updated_record):
        if self.retired:
            return False
        self.lease.spec = self.spec(updated_record)
        return self.write(self.api.replace_namespaced_lease, name, namespace, self.lease)

    @staticmethod
    def write(call, *args):
        try:
            call(*args)
            return True
        except ApiException as error:
            # Somebody was faster.
            equal(error.status, 409)
            return False


def leader_election(api):
    leases, said = client.CoordinationV1Api(api), Queue()
    locks = {}
    for name in ["first", "second"]:
        lock = locks[name] = LeaseLock(leases, "election", NAMESPACE, name)
        elected = electionconfig.Config(
            lock,
            lease_duration=3,
            renew_deadline=2,
            retry_period=1,
            onstarted_leading=lambda name=name: said.put((name, "leads")),
            onstopped_leading=lambda name=name: said.put((name, "stopped")),
        )
        threading.Thread(target=leaderelection.LeaderElection(elected).run, daemon=True).start()
        if name == "first":
            equal(said.get(timeout=20), ("first", "leads"))
    time.sleep(4)
    # Renewed for longer than it lasts: nobody else got it.
    equal(said.qsize(), 0)
    equal(leases.read_namespaced_lease("election", NAMESPACE).spec.holder_identity, "first")
    locks["first"].retired = True
    equal(sorted(said.get(timeout=20) for _ in range(2)), [("first", "stopped"), ("second", "leads")])
    locks["second"].retired = True
    equal(said.get(timeout=20), ("second", "stopped"))


def execute(core, pod):
    def run(command, **kwargs):
        return stream(
            core.connect_get_namespaced_pod_exec,
            pod,
            "default",
            command=command,
            stderr=True,
            stdin=False,
            stdout=True,
            tty=False,
            **kwargs,
        )

    equal(run(["sh", "-c", "echo out"]), "out\n")
    # The client only hears of the exit code when frames come one by one.
    session = run(["sh", "-c", "echo out; echo err >&2; exit 3"], _preload_content=False)
    session.run_forever(timeout=20)
    equal((session.read_stdout(), session.read_stderr(), session.returncode), ("out\n", "err\n", 3))
    # Raw: what this version of the client makes a string of is Python's notation of the bytes.
    log = core.read_namespaced_pod_log(pod, "default", tail_lines=1, _preload_content=False)
    equal(log.data, b"ready\n")


def main():
    config.load_kube_config()
    api = client.ApiClient()
    core, apps = client.CoreV1Api(api), client.AppsV1Api(api)
    version = client.VersionApi(api).get_code()
    print(f"server {version.git_version}")
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    steps = [
        ("create and list", lambda: create_and_list(core)),
        ("watch and resume", lambda: watch_and_resume(core)),
        ("bookmarks", lambda: bookmarks(core)),
        ("patches", lambda: patches(core, apps)),
        ("replace with a version", lambda: replace_with_a_version(core)),
        ("server-side apply", lambda: server_side_apply(api)),
        ("custom objects", lambda: custom_objects(api)),
        ("leader election", lambda: leader_election(api)),
    ]
    if len(sys.argv) > 1:
        steps.append(("exec and logs", lambda: execute(core, sys.argv[1])))
    for name, step in steps:
        started = time.monotonic()
        try:
            step()
        except BaseException:
            print(f"failed: {name}", flush=True)
            raise
        print(f"ok: {name} ({time.monotonic() - started:.1f} s)", flush=True)
    core.delete_namespace(NAMESPACE)
    print("done", flush=True)
    # Threads of the election may be asleep.
    os._exit(0)


main()
