//! Kinds that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController; what
//! records their history (ControllerRevision). What scales them is in `autoscaling`.

#[cfg(test)]
use api_machinery::FieldError;
use api_machinery::{Document, Field};
use serde_json::{Value, json};

use super::pod_defaults::{self, items, text};
use crate::strategy::{GarbagePolicy, Generation, NameRule, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{meta, pod, selector};

// ---- Deployment ----

pub(crate) struct Deployments;

impl Strategy for Deployments {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        new.set_default("spec.replicas", 1);
        let strategy = new.object_mut("spec.strategy");
        text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            new.set_default("spec.strategy.rollingUpdate.maxUnavailable", "25%");
            new.set_default("spec.strategy.rollingUpdate.maxSurge", "25%");
        }
        new.set_default("spec.revisionHistoryLimit", 10);
        new.set_default("spec.progressDeadlineSeconds", 600);
        pod_defaults::template(new, "spec.template");
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        scaled(&spec, "deployment", &mut errors);
        template(&spec, &["Always"], &mut errors);
        spec.get("revisionHistoryLimit").not_negative(&mut errors);
        let deadline = spec.get("progressDeadlineSeconds");
        deadline.not_negative(&mut errors);
        if let Some(seconds) = deadline.int()
            && seconds <= spec.get("minReadySeconds").int().unwrap_or(0)
        {
            errors.push(deadline.invalid("must be greater than minReadySeconds"));
        }
        let strategy = spec.get("strategy");
        let rolling = strategy.get("rollingUpdate");
        match strategy.get("type").text() {
            "Recreate" => {
                if rolling.is_set() {
                    errors.push(rolling.forbidden("may not be specified when strategy `type` is 'Recreate'"));
                }
            }
            "RollingUpdate" => {
                if !rolling.is_set() {
                    errors.push(rolling.required("this should be defaulted and never be nil"));
                } else {
                    rolling_update(&rolling, &mut errors);
                }
            }
            _ => errors.push(strategy.get("type").unsupported(&["Recreate", "RollingUpdate"])),
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        same(new, old, "spec.selector", &mut errors);
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        replica_counts(
            new,
            &[
                "observedGeneration",
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
            ],
        )
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        pod::template_warnings(new, old, "spec.template")
    }
}

fn rolling_update(rolling: &At<'_>, errors: &mut Errors) {
    for name in ["maxUnavailable", "maxSurge"] {
        count_or_percent(&rolling.get(name), errors);
    }
    let percent = rolling.get("maxUnavailable");
    if is_zero(&percent) && is_zero(&rolling.get("maxSurge")) {
        errors.push(percent.invalid("may not be 0 when `maxSurge` is 0"));
    }
    at_most_whole(&percent, errors);
}

/// A count, or `10%`.
pub(crate) fn count_or_percent(at: &At<'_>, errors: &mut Errors) {
    match at.value {
        Value::Null => {}
        Value::Number(_) => at.not_negative(errors),
        Value::String(given) => {
            let digits = given.strip_suffix('%').unwrap_or("");
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                errors.push(at.invalid("a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"));
            }
        }
        _ => errors.push(at.invalid("must be an integer or percentage (e.g '5%%')")),
    }
}

pub(crate) fn at_most_whole(at: &At<'_>, errors: &mut Errors) {
    let percent = at.text().strip_suffix('%').and_then(|digits| digits.parse::<u64>().ok());
    if percent.is_some_and(|percent| percent > 100) {
        errors.push(at.invalid("must not be greater than 100%"));
    }
}

fn is_zero(at: &At<'_>) -> bool {
    at.int() == Some(0) || at.text().strip_suffix('%').is_some_and(|digits| digits.parse() == Ok(0))
}

/// Replicas, readiness and a selector that selects the template.
fn scaled(spec: &At<'_>, what: &str, errors: &mut Errors) {
    spec.get("replicas").not_negative(errors);
    spec.get("minReadySeconds").not_negative(errors);
    selected(spec, what, errors);
}

