//! A pod's spec, in a pod or in a template.

use std::collections::HashSet;

use api_machinery::Document;

use super::at::{At, Errors};
use super::{containers, meta, names, scheduling, volumes};

/// Templates promise less: a pod's node and priority are known, a template's are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Pod,
    Template,
}

/// `spec.template`: metadata and spec.
pub(crate) fn template(template: &At<'_>, errors: &mut Errors) {
    if !template.is_set() {
        errors.push(template.required(""));
        return;
    }
    let metadata = template.get("metadata");
    errors.extend(meta::labels(Some(metadata.get("labels").value), &metadata.get("labels").field));
    errors.extend(meta::annotations(
        Some(metadata.get("annotations").value),
        &metadata.get("annotations").field,
    ));
    let spec = template.get("spec");
    self::spec(&spec, Of::Template, errors);
    let ephemeral = spec.get("ephemeralContainers");
    if !ephemeral.is_empty() {
        errors.push(ephemeral.forbidden("ephemeral containers not allowed in pod template"));
    }
}

pub(crate) fn spec(spec: &At<'_>, of: Of, errors: &mut Errors) {
    let volumes = volumes::validate(&spec.get("volumes"), errors);
    let host_network = spec.get("hostNetwork").flag();
    containers::validate(spec, &volumes, host_network, errors);

    spec.get("restartPolicy").must_be_one_of(errors, &["Always", "OnFailure", "Never"]);
    spec.get("dnsPolicy")
        .must_be_one_of(errors, &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]);
    dns_config(spec, errors);
    errors.extend(meta::labels(Some(spec.get("nodeSelector").value), &spec.get("nodeSelector").field));
    security_context(&spec.get("securityContext"), spec, errors);
    for secret in spec.get("imagePullSecrets").items() {
        secret.get("name").require(errors);
    }
    for (name, check) in [
        ("serviceAccountName", names::dns_subdomain as fn(&str) -> Vec<String>),
        ("nodeName", names::dns_subdomain),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
        ("schedulerName", names::dns_subdomain),
    ] {
        let at = spec.get(name);
        if !at.is_empty() {
            at.reasons(errors, check(at.text()));
        }
    }
    let deadline = spec.get("activeDeadlineSeconds");
    if deadline.int().is_some_and(|seconds| !(1..=i64::from(i32::MAX)).contains(&seconds)) {
        errors.push(deadline.invalid("must be between 1 and 2147483647, inclusive"));
    }
    if of == Of::Pod || spec.get("terminationGracePeriodSeconds").int().is_some_and(|grace| grace < -1) {
        spec.get("terminationGracePeriodSeconds").not_negative(errors);
    }
    for alias in spec.get("hostAliases").items() {
        let ip = alias.get("ip");
        ip.reasons(errors, names::ip(ip.text()));
        for host in alias.get("hostnames").items() {
            host.reasons(errors, names::dns_subdomain(host.text()));
        }
    }
    for gate in spec.get("readinessGates").items() {
        let kind = gate.get("conditionType");
        kind.reasons(errors, names::qualified_name(kind.text()));
    }
    let mut seen = HashSet::new();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.get("name");
        name.reasons(errors, names::qualified_name(name.text()));
        if !seen.insert(name.text()) {
            errors.push(gate.field.duplicate(name.text()));
        }
    }
    spec.get("preemptionPolicy").one_of(errors, &["Never", "PreemptLowerPriority"]);
    spec.get("os").get("name").one_of(errors, &["linux", "windows"]);
    let process = spec.get("shareProcessNamespace");
    if process.flag() && spec.get("hostPID").flag() {
        errors.push(process.invalid("ShareProcessNamespace and HostPID cannot both be enabled"));
    }
    if spec.get("resources").is_set() {
        containers::resources(&spec.get("resources"), errors);
    }
    for (_, amount) in spec.get("overhead").members() {
        containers::amount(&amount, errors);
    }
    scheduling::validate(spec, errors);
}

fn dns_config(spec: &At<'_>, errors: &mut Errors) {
    let config = spec.get("dnsConfig");
    let servers = config.get("nameservers");
    if spec.get("dnsPolicy").text() == "None" && servers.is_empty() {
        errors.push(servers.required("must provide at least one DNS nameserver when `dnsPolicy` is None"));
    }
    if servers.len() > 3 {
        errors.push(servers.invalid("must not have more than 3 nameservers"));
    }
    for server in servers.items() {
        server.reasons(errors, names::ip(server.text()));
    }
    let searches = config.get("searches");
    if searches.len() > 32 {
        errors.push(searches.invalid("must not have more than 32 search paths"));
    }
    for search in searches.items() {
        let name = search.text().strip_suffix('.').unwrap_or(search.text());
        if name.is_empty() {
            continue;
        }
        // Underscores occur in service records' domains.
        search.reasons(errors, names::dns_subdomain(&name.replace('_', "a")));
    }
    for option in config.get("options").items() {
        if option.get("name").is_empty() {
            errors.push(option.required("must not be empty"));
        }
    }
}

