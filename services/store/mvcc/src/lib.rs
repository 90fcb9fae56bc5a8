//! One revisioned key space per tenant.
