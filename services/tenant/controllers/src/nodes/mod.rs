//! Controllers of nodes, and of what is on them when they fail.

pub(crate) mod lifecycle;
pub(crate) mod pod_gc;
pub(crate) mod ranges;
mod taints;
