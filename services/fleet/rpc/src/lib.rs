//! gRPC between the manager, its cells and its gateways; generated from `proto/fleet/v1/fleet.proto`.
//!
//! Not here: anything written by hand.

#![allow(clippy::all)]

tonic::include_proto!("roadstead.fleet.v1");
