//! Defaults of pods, and of the pod templates inside other kinds.
//!
//! Upstream: `pkg/apis/core/v1/defaults.go`. Some apply to pods only, so that a template stays as its author
//! wrote it: requests from limits, service links, host ports.

use api_machinery::{Document, Quantity};
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// A pod.
pub(crate) fn pod(new: &mut Document) {
    let spec = new.object_mut("spec");
    for list in ["containers", "initContainers"] {
        for container in items(spec.get_mut(list)) {
            requests_from_limits(container);
        }
    }
    spec_defaults(spec);
    spec.entry("enableServiceLinks").or_insert(Value::Bool(true));
    pod_level_requests(spec);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for list in ["containers", "initContainers"] {
            for container in items(spec.get_mut(list)) {
                for port in items(container.get_mut("ports")) {
                    if let Some(number) = port.get("containerPort").cloned() {
                        default_unless(port, "hostPort", number, is_zero);
                    }
                }
            }
        }
    }
}

/// The template at `path`, if there is one: `spec.template`.
pub(crate) fn template(new: &mut Document, path: &str) {
    if let Some(Value::Object(template)) = new.get_mut(path) {
        let metadata = template.entry("metadata").or_insert_with(|| json!({}));
        if metadata.is_null() {
            *metadata = json!({});
        }
        let spec = template.entry("spec").or_insert_with(|| json!({}));
        if let Value::Object(spec) = spec {
            spec_defaults(spec);
        }
    }
}

/// What pods and templates share.
fn spec_defaults(spec: &mut Object) {
    text(spec, "dnsPolicy", "ClusterFirst");
    text(spec, "restartPolicy", "Always");
    spec.entry("securityContext").or_insert_with(|| json!({}));
    spec.entry("terminationGracePeriodSeconds").or_insert_with(|| 30.into());
    text(spec, "schedulerName", "default-scheduler");
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        // The old name of the field, kept alike by conversion upstream.
        spec.insert("serviceAccount".to_owned(), account);
    } else if let Some(account) = spec.get("serviceAccount").cloned() {
        spec.insert("serviceAccountName".to_owned(), account);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for one in items(spec.get_mut(list)) {
            container(one);
        }
    }
    for one in items(spec.get_mut("volumes")) {
        volume(one);
    }
    // Host fields that say the default are dropped upstream, since false is left out.
    for flag in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec.get(flag) == Some(&Value::Bool(false)) {
            spec.remove(flag);
        }
    }
}

fn container(container: &mut Object) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if tag_is_latest(image) { "Always" } else { "IfNotPresent" };
    text(container, "imagePullPolicy", policy);
    text(container, "terminationMessagePath", "/dev/termination-log");
    text(container, "terminationMessagePolicy", "File");
    container.entry("resources").or_insert_with(|| json!({}));
    for port in items(container.get_mut("ports")) {
        text(port, "protocol", "TCP");
    }
    for variable in items(container.get_mut("env")) {
        if let Some(Value::Object(source)) = variable.get_mut("valueFrom") {
            field_ref(source.get_mut("fieldRef"));
            if let Some(Value::Object(file)) = source.get_mut("fileKeyRef") {
                file.entry("optional").or_insert(Value::Bool(false));
            }
            if let Some(Value::Object(resource)) = source.get_mut("resourceFieldRef") {
                divisor(resource);
            }
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(one)) = container.get_mut(name) {
            probe(one);
        }
    }
    if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(Value::Object(handler)) = lifecycle.get_mut(name) {
                http_get(handler);
            }
        }
    }
    if let Some(Value::Object(context)) = container.get_mut("securityContext") {
        // A mount of its own is not wanted unless somebody says so; upstream leaves the pointer alone.
        if context.get("procMount").is_some_and(Value::is_null) {
            context.remove("procMount");
        }
    }
}

fn probe(probe: &mut Object) {
    http_get(probe);
    if let Some(Value::Object(grpc)) = probe.get_mut("grpc") {
        grpc.entry("service").or_insert_with(|| "".into());
    }
    for (name, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        default_unless(probe, name, value.into(), is_zero);
    }
}

fn http_get(handler: &mut Object) {
    if let Some(Value::Object(get)) = handler.get_mut("httpGet") {
        text(get, "path", "/");
        text(get, "scheme", "HTTP");
    }
}

fn field_ref(value: Option<&mut Value>) {
    if let Some(Value::Object(field)) = value {
        text(field, "apiVersion", "v1");
    }
}

/// Upstream always writes the divisor, zero when nobody gave one.
fn divisor(resource: &mut Object) {
    resource.entry("divisor").or_insert_with(|| "0".into());
}

