//! Server-side apply, and who owns which field.
//!
//! [`apply()`] merges what a manager says into the live object, takes away what it said last time and no
//! longer does, and refuses to change what others own unless forced. [`track_update`] does the bookkeeping
//! for all other writes: whoever changed a field owns it from then on. Sets of fields are in `set`, the
//! walks over values in `typed`, the entries in `managed`.
//!
//! All versions of a kind are taken to have the same fields here: a manager's set in another version is
//! compared as if it were this one's.

mod managed;
mod set;
mod shape;
mod typed;

use api_kinds::MessageId;
use api_machinery::{Cause, Document};
use api_structural::Schema;
use jiff::Timestamp;
use serde_json::Value;

pub use managed::{Manager, Operation};
pub use set::FieldSet;

use crate::PatchError;
use managed::{Entry, Managers};
use set::field_element;
use shape::Shape;
use typed::Comparison;

/// The write whose ownership is tracked.
#[derive(Debug, Clone, Copy)]
pub struct Tracking<'a> {
    /// The object's kind.
    pub message: MessageId,
    /// What a custom resource's definition says of it.
    pub schema: Option<&'a Schema>,
    /// The version of the request: `apps/v1`.
    pub api_version: &'a str,
    /// `fieldManager`, or what the User-Agent says.
    pub manager: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub now: Timestamp,
    /// First-level fields that this endpoint doesn't write (`status` for the object, `spec` for its
    /// status), which nobody comes to own through it.
    pub ignored: &'a [&'a str],
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl<'a> Tracking<'a> {
    fn manager(&self, operation: Operation) -> Manager {
        Manager {
            name: self.manager.to_owned(),
            operation,
            api_version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => self.api_version.to_owned(),
            },
            subresource: self.subresource.to_owned(),
        }
    }

    fn shape(&self) -> Shape<'a> {
        match self.schema {
            Some(schema) => Shape::Root(schema),
            None => Shape::of(self.message),
        }
    }

    fn filtered(&self, set: FieldSet) -> FieldSet {
        let ignored: Vec<String> = self.ignored.iter().map(|&name| field_element(name)).collect();
        if ignored.is_empty() { set } else { set.without(&ignored) }
    }

    fn compared(&self, old: &Value, new: &Value) -> Result<Comparison, PatchError> {
        let found = typed::compare(self.shape(), old, new).map_err(PatchError::Malformed)?;
        Ok(Comparison {
            added: self.filtered(found.added),
            modified: self.filtered(found.modified),
            removed: self.filtered(found.removed),
        })
    }
}

/// Brings `metadata.managedFields` of `new` up to date with a create (`live` is `None`), update or patch
/// other than apply. Call it once `new` is what will be stored, defaults included.
///
/// Entries that a client sent are taken as they are, unless this is a subresource; what can't be read is
/// forgotten rather than refused, as upstream does.
pub fn track_update(tracking: &Tracking<'_>, live: Option<&Document>, new: &mut Document) {
    let from_live = || live.and_then(managed::read).unwrap_or_default();
    let managers = if !tracking.subresource.is_empty() {
        from_live()
    } else if managed::is_reset(new) {
        Managers::new()
    } else {
        match managed::read(new) {
            Some(sent) if !sent.is_empty() => sent,
            _ => from_live(),
        }
    };
    // An object whose owners nobody recorded stays so until it is first applied.
    let untracked = managers.is_empty() && live.is_some();
    if untracked {
        new.remove("metadata.managedFields");
        return;
    }
    match updated(tracking, live, new, managers.clone()) {
        Ok(managers) => managed::write(new, managers),
        // Only a list whose items can't be told apart gets here, which validation refuses further on.
        Err(_) => managed::write(new, managers),
    }
}

fn updated(
    tracking: &Tracking<'_>,
    live: Option<&Document>,
    new: &Document,
    mut managers: Managers,
) -> Result<Managers, PatchError> {
    let before = with_parents(tracking.shape(), live.map_or_else(Value::default, unmanaged));
    let after = with_parents(tracking.shape(), unmanaged(new));
    let found = tracking.compared(&before, &after)?;
    let changed = found.modified.clone().union(&found.added);
    for entry in managers.values_mut() {
        entry.set = entry.set.difference(&changed).difference(&found.removed);
    }
    managers.retain(|_, entry| !entry.set.is_empty());
    let taken = stripped(&changed);
    if !taken.is_empty() {
        let entry = managers.entry(tracking.manager(Operation::Update)).or_insert_with(|| Entry {
            api_version: tracking.api_version.to_owned(),
            set: FieldSet::default(),
            time: None,
        });
        entry.set.add(&taken);
        entry.time = Some(tracking.now);
    }
    Ok(managers)
}