fn selected(spec: &At<'_>, what: &str, errors: &mut Errors) {
    let chosen = spec.get("selector");
    if !chosen.is_set() {
        errors.push(chosen.required(""));
    } else {
        errors.extend(selector::validate(Some(chosen.value), &chosen.field));
        if selector::is_empty(Some(chosen.value)) {
            errors.push(chosen.invalid(format!("empty selector is invalid for {what}")));
        }
    }
    let labels = spec.get("template").get("metadata").get("labels");
    if !selector::is_empty(Some(chosen.value)) && !selector::matches(chosen.value, &string_map(labels.value))
    {
        let shown = if labels.is_set() { labels.value.clone() } else { json!({}) };
        errors.push(labels.field.invalid(shown, "`selector` does not match template `labels`"));
    }
}

/// The pod template of something that keeps pods running.
fn template(spec: &At<'_>, restart: &[&str], errors: &mut Errors) {
    let template = spec.get("template");
    pod::template(&template, errors);
    let pod = template.get("spec");
    let policy = pod.get("restartPolicy");
    if !policy.is_empty() && !restart.contains(&policy.text()) {
        errors.push(policy.unsupported(restart));
    }
    let deadline = pod.get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.push(deadline.forbidden("activeDeadlineSeconds in ReplicaSet is not Supported"));
    }
}

fn same(new: &Document, old: &Document, path: &str, errors: &mut Errors) {
    errors.extend(meta::immutable(new.get(path), old.get(path), &Field::new(path)));
}

fn replica_counts(new: &Document, names: &[&str]) -> Errors {
    let status = At::top(new, "status");
    let mut errors = Vec::new();
    for name in names {
        status.get(name).not_negative(&mut errors);
    }
    status.get("collisionCount").not_negative(&mut errors);
    let total = status.get("replicas").int().unwrap_or(0);
    for name in ["updatedReplicas", "readyReplicas", "availableReplicas", "fullyLabeledReplicas"] {
        let at = status.get(name);
        if names.contains(&name) && at.int().is_some_and(|count| count > total) {
            errors.push(at.invalid("cannot be greater than status.replicas"));
        }
    }
    let (ready, available) = (status.get("readyReplicas"), status.get("availableReplicas"));
    if available.int().unwrap_or(0) > ready.int().unwrap_or(0) && names.contains(&"availableReplicas") {
        errors.push(available.invalid("cannot be greater than readyReplicas"));
    }
    errors
}

