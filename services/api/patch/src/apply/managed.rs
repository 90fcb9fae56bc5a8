//! `metadata.managedFields`: who owns what, as the API shows it.

use std::collections::BTreeMap;

use api_machinery::Document;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::set::FieldSet;

/// Who writes, and how. Two writes with the same of these share an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// Given by the client, or taken from its User-Agent.
    pub name: String,
    pub operation: Operation,
    /// Empty for applies, which keep one entry however the version changes.
    pub api_version: String,
    pub subresource: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// The version the set's paths are in.
    pub api_version: String,
    pub set: FieldSet,
    pub time: Option<Timestamp>,
}

pub(super) type Managers = BTreeMap<Manager, Entry>;

/// Entries of updates kept, at most; the oldest are folded into one.
const MAX_UPDATERS: usize = 10;
const FOLDED: &str = "ancient-changes";

/// The entries of `document`, or `None` when one is not what it should be.
pub(super) fn read(document: &Document) -> Option<Managers> {
    let mut managers = Managers::new();
    for entry in document.get_array("metadata.managedFields") {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let api_version = text("apiVersion");
        if api_version.is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let set = match entry.get("fieldsV1") {
            Some(fields) => FieldSet::from_fields_v1(fields)?,
            None => FieldSet::default(),
        };
        let manager = Manager {
            name: text("manager"),
            operation,
            api_version: if operation == Operation::Apply { String::new() } else { api_version.clone() },
            subresource: text("subresource"),
        };
        managers.insert(manager, Entry { api_version, set, time: text("time").parse().ok() });
    }
    Some(managers)
}

/// Whether a client asks for the entries to be forgotten: an empty list, or one empty entry.
pub(super) fn is_reset(document: &Document) -> bool {
    match document.get("metadata.managedFields").and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}

pub(super) fn write(document: &mut Document, mut managers: Managers) {
    managers.retain(|_, entry| !entry.set.is_empty());
    fold(&mut managers);
    if managers.is_empty() {
        document.remove("metadata.managedFields");
        return;
    }
    let mut entries: Vec<(&Manager, &Entry)> = managers.iter().collect();
    entries.sort_by_key(|(manager, entry)| {
        let seconds = entry.time.map_or(0, Timestamp::as_second);
        (
            manager.operation,
            seconds,
            manager.name.as_str(),
            entry.api_version.as_str(),
            manager.subresource.as_str(),
        )
    });
    let entries: Vec<Value> = entries
        .into_iter()
        .map(|(manager, entry)| {
            let operation = match manager.operation {
                Operation::Apply => "Apply",
                Operation::Update => "Update",
            };
            let mut shown = json!({
                "manager": manager.name, "operation": operation, "apiVersion": entry.api_version,
                "fieldsType": "FieldsV1", "fieldsV1": entry.set.to_fields_v1(),
            });
            if let Some(at) = entry.time {
                shown["time"] = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
            }
            if !manager.subresource.is_empty() {
                shown["subresource"] = manager.subresource.clone().into();
            }
            shown
        })
        .collect();
    document.set("metadata.managedFields", entries);
}

/// Folds the oldest updates of each version into one entry while there are too many.
fn fold(managers: &mut Managers) {
    let mut updaters: Vec<(Timestamp, Manager)> = managers
        .iter()
        .filter(|(manager, _)| manager.operation == Operation::Update && manager.subresource.is_empty())
        .map(|(manager, entry)| (entry.time.unwrap_or(Timestamp::UNIX_EPOCH), manager.clone()))
        .collect();
    updaters.sort();
    // One more than the surplus goes, since the folded entry counts too.
    let surplus = (updaters.len() + 1).saturating_sub(MAX_UPDATERS);
    if updaters.len() <= MAX_UPDATERS {
        return;
    }
    for (_, manager) in updaters.into_iter().take(surplus) {
        let Some(old) = managers.remove(&manager) else { continue };
        let folded = Manager {
            name: FOLDED.to_owned(),
            operation: Operation::Update,
            api_version: old.api_version.clone(),
            subresource: String::new(),
        };
        match managers.get_mut(&folded) {
            Some(entry) => {
                entry.set.add(&old.set);
                entry.time = entry.time.max(old.time);
            }
            None => {
                managers.insert(folded, old);
            }
        }
    }
}