/// Server-side apply: `live` (`None` when it is to be created) with `config` merged in, its
/// `managedFields` up to date. Values must be in canonical form (see [`crate::check`]) on both sides.
pub fn apply(
    tracking: &Tracking<'_>,
    live: Option<&Document>,
    config: &Document,
    force: bool,
) -> Result<Document, PatchError> {
    if config.get("metadata.managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(PatchError::Malformed("metadata.managedFields must be nil".to_owned()));
    }
    if config.api_version() != tracking.api_version {
        return Err(PatchError::Malformed(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
            config.api_version(),
            tracking.api_version
        )));
    }
    let managers = match live {
        Some(live) => managed::read(live)
            .ok_or_else(|| PatchError::Malformed("failed to decode managed fields".to_owned()))?,
        None => Managers::new(),
    };
    let managers = match live {
        Some(live) if managers.is_empty() => {
            // Whoever wrote it before is one unknown manager.
            let before =
                Tracking { manager: "before-first-apply", subresource: "", ignored: &[], ..*tracking };
            updated(&before, None, live, managers)?
        }
        _ => managers,
    };
    let outcome = applied(tracking, live, config, managers.clone(), force);
    let outcome = match outcome {
        Err(Refused::Conflicts(conflicts)) => {
            // kubectl may take over what its client-side apply had put there.
            let own = match live {
                Some(live) if tracking.manager == "kubectl" => {
                    last_applied(tracking, live).unwrap_or_default()
                }
                _ => FieldSet::default(),
            };
            let theirs: Vec<(Manager, Entry)> = conflicts
                .into_iter()
                .map(|(manager, mut entry)| {
                    entry.set = entry.set.difference(&own);
                    (manager, entry)
                })
                .filter(|(_, entry)| !entry.set.is_empty())
                .collect();
            if !theirs.is_empty() {
                return Err(conflict(&theirs));
            }
            applied(tracking, live, config, managers, true)
        }
        decided => decided,
    };
    match outcome {
        Ok((mut document, managers)) => {
            keep_last_applied(tracking, config, &managers, &mut document);
            managed::write(&mut document, managers);
            Ok(document)
        }
        Err(Refused::Patch(error)) => Err(error),
        Err(Refused::Conflicts(conflicts)) => Err(conflict(&conflicts)),
    }
}

/// `config` merged into `live` by the same rules, without a record of who owns what: what a policy says.
///
/// Atomic lists and objects may not be said, since all that `config` leaves out of them would be lost.
/// Facts: `admission/plugin/policy/mutating/patch/smd.go`. `schema` is a custom resource's.
pub fn merge(
    message: MessageId,
    schema: Option<&Schema>,
    live: &Document,
    config: &Document,
) -> Result<Document, PatchError> {
    let shape = match schema {
        Some(schema) => Shape::Root(schema),
        None => Shape::of(message),
    };
    let config = Value::Object(config.0.clone());
    let mut atomic = Vec::new();
    find_atomic(shape, &config, "", &mut atomic);
    if !atomic.is_empty() {
        return Err(PatchError::Malformed(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            atomic.join(", ")
        )));
    }
    typed::distinct(shape, &config, "").map_err(|why| {
        PatchError::Malformed(format!("failed to convert patch object to typed object: {why}"))
    })?;
    let live = Value::Object(live.0.clone());
    let merged = typed::merge(shape, Some(&live), Some(&config))
        .map_err(|why| PatchError::Malformed(format!("failed to merge patch: {why}")))?;
    Document::from_value(merged)
        .ok_or_else(|| PatchError::Malformed("applied configuration must be an object".to_owned()))
}

/// Paths of lists and objects in `value` that are one thing.
fn find_atomic(shape: Shape<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if matches!(shape, Shape::Leaf) {
                found.push(path.to_owned());
                return;
            }
            for (key, member) in members {
                find_atomic(shape.member(key).0, member, &format!("{path}.{key}"), found);
            }
        }
        Value::Array(items) => {
            if !shape.is_list() {
                found.push(path.to_owned());
                return;
            }
            for (at, item) in items.iter().enumerate() {
                find_atomic(shape.item(), item, &format!("{path}[{at}]"), found);
            }
        }
        _ => {}
    }
}

