//! Pods and PodTemplates. Defaults are in `pod_defaults`, the rules for a spec in `validation::pod`.

use api_machinery::{Document, Field, FieldError, Object, Quantity};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::pod_defaults;
use crate::strategy::{Generation, Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{containers, names, pod};

pub(crate) struct Pods;

impl Strategy for Pods {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        pod_defaults::pod(new);
    }
    fn prepare_for_create(&self, moment: &Moment<'_>, new: &mut Document) {
        merge_label_keys(new);
        let class = qos_class(new);
        new.set("status", json!({"phase": "Pending", "qosClass": class}));
        if !new.get_array("spec.schedulingGates").is_empty() {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"});
            set_condition(new, condition, moment.now);
        }
    }
    fn prepare_for_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        new.keep_status_of(old);
    }
    fn prepare_for_status_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        // Kubelets of old corrupted owners, and with them garbage collection.
        match old.get("metadata.ownerReferences") {
            Some(owners) => new.set("metadata.ownerReferences", owners.clone()),
            None => {
                new.metadata_mut().remove("ownerReferences");
            }
        }
        if let Some(class) = old.get("status.qosClass") {
            new.set_default("status.qosClass", class.clone());
        }
        keep_observed_generations(new, old);
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        pod::spec(&At::top(new, "spec"), pod::Of::Pod, &mut errors);
        let gates = At::top(new, "spec").get("schedulingGates");
        let node = At::top(new, "spec").get("nodeName");
        if !gates.is_empty() && !node.is_empty() {
            errors.push(node.forbidden("cannot be set until all schedulingGates have been cleared"));
        }
        let ephemeral = At::top(new, "spec").get("ephemeralContainers");
        if !ephemeral.is_empty() {
            errors.push(ephemeral.forbidden("cannot be set on create"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        validate_update(new, old)
    }
    fn validate_status_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = mirror_stands(new, old);
        let status = At::top(new, "status");
        if new.get("spec.nodeName") != old.get("spec.nodeName") {
            errors.push(status.get("nodeName").forbidden("may not be changed directly"));
        }
        let nominated = status.get("nominatedNodeName");
        if !nominated.is_empty() {
            nominated.reasons(&mut errors, names::dns_subdomain(nominated.text()));
        }
        let class = status.get("qosClass");
        if class.is_set() && old.get("status.qosClass").is_some_and(|before| before != class.value) {
            errors.push(class.invalid(crate::validation::meta::IMMUTABLE));
        }
        for ip in status.get("podIPs").items() {
            let ip = ip.get("ip");
            ip.reasons(&mut errors, names::ip(ip.text()));
        }
        // A container that ended for good cannot come back.
        if old.get_str("spec.restartPolicy") == Some("Never") {
            for list in ["containerStatuses", "initContainerStatuses"] {
                for now in status.get(list).items() {
                    let before = old
                        .get_array(&format!("status.{list}"))
                        .iter()
                        .find(|one| one.get("name") == now.value.get("name"));
                    let ended = before.is_some_and(|one| !one["state"]["terminated"].is_null());
                    let restarts = new.get_array("spec.containers").iter().any(|one| {
                        one.get("name") == now.value.get("name")
                            && (one.get("restartPolicy").is_some() || one.get("restartPolicyRules").is_some())
                    });
                    if ended
                        && list == "containerStatuses"
                        && !restarts
                        && now.value["state"]["terminated"].is_null()
                    {
                        errors.push(
                            now.get("state").forbidden("may not be transitioned to non-terminated state"),
                        );
                    }
                }
            }
        }
        errors
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        // Only on creation: updates of pods are frequent and nobody reads them.
        if old.is_some() {
            return Vec::new();
        }
        let mut all = Vec::new();
        let reasons = names::dns_label(new.name());
        if !reasons.is_empty() {
            all.push(format!("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]", reasons.join(" ")));
        }
        all.extend(pod::spec_warnings(&At::top(new, "spec")));
        all
    }
    fn selectable(&self) -> &'static [&'static str] {
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ]
    }
    fn select(&self, object: &Object, path: &str) -> String {
        match path {
            "spec.hostNetwork" => (object.field(path) == Some(Value::Bool(true))).to_string(),
            _ => crate::strategy::field_text(object, path),
        }
    }
    fn grace_seconds(&self, object: &Document, asked: Option<i64>) -> Option<i64> {
        let wanted = asked.or_else(|| object.get_i64("spec.terminationGracePeriodSeconds")).unwrap_or(0);
        let unscheduled = object.get_str("spec.nodeName").is_none_or(str::is_empty);
        let over = matches!(object.get_str("status.phase"), Some("Failed" | "Succeeded"));
        if unscheduled || over {
            return Some(0);
        }
        Some(if wanted < 0 { 1 } else { wanted })
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

/// `matchLabelKeys` say "pods alike in these labels": what this pod has there becomes part of the selectors,
/// once, so that the scheduler needs to know selectors only.
fn merge_label_keys(pod: &mut Document) {
    let labels = pod.labels();
    let spread = pod_defaults::items(pod.get_mut("spec.topologySpreadConstraints"));
    spread.for_each(|constraint| merge_into_selector(constraint, &labels));
    for kind in ["podAffinity", "podAntiAffinity"] {
        let path = format!("spec.affinity.{kind}");
        let Some(Value::Object(affinity)) = pod.get_mut(&path) else { continue };
        let required = affinity.get_mut("requiredDuringSchedulingIgnoredDuringExecution");
        pod_defaults::items(required).for_each(|term| merge_into_selector(term, &labels));
        let preferred = affinity.get_mut("preferredDuringSchedulingIgnoredDuringExecution");
        for weighted in pod_defaults::items(preferred) {
            if let Some(Value::Object(term)) = weighted.get_mut("podAffinityTerm") {
                merge_into_selector(term, &labels);
            }
        }
    }
}

fn merge_into_selector(term: &mut Map<String, Value>, labels: &std::collections::BTreeMap<String, String>) {
    let mut added = Vec::new();
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(list).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        for key in keys {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    // No selector matches nothing, and shall go on doing so.
    if let Some(Value::Object(selector)) = term.get_mut("labelSelector")
        && !added.is_empty()
        && let Value::Array(all) = selector.entry("matchExpressions").or_insert_with(|| json!([]))
    {
        all.append(&mut added);
    }
}

/// A status writer that knows nothing of generations must not wipe out what another recorded.
fn keep_observed_generations(new: &mut Document, old: &Document) {
    let is_zero = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0) == 0;
    if is_zero(new.get("status.observedGeneration"))
        && let Some(observed) = old.get("status.observedGeneration")
    {
        new.set("status.observedGeneration", observed.clone());
    }
    let before = old.get_array("status.conditions").to_vec();
    let Some(Value::Array(conditions)) = new.get_mut("status.conditions") else { return };
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        if !is_zero(condition.get("observedGeneration")) {
            continue;
        }
        let same = before.iter().find(|one| one.get("type") == condition.get("type"));
        if let Some(observed) = same.and_then(|one| one.get("observedGeneration")) {
            condition.insert("observedGeneration".to_owned(), observed.clone());
        }
    }
}

