//! gRPC between the manager, its cells and its gateways, and among cells; generated from `proto/fleet/v1`.
//!
//! Not here: anything written by hand.

#![allow(clippy::all)]

tonic::include_proto!("roadstead.fleet.v1");
