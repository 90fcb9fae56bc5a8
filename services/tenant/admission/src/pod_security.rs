//! PodSecurity: namespaces' labels say how privileged their pods may be.
//!
//! `enforce` refuses pods, `warn` tells whoever writes pods or what makes them. The three levels and the words
//! of a violation are upstream's (<https://kubernetes.io/docs/concepts/security/pod-security-standards/>), at
//! their latest version, whatever version the labels pin.

use api_machinery::{Document, Gvr, Status};
use async_trait::async_trait;
use serde_json::Value;

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

pub(crate) struct PodSecurity;

const NAMESPACES: Gvr = Gvr::core("namespaces");

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        Some(match text {
            "privileged" => Level::Privileged,
            "baseline" => Level::Baseline,
            "restricted" => Level::Restricted,
            _ => return None,
        })
    }
}

#[async_trait]
impl Admission for PodSecurity {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let Some(new) = object else { return Ok(Vec::new()) };
        if attributes.is("", "namespaces") {
            check_labels(attributes, new)?;
            return Ok(Vec::new());
        }
        let is_pod = attributes.is("", "pods")
            || (attributes.is_under("", "pods") && attributes.subresource == "ephemeralcontainers");
        let template = template_path(attributes);
        if !is_pod && template.is_none() {
            return Ok(Vec::new());
        }
        let Some(namespace) = attributes.lookup.get(&NAMESPACES, None, attributes.namespace) else {
            return Ok(Vec::new());
        };
        let level = |mode: &str| {
            // A level nobody knows is taken as the strictest: a typing error must not open the door.
            let text = namespace.header.labels.get(&format!("pod-security.kubernetes.io/{mode}"))?;
            let version = namespace.header.labels.get(&format!("pod-security.kubernetes.io/{mode}-version"));
            let shown = format!("{text}:{}", version.map_or("latest", String::as_str));
            Some((Level::parse(text).unwrap_or(Level::Restricted), shown))
        };
        let spec = match template {
            Some(path) => new.get(&path),
            None => new.get("spec"),
        };
        let Some(spec) = spec else { return Ok(Vec::new()) };
        if is_pod {
            // An update that changes nothing of these is not stopped by a policy that came later.
            let unchanged = attributes.operation == Operation::Update
                && attributes.subresource.is_empty()
                && old.is_some_and(|old| old.spec() == new.spec());
            if let Some((level, shown)) = level("enforce").filter(|_| !unchanged) {
                let violations = violations(spec, level);
                if !violations.is_empty() {
                    return Err(attributes
                        .forbidden(format!("violates PodSecurity {shown:?}: {}", violations.join(", "))));
                }
            }
        }
        if let Some((level, shown)) = level("warn") {
            let violations = violations(spec, level);
            if !violations.is_empty() {
                attributes
                    .warnings
                    .add(format!("would violate PodSecurity {shown:?}: {}", violations.join(", ")));
            }
        }
        Ok(Vec::new())
    }
}

fn check_labels(attributes: &Attributes<'_>, namespace: &Document) -> Result<(), Status> {
    let mut errors = Vec::new();
    for mode in ["enforce", "audit", "warn"] {
        let key = format!("pod-security.kubernetes.io/{mode}");
        if let Some(text) = namespace.label(&key)
            && Level::parse(text).is_none()
        {
            let field = api_machinery::Field::new("metadata.labels").key(&key);
            errors.push(field.invalid(text, "must be one of privileged, baseline, restricted"));
        }
        let key = format!("{key}-version");
        if let Some(text) = namespace.label(&key) {
            let minor = text.strip_prefix("v1.").is_some_and(|minor| minor.parse::<u32>().is_ok());
            if text != "latest" && !minor {
                let field = api_machinery::Field::new("metadata.labels").key(&key);
                errors.push(field.invalid(text, "must be \"latest\" or \"v1.x\""));
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("", "Namespace", attributes.name, &errors)) }
}

/// Where a kind that makes pods keeps their spec.
fn template_path(attributes: &Attributes<'_>) -> Option<String> {
    if !attributes.subresource.is_empty() {
        return None;
    }
    let path = match (&*attributes.gvr.group, &*attributes.gvr.resource) {
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("", "replicationcontrollers")
        | ("batch", "jobs") => "spec.template.spec",
        ("batch", "cronjobs") => "spec.jobTemplate.spec.template.spec",
        ("", "podtemplates") => "template.spec",
        _ => return None,
    };
    Some(path.to_owned())
}

struct Pod<'a> {
    spec: &'a Value,
    containers: Vec<&'a Value>,
    linux: bool,
}

