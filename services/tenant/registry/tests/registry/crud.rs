//! Create, read, update, patch, delete: what every kind shares.

use crate::support::{Cluster, cluster, doc};
use serde_json::{Value, json};
use tenant_client::{DeleteOptions, Patch, Propagation};
use tenant_registry::{Context, FieldValidation};

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": "v"}})
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "web"}]}})
}

#[tokio::test]
async fn a_created_object_is_stamped_and_found() {
    let cluster = cluster().await;
    let created = cluster.create("configmaps", map("a")).await.unwrap();
    assert_eq!(created.namespace(), "default");
    assert_eq!(created.uid().len(), 36);
    assert_eq!(created.get_str("metadata.creationTimestamp"), Some("2026-11-30T21:00:00Z"));
    assert_eq!(cluster.get("configmaps", "default/a").await.unwrap(), created);
    let managed = &created.get_array("metadata.managedFields")[0];
    assert_eq!(
        (managed["manager"].as_str(), managed["operation"].as_str()),
        (Some("tester"), Some("Update"))
    );
}

#[tokio::test]
async fn refusals_read_as_upstreams() {
    let cluster = cluster().await;
    cluster.create("configmaps", map("a")).await.unwrap();
    for (value, code, message) in [
        (map("a"), 409, "configmaps \"a\" already exists"),
        (
            json!({"metadata": {}}),
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            json!({"metadata": {"name": "A"}}),
            422,
            "ConfigMap \"A\" is invalid: metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
        (
            json!({"metadata": {"name": "b"}, "kind": "Secret"}),
            400,
            "the object provided is unrecognized (must be of type ConfigMap): the kind in the data (Secret) does not match the expected kind (ConfigMap)",
        ),
        (
            json!({"metadata": {"name": "b"}, "apiVersion": "v2"}),
            400,
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        (
            json!({"metadata": {"name": "b", "resourceVersion": "7"}}),
            400,
            "resourceVersion should not be set on objects to be created",
        ),
    ] {
        let status = cluster.create("configmaps", value).await.unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (code, message));
    }
    let status = cluster.get("configmaps", "default/none").await.unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (404, "configmaps \"none\" not found"));
    let elsewhere = doc(json!({"metadata": {"name": "c", "namespace": "y"}}));
    let of = crate::support::gvr("configmaps");
    let status = cluster.registry.create(&cluster.ctx, &of, Some("x"), elsewhere).await.unwrap_err();
    assert_eq!(
        status.message,
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

#[tokio::test]
async fn generated_names_differ() {
    let cluster = cluster().await;
    let mut names = std::collections::HashSet::new();
    for _ in 0..20 {
        let made = cluster.create("configmaps", json!({"metadata": {"generateName": "x-"}})).await.unwrap();
        assert!(made.name().starts_with("x-") && made.name().len() == 7, "{}", made.name());
        assert!(names.insert(made.name().to_owned()));
    }
}

#[tokio::test]
async fn a_stale_revision_is_a_conflict_and_none_overwrites() {
    let cluster = cluster().await;
    let first = cluster.create("configmaps", map("a")).await.unwrap();
    let mut second = first.clone();
    second.set("data.k", "two");
    let second = cluster.update("configmaps", second).await.unwrap();
    let mut stale = first.clone();
    stale.set("data.k", "three");
    let status = cluster.update("configmaps", stale.clone()).await.unwrap_err();
    assert_eq!(status.code, 409);
    assert_eq!(
        status.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    stale.remove("metadata.resourceVersion");
    let third = cluster.update("configmaps", stale.clone()).await.unwrap();
    assert_ne!(third.resource_version(), second.resource_version());
    // What changes nothing makes no revision.
    let again = cluster.update("configmaps", stale).await.unwrap();
    assert_eq!(again.resource_version(), third.resource_version());
    let mut other = third.clone();
    other.set("metadata.uid", "0190163d-8694-739b-aea5-966c26f8ad91");
    assert_eq!(cluster.update("configmaps", other).await.unwrap_err().code, 409);
}

#[tokio::test]
async fn status_and_spec_keep_to_themselves() {
    let cluster = cluster().await;
    let deployment = json!({"metadata": {"name": "web"}, "status": {"replicas": 9},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "web"}]}}}});
    let made = cluster.create("apps/v1/deployments", deployment).await.unwrap();
    assert_eq!(made.generation(), 1);
    assert_eq!(made.get("status"), Some(&json!({})));
    let mut change = made.clone();
    change.set("spec.replicas", 3);
    change.set("status.replicas", 3);
    let changed = cluster.update("apps/v1/deployments", change).await.unwrap();
    assert_eq!((changed.generation(), changed.get("status.replicas")), (2, None));
    let mut status = changed.clone();
    status.set("spec.replicas", 7);
    status.set("status.replicas", 3);
    let status = cluster.status("apps/v1/deployments", status).await.unwrap();
    assert_eq!(status.get_i64("spec.replicas"), Some(3));
    assert_eq!((status.generation(), status.get_i64("status.replicas")), (2, Some(3)));
    let scale = doc(json!({"metadata": {"name": "web"}, "spec": {"replicas": 5}}));
    let scale = cluster.sub("apps/v1/deployments", "scale", scale).await.unwrap();
    assert_eq!((scale.kind(), scale.get_i64("spec.replicas")), ("Scale", Some(5)));
    assert_eq!(scale.get_str("status.selector"), Some("a=b"));
    assert_eq!(cluster.get("apps/v1/deployments", "default/web").await.unwrap().generation(), 3);
}

