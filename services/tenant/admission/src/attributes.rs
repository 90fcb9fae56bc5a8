//! What a plugin is told about a request, and how it looks around.

use std::sync::Arc;

use api_machinery::{Document, Gvk, Gvr, Object, Status};
use jiff::Timestamp;
use parking_lot::Mutex;
use tenant_client::{Authorizer, UserInfo};

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
    pub warnings: &'a Warnings,
    pub lookup: &'a dyn Lookup,
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
    /// Also for subresources.
    pub fn is_under(&self, group: &str, resource: &str) -> bool {
        self.gvr.group == group && self.gvr.resource == resource
    }
}

/// The cluster as of now. Answers come from memory and are as new as the store is on this replica, which
/// on the leader, where writes are decided, is up to date.
pub trait Lookup: Send + Sync {
    fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Option<Arc<Object>>;
    /// All of a namespace, or all of the cluster.
    fn list(&self, of: &Gvr, namespace: Option<&str>) -> Vec<Arc<Object>>;
    /// The resource whose objects have this kind, and whether it lives in namespaces.
    fn resource_of(&self, kind: &Gvk) -> Option<(Gvr, bool)>;
    fn authorizer(&self) -> &dyn Authorizer;
    fn now(&self) -> Timestamp;
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