fn volume(volume: &mut Object) {
    let has_source = volume.iter().any(|(name, value)| name != "name" && !value.is_null());
    if !has_source {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    let Some((kind, Value::Object(source))) =
        volume.iter_mut().find(|(name, value)| *name != "name" && value.is_object())
    else {
        return;
    };
    match kind.as_str() {
        "secret" | "configMap" => {
            source.entry("defaultMode").or_insert_with(|| 0o644.into());
        }
        "downwardAPI" => {
            source.entry("defaultMode").or_insert_with(|| 0o644.into());
            downward_items(source);
        }
        "projected" => {
            source.entry("defaultMode").or_insert_with(|| 0o644.into());
            for one in items(source.get_mut("sources")) {
                if let Some(Value::Object(token)) = one.get_mut("serviceAccountToken") {
                    token.entry("expirationSeconds").or_insert_with(|| 3600.into());
                }
                if let Some(Value::Object(downward)) = one.get_mut("downwardAPI") {
                    downward_items(downward);
                }
            }
        }
        "hostPath" => {
            source.entry("type").or_insert_with(|| "".into());
        }
        "image" => {
            let reference = source.get("reference").and_then(Value::as_str).unwrap_or_default();
            let policy = if tag_is_latest(reference) { "Always" } else { "IfNotPresent" };
            text(source, "pullPolicy", policy);
        }
        "iscsi" => text(source, "iscsiInterface", "default"),
        "rbd" => {
            text(source, "pool", "rbd");
            text(source, "user", "admin");
            text(source, "keyring", "/etc/ceph/keyring");
        }
        "azureDisk" => {
            text(source, "cachingMode", "ReadWrite");
            text(source, "kind", "Shared");
            text(source, "fsType", "ext4");
            source.entry("readOnly").or_insert(Value::Bool(false));
        }
        "scaleIO" => {
            text(source, "storageMode", "ThinProvisioned");
            text(source, "fsType", "xfs");
        }
        "ephemeral" => {
            if let Some(Value::Object(template)) = source.get_mut("volumeClaimTemplate")
                && let Some(Value::Object(spec)) = template.get_mut("spec")
            {
                text(spec, "volumeMode", "Filesystem");
            }
        }
        _ => {}
    }
}

fn downward_items(source: &mut Object) {
    for item in items(source.get_mut("items")) {
        field_ref(item.get_mut("fieldRef"));
        if let Some(Value::Object(resource)) = item.get_mut("resourceFieldRef") {
            divisor(resource);
        }
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(Value::Object(resources)) = container.get_mut("resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if limits.is_empty() {
        return;
    }
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    if !requests.is_object() {
        *requests = json!({});
    }
    if let Value::Object(requests) = requests {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

/// With limits for the whole pod: requests from what the containers ask, else from those limits.
fn pod_level_requests(spec: &mut Object) {
    let Some(Value::Object(limits)) = spec.get("resources").and_then(|all| all.get("limits")).cloned() else {
        return;
    };
    let mut sums: std::collections::BTreeMap<String, Quantity> = Default::default();
    for one in items(spec.get_mut("containers")) {
        let requests = one.get("resources").and_then(|all| all.get("requests")).and_then(Value::as_object);
        for (name, amount) in requests.into_iter().flatten() {
            if let Ok(amount) = Quantity::from_json(amount) {
                let sum = sums.entry(name.clone()).or_insert(Quantity::ZERO);
                *sum = sum.plus(amount);
            }
        }
    }
    let Some(Value::Object(resources)) = spec.get_mut("resources") else { return };
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    let Value::Object(requests) = requests else { return };
    for (name, sum) in sums.iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")) {
        requests.entry(name.clone()).or_insert_with(|| sum.to_string().into());
    }
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// No tag and no digest means `latest`.
fn tag_is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit_once('/').map_or(image, |(_, last)| last);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

// ---- small words, shared with the other kinds' defaults ----

pub(crate) fn items(value: Option<&mut Value>) -> impl Iterator<Item = &mut Object> {
    value.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Sets a text that is absent, null or empty.
pub(crate) fn text(object: &mut Object, name: &str, value: &str) {
    default_unless(object, name, value.into(), |present| present.as_str().is_some_and(str::is_empty));
}

fn default_unless(object: &mut Object, name: &str, value: Value, counts_as_absent: impl Fn(&Value) -> bool) {
    match object.get(name) {
        Some(present) if !present.is_null() && !counts_as_absent(present) => {}
        _ => {
            object.insert(name.to_owned(), value);
        }
    }
}

fn is_zero(value: &Value) -> bool {
    value.as_i64() == Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_latest_image_is_always_pulled() {
        for (image, latest) in [
            ("web", true),
            ("web:latest", true),
            ("web:1", false),
            ("host:5000/web", true),
            ("host:5000/web:2", false),
            ("web@sha256:abc", false),
            ("web:latest@sha256:abc", false),
        ] {
            assert_eq!(tag_is_latest(image), latest, "{image}");
        }
    }
}
