//! The history of a template, kept in ControllerRevisions: for DaemonSets and StatefulSets.

use std::sync::Arc;

use api_machinery::{Document, Object};
use api_reconcile::Action;
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Key};
use crate::convert;
use crate::world::World;

use super::hash;

/// The label by which a pod, and a revision, say which template they are of.
pub(super) const HASH: &str = "controller-revision-hash";

pub(super) struct Revision {
    pub name: String,
    pub number: i64,
    object: Arc<Object>,
    data: Value,
}

impl Revision {
    pub fn template(&self) -> &Value {
        &self.data["spec"]["template"]
    }
    /// What pods made from it are labelled with.
    pub fn label(&self) -> &str {
        self.object.header.labels.get(HASH).map_or(self.name.as_str(), String::as_str)
    }
}

/// Wakes the owner, of resource `of` and of `kind`, of a revision that changed.
pub(super) fn wake_owner(change: &Change<'_>, of: ResourceId, kind: &str, wake: &mut dyn FnMut(Key)) {
    if let Some(owner) = change.object.controller().filter(|owner| owner.kind == kind) {
        let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
        wake(Key::new(of, namespace, &owner.name));
    }
}

/// All of `owner`, oldest first.
pub(super) fn of(world: &World, owner: &Object) -> Vec<Revision> {
    let mut revisions: Vec<Revision> = world
        .controlled_by(res::REVISIONS, &owner.header.uid)
        .into_iter()
        .filter_map(|object| {
            Some(Revision {
                name: object.header.name.to_string(),
                number: object.field("revision")?.as_i64()?,
                data: object.field("data")?,
                object: object.clone(),
            })
        })
        .collect();
    revisions.sort_by_key(|revision| (revision.number, revision.name.clone()));
    revisions
}

/// The revision with the owner's template, or what to write so that there is one.
pub(super) fn current<'a>(
    world: &World,
    of: ResourceId,
    owner: &Object,
    template: &Value,
    revisions: &'a [Revision],
) -> Result<&'a Revision, Action> {
    let gvr = world.catalog().get(res::REVISIONS).gvr.clone();
    let last = revisions.last().map_or(0, |revision| revision.number);
    let mut data = json!({"spec": {"template": template}});
    data["spec"]["template"]["$patch"] = json!("replace");
    if let Some(found) = revisions.iter().rev().find(|revision| hash::same(&revision.data, &data)) {
        if found.number == last {
            return Ok(found);
        }
        // Rolled back: the old template is the newest again.
        let mut document =
            convert::document(world.catalog().get(res::REVISIONS), &found.object).unwrap_or_default();
        document.set("revision", last + 1);
        return Err(Action::Update { of: gvr, subresource: None, object: document });
    }
    let namespace = owner.header.namespace.as_deref().unwrap_or_default();
    let taken = |name: &str| world.get(res::REVISIONS, namespace, name).is_some();
    let mut collision = None;
    let (name, label) = loop {
        let label = hash::template(&data, collision);
        let name = format!("{}-{label}", owner.header.name);
        if !taken(&name) {
            break (name, label);
        }
        collision = Some(collision.unwrap_or(0) + 1);
    };
    let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let label = if of == res::STATEFUL_SETS { name.clone() } else { label };
    labels.insert("controller-revision-hash".to_owned(), json!(label));
    let value = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"name": name, "namespace": namespace, "labels": labels,
            "ownerReferences": [convert::controller_reference(&world.catalog().get(of).gvk, owner)]},
        "revision": last + 1, "data": data,
    });
    Err(Action::Create {
        of: gvr,
        namespace: Some(namespace.to_owned()),
        object: Document::from_value(value).unwrap_or_default(),
    })
}

/// Deletes of the oldest beyond `limit` that nobody uses.
pub(super) fn surplus(world: &World, revisions: &[Revision], used: &[&str], limit: i64) -> Vec<Action> {
    let unused: Vec<&Revision> = revisions
        .iter()
        .filter(|revision| !used.contains(&revision.label()) && !used.contains(&revision.name.as_str()))
        .collect();
    let surplus = unused.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    unused[..surplus]
        .iter()
        .map(|revision| Action::Delete(convert::deletion(world, res::REVISIONS, &revision.object)))
        .collect()
}
