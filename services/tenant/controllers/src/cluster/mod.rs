//! Controllers that keep a cluster in order: what every namespace has, what goes away with what.

pub(crate) mod accounts;
pub(crate) mod definitions;
pub(crate) mod endpoint;
pub(crate) mod garbage;
pub(crate) mod namespaces;
