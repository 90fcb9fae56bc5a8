//! The trait and its words.

use std::sync::Arc;

use api_machinery::{Document, FieldSelector, Gvr, LabelSelector, Object, Status};
use async_trait::async_trait;
use futures::stream::BoxStream;
use serde_json::Value;

/// One identity's access to one cluster. Every error is the [`Status`] a remote client would get.
///
/// `namespace` is `None` for cluster-scoped resources, and in lists and watches for all namespaces.
/// `subresource` is `None` for the object itself, else `"status"`, `"scale"`, `"binding"`, ….
#[async_trait]
pub trait Api: Send + Sync + 'static {
    async fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Result<Arc<Object>, Status>;
    async fn list(&self, of: &Gvr, options: ListOptions) -> Result<ObjectList, Status>;
    async fn watch(&self, of: &Gvr, options: WatchOptions) -> Result<WatchStream, Status>;
    /// Creates, or posts to a subresource (`pods/x/binding`: `name` is then the object's).
    async fn create(&self, of: &Gvr, object: Document, options: CreateOptions)
    -> Result<Arc<Object>, Status>;
    /// Replaces; name, namespace and resourceVersion are the document's own.
    async fn update(
        &self,
        of: &Gvr,
        subresource: Option<&str>,
        object: Document,
    ) -> Result<Arc<Object>, Status>;
    async fn patch(
        &self,
        of: &Gvr,
        subresource: Option<&str>,
        namespace: Option<&str>,
        name: &str,
        patch: Patch,
    ) -> Result<Arc<Object>, Status>;
    async fn delete(
        &self,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        options: DeleteOptions,
    ) -> Result<(), Status>;
}

pub type SharedApi = Arc<dyn Api>;

#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    pub namespace: Option<String>,
    /// For subresources that are created: the object's name, and `binding`, `eviction`, `token`.
    pub subresource: Option<(String, &'static str)>,
}

#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub namespace: Option<String>,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

#[derive(Debug, Clone)]
pub struct ObjectList {
    /// Where a watch that misses nothing starts.
    pub revision: u64,
    pub items: Vec<Arc<Object>>,
}

#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    pub namespace: Option<String>,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// Events after this revision.
    pub after: u64,
}

#[derive(Debug, Clone)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    /// Nothing up to this revision is still to come.
    Bookmark(u64),
}

/// Ends after its first error; a 410 means: list again.
pub type WatchStream = BoxStream<'static, Result<WatchEvent, Status>>;

#[derive(Debug, Clone)]
pub enum Patch {
    /// RFC 6902
    Json(Value),
    /// RFC 7396
    Merge(Value),
    Strategic(Value),
    /// Server-side apply
    Apply {
        document: Value,
        manager: String,
        force: bool,
    },
}

#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub propagation: Option<Propagation>,
    pub grace_period_seconds: Option<i64>,
    /// Preconditions: 409 unless they hold.
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}
