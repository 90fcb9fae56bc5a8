//! Kubernetes objects as data.
//!
//! Two shapes of an object, on purpose. A [`Document`] is JSON being worked on: decoded from a request,
//! defaulted, patched, validated, then stored and forgotten. An [`Object`] is what is kept: the bytes
//! most clients will be sent and a small parsed [`Header`]; it is never taken apart unless somebody asks
//! (a parsed 1.6 KB pod costs 25 KB). Errors leave as a [`Status`], worded as upstream words them.
//!
//! Not here: I/O, what any particular kind means (`api-kinds`), other encodings than JSON (`api-wire`).

mod document;
mod field;
pub mod mark;
mod names;
mod object;
mod quantity;
mod selector;
mod status;
pub mod validation;

pub use document::{Document, MAX_DEPTH, is_deeper_than};
pub use field::{Field, FieldError, FieldErrorKind, go_json, shortened};
pub use names::{Gvk, Gvr};
pub use object::{Header, Object, ObjectError, OwnerReference, Stamp};
pub use quantity::{Quantity, QuantityError};
pub use selector::{FieldSelector, LabelSelector, Requirement, SelectorError};
pub use status::{Cause, Details, Reason, Status};
