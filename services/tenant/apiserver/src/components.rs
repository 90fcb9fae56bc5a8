//! `componentstatuses`: deprecated for years, and still what `kubectl get cs` asks for.
//!
//! One component can be asked here, the cluster's store; it goes by the name that people know. Scheduler and
//! controllers show in their Leases.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Object, Status};
use serde_json::json;
use tenant_registry::{List, Resource};

use crate::body::Response;
use crate::encode;
use crate::lists;
use crate::negotiate::Offer;
use crate::pipeline::Call;
use crate::request::ResourcePath;

const STORE: &str = "etcd-0";
const PATIENCE: Duration = Duration::from_secs(2);

pub async fn answer(call: &Call, at: &ResourcePath, resource: &Resource) -> Result<Response, Status> {
    let form = call.form(Offer::OBJECTS)?;
    call.warnings.add("v1 ComponentStatus is deprecated in v1.19+");
    match call.info.verb.as_str() {
        "get" if at.name != STORE => Err(Status::not_found(&resource.gvr, &at.name)),
        "get" => encode::object(&form, 200, resource, &store(call).await?),
        _ => {
            let items = vec![store(call).await?];
            let revision = call.plane.registry().group().space().revision().0;
            lists::answer(&form, resource, List { revision, items, ..List::default() }).await
        }
    }
}

async fn store(call: &Call) -> Result<Arc<Object>, Status> {
    let group = call.plane.registry().group();
    let (healthy, field, text) = match tokio::time::timeout(PATIENCE, group.read_index()).await {
        Ok(Ok(_)) => ("True", "message", "ok".to_owned()),
        Ok(Err(cause)) => ("False", "error", cause.to_string()),
        Err(_) => ("False", "error", format!("no answer in {} s", PATIENCE.as_secs())),
    };
    let document = Document::from_value(json!({
        "apiVersion": "v1", "kind": "ComponentStatus",
        "metadata": {"name": STORE},
        "conditions": [{"type": "Healthy", "status": healthy, field: text}],
    }))
    .unwrap_or_default();
    Object::from_document(&document).map(Arc::new).map_err(|cause| Status::internal(cause.to_string()))
}