#[tokio::test]
async fn patches_of_every_type() {
    let cluster = cluster().await;
    cluster.create("configmaps", map("a")).await.unwrap();
    for (patch, wanted) in [
        (Patch::Merge(json!({"data": {"k": null, "m": "1"}})), json!({"m": "1"})),
        (Patch::Json(json!([{"op": "add", "path": "/data/j", "value": "2"}])), json!({"j": "2", "m": "1"})),
        (Patch::Strategic(json!({"data": {"s": "3", "j": null}})), json!({"m": "1", "s": "3"})),
    ] {
        let patched = cluster.patch("configmaps", "default/a", patch).await.unwrap();
        assert_eq!(patched.get("data"), Some(&wanted));
    }
    let apply = |data: Value, manager: &str, force| Patch::Apply {
        document: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}),
        manager: manager.to_owned(),
        force,
    };
    let status =
        cluster.patch("configmaps", "default/a", apply(json!({"s": "4"}), "ssa", false)).await.unwrap_err();
    assert_eq!(status.code, 409, "{status}");
    let applied =
        cluster.patch("configmaps", "default/a", apply(json!({"s": "4"}), "ssa", true)).await.unwrap();
    assert_eq!(applied.get("data"), Some(&json!({"m": "1", "s": "4"})));
    // Applying what is missing creates it.
    let new = Patch::Apply {
        document: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}, "data": {"x": "y"}}),
        manager: "ssa".to_owned(),
        force: false,
    };
    let made = cluster.patch("configmaps", "default/n", new.clone()).await.unwrap();
    assert_eq!(made.get_array("metadata.managedFields")[0]["operation"], "Apply");
    let again = cluster.patch("configmaps", "default/n", new).await.unwrap();
    assert_eq!(again.resource_version(), made.resource_version());
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}, "data": {"z": "1"}}));
    assert_eq!(cluster.patch("configmaps", "default/a", stale).await.unwrap_err().code, 409);
    let strict = Context { field_validation: FieldValidation::Strict, ..cluster.ctx.clone() };
    let unknown = Patch::Merge(json!({"dta": {}}));
    let of = crate::support::gvr("configmaps");
    let asked = cluster.registry.patch(&strict, &of, Some("default"), "a", &unknown);
    let status = asked.await.unwrap_err();
    assert!(status.message.contains("strict decoding error: unknown field \"dta\""), "{status}");
}

