//! The garbage collector: what goes away with what.
//!
//! An object whose owners are all gone is deleted; one deleted *in the foreground* waits for its dependents;
//! one deleted *orphaning* lets go of them first. That an owner is gone is believed only when the API says
//! so: the world may lag, and a wrong guess deletes somebody's data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Object, OwnerReference};
use api_reconcile::{Action, PatchKind, Plan};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::catalog::ResourceId;
use crate::controller::{Change, ChangeKind, Controller, Key, News, Now};
use crate::convert;
use crate::world::World;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Owners known to be gone for good: uids never come back. Bounded, since forgetting costs one request.
const REMEMBERED: usize = 4096;

#[derive(Default)]
pub struct GarbageCollector {
    absent: HashSet<String>,
    /// Answers for one object's next round: owner uid, whether it waits for its dependents.
    present: HashMap<Key, Vec<(String, bool)>>,
}

enum Owner {
    Solid,
    Gone,
    /// Being deleted in the foreground.
    Waits,
    Unknown,
}

impl Controller for GarbageCollector {
    fn name(&self) -> &'static str {
        "generic-garbage-collector"
    }
    /// Everything.
    fn resources(&self) -> &'static [ResourceId] {
        &[]
    }
    fn workers(&self) -> usize {
        20
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let header = &change.object.header;
        if change.kind == ChangeKind::Gone {
            world.owned_by(&header.uid).for_each(|(key, _)| wake(key.clone()));
            wake_waiting_owners(world, change.object, wake);
            return;
        }
        let news = change.old.is_none_or(|old| {
            old.header.owners != header.owners
                || old.header.deleting_since.is_some() != header.deleting_since.is_some()
                || old.header.finalizers != header.finalizers
        });
        if !news {
            return;
        }
        let waits =
            header.deleting_since.is_some() && (has(change.object, FOREGROUND) || has(change.object, ORPHAN));
        if waits || !header.owners.is_empty() {
            wake(Key::of(change.of, change.object));
        }
        // An owner that waits for this object may wait for it no longer.
        if let Some(old) = change.old {
            wake_waiting_owners(world, old, wake);
        }
        wake_waiting_owners(world, change.object, wake);
    }

    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let answers = self.present.remove(key).unwrap_or_default();
        let Some(object) = world.at(key) else { return Plan::nothing() };
        if object.header.deleting_since.is_none() {
            if world.is_deleting(object) || object.header.owners.is_empty() {
                return Plan::nothing();
            }
            return self.judge(world, key, object, &answers);
        }
        let orphans = has(object, ORPHAN);
        if !orphans && !has(object, FOREGROUND) {
            return Plan::nothing();
        }
        // Dependents not seen yet would be overlooked.
        if world.catalog().ids().any(|id| !world.is_synced(id)) {
            return Plan { actions: Vec::new(), again_after: Some(Duration::from_secs(1)) };
        }
        if orphans { self.let_go(world, key, object) } else { self.foreground(world, key, object) }
    }

    fn learn(&mut self, key: &Key, news: &News) {
        if let News::Verified { uid, exists, waits_for_dependents } = news {
            if *exists {
                self.present.entry(key.clone()).or_default().push((uid.clone(), *waits_for_dependents));
            } else {
                if self.absent.len() >= REMEMBERED {
                    self.absent.clear();
                }
                self.absent.insert(uid.clone());
            }
        }
    }
}

impl GarbageCollector {
    /// Whether anybody still owns the object, and what follows.
    fn judge(&self, world: &World, key: &Key, object: &Arc<Object>, answers: &[(String, bool)]) -> Plan {
        let mut plan = Plan::nothing();
        let (mut solid, mut gone, mut waiting) = (0, Vec::new(), Vec::new());
        let mut unknown = false;
        for reference in &object.header.owners {
            match self.look_up(world, key, reference, answers) {
                Owner::Solid => solid += 1,
                Owner::Gone => gone.push(reference.uid.as_str()),
                Owner::Waits => waiting.push(reference.uid.as_str()),
                Owner::Unknown => {
                    unknown = true;
                    if let Some(action) = verify(world, key, reference) {
                        plan.push(action);
                    } else {
                        // A kind this cluster doesn't serve (now): nothing is deleted on a guess.
                        plan.again(Duration::from_secs(300));
                    }
                }
            }
        }
        if unknown {
            return plan;
        }
        if solid > 0 {
            let dropped: Vec<&str> = gone.into_iter().chain(waiting).collect();
            if !dropped.is_empty() {
                plan.push(drop_owners(world, key.of, object, &dropped));
            }
            return plan;
        }
        let has_dependents = world.owned_by(&object.header.uid).next().is_some();
        let mut deletion = convert::deletion(world, key.of, object);
        deletion.resource_version = Some(object.header.revision.to_string());
        deletion.propagation = Some(if !waiting.is_empty() && has_dependents {
            "Foreground"
        } else if has(object, ORPHAN) {
            "Orphan"
        } else if has(object, FOREGROUND) {
            "Foreground"
        } else {
            "Background"
        });
        plan.push(Action::Delete(deletion));
        plan
    }

    fn look_up(
        &self,
        world: &World,
        key: &Key,
        reference: &OwnerReference,
        answers: &[(String, bool)],
    ) -> Owner {
        if let Some(owner) = world.owner(&key.namespace, reference) {
            let waits = owner.header.deleting_since.is_some() && has(owner, FOREGROUND);
            return if waits { Owner::Waits } else { Owner::Solid };
        }
        if self.absent.contains(&reference.uid) {
            return Owner::Gone;
        }
        match answers.iter().find(|(uid, _)| *uid == reference.uid) {
            Some((_, true)) => Owner::Waits,
            Some((_, false)) => Owner::Solid,
            None => Owner::Unknown,
        }
    }

