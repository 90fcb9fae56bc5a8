//! A container's environment and the `$(NAME)`s in its command.
//!
//! Pure: what has to be fetched from the cluster comes in as [`Lookup`]. Later entries win; an entry may refer
//! to those before it and to the services' variables, which anything the container says itself overrides.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use node_volumes::downward::{self, Addresses};

/// What a container's environment refers to. A name that maps to `None` was looked for and does not exist.
#[derive(Debug, Default)]
pub struct Lookup {
    pub config_maps: BTreeMap<String, Option<ConfigMap>>,
    pub secrets: BTreeMap<String, Option<Secret>>,
    pub services: BTreeMap<String, String>,
    pub addresses: Addresses,
    pub allocatable: BTreeMap<String, Quantity>,
}

/// Names of the ConfigMaps and Secrets that `container` takes variables from.
pub fn references(container: &Container) -> (Vec<String>, Vec<String>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.as_ref().map(|one| one.name.clone()));
        secrets.extend(from.secret_ref.as_ref().map(|one| one.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|one| one.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.as_ref().map(|one| one.name.clone()));
        secrets.extend(source.secret_key_ref.as_ref().map(|one| one.name.clone()));
    }
    (maps, secrets)
}

/// The variables of a container, or a sentence on what is missing.
pub fn environment(
    pod: &Pod,
    container: &Container,
    lookup: &Lookup,
) -> Result<BTreeMap<String, String>, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let values = if let Some(one) = &from.config_map_ref {
            let found = lookup.config_maps.get(&one.name).cloned().flatten();
            if found.is_none() && !one.optional.unwrap_or(false) {
                return Err(format!("configmap \"{}\" not found", one.name));
            }
            found.and_then(|found| found.data).unwrap_or_default()
        } else if let Some(one) = &from.secret_ref {
            let found = lookup.secrets.get(&one.name).cloned().flatten();
            if found.is_none() && !one.optional.unwrap_or(false) {
                return Err(format!("secret \"{}\" not found", one.name));
            }
            let data = found.and_then(|found| found.data).unwrap_or_default();
            data.into_iter()
                .map(|(key, ByteString(value))| (key, String::from_utf8_lossy(&value).into_owned()))
                .collect()
        } else {
            BTreeMap::new()
        };
        // `=` and NUL cannot be in a name; upstream passes over such keys as well.
        let usable = values.into_iter().filter(|(key, _)| !key.is_empty() && !key.contains(['=', '\0']));
        own.extend(usable.map(|(key, value)| (format!("{prefix}{key}"), value)));
    }
    for entry in container.env.iter().flatten() {
        let value = match (&entry.value, &entry.value_from) {
            (Some(value), _) if !value.is_empty() => {
                expand(value, &|name| own.get(name).or_else(|| lookup.services.get(name)).cloned())
            }
            (_, Some(source)) => match referred(pod, container, namespace, source, lookup)? {
                Some(value) => value,
                None => continue,
            },
            _ => String::new(),
        };
        own.insert(entry.name.clone(), value);
    }
    for (name, value) in &lookup.services {
        own.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(own)
}

