//! One in-memory cluster to ask, and short words for asking.

use std::sync::Arc;

use api_machinery::{Document, Gvr, Object, Status};
use base_clock::ManualClock;
use serde_json::Value;
use store_mvcc::Limits;
use store_raft::Group;
use tenant_admission::{Admission, Chain};
use tenant_client::{Access, Authorizer, Decision, DeleteOptions, Patch, UserInfo};
use tenant_registry::{Context, Deleted, GetOptions, List, ListOptions, Output, Registry, bootstrap};

pub struct Cluster {
    pub registry: Arc<Registry>,
    pub clock: Arc<ManualClock>,
    pub ctx: Context,
}

struct Everything;
impl Authorizer for Everything {
    fn decide(&self, _user: &UserInfo, _access: &Access) -> Decision {
        Decision::Allow { reason: "test".to_owned() }
    }
}

pub async fn cluster() -> Cluster {
    cluster_with(Arc::new(Chain::default())).await
}

pub async fn cluster_with(admission: Arc<dyn Admission>) -> Cluster {
    cluster_of(admission, Limits::default()).await
}

pub async fn cluster_of(admission: Arc<dyn Admission>, limits: Limits) -> Cluster {
    let clock = ManualClock::new("2026-11-30T21:00:00Z".parse().unwrap());
    let group = Group::in_memory(limits);
    let first = bootstrap::command(&bootstrap::Options {
        now: "2026-11-30T21:00:00Z".parse().unwrap(),
        keys: Vec::new(),
        client_ca_pem: "ca".to_owned(),
        front_proxy_ca_pem: "front".to_owned(),
        defaults: Vec::new(),
    })
    .unwrap();
    group.write(first).await.unwrap();
    let registry = Registry::new(group, admission, Arc::new(Everything), clock.clone());
    let mut user = UserInfo::component("tester");
    user.groups.push(UserInfo::MASTERS.to_owned());
    let ctx = Context { field_manager: "tester".to_owned(), ..Context::of(user) };
    Cluster { registry, clock, ctx }
}

pub fn gvr(text: &str) -> Gvr {
    let (group_version, resource) = text.rsplit_once('/').unwrap_or(("v1", text));
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    Gvr {
        group: group.to_owned().into(),
        version: version.to_owned().into(),
        resource: resource.to_owned().into(),
    }
}

pub fn doc(value: Value) -> Document {
    Document::from_value(value).expect("an object")
}

/// With apiVersion-less metadata, as a document.
pub fn open(object: &Object) -> Document {
    object.to_document().unwrap()
}

impl Cluster {
    /// Where the object goes, by what its resource is at the moment.
    fn namespace(&self, of: &str, object: &Document) -> Result<Option<String>, Status> {
        let namespaced = self.registry.resource(&gvr(of))?.namespaced;
        let given = object.namespace();
        Ok(namespaced.then(|| if given.is_empty() { "default".to_owned() } else { given.to_owned() }))
    }
    pub async fn create(&self, of: &str, value: Value) -> Result<Document, Status> {
        let object = doc(value);
        let namespace = self.namespace(of, &object)?;
        let created = self.registry.create(&self.ctx, &gvr(of), namespace.as_deref(), object).await?;
        Ok(open(&created.object))
    }
    pub async fn update(&self, of: &str, object: Document) -> Result<Document, Status> {
        let (namespace, name) = (self.namespace(of, &object)?, object.name().to_owned());
        let written = self.registry.update(&self.ctx, &gvr(of), namespace.as_deref(), &name, object).await?;
        Ok(open(&written.object))
    }
    pub async fn get(&self, of: &str, name: &str) -> Result<Document, Status> {
        let (namespace, name) = split(name);
        let options = GetOptions::default();
        Ok(open(&*self.registry.get(&self.ctx, &gvr(of), namespace, name, &options).await?))
    }
    pub async fn list(
        &self,
        of: &str,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List, Status> {
        self.registry.list(&self.ctx, &gvr(of), namespace, options).await
    }
    pub async fn patch(&self, of: &str, name: &str, patch: Patch) -> Result<Document, Status> {
        let (namespace, name) = split(name);
        let ctx = match &patch {
            Patch::Apply { manager, .. } => Context { field_manager: manager.clone(), ..self.ctx.clone() },
            _ => self.ctx.clone(),
        };
        let written = self.registry.patch(&ctx, &gvr(of), namespace, name, &patch).await?;
        Ok(open(&written.object))
    }
    pub async fn status(&self, of: &str, object: Document) -> Result<Document, Status> {
        self.sub(of, "status", object).await
    }
    pub async fn sub(&self, of: &str, subresource: &str, object: Document) -> Result<Document, Status> {
        let (namespace, name) = (self.namespace(of, &object)?, object.name().to_owned());
        let of = gvr(of);
        let put = self.registry.update_subresource(
            &self.ctx,
            &of,
            namespace.as_deref(),
            &name,
            subresource,
            object,
        );
        match put.await? {
            Output::Object(object) => Ok(open(&object)),
            Output::Document(document) => Ok(document),
            Output::Status(status) => Err(*status),
        }
    }
    /// `gone`, or the object that still waits.
    pub async fn delete(
        &self,
        of: &str,
        name: &str,
        options: DeleteOptions,
    ) -> Result<Option<Document>, Status> {
        let (namespace, name) = split(name);
        match self.registry.delete(&self.ctx, &gvr(of), namespace, name, &options).await? {
            Deleted::Gone(_) => Ok(None),
            Deleted::Pending(object) => Ok(Some(open(&object))),
        }
    }
}

fn split(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, name),
    }
}
