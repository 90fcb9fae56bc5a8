//! Containers on one node: a CRI client, a containerd of the node's own, and the images that need no registry.
//!
//! Start at [`Cri`], the client that the kubelet holds. [`Containerd`] writes the configuration of a private
//! containerd, starts it, and starts it again when it dies. [`images`] assembles the pause and demo images
//! on the spot and imports every tar of a node's images folder.
//!
//! Not here: which containers should run, and when to pull or restart (`node-kubelet`); pod addresses
//! (containerd calls the CNI plug-ins that `node-network` configures).

mod client;
mod containerd;
pub mod images;
mod sweep;

/// The messages of `runtime.v1`, generated from `proto/cri/v1/runtime.proto`.
#[allow(clippy::all, rust_2018_idioms)]
pub mod cri {
    tonic::include_proto!("runtime.v1");
}

pub use client::{Cri, CriError};
pub use containerd::{Containerd, ContainerdConfig, ContainerdError};
pub use sweep::sweep;

/// The image every sandbox starts from; [`images::pause`] makes it.
pub const PAUSE_IMAGE: &str = "roadstead.local/pause:1";
