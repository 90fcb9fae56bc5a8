//! Checks that several kinds share, worded as upstream words them.

pub(crate) mod at;
pub(crate) mod containers;
pub(crate) mod job;
pub(crate) mod meta;
pub(crate) mod names;
pub(crate) mod pod;
pub(crate) mod scheduling;
pub(crate) mod selector;
pub(crate) mod volumes;
