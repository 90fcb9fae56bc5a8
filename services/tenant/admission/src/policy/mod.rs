//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: rules in CEL that a cluster's owner writes.
//!
//! A policy says what is to hold or to be changed, a binding where, with which parameters and with which
//! consequences. `select` finds what a request meets, `definition` is what was written, compiled once;
//! `validating` and `mutating` are the two plugins. Whether expressions may be stored is said by [`Checker`],
//! and what the types of their objects show to be wrong with them by [`expression_warnings`].

mod check;
mod definition;
mod mutating;
mod select;
#[cfg(test)]
mod tests;
mod types;
mod validating;

pub use check::{Checker, Purpose};
pub use mutating::MutatingPolicies;
pub use types::expression_warnings;
pub use validating::ValidatingPolicies;
