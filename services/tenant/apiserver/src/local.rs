//! The API for loops of this process: the same authorization, admission and registry as over HTTP, without
//! the bytes.

use std::sync::Arc;

use api_machinery::{Document, FieldSelector, Gvr, Object, Status};
use async_trait::async_trait;
use futures::StreamExt;
use store_mvcc::Term;
use tenant_auth::{issue_token, review};
use tenant_client::{
    Access, Api, CreateOptions, DeleteOptions, ListOptions, ObjectList, Patch, Target, UserInfo, WatchEvent,
    WatchOptions, WatchStream,
};
use tenant_registry::{Change, Context, GetOptions, Output, WatchItem};

use crate::plane::ControlPlane;

/// One identity's access, for as long as it leads.
pub struct LocalClient {
    plane: Arc<ControlPlane>,
    user: UserInfo,
    fence: Option<Term>,
    manager: String,
}

impl LocalClient {
    pub(crate) fn new(plane: Arc<ControlPlane>, user: UserInfo, fence: Option<Term>) -> LocalClient {
        let manager = manager_of(&user.name);
        LocalClient { plane, user, fence, manager }
    }

    fn context(&self) -> Context {
        Context { field_manager: self.manager.clone(), fence: self.fence, ..Context::of(self.user.clone()) }
    }

    fn authorize(
        &self,
        verb: &str,
        of: &Gvr,
        place: Place<'_>,
        fields: &FieldSelector,
    ) -> Result<(), Status> {
        let target = Target::Resource {
            group: of.group.to_string(),
            version: of.version.to_string(),
            resource: of.resource.to_string(),
            subresource: place.subresource.to_owned(),
            namespace: place.namespace.unwrap_or_default().to_owned(),
            name: place.name.to_owned(),
        };
        let access = Access { verb: verb.to_owned(), target, fields: fields.clone() };
        self.plane.authority.require(&self.user, &access)
    }

    /// What a subresource answered, as the object it is about.
    fn object(&self, of: &Gvr, output: Output) -> Result<Arc<Object>, Status> {
        match output {
            Output::Object(object) => Ok(object),
            Output::Document(document) => from_document(&document),
            Output::Status(status) if status.status == "Success" => {
                let mut document = Document::default();
                if let Some(details) = &status.details {
                    document.set("metadata.name", details.name.clone());
                    document.set("metadata.uid", details.uid.clone());
                }
                document.set("apiVersion", of.api_version());
                from_document(&document)
            }
            Output::Status(status) => Err(*status),
        }
    }
}

/// What a verb is on, beside the resource.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    namespace: Option<&'a str>,
    name: &'a str,
    subresource: &'a str,
}

fn from_document(document: &Document) -> Result<Arc<Object>, Status> {
    Object::from_document(document).map(Arc::new).map_err(|cause| Status::internal(cause.to_string()))
}

/// Field managers as upstream's processes call themselves.
fn manager_of(user: &str) -> String {
    if user.starts_with("system:serviceaccount:kube-system:") {
        return "kube-controller-manager".to_owned();
    }
    user.rsplit(':').next().unwrap_or(user).to_owned()
}

#[async_trait]
impl Api for LocalClient {
    async fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Result<Arc<Object>, Status> {
        let place = Place { namespace, name, ..Place::default() };
        self.authorize("get", of, place, &FieldSelector::default())?;
        self.plane.registry().get(&self.context(), of, namespace, name, &GetOptions::default()).await
    }

    async fn list(&self, of: &Gvr, options: ListOptions) -> Result<ObjectList, Status> {
        let namespace = options.namespace.as_deref();
        self.authorize("list", of, Place { namespace, ..Place::default() }, &options.fields)?;
        let wanted = tenant_registry::ListOptions {
            labels: options.labels.clone(),
            fields: options.fields.clone(),
            ..tenant_registry::ListOptions::default()
        };
        let list = self.plane.registry().list(&self.context(), of, namespace, &wanted).await?;
        Ok(ObjectList { revision: list.revision, items: list.items })
    }

