//! What every cloud provider can do, and the way to ask one.
//!
//! [`Cloud`] is the trait: a provider implements it, controllers call it. Between the two lies a process
//! boundary: [`serve`] puts a `Cloud` behind gRPC (mTLS with the fleet's CA), [`Remote`] is one that asks
//! over it; [`Identity`] is what a provider needs for that from the fleet. [`CloudError`]'s variants are what a caller does next. With the feature `testing`, `fake` is a
//! provider in memory that fails on request, and `suite` the behaviour every provider must show.
//!
//! Not here: any cloud (`cloud-local`, `cloud-aws`), what to ask for and when (`cloud-controllers`).

mod client;
mod convert;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
mod identity;
mod model;
mod server;
#[cfg(feature = "testing")]
pub mod suite;

pub use client::{CONNECT_TIMEOUT, Remote, TLS_NAME};
pub use error::CloudError;
pub use identity::{IDENTITY_FILE, Identity};
pub use model::{
    Balancer, BalancerSpec, BalancerState, Capabilities, ClientToken, Cloud, Description, HealthCheck, Join,
    Listener, Machine, MachineSpec, MachineState, MachineType, Protocol, SharedCloud, Tags, Taint, Target,
};
pub use server::serve;

/// Generated from `proto/cloud/v1/cloud.proto`.
#[allow(clippy::all, rust_2018_idioms)]
pub mod proto {
    tonic::include_proto!("roadstead.cloud.v1");
}