#[tokio::test]
async fn dry_runs_store_nothing() {
    let cluster = cluster().await;
    let dry = Cluster { ctx: Context { dry_run: true, ..cluster.ctx.clone() }, ..cluster };
    let before = dry.registry.group().space().revision();
    assert_eq!(dry.create("configmaps", map("a")).await.unwrap().name(), "a");
    assert_eq!(dry.registry.group().space().revision(), before);
    assert_eq!(dry.get("configmaps", "default/a").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn deleting_waits_for_finalizers() {
    let cluster = cluster().await;
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/x"]}});
    cluster.create("configmaps", held).await.unwrap();
    let pending = cluster.delete("configmaps", "default/a", DeleteOptions::default()).await.unwrap().unwrap();
    assert!(pending.is_deleting());
    assert_eq!(pending.get_i64("metadata.deletionGracePeriodSeconds"), Some(0));
    let mut more = pending.clone();
    more.set("metadata.finalizers", json!(["example.com/x", "example.com/y"]));
    let status = cluster.update("configmaps", more).await.unwrap_err();
    assert!(status.message.contains("no new finalizers can be added"), "{status}");
    let status = cluster.create("configmaps", map("a")).await.unwrap_err();
    assert_eq!(status.message, "object is being deleted: configmaps \"a\" already exists");
    let mut free = pending;
    free.metadata_mut().remove("finalizers");
    cluster.update("configmaps", free).await.unwrap();
    assert_eq!(cluster.get("configmaps", "default/a").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn propagation_becomes_finalizers() {
    let cluster = cluster().await;
    for (propagation, wanted) in [
        (Some(Propagation::Orphan), Some(json!(["orphan"]))),
        (Some(Propagation::Foreground), Some(json!(["foregroundDeletion"]))),
        (Some(Propagation::Background), None),
        (None, None),
    ] {
        cluster.create("configmaps", map("a")).await.unwrap();
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        let left = cluster.delete("configmaps", "default/a", options).await.unwrap();
        assert_eq!(left.as_ref().and_then(|left| left.get("metadata.finalizers")), wanted.as_ref());
        if let Some(mut left) = left {
            left.metadata_mut().remove("finalizers");
            cluster.update("configmaps", left).await.unwrap();
        }
    }
    let wrong = DeleteOptions { uid: Some("x".to_owned()), ..DeleteOptions::default() };
    cluster.create("configmaps", map("a")).await.unwrap();
    let status = cluster.delete("configmaps", "default/a", wrong).await.unwrap_err();
    assert!(status.message.contains("the UID in the precondition (x) does not match"), "{status}");
}

#[tokio::test]
async fn pods_leave_with_grace() {
    let cluster = cluster().await;
    let made = cluster.create("pods", pod("p")).await.unwrap();
    assert_eq!(made.get_str("status.phase"), Some("Pending"));
    assert_eq!(made.get_str("status.qosClass"), Some("BestEffort"));
    assert_eq!(made.generation(), 1);
    // Not scheduled: gone at once.
    assert!(cluster.delete("pods", "default/p", DeleteOptions::default()).await.unwrap().is_none());

    cluster.create("pods", pod("p")).await.unwrap();
    let binding = doc(json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}));
    let pods = crate::support::gvr("pods");
    let bind = |body| {
        cluster.registry.create_subresource(&cluster.ctx, &pods, Some("default"), "p", "binding", body)
    };
    bind(binding.clone()).await.unwrap();
    let bound = cluster.get("pods", "default/p").await.unwrap();
    assert_eq!(bound.get_str("spec.nodeName"), Some("n1"));
    assert_eq!(bound.get_array("status.conditions")[0]["type"], "PodScheduled");
    let status = bind(binding).await.unwrap_err();
    assert_eq!(
        status.message,
        "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n1\""
    );

    let pending = cluster.delete("pods", "default/p", DeleteOptions::default()).await.unwrap().unwrap();
    assert_eq!(pending.get_str("metadata.deletionTimestamp"), Some("2026-11-30T21:00:30Z"));
    assert_eq!(pending.get_i64("metadata.deletionGracePeriodSeconds"), Some(30));
    assert_eq!(pending.generation(), bound.generation() + 1);
    let again = cluster.delete("pods", "default/p", DeleteOptions::default()).await.unwrap().unwrap();
    assert_eq!(again.resource_version(), pending.resource_version());
    let quicker = DeleteOptions { grace_period_seconds: Some(5), ..DeleteOptions::default() };
    let quicker = cluster.delete("pods", "default/p", quicker).await.unwrap().unwrap();
    assert_eq!(quicker.get_str("metadata.deletionTimestamp"), Some("2026-11-30T21:00:05Z"));
    let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    assert!(cluster.delete("pods", "default/p", now).await.unwrap().is_none());
    assert_eq!(cluster.get("pods", "default/p").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn namespaces_end_when_finalized() {
    let cluster = cluster().await;
    cluster.create("namespaces", json!({"metadata": {"name": "blue"}})).await.unwrap();
    let ending = cluster.delete("namespaces", "blue", DeleteOptions::default()).await.unwrap().unwrap();
    assert_eq!(ending.get_str("status.phase"), Some("Terminating"));
    assert!(ending.is_deleting());
    let mut empty = ending;
    empty.remove("spec.finalizers");
    cluster.sub("namespaces", "finalize", empty).await.unwrap();
    assert_eq!(cluster.get("namespaces", "blue").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn evictions_respect_the_budget() {
    let cluster = cluster().await;
    let mut running = cluster
        .create("pods", {
            let mut pod = pod("p");
            pod["metadata"]["labels"] = json!({"app": "web"});
            pod["spec"]["nodeName"] = "n1".into();
            pod
        })
        .await
        .unwrap();
    running.set("status", json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
    cluster.status("pods", running).await.unwrap();
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    let budget = cluster.create("policy/v1/poddisruptionbudgets", budget).await.unwrap();
    let pods = crate::support::gvr("pods");
    let evict = || {
        let body = doc(json!({"metadata": {"name": "p"}}));
        cluster.registry.create_subresource(&cluster.ctx, &pods, Some("default"), "p", "eviction", body)
    };
    let mut status = budget;
    status.set("status", json!({"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0, "expectedPods": 1}));
    let status = cluster.status("policy/v1/poddisruptionbudgets", status).await.unwrap();
    let refused = evict().await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    );
    let mut more = status;
    more.set("status.disruptionsAllowed", 1);
    cluster.status("policy/v1/poddisruptionbudgets", more).await.unwrap();
    evict().await.unwrap();
    let leaving = cluster.get("pods", "default/p").await.unwrap();
    assert!(leaving.is_deleting());
    assert!(leaving.get_array("status.conditions").iter().any(|one| one["type"] == "DisruptionTarget"));
    let left = cluster.get("policy/v1/poddisruptionbudgets", "default/b").await.unwrap();
    assert_eq!(left.get_i64("status.disruptionsAllowed"), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_at_once_all_count() {
    let cluster = std::sync::Arc::new(cluster().await);
    cluster.create("configmaps", map("a")).await.unwrap();
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "web"}]}}}});
    cluster.create("apps/v1/deployments", deployment).await.unwrap();
    let mut patching = tokio::task::JoinSet::new();
    for at in 0..30 {
        let cluster = cluster.clone();
        patching.spawn(async move {
            let patch = Patch::Merge(json!({"data": {format!("k{at}"): "v"}}));
            cluster.patch("configmaps", "default/a", patch).await.unwrap();
            let scale = Patch::Merge(json!({"spec": {"replicas": at}}));
            let of = crate::support::gvr("apps/v1/deployments");
            let scaled = cluster.registry.patch_subresource(
                &cluster.ctx,
                &of,
                Some("default"),
                "web",
                "scale",
                &scale,
            );
            scaled.await.unwrap();
        });
    }
    patching.join_all().await;
    let all = cluster.get("configmaps", "default/a").await.unwrap();
    assert_eq!(all.get("data").and_then(Value::as_object).map(serde_json::Map::len), Some(31));
}

#[tokio::test]
async fn an_ip_address_is_named_by_what_it_holds() {
    let cluster = cluster().await;
    for (name, refused) in [
        ("255.255.255.255", None),
        ("fe80::42:1dff:fe84:f9e2", None),
        ("web", Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")),
        ("FE80::1", Some("must be in canonical form (\"fe80::1\")")),
        ("::ffff:1.2.3.4", Some("must not be an IPv4-mapped IPv6 address")),
    ] {
        let value =
            json!({"metadata": {"name": name}, "spec": {"parentRef": {"resource": "r", "name": "n"}}});
        let made = cluster.create("networking.k8s.io/v1/ipaddresses", value).await;
        let wanted = refused.map(|why| {
            format!("IPAddress.networking.k8s.io {name:?} is invalid: metadata.name: Invalid value: {name:?}: {why}")
        });
        assert_eq!(made.err().map(|status| status.message), wanted);
    }
}

#[tokio::test]
async fn device_requests_ask_for_one_device_and_keep_to_it() {
    let cluster = cluster().await;
    let claim = |request: Value| json!({"metadata": {"generateName": "c-"}, "spec": {"devices": {"requests": [request]}}});
    for (request, wanted) in [
        (
            json!({"name": "r", "exactly": {"deviceClassName": "gpu"}}),
            Ok(
                json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}),
            ),
        ),
        (
            json!({"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "gpu", "allocationMode": "All"}]}),
            Ok(
                json!({"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "gpu", "allocationMode": "All"}]}),
            ),
        ),
        (
            json!({"name": "r"}),
            Err(
                "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
            ),
        ),
        (
            json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All", "count": 2}}),
            Err(
                "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'",
            ),
        ),
    ] {
        let made = cluster.create("resource.k8s.io/v1/resourceclaims", claim(request)).await;
        match wanted {
            Ok(wanted) => assert_eq!(made.unwrap().get_array("spec.devices.requests"), [wanted]),
            Err(why) => {
                let message = made.unwrap_err().message;
                assert!(message.ends_with(why), "{message}");
            }
        }
    }
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let mut made = cluster.create("resource.k8s.io/v1/resourceclaims", claim(request)).await.unwrap();
    made.set("metadata.labels", json!({"a": "b"}));
    let mut made = cluster.update("resource.k8s.io/v1/resourceclaims", made).await.unwrap();
    made.set("spec.devices.requests", json!([]));
    let refused = cluster.update("resource.k8s.io/v1/resourceclaims", made).await.unwrap_err();
    assert!(refused.message.ends_with("field is immutable"), "{refused}");
}

#[tokio::test]
async fn labels_and_annotations_change_along_with_some_subresources() {
    let cluster = cluster().await;
    let pem = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        "-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----",
    );
    let request = json!({"metadata": {"name": "a"},
        "spec": {"request": pem, "signerName": "example.com/s", "usages": ["client auth"]}});
    cluster.create("certificates.k8s.io/v1/certificatesigningrequests", request).await.unwrap();
    cluster.create("namespaces", json!({"metadata": {"name": "a"}})).await.unwrap();
    let conditions = json!([{"type": "Approved", "status": "True", "reason": "r"}]);
    for (of, subresource, path, part) in [
        ("certificates.k8s.io/v1/certificatesigningrequests", "approval", "status.conditions", conditions),
        ("namespaces", "finalize", "spec.finalizers", json!(["example.com/wait"])),
    ] {
        let mut object = cluster.get(of, "a").await.unwrap();
        object.set("metadata.annotations", json!({"x": "y"}));
        object.set(path, part);
        let put = cluster.sub(of, subresource, object).await.unwrap();
        let seen = put.get("metadata.annotations") == Some(&json!({"x": "y"}));
        assert_eq!((seen, put.get_array(path).len()), (true, 1), "{of}/{subresource}");
        assert_eq!(cluster.get(of, "a").await.unwrap(), put, "{of}/{subresource}");
    }
}
