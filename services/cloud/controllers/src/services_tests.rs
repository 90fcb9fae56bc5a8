use std::collections::BTreeMap;

use api_machinery::{Document, Object};
use cloud_interface::Taint;
use serde_json::json;

use super::*;

fn service(change: impl FnOnce(&mut Value)) -> ServiceView {
    let mut value = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "default", "uid": "0f3f6c1e-0000-4000-8000-000000000001",
            "resourceVersion": "7", "creationTimestamp": "2026-12-01T00:00:00Z",
        },
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}],
        },
        "status": {"loadBalancer": {}},
    });
    change(&mut value);
    ServiceView::of(&Object::from_document(&Document::from_value(value).unwrap()).unwrap())
}

#[test]
fn who_needs_a_balancer() {
    let finalizer = |value: &mut Value| value["metadata"]["finalizers"] = json!([FINALIZER]);
    type Change = Box<dyn Fn(&mut Value)>;
    let rows: Vec<(&str, Change, Need)> = vec![
        ("one of type LoadBalancer", Box::new(|_| {}), Need::Balancer),
        ("one that has it", Box::new(finalizer), Need::Balancer),
        ("another type", Box::new(|value| value["spec"]["type"] = json!("NodePort")), Need::Nothing),
        (
            "another type, but it had one",
            Box::new(move |value| {
                finalizer(value);
                value["spec"]["type"] = json!("ClusterIP");
            }),
            Need::Cleanup,
        ),
        (
            "somebody else's class",
            Box::new(|value| value["spec"]["loadBalancerClass"] = json!("example.com/theirs")),
            Need::Nothing,
        ),
        (
            "deleted",
            Box::new(move |value| {
                finalizer(value);
                value["metadata"]["deletionTimestamp"] = json!("2026-12-01T00:00:00Z");
            }),
            Need::Cleanup,
        ),
        (
            "deleted before anything was made",
            Box::new(|value| value["metadata"]["deletionTimestamp"] = json!("2026-12-01T00:00:00Z")),
            Need::Nothing,
        ),
    ];
    for (what, change, need) in rows {
        assert_eq!(service(|value| change(value)).need(), need, "{what}");
    }
}

#[test]
fn what_it_asks_for() {
    let words = |view: &ServiceView| match view.spec(TenantId::generate(), view.token().unwrap(), Vec::new())
    {
        Err(why) => format!("no: {why}"),
        Ok(spec) => {
            let ports: Vec<String> = spec
                .listeners
                .iter()
                .map(|one| format!("{:?} {}->{}", one.protocol, one.port, one.node_port))
                .collect();
            let check = &spec.health_check;
            let path = check.http_path.as_deref().unwrap_or("tcp");
            let from = spec.source_ranges.join(" ");
            let wanted = spec.wanted_address.map(|one| one.to_string()).unwrap_or_default();
            format!("{} | {} {path} | {from} | {wanted}", ports.join(", "), check.port)
        }
    };
    type Change = fn(&mut Value);
    let rows: &[(&str, Change, &str)] = &[
        ("plain", |_| {}, "Tcp 80->30080 | 30080 tcp |  | "),
        (
            "several ports, and no TCP first",
            |value| {
                value["spec"]["ports"] = json!([
                    {"port": 53, "nodePort": 30053, "protocol": "UDP"},
                    {"port": 53, "nodePort": 30054, "protocol": "TCP"},
                ]);
            },
            "Udp 53->30053, Tcp 53->30054 | 30054 tcp |  | ",
        ),
        (
            "UDP alone: the kubelet is asked",
            |value| value["spec"]["ports"][0]["protocol"] = json!("UDP"),
            "Udp 80->30080 | 10250 tcp |  | ",
        ),
        (
            "only nodes with a pod",
            |value| {
                value["spec"]["externalTrafficPolicy"] = json!("Local");
                value["spec"]["healthCheckNodePort"] = json!(31000);
            },
            "Tcp 80->30080 | 31000 /healthz |  | ",
        ),
        (
            "ranges",
            |value| value["spec"]["loadBalancerSourceRanges"] = json!([" 10.0.0.0/8 ", "192.0.2.0/24"]),
            "Tcp 80->30080 | 30080 tcp | 10.0.0.0/8 192.0.2.0/24 | ",
        ),
        (
            "ranges as they were given once",
            |value| value["metadata"]["annotations"] = json!({SOURCE_RANGES: "10.0.0.0/8, 192.0.2.0/24"}),
            "Tcp 80->30080 | 30080 tcp | 10.0.0.0/8 192.0.2.0/24 | ",
        ),
        (
            "everybody",
            |value| value["spec"]["loadBalancerSourceRanges"] = json!(["0.0.0.0/0"]),
            "Tcp 80->30080 | 30080 tcp |  | ",
        ),
        (
            "an address",
            |value| value["spec"]["loadBalancerIP"] = json!("127.77.0.9"),
            "Tcp 80->30080 | 30080 tcp |  | 127.77.0.9",
        ),
        (
            "no address",
            |value| value["spec"]["loadBalancerIP"] = json!("nine"),
            "no: \"nine\" is not an IP address",
        ),
        (
            "SCTP",
            |value| value["spec"]["ports"][0]["protocol"] = json!("SCTP"),
            "no: balancers carry TCP and UDP, not SCTP",
        ),
        ("no ports", |value| value["spec"]["ports"] = json!([]), "no: requested load balancer with no ports"),
        (
            "no node port",
            |value| {
                value["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
            },
            "no: port 80 has no node port, which this provider's balancers need: \
             set allocateLoadBalancerNodePorts, or nodePort",
        ),
    ];
    for (what, change, wanted) in rows {
        assert_eq!(words(&service(change)), *wanted, "{what}");
    }
}

#[test]
fn which_nodes_are_targets() {
    let node = |name: &str| NodeView {
        name: name.to_owned(),
        uid: String::new(),
        ready: true,
        unschedulable: false,
        deleting: false,
        provider_id: Some(format!("fake:///{name}")),
        internal_ip: Some("192.0.2.1".parse().unwrap()),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        created: "2026-12-01T00:00:00Z".parse().unwrap(),
    };
    type Change = fn(&mut NodeView);
    let rows: &[(&str, Change, bool)] = &[
        ("a node", |_| {}, true),
        ("not ready: the balancer's own check decides", |node| node.ready = false, true),
        ("cordoned: its pods still serve", |node| node.unschedulable = true, true),
        ("excluded", |node| drop(node.labels.insert(EXCLUDED.into(), String::new())), false),
        (
            "about to be removed",
            |node| {
                let effect = "NoSchedule".to_owned();
                node.taints.push(Taint { key: TO_BE_DELETED.into(), value: String::new(), effect });
            },
            false,
        ),
        ("being deleted", |node| node.deleting = true, false),
        ("without an address", |node| node.internal_ip = None, false),
        ("whose machine goes", |node| node.name = "leaving".to_owned(), false),
    ];
    for (what, change, wanted) in rows {
        let mut one = node("a");
        change(&mut one);
        let nodes = BTreeMap::from([(one.name.clone(), one)]);
        let found = targets(&nodes, &|name| name == "leaving", &|node| node.provider_id.clone());
        assert_eq!(found.len(), usize::from(*wanted), "{what}");
    }
}
