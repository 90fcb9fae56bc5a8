//! A cluster made of a map, and requests in one line, for the tables in this crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_kinds::{defaults, kinds};
use api_machinery::{Document, Gvk, Gvr, Object, Status};
use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tenant_client::{Access, Authorizer, Decision, SharedAuthorizer, UserInfo};

use crate::attributes::{Annotations, Attributes, Lookup, Operation, Options, Warnings};
use crate::reinvocation::Reinvocation;

#[derive(Default)]
pub(crate) struct Cluster {
    objects: BTreeMap<(String, String, String), Arc<Object>>,
    revision: u64,
}

pub(crate) fn gvr(text: &str) -> Gvr {
    let (group_version, resource) = text.rsplit_once('/').expect("group/version/resource");
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    Gvr {
        group: group.to_owned().into(),
        version: version.to_owned().into(),
        resource: resource.to_owned().into(),
    }
}

impl Cluster {
    pub(crate) fn put(&mut self, of: &str, value: Value) {
        self.revision += 1;
        let mut document = Document::from_value(value).expect("an object");
        document.set("metadata.resourceVersion", self.revision.to_string());
        let key = (of.to_owned(), document.namespace().to_owned(), document.name().to_owned());
        self.objects.insert(key, Arc::new(Object::from_document(&document).expect("storable")));
    }
}

/// Allows what `ann` asks for.
struct Ann;

impl Authorizer for Ann {
    fn decide(&self, user: &UserInfo, _access: &Access) -> Decision {
        match user.name.as_str() {
            "ann" => Decision::Allow { reason: "she may".to_owned() },
            _ => Decision::NoOpinion { reason: String::new() },
        }
    }
}

#[async_trait]
impl Lookup for Cluster {
    fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Option<Arc<Object>> {
        let key = (of.to_string(), namespace.unwrap_or_default().to_owned(), name.to_owned());
        self.objects.get(&key).cloned()
    }
    fn list(&self, of: &Gvr, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let of = of.to_string();
        let fits = |key: &(String, String, String)| key.0 == of && namespace.is_none_or(|one| one == key.1);
        self.objects.iter().filter(|(key, _)| fits(key)).map(|(_, object)| object.clone()).collect()
    }
    fn resource_of(&self, kind: &Gvk) -> Option<(Gvr, bool)> {
        kinds().by_kind(kind).map(|resource| (resource.gvr.clone(), resource.namespaced))
    }
    fn authorizer(&self) -> &dyn Authorizer {
        &Ann
    }
    fn authorizer_handle(&self) -> SharedAuthorizer {
        Arc::new(Ann)
    }
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
    fn equivalents(&self, of: &Gvr) -> Vec<(Gvr, Gvk)> {
        let Some(resource) = kinds().resource(of) else { return Vec::new() };
        let same = kinds().resources().iter().filter(|one| one.collection == resource.collection);
        same.map(|one| (one.gvr.clone(), one.gvk.clone())).collect()
    }
    async fn to_version(&self, mut document: Document, to: &Gvk) -> Result<Document, Status> {
        document.set("apiVersion", to.api_version());
        Ok(document)
    }
    fn settle(&self, of: &Gvr, document: &mut Document) -> Result<(), Status> {
        if let Some(resource) = kinds().resource(of) {
            defaults::apply(resource.message, document);
        }
        Ok(())
    }
    fn merge(&self, of: &Gvr, live: &Document, config: &Document) -> Result<Document, String> {
        let resource = kinds().resource(of).ok_or("unknown")?;
        api_patch::merge(resource.message, None, live, config).map_err(|cause| cause.to_string())
    }
}

/// A request, owning what [`Attributes`] borrows.
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    pub(crate) gvr: Gvr,
    pub(crate) gvk: Gvk,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) user: UserInfo,
    pub(crate) dry_run: bool,
    pub(crate) internal: bool,
    pub(crate) warnings: Warnings,
    pub(crate) annotations: Annotations,
    lookup: &'a Cluster,
}

pub(crate) fn request<'a>(
    lookup: &'a Cluster,
    operation: Operation,
    of: &str,
    subresource: &str,
    namespace: &str,
    name: &str,
) -> Request<'a> {
    let gvr = gvr(of);
    let gvk =
        kinds().resource(&gvr).map_or_else(|| Gvk::new("", "v1", "Unknown"), |resource| resource.gvk.clone());
    Request {
        operation,
        gvr,
        gvk,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        user: UserInfo { name: "ann".to_owned(), groups: vec!["dev".to_owned()], ..UserInfo::default() },
        dry_run: false,
        internal: false,
        warnings: Warnings::default(),
        annotations: Annotations::default(),
        lookup,
    }
}

impl Request<'_> {
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        Attributes {
            operation: self.operation,
            gvr: &self.gvr,
            gvk: &self.gvk,
            namespace: &self.namespace,
            name: &self.name,
            subresource: &self.subresource,
            user: &self.user,
            dry_run: self.dry_run,
            options: Options { field_manager: "test", ..Options::default() },
            internal: self.internal,
            warnings: &self.warnings,
            annotations: &self.annotations,
            lookup: self.lookup,
            reinvocation: Reinvocation::default(),
        }
    }
}
