//! What a cluster has at cloud providers: the machines of its node pools, the balancers of its Services.
//!
//! [`run`] is one cluster's loop; the cell starts it with leadership and stops it with its loss. Whatever
//! is made is in the [`Ledger`] first, so a crash at any moment leaves an entry and never an orphan: see
//! `ledger` for the order, `pools` and `services` for the decisions (pure), `machines` and `balancers` for
//! the deeds, `runner` for what wakes what.
//!
//! A cluster without pools and without Services of type LoadBalancer has one task that sleeps on one watch.
//!
//! Not here: any cloud (`cloud-interface` is all it knows), who may have how many machines (the manager).

mod balancers;
mod ledger;
mod machines;
mod model;
mod pools;
mod runner;
mod services;

pub use ledger::{Entry, Gone, Ledger, LedgerError, Phase, What};
pub use model::{BalancerStatus, Joining, MachineStatus, Pool, PoolStatus, Providers, Status, Step, Wanted};
pub use runner::{Config, Control, run};
