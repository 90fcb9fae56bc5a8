//! A row per rule of the less frequent kinds: what is refused on creation, and what may not change later.

use crate::support::{cluster, doc};
use serde_json::{Value, json};

const CSI_DRIVERS: &str = "storage.k8s.io/v1/csidrivers";
const CSI_NODES: &str = "storage.k8s.io/v1/csinodes";
const CAPACITIES: &str = "storage.k8s.io/v1/csistoragecapacities";
const ATTACHMENTS: &str = "storage.k8s.io/v1/volumeattachments";
const ATTRIBUTES: &str = "storage.k8s.io/v1/volumeattributesclasses";
const CLASSES: &str = "storage.k8s.io/v1/storageclasses";
const RUNTIMES: &str = "node.k8s.io/v1/runtimeclasses";
const INGRESSES: &str = "networking.k8s.io/v1/ingresses";
const INGRESS_CLASSES: &str = "networking.k8s.io/v1/ingressclasses";
const POLICIES: &str = "networking.k8s.io/v1/networkpolicies";
const CIDRS: &str = "networking.k8s.io/v1/servicecidrs";
const SCALERS: &str = "autoscaling/v2/horizontalpodautoscalers";
const JOBS: &str = "batch/v1/jobs";

/// A valid object of each kind, to be spoilt in one place.
fn sample(of: &str) -> Value {
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "web"}]}});
    let mut sample = match of {
        CSI_DRIVERS => json!({"spec": {}}),
        CSI_NODES => {
            json!({"spec": {"drivers": [{"name": "csi.example.com", "nodeID": "n1", "topologyKeys": ["zone"]}]}})
        }
        CAPACITIES => json!({"storageClassName": "fast", "capacity": "1Gi"}),
        ATTACHMENTS => {
            json!({"spec": {"attacher": "csi.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv"}}})
        }
        ATTRIBUTES => json!({"driverName": "csi.example.com", "parameters": {"iops": "1"}}),
        CLASSES => json!({"provisioner": "csi.example.com"}),
        RUNTIMES => json!({"handler": "runc"}),
        INGRESSES => {
            json!({"spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}})
        }
        INGRESS_CLASSES => json!({"spec": {"controller": "example.com/ingress"}}),
        POLICIES => {
            json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}})
        }
        CIDRS => json!({"spec": {"cidrs": ["10.7.0.0/16"]}}),
        SCALERS => {
            json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}}})
        }
        JOBS => json!({"spec": {"template": pod, "completionMode": "Indexed", "completions": 3}}),
        _ => panic!("no sample of {of}"),
    };
    sample["metadata"] = json!({"name": "a"});
    sample
}

