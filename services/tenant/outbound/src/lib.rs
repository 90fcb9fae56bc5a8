//! The one way out to an address that a tenant chose.
//!
//! A cluster's owner decides where webhooks, conversions and aggregated API servers are. Whoever can make
//! this process connect could otherwise reach what only the provider may: loopback, a cloud's metadata, the
//! manager, another tenant's cell. So everything goes through [`Outbound`]:
//!
//! - a **Service** is reached through the node tunnel of the node that runs the chosen endpoint
//!   (`cluster`, `endpoints`), as the tenant's own pods would reach it;
//! - a **URL** is reached by [`Egress`], which resolves a name once, checks every address it got and connects
//!   to exactly what it checked. It follows no redirect.
//!
//! What may be reached is decided in `addresses`, on parsed addresses and never on text: start there.
//! Calls of one cluster share a budget, so that a slow webhook of one holds nobody else's sockets.
//!
//! Not here: what is said (`tenant-admission`, conversion, the aggregator), kubelets (`tenant-apiserver`).

mod addresses;
mod cluster;
mod destination;
mod egress;
mod endpoints;
mod pool;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;

pub use addresses::{Allowed, Network, NetworkError, is_inside_cluster, is_public};
pub use cluster::{ClusterOutbound, Connection, Outbound};
pub use destination::{Destination, DestinationError, Limits, OutboundError, Place, Trust};
pub use egress::{Egress, EgressConfig, Resolve, SystemResolver};
pub use endpoints::{Directory, Endpoint, port_name, ready_endpoints};
pub use tls::unverified;
