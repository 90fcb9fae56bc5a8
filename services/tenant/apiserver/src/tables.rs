//! Tables for `kubectl get`: columns and cells are `api-wire`'s, what a row carries is chosen here.

use std::sync::Arc;

use api_machinery::{Object, Status};
use api_wire::table::{self, Column, CustomColumns, Head};
use jiff::Timestamp;
use tenant_registry::{CustomResource, List, Resource};

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
    resource: &Resource,
    items: &[Arc<Object>],
    list: &List,
    include: Include,
    columns: bool,
    now: Timestamp,
) -> Vec<u8> {
    let custom = resource.custom().map(columns_of);
    let all: &[Column] = custom.map_or_else(|| table::columns(resource), CustomColumns::columns);
    let head = Head {
        api_version: "meta.k8s.io/v1",
        resource_version: Some(list.revision),
        continue_token: list.continue_token.as_deref(),
        remaining: list.remaining,
        columns: columns.then_some(all),
    };
    let put = |object: &Object, out: &mut Vec<u8>| match include {
        Include::None => {}
        Include::Metadata => partial_metadata(object, out),
        Include::Object => object.write_json(Some(&resource.gvk), out),
    };
    let Some(custom) = custom else {
        return table::write(&head, resource, items.iter().map(|item| &**item), now, put);
    };
    let rows = items.iter().map(|item| {
        let mut member = Vec::new();
        put(item, &mut member);
        (custom.cells(item, now), None, member)
    });
    table::write_rows(&head, rows)
}

/// Read once per definition. Columns that cannot be read leave the age alone, as upstream does.
fn columns_of(custom: &CustomResource) -> &CustomColumns {
    custom.memo().get_or_init(|| {
        CustomColumns::parse(custom.printer_columns()).unwrap_or_else(|why| {
            tracing::info!(resource = %custom.info().gvr, why, "printer columns are not usable");
            CustomColumns::parse(&[]).expect("the age is a column")
        })
    })
}