#[tokio::test]
async fn a_rule_each() {
    let cluster = cluster().await;
    let rows = [
        (
            CSI_DRIVERS,
            "spec.fsGroupPolicy",
            json!("Some"),
            "spec.fsGroupPolicy: Unsupported value: \"Some\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
        ),
        (
            CSI_DRIVERS,
            "spec.tokenRequests",
            json!([{"audience": "a"}, {"audience": "a"}]),
            "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
        ),
        (
            CSI_DRIVERS,
            "spec.tokenRequests",
            json!([{"audience": "a", "expirationSeconds": 5}]),
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
        ),
        (
            CSI_DRIVERS,
            "spec.volumeLifecycleModes",
            json!(["Brief"]),
            "spec.volumeLifecycleModes[0]: Unsupported value: \"Brief\"",
        ),
        (
            CSI_NODES,
            "spec.drivers",
            json!([{"name": "d", "nodeID": ""}]),
            "spec.drivers[0].nodeID: Required value",
        ),
        (
            CSI_NODES,
            "spec.drivers",
            json!([{"name": "d", "nodeID": "n"}, {"name": "d", "nodeID": "n"}]),
            "spec.drivers[1].name: Duplicate value: \"d\"",
        ),
        (
            CAPACITIES,
            "storageClassName",
            json!("Not A Name"),
            "storageClassName: Invalid value: \"Not A Name\"",
        ),
        (
            CAPACITIES,
            "capacity",
            json!("-1"),
            "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            ATTACHMENTS,
            "spec.source",
            json!({}),
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
        ),
        (ATTACHMENTS, "spec.attacher", json!(""), "spec.attacher: Required value"),
        (
            ATTRIBUTES,
            "parameters",
            json!({}),
            "parameters: Required value: must contain at least one key/value pair",
        ),
        (
            CLASSES,
            "allowedTopologies",
            json!([{"matchLabelExpressions": [{"key": "zone", "values": []}]}]),
            "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
        ),
        (
            CLASSES,
            "allowedTopologies",
            json!([{"matchLabelExpressions": [{"key": "z", "values": ["a", "b"]}]}, {"matchLabelExpressions": [{"key": "z", "values": ["b", "a"]}]}]),
            "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"",
        ),
        (RUNTIMES, "handler", json!("Run C"), "handler: Invalid value: \"Run C\""),
        (
            RUNTIMES,
            "scheduling",
            json!({"tolerations": [{"key": "k", "operator": "Exists"}, {"key": "k", "operator": "Exists"}]}),
            "scheduling.tolerations[1]: Duplicate value",
        ),
        (
            INGRESSES,
            "spec.defaultBackend",
            json!({"service": {"name": "web"}}),
            "spec.defaultBackend: Required value: port name or number is required",
        ),
        (
            INGRESSES,
            "spec.defaultBackend",
            json!({}),
            "spec.defaultBackend: Invalid value: \"\": resource or service backend is required",
        ),
        (
            INGRESSES,
            "spec.tls",
            json!([{"secretName": "A B"}]),
            "spec.tls[0].secretName: Invalid value: \"A B\"",
        ),
        (
            INGRESS_CLASSES,
            "spec.controller",
            json!("ingress"),
            "spec.controller: Invalid value: \"ingress\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        (
            INGRESS_CLASSES,
            "spec.parameters",
            json!({"kind": "K", "name": "n", "scope": "Namespace"}),
            "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'",
        ),
        (
            INGRESS_CLASSES,
            "spec.parameters",
            json!({"kind": "K", "name": "n", "namespace": "x"}),
            "spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'",
        ),
        (
            POLICIES,
            "spec.ingress",
            json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}]),
            "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
        ),
        (
            POLICIES,
            "spec.ingress",
            json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}]}]),
            "must be a strict subset of `cidr`",
        ),
        (
            POLICIES,
            "spec.ingress",
            json!([{"ports": [{"port": 90, "endPort": 80}]}]),
            "spec.ingress[0].ports[0].endPort: Invalid value: 90: must be greater than or equal to `port`",
        ),
        (
            CIDRS,
            "spec.cidrs",
            json!(["10.7.0.0/16", "10.8.0.0/16"]),
            "may specify no more than one IP for each IP family",
        ),
        (
            SCALERS,
            "spec.maxReplicas",
            json!(0),
            "spec.maxReplicas: Required value: must be set and greater than 0",
        ),
        (
            SCALERS,
            "spec.metrics",
            json!([{"type": "Pods"}]),
            "spec.metrics[0].pods: Required value: must populate information for the given metric source",
        ),
        (
            SCALERS,
            "spec.metrics",
            json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]),
            "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
        ),
        (
            SCALERS,
            "spec.metrics",
            json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 0}}}]),
            "averageUtilization: Invalid value: 0: must be greater than 0",
        ),
        (
            SCALERS,
            "spec.behavior",
            json!({"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}}),
            "spec.behavior.scaleDown.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
        ),
        (
            SCALERS,
            "spec.behavior",
            json!({"scaleUp": {"stabilizationWindowSeconds": 3601}}),
            "must be less than or equal to 3600",
        ),
        (
            JOBS,
            "spec.podFailurePolicy",
            json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]}),
            "spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
        ),
        (
            JOBS,
            "spec.podFailurePolicy",
            json!({"rules": [{"action": "FailJob", "onExitCodes": {"containerName": "x", "operator": "In", "values": [1]}}]}),
            "must be one of the container or initContainer names in the pod template",
        ),
        (
            JOBS,
            "spec.podFailurePolicy",
            json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 1]}}]}),
            "must be ordered",
        ),
        (
            JOBS,
            "spec.podFailurePolicy",
            json!({"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [2]}}]}),
            "requires the backoffLimitPerIndex to be set",
        ),
        (
            JOBS,
            "spec.successPolicy",
            json!({"rules": []}),
            "spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified",
        ),
        (
            JOBS,
            "spec.successPolicy",
            json!({"rules": [{"succeededIndexes": "0-3"}]}),
            "error parsing succeededIndexes: too large index: \"3\"",
        ),
        (
            JOBS,
            "spec.successPolicy",
            json!({"rules": [{"succeededIndexes": "0-1", "succeededCount": 3}]}),
            "must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
        ),
        (
            JOBS,
            "spec.maxFailedIndexes",
            json!(1),
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
        ),
        (JOBS, "spec.managedBy", json!("me"), "must be a domain-prefixed path"),
        (JOBS, "metadata.name", json!("a".repeat(62)), "will not able to create pod with invalid DNS label"),
    ];
    for (of, path, value, wanted) in rows {
        let mut object = doc(sample(of));
        object.set(path, value.clone());
        match cluster.create(of, object.into_value()).await {
            Err(status) => {
                assert_eq!(status.code, 422, "{of} {path} {value}: {status}");
                assert!(status.message.contains(wanted), "{of} {path} {value}: {status}");
            }
            Ok(_) => panic!("{of} {path} {value} was taken"),
        }
    }
}

