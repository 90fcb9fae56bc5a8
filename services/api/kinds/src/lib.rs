//! Every built-in kind of Kubernetes 1.36, as data.
//!
//! [`kinds`] is the whole table: resources (what URLs name and discovery shows) and messages (what the
//! bodies are made of: JSON names, protobuf numbers, list types, merge keys). Start at [`Kinds::resource`]
//! to go from a URL to a [`ResourceInfo`], and at [`Kinds::message`] to walk a body. The table is parsed
//! once, from text under `data/` that `services/dev/tablegen` writes and git keeps.
//!
//! Not here: what a kind *does* (strategies and hand-written defaults are `tenant-registry`'s), descriptions
//! (`api-schema`), and custom resources, which come with their own [`ResourceInfo`] and share the functions
//! that take one.

pub mod defaults;
pub mod discovery;
mod load;
mod resource;
mod table;

pub use load::{Kinds, kinds};
pub use resource::{ResourceInfo, Scope, Subresource, Text};
pub use table::{Cardinality, FieldInfo, FieldKind, ListType, Message, MessageId, Patch, Stated};
