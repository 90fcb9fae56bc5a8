//! What the API serves: resources and their subresources.

use std::borrow::Cow;

use api_machinery::{Gvk, Gvr};

use crate::MessageId;

/// Borrowed for what is built in, owned for custom resources.
pub type Text = Cow<'static, str>;

/// One resource in one version.
#[derive(Debug, Clone)]
pub struct ResourceInfo {
    pub gvr: Gvr,
    /// Kind of its objects.
    pub gvk: Gvk,
    /// Kind of a list of them where it is not `<Kind>List`, as a custom resource may have it; else empty.
    pub list_kind: Text,
    pub singular: Text,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    pub namespaced: bool,
    pub verbs: Vec<Text>,
    pub subresources: Vec<Subresource>,
    /// Where the store keeps it. The plural for what is built in, `<group>/<plural>` for custom resources.
    /// Versions of one resource share it, and so do both faces of events.
    pub collection: Text,
    /// The version its bodies are stored in. Differs from `gvr` in version, and for events in group.
    pub storage: Gvr,
    /// What `storageVersionHash` is made of; `None` for what is never stored (reviews, bindings). Upstream
    /// stores a few kinds in an older version than we do, and clients compare the hash.
    pub hashed: Option<Gvk>,
    /// The shape of its bodies; [`crate::Kinds::custom`] for custom resources.
    pub message: MessageId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// `pods/exec`, `deployments/scale`.
#[derive(Debug, Clone)]
pub struct Subresource {
    pub name: Text,
    /// Kind of the body it takes and gives.
    pub gvk: Gvk,
    pub verbs: Vec<Text>,
}

impl ResourceInfo {
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|one| one.name == name)
    }
    pub fn scope(&self) -> Scope {
        if self.namespaced { Scope::Namespaced } else { Scope::Cluster }
    }
    /// Whether deleting answers with the object as it was, as upstream does for a few resources, and not with
    /// a `Status`.
    pub fn answers_with_deleted(&self) -> bool {
        match &*self.gvr.group {
            "" => [
                "persistentvolumeclaims",
                "persistentvolumes",
                "pods",
                "podtemplates",
                "resourcequotas",
                "serviceaccounts",
                "services",
            ]
            .contains(&&*self.gvr.resource),
            "storage.k8s.io" => self.gvr.resource != "csistoragecapacities",
            "resource.k8s.io" => true,
            _ => false,
        }
    }
    /// `PodList`
    pub fn list_kind(&self) -> String {
        if self.list_kind.is_empty() { format!("{}List", self.gvk.kind) } else { self.list_kind.to_string() }
    }
    /// Comes from a CustomResourceDefinition of the cluster's, not from the table.
    pub fn is_custom(&self) -> bool {
        self.message == crate::kinds().custom()
    }
    /// The storage hash discovery shows, so that clients notice when a stored version moves.
    pub fn storage_version_hash(&self) -> Option<String> {
        self.hashed.as_ref().map(crate::discovery::storage_version_hash)
    }
}

impl Subresource {
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }
}