#[tokio::test]
async fn what_stays() {
    let cluster = cluster().await;
    for (of, path, value, wanted) in [
        (
            CSI_DRIVERS,
            "spec.attachRequired",
            json!(false),
            Some("spec.attachedRequired: Invalid value: false: field is immutable"),
        ),
        (CSI_DRIVERS, "spec.podInfoOnMount", json!(true), None),
        (
            CSI_NODES,
            "spec.drivers",
            json!([{"name": "csi.example.com", "nodeID": "n2"}]),
            Some("spec.drivers: Invalid value"),
        ),
        (
            CSI_NODES,
            "spec.drivers",
            json!([{"name": "csi.example.com", "nodeID": "n1", "topologyKeys": ["zone"], "allocatable": {"count": 3}}]),
            None,
        ),
        (
            CAPACITIES,
            "storageClassName",
            json!("slow"),
            Some("storageClassName: Invalid value: \"slow\": field is immutable"),
        ),
        (CAPACITIES, "capacity", json!("2Gi"), None),
        (ATTACHMENTS, "spec.nodeName", json!("n2"), Some("field is immutable")),
        (
            ATTRIBUTES,
            "parameters",
            json!({"iops": "2"}),
            Some("parameters: Forbidden: updates to parameters are forbidden."),
        ),
        (
            CLASSES,
            "provisioner",
            json!("other"),
            Some("provisioner: Invalid value: \"other\": field is immutable"),
        ),
        (CLASSES, "allowVolumeExpansion", json!(true), None),
        (
            RUNTIMES,
            "handler",
            json!("gvisor"),
            Some("handler: Invalid value: \"gvisor\": field is immutable"),
        ),
        (
            INGRESS_CLASSES,
            "spec.controller",
            json!("example.com/other"),
            Some("spec.controller: Invalid value: \"example.com/other\": field is immutable"),
        ),
        (
            CIDRS,
            "spec.cidrs",
            json!(["10.8.0.0/16"]),
            Some("spec.cidrs[0]: Invalid value: \"10.8.0.0/16\": field is immutable"),
        ),
        (CIDRS, "spec.cidrs", json!(["10.7.0.0/16", "fd00::/112"]), None),
        (SCALERS, "spec.maxReplicas", json!(4), None),
    ] {
        let mut sample = sample(of);
        sample["metadata"] = json!({"generateName": "a-"});
        let mut made = cluster.create(of, sample).await.unwrap();
        made.set(path, value.clone());
        let refused = cluster.update(of, made).await.err().map(|status| status.message);
        match (wanted, refused) {
            (None, None) => {}
            (Some(wanted), Some(message)) if message.contains(wanted) => {}
            (wanted, message) => panic!("{of} {path} {value}: wanted {wanted:?}, got {message:?}"),
        }
    }
}