/// The value of one reference; `None` when it is optional and there is none.
fn referred(
    pod: &Pod,
    container: &Container,
    namespace: &str,
    source: &EnvVarSource,
    lookup: &Lookup,
) -> Result<Option<String>, String> {
    if let Some(field) = &source.field_ref {
        return downward::field(pod, &field.field_path, Some(&lookup.addresses)).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return downward::resource(pod, Some(&container.name), resource, &lookup.allocatable).map(Some);
    }
    if let Some(one) = &source.config_map_key_ref {
        let optional = one.optional.unwrap_or(false);
        let Some(Some(found)) = lookup.config_maps.get(&one.name) else {
            return if optional { Ok(None) } else { Err(format!("configmap \"{}\" not found", one.name)) };
        };
        return match found.data.as_ref().and_then(|data| data.get(&one.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {} in ConfigMap {namespace}/{}", one.key, one.name)),
        };
    }
    if let Some(one) = &source.secret_key_ref {
        let optional = one.optional.unwrap_or(false);
        let Some(Some(found)) = lookup.secrets.get(&one.name) else {
            return if optional { Ok(None) } else { Err(format!("secret \"{}\" not found", one.name)) };
        };
        return match found.data.as_ref().and_then(|data| data.get(&one.key)) {
            Some(ByteString(value)) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {} in Secret {namespace}/{}", one.key, one.name)),
        };
    }
    Err("this kind of environment source is not supported on this node".to_owned())
}

/// Replaces `$(NAME)` by what `value_of` says; unknown names stay as they are, and `$$` is a plain `$`.
pub fn expand(text: &str, value_of: &dyn Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match value_of(name) {
                Some(value) => expanded.push_str(&value),
                None => expanded.push_str(&format!("$({name})")),
            }
            rest = tail;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

/// The variables that name services: those of the pod's namespace if it wants links, and always the API server.
pub fn services(pod: &Pod, services: &[std::sync::Arc<Service>]) -> BTreeMap<String, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let mut variables = BTreeMap::new();
    let is_kubernetes = |service: &Service| {
        service.metadata.namespace.as_deref() == Some("default")
            && service.metadata.name.as_deref() == Some("kubernetes")
    };
    // One of the pod's own namespace wins over the API server's name.
    for service in services.iter().filter(|one| is_kubernetes(one)) {
        variables.extend(variables_of(service));
    }
    for service in services.iter().filter(|one| links && one.metadata.namespace.as_deref() == Some(namespace))
    {
        variables.extend(variables_of(service));
    }
    variables
}

fn variables_of(service: &Service) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let address = spec.cluster_ip.as_deref().unwrap_or_default();
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first().filter(|_| !address.is_empty() && address != "None") else {
        return Vec::new();
    };
    let upper = |name: &str| name.to_uppercase().replace('-', "_");
    let name = upper(service.metadata.name.as_deref().unwrap_or_default());
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };

    let mut variables = vec![
        (format!("{name}_SERVICE_HOST"), address.to_owned()),
        (format!("{name}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            variables.push((format!("{name}_SERVICE_PORT_{}", upper(port_name)), port.port.to_string()));
        }
    }
    let protocol_of =
        |port: &k8s_openapi::api::core::v1::ServicePort| port.protocol.clone().unwrap_or("TCP".into());
    let url = |port: &k8s_openapi::api::core::v1::ServicePort| {
        format!("{}://{host}:{}", protocol_of(port).to_lowercase(), port.port)
    };
    variables.push((format!("{name}_PORT"), url(first)));
    for port in ports {
        let prefix = format!("{name}_PORT_{}_{}", port.port, protocol_of(port).to_uppercase());
        variables.push((prefix.clone(), url(port)));
        variables.push((format!("{prefix}_PROTO"), protocol_of(port).to_lowercase()));
        variables.push((format!("{prefix}_PORT"), port.port.to_string()));
        variables.push((format!("{prefix}_ADDR"), address.to_owned()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dollars_are_expanded_as_upstream_does() {
        let value_of = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expanded) in [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("cost: 5$", "cost: 5$"),
            ("$()", "$()"),
        ] {
            assert_eq!(expand(text, &value_of), expanded, "{text}");
        }
    }

    fn check(container: serde_json::Value, expected: Result<&[(&str, &str)], &str>) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "blue" },
            "spec": { "nodeName": "n1", "containers": [{ "name": "main" }] },
        }))
        .unwrap();
        let map: ConfigMap = serde_json::from_value(json!({ "data": { "k": "v", "l": "w" } })).unwrap();
        let secret: Secret = serde_json::from_value(json!({ "data": { "p": "c2VjcmV0" } })).unwrap();
        let lookup = Lookup {
            config_maps: BTreeMap::from([("m".to_owned(), Some(map)), ("none".to_owned(), None)]),
            secrets: BTreeMap::from([("s".to_owned(), Some(secret))]),
            services: BTreeMap::from([("SVC".to_owned(), "10.96.0.1".to_owned())]),
            addresses: Addresses { host_ips: vec![], pod_ips: vec!["10.244.0.9".into()] },
            allocatable: BTreeMap::new(),
        };
        let mut document = container.clone();
        document["name"] = "main".into();
        let container_view: Container = serde_json::from_value(document).unwrap();
        let found = environment(&pod, &container_view, &lookup);
        let mut expected_map: Result<BTreeMap<String, String>, String> = expected
            .map(|rows| rows.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
            .map_err(str::to_owned);
        if let Ok(map) = &mut expected_map {
            map.entry("SVC".to_owned()).or_insert_with(|| "10.96.0.1".to_owned());
        }
        assert_eq!(found, expected_map, "{container}");
    }

    #[test]
    fn variables_come_from_everywhere_and_later_ones_win() {
        check(json!({}), Ok(&[]));
        check(
            json!({ "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "$(A)$(SVC)" }] }),
            Ok(&[("A", "1"), ("B", "110.96.0.1")]),
        );
        check(json!({ "env": [{ "name": "SVC", "value": "mine" }] }), Ok(&[("SVC", "mine")]));
        check(
            json!({ "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "m" } }], "env": [{ "name": "P_k", "value": "x" }] }),
            Ok(&[("P_k", "x"), ("P_l", "w")]),
        );
        check(json!({ "envFrom": [{ "secretRef": { "name": "s" } }] }), Ok(&[("p", "secret")]));
        check(
            json!({ "envFrom": [{ "configMapRef": { "name": "none" } }] }),
            Err("configmap \"none\" not found"),
        );
        check(json!({ "envFrom": [{ "configMapRef": { "name": "none", "optional": true } }] }), Ok(&[]));
        let key = |name: &str, key: &str| json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": name, "key": key } } }] });
        check(key("m", "k"), Ok(&[("A", "v")]));
        check(key("m", "z"), Err("couldn't find key z in ConfigMap blue/m"));
        check(key("none", "k"), Err("configmap \"none\" not found"));
        check(
            json!({ "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }] }),
            Ok(&[("A", "10.244.0.9")]),
        );
    }

    #[test]
    fn services_are_named_by_variables() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "my-web", "namespace": "blue" },
            "spec": { "clusterIP": "10.96.0.7", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] },
        }))
        .unwrap();
        let pod: Pod = serde_json::from_value(
            json!({ "metadata": { "namespace": "blue" }, "spec": { "containers": [] } }),
        )
        .unwrap();
        let found = services(&pod, &[std::sync::Arc::new(service)]);
        let rows: Vec<String> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            rows,
            [
                "MY_WEB_PORT=tcp://10.96.0.7:80",
                "MY_WEB_PORT_80_TCP=tcp://10.96.0.7:80",
                "MY_WEB_PORT_80_TCP_ADDR=10.96.0.7",
                "MY_WEB_PORT_80_TCP_PORT=80",
                "MY_WEB_PORT_80_TCP_PROTO=tcp",
                "MY_WEB_SERVICE_HOST=10.96.0.7",
                "MY_WEB_SERVICE_PORT=80",
                "MY_WEB_SERVICE_PORT_HTTP=80",
            ]
        );
    }
}
