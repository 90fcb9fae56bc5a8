//! Cluster DNS, answered on the node from memory.
//!
//! [`zone`] holds the names of the Kubernetes DNS specification and answers questions about them; it is
//! pure. [`Dns`] is the server around it, over UDP and TCP; what is not the cluster's goes to the
//! machine's own resolvers (`forward`).
//!
//! The messages are hickory's. Its server is not used: handing a foreign answer on byte for byte, and
//! saying SERVFAIL until the zone is complete, are shorter without its catalogue in between.
//!
//! Not here: watching the API (whoever runs the node feeds [`Dns`]), bringing packets for the DNS Service's
//! address here (`node-proxy`).

mod forward;
mod server;
pub mod zone;

pub use server::{Dns, DnsConfig};
