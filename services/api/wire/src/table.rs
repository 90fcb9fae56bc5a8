//! `meta.k8s.io/v1` tables: what `kubectl get` shows.
//!
//! Every built-in resource has a [`Printer`]: its columns, and a function from one object to one row's cells.
//! [`columns`] and [`cells`] look it up; [`write`] makes a whole table, for lists, single objects and the
//! events of a watch. Upstream always computes the wide columns too and leaves it to the client to hide them
//! by priority, and so does this.
//!
//! Custom resources bring their columns along: [`CustomColumns`], with [`write_rows`].
//!
//! Not here: choosing what a row's `object` member holds (the API server passes a closure), content
//! negotiation.

mod apps;
mod batch;
mod core;
mod custom;
mod duration;
mod network;
mod policy;
mod row;
mod storage;

use std::borrow::Cow;

use api_kinds::ResourceInfo;
use api_machinery::Object;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

pub use custom::CustomColumns;
pub use duration::human_duration;
use row::Row;

/// One column of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Column {
    pub name: Cow<'static, str>,
    #[serde(rename = "type")]
    pub typ: Cow<'static, str>,
    /// `name` for the column that names the object, else empty.
    pub format: Cow<'static, str>,
    pub description: Cow<'static, str>,
    /// 0 is always shown, anything above only with `-o wide`.
    pub priority: i32,
}

/// How one resource is shown.
pub struct Printer {
    columns: &'static [Column],
    cells: fn(&Row<'_>) -> Vec<Value>,
}

const fn column(name: &'static str, typ: &'static str, description: &'static str) -> Column {
    Column {
        name: Cow::Borrowed(name),
        typ: Cow::Borrowed(typ),
        format: Cow::Borrowed(""),
        description: Cow::Borrowed(description),
        priority: 0,
    }
}
const fn text(name: &'static str, description: &'static str) -> Column {
    column(name, "string", description)
}
const fn number(name: &'static str, description: &'static str) -> Column {
    column(name, "integer", description)
}
const fn boolean(name: &'static str, description: &'static str) -> Column {
    column(name, "boolean", description)
}
/// Shown with `-o wide` only.
const fn wide(name: &'static str, description: &'static str) -> Column {
    Column {
        name: Cow::Borrowed(name),
        typ: Cow::Borrowed("string"),
        format: Cow::Borrowed(""),
        description: Cow::Borrowed(description),
        priority: 1,
    }
}

/// A column whose cells name an object.
const fn naming(name: &'static str, description: &'static str, priority: i32) -> Column {
    Column {
        name: Cow::Borrowed(name),
        typ: Cow::Borrowed("string"),
        format: Cow::Borrowed("name"),
        description: Cow::Borrowed(description),
        priority,
    }
}

const NAME: Column = naming("Name", "Name of the object, unique for its resource within its namespace.", 0);
const AGE: Column = text("Age", "How long ago the object was created.");
const CONTAINERS: Column = wide("Containers", "Names of the template's containers.");
const IMAGES: Column = wide("Images", "Images of the template's containers.");
const SELECTOR: Column = wide("Selector", "Which pods belong to it.");

/// For resources without columns of their own.
const DEFAULT: Printer = Printer {
    columns: &[NAME, column("Created At", "date", "When the object was created.")],
    cells: |row| {
        vec![row.name(), json!(row.object.header.created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())]
    },
};
/// Name and age: what upstream shows where there is nothing else to say.
const NAME_AND_AGE: Printer = Printer { columns: &[NAME, AGE], cells: |row| vec![row.name(), row.age()] };

/// Bodies are shown as they are stored, so both versions of autoscalers and both faces of events share one.
fn printer(resource: &ResourceInfo) -> &'static Printer {
    let (group, plural) = (&*resource.storage.group, &*resource.storage.resource);
    let found = match group {
        "" => core::printer(plural),
        "apps" => apps::printer(plural),
        "batch" | "autoscaling" | "scheduling.k8s.io" | "resource.k8s.io" => batch::printer(plural),
        "networking.k8s.io" | "discovery.k8s.io" => network::printer(plural),
        "storage.k8s.io" | "storagemigration.k8s.io" | "internal.apiserver.k8s.io" => {
            storage::printer(plural)
        }
        "policy"
        | "rbac.authorization.k8s.io"
        | "certificates.k8s.io"
        | "coordination.k8s.io"
        | "node.k8s.io"
        | "admissionregistration.k8s.io"
        | "apiregistration.k8s.io"
        | "flowcontrol.apiserver.k8s.io" => policy::printer(plural),
        _ => None,
    };
    found.unwrap_or(&DEFAULT)
}