#[tokio::test]
async fn who_may_be_put_without_a_version_or_before_it_exists() {
    let cluster = cluster().await;
    let services = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}});
    for (of, value, creates, blind) in [
        ("services", services, true, true),
        ("endpoints", json!({"metadata": {"name": "a"}}), true, true),
        ("limitranges", json!({"metadata": {"name": "a"}, "spec": {"limits": []}}), true, true),
        ("configmaps", json!({"metadata": {"name": "a"}}), false, true),
        (RUNTIMES, sample(RUNTIMES), true, false),
        (CSI_DRIVERS, sample(CSI_DRIVERS), false, false),
        (CSI_NODES, sample(CSI_NODES), false, false),
        (CLASSES, sample(CLASSES), false, true),
        (INGRESS_CLASSES, sample(INGRESS_CLASSES), false, true),
    ] {
        assert_eq!(cluster.update(of, doc(value.clone())).await.is_ok(), creates, "{of} creates");
        if !creates {
            cluster.create(of, value.clone()).await.unwrap();
        }
        let mut again = doc(value);
        again.set("metadata.labels", json!({"x": "y"}));
        assert_eq!(cluster.update(of, again).await.is_ok(), blind, "{of} without a version");
    }
}

#[tokio::test]
async fn a_job_that_rests_may_be_placed_anew() {
    let cluster = cluster().await;
    let container = |extra: Value| json!([{"name": "c", "image": "web", "resources": extra}]);
    let more = json!({"requests": {"cpu": "1"}});
    for (suspended, started, marked, path, value, taken) in [
        (true, false, false, "nodeSelector", json!({"a": "b"}), true),
        (true, false, false, "containers", container(more.clone()), true),
        (true, false, false, "containers", json!([{"name": "c", "image": "other"}]), false),
        (
            true,
            false,
            false,
            "affinity",
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}}),
            false,
        ),
        (true, true, false, "nodeSelector", json!({"a": "b"}), false),
        (true, true, true, "nodeSelector", json!({"a": "b"}), true),
        (true, true, true, "containers", container(more.clone()), true),
        (false, false, false, "containers", container(more.clone()), false),
    ] {
        let mut job = sample(JOBS);
        job["metadata"] = json!({"generateName": "j-"});
        job["spec"]["suspend"] = suspended.into();
        let mut made = cluster.create(JOBS, job).await.unwrap();
        if started {
            made.set("status.startTime", "2026-11-30T21:00:00Z");
        }
        if marked {
            made.set("status.conditions", json!([{"type": "Suspended", "status": "True"}]));
        }
        if started {
            made = cluster.status(JOBS, made).await.unwrap();
        }
        let mut spec = made.get("spec.template.spec").cloned().unwrap();
        match (path, &value) {
            // Defaulted members stay as they are.
            ("containers", Value::Array(given)) => {
                for (name, value) in given[0].as_object().unwrap() {
                    spec["containers"][0][name] = value.clone();
                }
            }
            _ => spec[path] = value.clone(),
        }
        made.set("spec.template.spec", spec);
        let refused = cluster.update(JOBS, made).await.err().map(|status| status.message);
        assert_eq!(refused.is_none(), taken, "{suspended} {started} {marked} {path} {value}: {refused:?}");
        assert!(refused.is_none_or(|why| why.contains("field is immutable")));
    }
}

