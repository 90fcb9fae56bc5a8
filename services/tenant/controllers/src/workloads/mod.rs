//! Controllers that make pods.

pub(crate) mod pods;
pub(crate) mod replicas;
