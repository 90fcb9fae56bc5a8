//! TLS, certificates and task trees: what every process of ours needs to talk and to stop.
//!
//! [`pki`] makes and reads certificates, [`tls`] turns them into rustls configurations, [`tasks`] ends
//! what was started, [`shares`] keeps one party from taking everything, [`relay()`] joins two connections. All
//! keys are ECDSA P-256: made in well under a millisecond, which is what lets a cluster with its CA exist within
//! tens of them.
//!
//! Not here: who a certificate's subject is in Kubernetes (`tenant-auth`), routes, protocols.

pub mod drained;
pub mod pki;
mod relay;
pub mod shares;
mod subject;
pub mod tasks;
pub mod tls;

pub use relay::relay;