/// What the level forbids in `spec`, as `reason (detail)`.
fn violations(spec: &Value, level: Level) -> Vec<String> {
    let list = |name: &str| spec.get(name).and_then(Value::as_array).into_iter().flatten();
    let containers =
        list("initContainers").chain(list("containers")).chain(list("ephemeralContainers")).collect();
    let linux = spec.pointer("/os/name").and_then(Value::as_str) != Some("windows");
    let pod = Pod { spec, containers, linux };
    let mut found = Vec::new();
    let mut say = |reason: &str, detail: Option<String>| {
        if let Some(detail) = detail {
            found.push(format!("{reason} ({detail})"));
        }
    };
    if level >= Level::Baseline {
        say("host namespaces", pod.host_namespaces());
        say(
            "privileged",
            pod.containers_that(|one| flag(one, "/securityContext/privileged") == Some(true))
                .map(|who| format!("{who} must not set securityContext.privileged=true")),
        );
        if level == Level::Baseline {
            say("non-default capabilities", pod.added_capabilities(&BASELINE_CAPABILITIES));
        }
        say("hostPath volumes", pod.volumes_of(&["hostPath"]).map(|who| who.to_owned()));
        say("hostPort", pod.host_ports());
        say(
            "procMount",
            pod.containers_that(|one| {
                text(one, "/securityContext/procMount").is_some_and(|mount| mount != "Default")
            })
            .map(|who| format!("{who} must not set securityContext.procMount to \"Unmasked\"")),
        );
        say("seLinuxOptions", pod.selinux());
        say(
            "forbidden AppArmor profile",
            pod.profiles("appArmorProfile", &["RuntimeDefault", "Localhost"])
                .map(|(who, value)| format!("{who} must not set AppArmor profile type to {value:?}")),
        );
        if level == Level::Baseline {
            say(
                "seccompProfile",
                pod.profiles("seccompProfile", &["RuntimeDefault", "Localhost"]).map(|(who, value)| {
                    format!("{who} must not set securityContext.seccompProfile.type to {value:?}")
                }),
            );
        }
        say("forbidden sysctls", pod.sysctls());
        say(
            "hostProcess",
            pod.containers_that(|one| flag(one, "/securityContext/windowsOptions/hostProcess") == Some(true))
                .map(|who| format!("{who} must not set securityContext.windowsOptions.hostProcess=true")),
        );
        say("probe or lifecycle host", pod.probe_hosts());
    }
    if level >= Level::Restricted {
        if pod.linux {
            say(
                "allowPrivilegeEscalation != false",
                pod.containers_that(|one| {
                    flag(one, "/securityContext/allowPrivilegeEscalation") != Some(false)
                })
                .map(|who| format!("{who} must set securityContext.allowPrivilegeEscalation=false")),
            );
            say("unrestricted capabilities", pod.undropped_capabilities());
        }
        say("restricted volume types", pod.restricted_volumes());
        say("runAsNonRoot != true", pod.root());
        say("runAsUser=0", pod.user_zero());
        if pod.linux {
            say("seccompProfile", pod.seccomp_missing());
        }
    }
    found
}

const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const SAFE_SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];

