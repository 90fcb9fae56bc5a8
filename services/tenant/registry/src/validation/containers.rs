//! Containers of every sort: what they run, see, ask for and are probed by.

use std::collections::HashSet;

use api_machinery::{Document, Field, Quantity};
use serde_json::Value;

use super::at::{At, Errors};
use super::{names, pod, volumes};

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["FallbackToLogsOnError", "File"];

/// All containers of a pod's spec; `known` are the names of its volumes.
pub(crate) fn validate(spec: &At<'_>, known: &HashSet<&str>, host_network: bool, errors: &mut Errors) {
    let containers = spec.get("containers");
    if containers.is_empty() {
        errors.push(containers.required(""));
    }
    let mut seen = HashSet::new();
    for container in containers.items() {
        name(&container, &mut seen, errors);
        common(&container, known, host_network, errors);
        probes(&container, errors);
    }
    host_ports(&containers, errors);
    for container in spec.get("initContainers").items() {
        name(&container, &mut seen, errors);
        common(&container, known, host_network, errors);
        let restarts = container.get("restartPolicy");
        if restarts.text() == "Always" {
            probes(&container, errors);
        } else {
            for forbidden in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                let at = container.get(forbidden);
                if at.is_set() {
                    errors.push(
                        at.forbidden("may not be set for init containers without restartPolicy=Always"),
                    );
                }
            }
        }
    }
    for container in spec.get("ephemeralContainers").items() {
        name(&container, &mut seen, errors);
    }
}

/// One ephemeral container of `pod`, being added.
pub(crate) fn ephemeral(container: &At<'_>, pod: &Document, errors: &mut Errors) {
    let mut seen = HashSet::new();
    name(container, &mut seen, errors);
    let volumes = pod.get_array("spec.volumes").iter().filter_map(|one| one["name"].as_str()).collect();
    common(container, &volumes, false, errors);
    for forbidden in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
        let at = container.get(forbidden);
        if !at.is_empty() {
            errors.push(at.forbidden("cannot be set for an Ephemeral Container"));
        }
    }
    if !container.get("resources").is_empty() {
        errors.push(container.get("resources").forbidden("cannot be set for an Ephemeral Container"));
    }
    let target = container.get("targetContainerName");
    if !target.is_empty() {
        let known = ["spec.containers", "spec.initContainers"]
            .iter()
            .flat_map(|path| pod.get_array(path))
            .any(|one| one["name"] == target.text());
        if !known {
            errors.push(target.field.not_found(target.text()));
        }
    }
    for mount in container.get("volumeMounts").items() {
        if !mount.get("subPath").is_empty() {
            errors.push(mount.get("subPath").forbidden("cannot be set for an Ephemeral Container"));
        }
    }
}

fn name<'a>(container: &At<'a>, seen: &mut HashSet<&'a str>, errors: &mut Errors) {
    let name = container.get("name");
    if !name.require(errors) {
        return;
    }
    name.reasons(errors, names::dns_label(name.text()));
    if !seen.insert(name.text()) {
        errors.push(name.duplicate());
    }
}

fn common(container: &At<'_>, known: &HashSet<&str>, host_network: bool, errors: &mut Errors) {
    let image = container.get("image");
    if image.require(errors) && image.text().trim() != image.text() {
        errors.push(image.invalid("must not have leading or trailing whitespace"));
    }
    container.get("terminationMessagePolicy").must_be_one_of(errors, &MESSAGE_POLICIES);
    container.get("imagePullPolicy").must_be_one_of(errors, &PULL_POLICIES);
    ports(&container.get("ports"), host_network, errors);
    environment(container, errors);
    volumes::mounts(container, known, errors);
    resources(&container.get("resources"), errors);
    security_context(&container.get("securityContext"), errors);
    for policy in container.get("resizePolicy").items() {
        policy.get("resourceName").one_of(errors, &["cpu", "memory"]);
        policy.get("restartPolicy").one_of(errors, &["NotRequired", "RestartContainer"]);
    }
    let lifecycle = container.get("lifecycle");
    for hook in ["postStart", "preStop"] {
        let at = lifecycle.get(hook);
        if at.is_set() {
            handler(&at, &["exec", "httpGet", "tcpSocket", "sleep"], errors);
        }
    }
}

fn ports(ports: &At<'_>, host_network: bool, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.is_empty() {
            let reasons = names::port_name(name.text());
            if reasons.is_empty() && !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
            name.reasons(errors, reasons);
        }
        let number = port.get("containerPort");
        match number.int().unwrap_or(0) {
            0 => errors.push(number.required("")),
            given => number.reasons(errors, names::port_number(given)),
        }
        let host = port.get("hostPort");
        if let Some(given) = host.int().filter(|given| *given != 0) {
            host.reasons(errors, names::port_number(given));
            if host_network && Some(given) != number.int() {
                errors.push(number.invalid("must match `hostPort` when `hostNetwork` is true"));
            }
        }
        let ip = port.get("hostIP");
        if !ip.is_empty() {
            ip.reasons(errors, names::ip(ip.text()));
        }
        port.get("protocol").must_be_one_of(errors, &["SCTP", "TCP", "UDP"]);
    }
}

