//! What a deployment reads of its ReplicaSets, and the annotations it keeps on them.

use std::sync::Arc;

use api_machinery::{Document, Object};
use base_clock::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::catalog::res;
use crate::convert;
use crate::workloads::hash;
use crate::world::World;

use super::rollout::Size;

pub(super) const HASH_LABEL: &str = "pod-template-hash";
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MOST: &str = "deployment.kubernetes.io/max-replicas";
/// What a ReplicaSet does not take over from its deployment.
const NOT_COPIED: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
];

pub(super) struct Set {
    pub name: String,
    pub uid: Uuid,
    pub created: Timestamp,
    pub replicas: i64,
    pub status_replicas: i64,
    pub ready: i64,
    pub available: i64,
    pub terminating: i64,
    pub is_deleting: bool,
    pub document: Document,
}

impl Set {
    pub fn read(world: &World, object: &Arc<Object>) -> Option<Set> {
        let document = convert::document(world.catalog().get(res::REPLICA_SETS), object)?;
        let count = |path: &str| document.get_i64(path).unwrap_or(0);
        Some(Set {
            name: object.header.name.to_string(),
            uid: object.header.uid,
            created: object.header.created,
            replicas: document.get_i64("spec.replicas").unwrap_or(1),
            status_replicas: count("status.replicas"),
            ready: count("status.readyReplicas"),
            available: count("status.availableReplicas"),
            terminating: count("status.terminatingReplicas"),
            is_deleting: world.is_deleting(object),
            document,
        })
    }
    pub fn size(&self) -> Size {
        Size {
            name: self.name.clone(),
            replicas: self.replicas,
            available: self.available,
            created: self.created.as_second(),
            desired: self.desired(),
            most: self.annotated(MOST),
        }
    }
    /// Made from this template, but for the label that names its hash.
    pub fn has_template(&self, template: &Value) -> bool {
        let mut own = self.document.get("spec.template").cloned().unwrap_or(Value::Null);
        let mut other = template.clone();
        for one in [&mut own, &mut other] {
            if let Some(labels) = one.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
                labels.remove(HASH_LABEL);
            }
        }
        hash::same(&own, &other)
    }
    pub fn revision(&self) -> i64 {
        self.annotated(REVISION).unwrap_or(0)
    }
    pub fn desired(&self) -> Option<i64> {
        self.annotated(DESIRED)
    }
    pub fn is_observed(&self) -> bool {
        self.document.generation() <= self.document.get_i64("status.observedGeneration").unwrap_or(0)
    }
    pub fn failure(&self) -> Option<&Value> {
        convert::condition(self.document.get_array("status.conditions"), "ReplicaFailure")
    }
    fn annotated(&self, name: &str) -> Option<i64> {
        self.document.annotation(name)?.parse().ok()
    }
}

/// Brings the ReplicaSet's annotations in line with its deployment's, and raises its revision. True when
/// that changed anything.
pub(super) fn annotate(deployment: &Document, set: &mut Document, revision: i64, exists: bool) -> bool {
    let before = set.get("metadata.annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut after = before.clone();
    let theirs = deployment.get("metadata.annotations").and_then(Value::as_object);
    for (name, value) in theirs.into_iter().flatten() {
        if !NOT_COPIED.contains(&name.as_str()) {
            after.insert(name.clone(), value.clone());
        }
    }
    let old = before.get(REVISION).and_then(Value::as_str).unwrap_or_default();
    if old.parse().unwrap_or(0) < revision {
        after.insert(REVISION.to_owned(), json!(revision.to_string()));
        if exists && !old.is_empty() {
            after.insert(HISTORY.to_owned(), json!(longer_history(&before, old)));
        }
    }
    let changed = after != before;
    if changed {
        set.set("metadata.annotations", after);
    }
    changed
}

/// Past revisions, oldest dropped first when the list gets long.
fn longer_history(annotations: &Map<String, Value>, revision: &str) -> String {
    const MOST_BYTES: usize = 2000;
    let mut history = annotations.get(HISTORY).and_then(Value::as_str).unwrap_or_default().to_owned();
    if !history.is_empty() {
        history.push(',');
    }
    history.push_str(revision);
    while history.len() > MOST_BYTES {
        match history.split_once(',') {
            Some((_, rest)) => history = rest.to_owned(),
            None => break,
        }
    }
    history
}

/// Notes on the ReplicaSet what the whole deployment wanted when it was sized. True when that is news.
pub(super) fn note_size(set: &mut Document, desired: i64, most: i64) -> bool {
    let mut changed = false;
    for (name, value) in [(DESIRED, desired), (MOST, most)] {
        let value = value.to_string();
        if set.annotation(name) != Some(&value) {
            set.object_mut("metadata.annotations").insert(name.to_owned(), json!(value));
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_raises_the_revision_and_remembers_the_old_one() {
        let document = |value: Value| Document::from_value(value).unwrap();
        let deployment = document(json!({"metadata": {"annotations": {
            "note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}", REVISION: "3"}}}));
        let mut set = document(json!({"metadata": {"annotations": {REVISION: "1", "own": "y"}}}));
        assert!(annotate(&deployment, &mut set, 4, true));
        let wanted = json!({"note": "x", "own": "y", REVISION: "4", HISTORY: "1"});
        assert_eq!(set.get("metadata.annotations"), Some(&wanted));
        assert!(!annotate(&deployment, &mut set, 4, true), "nothing left to do");
        assert!(annotate(&deployment, &mut set, 6, true));
        assert_eq!(set.annotation(HISTORY), Some("1,4"));
    }
}
