//! Which manager owns which field: the bookkeeping of `metadata.managedFields` around a write.

use api_machinery::Document;
use api_patch::{Tracking, track_update};
use jiff::Timestamp;

use crate::context::Context;
use crate::metadata::manager;
use crate::resource::Resource;

/// What a write to `subresource` does not write.
fn ignored(resource: &Resource, subresource: &str) -> &'static [&'static str] {
    match subresource {
        "status" if resource.is_custom() => &["metadata", "spec"],
        "status" => &["spec", "data"],
        _ if resource.strategy().separates_status() && resource.subresource("status").is_some() => {
            &["status"]
        }
        _ => &[],
    }
}

pub(crate) fn tracking<'a>(
    ctx: &'a Context,
    resource: &'a Resource,
    message: api_kinds::MessageId,
    api_version: &'a str,
    subresource: &'a str,
    now: Timestamp,
) -> Tracking<'a> {
    let ignored = ignored(resource, subresource);
    let schema = resource.custom().and_then(|custom| custom.schema()).map(|schema| schema.shape());
    Tracking { message, schema, api_version, manager: manager(ctx), subresource, now, ignored }
}

/// Events and Leases: written by machines in one piece, many times a minute. Nobody applies them, and the
/// record would be longer than the object; what a client did apply stays tracked.
fn untracked(resource: &Resource, document: &Document) -> bool {
    matches!(&*resource.collection, "events" | "leases") && document.get("metadata.managedFields").is_none()
}

pub(crate) fn created(
    ctx: &Context,
    resource: &Resource,
    message: api_kinds::MessageId,
    new: &mut Document,
    now: Timestamp,
) {
    if untracked(resource, new) {
        return;
    }
    let version = resource.gvk.api_version();
    track_update(&tracking(ctx, resource, message, &version, "", now), None, new);
}

pub(crate) fn updated(
    ctx: &Context,
    resource: &Resource,
    message: api_kinds::MessageId,
    subresource: &str,
    new: &mut Document,
    old: &Document,
    now: Timestamp,
) {
    if untracked(resource, old) {
        return;
    }
    let version = resource.gvk.api_version();
    track_update(&tracking(ctx, resource, message, &version, subresource, now), Some(old), new);
}

pub(crate) fn same_owners(new: &Document, old: &Document) -> bool {
    new.get("metadata.managedFields") == old.get("metadata.managedFields")
}
