//! What a pod may learn about itself: the fields and resources of the downward API.
//!
//! Used for volumes here and for environment variables by the kubelet, which know a few more fields.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;

/// A field that a running pod has and its document may not have yet.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    pub host_ips: Vec<String>,
    pub pod_ips: Vec<String>,
}

/// The value of `path`, or why there is none. `addresses` is `None` in volumes, where those fields don't exist.
pub fn field(pod: &Pod, path: &str, addresses: Option<&Addresses>) -> Result<String, String> {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| Ok(value.clone().unwrap_or_default());
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(format!("{path} is no field with keys")),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let spec = pod.spec.as_ref();
    match (path, addresses) {
        ("metadata.name", _) => text(&meta.name),
        ("metadata.namespace", _) => text(&meta.namespace),
        ("metadata.uid", _) => text(&meta.uid),
        ("metadata.labels", _) => Ok(lines(meta.labels.as_ref())),
        ("metadata.annotations", _) => Ok(lines(meta.annotations.as_ref())),
        ("spec.nodeName", Some(_)) => text(&spec.and_then(|spec| spec.node_name.clone())),
        ("spec.serviceAccountName", Some(_)) => {
            text(&spec.and_then(|spec| spec.service_account_name.clone()))
        }
        ("status.hostIP", Some(addresses)) => Ok(addresses.host_ips.first().cloned().unwrap_or_default()),
        ("status.hostIPs", Some(addresses)) => Ok(addresses.host_ips.join(",")),
        ("status.podIP", Some(addresses)) => Ok(addresses.pod_ips.first().cloned().unwrap_or_default()),
        ("status.podIPs", Some(addresses)) => Ok(addresses.pod_ips.join(",")),
        _ => Err(format!("unsupported fieldPath: {path}")),
    }
}

/// A container's own request or limit. A limit that isn't set is what the node can give.
pub fn resource(
    pod: &Pod,
    own: Option<&str>,
    selector: &ResourceFieldSelector,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, String> {
    let name = selector.container_name.as_deref().filter(|name| !name.is_empty()).or(own);
    let name = name.ok_or("resourceFieldRef names no container")?;
    let container = containers(pod).find(|container| container.name == name);
    let container = container.ok_or_else(|| format!("container {name} not found"))?;
    let (kind, resource) = selector
        .resource
        .split_once('.')
        .ok_or_else(|| format!("unsupported resource: {}", selector.resource))?;
    let set = container.resources.as_ref();
    let value = match kind {
        "limits" => set.and_then(|set| set.limits.as_ref()?.get(resource)).or_else(|| {
            allocatable.get(resource).filter(|_| matches!(resource, "cpu" | "memory" | "ephemeral-storage"))
        }),
        "requests" => set.and_then(|set| set.requests.as_ref()?.get(resource)),
        _ => return Err(format!("unsupported resource: {}", selector.resource)),
    };
    let value = value.map_or(Some(0), quantity::milli).unwrap_or(0);
    let divisor =
        selector.divisor.as_ref().and_then(quantity::milli).filter(|divisor| *divisor > 0).unwrap_or(1000);
    let rounded_up = i128::from(value) / i128::from(divisor) + i128::from(value % divisor != 0);
    Ok(rounded_up.to_string())
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_ref());
    let mains = spec.map(|spec| &spec.containers);
    mains.into_iter().flatten().chain(inits.into_iter().flatten())
}

/// `metadata.labels['app']` as map and key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// One `key="value"` a line, the value quoted as a Go string.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

fn quoted(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for character in value.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            control if control.is_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(control))),
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "blue", "uid": "u1",
                          "labels": { "app": "web", "say": "a \"b\"" } },
            "spec": { "nodeName": "n1", "containers": [
                { "name": "main", "resources": { "limits": { "cpu": "1500m" }, "requests": { "memory": "64Mi" } } }
            ] },
        }))
        .unwrap()
    }

    #[test]
    fn fields_are_found_by_path() {
        let addresses = Addresses { host_ips: vec!["10.0.0.1".into()], pod_ips: vec!["10.244.0.2".into()] };
        for (path, in_volumes, in_env) in [
            ("metadata.name", Some("web"), Some("web")),
            ("metadata.labels['app']", Some("web"), Some("web")),
            ("metadata.labels['none']", Some(""), Some("")),
            ("metadata.annotations", Some(""), Some("")),
            (
                "metadata.labels",
                Some("app=\"web\"\nsay=\"a \\\"b\\\"\""),
                Some("app=\"web\"\nsay=\"a \\\"b\\\"\""),
            ),
            ("spec.nodeName", None, Some("n1")),
            ("status.podIP", None, Some("10.244.0.2")),
            ("status.hostIPs", None, Some("10.0.0.1")),
            ("spec.containers", None, None),
        ] {
            assert_eq!(field(&pod(), path, None).ok().as_deref(), in_volumes, "{path}");
            assert_eq!(field(&pod(), path, Some(&addresses)).ok().as_deref(), in_env, "{path}");
        }
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let allocatable: BTreeMap<String, Quantity> =
            [("cpu", "2"), ("memory", "1Gi")].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).into();
        for (resource_name, divisor, value) in [
            ("limits.cpu", None, "2"),
            ("limits.cpu", Some("1m"), "1500"),
            ("requests.memory", Some("1Mi"), "64"),
            ("requests.cpu", None, "0"),
            ("limits.memory", Some("1Mi"), "1024"),
        ] {
            let selector = ResourceFieldSelector {
                container_name: None,
                divisor: divisor.map(|divisor| Quantity(divisor.to_owned())),
                resource: resource_name.to_owned(),
            };
            let found = resource(&pod(), Some("main"), &selector, &allocatable);
            assert_eq!(found.as_deref(), Ok(value), "{resource_name} / {divisor:?}");
        }
    }
}
