use api_kinds::kinds;
use api_machinery::{Document, Gvr, Object};
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-11-30T12:00:00Z";

fn object(mut body: Value) -> Object {
    body["metadata"]["name"] = "x".into();
    body["metadata"]["creationTimestamp"] = "2026-11-30T11:00:00Z".into();
    Object::from_document(&Document::from_value(body).expect("an object")).expect("storable")
}

/// Cells but the name, joined by `|`.
fn row(group: &'static str, version: &'static str, resource: &'static str, body: Value) -> String {
    let info = kinds().resource(&Gvr::new(group, version, resource)).expect("a built-in resource");
    let cells = cells(info, &object(body), NOW.parse().expect("a time"));
    assert_eq!(cells.len(), columns(info).len(), "{resource}");
    let shown = cells.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned));
    shown.skip(1).collect::<Vec<_>>().join("|")
}

fn pod(spec: Value, status: Value, deleted: bool) -> String {
    let mut body = json!({"metadata": {}, "spec": spec, "status": status});
    if deleted {
        body["metadata"]["deletionTimestamp"] = NOW.into();
    }
    let row = row("", "v1", "pods", body);
    row.split('|').take(3).collect::<Vec<_>>().join("|")
}

#[test]
fn a_pod_shows_what_its_containers_come_to() {
    let one = || json!({"containers": [{"name": "a"}]});
    let two = || json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let init = |policy: Value| {
        json!({"initContainers": [{"name": "i", "restartPolicy": policy}, {"name": "j"}],
            "containers": [{"name": "a"}]})
    };
    let running = json!({"name": "a", "ready": true, "state": {"running": {}}});
    let failed = json!({"name": "a", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}});
    let done = json!({"name": "b", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
    let waiting = |reason: &str| {
        json!({"name": "a", "restartCount": 3, "state": {"waiting": {"reason": reason}},
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-11-30T11:55:00Z"}}})
    };
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (spec, status, deleted, wanted) in [
        (one(), json!({"phase": "Pending"}), false, "0/1|Pending|0"),
        (one(), json!({"phase": "Running", "containerStatuses": [running]}), false, "1/1|Running|0"),
        (one(), json!({"phase": "Running", "containerStatuses": [running]}), true, "1/1|Terminating|0"),
        (one(), json!({"phase": "Succeeded"}), true, "0/1|Succeeded|0"),
        (one(), json!({"phase": "Running", "reason": "NodeLost"}), true, "0/1|Unknown|0"),
        (one(), json!({"phase": "Failed", "reason": "Evicted"}), false, "0/1|Evicted|0"),
        (
            one(),
            json!({"phase": "Running", "containerStatuses": [waiting("CrashLoopBackOff")]}),
            false,
            "0/1|CrashLoopBackOff|3 (5m ago)",
        ),
        (one(), json!({"phase": "Failed", "containerStatuses": [failed]}), false, "0/1|Error|0"),
        (
            one(),
            json!({"phase": "Failed", "containerStatuses":
                [{"name": "a", "state": {"terminated": {"exitCode": 137, "signal": 9}}}]}),
            false,
            "0/1|Signal:9|0",
        ),
        (
            two(),
            json!({"phase": "Running", "containerStatuses": [running, done], "conditions": ready}),
            false,
            "1/2|Running|0",
        ),
        (
            two(),
            json!({"phase": "Running", "containerStatuses": [done, running], "conditions": ready}),
            false,
            "1/2|Running|0",
        ),
        (two(), json!({"phase": "Running", "containerStatuses": [done, running]}), false, "1/2|NotReady|0"),
        (two(), json!({"phase": "Failed", "containerStatuses": [done, failed]}), false, "0/2|Error|0"),
        (
            init(Value::Null),
            json!({"phase": "Pending", "initContainerStatuses":
                [{"name": "i", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
            false,
            "0/1|Init:CrashLoopBackOff|2",
        ),
        (
            init(Value::Null),
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "state": {"waiting": {"reason": "PodInitializing"}}}]}),
            false,
            "0/1|Init:1/2|0",
        ),
        (
            init("Always".into()),
            json!({"phase": "Running", "initContainerStatuses": [
                {"name": "i", "ready": true, "started": true, "restartCount": 1, "state": {"running": {}}},
                {"name": "j", "restartCount": 4, "state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [running]}),
            false,
            "2/2|Running|1",
        ),
        (
            one(),
            json!({"phase": "Pending", "conditions":
                [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
            false,
            "0/1|SchedulingGated|0",
        ),
    ] {
        assert_eq!(pod(spec, status.clone(), deleted), wanted, "{status}");
    }
}

#[test]
fn every_kind_shows_what_upstream_shows() {
    let meta = || json!({});
    for (group, version, resource, body, wanted) in [
        (
            "",
            "v1",
            "nodes",
            json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.0", "kernelVersion": "6.1", "architecture": "amd64"}}}),
            "Ready,SchedulingDisabled|edge,worker|60m|v1.36.0|10.0.0.1|<none>|<unknown>|6.1 (amd64)|<unknown>",
        ),
        (
            "",
            "v1",
            "services",
            json!({"metadata": meta(), "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.5"], "selector": {"a": "b"},
                "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}}),
            "NodePort|10.96.0.5|<none>|80:30080/TCP,53/UDP|60m|a=b",
        ),
        (
            "",
            "v1",
            "services",
            json!({"metadata": meta(), "spec": {"type": "LoadBalancer"}}),
            "LoadBalancer|<none>|<pending>|<none>|60m|<none>",
        ),
        (
            "",
            "v1",
            "endpoints",
            json!({"metadata": meta(), "subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::2"}],
                "ports": [{"port": 80}, {"port": 443}]}]}),
            "10.0.0.1:80,[fd00::2]:80,10.0.0.1:443 + 1 more...|60m",
        ),
        ("", "v1", "endpoints", json!({"metadata": meta()}), "<none>|60m"),
        (
            "",
            "v1",
            "secrets",
            json!({"metadata": meta(), "type": "Opaque", "data": {"a": "", "b": ""}}),
            "Opaque|2|60m",
        ),
        (
            "",
            "v1",
            "configmaps",
            json!({"metadata": meta(), "data": {"a": ""}, "binaryData": {"b": ""}}),
            "2|60m",
        ),
        ("", "v1", "limitranges", json!({"metadata": meta()}), "2026-11-30T11:00:00Z"),
        (
            "",
            "v1",
            "persistentvolumeclaims",
            json!({"metadata": meta(), "spec": {"volumeName": "v", "storageClassName": "fast", "volumeMode": "Block"},
                "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOncePod"]}}),
            "Bound|v|1Gi|RWOP|fast|<unset>|60m|Block",
        ),
        (
            "",
            "v1",
            "resourcequotas",
            json!({"metadata": meta(), "status": {"hard": {"pods": "5", "limits.cpu": "2"}, "used": {"pods": "1"}}}),
            "pods: 1/5|limits.cpu: 0/2|60m",
        ),
        (
            "events.k8s.io",
            "v1",
            "events",
            json!({"metadata": meta(), "type": "Normal", "reason": "Started", "message": " hi ", "count": 3,
                "involvedObject": {"kind": "Pod", "name": "p"}, "source": {"component": "kubelet", "host": "n"},
                "firstTimestamp": "2026-11-30T11:50:00Z", "lastTimestamp": "2026-11-30T11:59:30Z"}),
            "Normal|Started|pod/p||kubelet, n|hi|10m|3|x",
        ),
        (
            "apps",
            "v1",
            "deployments",
            json!({"metadata": meta(),
                "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"},
                        "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]},
                    "template": {"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}},
                "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}}),
            "2/3|3|1|60m|c,d|i,j|a in (x,y),app=web",
        ),
        (
            "apps",
            "v1",
            "controllerrevisions",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d",
                "uid": "u", "controller": true}]}, "revision": 4}),
            "daemonset.apps/d|4|60m",
        ),
        (
            "batch",
            "v1",
            "jobs",
            json!({"metadata": meta(), "spec": {"completions": 2},
                "status": {"succeeded": 1, "startTime": "2026-11-30T11:59:00Z"}}),
            "Running|1/2|60s|60m|||<none>",
        ),
        (
            "batch",
            "v1",
            "cronjobs",
            json!({"metadata": meta(), "spec": {"schedule": "@daily", "suspend": false}}),
            "@daily|<none>|False|0|<none>|60m|||<none>",
        ),
        (
            "autoscaling",
            "v1",
            "horizontalpodautoscalers",
            json!({"metadata": meta(), "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}]}}),
            "Deployment/web|cpu: <unknown>/80%|<unset>|5|0|60m",
        ),
        (
            "networking.k8s.io",
            "v1",
            "ingresses",
            json!({"metadata": meta(), "spec": {"ingressClassName": "nginx", "tls": [{}],
                "rules": [{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}]},
                "status": {"loadBalancer": {"ingress": [{"hostname": "lb"}, {"ip": "1.2.3.4"}]}}}),
            "nginx|a,b,c + 1 more...|1.2.3.4,lb|80, 443|60m",
        ),
        (
            "discovery.k8s.io",
            "v1",
            "endpointslices",
            json!({"metadata": meta(), "addressType": "IPv4", "ports": [{"port": 80}],
                "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}]}),
            "IPv4|80|10.0.0.1,10.0.0.2|60m",
        ),
        ("discovery.k8s.io", "v1", "endpointslices", json!({"metadata": meta()}), "|<unset>|<unset>|60m"),
        (
            "policy",
            "v1",
            "poddisruptionbudgets",
            json!({"metadata": meta(), "spec": {"maxUnavailable": "25%"}, "status": {"disruptionsAllowed": 1}}),
            "N/A|25%|1|60m",
        ),
        (
            "rbac.authorization.k8s.io",
            "v1",
            "clusterrolebindings",
            json!({"metadata": meta(), "roleRef": {"kind": "ClusterRole", "name": "admin"},
                "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
            "ClusterRole/admin|60m|u||n/s",
        ),
        (
            "certificates.k8s.io",
            "v1",
            "certificatesigningrequests",
            json!({"metadata": meta(), "spec": {"signerName": "s", "username": "u", "expirationSeconds": 86400},
                "status": {"conditions": [{"type": "Approved", "status": "True"}], "certificate": "eA=="}}),
            "60m|s|u|24h|Approved,Issued",
        ),
        (
            "apiregistration.k8s.io",
            "v1",
            "apiservices",
            json!({"metadata": meta(), "spec": {"service": {"namespace": "n", "name": "s"}},
                "status": {"conditions": [{"type": "Available", "status": "False", "reason": "Gone"}]}}),
            "n/s|False (Gone)|60m",
        ),
        (
            "storage.k8s.io",
            "v1",
            "storageclasses",
            json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p"}),
            "p|Delete|Immediate|false|60m",
        ),
        (
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            json!({"metadata": meta()}),
            "2026-11-30T11:00:00Z",
        ),
    ] {
        assert_eq!(row(group, version, resource, body), wanted, "{resource}");
    }
}

#[test]
fn the_rarer_kinds_too() {
    let meta = || json!({});
    let template =
        || json!({"spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"disk": "ssd"}}});
    let selector = || json!({"matchLabels": {"app": "web"}});
    for (group, version, resource, body, wanted) in [
        (
            "apps",
            "v1",
            "replicasets",
            json!({"metadata": meta(), "spec": {"replicas": 2, "selector": selector(), "template": template()},
                "status": {"replicas": 2, "readyReplicas": 1}}),
            "2|2|1|60m|c|i|app=web",
        ),
        (
            "apps",
            "v1",
            "statefulsets",
            json!({"metadata": meta(), "spec": {"replicas": 2, "template": template()}, "status": {"readyReplicas": 1}}),
            "1/2|60m|c|i",
        ),
        (
            "apps",
            "v1",
            "daemonsets",
            json!({"metadata": meta(), "spec": {"selector": selector(), "template": template()},
                "status": {"desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3,
                    "updatedNumberScheduled": 2, "numberAvailable": 1}}),
            "5|4|3|2|1|disk=ssd|60m|c|i|app=web",
        ),
        (
            "",
            "v1",
            "replicationcontrollers",
            json!({"metadata": meta(), "spec": {"replicas": 1, "selector": {"b": "2", "a": "1"}, "template": template()}}),
            "1|0|0|60m|c|i|a=1,b=2",
        ),
        (
            "",
            "v1",
            "persistentvolumes",
            json!({"metadata": meta(), "spec": {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "n", "name": "c"}},
                "status": {"phase": "Bound"}}),
            "5Gi|RWO,RWX|Retain|Bound|n/c||<unset>||60m|<unset>",
        ),
        (
            "",
            "v1",
            "podtemplates",
            json!({"metadata": meta(), "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
            "c|i|a=b",
        ),
        (
            "",
            "v1",
            "componentstatuses",
            json!({"metadata": meta(), "conditions": [{"type": "Healthy", "status": "True", "message": "ok"}]}),
            "Healthy|ok|",
        ),
        ("", "v1", "namespaces", json!({"metadata": meta(), "status": {"phase": "Active"}}), "Active|60m"),
        ("", "v1", "serviceaccounts", json!({"metadata": meta()}), "60m"),
        (
            "",
            "v1",
            "services",
            json!({"metadata": meta(), "spec": {"type": "ExternalName", "externalName": "example.com"}}),
            "ExternalName|<none>|example.com|<none>|60m|<none>",
        ),
        (
            "",
            "v1",
            "services",
            json!({"metadata": meta(), "spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]},
                "status": {"loadBalancer": {"ingress": [{"ip": "2.2.2.2"}, {"ip": "1.1.1.1"}]}}}),
            "LoadBalancer|<none>|1.1.1.1,2.2.2.2,9.9.9.9|<none>|60m|<none>",
        ),
        (
            "",
            "v1",
            "events",
            json!({"metadata": meta(), "involvedObject": {"kind": "Node"}, "eventTime": "2026-11-30T11:59:00.000001Z",
                "series": {"count": 7, "lastObservedTime": "2026-11-30T11:59:50.000000Z"}, "reportingComponent": "x/y"}),
            "||node||x/y||59s|7|x",
        ),
        (
            "coordination.k8s.io",
            "v1",
            "leases",
            json!({"metadata": meta(), "spec": {"holderIdentity": "me"}}),
            "me|60m",
        ),
        (
            "scheduling.k8s.io",
            "v1",
            "priorityclasses",
            json!({"metadata": meta(), "value": 1000, "preemptionPolicy": "Never"}),
            "1000|false|60m|Never",
        ),
        ("node.k8s.io", "v1", "runtimeclasses", json!({"metadata": meta(), "handler": "runc"}), "runc|60m"),
        (
            "networking.k8s.io",
            "v1",
            "networkpolicies",
            json!({"metadata": meta(), "spec": {"podSelector": {"matchExpressions": [
                {"key": "b", "operator": "DoesNotExist"}, {"key": "a", "operator": "NotIn", "values": ["z"]}]}}}),
            "a notin (z),!b|60m",
        ),
        (
            "networking.k8s.io",
            "v1",
            "networkpolicies",
            json!({"metadata": meta(), "spec": {"podSelector": {}}}),
            "<none>|60m",
        ),
        (
            "networking.k8s.io",
            "v1",
            "ingressclasses",
            json!({"metadata": meta(), "spec": {"controller": "c", "parameters": {"apiGroup": "g", "kind": "K", "name": "n"}}}),
            "c|K.g/n|60m",
        ),
        (
            "networking.k8s.io",
            "v1",
            "ipaddresses",
            json!({"metadata": meta(), "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}}),
            "services/n/s",
        ),
        (
            "networking.k8s.io",
            "v1",
            "servicecidrs",
            json!({"metadata": meta(), "spec": {"cidrs": ["a", "b"]}}),
            "a,b|60m",
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "validatingadmissionpolicybindings",
            json!({"metadata": meta(), "spec": {"policyName": "p", "paramRef": {"name": "n"}}}),
            "p|*/n|60m",
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "validatingadmissionpolicies",
            json!({"metadata": meta(), "spec": {"validations": [{}, {}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}}),
            "2|v1/ConfigMap|60m",
        ),
        (
            "admissionregistration.k8s.io",
            "v1",
            "mutatingwebhookconfigurations",
            json!({"metadata": meta(), "webhooks": [{}]}),
            "1|60m",
        ),
        (
            "flowcontrol.apiserver.k8s.io",
            "v1",
            "prioritylevelconfigurations",
            json!({"metadata": meta(), "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 30}}}),
            "Limited|30|<none>|<none>|<none>|60m",
        ),
        (
            "flowcontrol.apiserver.k8s.io",
            "v1",
            "flowschemas",
            json!({"metadata": meta(), "spec": {"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1},
                "status": {"conditions": [{"type": "Dangling", "status": "False"}]}}),
            "exempt|1|<none>|60m|False",
        ),
        (
            "storage.k8s.io",
            "v1",
            "csidrivers",
            json!({"metadata": meta(), "spec": {"tokenRequests": [{"audience": "a"}], "volumeLifecycleModes": ["Persistent"]}}),
            "true|false|false|a|false|Persistent|60m",
        ),
        (
            "resource.k8s.io",
            "v1",
            "resourceclaims",
            json!({"metadata": {"deletionTimestamp": NOW}, "status": {"allocation": {}, "reservedFor": [{}]}}),
            "deleted,allocated,reserved|60m",
        ),
        (
            "batch",
            "v1",
            "jobs",
            json!({"metadata": meta(), "spec": {"parallelism": 3},
                "status": {"succeeded": 1, "startTime": "2026-11-30T11:59:00Z", "completionTime": "2026-11-30T11:59:10Z",
                    "conditions": [{"type": "Complete", "status": "True"}]}}),
            "Complete|1/1 of 3|10s|60m|||<none>",
        ),
        (
            "autoscaling",
            "v2",
            "horizontalpodautoscalers",
            json!({"metadata": meta(), "spec": {"scaleTargetRef": {"kind": "K", "name": "n"}, "minReplicas": 1, "maxReplicas": 2,
                "metrics": [
                    {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"averageValue": "10"}}},
                    {"type": "External", "external": {"metric": {"name": "m"}, "target": {"value": "5"}}},
                    {"type": "Object", "object": {}}]},
                "status": {"currentReplicas": 2, "currentMetrics": [{"type": "Pods", "pods": {"current": {"averageValue": "7"}}}]}}),
            "K/n|7/10, <unknown>/5 + 1 more...|1|2|2|60m",
        ),
    ] {
        assert_eq!(row(group, version, resource, body), wanted, "{resource}");
    }
}

#[test]
fn every_resource_has_as_many_cells_as_columns() {
    for info in kinds().resources() {
        let cells = cells(info, &object(json!({"metadata": {}})), NOW.parse().expect("a time"));
        assert_eq!(cells.len(), columns(info).len(), "{}", info.gvr);
        assert!(cells.contains(&"x".into()), "{}: nothing names the object", info.gvr);
    }
}

#[test]
fn durations_read_as_gos_do() {
    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;
    for (seconds, wanted) in [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 60, "3h1m"),
        (8 * HOUR + 60, "8h"),
        (48 * HOUR, "2d"),
        (2 * DAY + HOUR, "2d1h"),
        (8 * DAY + HOUR, "8d"),
        (729 * DAY, "729d"),
        (730 * DAY, "2y"),
        (731 * DAY, "2y1d"),
        (8 * 365 * DAY + DAY, "8y"),
    ] {
        let shown = human_duration(jiff::SignedDuration::from_secs(seconds));
        // -1 s exactly is still within what clocks differ by.
        assert_eq!(shown, wanted, "{seconds}");
    }
}

#[test]
fn a_table_is_one_document() {
    let info = kinds().resource(&Gvr::core("pods")).expect("pods");
    let pod = object(json!({"metadata": {}, "status": {"phase": "Succeeded"}}));
    let head = Head {
        api_version: "meta.k8s.io/v1",
        resource_version: Some(7),
        continue_token: None,
        remaining: Some(3),
        columns: Some(columns(info)),
    };
    let now = NOW.parse().expect("a time");
    let table = write(&head, info, [&pod, &pod], now, |object, out| {
        if object.header.revision == 0 {
            out.extend_from_slice(b"{\"kind\":\"Pod\"}");
        }
    });
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    for (pointer, wanted) in [
        ("/kind", json!("Table")),
        ("/apiVersion", json!("meta.k8s.io/v1")),
        ("/metadata", json!({"resourceVersion": "7", "remainingItemCount": 3})),
        ("/columnDefinitions/0/format", json!("name")),
        ("/columnDefinitions/8/priority", json!(1)),
        ("/rows/1/cells/0", json!("x")),
        ("/rows/0/conditions/0/reason", json!("Succeeded")),
        ("/rows/0/object/kind", json!("Pod")),
    ] {
        assert_eq!(table.pointer(pointer), Some(&wanted), "{pointer}");
    }
    let bare = write(&Head { columns: None, ..head }, info, [&pod], now, |_, _| {});
    let bare: Value = serde_json::from_slice(&bare).expect("JSON");
    assert_eq!((&bare["columnDefinitions"], &bare["rows"][0]["object"]), (&Value::Null, &Value::Null));
}