fn string_map(value: &Value) -> std::collections::BTreeMap<String, String> {
    let members = value.as_object().into_iter().flatten();
    members.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

// ---- ReplicaSet, ReplicationController ----

/// ReplicaSets, and ReplicationControllers, which they replaced: both keep a number of pods. The older has a
/// map for a selector, may change it, and leaves its pods behind by default.
pub(crate) enum Replicas {
    Set,
    Controller,
}

impl Strategy for Replicas {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn garbage_policy(&self) -> GarbagePolicy {
        match self {
            Replicas::Set => GarbagePolicy::Background,
            Replicas::Controller => GarbagePolicy::Orphan,
        }
    }
    fn defaults(&self, new: &mut Document) {
        new.set_default("spec.replicas", 1);
        let labels = new.get("spec.template.metadata.labels").filter(|labels| labels.is_object());
        if matches!(self, Replicas::Controller)
            && let Some(labels) = labels.cloned()
        {
            new.set_default("spec.selector", labels.clone());
            new.set_default("metadata.labels", labels);
        }
        pod_defaults::template(new, "spec.template");
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        match self {
            Replicas::Set => scaled(&spec, "deployment", &mut errors),
            Replicas::Controller => {
                spec.get("replicas").not_negative(&mut errors);
                spec.get("minReadySeconds").not_negative(&mut errors);
                if !selected_by_map(&spec, &mut errors) {
                    return errors;
                }
            }
        }
        template(&spec, &["Always"], &mut errors);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        if matches!(self, Replicas::Set) {
            same(new, old, "spec.selector", &mut errors);
        }
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        replica_counts(
            new,
            &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
        )
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["status.replicas"]
    }
    /// Counts are written as 0 where upstream's integers are.
    fn select(&self, object: &api_machinery::Object, path: &str) -> String {
        let text = crate::strategy::field_text(object, path);
        if text.is_empty() { "0".to_owned() } else { text }
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        pod::template_warnings(new, old, "spec.template")
    }
}

/// A ReplicationController's selector; false when there is no template to look at further.
fn selected_by_map(spec: &At<'_>, errors: &mut Errors) -> bool {
    let chosen = spec.get("selector");
    if chosen.is_empty() {
        errors.push(chosen.required(""));
    }
    errors.extend(meta::labels(Some(chosen.value), &chosen.field));
    let template = spec.get("template");
    if !template.is_set() {
        errors.push(template.required(""));
        return false;
    }
    let labels = template.get("metadata").get("labels");
    let have = string_map(labels.value);
    if !chosen.is_empty() && string_map(chosen.value).iter().any(|(key, value)| have.get(key) != Some(value))
    {
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
    true
}

// ---- StatefulSet ----

pub(crate) struct StatefulSets;

impl Strategy for StatefulSets {
    fn names(&self) -> NameRule {
        // Becomes part of pods' host names.
        NameRule::DnsSubdomain
    }
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        let spec = new.object_mut("spec");
        text(spec, "podManagementPolicy", "OrderedReady");
        let update = new.object_mut("spec.updateStrategy");
        text(update, "type", "RollingUpdate");
        if update["type"] == "RollingUpdate" {
            new.set_default("spec.updateStrategy.rollingUpdate.partition", 0);
        }
        let policy = new.object_mut("spec.persistentVolumeClaimRetentionPolicy");
        text(policy, "whenDeleted", "Retain");
        text(policy, "whenScaled", "Retain");
        new.set_default("spec.replicas", 1);
        new.set_default("spec.revisionHistoryLimit", 10);
        for claim in items(new.get_mut("spec.volumeClaimTemplates")) {
            text(claim, "apiVersion", "v1");
            text(claim, "kind", "PersistentVolumeClaim");
            let spec = claim.entry("spec").or_insert_with(|| json!({}));
            if let Value::Object(spec) = spec {
                text(spec, "volumeMode", "Filesystem");
            }
            let status = claim.entry("status").or_insert_with(|| json!({}));
            if let Value::Object(status) = status {
                text(status, "phase", "Pending");
            }
        }
        pod_defaults::template(new, "spec.template");
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        scaled(&spec, "statefulset", &mut errors);
        template(&spec, &["Always"], &mut errors);
        spec.get("podManagementPolicy").must_be_one_of(&mut errors, &["OrderedReady", "Parallel"]);
        let strategy = spec.get("updateStrategy");
        let rolling = strategy.get("rollingUpdate");
        match strategy.get("type").text() {
            "" => errors.push(strategy.get("type").required("")),
            "OnDelete" => {
                if rolling.is_set() {
                    errors.push(rolling.invalid("only allowed for updateStrategy 'RollingUpdate'"));
                }
            }
            "RollingUpdate" => {
                rolling.get("partition").not_negative(&mut errors);
                let most = rolling.get("maxUnavailable");
                count_or_percent(&most, &mut errors);
                at_most_whole(&most, &mut errors);
                if most.is_set() && is_zero(&most) {
                    errors.push(most.invalid("cannot be 0"));
                }
            }
            _ => errors.push(strategy.get("type").invalid("must be 'RollingUpdate' or 'OnDelete'")),
        }
        let policy = spec.get("persistentVolumeClaimRetentionPolicy");
        policy.get("whenDeleted").one_of(&mut errors, &["Retain", "Delete"]);
        policy.get("whenScaled").one_of(&mut errors, &["Retain", "Delete"]);
        spec.get("ordinals").get("start").not_negative(&mut errors);
        spec.get("revisionHistoryLimit").not_negative(&mut errors);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        let allowed = [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ];
        let fixed = |document: &Document| {
            let mut spec = document.spec().cloned().unwrap_or_default();
            if let Value::Object(spec) = &mut spec {
                for name in allowed {
                    spec.remove(name);
                }
            }
            spec
        };
        if fixed(new) != fixed(old) {
            errors.push(Field::new("spec").forbidden("updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"));
        }
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        replica_counts(
            new,
            &[
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
            ],
        )
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        pod::template_warnings(new, old, "spec.template")
    }
}

// ---- DaemonSet ----

pub(crate) struct DaemonSets;

impl Strategy for DaemonSets {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        let strategy = new.object_mut("spec.updateStrategy");
        text(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            new.set_default("spec.updateStrategy.rollingUpdate.maxUnavailable", 1);
            new.set_default("spec.updateStrategy.rollingUpdate.maxSurge", 0);
        }
        new.set_default("spec.revisionHistoryLimit", 10);
        pod_defaults::template(new, "spec.template");
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        selected(&spec, "daemonset", &mut errors);
        template(&spec, &["Always"], &mut errors);
        spec.get("minReadySeconds").not_negative(&mut errors);
        spec.get("revisionHistoryLimit").not_negative(&mut errors);
        let strategy = spec.get("updateStrategy");
        match strategy.get("type").text() {
            "OnDelete" => {}
            "RollingUpdate" => {
                let rolling = strategy.get("rollingUpdate");
                let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
                for at in [&unavailable, &surge] {
                    count_or_percent(at, &mut errors);
                    at_most_whole(at, &mut errors);
                }
                match (is_zero(&unavailable), is_zero(&surge)) {
                    (true, true) => errors.push(unavailable.invalid("cannot be 0 when maxSurge is 0")),
                    (false, false) => {
                        errors.push(surge.invalid("may not be set when maxUnavailable is non-zero"))
                    }
                    _ => {}
                }
            }
            _ => errors.push(strategy.get("type").unsupported(&["RollingUpdate", "OnDelete"])),
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        same(new, old, "spec.selector", &mut errors);
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let status = At::top(new, "status");
        let mut errors = Vec::new();
        for name in [
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
        ] {
            status.get(name).not_negative(&mut errors);
        }
        errors
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        pod::template_warnings(new, old, "spec.template")
    }
}

// ---- ControllerRevision ----

pub(crate) struct ControllerRevisions;

impl Strategy for ControllerRevisions {
    fn updates_unconditionally(&self) -> bool {
        true
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        if !At::top(new, "data").is_set() {
            errors.push(Field::new("data").required("data is mandatory"));
        }
        At::top(new, "revision").not_negative(&mut errors);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        same(new, old, "data", &mut errors);
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(change: impl FnOnce(&mut Document)) -> Vec<String> {
        let mut document = Document::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "web:1"}]}}}
        }))
        .unwrap_or_default();
        change(&mut document);
        Deployments.defaults(&mut document);
        Deployments.validate(&document).iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn deployments_are_checked_as_upstream_checks_them() {
        let none: [&str; 0] = [];
        assert_eq!(deployment(|_| {}), none);
        for (path, value, wanted) in [
            (
                "spec.replicas",
                json!(-1),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "spec.template.metadata.labels",
                json!({"app": "api"}),
                "spec.template.metadata.labels: Invalid value: {\"app\":\"api\"}: `selector` does not match template `labels`",
            ),
            (
                "spec.template.spec.restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                "spec.strategy.type",
                json!("Blue"),
                "spec.strategy.type: Unsupported value: \"Blue\": supported values: \"Recreate\", \"RollingUpdate\"",
            ),
            (
                "spec.strategy.rollingUpdate",
                json!({"maxSurge": 0, "maxUnavailable": 0}),
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            ),
            ("spec.template.spec.containers", json!([]), "spec.template.spec.containers: Required value"),
        ] {
            assert_eq!(deployment(|document| document.set(path, value)), [wanted], "{path}");
        }
    }

    #[test]
    fn a_deployments_defaults() {
        let mut document = Document::default();
        Deployments.defaults(&mut document);
        assert_eq!(
            document.spec().cloned().unwrap_or_default(),
            json!({"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}})
        );
    }
}
