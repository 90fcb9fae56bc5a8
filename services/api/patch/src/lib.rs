//! Changing objects: the four patch types, and decoding strictly.
//!
//! [`json_patch`] (RFC 6902), [`merge_patch`] (RFC 7396), [`strategic_merge`] (by the field table's merge
//! keys) and [`apply()`] (server-side apply: by its list types, with who owns which field). [`track_update`]
//! keeps the ownership true under every other write. [`decode_strict`] is how a body becomes a document:
//! it brings values into their canonical form, drops fields the kind doesn't have and says which.
//!
//! Everything is a function from documents to a document. Depth is bounded by the JSON parser (128).
//!
//! Not here: what a kind's fields mean, defaults, conversion between versions, HTTP.

pub mod apply;
mod decode;
mod error;
mod json;
mod strategic;

pub use apply::{Manager, Tracking, apply, merge, track_update};
pub use decode::{Decoded, check, decode_strict, strict_error};
pub use error::PatchError;
pub use json::{json_patch, merge_patch};
pub use strategic::strategic_merge;
