//! NodePorts: two pods can't have the same host port.

use crate::model::{NodeInfo, PodInfo, Port};

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Result<(), String> {
    let taken = |wanted: &Port| node.pods.iter().flat_map(|pod| &pod.ports).any(|port| clash(wanted, port));
    if pod.ports.iter().any(taken) {
        return Err("node(s) didn't have free ports for the requested pod ports".to_owned());
    }
    Ok(())
}

fn clash(a: &Port, b: &Port) -> bool {
    let everywhere = |port: &Port| matches!(port.ip.as_str(), "0.0.0.0" | "::");
    a.port == b.port && a.protocol == b.protocol && (a.ip == b.ip || everywhere(a) || everywhere(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod};
    use serde_json::{Value, json};

    #[test]
    fn a_host_port_is_taken_once() {
        let with = |port: &Value| pod("p", json!({"containers": [{"name": "c", "ports": [port]}]}));
        let taken = json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"});
        for (port, wanted) in [
            (json!({"containerPort": 80, "hostPort": 80}), false),
            (json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}), false),
            (json!({"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.2"}), true),
            (json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}), true),
            (json!({"containerPort": 80, "hostPort": 81}), true),
            (json!({"containerPort": 80}), true),
        ] {
            let mut node = node("n", json!({}));
            node.add(with(&taken).into());
            assert_eq!(filter(&with(&port), &node).is_ok(), wanted, "{port}");
        }
    }
}
