//! Controllers that keep the numbers policies are enforced by, and roles that are sums of others.

pub(crate) mod budgets;
pub(crate) mod quotas;
pub(crate) mod roles;
pub(crate) mod types;
