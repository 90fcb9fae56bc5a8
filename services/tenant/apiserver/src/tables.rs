//! Tables for `kubectl get`: columns and cells are `api-wire`'s, what a row carries is chosen here.

use std::sync::Arc;

use api_kinds::ResourceInfo;
use api_machinery::{Object, Status};
use api_wire::table::{self, Head};
use jiff::Timestamp;
use tenant_registry::List;

use crate::encode::partial_metadata;
use crate::query::Query;

/// What each row carries beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

impl Include {
    pub fn of(query: &Query) -> Result<Include, Status> {
        match query.get("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Include::Metadata),
            "None" => Ok(Include::None),
            "Object" => Ok(Include::Object),
            other => Err(Status::bad_request(format!(
                "unrecognized includeObject value: {other:?}; supported are None, Metadata and Object"
            ))),
        }
    }
}

/// The JSON of a Table. `columns` is false for a watch's later events.
pub fn render(
    resource: &ResourceInfo,
    items: &[Arc<Object>],
    list: &List,
    include: Include,
    columns: bool,
    now: Timestamp,
) -> Vec<u8> {
    let head = Head {
        api_version: "meta.k8s.io/v1",
        resource_version: Some(list.revision),
        continue_token: list.continue_token.as_deref(),
        remaining: list.remaining,
        columns: columns.then(|| table::columns(resource)),
    };
    table::write(&head, resource, items.iter().map(|item| &**item), now, |object, out| match include {
        Include::None => {}
        Include::Metadata => partial_metadata(object, out),
        Include::Object => object.write_json(Some(&resource.gvk), out),
    })
}
