//! Deployments.
//!
//! [`Deployments::plan`] is one round: find the ReplicaSet that has the template, make it if there is none,
//! move replicas towards it, say how far it is. A round does one kind of write and is followed by another,
//! since its own writes wake it. The arithmetic is in `rollout`, what is read of a ReplicaSet in `sets`, what
//! is reported in `status`.

mod rollout;
mod sets;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, LabelSelector, Object, Status};
use api_reconcile::{Action, EventText, Plan};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::runner::is_namespace_terminating;
use crate::world::World;

use super::hash;
use super::pods::PodView;
use rollout::{Limits, Size};
use sets::{HASH_LABEL, REVISION, Set};

#[derive(Default)]
pub struct Deployments {
    /// Why the ReplicaSet could not be made, for the condition Progressing.
    failures: HashMap<Key, String>,
}

const RESOURCES: &[ResourceId] = &[res::DEPLOYMENTS, res::REPLICA_SETS, res::PODS];

impl Controller for Deployments {
    fn name(&self) -> &'static str {
        "deployment-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        RESOURCES
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        match change.of {
            res::DEPLOYMENTS => wake(Key::of(res::DEPLOYMENTS, change.object)),
            res::REPLICA_SETS => {
                super::replicas::wake_controllers(world, change, res::DEPLOYMENTS, wake, |deployment| {
                    convert::selector(deployment.field("spec.selector").as_ref())
                });
            }
            // Only a Recreate rollout waits for pods to be gone.
            res::PODS if change.kind == ChangeKind::Gone => {
                let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
                let set = change.object.controller().and_then(|owner| world.owner(namespace, owner));
                if let Some(owner) = set.and_then(|set| set.controller())
                    && owner.kind == "Deployment"
                {
                    wake(Key::new(res::DEPLOYMENTS, namespace, &owner.name));
                }
            }
            _ => {}
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else {
            self.failures.remove(key);
            return Plan::nothing();
        };
        let resource = world.catalog().get(res::DEPLOYMENTS);
        let selector = convert::selector(object.field("spec.selector").as_ref());
        let (Some(document), Some(selector)) = (convert::document(resource, object), selector) else {
            return Plan::nothing();
        };
        if selector.is_everything() {
            let text = EventText::warning(
                "SelectingAll",
                "This deployment is selecting all pods. A non-empty selector is required.",
            );
            return Plan::of(vec![Action::Event(convert::regarding(&resource.gvk, object), text)]);
        }
        let mut plan = Plan::nothing();
        let sets = claim(world, object, &selector, &mut plan);
        let mut round =
            Round { world, object, document, sets, now, plan, failure: self.failures.get(key).cloned() };
        round.run();
        if round.new_set().is_some() {
            self.failures.remove(key);
        }
        round.plan
    }

    fn failed(&mut self, key: &Key, status: &Status) {
        if !status.is_conflict() && !is_namespace_terminating(status) {
            self.failures.insert(key.clone(), status.message.clone());
        }
    }
}

/// The ReplicaSets the deployment controls; those it matches and nobody controls it adopts.
fn claim(world: &World, owner: &Arc<Object>, selector: &LabelSelector, plan: &mut Plan) -> Vec<Set> {
    let namespace = owner.header.namespace.as_deref().unwrap_or_default();
    let uid = owner.header.uid.to_string();
    let gvr = &world.catalog().get(res::REPLICA_SETS).gvr;
    let gvk = &world.catalog().get(res::DEPLOYMENTS).gvk;
    let mut sets = Vec::new();
    let owners_patch = |set: &Object, owners: Vec<Value>| Action::Patch {
        of: gvr.clone(),
        subresource: None,
        namespace: Some(namespace.to_owned()),
        name: set.header.name.to_string(),
        kind: api_reconcile::PatchKind::Merge,
        patch: json!({"metadata": {"uid": set.header.uid.to_string(),
            "resourceVersion": set.header.revision.to_string(), "ownerReferences": owners}}),
    };
    for object in world.controlled_by(res::REPLICA_SETS, &owner.header.uid) {
        if selector.matches(&object.header.labels) {
            sets.extend(Set::read(world, object));
        } else if !world.is_deleting(owner) {
            let rest =
                object.header.owners.iter().filter(|one| one.uid != uid).map(|one| json!(one)).collect();
            plan.push(owners_patch(object, rest));
        }
    }
    if !world.is_deleting(owner) {
        for object in world.select(res::REPLICA_SETS, namespace, selector) {
            if object.controller().is_none() && !world.is_deleting(object) {
                let mut owners: Vec<Value> = object.header.owners.iter().map(|one| json!(one)).collect();
                owners.push(convert::controller_reference(gvk, owner));
                plan.push(owners_patch(object, owners));
            }
        }
    }
    sets.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    sets
}

