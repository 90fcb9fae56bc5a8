//! How large an object may become in the store.
//!
//! Upstream the bound is etcd's (`--max-request-bytes`, 1.5 MiB), on what is written there: protobuf for
//! built-in kinds, JSON for custom ones. Here everything is stored as JSON, so that a built-in object that is
//! too large as JSON is measured once more as the protobuf it would be.
//!
//! Not here: the bound on a request's body (`tenant-apiserver`, 3 MiB) and on one entry of the log
//! (`store-log`), which is far above this one.

use std::borrow::Cow;

use api_machinery::{Document, Reason, Status};
use store_mvcc::{Expect, Key, Op};

use crate::create::put;
use crate::resource::Resource;

/// etcd's default. <https://etcd.io/docs/v3.6/dev-guide/limit/>
const OBJECT_LIMIT_BYTES: usize = 1536 * 1024;

/// [`put`] for what a request asks to store. Where only `metadata.managedFields` make it too large, it goes
/// without them, as upstream's second try does; otherwise the refusal has etcd's words, which clients look
/// for.
pub(crate) fn put_within_limit(
    resource: &Resource,
    key: Key,
    stored: Cow<'_, Document>,
    expect: Expect,
    now_ms: i64,
) -> Result<Op, Status> {
    let op = put(resource, key.clone(), &stored, expect, now_ms);
    if fits(resource, &stored, &op) {
        return Ok(op);
    }
    let mut bare = stored.into_owned();
    bare.remove("metadata.managedFields");
    let op = put(resource, key, &bare, expect, now_ms);
    if fits(resource, &bare, &op) {
        return Ok(op);
    }
    let mut refusal = Status::failure(500, Reason::Unknown, "etcdserver: request is too large");
    refusal.reason = None;
    Err(refusal)
}

fn fits(resource: &Resource, document: &Document, op: &Op) -> bool {
    let Op::Put { value, .. } = op else { return true };
    if value.body.len() <= OBJECT_LIMIT_BYTES {
        return true;
    }
    if resource.custom().is_some() {
        return false;
    }
    let encoded = api_wire::protobuf::encode(&resource.gvk, &document.clone().into_value());
    encoded.is_ok_and(|bytes| bytes.len() <= OBJECT_LIMIT_BYTES)
}
