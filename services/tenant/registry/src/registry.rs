//! The registry itself: what all verbs share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use api_kinds::{Kinds, ResourceInfo, defaults, kinds};
use api_machinery::{Document, Gvk, Gvr, Object, ObjectError, Status, mark};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use base_clock::SharedClock;
use jiff::Timestamp;
use parking_lot::Mutex;
use store_mvcc::{Command, Entry, Key, Op, Term, Value};
use store_raft::Group;
use tenant_admission::{Admission, Lookup};
use tenant_client::{Access, Authorizer, SharedAuthorizer, Target};
use tenant_outbound::Outbound;

use crate::context::Context;
use crate::convert;
use crate::custom::{Catalogue, Served};
use crate::error::write_status;
use crate::normalize::normalize;
use crate::resource::Resource;

/// One tenant's objects. Cheap to share; holds no state of its own beyond the group, and what follows from it.
pub struct Registry {
    pub(crate) group: Group,
    pub(crate) admission: Arc<dyn Admission>,
    pub(crate) authorizer: SharedAuthorizer,
    pub(crate) clock: SharedClock,
    pub(crate) kinds: &'static Kinds,
    /// See [`Registry::catalogue`].
    pub(crate) catalogue: ArcSwap<Catalogue>,
    pub(crate) cataloguing: Mutex<()>,
    /// To conversion webhooks.
    pub(crate) outbound: OnceLock<Arc<dyn Outbound>>,
}

impl Registry {
    /// `authorizer` is asked by admission plugins that need to know what else the user may do.
    pub fn new(
        group: Group,
        admission: Arc<dyn Admission>,
        authorizer: SharedAuthorizer,
        clock: SharedClock,
    ) -> Arc<Registry> {
        let catalogue = ArcSwap::new(Catalogue::nothing());
        let cataloguing = Mutex::default();
        let outbound = OnceLock::new();
        let kinds = kinds();
        Arc::new(Registry { group, admission, authorizer, clock, kinds, catalogue, cataloguing, outbound })
    }

    /// How conversion webhooks are reached, from now on; until then, what needs one fails. The way out looks
    /// around in the cluster for itself, which is why it is not there before the registry is.
    pub fn call_through(&self, outbound: Arc<dyn Outbound>) {
        // The first one stays.
        let _set = self.outbound.set(outbound);
    }