/// Two containers of a pod cannot have one port of the node.
fn host_ports(containers: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for port in containers.items().flat_map(|container| container.get("ports").items().collect::<Vec<_>>()) {
        let number = port.get("hostPort");
        let Some(given) = number.int().filter(|given| *given != 0) else { continue };
        if !seen.insert((given, port.get("protocol").text(), port.get("hostIP").text())) {
            let shown = format!("{}/{}/{given}", port.get("protocol").text(), port.get("hostIP").text());
            errors.push(number.field.duplicate(shown));
        }
    }
}

fn environment(container: &At<'_>, errors: &mut Errors) {
    for variable in container.get("env").items() {
        let name = variable.get("name");
        if name.require(errors) {
            name.reasons(errors, names::env_name(name.text()));
        }
        let from = variable.get("valueFrom");
        if !from.is_set() {
            continue;
        }
        if !variable.get("value").is_empty() {
            errors.push(from.invalid("may not be specified when `value` is not empty"));
        }
        let sources = ["configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"];
        match sources.iter().filter(|name| from.get(name).is_set()).count() {
            1 => {}
            0 => errors.push(from.invalid("must specify one of: `configMapKeyRef`, `fieldRef`, `fileKeyRef`, `resourceFieldRef` or `secretKeyRef`")),
            _ => errors.push(from.invalid("may not have more than one field specified at a time")),
        }
        field_ref(&from.get("fieldRef"), errors, &ENV_FIELDS);
        for kind in ["configMapKeyRef", "secretKeyRef"] {
            let at = from.get(kind);
            if at.is_set() {
                let key = at.get("key");
                at.get("name").require(errors);
                if key.require(errors) {
                    key.reasons(errors, names::config_key(key.text()));
                }
            }
        }
        let resource = from.get("resourceFieldRef");
        if resource.is_set() {
            resource_field(&resource, false, errors);
        }
    }
    for source in container.get("envFrom").items() {
        let prefix = source.get("prefix");
        if !prefix.is_empty() {
            prefix.reasons(errors, names::env_name(prefix.text()));
        }
        let kinds = ["configMapRef", "secretRef"];
        match kinds.iter().filter(|name| source.get(name).is_set()).count() {
            1 => {}
            0 => errors.push(source.invalid("must specify one of: `configMapRef` or `secretRef`")),
            _ => errors.push(source.invalid("may not have more than one field specified at a time")),
        }
        for kind in kinds.iter().map(|name| source.get(name)).filter(At::is_set) {
            kind.get("name").require(errors);
        }
    }
}

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

pub(crate) fn field_ref(field: &At<'_>, errors: &mut Errors, supported: &[&str]) {
    if !field.is_set() {
        return;
    }
    let path = field.get("fieldPath");
    if !path.require(errors) {
        return;
    }
    let text = path.text();
    let subscript = ["metadata.annotations", "metadata.labels"]
        .iter()
        .find_map(|root| text.strip_prefix(root)?.strip_prefix("['")?.strip_suffix("']"));
    match subscript {
        Some(key) => path.reasons(errors, names::qualified_name(&key.to_lowercase())),
        None if !supported.contains(&text) => errors.push(path.unsupported(supported)),
        None => {}
    }
}

pub(crate) fn resource_field(at: &At<'_>, needs_container: bool, errors: &mut Errors) {
    if needs_container {
        at.get("containerName").require(errors);
    }
    let resource = at.get("resource");
    if !resource.require(errors) {
        return;
    }
    let known = [
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
    ];
    let huge =
        ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.text().starts_with(prefix));
    if !known.contains(&resource.text()) && !huge {
        errors.push(resource.unsupported(&known));
    }
}

// ---- resources ----

pub(crate) fn amount(at: &At<'_>, errors: &mut Errors) -> Option<Quantity> {
    let amount = Quantity::from_json(at.value).ok()?;
    if amount.is_negative() {
        errors.push(at.invalid("must be greater than or equal to 0"));
    }
    Some(amount)
}

