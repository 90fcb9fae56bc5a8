//! OpenAPI documents, made from the table of kinds.
//!
//! [`v3_index`] is `/openapi/v3`, [`v3`] one of the documents it names, [`v2`] `/openapi/v2`. Each document
//! is made the first time somebody asks, kept gzipped (which is how clients want it) and shared by all
//! clusters of the process; no document is ever held as a tree. A cluster with custom resources asks
//! [`v3_with`] and [`v2_with`] for documents of its own and keeps those itself.
//!
//! `gnostic` is version 2 as protobuf. `schema` says what a body looks like, `paths` what can be done with it; both know the two dialects.
//!
//! Not here: HTTP (content negotiation, `If-None-Match`), structural schemas and CEL of custom resources.

mod descriptions;
mod document;
mod gnostic;
mod parameters;
mod paths;
mod schema;

pub use document::{
    Custom, Document, hash_of, v2, v2_protobuf, v2_protobuf_with, v2_with, v3, v3_index, v3_with,
};
