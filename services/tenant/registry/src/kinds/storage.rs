//! PersistentVolumes, their claims and classes.

use api_machinery::{Document, Field, Quantity};
use serde_json::{Value, json};

use super::csi;
use super::pod_defaults::text;
use crate::strategy::{Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{meta, names, pod, selector};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const RECLAIM_POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];

pub(crate) struct Volumes;

impl Strategy for Volumes {
    fn defaults(&self, new: &mut Document) {
        new.set_default("status.phase", "Pending");
        let spec = new.object_mut("spec");
        text(spec, "persistentVolumeReclaimPolicy", "Retain");
        text(spec, "volumeMode", "Filesystem");
        if let Some(Value::Object(path)) = spec.get_mut("hostPath") {
            path.entry("type").or_insert_with(|| "".into());
        }
    }
    fn prepare_for_create(&self, moment: &Moment<'_>, new: &mut Document) {
        let now = base_clock::rfc3339(moment.now);
        new.set("status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }
    fn prepare_for_status_update(&self, moment: &Moment<'_>, new: &mut Document, old: &Document) {
        if new.get("status.phase") != old.get("status.phase") {
            new.set("status.lastPhaseTransitionTime", base_clock::rfc3339(moment.now));
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        access_modes(&spec.get("accessModes"), &mut errors);
        let capacity = spec.get("capacity");
        if capacity.is_empty() {
            errors.push(capacity.required(""));
        } else if !capacity.get("storage").is_set() {
            errors.push(capacity.unsupported(&["storage"]));
        } else if Quantity::from_json(capacity.get("storage").value)
            .is_ok_and(|size| size.is_zero() || size.is_negative())
        {
            errors.push(
                capacity
                    .field
                    .key("storage")
                    .invalid(capacity.get("storage").value.clone(), "must be greater than zero"),
            );
        }
        spec.get("persistentVolumeReclaimPolicy").one_of(&mut errors, &RECLAIM_POLICIES);
        spec.get("volumeMode").one_of(&mut errors, &["Block", "Filesystem"]);
        let sources = SOURCES.iter().filter(|name| spec.get(name).is_set()).count();
        match sources {
            0 => errors.push(spec.field.required("must specify a volume type")),
            1 => {}
            _ => errors.push(spec.forbidden("may not specify more than 1 volume type")),
        }
        let path = spec.get("hostPath").get("path");
        if path.text().split('/').any(|part| part == "..") {
            errors.push(path.invalid("must not contain '..'"));
        }
        if path.text() == "/" && spec.get("persistentVolumeReclaimPolicy").text() == "Recycle" {
            errors.push(
                spec.get("persistentVolumeReclaimPolicy")
                    .forbidden("may not be 'recycle' for a hostPath mount of '/'"),
            );
        }
        if spec.get("local").is_set() && !spec.get("nodeAffinity").is_set() {
            errors.push(Field::new("metadata.annotations").required("Local volume requires node affinity"));
        }
        let affinity = spec.get("nodeAffinity");
        if affinity.is_set() && !affinity.get("required").is_set() {
            errors.push(affinity.get("required").required("must specify required node constraints"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        for name in SOURCES {
            let path = format!("spec.{name}");
            if new.get(&path) != old.get(&path) {
                errors.push(
                    Field::new("spec.persistentvolumesource")
                        .forbidden("spec.persistentvolumesource is immutable after creation"),
                );
                break;
            }
        }
        let path = "spec.volumeMode";
        errors.extend(meta::immutable(new.get(path), old.get(path), &Field::new(path)));
        errors
    }
    fn warnings(&self, new: &Document, _old: Option<&Document>) -> Vec<String> {
        let spec = At::top(new, "spec");
        let mut all = Vec::new();
        let policy = spec.get("persistentVolumeReclaimPolicy");
        if policy.text() == "Recycle" {
            all.push(format!("{}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.", policy.field));
        }
        for (source, shown, why) in [
            ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
            ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
            ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
            ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
            ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
            ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
        ] {
            if spec.get(source).is_set() {
                all.push(format!("spec.{shown}: {why}"));
            }
        }
        all
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["name"]
    }
    fn select(&self, object: &api_machinery::Object, _path: &str) -> String {
        object.header.name.to_string()
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

const SOURCES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

fn access_modes(modes: &At<'_>, errors: &mut Errors) {
    if modes.is_empty() {
        errors.push(modes.required("at least 1 access mode is required"));
    }
    for mode in modes.items() {
        mode.one_of(errors, &ACCESS_MODES);
    }
    let alone = modes.items().any(|mode| mode.text() == "ReadWriteOncePod");
    if alone && modes.len() > 1 {
        errors.push(modes.forbidden("may not use ReadWriteOncePod with other access modes"));
    }
}

pub(crate) struct Claims;

impl Strategy for Claims {
    fn defaults(&self, new: &mut Document) {
        new.set_default("status.phase", "Pending");
        text(new.object_mut("spec"), "volumeMode", "Filesystem");
        // The old and the new name of where content comes from are kept alike.
        let (source, reference) =
            (new.get("spec.dataSource").cloned(), new.get("spec.dataSourceRef").cloned());
        match (source, reference) {
            (Some(source), None) => new.set("spec.dataSourceRef", source),
            (None, Some(reference)) if reference.get("namespace").is_none() => {
                let group = reference["apiGroup"].as_str().unwrap_or_default();
                let known = (group.is_empty() && reference["kind"] == "PersistentVolumeClaim")
                    || (group == "snapshot.storage.k8s.io" && reference["kind"] == "VolumeSnapshot");
                if known {
                    new.set("spec.dataSource", reference);
                }
            }
            _ => {}
        }
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        new.set("status", json!({"phase": "Pending"}));
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        claim_spec(&spec, &mut errors);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        let fixed = |document: &Document, bound_before: bool| {
            let mut spec = document.spec().cloned().unwrap_or_default();
            if let Value::Object(spec) = &mut spec {
                spec.remove("volumeAttributesClassName");
                if let Some(Value::Object(resources)) = spec.get_mut("resources") {
                    resources.remove("requests");
                }
                // Binding names the volume, once; the default class comes with it.
                if !bound_before {
                    spec.remove("volumeName");
                }
            }
            spec
        };
        let bound = old.get_str("spec.volumeName").is_some_and(|name| !name.is_empty());
        let mut now = fixed(new, bound);
        let before = fixed(old, bound);
        if old.get("spec.storageClassName").is_none()
            && let Value::Object(now) = &mut now
        {
            now.remove("storageClassName");
        }
        if now != before {
            errors.push(Field::new("spec").forbidden(
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            ));
        }
        let size = |document: &Document| {
            document.get("spec.resources.requests.storage").and_then(|size| Quantity::from_json(size).ok())
        };
        if let (Some(now), Some(before)) = (size(new), size(old)) {
            let field = Field::new("spec.resources.requests.storage");
            let actual = new.get("status.capacity.storage").and_then(|size| Quantity::from_json(size).ok());
            if now < before && actual.is_none_or(|actual| now < actual) {
                errors.push(field.forbidden("field can not be less than status.capacity"));
            }
            if now != before && new.get_str("status.phase") != Some("Bound") {
                errors.push(Field::new("spec").forbidden(
                    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
                ));
            }
        }
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["name"]
    }
    fn select(&self, object: &api_machinery::Object, _path: &str) -> String {
        object.header.name.to_string()
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

/// Also of claim templates in ephemeral volumes and StatefulSets.
pub(crate) fn claim_spec(spec: &At<'_>, errors: &mut Errors) {
    access_modes(&spec.get("accessModes"), errors);
    let chosen = spec.get("selector");
    if chosen.is_set() {
        errors.extend(selector::validate(Some(chosen.value), &chosen.field));
    }
    let size = spec.get("resources").get("requests").get("storage");
    if !size.is_set() {
        errors.push(spec.get("resources").field.key("storage").required(""));
    } else if Quantity::from_json(size.value).is_ok_and(|size| size.is_zero() || size.is_negative()) {
        errors.push(
            spec.get("resources")
                .get("requests")
                .field
                .key("storage")
                .invalid(size.value.clone(), "must be greater than zero"),
        );
    }
    let class = spec.get("storageClassName");
    if !class.is_empty() {
        class.reasons(errors, names::dns_subdomain(class.text()));
    }
    spec.get("volumeMode").one_of(errors, &["Block", "Filesystem"]);
}

pub(crate) struct Classes;

impl Strategy for Classes {
    fn defaults(&self, new: &mut Document) {
        text(&mut new.0, "reclaimPolicy", "Delete");
        text(&mut new.0, "volumeBindingMode", "Immediate");
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        csi::provisioner(&At::top(new, "provisioner"), &mut errors);
        csi::parameters(&At::top(new, "parameters"), &mut errors);
        At::top(new, "reclaimPolicy").one_of(&mut errors, &["Delete", "Retain"]);
        At::top(new, "volumeBindingMode").one_of(&mut errors, &["Immediate", "WaitForFirstConsumer"]);
        let mut terms = Vec::new();
        for term in At::top(new, "allowedTopologies").items() {
            topology_term(&term, &mut errors);
            let sorted = sorted_topology(term.value);
            if terms.contains(&sorted) {
                errors.push(term.get("matchLabelExpressions").field.duplicate(""));
            }
            terms.push(sorted);
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            errors.extend(meta::immutable(new.0.get(name), old.0.get(name), &Field::new(name)));
        }
        errors
    }
    fn warnings(&self, new: &Document, _old: Option<&Document>) -> Vec<String> {
        let terms = At::top(new, "allowedTopologies");
        let keys =
            terms.items().flat_map(|term| term.get("matchLabelExpressions").items().collect::<Vec<_>>());
        keys.map(|expression| expression.get("key"))
            .filter_map(|key| Some(format!("{}: {}", key.field, pod::deprecated_label(key.text())?)))
            .collect()
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

fn topology_term(term: &At<'_>, errors: &mut Errors) {
    let mut keys = std::collections::HashSet::new();
    for expression in term.get("matchLabelExpressions").items() {
        let (key, values) = (expression.get("key"), expression.get("values"));
        if values.is_empty() {
            errors.push(values.required(""));
        }
        let mut seen = std::collections::HashSet::new();
        for value in values.items() {
            if !seen.insert(value.text()) {
                errors.push(value.duplicate());
            }
        }
        key.reasons(errors, names::qualified_name(key.text()));
        if !keys.insert(key.text()) {
            errors.push(key.duplicate());
        }
    }
}

/// A term without the order in which it was written: terms that say the same are the same.
fn sorted_topology(term: &Value) -> std::collections::BTreeMap<&str, std::collections::BTreeSet<&str>> {
    let expressions = term.get("matchLabelExpressions").and_then(Value::as_array).into_iter().flatten();
    expressions
        .map(|one| {
            let values = one.get("values").and_then(Value::as_array).into_iter().flatten();
            let key = one.get("key").and_then(Value::as_str).unwrap_or_default();
            (key, values.filter_map(Value::as_str).collect())
        })
        .collect()
}
