//! What a Service becomes, row by row, and that a change touches its own part only.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use node_proxy::compile::{Map, Pieces, compile};
use node_proxy::model::{ServiceKey, ServiceModel, SliceModel};
use node_proxy::rules::Rules;
use node_proxy::{LocalService, NodeFacts};
use serde_json::{Value, json};

fn facts() -> NodeFacts {
    NodeFacts { pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()] }
}

fn service(spec: Value) -> ServiceModel {
    let mut whole = json!({
        "metadata": {"namespace": "ns", "name": "web"},
        "spec": {"clusterIP": "10.96.0.5", "ports": [{"port": 80, "targetPort": 8080}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        match key.as_str() {
            "status" => whole["status"] = value.clone(),
            key => whole["spec"][key] = value.clone(),
        }
    }
    let typed: Service = serde_json::from_value(whole).unwrap();
    ServiceModel::of(&typed).unwrap()
}

/// Endpoints written as `address[@node][!notready][~terminating]`.
fn slice(endpoints: &[&str]) -> SliceModel {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|text| {
            let terminating = text.ends_with('~');
            let text = text.trim_end_matches('~');
            let ready = !text.ends_with('!') && !terminating;
            let text = text.trim_end_matches('!');
            let (address, node) = text.split_once('@').unwrap_or((text, "other"));
            json!({
                "addresses": [address], "nodeName": node,
                "conditions": {"ready": ready, "serving": ready || terminating, "terminating": terminating},
            })
        })
        .collect();
    let typed: EndpointSlice = serde_json::from_value(json!({
        "addressType": "IPv4",
        "metadata": {"namespace": "ns", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": endpoints,
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }))
    .unwrap();
    SliceModel::of(&typed, "here").unwrap().1
}

fn pieces(spec: Value, endpoints: &[&str]) -> Pieces {
    compile(&ServiceKey::new("ns", "web"), &service(spec), &[&slice(endpoints)], &facts())
}

/// The way of a packet through the chains, with their hashes left out; of a shared chain, its name and what
/// it draws from.
fn way(pieces: &Pieces, map: Map, key: &str) -> String {
    let short = |text: &str| {
        let words = text.split(' ').map(|word| match word.split_once('-') {
            Some((kind @ ("svc" | "loc" | "int" | "ext" | "lb" | "ep" | "aff" | "@aff"), rest))
                if rest.contains('/') =>
            {
                kind.to_owned()
            }
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let found = pieces.elements.iter().find(|((of, _, element), _)| *of == map && element == key);
    let Some((_, verdict)) = found else { return "nothing".to_owned() };
    let mut said = vec![short(verdict)];
    let mut next = verdict.strip_prefix("goto ").map(str::to_owned);
    while let Some(chain) = next.take() {
        if pieces.shared.contains_key(&chain) {
            let drawn = pieces.elements.iter().filter(|((of, _, element), _)| {
                matches!(of, Map::Endpoints | Map::PortEndpoints) && element.starts_with(&format!("{key} . "))
            });
            said.push(drawn.map(|(_, value)| value.replace(" . ", ":")).collect::<Vec<_>>().join(" "));
            break;
        }
        let Some(rules) = pieces.chains.get(&chain) else { break };
        said.push(rules.iter().map(|rule| short(rule)).collect::<Vec<_>>().join("; "));
        let jumps = rules.iter().rev().find_map(|rule| Some(rule.split_once("goto ")?.1.to_owned()));
        next = jumps.filter(|to| !to.contains(' '));
    }
    said.join(" | ")
}

const MARK: &str = "meta mark set meta mark or 0x4000";

#[test]
fn packets_go_where_the_service_says() {
    use Map::{RefusedIps, RefusedNodePorts, ServiceIps, ServiceNodePorts};
    let cluster = "10.96.0.5 . tcp . 80";
    let masked = format!("ip saddr != {{ 10.244.0.0/16 }} {MARK}");
    let one = "meta l4proto tcp dnat ip to 10.244.1.2:8080";
    let ip_one = || "goto ip-tcp-1-4 | 10.244.1.2:8080".to_owned();
    let node_port = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    let local_node_port =
        json!({"externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30080}]});
    let internal_local = json!({"internalTrafficPolicy": "Local"});
    let balanced = json!({
        "loadBalancerSourceRanges": ["192.0.2.0/24", "192.0.2.128/25"],
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}},
    });
    let from_pods = "ip saddr { 10.244.0.0/16 } goto svc";
    for (spec, endpoints, map, key, expected) in [
        (json!({}), &["10.244.1.2"][..], ServiceIps, cluster, ip_one()),
        (
            json!({}),
            &["10.244.1.2", "10.244.2.2"],
            ServiceIps,
            cluster,
            "goto ip-tcp-2-4 | 10.244.1.2:8080 10.244.2.2:8080".to_owned(),
        ),
        (json!({}), &["10.244.1.2", "10.244.2.2!"], ServiceIps, cluster, ip_one()),
        // Ending endpoints serve only when no other does.
        (json!({}), &["10.244.1.2", "10.244.2.2~"], ServiceIps, cluster, ip_one()),
        (json!({}), &["10.244.1.2~", "10.244.2.2!"], ServiceIps, cluster, ip_one()),
        (json!({}), &[], ServiceIps, cluster, "nothing".to_owned()),
        (json!({}), &[], RefusedIps, cluster, "goto refuse".to_owned()),
        (json!({}), &["10.244.1.2!"], RefusedIps, cluster, "goto refuse".to_owned()),
        (
            node_port.clone(),
            &["10.244.1.2"],
            ServiceNodePorts,
            "tcp . 30080",
            "goto port-tcp-1-4 | 10.244.1.2:8080".to_owned(),
        ),
        (node_port, &[], RefusedNodePorts, "tcp . 30080", "goto refuse".to_owned()),
        (
            local_node_port.clone(),
            &["10.244.1.2@here", "10.244.2.2"],
            ServiceNodePorts,
            "tcp . 30080",
            format!(
                "goto ext | {from_pods}; fib saddr type local {MARK}; fib saddr type local goto svc; goto loc | {one}"
            ),
        ),
        (
            local_node_port.clone(),
            &["10.244.2.2"],
            ServiceNodePorts,
            "tcp . 30080",
            format!(
                "goto ext | {from_pods}; fib saddr type local {MARK}; fib saddr type local goto svc; drop | meta l4proto tcp dnat ip to 10.244.2.2:8080"
            ),
        ),
        (
            local_node_port,
            &["10.244.2.2"],
            ServiceIps,
            cluster,
            "goto ip-tcp-1-4 | 10.244.2.2:8080".to_owned(),
        ),
        (internal_local.clone(), &["10.244.1.2@here", "10.244.2.2"], ServiceIps, cluster, ip_one()),
        (internal_local.clone(), &["10.244.2.2"], ServiceIps, cluster, "nothing".to_owned()),
        (internal_local, &["10.244.2.2"], RefusedIps, cluster, "drop".to_owned()),
        (
            json!({"externalIPs": ["198.51.100.7"]}),
            &["10.244.1.2"],
            ServiceIps,
            "198.51.100.7 . tcp . 80",
            "goto ext-ip-tcp-1-4 | 10.244.1.2:8080".to_owned(),
        ),
        (
            balanced,
            &["10.244.1.2"],
            ServiceIps,
            "203.0.113.9 . tcp . 80",
            "goto lb | ip saddr != { 192.0.2.0/24 } drop; goto ext-ip-tcp-1-4 | 10.244.1.2:8080".to_owned(),
        ),
        (
            json!({"sessionAffinity": "ClientIP"}),
            &["10.244.1.2", "10.244.2.2"],
            ServiceIps,
            cluster,
            format!(
                "goto int | {masked}; goto svc | ip saddr @aff goto ep; ip saddr @aff goto ep; numgen random mod 2 vmap {{ 0 : goto ep 1 : goto ep }}"
            ),
        ),
    ] {
        let said = way(&pieces(spec.clone(), endpoints), map, key);
        // The comma after a chain's name goes with the hash.
        assert_eq!(said, expected, "{spec} {endpoints:?} {key}");
    }
}

#[test]
fn services_that_are_not_ours_are_left_alone() {
    for (whole, ours) in [
        (json!({"metadata": {}, "spec": {"clusterIP": "10.96.0.5"}}), true),
        (json!({"metadata": {}, "spec": {"clusterIP": "None"}}), false),
        (json!({"metadata": {}, "spec": {"type": "ExternalName", "externalName": "example.org"}}), false),
        (
            json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}, "spec": {"clusterIP": "10.96.0.5"}}),
            false,
        ),
        (json!({"metadata": {}, "spec": {"clusterIP": "not an address"}}), false),
    ] {
        let typed: Service = serde_json::from_value(whole.clone()).unwrap();
        assert_eq!(ServiceModel::of(&typed).is_some(), ours, "{whole}");
    }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ns", name)
}

fn named(name: &str, ip: &str, endpoints: &[&str]) -> (ServiceKey, Option<Pieces>) {
    let spec = json!({"clusterIP": ip});
    (key(name), Some(compile(&key(name), &service(spec), &[&slice(endpoints)], &facts())))
}

#[test]
fn a_changed_endpoint_touches_one_chain() {
    let mut rules = Rules::new("t");
    rules.change(
        (0..50).map(|at| named(&format!("s{at}"), &format!("10.96.1.{at}"), &["10.244.1.2"])).collect(),
    );
    assert_eq!(
        rules.change(vec![named("s7", "10.96.1.7", &["10.244.1.2"])]).transaction,
        "",
        "nothing changed"
    );

    let change = rules.change(vec![named("s7", "10.96.1.7", &["10.244.1.2", "10.244.2.2"])]).transaction;
    let lines: Vec<&str> =
        change.lines().filter(|line| !line.contains(" chain ") && !line.contains(" rule ")).collect();
    let expected = [
        "delete element inet t service-ips-4 { 10.96.1.7 . tcp . 80 }",
        "add element inet t service-ips-4 { 10.96.1.7 . tcp . 80 : goto ip-tcp-2-4 }",
        "add element inet t endpoints-4 { 10.96.1.7 . tcp . 80 . 1 : 10.244.2.2 . 8080 }",
        "add element inet t hairpin-4 { 10.244.2.2 . 10.244.2.2 }",
    ];
    assert_eq!(lines, expected, "{change}");

    let change = rules.change(vec![named("s7", "10.96.1.7", &[])]).transaction;
    let refused = "add element inet t refused-ips-4 { 10.96.1.7 . tcp . 80 : goto refuse }";
    assert!(change.contains(refused), "{change}");
    assert!(change.contains("delete element inet t service-ips-4 { 10.96.1.7 . tcp . 80 }"), "{change}");
    // 10.244.1.2 still serves others.
    assert!(change.contains("delete element inet t hairpin-4 { 10.244.2.2 . 10.244.2.2 }"), "{change}");
}

#[test]
fn an_address_claimed_twice_passes_on() {
    let mut rules = Rules::new("t");
    rules.change(vec![named("a", "10.96.1.1", &["10.244.1.2"])]);
    assert!(
        !rules
            .change(vec![named("b", "10.96.1.1", &["10.244.1.3"])])
            .transaction
            .contains("element inet t service-ips-4")
    );
    let change = rules.change(vec![(key("a"), None)]).transaction;
    assert!(
        change.contains("add element inet t endpoints-4 { 10.96.1.1 . tcp . 80 . 0 : 10.244.1.3 . 8080 }"),
        "{change}"
    );
    let (gone, come) =
        (change.find("delete element inet t service-ips-4"), change.find("add element inet t service-ips-4"));
    // Both have one endpoint, so the way there stays as it is.
    assert!(gone.is_none() && come.is_none(), "{change}");
    assert!(!rules.everything().contains("10.244.1.2"), "{}", rules.everything());
}

#[test]
fn the_nodes_own_services_win() {
    let mut rules = Rules::new("t");
    let own = LocalService {
        address: "10.96.0.1".parse().unwrap(),
        port: 80,
        protocol: node_proxy::model::Protocol::Tcp,
        to: "172.31.240.10:7443".parse().unwrap(),
    };
    rules.change(vec![named("kubernetes", "10.96.0.1", &["192.0.2.1"])]);
    rules.change(vec![(ServiceKey::new("", "0"), Some(node_proxy::compile::compile_local(&own)))]);
    let table = rules.everything();
    let line = table.lines().find(|line| line.contains("service-ips-4 { 10.96.0.1")).unwrap();
    assert!(line.contains("goto own-"), "{line}");
}

#[test]
fn datagram_flows_of_gone_endpoints_are_forgotten() {
    let udp = |endpoints: &[&str]| {
        let service = service(json!({"ports": [{"port": 53, "protocol": "UDP"}]}));
        let mut slice = slice(endpoints);
        slice.ports[0].protocol = node_proxy::model::Protocol::Udp;
        vec![(key("dns"), Some(compile(&key("dns"), &service, &[&slice], &facts())))]
    };
    let mut rules = Rules::new("t");
    for (endpoints, stale) in [
        (&["10.244.1.2"][..], "all"),
        (&["10.244.1.2", "10.244.1.3"], ""),
        (&["10.244.1.3"], "10.244.1.2"),
        (&[], "10.244.1.3"),
        (&["10.244.1.4"], "all"),
    ] {
        let change = rules.change(udp(endpoints));
        let said: Vec<String> = change
            .stale
            .iter()
            .map(|flow| flow.endpoint.map_or("all".to_owned(), |ip| ip.to_string()))
            .collect();
        assert_eq!(said.join(" "), stale, "{endpoints:?}");
    }
}