#[tokio::test]
async fn an_indexed_job_grows_in_step() {
    let cluster = cluster().await;
    for (completions, parallelism, wanted) in [
        (4, 4, None),
        (3, 2, None),
        (
            4,
            2,
            Some("spec.completions: Invalid value: 4: can only be modified in tandem with spec.parallelism"),
        ),
    ] {
        let mut job = sample(JOBS);
        job["metadata"] = json!({"generateName": "j-"});
        let mut made = cluster.create(JOBS, job).await.unwrap();
        made.set("spec.completions", completions);
        made.set("spec.parallelism", parallelism);
        let refused = cluster.update(JOBS, made).await.err().map(|status| status.message);
        match (wanted, refused) {
            (None, None) => {}
            (Some(wanted), Some(message)) if message.ends_with(wanted) => {}
            (wanted, refused) => panic!("{completions} {parallelism}: wanted {wanted:?}, got {refused:?}"),
        }
    }
}

#[tokio::test]
async fn what_is_warned_of() {
    let cluster = cluster().await;
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "web"}],
        "nodeSelector": {"failure-domain.beta.kubernetes.io/zone": "a"}}});
    let service = |spec: Value| json!({"spec": spec});
    let volume = json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Recycle", "nfs": {"server": "s", "path": "/p"}}});
    let mut class = sample(CLASSES);
    class["allowedTopologies"] =
        json!([{"matchLabelExpressions": [{"key": "beta.kubernetes.io/os", "values": ["linux"]}]}]);
    let mut runtime = sample(RUNTIMES);
    runtime["scheduling"] = json!({"nodeSelector": {"beta.kubernetes.io/arch": "arm64"}});
    let mut ingress = sample(INGRESSES);
    ingress["metadata"]["annotations"] = json!({"kubernetes.io/ingress.class": "x"});
    let mut quiet = ingress.clone();
    quiet["spec"]["ingressClassName"] = "x".into();
    let job = sample(JOBS);
    let spread = json!({"spec": {"containers": [{"name": "c", "image": "web"}], "topologySpreadConstraints":
        [{"maxSkew": 1, "topologyKey": "failure-domain.beta.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}]}});
    let near = json!({"spec": {"containers": [{"name": "c", "image": "web"}], "affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]}]}}}}});
    for (of, name, value, wanted) in [
        (
            "pods",
            "l",
            spread,
            "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
        ),
        (
            "pods",
            "m",
            near,
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ),
        (
            "pods",
            "a",
            pod,
            "spec.nodeSelector[failure-domain.beta.kubernetes.io/zone]: deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
        ),
        (
            "services",
            "b",
            service(json!({"clusterIP": "None", "sessionAffinity": "ClientIP"})),
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            "services",
            "c",
            service(json!({"ports": [{"port": 80}], "trafficDistribution": "PreferClose"})),
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
        ("services", "d", service(json!({"ports": [{"port": 80}]})), ""),
        (
            "persistentvolumes",
            "e",
            volume,
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
        ),
        (
            CLASSES,
            "f",
            class,
            "allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ),
        (
            RUNTIMES,
            "g",
            runtime,
            "scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        ),
        (
            INGRESSES,
            "h",
            ingress,
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead",
        ),
        (INGRESSES, "i", quiet, ""),
        (JOBS, "j", job.clone(), ""),
        (
            JOBS,
            "k",
            {
                let mut job = job;
                job["spec"]["completions"] = 200_000.into();
                job["spec"]["parallelism"] = 20_000.into();
                job
            },
            "spec: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
        ),
    ] {
        let mut value = doc(value);
        value.set("metadata.name", name);
        cluster.ctx.warnings.take();
        cluster.create(of, value.into_value()).await.unwrap();
        let wanted: &[&str] = if wanted.is_empty() { &[] } else { &[wanted] };
        assert_eq!(cluster.ctx.warnings.take(), wanted, "{of} {name}");
    }
}
