//! Controllers that make pods.

pub(crate) mod deployment;
mod hash;
pub(crate) mod pods;
pub(crate) mod replicas;