/// Only these, huge pages and resources of somebody's domain can be had by a container.
fn known_resource(name: &str) -> bool {
    name.contains('/')
        || name.starts_with("hugepages-")
        || matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

/// `at` is the amount, whose key is the name.
pub(crate) fn resource_name(name: &str, at: &At<'_>, errors: &mut Errors) {
    let reasons = names::qualified_name(name);
    errors.extend(reasons.into_iter().map(|why| at.field.invalid(name, why)));
    if !known_resource(name) {
        errors.push(at.field.invalid(name, "must be a standard resource for containers"));
    }
}

pub(crate) fn resources(resources: &At<'_>, errors: &mut Errors) {
    let (limits, requests) = (resources.get("limits"), resources.get("requests"));
    for list in [&limits, &requests] {
        for (name, at) in list.members() {
            resource_name(name, &at, errors);
            amount(&at, errors);
            let whole = name.contains('/') && !name.starts_with("kubernetes.io/");
            if whole && Quantity::from_json(at.value).is_ok_and(|amount| !amount.is_whole()) {
                errors.push(at.invalid("must be an integer"));
            }
        }
    }
    for (name, at) in requests.members() {
        let Ok(request) = Quantity::from_json(at.value) else { continue };
        let limit = limits.get(name);
        match Quantity::from_json(limit.value) {
            Ok(limit) => {
                let exact = name.contains('/') || name.starts_with("hugepages-");
                if exact && request != limit {
                    errors.push(
                        requests
                            .field
                            .invalid(at.value.clone(), format!("must be equal to {name} limit of {limit}")),
                    );
                } else if request > limit {
                    errors.push(requests.field.invalid(
                        at.value.clone(),
                        format!("must be less than or equal to {name} limit of {limit}"),
                    ));
                }
            }
            Err(_) if name.contains('/') || name.starts_with("hugepages-") => {
                errors.push(limits.field.required("Limit must be set for non overcommitable resources"));
            }
            Err(_) => {}
        }
    }
    for claim in resources.get("claims").items() {
        claim.get("name").require(errors);
    }
}

// ---- security ----

fn security_context(context: &At<'_>, errors: &mut Errors) {
    if !context.is_set() {
        return;
    }
    pod::user_id(&context.get("runAsUser"), errors);
    pod::user_id(&context.get("runAsGroup"), errors);
    let escalation = context.get("allowPrivilegeEscalation");
    if escalation.value == &Value::Bool(false) {
        if context.get("privileged").flag() {
            errors.push(
                context.invalid("cannot set `allowPrivilegeEscalation` to false and `privileged` to true"),
            );
        }
        let added = context.get("capabilities").get("add");
        if added.items().any(|one| matches!(one.text(), "SYS_ADMIN" | "CAP_SYS_ADMIN")) {
            errors.push(context.invalid(
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            ));
        }
    }
    context.get("procMount").one_of(errors, &["Default", "Unmasked"]);
    pod::seccomp(&context.get("seccompProfile"), errors);
    pod::app_armor(&context.get("appArmorProfile"), errors);
}

// ---- probes and hooks ----

fn probes(container: &At<'_>, errors: &mut Errors) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.get(name);
        if !probe.is_set() {
            continue;
        }
        handler(&probe, &["exec", "grpc", "httpGet", "tcpSocket"], errors);
        for field in
            ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            probe.get(field).not_negative(errors);
        }
        let successes = probe.get("successThreshold");
        if name != "readinessProbe" && successes.int().is_some_and(|count| count != 1) {
            errors.push(successes.invalid("must be 1"));
        }
        let grace = probe.get("terminationGracePeriodSeconds");
        if grace.is_set() {
            if name == "readinessProbe" {
                errors.push(grace.invalid("must not be set for readinessProbes"));
            } else {
                grace.positive(errors);
            }
        }
    }
}

fn handler(handler: &At<'_>, kinds: &[&str], errors: &mut Errors) {
    let set: Vec<At<'_>> = kinds.iter().map(|kind| handler.get(kind)).filter(At::is_set).collect();
    match &set[..] {
        [] => errors.push(handler.required("must specify a handler type")),
        [_] => {}
        [_, more @ ..] => {
            errors.extend(more.iter().map(|one| one.forbidden("may not specify more than 1 handler type")));
        }
    }
    let exec = handler.get("exec");
    if exec.is_set() && exec.get("command").is_empty() {
        errors.push(exec.get("command").required(""));
    }
    let get = handler.get("httpGet");
    if get.is_set() {
        get.get("path").require(errors);
        port_or_name(&get.get("port"), errors);
        get.get("scheme").one_of(errors, &["HTTP", "HTTPS"]);
        for header in get.get("httpHeaders").items() {
            let name = header.get("name");
            let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            if name.is_empty() || !name.text().bytes().all(fine) {
                errors.push(name.invalid("a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"));
            }
        }
    }
    let socket = handler.get("tcpSocket");
    if socket.is_set() {
        port_or_name(&socket.get("port"), errors);
    }
    let grpc = handler.get("grpc");
    if grpc.is_set() {
        let port = grpc.get("port");
        port.reasons(errors, names::port_number(port.int().unwrap_or(0)));
    }
    handler.get("sleep").get("seconds").not_negative(errors);
}

fn port_or_name(port: &At<'_>, errors: &mut Errors) {
    match port.value {
        Value::String(name) => port.reasons(errors, names::port_name(name)),
        _ => {
            let number = port.int().unwrap_or(0);
            let field: &Field = &port.field;
            errors.extend(names::port_number(number).into_iter().map(|why| field.invalid(number, why)));
        }
    }
}
