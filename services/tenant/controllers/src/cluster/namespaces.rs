//! Deletes what is in a namespace that is being deleted, and then lets go of it.
//!
//! Pods first: nothing else is touched while one is left, so that what a pod's end needs is still there.
//! What is in a namespace is asked of the API each time, never taken from memory: a namespace must not go
//! while anything is left in it.

use std::collections::HashMap;
use std::time::Duration;

use api_machinery::Document;
use api_reconcile::{Action, Plan};
use base_clock::Timestamp;
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, News, Now};
use crate::convert;
use crate::world::World;

const FINALIZER: &str = "kubernetes";
/// How long to wait for what takes its time, if nothing tells before.
const ASK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Namespaces {
    /// What the API said about the content of each, since it was last asked.
    heard: HashMap<Key, Vec<Purged>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Purged {
    resource: String,
    left: usize,
    finalizers: Vec<String>,
    error: Option<String>,
}

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::NAMESPACES, res::PODS]
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::NAMESPACES {
            if change.object.header.deleting_since.is_some() || change.kind == ChangeKind::Gone {
                wake(Key::of(res::NAMESPACES, change.object));
            }
        } else if change.kind == ChangeKind::Gone {
            let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
            if world.get(res::NAMESPACES, "", namespace).is_some_and(|one| world.is_deleting(one)) {
                wake(Key::new(res::NAMESPACES, "", namespace));
            }
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let heard = self.heard.remove(key).unwrap_or_default();
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let resource = world.catalog().get(res::NAMESPACES);
        let Some(document) = convert::document(resource, object) else { return Plan::nothing() };
        if object.header.deleting_since.is_none() {
            return Plan::nothing();
        }
        let finalizers = document.get_array("spec.finalizers").to_vec();
        if !finalizers.iter().any(|one| one == FINALIZER) {
            return Plan::nothing();
        }
        let pods = world.catalog().get(res::PODS).gvr.group_resource();
        let settled = |purged: &Purged| purged.left == 0 && purged.error.is_none();
        if heard.is_empty() {
            return Plan::of(vec![purge(world, res::PODS, key)]);
        }
        if heard.iter().all(settled) {
            if heard.iter().all(|purged| purged.resource == pods) {
                let others = world.catalog().ids().filter(|id| {
                    let resource = world.catalog().get(*id);
                    *id != res::PODS && resource.namespaced && resource.collectable
                });
                return Plan::of(others.map(|id| purge(world, id, key)).collect());
            }
            let kept: Vec<Value> = finalizers.into_iter().filter(|one| one != FINALIZER).collect();
            let mut document = document;
            document.set("spec.finalizers", kept);
            return Plan::of(vec![Action::Update {
                of: resource.gvr.clone(),
                subresource: Some("finalize"),
                object: document,
            }]);
        }
        let mut plan = Plan::nothing();
        plan.again(ASK_AGAIN);
        let mut document = document;
        if report(&mut document, &heard, now.wall) {
            plan.push(Action::Update {
                of: resource.gvr.clone(),
                subresource: Some("status"),
                object: document,
            });
        }
        plan
    }

    fn learn(&mut self, key: &Key, news: &News) {
        if let News::Purged { resource, left, finalizers, error } = news {
            self.heard.entry(key.clone()).or_default().push(Purged {
                resource: resource.clone(),
                left: *left,
                finalizers: finalizers.clone(),
                error: error.clone(),
            });
        }
    }

    fn workers(&self) -> usize {
        // Test suites delete hundreds at once; each mostly waits.
        10
    }
}

fn purge(world: &World, of: ResourceId, key: &Key) -> Action {
    Action::Purge { of: world.catalog().get(of).gvr.clone(), namespace: key.name.to_string() }
}

/// The conditions that say what a deletion waits for. True when they are news.
fn report(document: &mut Document, heard: &[Purged], now: Timestamp) -> bool {
    let mut conditions = document.get_array("status.conditions").to_vec();
    let mut errors: Vec<String> =
        heard.iter().filter_map(|one| Some(format!("{}: {}", one.resource, one.error.as_ref()?))).collect();
    errors.sort();
    let left: Vec<String> = heard
        .iter()
        .filter(|one| one.left > 0)
        .map(|one| format!("{} has {} resource instances", one.resource, one.left))
        .collect();
    let mut finalizers: std::collections::BTreeMap<&str, usize> = Default::default();
    for finalizer in heard.iter().flat_map(|one| &one.finalizers) {
        *finalizers.entry(finalizer).or_default() += 1;
    }
    let finalizers: Vec<String> =
        finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
    let mut changed = false;
    let mut say = |kind: &str, bad: bool, reason: (&str, &str), message: String| {
        let (status, reason) = if bad { ("True", reason.0) } else { ("False", reason.1) };
        changed |= convert::set_condition(&mut conditions, kind, status, reason, &message, now, false);
    };
    let words = |bad: bool, text: String, good: &str| if bad { text } else { good.to_owned() };
    say(
        "NamespaceDeletionDiscoveryFailure",
        false,
        ("DiscoveryFailed", "ResourcesDiscovered"),
        "All resources successfully discovered".to_owned(),
    );
    say(
        "NamespaceDeletionGroupVersionParsingFailure",
        false,
        ("GroupVersionParsingFailed", "ParsedGroupVersions"),
        "All legacy kube types successfully parsed".to_owned(),
    );
    let failed = !errors.is_empty();
    let text =
        format!("Failed to delete all resource types, {} remaining: {}", errors.len(), errors.join(", "));
    let good = "All content successfully deleted, may be waiting on finalization";
    say(
        "NamespaceDeletionContentFailure",
        failed,
        ("ContentDeletionFailed", "ContentDeleted"),
        words(failed, text, good),
    );
    let text = format!("Some resources are remaining: {}", left.join(", "));
    say(
        "NamespaceContentRemaining",
        !left.is_empty(),
        ("SomeResourcesRemain", "ContentRemoved"),
        words(!left.is_empty(), text, "All content successfully removed"),
    );
    let text = format!("Some content in the namespace has finalizers remaining: {}", finalizers.join(", "));
    say(
        "NamespaceFinalizersRemaining",
        !finalizers.is_empty(),
        ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
        words(!finalizers.is_empty(), text, "All content-preserving finalizers finished"),
    );
    document.set("status.conditions", conditions);
    if document.get_str("status.phase") != Some("Terminating") {
        document.set("status.phase", json!("Terminating"));
        changed = true;
    }
    changed
}
