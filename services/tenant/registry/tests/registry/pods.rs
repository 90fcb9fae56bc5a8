//! What a pod may say, and what may change once it is there.

use crate::support::{cluster, doc};
use api_machinery::Document;
use serde_json::{Value, json};

fn pod(change: impl FnOnce(&mut Document)) -> Value {
    let mut pod = doc(json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "web"}]}}));
    change(&mut pod);
    pod.into_value()
}

fn container(extra: Value) -> Value {
    let mut container = json!({"name": "c", "image": "web"});
    if let (Value::Object(container), Value::Object(extra)) = (&mut container, extra) {
        container.extend(extra);
    }
    json!([container])
}

#[tokio::test]
async fn specs_are_checked_as_upstream_checks_them() {
    let cluster = cluster().await;
    for (path, value, wanted) in [
        ("spec.containers", json!([]), "spec.containers: Required value"),
        ("spec.containers", json!([{"name": "c"}]), "spec.containers[0].image: Required value"),
        (
            "spec.containers",
            json!([{"name": "C", "image": "x"}]),
            "spec.containers[0].name: Invalid value: \"C\": a lowercase RFC 1123 label must consist of",
        ),
        (
            "spec.containers",
            json!([{"name": "c", "image": "x"}, {"name": "c", "image": "x"}]),
            "spec.containers[1].name: Duplicate value: \"c\"",
        ),
        (
            "spec.containers",
            container(json!({"imagePullPolicy": "Sometimes"})),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            "spec.containers",
            container(json!({"ports": [{"containerPort": 70000}]})),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            "spec.containers",
            container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            "spec.containers",
            container(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            "spec.containers",
            container(json!({"livenessProbe": {}})),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            "spec.containers",
            container(json!({"livenessProbe": {"exec": {"command": ["x"]}, "successThreshold": 2}})),
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            "spec.containers",
            container(json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]})),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.x\"",
        ),
        (
            "spec.containers",
            container(json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}})),
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ),
        ("spec.restartPolicy", json!("Maybe"), "spec.restartPolicy: Unsupported value: \"Maybe\""),
        (
            "spec.dnsPolicy",
            json!("None"),
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        ),
        ("spec.hostname", json!("a.b"), "spec.hostname: Invalid value: \"a.b\""),
        (
            "spec.activeDeadlineSeconds",
            json!(0),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (
            "spec.volumes",
            json!([{"name": "v", "secret": {}}]),
            "spec.volumes[0].secret.secretName: Required value",
        ),
        (
            "spec.volumes",
            json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
            "may not specify more than 1 volume type",
        ),
        (
            "spec.tolerations",
            json!([{"operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]),
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ),
        (
            "spec.affinity",
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}),
            "topologyKey: Required value: can not be empty",
        ),
        (
            "spec.topologySpreadConstraints",
            json!([{"maxSkew": 0, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]),
            "maxSkew: Invalid value: 0: must be greater than 0",
        ),
        (
            "spec.nodeSelector",
            json!({"a b": "c"}),
            "spec.nodeSelector: Invalid value: \"a b\": name part must consist of",
        ),
        (
            "metadata.labels",
            json!({"a": "-"}),
            "metadata.labels[a]: Invalid value: \"-\": a valid label must be",
        ),
        (
            "spec.initContainers",
            json!([{"name": "c", "image": "x"}]),
            "spec.initContainers[0].name: Duplicate value: \"c\"",
        ),
    ] {
        let status = cluster.create("pods", pod(|pod| pod.set(path, value.clone()))).await.unwrap_err();
        assert_eq!(status.code, 422, "{path} {value}: {status}");
        assert!(status.message.contains(wanted), "{path} {value}: {status}");
    }
    let status = cluster
        .create(
            "pods",
            pod(|pod| pod.set("spec.containers", container(json!({"resources": {"limits": {"cpu": "x"}}})))),
        )
        .await
        .unwrap_err();
    assert_eq!(status.code, 400);
    assert!(status.message.contains("quantities must match the regular expression"), "{status}");
}

#[tokio::test]
async fn defaults_read_as_upstreams() {
    let cluster = cluster().await;
    let given = pod(|pod| {
        pod.set(
            "spec.containers",
            container(json!({"ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                "readinessProbe": {"httpGet": {"port": 80}}})),
        );
        pod.set("spec.volumes", json!([{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]));
    });
    let made = cluster.create("pods", given).await.unwrap();
    assert_eq!(
        made.spec().cloned().unwrap_or_default(),
        json!({
            "containers": [{"name": "c", "image": "web", "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                    "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}]
        })
    );
    assert_eq!(made.get_str("status.qosClass"), Some("Guaranteed"));
}

#[tokio::test]
async fn little_of_a_pod_may_change() {
    let cluster = cluster().await;
    let made = cluster.create("pods", pod(|_| {})).await.unwrap();
    for (path, value, wanted) in [
        ("metadata.labels", json!({"a": "b"}), None),
        ("spec.activeDeadlineSeconds", json!(60), None),
        ("spec.tolerations", json!([{"key": "k", "operator": "Exists"}]), None),
        (
            "spec.hostNetwork",
            json!(true),
            Some("pod updates may not change fields other than `spec.containers[*].image`"),
        ),
        ("spec.containers", json!([]), Some("pod updates may not add or remove containers")),
        ("spec.nodeName", json!("n1"), Some("pod updates may not change fields other than")),
    ] {
        let mut now = cluster.get("pods", "default/p").await.unwrap();
        now.set(path, value);
        let got = cluster.update("pods", now).await.map(|_| ()).map_err(|status| status.message);
        match wanted {
            None => assert_eq!(got, Ok(()), "{path}"),
            Some(wanted) => assert!(got.clone().unwrap_err().contains(wanted), "{path}: {got:?}"),
        }
    }
    let mut now = cluster.get("pods", "default/p").await.unwrap();
    let Some(Value::Array(containers)) = now.get_mut("spec.containers") else { panic!("no containers") };
    containers[0]["image"] = "web:2".into();
    let now = cluster.update("pods", now).await.unwrap();
    assert_eq!(now.get_array("spec.containers")[0]["image"], "web:2");
    assert!(now.generation() > made.generation());

    let mut debug = now.clone();
    debug.set("spec.ephemeralContainers", json!([{"name": "d", "image": "sh"}]));
    let debug = cluster.sub("pods", "ephemeralcontainers", debug).await.unwrap();
    assert_eq!(debug.get_array("spec.ephemeralContainers")[0]["imagePullPolicy"], "Always");
    let mut gone = debug.clone();
    gone.remove("spec.ephemeralContainers");
    let status = cluster.sub("pods", "ephemeralcontainers", gone).await.unwrap_err();
    assert!(status.message.contains("existing ephemeral containers \"d\" may not be removed"), "{status}");
}

#[tokio::test]
async fn other_kinds_have_their_rules() {
    let cluster = cluster().await;
    for (of, value, wanted) in [
        (
            "secrets",
            json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
            "data[tls.key]: Required value",
        ),
        (
            "configmaps",
            json!({"metadata": {"name": "c"}, "data": {"a/b": "x"}}),
            "data[a/b]: Invalid value: \"a/b\": a valid config key must consist of",
        ),
        (
            "rbac.authorization.k8s.io/v1/rolebindings",
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "Robot", "name": "x"}]}),
            "subjects[0].kind: Unsupported value: \"Robot\"",
        ),
        (
            "rbac.authorization.k8s.io/v1/roles",
            json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"]}]}),
            "rules[0].verbs: Required value: verbs must contain at least one value",
        ),
        (
            "batch/v1/jobs",
            json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}}),
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ),
        (
            "batch/v1/cronjobs",
            json!({"metadata": {"name": "j"}, "spec": {"schedule": "often", "jobTemplate": {"spec": {"template":
                {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}}}}),
            "spec.schedule: Invalid value: \"often\": expected exactly 5 fields, found 1: [often]",
        ),
        (
            "networking.k8s.io/v1/ingresses",
            json!({"metadata": {"name": "i"}, "spec": {}}),
            "either `defaultBackend` or `rules` must be specified",
        ),
        (
            "scheduling.k8s.io/v1/priorityclasses",
            json!({"metadata": {"name": "p"}, "value": 2_000_000_000}),
            "maximum allowed value of a user defined priority is 1000000000",
        ),
        (
            "policy/v1/poddisruptionbudgets",
            json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}}),
            "minAvailable and maxUnavailable cannot be both set",
        ),
        (
            "coordination.k8s.io/v1/leases",
            json!({"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "discovery.k8s.io/v1/endpointslices",
            json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}]}),
            "may not be in the loopback range",
        ),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"name": "c"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
    ] {
        let status = cluster.create(of, value).await.unwrap_err();
        assert_eq!(status.code, 422, "{of}: {status}");
        assert!(status.message.contains(wanted), "{of}: {status}");
    }
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "x"}]}}}});
    let job = cluster.create("batch/v1/jobs", job).await.unwrap();
    let uid = job.uid().to_owned();
    assert_eq!(
        job.get("spec.selector.matchLabels"),
        Some(&json!({"batch.kubernetes.io/controller-uid": uid}))
    );
    assert_eq!(job.get("spec.template.metadata.labels.job-name"), Some(&json!("j")));
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "hello"}});
    let secret = cluster.create("secrets", secret).await.unwrap();
    assert_eq!((secret.get("data.a"), secret.get("stringData")), (Some(&json!("aGVsbG8=")), None));
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
        "scaleTargetRef": {"kind": "Deployment", "name": "web"}}});
    cluster.create("autoscaling/v1/horizontalpodautoscalers", scaler).await.unwrap();
    let newer = cluster.get("autoscaling/v2/horizontalpodautoscalers", "default/h").await.unwrap();
    assert_eq!(newer.get_array("spec.metrics")[0]["resource"]["target"]["averageUtilization"], 50);
}

#[tokio::test]
async fn label_keys_become_part_of_the_selectors() {
    let cluster = cluster().await;
    let given = pod(|pod| {
        pod.set("metadata.labels", json!({"app": "web", "hash": "1"}));
        let selector = json!({"matchLabels": {"app": "web"}});
        pod.set("spec.topologySpreadConstraints", json!([{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector, "matchLabelKeys": ["hash", "absent"]}]));
        pod.set(
            "spec.affinity",
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "host", "labelSelector": selector, "mismatchLabelKeys": ["hash"]}]}}),
        );
    });
    let made = cluster.create("pods", given).await.unwrap();
    assert_eq!(
        made.get_array("spec.topologySpreadConstraints")[0]["labelSelector"]["matchExpressions"],
        json!([{"key": "hash", "operator": "In", "values": ["1"]}])
    );
    let anti = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(
        made.get_array(anti)[0]["labelSelector"]["matchExpressions"],
        json!([{"key": "hash", "operator": "NotIn", "values": ["1"]}])
    );
}
