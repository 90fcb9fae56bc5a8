//! The cluster's Services, for whoever is reached through one.

use std::sync::Arc;

use api_machinery::Document;
use store_mvcc::{Key, Space};
use tenant_outbound::Directory;
use tenant_registry::object;

/// Reads Services and their endpoints straight from the key space: who may be reached is decided there and not
/// by who asks.
pub struct Services(pub Arc<Space>);

impl Directory for Services {
    fn service(&self, namespace: &str, name: &str) -> Option<Document> {
        let entry = self.0.get(&Key::new("services", format!("{namespace}/{name}")))?;
        object(&entry).ok()?.to_document().ok()
    }

    fn endpoint_slices(&self, namespace: &str, service: &str) -> Vec<Document> {
        let snapshot = self.0.snapshot("endpointslices");
        let prefix = format!("{namespace}/");
        let of_service = |object: &Arc<api_machinery::Object>| {
            object.header.labels.get("kubernetes.io/service-name").is_some_and(|name| name == service)
        };
        snapshot
            .range(&prefix, None)
            .filter_map(|entry| object(entry).ok())
            .filter(of_service)
            .filter_map(|object| object.to_document().ok())
            .collect()
    }
}