fn flag(value: &Value, pointer: &str) -> Option<bool> {
    value.pointer(pointer)?.as_bool()
}
fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str()
}
fn name(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// `container "a"`, `containers "a", "b"`; nothing for none.
fn who(noun: &str, names: &[&str]) -> Option<String> {
    match names {
        [] => None,
        [one] => Some(format!("{noun} {one:?}")),
        more => Some(format!("{noun}s {}", quoted(more))),
    }
}

impl Pod<'_> {
    fn containers_that(&self, bad: impl Fn(&Value) -> bool) -> Option<String> {
        let names: Vec<&str> = self.containers.iter().filter(|one| bad(one)).map(|one| name(one)).collect();
        who("container", &names)
    }

    fn host_namespaces(&self) -> Option<String> {
        let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
            .iter()
            .filter(|flag| self.spec.get(**flag) == Some(&Value::Bool(true)))
            .map(|flag| format!("{flag}=true"))
            .collect();
        (!set.is_empty()).then(|| set.join(", "))
    }

    fn added(&self, allowed: &[&str]) -> (Vec<&str>, Vec<String>) {
        let mut names = Vec::new();
        let mut bad = std::collections::BTreeSet::new();
        for container in &self.containers {
            let added = container.pointer("/securityContext/capabilities/add").and_then(Value::as_array);
            let wrong: Vec<&str> = added
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .filter(|one| !allowed.contains(one))
                .collect();
            if !wrong.is_empty() {
                names.push(name(container));
                bad.extend(wrong.into_iter().map(str::to_owned));
            }
        }
        (names, bad.into_iter().collect())
    }

    fn added_capabilities(&self, allowed: &[&str]) -> Option<String> {
        let (names, bad) = self.added(allowed);
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        who("container", &names)
            .map(|who| format!("{who} must not include {} in securityContext.capabilities.add", quoted(&bad)))
    }

    fn undropped_capabilities(&self) -> Option<String> {
        let kept = self.containers_that(|one| {
            let dropped = one.pointer("/securityContext/capabilities/drop").and_then(Value::as_array);
            !dropped.into_iter().flatten().any(|one| one == "ALL")
        });
        let mut details = Vec::new();
        details.extend(kept.map(|who| format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]")));
        details.extend(self.added_capabilities(&["NET_BIND_SERVICE"]));
        (!details.is_empty()).then(|| details.join("; "))
    }

    fn volumes(&self) -> impl Iterator<Item = &Value> {
        self.spec.get("volumes").and_then(Value::as_array).into_iter().flatten()
    }

    fn volumes_of(&self, kinds: &[&str]) -> Option<String> {
        let names: Vec<&str> = self
            .volumes()
            .filter(|volume| kinds.iter().any(|kind| volume.get(*kind).is_some()))
            .map(name)
            .collect();
        who("volume", &names)
    }

    fn restricted_volumes(&self) -> Option<String> {
        const FINE: [&str; 9] = [
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "image",
            "persistentVolumeClaim",
            "projected",
            "secret",
        ];
        let mut names = Vec::new();
        let mut kinds = std::collections::BTreeSet::new();
        for volume in self.volumes() {
            let members = volume.as_object().into_iter().flatten();
            for (kind, _) in members.filter(|(kind, _)| *kind != "name" && !FINE.contains(&kind.as_str())) {
                names.push(name(volume));
                kinds.insert(kind.as_str());
            }
        }
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let verb = if names.len() == 1 { "uses" } else { "use" };
        let noun = if kinds.len() == 1 { "type" } else { "types" };
        who("volume", &names).map(|who| format!("{who} {verb} restricted volume {noun} {}", quoted(&kinds)))
    }

    fn host_ports(&self) -> Option<String> {
        let mut names = Vec::new();
        let mut ports = std::collections::BTreeSet::new();
        for container in &self.containers {
            let found = container.get("ports").and_then(Value::as_array).into_iter().flatten();
            let found: Vec<i64> =
                found.filter_map(|port| port.get("hostPort")?.as_i64()).filter(|port| *port != 0).collect();
            if !found.is_empty() {
                names.push(name(container));
                ports.extend(found);
            }
        }
        let verb = if names.len() == 1 { "uses" } else { "use" };
        let noun = if ports.len() == 1 { "hostPort" } else { "hostPorts" };
        let shown: Vec<String> = ports.iter().map(i64::to_string).collect();
        who("container", &names).map(|who| format!("{who} {verb} {noun} {}", shown.join(", ")))
    }

    /// The pod and containers whose profile is not one of `allowed`, and the value.
    fn profiles(&self, kind: &str, allowed: &[&str]) -> Option<(String, String)> {
        let pointer = format!("/securityContext/{kind}/type");
        let wrong =
            |value: &Value| text(value, &pointer).filter(|one| !allowed.contains(one)).map(str::to_owned);
        let mut setters = Vec::new();
        let mut value = None;
        if let Some(found) = wrong(self.spec) {
            setters.push("pod".to_owned());
            value = Some(found);
        }
        let names: Vec<&str> =
            self.containers.iter().filter(|one| wrong(one).is_some()).map(|one| name(one)).collect();
        setters.extend(who("container", &names));
        let value = value.or_else(|| self.containers.iter().find_map(|one| wrong(one)))?;
        Some((setters.join(" and "), value))
    }

    fn selinux(&self) -> Option<String> {
        const TYPES: [&str; 5] =
            ["", "container_engine_t", "container_init_t", "container_kvm_t", "container_t"];
        let wrong = |value: &Value| {
            let options = value.pointer("/securityContext/seLinuxOptions")?;
            let get = |name: &str| options.get(name).and_then(Value::as_str).unwrap_or_default();
            let mut bad = Vec::new();
            if !TYPES.contains(&get("type")) {
                bad.push(format!("type {:?}", get("type")));
            }
            bad.extend(
                ["user", "role"]
                    .iter()
                    .filter(|name| !get(name).is_empty())
                    .map(|name| format!("{name} may not be set")),
            );
            (!bad.is_empty()).then(|| bad.join("; "))
        };
        let mut setters = Vec::new();
        let mut data = wrong(self.spec);
        if data.is_some() {
            setters.push("pod".to_owned());
        }
        let names: Vec<&str> =
            self.containers.iter().filter(|one| wrong(one).is_some()).map(|one| name(one)).collect();
        setters.extend(who("container", &names));
        data = data.or_else(|| self.containers.iter().find_map(|one| wrong(one)));
        data.map(|data| {
            format!("{} set forbidden securityContext.seLinuxOptions: {data}", setters.join(" and "))
        })
    }

    fn sysctls(&self) -> Option<String> {
        let all =
            self.spec.pointer("/securityContext/sysctls").and_then(Value::as_array).into_iter().flatten();
        let bad: Vec<&str> = all.map(name).filter(|name| !SAFE_SYSCTLS.contains(name)).collect();
        (!bad.is_empty()).then(|| bad.join(", "))
    }

    fn probe_hosts(&self) -> Option<String> {
        let mut names = Vec::new();
        let mut hosts = std::collections::BTreeSet::new();
        for container in &self.containers {
            let handlers = [
                "/livenessProbe",
                "/readinessProbe",
                "/startupProbe",
                "/lifecycle/postStart",
                "/lifecycle/preStop",
            ];
            let found: Vec<&str> = handlers
                .iter()
                .flat_map(|at| ["httpGet", "tcpSocket"].map(|kind| format!("{at}/{kind}/host")))
                .filter_map(|pointer| text(container, &pointer))
                .filter(|host| !host.is_empty())
                .collect();
            if !found.is_empty() {
                names.push(name(container));
                hosts.extend(found);
            }
        }
        let verb = if names.len() == 1 { "uses" } else { "use" };
        let hosts: Vec<&str> = hosts.into_iter().collect();
        let noun = if hosts.len() == 1 { "host" } else { "hosts" };
        who("container", &names)
            .map(|who| format!("{who} {verb} probe or lifecycle {noun} {}", quoted(&hosts)))
    }

    fn root(&self) -> Option<String> {
        let of = |value: &Value| flag(value, "/securityContext/runAsNonRoot");
        let pod = of(self.spec);
        let mut setters = Vec::new();
        if pod == Some(false) {
            setters.push("pod".to_owned());
        }
        setters.extend(self.containers_that(|one| of(one) == Some(false)));
        if !setters.is_empty() {
            return Some(format!(
                "{} must not set securityContext.runAsNonRoot=false",
                setters.join(" and ")
            ));
        }
        if pod == Some(true) {
            return None;
        }
        self.containers_that(|one| of(one).is_none())
            .map(|who| format!("pod or {who} must set securityContext.runAsNonRoot=true"))
    }

    fn user_zero(&self) -> Option<String> {
        let zero =
            |value: &Value| value.pointer("/securityContext/runAsUser").and_then(Value::as_i64) == Some(0);
        let mut setters = Vec::new();
        if zero(self.spec) {
            setters.push("pod".to_owned());
        }
        setters.extend(self.containers_that(zero));
        (!setters.is_empty()).then(|| format!("{} must not set runAsUser=0", setters.join(" and ")))
    }

    fn seccomp_missing(&self) -> Option<String> {
        if let Some((who, value)) = self.profiles("seccompProfile", &["RuntimeDefault", "Localhost"]) {
            return Some(format!("{who} must not set securityContext.seccompProfile.type to {value:?}"));
        }
        if text(self.spec, "/securityContext/seccompProfile/type").is_some() {
            return None;
        }
        self.containers_that(|one| text(one, "/securityContext/seccompProfile/type").is_none()).map(|who| {
            format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn levels_forbid_what_the_standards_say() {
        let restricted = json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]}}}]});
        let plain = json!({"containers": [{"name": "c"}]});
        let none: Vec<&str> = Vec::new();
        for (spec, level, wanted) in [
            (&restricted, Level::Restricted, none.clone()),
            (&plain, Level::Baseline, none.clone()),
            (
                &plain,
                Level::Restricted,
                vec![
                    "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)",
                    "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])",
                    "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
                    "seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
                ],
            ),
            (
                &json!({"hostNetwork": true, "hostPID": true, "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
                    "containers": [{"name": "c", "securityContext": {"privileged": true,
                        "capabilities": {"add": ["NET_ADMIN"]}}, "ports": [{"hostPort": 80}]}]}),
                Level::Baseline,
                vec![
                    "host namespaces (hostNetwork=true, hostPID=true)",
                    "privileged (container \"c\" must not set securityContext.privileged=true)",
                    "non-default capabilities (container \"c\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
                    "hostPath volumes (volume \"v\")",
                    "hostPort (container \"c\" uses hostPort 80)",
                ],
            ),
        ] {
            assert_eq!(violations(spec, level), wanted);
        }
    }
}