enum Refused {
    Patch(PatchError),
    Conflicts(Vec<(Manager, Entry)>),
}

impl From<PatchError> for Refused {
    fn from(error: PatchError) -> Refused {
        Refused::Patch(error)
    }
}

fn applied(
    tracking: &Tracking<'_>,
    live: Option<&Document>,
    config: &Document,
    mut managers: Managers,
    force: bool,
) -> Result<(Document, Managers), Refused> {
    let shape = tracking.shape();
    let malformed = PatchError::Malformed;
    let live_value = live.map_or_else(|| Value::Object(Default::default()), unmanaged);
    let config_value = unmanaged(config);
    typed::distinct(shape, &config_value, "").map_err(|why| {
        let (namespace, name) = (config.namespace(), config.name());
        let kind = format!("{}, Kind={}", config.api_version(), config.kind());
        malformed(format!("failed to create typed patch object ({namespace}/{name}; {kind}): {why}"))
    })?;
    let merged = typed::merge(shape, Some(&live_value), Some(&config_value)).map_err(malformed)?;
    let set = tracking.filtered(typed::fields(shape, &config_value).map_err(malformed)?);

    let me = tracking.manager(Operation::Apply);
    let before = managers.get(&me).cloned();
    managers.insert(
        me.clone(),
        Entry {
            api_version: tracking.api_version.to_owned(),
            set,
            time: before.as_ref().and_then(|entry| entry.time),
        },
    );
    let merged = match &before {
        Some(before) if !before.set.is_empty() => pruned(shape, merged, &managers, &before.set)?,
        _ => merged,
    };

    let found =
        tracking.compared(&with_parents(shape, live_value.clone()), &with_parents(shape, merged.clone()))?;
    let changed = found.modified.clone().union(&found.added);
    let mut conflicts = Vec::new();
    for (manager, entry) in managers.iter_mut().filter(|(manager, _)| **manager != me) {
        let contested = entry.set.intersection(&changed);
        if !contested.is_empty() {
            let about =
                Entry { api_version: entry.api_version.clone(), set: contested.clone(), time: entry.time };
            conflicts.push((manager.clone(), about));
        }
        entry.set = entry.set.difference(&contested).difference(&found.removed);
    }
    if !force && !conflicts.is_empty() {
        return Err(Refused::Conflicts(conflicts));
    }
    let unchanged = merged == live_value && live.is_some();
    if let Some(entry) = managers.get_mut(&me) {
        entry.set = stripped(&entry.set);
        let same_set = before.as_ref().is_some_and(|before| before.set == entry.set);
        if !(unchanged && same_set) || entry.time.is_none() {
            entry.time = Some(tracking.now);
        }
    }
    managers.retain(|_, entry| !entry.set.is_empty());
    let Value::Object(object) = merged else {
        return Err(Refused::Patch(malformed("applied configuration must be an object".to_owned())));
    };
    Ok((Document(object), managers))
}

/// `merged` without what this manager applied last time, doesn't apply any more, and nobody else owns.
fn pruned(
    shape: Shape<'_>,
    merged: Value,
    managers: &Managers,
    last: &FieldSet,
) -> Result<Value, PatchError> {
    let fields = |value: &Value| typed::fields(shape, value).map_err(PatchError::Malformed);
    let marked = |set: &FieldSet| set.mark_parents(shape, &Shape::step);

    let pruned = typed::remove(shape, &merged, &marked(last));
    // Back comes what somebody owns, this manager's new set included.
    let mut owned = FieldSet::default();
    managers.values().for_each(|entry| owned.add(&entry.set));
    let all = marked(&fields(&merged)?);
    let keep = marked(&fields(&pruned)?).union(&marked(&owned));
    let pruned = typed::remove(shape, &merged, &all.difference(&keep));
    // And what went only because something around it did, without ever having been this manager's.
    let gone = all.difference(&marked(&fields(&pruned)?)).intersection(&marked(last));
    Ok(typed::remove(shape, &merged, &gone))
}