struct Round<'a> {
    world: &'a World,
    object: &'a Arc<Object>,
    document: Document,
    /// Oldest first.
    sets: Vec<Set>,
    now: Now,
    plan: Plan,
    failure: Option<String>,
}

impl Round<'_> {
    fn run(&mut self) {
        // Adoption changes what there is to count: first that, then another round.
        if !self.plan.is_nothing() {
            return;
        }
        if self.world.is_deleting(self.object) {
            self.report(false);
            return;
        }
        if self.mark_paused() {
            return;
        }
        if self.is_paused() || self.is_scaling() {
            if self.keep_revision() {
                return;
            }
            self.scale();
            self.report(false);
            return;
        }
        if self.document.get_str("spec.strategy.type") == Some("Recreate") {
            self.recreate();
        } else {
            self.roll();
        }
    }

    fn roll(&mut self) {
        if self.keep_revision() || self.make_new_set() {
            return;
        }
        let (new, old) = self.sizes();
        let Some(new) = new else { return };
        let limits = self.limits();
        let mut moved = Vec::new();
        let wanted = rollout::new_size(&limits, &new, &old);
        if wanted != new.replicas {
            moved.push((new.name.clone(), wanted));
        } else {
            moved = rollout::shrink_old(&limits, &new, &old);
        }
        self.resize(moved);
        self.finish();
    }

    fn recreate(&mut self) {
        if self.keep_revision() {
            return;
        }
        let old: Vec<(String, i64)> =
            self.old_sets().filter(|set| set.replicas > 0).map(|set| (set.name.clone(), 0)).collect();
        if !old.is_empty() {
            self.resize(old);
            self.report(true);
            return;
        }
        if self.old_pods_run() {
            self.report(true);
            return;
        }
        if self.make_new_set() {
            return;
        }
        let wanted = self.replicas();
        if let Some(new) = self.new_set()
            && new.replicas != wanted
        {
            let moved = vec![(new.name.clone(), wanted)];
            self.resize(moved);
        }
        self.finish();
    }

    fn finish(&mut self) {
        if status::is_complete(&self.document, &self.counts()) {
            self.clean_up();
        }
        self.report(true);
    }

    // ---- reading ----

    fn replicas(&self) -> i64 {
        self.document.get_i64("spec.replicas").unwrap_or(1)
    }
    fn is_paused(&self) -> bool {
        self.document.get("spec.paused") == Some(&Value::Bool(true))
    }
    fn template(&self) -> Value {
        self.document.get("spec.template").cloned().unwrap_or(json!({}))
    }
    fn new_set(&self) -> Option<&Set> {
        let template = self.template();
        self.sets.iter().find(|set| set.has_template(&template))
    }
    fn old_sets(&self) -> impl Iterator<Item = &Set> {
        let new = self.new_set().map(|set| set.name.clone());
        self.sets.iter().filter(move |set| Some(&set.name) != new.as_ref())
    }
    fn sizes(&self) -> (Option<Size>, Vec<Size>) {
        (self.new_set().map(Set::size), self.old_sets().map(Set::size).collect())
    }
    fn limits(&self) -> Limits {
        Limits::of(&self.document)
    }
    fn counts(&self) -> status::Counts {
        status::Counts::of(&self.sets, self.new_set())
    }
    /// Somebody changed `replicas` since the sets were sized.
    fn is_scaling(&self) -> bool {
        let wanted = self.replicas();
        let mut active = self.sets.iter().filter(|set| set.replicas > 0);
        active.any(|set| set.desired().is_some_and(|desired| desired != wanted))
    }
    fn old_pods_run(&self) -> bool {
        self.old_sets().any(|set| {
            let pods = self.world.controlled_by(res::PODS, &set.uid);
            pods.into_iter().any(|pod| !PodView::of(pod).is_over())
        })
    }

    // ---- writing ----

    /// Paused and resumed deployments say so, so that no deadline runs while nothing may move.
    fn mark_paused(&mut self) -> bool {
        if !status::has_deadline(&self.document) {
            return false;
        }
        let mut conditions = self.document.get_array("status.conditions").to_vec();
        let known = convert::condition(&conditions, "Progressing");
        let reason = known.and_then(|known| known["reason"].as_str()).unwrap_or_default();
        if reason == "ProgressDeadlineExceeded" {
            return false;
        }
        let (reason, message) = match (self.is_paused(), reason) {
            (true, "DeploymentPaused") | (false, "") => return false,
            (true, _) => ("DeploymentPaused", "Deployment is paused"),
            (false, "DeploymentPaused") => ("DeploymentResumed", "Deployment is resumed"),
            (false, _) => return false,
        };
        convert::set_condition(
            &mut conditions,
            "Progressing",
            "Unknown",
            reason,
            message,
            self.now.wall,
            true,
        );
        self.document.set("status.conditions", conditions);
        self.write_status();
        true
    }

    /// Revision annotations of the current ReplicaSet and, after it, the deployment. True when a write is
    /// needed first.
    fn keep_revision(&mut self) -> bool {
        let last = self.old_sets().map(Set::revision).max().unwrap_or(0);
        let min_ready = self.document.get_i64("spec.minReadySeconds").unwrap_or(0);
        let Some(new) = self.new_set() else { return false };
        let mut written = new.document.clone();
        let mut changed = sets::annotate(&self.document, &mut written, last + 1, true);
        if written.get_i64("spec.minReadySeconds").unwrap_or(0) != min_ready {
            written.set("spec.minReadySeconds", min_ready);
            changed = true;
        }
        if changed {
            self.update_set(written);
            return true;
        }
        let revision = new.revision().to_string();
        if self.document.annotation(REVISION) != Some(&revision) {
            let mut written = self.document.clone();
            let annotations = written.object_mut("metadata.annotations");
            annotations.insert(REVISION.to_owned(), json!(revision));
            let of = self.world.catalog().get(res::DEPLOYMENTS).gvr.clone();
            self.plan.push(Action::Update { of, subresource: None, object: written });
            return true;
        }
        false
    }

    /// True when the ReplicaSet is only being made now.
    fn make_new_set(&mut self) -> bool {
        if self.new_set().is_some() {
            return false;
        }
        if let Some(message) = self.failure.take() {
            let mut conditions = self.document.get_array("status.conditions").to_vec();
            let reason = "ReplicaSetCreateError";
            if status::has_deadline(&self.document)
                && convert::set_condition(
                    &mut conditions,
                    "Progressing",
                    "False",
                    reason,
                    &message,
                    self.now.wall,
                    true,
                )
            {
                self.document.set("status.conditions", conditions);
                self.write_status();
            }
        }
        let collisions = self.document.get_i64("status.collisionCount");
        let mut template = self.template();
        let hash = hash::template(&template, collisions);
        let name = format!("{}-{hash}", self.document.name());
        // Its name is taken by a ReplicaSet with another template or owner: hash again.
        if self.world.get(res::REPLICA_SETS, self.document.namespace(), &name).is_some() {
            self.document.set("status.collisionCount", collisions.unwrap_or(0) + 1);
            self.write_status();
            return true;
        }
        let last = self.sets.iter().map(Set::revision).max().unwrap_or(0);
        let (_, old) = self.sizes();
        let limits = self.limits();
        let fresh = Size { name: name.clone(), ..Size::default() };
        let replicas = if self.document.get_str("spec.strategy.type") == Some("Recreate") {
            self.replicas()
        } else {
            rollout::new_size(&limits, &fresh, &old)
        };
        set_label(&mut template, &["metadata", "labels"], &hash);
        let labels = template["metadata"]["labels"].clone();
        let mut selector = self.document.get("spec.selector").cloned().unwrap_or(json!({}));
        set_label(&mut selector, &["matchLabels"], &hash);
        let gvk = &self.world.catalog().get(res::DEPLOYMENTS).gvk;
        let value = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": name, "namespace": self.document.namespace(), "labels": labels,
                "ownerReferences": [convert::controller_reference(gvk, self.object)],
            },
            "spec": {
                "replicas": replicas, "selector": selector, "template": template,
                "minReadySeconds": self.document.get_i64("spec.minReadySeconds").unwrap_or(0),
            },
        });
        let Some(mut set) = Document::from_value(value) else { return true };
        sets::annotate(&self.document, &mut set, last + 1, false);
        sets::note_size(&mut set, self.replicas(), limits.most());
        let of = self.world.catalog().get(res::REPLICA_SETS).gvr.clone();
        let namespace = Some(self.document.namespace().to_owned());
        self.plan.push(Action::Create { of, namespace, object: set });
        if replicas > 0 {
            self.say_scaled(&name, 0, replicas);
        }
        if status::has_deadline(&self.document) {
            let mut conditions = self.document.get_array("status.conditions").to_vec();
            let message = format!("Created new replica set {name:?}");
            convert::set_condition(
                &mut conditions,
                "Progressing",
                "True",
                "NewReplicaSetCreated",
                &message,
                self.now.wall,
                true,
            );
            self.document.set("status.conditions", conditions);
            self.write_status();
        }
        true
    }

    /// Paused or rescaled: what is there grows or shrinks in proportion.
    fn scale(&mut self) {
        let (new, old) = self.sizes();
        let rolling = self.document.get_str("spec.strategy.type") != Some("Recreate");
        let moved = rollout::proportional(&self.limits(), rolling, new.as_ref(), &old);
        self.resize_all(moved, true);
    }
    fn resize(&mut self, moved: Vec<(String, i64)>) {
        self.resize_all(moved, false);
    }

    /// `notes`: sets that keep their size note the new total all the same.
    fn resize_all(&mut self, moved: Vec<(String, i64)>, notes: bool) {
        let (wanted, most) = (self.replicas(), self.limits().most());
        let mut sizes: HashMap<String, i64> = moved.into_iter().collect();
        let mut writes = Vec::new();
        for set in &self.sets {
            let size = sizes.remove(&set.name).unwrap_or(set.replicas);
            let mut written = set.document.clone();
            let noted = (notes || size != set.replicas) && sets::note_size(&mut written, wanted, most);
            if size != set.replicas || (noted && (set.replicas > 0 || size > 0)) {
                written.set("spec.replicas", size);
                writes.push((written, set.name.clone(), set.replicas, size));
            }
        }
        for (written, name, from, to) in writes {
            self.update_set(written);
            if from != to {
                self.say_scaled(&name, from, to);
            }
        }
    }

    fn update_set(&mut self, set: Document) {
        let of = self.world.catalog().get(res::REPLICA_SETS).gvr.clone();
        self.plan.push(Action::Update { of, subresource: None, object: set });
    }

    fn say_scaled(&mut self, name: &str, from: i64, to: i64) {
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {name} from {from} to {to}");
        let gvk = &self.world.catalog().get(res::DEPLOYMENTS).gvk;
        let regarding = convert::regarding(gvk, self.object);
        self.plan.push(Action::Event(regarding, EventText::normal("ScalingReplicaSet", message)));
    }

    /// Old ReplicaSets beyond the history limit go.
    fn clean_up(&mut self) {
        let Some(limit) = self.document.get_i64("spec.revisionHistoryLimit") else { return };
        let mut old: Vec<&Set> = self.old_sets().filter(|set| !set.is_deleting).collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        old.sort_by_key(|set| set.revision());
        let goners: Vec<_> = old[..surplus]
            .iter()
            .filter(|set| set.replicas == 0 && set.status_replicas == 0 && set.is_observed())
            .filter_map(|set| self.world.get(res::REPLICA_SETS, self.document.namespace(), &set.name))
            .map(|set| convert::deletion(self.world, res::REPLICA_SETS, set))
            .collect();
        self.plan.actions.extend(goners.into_iter().map(Action::Delete));
    }

    /// Status; with `progress`, the deadline too.
    fn report(&mut self, progress: bool) {
        let counts = self.counts();
        let new = self.new_set().map(|set| set.name.clone());
        let (status, again) =
            status::report(&self.document, &counts, new.as_deref(), progress, self.now.wall);
        if let Some(seconds) = again {
            self.plan.again(Duration::from_secs(seconds));
        }
        if self.document.get("status") != Some(&status) {
            self.document.set("status", status);
            self.write_status();
        }
    }

    fn write_status(&mut self) {
        let of = self.world.catalog().get(res::DEPLOYMENTS).gvr.clone();
        self.plan.push(Action::Update { of, subresource: Some("status"), object: self.document.clone() });
    }
}

fn set_label(value: &mut Value, path: &[&str], hash: &str) {
    let mut at = value;
    for part in path {
        if !at[*part].is_object() {
            at[*part] = json!({});
        }
        at = &mut at[*part];
    }
    at[HASH_LABEL] = json!(hash);
}
