//! The default admission chain, through the registry.

use std::sync::Arc;

use crate::support::{Cluster, cluster_with};
use api_machinery::Document;
use serde_json::{Value, json};
use tenant_client::{DeleteOptions, UserInfo};
use tenant_registry::Context;

async fn cluster() -> Cluster {
    let cluster = cluster_with(Arc::new(tenant_admission::default_chain())).await;
    for namespace in ["default", "kube-system"] {
        cluster
            .create("serviceaccounts", json!({"metadata": {"name": "default", "namespace": namespace}}))
            .await
            .unwrap();
    }
    cluster
}

fn pod(name: &str, change: impl FnOnce(&mut Document)) -> Value {
    let mut pod = crate::support::doc(json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "web"}]}}));
    change(&mut pod);
    pod.into_value()
}

#[tokio::test]
async fn a_pod_gets_what_the_cluster_gives_it() {
    let cluster = cluster().await;
    let made = cluster.create("pods", pod("p", |_| {})).await.unwrap();
    assert_eq!(made.get_str("spec.serviceAccountName"), Some("default"));
    assert_eq!(made.get_i64("spec.priority"), Some(0));
    assert_eq!(made.get_str("spec.preemptionPolicy"), Some("PreemptLowerPriority"));
    let volume = &made.get_array("spec.volumes")[0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(volume["projected"]["sources"].as_array().map(Vec::len), Some(3));
    let mount = &made.get_array("spec.containers")[0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    let tolerated: Vec<&str> =
        made.get_array("spec.tolerations").iter().map(|one| one["key"].as_str().unwrap()).collect();
    assert_eq!(tolerated, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
    // Writing it back as it came changes nothing.
    let again = cluster.update("pods", made.clone()).await.unwrap();
    assert_eq!(again.resource_version(), made.resource_version());
    let declined = cluster
        .create("pods", pod("q", |pod| pod.set("spec.automountServiceAccountToken", false)))
        .await
        .unwrap();
    assert!(declined.get("spec.volumes").is_none());
    let critical = cluster
        .create("pods", pod("r", |pod| pod.set("spec.priorityClassName", "system-node-critical")))
        .await
        .unwrap();
    assert_eq!(critical.get_i64("spec.priority"), Some(2_000_001_000));
}

#[tokio::test(start_paused = true)]
async fn refusals() {
    let cluster = cluster().await;
    for (of, value, code, wanted) in [
        (
            "pods",
            pod("p", |pod| pod.set("metadata.namespace", "nowhere")),
            404,
            "namespaces \"nowhere\" not found",
        ),
        (
            "pods",
            pod("p", |pod| pod.set("spec.serviceAccountName", "ghost")),
            403,
            "pods \"p\" is forbidden: error looking up service account default/ghost: serviceaccount \"ghost\" not found",
        ),
        (
            "pods",
            pod("p", |pod| pod.set("spec.priorityClassName", "none")),
            403,
            "pods \"p\" is forbidden: no PriorityClass with name none was found",
        ),
        (
            "pods",
            pod("p", |pod| pod.set("metadata.namespace", "kube-public")),
            403,
            "error looking up service account kube-public/default",
        ),
    ] {
        let status = cluster.create(of, value).await.unwrap_err();
        assert_eq!(status.code, code, "{status}");
        assert!(status.message.contains(wanted), "{status}");
    }
    let status = cluster.delete("namespaces", "kube-system", DeleteOptions::default()).await.unwrap_err();
    assert_eq!(status.message, "namespaces \"kube-system\" is forbidden: this namespace may not be deleted");
    cluster.create("namespaces", json!({"metadata": {"name": "blue"}})).await.unwrap();
    cluster.delete("namespaces", "blue", DeleteOptions::default()).await.unwrap();
    let late = json!({"metadata": {"name": "m", "namespace": "blue"}});
    let status = cluster.create("configmaps", late).await.unwrap_err();
    assert_eq!(
        status.message,
        "configmaps \"m\" is forbidden: unable to create new content in namespace blue because it is being terminated"
    );
    assert_eq!(status.details.unwrap_or_default().causes[0].reason, "NamespaceTerminating");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quota_is_never_overdrawn() {
    let cluster = Arc::new(cluster().await);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5", "pods": "1", "requests.cpu": "1"}}});
    let mut quota = cluster.create("resourcequotas", quota).await.unwrap();
    quota.set(
        "status",
        json!({"hard": {"configmaps": "5", "pods": "1", "requests.cpu": "1"},
        "used": {"configmaps": "0", "pods": "0", "requests.cpu": "0"}}),
    );
    cluster.status("resourcequotas", quota).await.unwrap();
    let mut asking = tokio::task::JoinSet::new();
    for at in 0..20 {
        let cluster = cluster.clone();
        asking.spawn(async move {
            cluster.create("configmaps", json!({"metadata": {"name": format!("m{at}")}})).await.map(|_| ())
        });
    }
    let outcomes = asking.join_all().await;
    assert_eq!(outcomes.iter().filter(|one| one.is_ok()).count(), 5);
    let refused = outcomes.into_iter().find_map(Result::err).unwrap();
    assert!(
        refused.message.ends_with("is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=5, limited: configmaps=5"),
        "{refused}"
    );
    let used = cluster.get("resourcequotas", "default/q").await.unwrap();
    assert_eq!(used.get("status.used.configmaps"), Some(&json!("5")));
    let status = cluster.create("pods", pod("p", |_| {})).await.unwrap_err();
    assert_eq!(status.message, "pods \"p\" is forbidden: failed quota: q: must specify requests.cpu for: c");
    let asks = |name: &str, cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        pod(name, |pod| {
            pod.set("spec.containers", json!([{"name": "c", "image": "web", "resources": resources}]))
        })
    };
    let status = cluster.create("pods", asks("p", "2")).await.unwrap_err();
    assert!(
        status.message.contains("requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1"),
        "{status}"
    );
    cluster.create("pods", asks("p", "500m")).await.unwrap();
    let status = cluster.create("pods", asks("p2", "100m")).await.unwrap_err();
    assert!(status.message.contains("requested: pods=1, used: pods=1, limited: pods=1"), "{status}");
}

#[tokio::test]
async fn limit_ranges_fill_and_bound() {
    let cluster = cluster().await;
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]}});
    cluster.create("limitranges", range).await.unwrap();
    let made = cluster.create("pods", pod("p", |_| {})).await.unwrap();
    assert_eq!(
        made.get_array("spec.containers")[0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        made.annotation("kubernetes.io/limit-ranger"),
        Some("LimitRanger plugin set: cpu request for container c; cpu limit for container c")
    );
    let greedy = json!([{"name": "c", "image": "web", "resources": {"limits": {"cpu": "2"}}}]);
    let status =
        cluster.create("pods", pod("g", |pod| pod.set("spec.containers", greedy))).await.unwrap_err();
    assert!(status.message.contains("maximum cpu usage per Container is 1, but limit is 2"), "{status}");
}

