//! A Raft group per tenant.
