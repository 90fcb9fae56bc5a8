//! CustomResourceDefinitions: whether their names are free, when they are served, and what goes with them.
//!
//! [`Names`] decides which names a definition gets and establishes it in the same breath: in this API server
//! what is established is served, so there is nothing to wait for between the two. [`Cleanup`] deletes a deleted
//! definition's objects and then lets go of it.
//!
//! Facts: `apiextensions-apiserver/pkg/controller/{status,establish,apiapproval,finalizer}`. The condition
//! NonStructuralSchema is not kept: validation lets no such definition in any more.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use api_machinery::{Document, Gvk, Gvr, Object};
use api_reconcile::{Action, Plan};
use api_structural::Approval;
use base_clock::Timestamp;
use serde_json::{Value, json};

use super::endpoint::API_SERVER;
use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, News, Now};
use crate::convert::{self, condition, set_condition};
use crate::world::World;

const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// How soon to look again while objects wait for their finalizers.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What a definition serves, as the other controllers come to watch it: `None` while it serves nothing.
pub(crate) fn served(definition: &Object) -> Option<(Gvr, Gvk, bool)> {
    let document = definition.to_document().ok()?;
    let conditions = document.get_array("status.conditions");
    condition(conditions, "Established").filter(|one| one["status"] == "True")?;
    let text = |path: &str| document.get_str(path).filter(|text| !text.is_empty()).map(str::to_owned);
    let (group, version) = (text("spec.group")?, storage_version(&document)?);
    let (plural, kind) = (text("status.acceptedNames.plural")?, text("status.acceptedNames.kind")?);
    let namespaced = document.get_str("spec.scope") == Some("Namespaced");
    let gvr = Gvr { group: group.clone().into(), version: version.clone().into(), resource: plural.into() };
    Some((gvr, Gvk { group: group.into(), version: version.into(), kind: kind.into() }, namespaced))
}

fn storage_version(definition: &Document) -> Option<String> {
    let stored = definition.get_array("spec.versions").iter().find(|one| one["storage"] == true)?;
    stored["name"].as_str().map(str::to_owned)
}

fn opened(world: &World, object: &Object) -> Option<Document> {
    convert::document(world.catalog().get(res::DEFINITIONS), object)
}

fn status_update(world: &World, object: Document) -> Action {
    let of = world.catalog().get(res::DEFINITIONS).gvr.clone();
    Action::Update { of, subresource: Some("status"), object }
}

pub struct Names;

impl Controller for Names {
    fn name(&self) -> &'static str {
        API_SERVER
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::DEFINITIONS]
    }
    /// One at a time: two definitions that ask for the same name must not both find it free.
    fn workers(&self) -> usize {
        1
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.kind != ChangeKind::Gone {
            wake(Key::of(res::DEFINITIONS, change.object));
        }
        // Names may have become free.
        let names = |object: &Object| object.field("status.acceptedNames");
        let freed = match (change.kind, change.old) {
            (ChangeKind::Gone, _) => true,
            (_, Some(old)) => names(old) != names(change.object),
            (_, None) => false,
        };
        if freed && let Some(group) = group_of(change.object) {
            let others = world.all(res::DEFINITIONS).filter(|other| group_of(other) == Some(group));
            others.for_each(|other| wake(Key::of(res::DEFINITIONS, other)));
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let Some(mut document) = opened(world, object) else { return Plan::nothing() };
        let group = document.get_str("spec.group").unwrap_or_default().to_owned();
        let taken = Taken::by_others(world, object, &group);
        if decide(&mut document, &taken, now.wall) {
            return Plan::of(vec![status_update(world, document)]);
        }
        Plan::nothing()
    }
}

/// A definition's name is `<plural>.<group>`.
fn group_of(definition: &Object) -> Option<&str> {
    definition.header.name.split_once('.').map(|(_, group)| group)
}