#[tokio::test]
async fn namespaces_say_how_privileged_their_pods_may_be() {
    let cluster = cluster().await;
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"});
    cluster.create("namespaces", json!({"metadata": {"name": "safe", "labels": labels}})).await.unwrap();
    cluster
        .create("serviceaccounts", json!({"metadata": {"name": "default", "namespace": "safe"}}))
        .await
        .unwrap();
    let host = pod("h", |pod| {
        pod.set("metadata.namespace", "safe");
        pod.set("spec.hostNetwork", true);
    });
    let status = cluster.create("pods", host).await.unwrap_err();
    assert_eq!(
        status.message,
        "pods \"h\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    cluster.ctx.warnings.take();
    cluster.create("pods", pod("p", |pod| pod.set("metadata.namespace", "safe"))).await.unwrap();
    let warned = cluster.ctx.warnings.take();
    assert!(
        warned.iter().any(|text| text
            .starts_with("would violate PodSecurity \"restricted:latest\": allowPrivilegeEscalation")),
        "{warned:?}"
    );
    let wrong =
        json!({"metadata": {"name": "bad", "labels": {"pod-security.kubernetes.io/enforce": "high"}}});
    assert_eq!(cluster.create("namespaces", wrong).await.unwrap_err().code, 422);
}

#[tokio::test]
async fn kubelets_touch_what_is_theirs() {
    let cluster = cluster().await;
    let mut user = UserInfo::component("system:node:n1");
    user.groups.push("system:nodes".to_owned());
    let kubelet =
        Cluster { registry: cluster.registry.clone(), clock: cluster.clock.clone(), ctx: Context::of(user) };
    let node = |name: &str, label: &str| json!({"metadata": {"name": name, "labels": {label: "x"}}, "status": {"capacity": {"cpu": "2"}}});
    let made = kubelet.create("nodes", node("n1", "kubernetes.io/hostname")).await.unwrap();
    assert_eq!(made.get_array("spec.taints")[0]["key"], "node.kubernetes.io/not-ready");
    assert_eq!(made.get("status.allocatable.cpu"), Some(&json!("2")));
    let status = kubelet.create("nodes", node("n2", "kubernetes.io/hostname")).await.unwrap_err();
    assert_eq!(status.message, "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"");
    let mut marked = made.clone();
    marked.set("metadata.labels", json!({"node-restriction.kubernetes.io/pool": "gold"}));
    assert!(
        kubelet
            .update("nodes", marked)
            .await
            .unwrap_err()
            .message
            .contains("is not allowed to modify labels")
    );
    let mut untainted = made;
    untainted.remove("spec.taints");
    assert!(
        kubelet
            .update("nodes", untainted)
            .await
            .unwrap_err()
            .message
            .contains("is not allowed to modify taints")
    );
    let status = kubelet.create("pods", pod("p", |pod| pod.set("spec.nodeName", "n1"))).await.unwrap_err();
    assert!(status.message.contains("can only create mirror pods"), "{status}");
}

#[tokio::test]
async fn claims_are_protected_and_classed() {
    let cluster = cluster().await;
    let class = json!({"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "example.com/disk"});
    cluster.create("storage.k8s.io/v1/storageclasses", class).await.unwrap();
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1024Mi"}}}});
    let made = cluster.create("persistentvolumeclaims", claim).await.unwrap();
    assert_eq!(made.get_str("spec.storageClassName"), Some("fast"));
    assert_eq!(made.finalizers(), ["kubernetes.io/pvc-protection"]);
    assert_eq!(made.get("spec.resources.requests.storage"), Some(&json!("1Gi")));
    let left = cluster.delete("persistentvolumeclaims", "default/c", DeleteOptions::default()).await.unwrap();
    assert!(left.is_some_and(|left| left.is_deleting()));
}

#[tokio::test]
async fn a_bound_pod_is_told_its_zone() {
    let cluster = cluster().await;
    let node =
        json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a", "other": "x"}}});
    cluster.create("nodes", node).await.unwrap();
    cluster.create("pods", pod("p", |_| {})).await.unwrap();
    let binding =
        crate::support::doc(json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}));
    let pods = crate::support::gvr("pods");
    let bound =
        cluster.registry.create_subresource(&cluster.ctx, &pods, Some("default"), "p", "binding", binding);
    bound.await.unwrap();
    let labels = cluster.get("pods", "default/p").await.unwrap().labels();
    assert_eq!(
        labels.into_iter().collect::<Vec<_>>(),
        [("topology.kubernetes.io/zone".to_owned(), "a".to_owned())]
    );
}

#[tokio::test]
async fn what_others_use_is_protected() {
    let cluster = cluster().await;
    let volume = json!({"metadata": {"name": "a"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}}});
    let claim = json!({"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let class = json!({"metadata": {"name": "a"}, "driverName": "csi.example.com", "parameters": {"a": "b"}});
    for (of, value, finalizer) in [
        ("persistentvolumes", volume, "kubernetes.io/pv-protection"),
        ("persistentvolumeclaims", claim, "kubernetes.io/pvc-protection"),
        ("storage.k8s.io/v1/volumeattributesclasses", class, "kubernetes.io/vac-protection"),
    ] {
        let made = cluster.create(of, value).await.unwrap();
        assert_eq!(made.finalizers(), [finalizer], "{of}");
    }
}
