//! The registry itself: what all verbs share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use api_kinds::{Kinds, ResourceInfo, kinds};
use api_machinery::{Document, Gvr, Object, ObjectError, Status};
use base_clock::SharedClock;
use jiff::Timestamp;
use store_mvcc::{Command, Entry, Key, Op, Term, Value};
use store_raft::Group;
use tenant_admission::{Admission, Lookup};
use tenant_client::{Access, Authorizer, SharedAuthorizer, Target};

use crate::context::Context;
use crate::convert;
use crate::error::write_status;

/// One tenant's objects. Cheap to share; holds no state of its own beyond the group.
pub struct Registry {
    pub(crate) group: Group,
    pub(crate) admission: Arc<dyn Admission>,
    pub(crate) authorizer: SharedAuthorizer,
    pub(crate) clock: SharedClock,
    pub(crate) kinds: &'static Kinds,
}

impl Registry {
    /// `authorizer` is asked by admission plugins that need to know what else the user may do.
    pub fn new(
        group: Group,
        admission: Arc<dyn Admission>,
        authorizer: SharedAuthorizer,
        clock: SharedClock,
    ) -> Arc<Registry> {
        Arc::new(Registry { group, admission, authorizer, clock, kinds: kinds() })
    }

    pub fn group(&self) -> &Group {
        &self.group
    }
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// 404 as for an unknown URL where the table has no such resource.
    pub fn resource(&self, of: &Gvr) -> Result<&'static ResourceInfo, Status> {
        self.kinds.resource(of).ok_or_else(Status::no_route)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn entry(&self, resource: &ResourceInfo, namespace: &str, name: &str) -> Option<Arc<Entry>> {
        self.group.space().get(&key(resource, namespace, name))
    }

    /// Before a read that must see every acknowledged write.
    pub(crate) async fn barrier(&self) -> Result<u64, Status> {
        Ok(self.group.read_index().await.map_err(|cause| write_status(&cause))?.0)
    }

    /// A PUT or an apply that would create its object needs the right to create as well: the request was
    /// authorized as the verb it is, and what that verb finds is known only here.
    pub(crate) fn may_create(
        &self,
        ctx: &Context,
        resource: &ResourceInfo,
        namespace: &str,
        name: &str,
    ) -> Result<(), Status> {
        let of = &resource.gvr;
        let target = Target::Resource {
            group: of.group.to_string(),
            version: of.version.to_string(),
            resource: of.resource.to_string(),
            subresource: String::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let access = Access { verb: "create".to_owned(), target, ..Access::default() };
        if self.authorizer.decide(&ctx.user, &access).is_allowed() {
            return Ok(());
        }
        let place = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {namespace:?}")
        };
        let why = format!(
            "User {:?} cannot create resource {:?} in API group {:?} {place}",
            ctx.user.name, of.resource, of.group
        );
        Err(Status::forbidden(of, name, &why))
    }

    pub(crate) fn command(&self, ctx: &Context, ops: Vec<Op>) -> Command {
        Command { ops, fence: ctx.fence, at_ms: self.now().as_millisecond() }
    }

    /// The newest term this replica leads in, for loops that ask through the registry.
    pub fn leading(&self) -> Option<Term> {
        *self.group.leadership().borrow()
    }
}

impl Lookup for Registry {
    fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Option<Arc<Object>> {
        let resource = self.kinds.resource(of)?;
        let entry = self.entry(resource, namespace.unwrap_or_default(), name)?;
        object(&entry).ok()
    }
    fn list(&self, of: &Gvr, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let Some(resource) = self.kinds.resource(of) else { return Vec::new() };
        let snapshot = self.group.space().snapshot(&resource.collection);
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        snapshot.range(&prefix, None).filter_map(|entry| object(entry).ok()).collect()
    }
    fn authorizer(&self) -> &dyn Authorizer {
        &*self.authorizer
    }
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// The parsed object of an entry, made once and kept beside it.
///
/// A body that does not parse is the store's fault, not the client's: 500, and only for this object.
pub fn object(entry: &Entry) -> Result<Arc<Object>, Status> {
    let parse =
        || Object::from_stored(entry.value.body.clone(), &entry.value.stamp, entry.modified.0).map(Arc::new);
    let parsed: &Parsed = entry.memo.get_or_init(Parsed::default);
    let rare = entry.shared && parsed.kept.get().is_none() && !parsed.asked.swap(true, Ordering::Relaxed);
    let report = |cause: &ObjectError| {
        tracing::error!(key = %entry.key, error = %cause, "a stored object cannot be read");
        Status::internal(format!("object at {} cannot be read", entry.key))
    };
    if rare {
        return parse().map_err(|cause| report(&cause));
    }
    parsed.kept.get_or_init(parse).as_ref().map(Arc::clone).map_err(report)
}

/// What an entry's memo holds. Default objects, which every cluster has some two hundred of, are listed once
/// when its loops start and then for the most part never again: theirs is kept from the second time on.
#[derive(Default)]
struct Parsed {
    asked: AtomicBool,
    kept: OnceLock<Result<Arc<Object>, ObjectError>>,
}

/// As the requested version shows it.
pub(crate) fn served(resource: &ResourceInfo, entry: &Entry) -> Result<Arc<Object>, Status> {
    convert::served_object(resource, &object(entry)?)
}

/// Taken apart, in the storage version, with `apiVersion` and `kind`.
pub(crate) fn document(resource: &ResourceInfo, entry: &Entry) -> Result<Document, Status> {
    let mut document = object(entry)?.to_document().map_err(|cause| {
        tracing::error!(key = %entry.key, error = %cause, "a stored object cannot be taken apart");
        Status::internal(format!("object at {} cannot be read", entry.key))
    })?;
    document.set("apiVersion", resource.storage.api_version());
    document.set("kind", resource.gvk.kind.to_string());
    Ok(document)
}

pub(crate) fn key(resource: &ResourceInfo, namespace: &str, name: &str) -> Key {
    Key::new(&*resource.collection, key_name(resource, namespace, name))
}

pub(crate) fn key_name(resource: &ResourceInfo, namespace: &str, name: &str) -> String {
    if resource.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
}

pub(crate) fn stored_value(document: &Document) -> Value {
    let (body, stamp) = document.to_stored();
    Value { body, stamp: stamp.encode() }
}

/// An object that was not stored (dry run), as the client is to see it.
pub(crate) fn unstored(resource: &ResourceInfo, document: &Document) -> Result<Arc<Object>, Status> {
    let object = Object::from_document(document).map_err(|cause| Status::internal(cause.to_string()))?;
    convert::served_object(resource, &Arc::new(object))
}
