//! The scheduler's pure filters and scores.
//!
//! [`place`] takes a pod and the [`Snapshot`] of nodes as last observed and returns the best node, or why
//! none will do, in upstream's words. No I/O, no clock, no randomness but the tie-breaking number the caller
//! gives: a placement can be replayed from a bug report. One file per rule; start at `place`.
//!
//! Not here: queues, binding, what happens after a decision (`tenant-scheduler`); volumes.

mod affinity;
mod image;
mod inter_pod;
mod model;
mod node;
mod place;
mod ports;
mod preempt;
mod resources;
mod spread;
mod taints;

pub use model::{NodeInfo, PodInfo, Port, Snapshot};
pub use place::{Admission, Placement, Unschedulable, admits, place};
pub use preempt::{Preemption, preempt};
pub use resources::Resources;
