//! Which address stands behind a Service.

use std::net::{IpAddr, SocketAddr};

use api_machinery::Document;
use serde_json::Value;

/// The Services of one cluster, as they are now.
pub trait Directory: Send + Sync + 'static {
    fn service(&self, namespace: &str, name: &str) -> Option<Document>;
    /// The EndpointSlices of a Service.
    fn endpoint_slices(&self, namespace: &str, service: &str) -> Vec<Document>;
}

/// A ready endpoint and the node that runs it, if somebody said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub node: Option<String>,
}

/// The name of the Service's port that is meant, by name or number; an unnamed port's is "". `None` when there
/// is no such port.
pub fn port_name(service: &Document, asked: &str) -> Option<String> {
    let ports = service.get_array("spec.ports");
    let name = |port: &Value| port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if asked.is_empty() {
        return match ports {
            [] => Some(String::new()),
            [only] => Some(name(only)),
            // Several and none named: upstream takes the unnamed one, which cannot be among several.
            _ => None,
        };
    }
    let number = asked.parse::<u64>().ok();
    ports
        .iter()
        .find(|port| {
            name(port) == asked || (number.is_some() && port.get("port").and_then(Value::as_u64) == number)
        })
        .map(name)
}

/// Of one EndpointSlice.
pub fn ready_endpoints(slice: &Document, port_name: &str) -> Vec<Endpoint> {
    let port = slice
        .get_array("ports")
        .iter()
        .find(|port| port.get("name").and_then(Value::as_str).unwrap_or_default() == port_name)
        .and_then(|port| u16::try_from(port.get("port")?.as_u64()?).ok());
    let Some(port) = port else { return Vec::new() };
    let ready =
        |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
    let endpoints = slice.get_array("endpoints").iter().filter(ready);
    endpoints
        .flat_map(|endpoint| {
            let node = endpoint.get("nodeName").and_then(Value::as_str).map(str::to_owned);
            let addresses =
                endpoint.get("addresses").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            addresses.iter().filter_map(move |address| {
                let ip = address.as_str()?.parse::<IpAddr>().ok()?;
                Some(Endpoint { address: SocketAddr::new(ip, port), node: node.clone() })
            })
        })
        .collect()
}

/// One of a Service's endpoints by chance, on a node that is connected if there is one; and the node to go
/// through. Errors are upstream's words.
pub(crate) fn pick(
    directory: &dyn Directory,
    namespace: &str,
    name: &str,
    port: u16,
    connected: &[String],
) -> Result<(SocketAddr, String), String> {
    let service = directory.service(namespace, name).ok_or_else(|| format!("service {name:?} not found"))?;
    let kind = service.get_str("spec.type").unwrap_or("ClusterIP");
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        return Err(format!("unsupported service type {kind:?}"));
    }
    let port_name = port_name(&service, &port.to_string())
        .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let slices = directory.endpoint_slices(namespace, name);
    let mut endpoints: Vec<Endpoint> =
        slices.iter().flat_map(|slice| ready_endpoints(slice, &port_name)).collect();
    let reachable = |endpoint: &Endpoint| endpoint.node.as_ref().is_none_or(|node| connected.contains(node));
    if endpoints.iter().any(reachable) {
        endpoints.retain(reachable);
    }
    if endpoints.is_empty() {
        return Err(format!("no endpoints available for service {name:?}"));
    }
    let chosen = endpoints.swap_remove(rand::random_range(0..endpoints.len()));
    // Endpoints that somebody wrote by hand name no node: any that is connected may try.
    let node = chosen.node.or_else(|| connected.first().cloned());
    node.map(|node| (chosen.address, node))
        .ok_or_else(|| format!("dial tcp {}: no node is connected", chosen.address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct One(Value, Vec<Value>);

    impl Directory for One {
        fn service(&self, _namespace: &str, name: &str) -> Option<Document> {
            (name == "web").then(|| Document::from_value(self.0.clone())).flatten()
        }
        fn endpoint_slices(&self, _namespace: &str, _service: &str) -> Vec<Document> {
            self.1.iter().cloned().filter_map(Document::from_value).collect()
        }
    }

    #[test]
    fn endpoints_are_chosen_by_port_and_readiness() {
        let slice = Document::from_value(json!({
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [
                {"addresses": ["10.244.0.5"], "nodeName": "n1", "conditions": {"ready": true}},
                {"addresses": ["10.244.0.6"], "conditions": {"ready": false}},
                {"addresses": ["10.244.0.7"]},
            ],
        }))
        .unwrap();
        let shown = |port: &str| -> Vec<String> {
            ready_endpoints(&slice, port)
                .into_iter()
                .map(|at| format!("{} {:?}", at.address, at.node))
                .collect()
        };
        assert_eq!(shown("http"), ["10.244.0.5:8080 Some(\"n1\")", "10.244.0.7:8080 None"]);
        assert!(shown("").is_empty());

        let service =
            Document::from_value(json!({"spec": {"ports": [{"name": "http", "port": 80}]}})).unwrap();
        for (asked, wanted) in
            [("", Some("http")), ("80", Some("http")), ("http", Some("http")), ("81", None)]
        {
            assert_eq!(port_name(&service, asked).as_deref(), wanted, "{asked:?}");
        }
    }

    #[test]
    fn a_service_is_one_of_its_ready_endpoints() {
        let service = |kind: &str| json!({"spec": {"type": kind, "ports": [{"port": 443}]}});
        let slice = |endpoints: Value| json!({"ports": [{"name": "", "port": 8443}], "endpoints": endpoints});
        let at = |ip: &str, node: &str| json!({"addresses": [ip], "nodeName": node});
        let by_hand = json!([{"addresses": ["10.9.9.9"]}]);
        for (kind, endpoints, connected, name, port, wanted) in [
            ("ClusterIP", json!([at("10.244.0.5", "n1")]), &["n1"][..], "web", 443, Ok("10.244.0.5:8443 n1")),
            // The one whose node is connected.
            (
                "NodePort",
                json!([at("10.1.1.1", "n2"), at("10.1.1.2", "n1")]),
                &["n1"],
                "web",
                443,
                Ok("10.1.1.2:8443 n1"),
            ),
            // None is: the dialer's own words say so.
            ("ClusterIP", json!([at("10.1.1.1", "n2")]), &["n1"], "web", 443, Ok("10.1.1.1:8443 n2")),
            ("LoadBalancer", by_hand.clone(), &["n1"], "web", 443, Ok("10.9.9.9:8443 n1")),
            ("ClusterIP", by_hand, &[], "web", 443, Err("dial tcp 10.9.9.9:8443: no node is connected")),
            ("ClusterIP", json!([]), &["n1"], "web", 443, Err("no endpoints available for service \"web\"")),
            (
                "ClusterIP",
                json!([]),
                &["n1"],
                "web",
                444,
                Err("no service port 444 found for service \"web\""),
            ),
            (
                "ExternalName",
                json!([]),
                &["n1"],
                "web",
                443,
                Err("unsupported service type \"ExternalName\""),
            ),
            ("ClusterIP", json!([]), &["n1"], "wob", 443, Err("service \"wob\" not found")),
        ] {
            let directory = One(service(kind), vec![slice(endpoints.clone())]);
            let connected: Vec<String> = connected.iter().map(|&node| node.to_owned()).collect();
            let got = pick(&directory, "ns", name, port, &connected).map(|(at, node)| format!("{at} {node}"));
            assert_eq!(got, wanted.map(str::to_owned).map_err(str::to_owned), "{kind} {endpoints}");
        }
    }
}
