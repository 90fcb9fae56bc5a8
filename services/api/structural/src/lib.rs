//! Schemas of custom resources: what CustomResourceDefinitions say, and what follows from it.
//!
//! Start at [`Structural`], the schema of one version: it prunes, fills in defaults, validates (the object,
//! its lists, embedded metadata, rules in CEL), and shows itself as OpenAPI. [`Schema`] is one node of it, for those
//! who walk it themselves, as server-side apply does.
//!
//! Everything here is a pure function of schema and value, worded as `k8s.io/apiextensions-apiserver` words
//! it, since people and tests read that. Schemas are at most [`MAX_DEPTH`] levels deep, and every walk follows
//! the schema or a value that decoding has bounded.
//!
//! Not here: I/O, the object's own metadata, which versions are served and stored, conversion.

mod bounds;
mod correlate;
mod default;
mod definition;
mod formats;
mod lists;
mod metadata;
mod nonstructural;
mod path;
mod pattern;
mod prune;
mod publish;
mod rules;
mod scale;
mod schema;
mod structural;
mod value;

pub use definition::{
    Approval, approval_state, default_definition, definition_warnings, is_protected_group,
    validate_definition,
};
pub use publish::{Dialect, Published, publish};
pub use scale::{ScalePaths, validate_scale};
pub use schema::{ListType, MAX_DEPTH, Schema};
pub use structural::{Part, Prune, Structural, Verdict};
