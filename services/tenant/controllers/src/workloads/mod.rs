//! Controllers that make pods.

pub(crate) mod cron;
pub(crate) mod daemon;
pub(crate) mod deployment;
mod failure_policy;
mod hash;
pub(crate) mod job;
pub(crate) mod pods;
pub(crate) mod replicas;
mod revisions;
mod schedule;
pub(crate) mod stateful;
pub(crate) mod ttl;
