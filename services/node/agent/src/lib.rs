//! One node: join, tunnel, network, kubelet, proxy, DNS.
//!
//! [`run()`] is the whole node from a [`NodeConfig`] until it is told to stop; [`join()`] makes that
//! configuration, and the node's identity, on a machine that has a token. `run` starts the parts in
//! order and stops them in the other; `join` is token discovery and TLS bootstrap; `certificates` keeps the
//! identity fresh; `connect` is the one road to the API server; `watch` lists what several parts need
//! once and tells them all.
//!
//! Not here: the parts themselves. This crate decides nothing about pods, packets or names.

mod certificates;
mod config;
mod connect;
mod join;
mod resolvers;
mod run;
mod watch;

pub use config::{
    AgentError, Bootstrap, CapacityConfig, ClusterAddresses, NodeConfig, TaintConfig, default_cni_bin_dir,
};
pub use join::{JoinOptions, join};
pub use run::{run, stop_signal};
