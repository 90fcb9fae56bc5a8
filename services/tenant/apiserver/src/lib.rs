//! HTTP for one cluster: what `kubectl`, client-go and kubelets talk to.
//!
//! [`ControlPlane`] is one cluster's API server; many live in one process. Start there, then read
//! `pipeline`, which is the one path every request takes: authenticate, flow control, impersonate,
//! authorize, route, and an answer or a `Status` in the encoding the client asked for. `request` reads
//! URLs, `negotiate` reads `Accept`, `resources` maps verbs onto `tenant-registry`, `watch` streams,
//! `kubelet` and `proxy` reach nodes through the cluster's tunnels. [`LocalClient`] is the same path without
//! HTTP, for the loops that run beside it.
//!
//! An idle cluster costs a few kilobytes: no task, no timer, no buffer waits for its requests.
//!
//! Not here: what a kind does (`tenant-registry`), who may do it (`tenant-auth`), SNI routing (`fleet`).

mod aggregate;
mod availability;
mod body;
mod components;
mod connect;
mod connection;
mod discovery;
mod encode;
mod flow;
mod frames;
mod health;
mod input;
mod kubelet;
mod lists;
mod local;
mod metrics;
mod mount;
mod negotiate;
mod openapi;
mod options;
mod paths;
mod pipeline;
mod plane;
mod proxy;
mod query;
mod request;
mod resources;
mod reviews;
mod services;
mod streams;
mod tables;
mod watch;
mod wire;

pub use availability::keep as keep_availability;
pub use body::{Body, BodyError, Request, Response, erase};
pub use connection::AcceptError;
pub use local::LocalClient;
pub use mount::Mount;
pub use plane::{Config, ControlPlane, StartError};

/// What `/version` says.
pub const VERSION: &str = "v1.36.0";
