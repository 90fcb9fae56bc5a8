//! Speaks to a cluster's API for whoever is signed in.
//!
//! The manager holds no key of a cluster. For each person it asks the cluster's cell for a token of ten
//! minutes ([`Tokens`]), and sends the request on over one multiplexed connection per cluster ([`Links`]),
//! with that token in the place of everything by which the person was let in here.
//!
//! What comes back was made by somebody else's cluster and is shown under this manager's own address: it
//! may set no cookie, and a page in it runs no script.
//!
//! Not here: who may ([`crate::http`]), upgrades (exec, attach, port-forward go through kubectl).

mod headers;
mod link;
mod tokens;

pub(crate) use headers::{request_headers, response_headers};
pub(crate) use link::{LinkError, Links, Target, addresses};
pub(crate) use tokens::{Granted, LIFETIME_SECONDS, Person, Tokens};
