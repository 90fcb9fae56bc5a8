//! Services as nftables.
//!
//! [`model`] keeps of Services and EndpointSlices what matters to packets, [`compile`] turns one Service
//! into chains and map elements, [`rules`] turns the difference of two such compilations into one nft
//! transaction: a changed endpoint touches its own Service's chain and nothing else, and a packet finds
//! its Service by one map lookup however many there are. All three are pure; [`Proxy`] is the loop that
//! is told of changes and applies them. `health` answers balancers that ask which nodes have endpoints.
//!
//! Not here: watching the API (whoever runs the node feeds [`Proxy`]), names (`node-dns`), routes and the
//! masquerading of pods that leave the cluster (`node-network`).

pub mod compile;
mod health;
pub mod model;
mod proxy;
pub mod rules;

pub use compile::{LocalService, NodeFacts};
pub use proxy::Proxy;