    pub fn group(&self) -> &Group {
        &self.group
    }
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// What is built in, else what the cluster's definitions make. 404 as for an unknown URL where neither has
    /// such a resource.
    pub fn resource(&self, of: &Gvr) -> Result<Resource, Status> {
        self.find(&of.group, &of.version, &of.resource).ok_or_else(Status::no_route)
    }
    /// [`Registry::resource`] for parts of a URL that are not put together yet.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Resource> {
        match self.kinds.find(group, version, plural) {
            Some(info) => Some(info.into()),
            None => self.catalogue().find(group, version, plural),
        }
    }
    /// [`Registry::find`] for clients: what is not served is not there. What this replica does not know is looked
    /// for again once it has applied every definition that anybody was told of.
    pub async fn find_served(&self, group: &str, version: &str, plural: &str) -> Result<Resource, Status> {
        let served = |resource: &Resource| resource.custom().is_none_or(|custom| custom.is_served());
        if let Some(found) = self.find(group, version, plural).filter(served) {
            return Ok(found);
        }
        if group.is_empty() {
            return Err(Status::no_route());
        }
        self.barrier().await?;
        self.find(group, version, plural).filter(served).ok_or_else(Status::no_route)
    }
    /// The resource whose objects have this kind.
    pub fn by_kind(&self, gvk: &Gvk) -> Option<Resource> {
        match self.kinds.by_kind(gvk) {
            Some(info) => Some(info.into()),
            None => self.catalogue().by_kind(gvk),
        }
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

#[async_trait]
impl Lookup for Registry {
    fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Option<Arc<Object>> {
        let resource = self.resource(of).ok()?;
        let entry = self.entry(&resource, namespace.unwrap_or_default(), name)?;
        match resource.custom() {
            Some(custom) => custom.serve(&entry).ok(),
            None => object(&entry).ok(),
        }
    }
    fn list(&self, of: &Gvr, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let Ok(resource) = self.resource(of) else { return Vec::new() };
        let snapshot = self.group.space().snapshot(&resource.collection);
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let shown = |entry: &Arc<Entry>| match resource.custom() {
            Some(custom) => custom.serve(entry).ok(),
            None => object(entry).ok(),
        };
        snapshot.range(&prefix, None).filter_map(shown).collect()
    }
    fn resource_of(&self, kind: &Gvk) -> Option<(Gvr, bool)> {
        self.by_kind(kind).map(|resource| (resource.gvr.clone(), resource.namespaced))
    }
    fn authorizer(&self) -> &dyn Authorizer {
        &*self.authorizer
    }
    fn authorizer_handle(&self) -> SharedAuthorizer {
        self.authorizer.clone()
    }
    fn now(&self) -> Timestamp {
        self.clock.now()
    }
    fn equivalents(&self, of: &Gvr) -> Vec<(Gvr, Gvk)> {
        let Ok(resource) = self.resource(of) else { return Vec::new() };
        let pair = |one: &ResourceInfo| (one.gvr.clone(), one.gvk.clone());
        let same = |one: &&ResourceInfo| one.collection == resource.collection;
        if resource.custom().is_some() {
            let catalogue = self.catalogue();
            return catalogue.served().iter().map(|one| one.info()).filter(same).map(pair).collect();
        }
        self.kinds.resources().iter().filter(same).map(pair).collect()
    }
    async fn to_version(&self, mut document: Document, to: &Gvk) -> Result<Document, Status> {
        let unknown = || Status::internal(format!("unable to convert to {to}: unknown kind"));
        let resource = self.by_kind(to).ok_or_else(unknown)?;
        if let Some(custom) = resource.custom() {
            return self.in_version(custom, document).await;
        }
        let from = Gvk::parse(document.api_version(), &to.kind);
        let from = from.and_then(|gvk| self.kinds.by_kind(&gvk)).ok_or_else(unknown)?;
        convert::to_storage(from, &mut document);
        convert::to_served(&resource, &mut document);
        Ok(document)
    }
    fn settle(&self, of: &Gvr, document: &mut Document) -> Result<(), Status> {
        let resource = self.resource(of)?;
        let internal = |why: String| Status::internal(why);
        // A field that the kind does not have is dropped silently, as decoding into a struct would.
        match resource.custom().and_then(|custom| custom.schema()) {
            Some(schema) => drop(schema.prune(document).map_err(internal)?),
            None => {
                api_patch::check(resource.message, document).map_err(|cause| internal(cause.to_string()))?;
            }
        }
        normalize(resource.message, &resource.gvk, document).map_err(|status| internal(status.message))?;
        convert::to_storage(&resource, document);
        defaults::apply(self.storage_message(&resource), document);
        resource.strategy().defaults(document);
        convert::to_served(&resource, document);
        Ok(())
    }
    fn merge(&self, of: &Gvr, live: &Document, config: &Document) -> Result<Document, String> {
        let resource = self.resource(of).map_err(|status| status.message)?;
        let schema = resource.custom().and_then(|custom| custom.schema()).map(|schema| schema.shape());
        api_patch::merge(resource.message, schema, live, config).map_err(|cause| cause.to_string())
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
    let parse = || {
        let parsed = parse()?;
        entry.mark.set(mark::of_labels(&parsed.header.labels));
        Ok(parsed)
    };
    parsed.kept.get_or_init(parse).as_ref().map(Arc::clone).map_err(report)
}

/// What an entry's memo holds. Default objects, which every cluster has some two hundred of, are listed once
/// when its loops start and then for the most part never again: theirs is kept from the second time on.
#[derive(Default)]
struct Parsed {
    asked: AtomicBool,
    kept: OnceLock<Result<Arc<Object>, ObjectError>>,
    /// Of a custom resource's object: how it was last served.
    served: Served,
}

pub(crate) fn served_memo(entry: &Entry) -> &Served {
    &entry.memo.get_or_init(Parsed::default).served
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