    fn foreground(&self, world: &World, key: &Key, object: &Arc<Object>) -> Plan {
        let mut plan = Plan::nothing();
        let uid = object.header.uid.to_string();
        let mut blocked = false;
        for (dependent_key, dependent) in world.owned_by(&object.header.uid) {
            let blocks = blocks(dependent, &object.header.uid);
            blocked |= blocks;
            if world.is_deleting(dependent) {
                // Owners in a ring would wait for each other for ever: one of them lets go.
                if blocks && waits_for(world, dependent, &object.header.uid) {
                    plan.push(stop_blocking(world, dependent_key.of, dependent, &uid));
                }
                continue;
            }
            let own = self.judge(world, dependent_key, dependent, &[]);
            // Questions about its other owners are its own round's; its wake-up is the change that made them.
            let writes = own.actions.into_iter().filter(|action| !matches!(action, Action::Verify { .. }));
            plan.actions.extend(writes);
        }
        if !blocked {
            plan.push(drop_finalizer(world, key, object, FOREGROUND));
        }
        plan
    }

    fn let_go(&self, world: &World, key: &Key, object: &Arc<Object>) -> Plan {
        let uid = object.header.uid.to_string();
        let dependents = world.owned_by(&object.header.uid);
        let mut plan = Plan::of(
            dependents
                .map(|(key, dependent)| drop_owners(world, key.of, dependent, &[uid.as_str()]))
                .collect(),
        );
        plan.push(drop_finalizer(world, key, object, ORPHAN));
        plan
    }
}

fn has(object: &Object, finalizer: &str) -> bool {
    object.header.finalizers.iter().any(|one| &**one == finalizer)
}

/// Whether the foreground deletion of `object` waits for the one with `uid`, directly or through others.
fn waits_for(world: &World, object: &Object, uid: &Uuid) -> bool {
    let mut seen = HashSet::new();
    let mut next = vec![object.header.uid];
    while let Some(owner) = next.pop() {
        for (_, dependent) in world.owned_by(&owner) {
            if !blocks(dependent, &owner) || dependent.header.deleting_since.is_none() {
                continue;
            }
            if dependent.header.uid == *uid {
                return true;
            }
            if has(dependent, FOREGROUND) && seen.insert(dependent.header.uid) {
                next.push(dependent.header.uid);
            }
        }
    }
    false
}

fn blocks(dependent: &Object, owner: &Uuid) -> bool {
    let uid = owner.to_string();
    let mut owners = dependent.header.owners.iter();
    owners.any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
}

fn wake_waiting_owners(world: &World, object: &Object, wake: &mut dyn FnMut(Key)) {
    let namespace = object.header.namespace.as_deref().unwrap_or_default();
    for reference in &object.header.owners {
        let Some(of) = world.catalog().by_kind(&reference.api_version, &reference.kind) else { continue };
        if let Some(owner) = world.owner(namespace, reference)
            && owner.header.deleting_since.is_some()
        {
            wake(Key::of(of, owner));
        }
    }
}

fn verify(world: &World, key: &Key, reference: &OwnerReference) -> Option<Action> {
    let of = world.catalog().by_kind(&reference.api_version, &reference.kind)?;
    let resource = world.catalog().get(of);
    // A cluster-wide object cannot have an owner in a namespace; nobody could say which one is meant.
    if resource.namespaced && key.namespace.is_empty() {
        return None;
    }
    Some(Action::Verify {
        of: resource.gvr.clone(),
        namespace: resource.namespaced.then(|| key.namespace.to_string()),
        name: reference.name.clone(),
        uid: reference.uid.clone(),
    })
}

fn drop_owners(world: &World, of: ResourceId, object: &Object, uids: &[&str]) -> Action {
    let kept = object.header.owners.iter().filter(|owner| !uids.contains(&owner.uid.as_str()));
    let kept: Vec<Value> = kept.map(|owner| json!(owner)).collect();
    patch(world, of, object, "ownerReferences", kept)
}

/// `object` stays owned by `uid`, which need not wait for it any longer.
fn stop_blocking(world: &World, of: ResourceId, object: &Object, uid: &str) -> Action {
    let owners = object.header.owners.iter().map(|owner| {
        let mut owner = json!(owner);
        if owner["uid"] == uid {
            owner["blockOwnerDeletion"] = Value::Bool(false);
        }
        owner
    });
    patch(world, of, object, "ownerReferences", owners.collect())
}

fn drop_finalizer(world: &World, key: &Key, object: &Object, finalizer: &str) -> Action {
    let kept = object.header.finalizers.iter().filter(|one| &***one != finalizer);
    let kept: Vec<Value> = kept.map(|one| json!(one)).collect();
    patch(world, key.of, object, "finalizers", kept)
}

fn patch(world: &World, of: ResourceId, object: &Object, field: &str, list: Vec<Value>) -> Action {
    let list = if list.is_empty() { Value::Null } else { Value::Array(list) };
    Action::Patch {
        of: world.catalog().get(of).gvr.clone(),
        subresource: None,
        namespace: object.header.namespace.as_deref().map(str::to_owned),
        name: object.header.name.to_string(),
        kind: PatchKind::Merge,
        patch: json!({"metadata": {
            "uid": object.header.uid.to_string(),
            "resourceVersion": object.header.revision.to_string(),
            field: list,
        }}),
    }
}