/// The object as ownership sees it: without the record of ownership.
fn unmanaged(document: &Document) -> Value {
    let mut document = document.clone();
    document.remove("metadata.managedFields");
    document.into_value()
}

/// Adds the empty structs that Go's types always have, so that their coming and going is nobody's.
fn with_parents(shape: Shape<'_>, mut value: Value) -> Value {
    fill(&shape.nothing(), &mut value);
    value
}

fn fill(parents: &Value, value: &mut Value) {
    if value.is_null() {
        *value = parents.clone();
        return;
    }
    if let (Value::Object(parents), Value::Object(members)) = (parents, value) {
        for (key, below) in parents {
            fill(below, members.entry(key.clone()).or_insert(Value::Null));
        }
    }
}

/// Fields that are nobody's: they identify the object, or the server alone sets them.
fn stripped(set: &FieldSet) -> FieldSet {
    let mut nobodys = FieldSet::default();
    let path = |parts: &[&str]| parts.iter().map(|part| field_element(part)).collect::<Vec<_>>();
    for name in ["apiVersion", "kind", "metadata"] {
        nobodys.insert(&path(&[name]));
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        nobodys.insert(&path(&["metadata", name]));
    }
    set.difference(&nobodys)
}

fn conflict(conflicts: &[(Manager, Entry)]) -> PatchError {
    let describe = |manager: &Manager, entry: &Entry| {
        let mut text = format!("{:?}", manager.name);
        if !manager.subresource.is_empty() {
            text += &format!(" with subresource {:?}", manager.subresource);
        }
        if manager.operation == Operation::Update {
            text += &format!(" using {}", entry.api_version);
        }
        text
    };
    let mut conflicts: Vec<(String, Vec<String>)> =
        conflicts.iter().map(|(manager, entry)| (describe(manager, entry), entry.set.paths())).collect();
    conflicts.sort();
    let causes: Vec<Cause> = conflicts
        .iter()
        .flat_map(|(manager, paths)| {
            paths.iter().map(move |path| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {manager}"),
                field: path.clone(),
            })
        })
        .collect();
    let message = match conflicts.as_slice() {
        [(manager, paths)] if paths.len() == 1 => {
            format!("Apply failed with 1 conflict: conflict with {manager}: {}", paths[0])
        }
        _ => {
            let mut lines = Vec::new();
            for (manager, paths) in &conflicts {
                lines.push(format!("conflicts with {manager}:"));
                lines.extend(paths.iter().map(|path| format!("- {path}")));
            }
            format!("Apply failed with {} conflicts: {}", causes.len(), lines.join("\n"))
        }
    };
    PatchError::Conflict { message, causes }
}

/// What `kubectl apply` of old put there and is still as it left it.
fn last_applied(tracking: &Tracking<'_>, live: &Document) -> Option<FieldSet> {
    let shape = tracking.shape();
    let text = live.annotation(LAST_APPLIED)?;
    let mut config = Document::from_value(serde_json::from_str(text).ok()?)?;
    if config.api_version() != tracking.api_version {
        return None;
    }
    // It was written by a client, so bring it into the form that live is in.
    crate::check(tracking.message, &mut config).ok()?;
    let config = unmanaged(&config);
    let found = typed::compare(shape, &config, &unmanaged(live)).ok()?;
    let set = typed::fields(shape, &config).ok()?;
    Some(set.difference(&found.modified).difference(&found.added).difference(&found.removed))
}

/// Keeps the annotation of client-side apply true for clients that still use it.
fn keep_last_applied(
    tracking: &Tracking<'_>,
    config: &Document,
    managers: &Managers,
    document: &mut Document,
) {
    if tracking.manager != "kubectl" || document.annotation(LAST_APPLIED).is_none() {
        return;
    }
    let annotation = ["f:metadata", "f:annotations", &field_element(LAST_APPLIED)].map(str::to_owned);
    let parts: Vec<&str> = annotation.iter().map(String::as_str).collect();
    let owned_by_apply = |(manager, entry): (&Manager, &Entry)| {
        manager.operation == Operation::Apply && entry.set.contains_path(&parts)
    };
    if managers.iter().any(owned_by_apply) {
        return;
    }
    let text = config.clone().into_value().to_string();
    if let Some(annotations) = document.metadata_mut().get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.insert(LAST_APPLIED.to_owned(), format!("{text}\n").into());
    }
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