/// The columns of a built-in resource; name and creation time for what is not built in.
pub fn columns(resource: &ResourceInfo) -> &'static [Column] {
    printer(resource).columns
}

/// One row, in the order of [`columns`]. A body that is not JSON shows empty cells.
pub fn cells(resource: &ResourceInfo, object: &Object, now: Timestamp) -> Vec<Value> {
    (printer(resource).cells)(&Row::new(object, now))
}

/// `conditions` of a row: finished pods are marked, so that clients can leave them out.
pub fn conditions(resource: &ResourceInfo, object: &Object) -> Option<Value> {
    if resource.storage.resource != "pods" || !resource.storage.group.is_empty() {
        return None;
    }
    let message = match object.field("status.phase")?.as_str()? {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    let phase = object.field("status.phase")?;
    Some(json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]))
}

/// What surrounds the rows.
#[derive(Debug, Clone)]
pub struct Head<'a> {
    /// `meta.k8s.io/v1`, or `v1beta1` for clients that ask for it.
    pub api_version: &'a str,
    pub resource_version: Option<u64>,
    pub continue_token: Option<&'a str>,
    pub remaining: Option<u64>,
    /// `None` leaves the definitions out, as `noHeaders` asks for and every event of a watch but the first has.
    pub columns: Option<&'a [Column]>,
}

/// A table of `objects`. `put_object` appends the JSON of a row's `object` member: the object, its metadata
/// or `null`.
pub fn write<'a>(
    head: &Head<'_>,
    resource: &ResourceInfo,
    objects: impl IntoIterator<Item = &'a Object>,
    now: Timestamp,
    mut put_object: impl FnMut(&Object, &mut Vec<u8>),
) -> Vec<u8> {
    let rows = objects.into_iter().map(|object| {
        let mut member = Vec::new();
        put_object(object, &mut member);
        (cells(resource, object, now), conditions(resource, object), member)
    });
    write_rows(head, rows)
}

/// [`write()`] for rows made elsewhere, such as a custom resource's: cells, conditions, JSON of `object`.
pub fn write_rows(
    head: &Head<'_>,
    rows: impl IntoIterator<Item = (Vec<Value>, Option<Value>, Vec<u8>)>,
) -> Vec<u8> {
    let mut metadata = json!({});
    if let Some(revision) = head.resource_version {
        metadata["resourceVersion"] = revision.to_string().into();
    }
    if let Some(token) = head.continue_token {
        metadata["continue"] = token.into();
    }
    if let Some(count) = head.remaining {
        metadata["remainingItemCount"] = count.into();
    }
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(b"{\"kind\":\"Table\",\"apiVersion\":");
    put(&head.api_version, &mut out);
    out.extend_from_slice(b",\"metadata\":");
    put(&metadata, &mut out);
    out.extend_from_slice(b",\"columnDefinitions\":");
    put(&head.columns, &mut out);
    out.extend_from_slice(b",\"rows\":[");
    for (at, (cells, conditions, object)) in rows.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"cells\":");
        put(&cells, &mut out);
        if let Some(conditions) = conditions {
            out.extend_from_slice(b",\"conditions\":");
            put(&conditions, &mut out);
        }
        out.extend_from_slice(b",\"object\":");
        out.extend_from_slice(if object.is_empty() { b"null" } else { &object });
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}

fn put(value: &impl Serialize, out: &mut Vec<u8>) {
    // Everything written here has string keys, and a Vec takes every byte.
    serde_json::to_writer(out, value).expect("tables are JSON");
}

#[cfg(test)]
mod tests;