    async fn watch(&self, of: &Gvr, options: WatchOptions) -> Result<WatchStream, Status> {
        let namespace = options.namespace.as_deref();
        self.authorize("watch", of, Place { namespace, ..Place::default() }, &options.fields)?;
        let wanted = tenant_registry::WatchOptions {
            labels: options.labels.clone(),
            fields: options.fields.clone(),
            resource_version: options.after.to_string(),
            // No bookmarks: they need a timer per watch, and a loop in this process resumes by listing.
            allow_bookmarks: false,
            ..tenant_registry::WatchOptions::default()
        };
        let watch = self.plane.registry().watch(&self.context(), of, namespace, &wanted).await?;
        let events = futures::stream::unfold(Some(watch), |watch| async move {
            let mut watch = watch?;
            match watch.next().await? {
                Err(status) => Some((Err(status), None)),
                Ok(WatchItem::Bookmark { revision, .. }) => {
                    Some((Ok(WatchEvent::Bookmark(revision)), Some(watch)))
                }
                Ok(WatchItem::Change { change, object, .. }) => {
                    let event = match change {
                        Change::Added => WatchEvent::Added(object),
                        Change::Modified => WatchEvent::Modified(object),
                        Change::Deleted => WatchEvent::Deleted(object),
                    };
                    Some((Ok(event), Some(watch)))
                }
            }
        });
        Ok(events.boxed())
    }

    async fn create(
        &self,
        of: &Gvr,
        object: Document,
        options: CreateOptions,
    ) -> Result<Arc<Object>, Status> {
        let namespace = options.namespace.as_deref();
        let Some((name, subresource)) = &options.subresource else {
            self.authorize("create", of, Place { namespace, ..Place::default() }, &FieldSelector::default())?;
            if review::GROUPS.contains(&&*of.group) {
                let (plane, namespace) = (&self.plane, namespace.unwrap_or_default());
                let answer = review::evaluate(
                    &of.resource,
                    &plane.authenticator,
                    &plane.authority,
                    &self.user,
                    namespace,
                    object,
                );
                return from_document(&answer.ok_or_else(Status::no_route)??);
            }
            let written = self.plane.registry().create(&self.context(), of, namespace, object).await?;
            return Ok(written.object);
        };
        self.authorize("create", of, Place { namespace, name, subresource }, &FieldSelector::default())?;
        let registry = self.plane.registry();
        if *subresource == "token" {
            let namespace = namespace.unwrap_or_default();
            let now = self.plane.clock.now();
            let issuer = self.plane.pki().issuer();
            let issued = issue_token(registry.group().space(), issuer, namespace, name, object, now)?;
            return from_document(&issued);
        }
        let output =
            registry.create_subresource(&self.context(), of, namespace, name, subresource, object).await?;
        self.object(of, output)
    }

    async fn update(
        &self,
        of: &Gvr,
        subresource: Option<&str>,
        object: Document,
    ) -> Result<Arc<Object>, Status> {
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
        let place = Place { namespace, name: &name, subresource: subresource.unwrap_or_default() };
        self.authorize("update", of, place, &FieldSelector::default())?;
        let registry = self.plane.registry();
        match subresource {
            None => Ok(registry.update(&self.context(), of, namespace, &name, object).await?.object),
            Some(subresource) => {
                let output = registry
                    .update_subresource(&self.context(), of, namespace, &name, subresource, object)
                    .await?;
                self.object(of, output)
            }
        }
    }

    async fn patch(
        &self,
        of: &Gvr,
        subresource: Option<&str>,
        namespace: Option<&str>,
        name: &str,
        patch: Patch,
    ) -> Result<Arc<Object>, Status> {
        let place = Place { namespace, name, subresource: subresource.unwrap_or_default() };
        self.authorize("patch", of, place, &FieldSelector::default())?;
        let registry = self.plane.registry();
        match subresource {
            None => Ok(registry.patch(&self.context(), of, namespace, name, &patch).await?.object),
            Some(subresource) => {
                let output = registry
                    .patch_subresource(&self.context(), of, namespace, name, subresource, &patch)
                    .await?;
                self.object(of, output)
            }
        }
    }

    async fn delete(
        &self,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        options: DeleteOptions,
    ) -> Result<(), Status> {
        self.authorize(
            "delete",
            of,
            Place { namespace, name, ..Place::default() },
            &FieldSelector::default(),
        )?;
        self.plane.registry().delete(&self.context(), of, namespace, name, &options).await.map(drop)
    }
}