/// Names that other definitions of a group have been given.
#[derive(Default)]
struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    fn by_others(world: &World, this: &Object, group: &str) -> Taken {
        let mut taken = Taken::default();
        for other in world.all(res::DEFINITIONS) {
            if other.header.name == this.header.name || group_of(other) != Some(group) {
                continue;
            }
            let names = other.field("status.acceptedNames").unwrap_or_default();
            let text = |field: &str| names[field].as_str().map(str::to_owned);
            taken.resources.extend([text("plural"), text("singular")].into_iter().flatten());
            let short = names["shortNames"].as_array().into_iter().flatten();
            taken.resources.extend(short.filter_map(Value::as_str).map(str::to_owned));
            taken.kinds.extend([text("kind"), text("listKind")].into_iter().flatten());
        }
        taken.resources.remove("");
        taken.kinds.remove("");
        taken
    }
}

/// Brings accepted names and conditions up to date. True when that changed anything.
fn decide(definition: &mut Document, taken: &Taken, now: Timestamp) -> bool {
    let wanted = definition.get("spec.names").cloned().unwrap_or_default();
    let before = definition.get("status.acceptedNames").cloned().unwrap_or_else(|| json!({}));
    let (names, problem) = accept(&wanted, &before, taken);
    let mut changed = false;
    if names != before {
        definition.set("status.acceptedNames", names);
        changed = true;
    }
    let mut conditions = definition.get_array("status.conditions").to_vec();
    let mut say = |kind: &str, status: &str, reason: &str, message: &str| {
        changed |= set_condition(&mut conditions, kind, status, reason, message, now, false);
    };
    match &problem {
        None => say("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => say("NamesAccepted", "False", reason, message),
    }
    let status_of = |definition: &Document, kind: &str| {
        let conditions = definition.get_array("status.conditions");
        condition(conditions, kind).and_then(|one| one["status"].as_str().map(str::to_owned))
    };
    let established = status_of(definition, "Established");
    // Once established it stays so, whatever becomes of its names.
    if established.as_deref() != Some("True") {
        if problem.is_some() {
            if established.is_none() {
                say("Established", "False", "NotAccepted", "not all names are accepted");
            }
        } else if has_bad_ca(definition) {
            let message = "The conversion webhook CABundle is invalid";
            say("Established", "False", "InvalidCABundle", message);
        } else {
            let message = "the initial names have been accepted";
            say("Established", "True", "InitialNamesAccepted", message);
        }
    }
    if let Some((status, reason, message)) = approval(definition) {
        say("KubernetesAPIApprovalPolicyConformant", status, reason, &message);
    }
    if changed {
        definition.set("status.conditions", conditions);
    }
    changed
}

/// The names a definition gets, and what is in the way of the others.
fn accept(wanted: &Value, before: &Value, taken: &Taken) -> (Value, Option<(&'static str, String)>) {
    let mut names = before.clone();
    let mut problem = None;
    let rows: [(&str, &BTreeSet<String>, &'static str); 4] = [
        ("plural", &taken.resources, "PluralConflict"),
        ("singular", &taken.resources, "SingularConflict"),
        ("kind", &taken.kinds, "KindConflict"),
        ("listKind", &taken.kinds, "ListKindConflict"),
    ];
    let in_use = |name: &str| format!("{name:?} is already in use");
    for (field, taken, reason) in rows {
        let (asked, has) = (wanted[field].as_str().unwrap_or_default(), before[field].as_str());
        if has != Some(asked) && taken.contains(asked) {
            problem = Some((reason, in_use(asked)));
        } else if wanted[field].is_string() {
            names[field] = wanted[field].clone();
        }
        // Upstream looks at short names between the two pairs, and the last problem is the one it shows.
        if field == "singular" {
            let list = |names: &Value| names["shortNames"].as_array().cloned().unwrap_or_default();
            let known = list(before);
            let refused: Vec<String> = list(wanted)
                .iter()
                .filter(|name| !known.contains(name))
                .filter_map(Value::as_str)
                .filter(|name| taken.contains(*name))
                .map(in_use)
                .collect();
            if refused.is_empty() {
                put(&mut names, "shortNames", wanted.get("shortNames"));
            } else {
                let message = match &refused[..] {
                    [one] => one.clone(),
                    several => format!("[{}]", several.join(", ")),
                };
                problem = Some(("ShortNamesConflict", message));
            }
        }
    }
    put(&mut names, "categories", wanted.get("categories"));
    (names, problem)
}

fn put(names: &mut Value, field: &str, value: Option<&Value>) {
    let Some(names) = names.as_object_mut() else { return };
    match value.filter(|value| value.as_array().is_some_and(|list| !list.is_empty())) {
        Some(value) => names.insert(field.to_owned(), value.clone()),
        None => names.remove(field),
    };
}

/// A CA bundle that is there and is no PEM.
fn has_bad_ca(definition: &Document) -> bool {
    use base64::Engine;
    let Some(bundle) = definition.get_str("spec.conversion.webhook.clientConfig.caBundle") else {
        return false;
    };
    let bytes = base64::engine::general_purpose::STANDARD.decode(bundle).unwrap_or_default();
    !bundle.is_empty() && !bytes.windows(27).any(|part| part == b"-----BEGIN CERTIFICATE-----")
}

/// The community's groups are for what the community has agreed on.
fn approval(definition: &Document) -> Option<(&'static str, &'static str, String)> {
    if !api_structural::is_protected_group(definition.get_str("spec.group").unwrap_or_default()) {
        return None;
    }
    let (state, why) = api_structural::approval_state(&Value::Object(definition.0.clone()));
    let (status, reason) = match state {
        Approval::Given => ("True", "ApprovedAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Invalid => ("False", "InvalidAnnotation"),
    };
    Some((status, reason, why))
}

#[derive(Default)]
pub struct Cleanup {
    /// How many objects are left, and what stood in the way of deleting them, since the API was last asked.
    heard: HashMap<Key, (usize, Option<String>)>,
}

impl Controller for Cleanup {
    fn name(&self) -> &'static str {
        API_SERVER
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::DEFINITIONS]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let key = Key::of(res::DEFINITIONS, change.object);
        if change.kind == ChangeKind::Gone {
            self.heard.remove(&key);
        } else if is_waiting(change.object) {
            wake(key);
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let heard = self.heard.remove(key);
        let Some(object) = world.at(key).filter(|object| is_waiting(object)) else { return Plan::nothing() };
        let Some(mut document) = opened(world, object) else { return Plan::nothing() };
        let Some((gvr, ..)) = served(object) else {
            let why = ("NeverEstablished", "resource was never established");
            terminating(&mut document, "False", why.0, why.1, now.wall);
            return let_go(world, document);
        };
        match heard {
            None => {
                let why = ("InstanceDeletionInProgress", "CustomResource deletion is in progress");
                let mut plan = Plan::nothing();
                if terminating(&mut document, "True", why.0, why.1, now.wall) {
                    plan.push(status_update(world, document));
                }
                plan.push(Action::Purge { of: gvr, namespace: String::new() });
                plan
            }
            Some((_, Some(error))) => {
                let why = format!("could not issue all deletes: {error}");
                let mut plan = Plan::nothing();
                if terminating(&mut document, "True", "InstanceDeletionFailed", &why, now.wall) {
                    plan.push(status_update(world, document));
                }
                plan.again(ASK_AGAIN);
                plan
            }
            Some((0, None)) => {
                let why = ("InstanceDeletionCompleted", "removed all instances");
                terminating(&mut document, "False", why.0, why.1, now.wall);
                let_go(world, document)
            }
            Some(_) => Plan { actions: Vec::new(), again_after: Some(ASK_AGAIN) },
        }
    }

    fn learn(&mut self, key: &Key, news: &News) {
        if let News::Purged { left, error, .. } = news {
            self.heard.insert(key.clone(), (*left, error.clone()));
        }
    }
}

fn is_waiting(object: &Object) -> bool {
    object.header.deleting_since.is_some() && object.header.finalizers.iter().any(|one| &**one == CLEANUP)
}

fn terminating(definition: &mut Document, status: &str, reason: &str, message: &str, now: Timestamp) -> bool {
    let mut conditions = definition.get_array("status.conditions").to_vec();
    let changed = set_condition(&mut conditions, "Terminating", status, reason, message, now, false);
    definition.set("status.conditions", conditions);
    changed
}

/// Without its finalizer the definition is gone with this write.
fn let_go(world: &World, mut definition: Document) -> Plan {
    let kept = definition.finalizers().into_iter().filter(|one| *one != CLEANUP);
    let kept: Vec<Value> = kept.map(Value::from).collect();
    definition.set("metadata.finalizers", kept);
    Plan::of(vec![status_update(world, definition)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(names: Value, accepted: Value) -> Document {
        let value = json!({"metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "names": names}, "status": {"acceptedNames": accepted}});
        Document::from_value(value).unwrap()
    }
    fn shown(definition: &Document) -> Vec<String> {
        let conditions = definition.get_array("status.conditions").iter();
        conditions
            .map(|one| {
                let text = |field: &str| one[field].as_str().unwrap_or_default();
                format!("{}={} {}: {}", text("type"), text("status"), text("reason"), text("message"))
            })
            .collect()
    }

    #[test]
    fn names_are_given_to_the_first_who_asks() {
        let all = json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList",
            "shortNames": ["w", "wd"]});
        let free = [
            "NamesAccepted=True NoConflicts: no conflicts found",
            "Established=True InitialNamesAccepted: the initial names have been accepted",
        ];
        for (resources, kinds, accepted, wanted) in [
            (vec![], vec![], json!({}), free.to_vec()),
            (vec!["gadgets"], vec!["Gadget"], json!({}), free.to_vec()),
            // Its own already.
            (vec![], vec![], all.clone(), free.to_vec()),
            (
                vec!["widget"],
                vec![],
                json!({}),
                vec![
                    "NamesAccepted=False SingularConflict: \"widget\" is already in use",
                    "Established=False NotAccepted: not all names are accepted",
                ],
            ),
            (
                vec!["w", "wd"],
                vec![],
                json!({}),
                vec![
                    "NamesAccepted=False ShortNamesConflict: [\"w\" is already in use, \"wd\" is already in use]",
                    "Established=False NotAccepted: not all names are accepted",
                ],
            ),
            (
                vec!["widgets"],
                vec!["WidgetList"],
                json!({}),
                vec![
                    "NamesAccepted=False ListKindConflict: \"WidgetList\" is already in use",
                    "Established=False NotAccepted: not all names are accepted",
                ],
            ),
        ] {
            let mut document = definition(all.clone(), accepted);
            let text = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
            let taken = Taken { resources: text(resources), kinds: text(kinds) };
            assert!(decide(&mut document, &taken, Timestamp::UNIX_EPOCH));
            assert_eq!(shown(&document), wanted);
            let accepted = document.get("status.acceptedNames") == Some(&all);
            assert_eq!(accepted, wanted == free, "{wanted:?}");
            assert!(!decide(&mut document, &taken, Timestamp::UNIX_EPOCH), "settled");
        }
    }

    #[test]
    fn community_groups_need_approval() {
        const APPROVED: &str = "api-approved.kubernetes.io";
        for (group, annotation, wanted) in [
            ("example.com", "", None),
            ("ak8s.io", "", None),
            ("x.k8s.io", "", Some("MissingAnnotation")),
            ("kubernetes.io", "unapproved, testing", Some("UnapprovedAnnotation")),
            ("k8s.io", "https://github.com/kubernetes/kubernetes/pull/1", Some("ApprovedAnnotation")),
            ("k8s.io", "sure", Some("InvalidAnnotation")),
        ] {
            let value =
                json!({"metadata": {"annotations": {(APPROVED): annotation}}, "spec": {"group": group}});
            let got = approval(&Document::from_value(value).unwrap()).map(|(_, reason, _)| reason);
            assert_eq!(got, wanted, "{group} {annotation}");
        }
    }
}