/// Sets a condition by type; its transition time moves only if its status does.
pub(crate) fn set_condition(pod: &mut Document, mut condition: Value, now: Timestamp) {
    let now = Value::from(base_clock::rfc3339(now));
    let list = pod.object_mut("status").entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let Value::Array(list) = list else { return };
    let found = list.iter_mut().find(|one| one.get("type") == condition.get("type"));
    match found {
        Some(before) => {
            let same = before.get("status") == condition.get("status");
            let at = before.get("lastTransitionTime").filter(|_| same).cloned().unwrap_or(now);
            condition["lastTransitionTime"] = at;
            *before = condition;
        }
        None => {
            condition["lastTransitionTime"] = now;
            list.push(condition);
        }
    }
}

pub(crate) fn is_ready(pod: &Document) -> bool {
    pod.get_array("status.conditions").iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// By requests and limits of CPU and memory over all containers.
pub(crate) fn qos_class(pod: &Document) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let pod_level = pod.get("spec.resources").filter(|resources| resources.is_object());
    let lists: Vec<&Value> = match pod_level {
        Some(resources) => vec![resources],
        None => ["spec.containers", "spec.initContainers"]
            .iter()
            .flat_map(|path| pod.get_array(path))
            .map(|container| container.get("resources").unwrap_or(&Value::Null))
            .collect(),
    };
    for resources in lists {
        for name in ["cpu", "memory"] {
            let amount = |kind: &str| {
                let amount = resources.get(kind)?.get(name)?;
                Quantity::from_json(amount).ok().filter(|amount| !amount.is_zero())
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Whether a pod is a node's own invention is settled when it is made: what a mirror pod refers to opens
/// nothing to its node, and that must not change by a change of annotations.
fn mirror_stands(new: &Document, old: &Document) -> Errors {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    let field = || Field::new("metadata").child("annotations").key(MIRROR);
    if new.annotation(MIRROR) == old.annotation(MIRROR) {
        return Vec::new();
    }
    vec![match old.annotation(MIRROR) {
        Some(_) => field().forbidden("may not remove or update mirror pod annotation"),
        None => field().forbidden("may not add mirror pod annotation"),
    }]
}

fn validate_update(new: &Document, old: &Document) -> Errors {
    let mut errors = mirror_stands(new, old);
    let spec = At::top(new, "spec");
    for list in ["containers", "initContainers"] {
        let at = spec.get(list);
        if at.len() != old.get_array(&format!("spec.{list}")).len() {
            errors.push(at.forbidden("pod updates may not add or remove containers"));
            return errors;
        }
        for container in at.items() {
            let image = container.get("image");
            if image.is_empty() {
                errors.push(image.required(""));
            } else if image.text().trim() != image.text() {
                errors.push(image.invalid("must not have leading or trailing whitespace"));
            }
        }
    }
    let deadline = spec.get("activeDeadlineSeconds");
    match (deadline.int(), old.get_i64("spec.activeDeadlineSeconds")) {
        (Some(now), _) if !(1..=i64::from(i32::MAX)).contains(&now) => {
            errors.push(deadline.invalid("must be between 1 and 2147483647, inclusive"));
        }
        (Some(now), Some(before)) if now > before => {
            errors.push(deadline.invalid("must be less than or equal to previous value"));
        }
        (None, Some(_)) => {
            errors.push(
                deadline.field.invalid(Value::Null, "must not update from a positive integer to nil value"),
            );
        }
        _ => {}
    }
    let gated = !old.get_array("spec.schedulingGates").is_empty();
    let fixed = |document: &Document| {
        let mut spec = document.spec().and_then(Value::as_object).cloned().unwrap_or_default();
        for list in ["containers", "initContainers"] {
            for container in pod_defaults::items(spec.get_mut(list)) {
                container.remove("image");
            }
        }
        for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            spec.remove(name);
        }
        let was_negative = old.get_i64("spec.terminationGracePeriodSeconds").is_some_and(|grace| grace < 0);
        if was_negative && new.get_i64("spec.terminationGracePeriodSeconds") == Some(1) {
            spec.remove("terminationGracePeriodSeconds");
        }
        // A pod that no scheduler has looked at may still be narrowed down.
        if gated {
            spec.remove("nodeSelector");
            spec.remove("affinity");
        }
        spec
    };
    let (now, before) = (fixed(new), fixed(old));
    if now != before {
        let changed: Vec<&str> = changed_fields(&now, &before);
        errors
            .push(Field::new("spec").forbidden(format!("{MAY_CHANGE}\n  changed: {}\n", changed.join(", "))));
    }
    if gated {
        let (new_map, old_map) =
            (string_members(new.get("spec.nodeSelector")), string_members(old.get("spec.nodeSelector")));
        if old_map.iter().any(|(key, value)| new_map.get(*key) != Some(value)) {
            errors.push(spec.get("nodeSelector").invalid("only additions are allowed to nodeSelector"));
        }
    }
    for gate in new.get_array("spec.schedulingGates") {
        if !old.get_array("spec.schedulingGates").contains(gate) {
            errors.push(spec.get("schedulingGates").forbidden(
                "only deletion is allowed, but found new scheduling gate '".to_owned()
                    + gate["name"].as_str().unwrap_or_default()
                    + "'",
            ));
        }
    }
    let kept = |toleration: &Value| {
        let same = |one: &Value| {
            ["key", "operator", "value", "effect"].iter().all(|name| one.get(*name) == toleration.get(*name))
        };
        new.get_array("spec.tolerations").iter().any(same)
    };
    if !old.get_array("spec.tolerations").iter().all(kept) {
        errors.push(
            spec.get("tolerations")
                .forbidden("existing toleration can not be modified except its tolerationSeconds"),
        );
    }
    errors
}

fn changed_fields<'a>(now: &'a Map<String, Value>, before: &'a Map<String, Value>) -> Vec<&'a str> {
    let mut names: Vec<&str> = now.keys().chain(before.keys()).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| now.get(*name) != before.get(*name));
    names
}

fn string_members(value: Option<&Value>) -> std::collections::BTreeMap<&str, &str> {
    let members = value.and_then(Value::as_object).into_iter().flatten();
    members.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
}

/// `pods/ephemeralcontainers` only adds.
pub(crate) fn validate_ephemeral_update(new: &Document, old: &Document) -> Errors {
    let mut errors = Vec::new();
    let at = At::top(new, "spec").get("ephemeralContainers");
    let mut mine = std::collections::HashSet::new();
    for list in ["containers", "initContainers"] {
        mine.extend(old.get_array(&format!("spec.{list}")).iter().filter_map(|one| one["name"].as_str()));
    }
    for container in at.items() {
        let name = container.get("name");
        if !mine.insert(name.text()) {
            errors.push(name.duplicate());
        }
        containers::ephemeral(&container, new, &mut errors);
    }
    for before in old.get_array("spec.ephemeralContainers") {
        let name = before["name"].as_str().unwrap_or_default();
        match at.items().find(|one| one.get("name").text() == name) {
            None => errors
                .push(at.forbidden(format!("existing ephemeral containers {name:?} may not be removed\n"))),
            Some(now) if now.value != before => {
                errors.push(
                    at.forbidden(format!("existing ephemeral containers {name:?} may not be changed\n")),
                );
            }
            Some(_) => {}
        }
    }
    errors
}

/// `pods/resize`: `shaped` (a copy of `old`) gets the resources of `new`; anything else that differs is refused.
pub(crate) fn resize(shaped: &mut Document, new: &Document, old: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut given = new.spec().and_then(Value::as_object).cloned().unwrap_or_default();
    let before = old.spec().and_then(Value::as_object).cloned().unwrap_or_default();
    for list in ["containers", "initContainers"] {
        let (now, then) = (new.get_array(&format!("spec.{list}")), old.get_array(&format!("spec.{list}")));
        if now.len() != then.len() {
            errors.push(
                Field::new("spec").child(list).forbidden("pod resize may not add or remove containers"),
            );
            return errors;
        }
        let resources: Vec<[Option<Value>; 2]> =
            now.iter().map(|one| [one.get("resources").cloned(), one.get("resizePolicy").cloned()]).collect();
        for (container, [resources, policy]) in
            pod_defaults::items(shaped.get_mut(&format!("spec.{list}"))).zip(resources)
        {
            for (name, value) in [("resources", resources), ("resizePolicy", policy)] {
                match value {
                    Some(value) => container.insert(name.to_owned(), value),
                    None => container.remove(name),
                };
            }
        }
        for (container, then) in pod_defaults::items(given.get_mut(list)).zip(then) {
            for name in ["resources", "resizePolicy"] {
                match then.get(name) {
                    Some(value) => container.insert(name.to_owned(), value.clone()),
                    None => container.remove(name),
                };
            }
        }
    }
    if given != before {
        errors.push(Field::new("spec").forbidden("only cpu and memory resources are mutable"));
    }
    if matches!(old.get_str("status.phase"), Some("Succeeded" | "Failed")) {
        errors.push(Field::new("spec").forbidden("pods that have completed cannot be resized"));
    }
    if qos_class(shaped) != qos_class(old) {
        errors.push(
            Field::new("spec")
                .invalid(qos_class(shaped), "Pod QOS Class may not change as a result of resizing"),
        );
    }
    for list in ["containers", "initContainers"] {
        for container in At::top(shaped, "spec").get(list).items() {
            containers::resources(&container.get("resources"), &mut errors);
        }
    }
    errors
}

pub(crate) struct PodTemplates;

impl Strategy for PodTemplates {
    fn generation(&self) -> Generation {
        Generation::OnContent
    }
    fn defaults(&self, new: &mut Document) {
        pod_defaults::template(new, "template");
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        pod::template(&At::top(new, "template"), &mut errors);
        errors
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_of_service_follows_requests_and_limits() {
        for (resources, wanted) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (
                json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1024Mi"}}),
                "Guaranteed",
            ),
            (
                json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
                "Burstable",
            ),
            (json!({"requests": {"cpu": "0"}}), "BestEffort"),
        ] {
            let value = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
            assert_eq!(qos_class(&Document::from_value(value).unwrap_or_default()), wanted);
        }
    }
}
