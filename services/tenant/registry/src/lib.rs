//! The one generic path below HTTP: every verb on every kind, over one tenant's key space.
//!
//! [`Registry`] reads (`read`, `watch`), writes (`create`, `update`, `patch`, `delete`) and serves the
//! subresources that are more than a part of the object (`subresource`). How a kind differs is said by its
//! [`Strategy`], one file per kind or small family under `kinds/`: read `strategy.rs`, then any one of them.
//! [`bootstrap`] is the first command of a new cluster.
//!
//! A write is decided on this replica from the newest state it knows and committed as one command that
//! names the revisions it was decided on; if they moved, it is decided again. What must change together
//! (a Service and the address it takes, a pod and the quota it uses) is one command.
//!
//! Not here: HTTP, encodings, authentication and authorization (`tenant-apiserver`, `tenant-auth`),
//! policies on content (`tenant-admission`).

pub mod bootstrap;
mod context;
mod convert;
mod create;
mod custom;
mod delete;
mod error;
mod kinds;
mod limit;
mod manage;
mod metadata;
mod normalize;
mod patch;
mod read;
mod registry;
mod resource;
mod strategy;
mod subresource;
mod update;
mod validation;
mod watch;

pub use api_structural::Dialect;
pub use context::{
    Context, Deleted, FieldValidation, GetOptions, List, ListOptions, Output, WatchOptions, Written,
};
pub use custom::{Catalogue, CustomResource, Scale, Schema};
pub use registry::{Registry, object};
pub use resource::Resource;
pub use strategy::{GarbagePolicy, Moment, NameRule, Strategy, Write};
pub use watch::{Change, Watch, WatchItem};
