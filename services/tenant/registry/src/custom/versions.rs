//! Between the version an object is stored in and the one it is asked for.
//!
//! A body says in its stamp which version it was written in, since the storage version may have moved since. It
//! is read through that version's schema (what the schema dropped goes, what it defaults comes), then renamed
//! or converted, then cut to the schema of the version asked for. Writes work on the version asked for, so that
//! its schema decides, and go to the storage version at the very end.

use std::borrow::Cow;
use std::sync::Arc;

use api_machinery::{Document, Object, Status};
use parking_lot::Mutex;
use store_mvcc::Entry;
use uuid::Uuid;

use super::definition::{CustomResource, Version};
use crate::convert;
use crate::registry::{self, Registry, object};
use crate::resource::Resource;

/// How an entry was last served, beside what was parsed of it: lists and watches ask again and again.
#[derive(Default)]
pub(crate) struct Served(Mutex<Option<Box<As>>>);

struct As {
    edition: (Uuid, i64),
    version: String,
    object: Arc<Object>,
}

impl CustomResource {
    /// The stored object of `entry` as this version shows it. Not for what a webhook must convert: see
    /// [`CustomResource::needs_webhook`].
    pub(crate) fn serve(&self, entry: &Entry) -> Result<Arc<Object>, Status> {
        let stored = object(entry)?;
        let memo = registry::served_memo(entry);
        let mut last = memo.0.lock();
        if let Some(last) = &*last
            && last.edition == self.edition()
            && last.version == self.version().name
        {
            return Ok(last.object.clone());
        }
        let made = self.read(&stored)?;
        *last = Some(Box::new(As {
            edition: self.edition(),
            version: self.version().name.clone(),
            object: made.clone(),
        }));
        Ok(made)
    }

    /// Whether only a webhook can say what `stored` looks like in this version.
    pub(crate) fn needs_webhook(&self, stored: &Object) -> bool {
        self.spec.webhook.is_some() && self.version_of(stored).is_none_or(|of| of.name != self.version().name)
    }
    pub(crate) fn may_need_webhook(&self) -> bool {
        self.spec.webhook.is_some()
    }

    fn version_of(&self, stored: &Object) -> Option<&Version> {
        let (group, version) = stored.header.api_version.rsplit_once('/')?;
        if group == self.spec.group { self.spec.version(version) } else { None }
    }

    /// Through the schema of the version it was stored in.
    fn opened(&self, stored: &Object) -> Result<Document, Status> {
        let mut document = stored.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
        document.set("apiVersion", stored.header.api_version.to_string());
        document.set("kind", self.info().gvk.kind.to_string());
        if let Some(schema) = self.version_of(stored).and_then(|of| self.spec.schema(of)) {
            schema.prune_stored(&mut document);
            schema.default(&mut document);
        }
        if document.generation() == 0 {
            document.set_generation(1);
        }
        Ok(document)
    }

    fn read(&self, stored: &Arc<Object>) -> Result<Arc<Object>, Status> {
        let mut document = self.opened(stored)?;
        self.rename(&mut document, self.version());
        let made = Object::from_document(&document).map_err(|cause| Status::internal(cause.to_string()))?;
        // Nothing the schema had a say in, as nearly always: one object serves all.
        Ok(if made.body() == stored.body() { stored.clone() } else { Arc::new(made) })
    }

    /// To another version of the same fields.
    fn rename(&self, document: &mut Document, to: &Version) {
        let wanted = format!("{}/{}", self.spec.group, to.name);
        if document.api_version() == wanted {
            return;
        }
        document.set("apiVersion", wanted);
        if let Some(schema) = self.spec.schema(to) {
            schema.prune_stored(document);
        }
    }

    fn storage(&self) -> &Version {
        &self.spec.versions[self.spec.storage]
    }
}

impl Registry {
    /// As the requested version shows it.
    pub(crate) async fn served(&self, resource: &Resource, entry: &Entry) -> Result<Arc<Object>, Status> {
        let Some(custom) = resource.custom() else {
            return convert::served_object(resource, &object(entry)?);
        };
        if custom.may_need_webhook() {
            let mut one = vec![object(entry)?];
            self.serve_all(custom, &mut one).await?;
            return one.pop().ok_or_else(|| Status::internal("conversion gave no object"));
        }
        custom.serve(entry)
    }

    /// Taken apart, as writes decide on it, with `apiVersion` and `kind`: what is built in in the storage
    /// version, custom resources in the version asked for.
    pub(crate) async fn opened(&self, resource: &Resource, entry: &Entry) -> Result<Document, Status> {
        if resource.custom().is_none() {
            return registry::document(resource, entry);
        }
        let object = self.served(resource, entry).await?;
        let mut document = object.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
        document.set("apiVersion", resource.gvk.api_version());
        document.set("kind", resource.gvk.kind.to_string());
        Ok(document)
    }

    /// `document`, decided on, in the version it is to be stored in.
    pub(crate) async fn closed<'d>(
        &self,
        resource: &Resource,
        document: &'d Document,
    ) -> Result<Cow<'d, Document>, Status> {
        let Some(custom) = resource.custom() else { return Ok(Cow::Borrowed(document)) };
        let wanted = format!("{}/{}", custom.spec.group, custom.storage().name);
        if document.api_version() == wanted {
            return Ok(Cow::Borrowed(document));
        }
        let mut stored = document.clone();
        if custom.may_need_webhook() {
            let mut converted = self.convert(custom, &wanted, vec![stored]).await?;
            stored = converted.pop().ok_or_else(|| Status::internal("conversion gave no object"))?;
            if let Some(schema) = custom.spec.schema(custom.storage()) {
                schema.prune_stored(&mut stored);
            }
            return Ok(Cow::Owned(stored));
        }
        custom.rename(&mut stored, custom.storage());
        Ok(Cow::Owned(stored))
    }

    /// A document of another version of `custom`, in its own.
    pub(crate) async fn in_version(
        &self,
        custom: &CustomResource,
        mut document: Document,
    ) -> Result<Document, Status> {
        let wanted = custom.info().gvk.api_version();
        if document.api_version() == wanted {
            return Ok(document);
        }
        if !custom.may_need_webhook() {
            custom.rename(&mut document, custom.version());
            return Ok(document);
        }
        let mut converted = self.convert(custom, &wanted, vec![document]).await?;
        let mut document = converted.pop().ok_or_else(|| Status::internal("conversion gave no object"))?;
        if let Some(schema) = custom.schema() {
            schema.prune_stored(&mut document);
        }
        Ok(document)
    }

    /// Stored objects as `custom` shows them, those that only a webhook can convert in one call.
    pub(crate) async fn serve_all(
        &self,
        custom: &CustomResource,
        objects: &mut [Arc<Object>],
    ) -> Result<(), Status> {
        let wanted = custom.info().gvk.api_version();
        let mut foreign = Vec::new();
        for (at, stored) in objects.iter_mut().enumerate() {
            if custom.needs_webhook(stored) {
                foreign.push((at, custom.opened(stored)?));
            } else {
                *stored = custom.read(stored)?;
            }
        }
        if foreign.is_empty() {
            return Ok(());
        }
        let (places, documents): (Vec<usize>, Vec<Document>) = foreign.into_iter().unzip();
        let converted = self.convert(custom, &wanted, documents).await?;
        for (at, mut document) in places.into_iter().zip(converted) {
            if let Some(schema) = custom.schema() {
                schema.prune_stored(&mut document);
            }
            let made =
                Object::from_document(&document).map_err(|cause| Status::internal(cause.to_string()))?;
            objects[at] = Arc::new(made);
        }
        Ok(())
    }
}
