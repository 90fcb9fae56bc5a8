//! The life of clusters and node pools: what is wanted, what was reported, and what is to be done about
//! the difference.
//!
//! A request changes rows in one transaction and returns; [`driver`] makes cells agree with the rows,
//! [`reports`] brings back how pools stand, and both decide with the pure functions of [`plan`]; start
//! reading there. [`changes`] tells event streams that they should look again, never what changed.
//! [`receipts`] signs the end of a cluster.
//!
//! Not here: HTTP (`http`), statements (`db`), making machines (the cell's controllers do).

pub(crate) mod changes;
pub(crate) mod driver;
pub(crate) mod plan;
pub(crate) mod receipts;
pub(crate) mod reports;