fn security_context(context: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    for name in ["runAsUser", "runAsGroup", "fsGroup"] {
        user_id(&context.get(name), errors);
    }
    for group in context.get("supplementalGroups").items() {
        user_id(&group, errors);
    }
    context.get("fsGroupChangePolicy").one_of(errors, &["Always", "OnRootMismatch"]);
    context.get("supplementalGroupsPolicy").one_of(errors, &["Merge", "Strict"]);
    seccomp(&context.get("seccompProfile"), errors);
    app_armor(&context.get("appArmorProfile"), errors);
    let mut seen = HashSet::new();
    for sysctl in context.get("sysctls").items() {
        let name = sysctl.get("name");
        if name.is_empty() {
            errors.push(name.required(""));
        } else if !sysctl_name(name.text()) {
            errors.push(name.invalid("must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"));
        } else if !seen.insert(name.text().replace('/', ".")) {
            errors.push(name.duplicate());
        }
        let host = |flag: &str| spec.get(flag).flag();
        if (name.text().starts_with("net.") && host("hostNetwork"))
            || (name.text().starts_with("kernel.shm") && host("hostIPC"))
        {
            errors.push(name.invalid("may not be specified when 'hostNetwork' or 'hostIPC' is true"));
        }
    }
    if spec.get("hostUsers").value == &serde_json::Value::Bool(false) {
        for flag in ["hostNetwork", "hostPID", "hostIPC"] {
            if spec.get(flag).flag() {
                errors.push(spec.get(flag).forbidden("when `hostUsers` is false"));
            }
        }
    }
}

fn sysctl_name(name: &str) -> bool {
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        bytes.first().is_some_and(inner)
            && bytes.last().is_some_and(inner)
            && bytes.iter().all(|b| inner(b) || matches!(b, b'-' | b'_'))
    };
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

pub(crate) fn user_id(at: &At<'_>, errors: &mut Errors) {
    if at.int().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
        errors.push(at.invalid("must be between 0 and 2147483647, inclusive"));
    }
}

pub(crate) fn seccomp(profile: &At<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let file = profile.get("localhostProfile");
    match profile.get("type").text() {
        "Localhost" => {
            if !file.is_set() {
                errors.push(file.required("must be set when seccomp type is Localhost"));
            } else {
                volumes::relative_path(&file, errors);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if file.is_set() {
                errors.push(file.invalid("can only be set when seccomp type is Localhost"));
            }
        }
        "" => errors.push(profile.get("type").required("type is required when seccompProfile is set")),
        _ => errors.push(profile.get("type").unsupported(&["Localhost", "RuntimeDefault", "Unconfined"])),
    }
}

pub(crate) fn app_armor(profile: &At<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let name = profile.get("localhostProfile");
    match profile.get("type").text() {
        "Localhost" => {
            if name.text().trim().is_empty() {
                errors.push(name.required("must be set when AppArmor type is Localhost"));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if name.is_set() {
                errors.push(name.invalid("can only be set when AppArmor type is Localhost"));
            }
        }
        "" => errors.push(profile.get("type").required("type is required when appArmorProfile is set")),
        _ => errors.push(profile.get("type").unsupported(&["Localhost", "RuntimeDefault", "Unconfined"])),
    }
}

// ---- warnings ----

pub(crate) fn template_warnings(new: &Document, old: Option<&Document>, path: &str) -> Vec<String> {
    // Only when the template is new: nobody wants to hear it again at every scale.
    if old.is_some_and(|old| old.get(path) == new.get(path)) {
        return Vec::new();
    }
    let Some(value) = new.get(path) else { return Vec::new() };
    let at = At::new(value.get("spec"), api_machinery::Field::new(path).child("spec"));
    spec_warnings(&at)
}

/// What is to be said of a node's label that has been replaced.
pub(crate) fn deprecated_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    })
}

pub(crate) fn spec_warnings(spec: &At<'_>) -> Vec<String> {
    let mut all = Vec::new();
    let selector = spec.get("nodeSelector");
    for (key, at) in selector.members() {
        if let Some(why) = deprecated_label(key) {
            all.push(format!("{}: {why}", at.field));
        }
    }
    let affinity = spec.get("affinity").get("nodeAffinity");
    let required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution").get("nodeSelectorTerms");
    let preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution");
    let terms = required.items().chain(preferred.items().map(|weighted| weighted.get("preference")));
    let expressions = terms.flat_map(|term| term.get("matchExpressions").items());
    let spread = spec.get("topologySpreadConstraints");
    let keys = expressions
        .map(|expression| expression.get("key"))
        .chain(spread.items().map(|constraint| constraint.get("topologyKey")));
    all.extend(keys.filter_map(|key| {
        Some(format!("{}: {} is {}", key.field, key.text(), deprecated_label(key.text())?))
    }));
    for volume in spec.get("volumes").items() {
        for (kind, text) in [
            ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
            ("gitRepo", "deprecated in v1.11"),
            ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
            ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
            ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
            ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
            ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
            ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
            ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
        ] {
            if volume.get(kind).is_set() {
                all.push(format!("{}: {text}", volume.get(kind).field));
            }
        }
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get(list).items() {
            let mut seen = HashSet::new();
            for variable in container.get("env").items() {
                let name = variable.get("name").text();
                if !seen.insert(name) {
                    all.push(format!(
                        "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                        variable.field
                    ));
                }
            }
        }
    }
    if spec.get("terminationGracePeriodSeconds").int().is_some_and(|grace| grace < 0) {
        let field = spec.get("terminationGracePeriodSeconds").field;
        all.push(format!("{field}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    all
}
