//! What a plugin is told about a request, and how it looks around.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_machinery::{Document, Gvk, Gvr, Object, Status};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tenant_client::{Authorizer, DeleteOptions, Propagation, SharedAuthorizer, UserInfo};

use crate::reinvocation::Reinvocation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As webhooks and policies name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One request, as far as it matters to admission. A patch is an update, or a create if it creates.
pub struct Attributes<'a> {
    pub operation: Operation,
    /// Of the object, also for subresources.
    pub gvr: &'a Gvr,
    /// Of what the request carries: a `Binding` for `pods/binding`.
    pub gvk: &'a Gvk,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// May be empty on create with generateName; the registry chooses the name before it asks.
    pub name: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub user: &'a UserInfo,
    pub dry_run: bool,
    pub options: Options<'a>,
    /// From a loop of this process, which writes under the Raft term it leads in.
    pub internal: bool,
    pub warnings: &'a Warnings,
    pub annotations: &'a Annotations,
    pub lookup: &'a dyn Lookup,
    /// What the plugins that call out remember between the two rounds of [`crate::Chain`]. Starts empty.
    pub reinvocation: Reinvocation,
}

/// The options of a request, as far as somebody outside is told them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// Empty when it isn't known.
    pub field_manager: &'a str,
    /// `Strict` and the like; empty when it was left to the server.
    pub field_validation: &'a str,
    /// Of a delete.
    pub delete: Option<&'a DeleteOptions>,
}

impl Options<'_> {
    /// `CreateOptions`, `UpdateOptions` or `DeleteOptions`; null for a connect, whose options are its object.
    pub fn to_json(self, operation: Operation, dry_run: bool) -> Value {
        let kind = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Value::Null,
        };
        let mut options = Map::new();
        options.insert("kind".to_owned(), kind.into());
        options.insert("apiVersion".to_owned(), "meta.k8s.io/v1".into());
        if dry_run {
            options.insert("dryRun".to_owned(), json!(["All"]));
        }
        let Some(delete) = self.delete else {
            for (name, text) in
                [("fieldManager", self.field_manager), ("fieldValidation", self.field_validation)]
            {
                if !text.is_empty() && operation != Operation::Delete {
                    options.insert(name.to_owned(), text.into());
                }
            }
            return Value::Object(options);
        };
        if let Some(seconds) = delete.grace_period_seconds {
            options.insert("gracePeriodSeconds".to_owned(), seconds.into());
        }
        let mut preconditions = Map::new();
        for (name, value) in [("uid", &delete.uid), ("resourceVersion", &delete.resource_version)] {
            if let Some(value) = value {
                preconditions.insert(name.to_owned(), value.as_str().into());
            }
        }
        if !preconditions.is_empty() {
            options.insert("preconditions".to_owned(), Value::Object(preconditions));
        }
        let propagation = delete.propagation.map(|policy| match policy {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        });
        if let Some(policy) = propagation {
            options.insert("propagationPolicy".to_owned(), policy.into());
        }
        Value::Object(options)
    }
}

impl Attributes<'_> {
    /// `is("", "pods")` for the object itself, not for a subresource of it.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && self.is_under(group, resource)
    }
    /// Refused: `pods "x" is forbidden: why`.
    pub fn forbidden(&self, why: impl AsRef<str>) -> Status {
        Status::forbidden(self.gvr, self.name, why.as_ref())
    }
    /// A request for a namespace itself counts as one inside it, as upstream has it.
    pub fn effective_namespace(&self) -> &str {
        if self.is_under("", "namespaces") { self.name } else { self.namespace }
    }
    /// Also for subresources.
    pub fn is_under(&self, group: &str, resource: &str) -> bool {
        self.gvr.group == group && self.gvr.resource == resource
    }
}

/// The cluster as of now. Answers come from memory and are as new as the store is on this replica, which
/// on the leader, where writes are decided, is up to date.
#[async_trait]
pub trait Lookup: Send + Sync {
    fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Option<Arc<Object>>;
    /// All of a namespace, or all of the cluster.
    fn list(&self, of: &Gvr, namespace: Option<&str>) -> Vec<Arc<Object>>;
    /// The resource whose objects have this kind, and whether it lives in namespaces.
    fn resource_of(&self, kind: &Gvk) -> Option<(Gvr, bool)>;
    fn authorizer(&self) -> &dyn Authorizer;
    /// The same, to be kept as long as an expression runs.
    fn authorizer_handle(&self) -> SharedAuthorizer;
    fn now(&self) -> Timestamp;
    /// Every resource under which the objects of `of` are served, `of` among them, and their kinds.
    fn equivalents(&self, of: &Gvr) -> Vec<(Gvr, Gvk)>;
    /// A document in another version of its kind. Which one it is in, it says itself.
    async fn to_version(&self, document: Document, to: &Gvk) -> Result<Document, Status>;
    /// Brings a document of `of` that was patched into the form in which a request's body is worked on:
    /// canonical values, no fields that the kind does not have, defaults.
    fn settle(&self, of: &Gvr, document: &mut Document) -> Result<(), Status>;
    /// `config` merged into `live` as server-side apply would, both documents of `of`, without anybody coming
    /// to own anything. An error says why it cannot be.
    fn merge(&self, of: &Gvr, live: &Document, config: &Document) -> Result<Document, String>;
}

/// Another object that must change with the one being written, or the write must not happen.
#[derive(Debug, Clone)]
pub struct SideWrite {
    pub gvr: Gvr,
    pub namespace: Option<String>,
    pub name: String,
    /// The whole new object.
    pub document: Document,
    /// Its revision when it was read; if it has moved on, the request is decided again.
    pub at: u64,
}

/// Collects what goes into the response's `Warning` headers.
#[derive(Debug, Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

/// More than this many warnings help nobody; upstream cuts by bytes at about the same place.
const MAX_WARNINGS: usize = 64;

impl Warnings {
    /// Says a thing once, however often it is added.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut all = self.0.lock();
        if all.len() < MAX_WARNINGS && !all.contains(&text) {
            all.push(text);
        }
    }
    /// What was said so far; leaves the sink empty.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Collects what a request's audit event is annotated with.
#[derive(Debug, Clone, Default)]
pub struct Annotations(Arc<Mutex<BTreeMap<String, String>>>);

/// Annotations of one request; more would come from somebody who wants to fill the operator's log.
const MAX_ANNOTATIONS: usize = 256;

impl Annotations {
    /// The first value of a key stays, as upstream has it.
    pub fn add(&self, key: impl Into<String>, value: impl Into<String>) {
        let mut all = self.0.lock();
        if all.len() < MAX_ANNOTATIONS {
            all.entry(key.into()).or_insert_with(|| value.into());
        }
    }
    /// What was said so far; leaves the sink empty.
    pub fn take(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.0.lock())
    }
}
