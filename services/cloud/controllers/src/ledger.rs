//! The books: what was made at a provider, or may have been.
//!
//! An entry is written before the call that makes something ([`Phase::Intended`]) and again after it
//! ([`Phase::Made`]). Whoever takes over in between finds the intent and repeats the call: it carries the
//! entry's client token, for which the provider has one answer. To delete, the entry says so first
//! ([`Phase::Deleting`]) and goes when the provider lists the thing no more; what is left of it is a line for
//! the receipt ([`Gone`]).
//!
//! Not here: where the books are kept. A cell keeps them in the cluster's own group, written under the
//! leader's term, so that a leader that was deposed can neither write nor, therefore, begin a call.

use async_trait::async_trait;
use base_clock::Timestamp;
use base_ids::NodePoolId;
use cloud_interface::ClientToken;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub token: ClientToken,
    pub provider: String,
    pub what: What,
    pub phase: Phase,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum What {
    Machine {
        pool: NodePoolId,
        /// Of the machine and of its Node.
        name: String,
        machine_type: String,
    },
    Balancer {
        /// Of the Service.
        uid: String,
        /// `namespace/name`
        service: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    /// A call may be under way, or may have been.
    Intended,
    Made {
        /// The provider's.
        id: String,
        at: Timestamp,
    },
    Deleting {
        /// `None`: it is not known whether it was ever made.
        id: Option<String>,
        since: Timestamp,
    },
}

impl Entry {
    /// The provider's id, once it is known.
    pub fn id(&self) -> Option<&str> {
        match &self.phase {
            Phase::Intended => None,
            Phase::Made { id, .. } => Some(id),
            Phase::Deleting { id, .. } => id.as_deref(),
        }
    }
    pub fn is_deleting(&self) -> bool {
        matches!(self.phase, Phase::Deleting { .. })
    }
    /// The same on its way out.
    pub fn leaving(&self, now: Timestamp) -> Entry {
        let phase = match &self.phase {
            Phase::Deleting { .. } => self.phase.clone(),
            other => Phase::Deleting {
                id: match other {
                    Phase::Made { id, .. } => Some(id.clone()),
                    _ => None,
                },
                since: now,
            },
        };
        Entry { phase, ..self.clone() }
    }
    /// The same on its way out, now that it is known what it is.
    pub fn leaving_as(&self, id: &str) -> Entry {
        let since = match self.phase {
            Phase::Deleting { since, .. } => since,
            Phase::Made { at, .. } => at,
            Phase::Intended => self.created_at,
        };
        Entry { phase: Phase::Deleting { id: Some(id.to_owned()), since }, ..self.clone() }
    }
    /// The same with what the provider answered.
    pub fn made(&self, id: &str, now: Timestamp) -> Entry {
        Entry { phase: Phase::Made { id: id.to_owned(), at: now }, ..self.clone() }
    }
    pub(crate) fn kind(&self) -> &'static str {
        match self.what {
            What::Machine { .. } => "machine",
            What::Balancer { .. } => "load-balancer",
        }
    }
    pub(crate) fn name(&self) -> &str {
        match &self.what {
            What::Machine { name, .. } => name,
            What::Balancer { service, .. } => service,
        }
    }
    pub(crate) fn gone(&self, now: Timestamp) -> Gone {
        Gone {
            kind: self.kind().to_owned(),
            id: self.id().unwrap_or_default().to_owned(),
            name: self.name().to_owned(),
            provider: self.provider.clone(),
            created_at: self.created_at,
            deleted_at: now,
        }
    }
}

/// A line of the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gone {
    /// `machine`, `load-balancer`
    pub kind: String,
    pub id: String,
    pub name: String,
    pub provider: String,
    pub created_at: Timestamp,
    pub deleted_at: Timestamp,
}

/// Why the books could not be written: no leader, another leader, no room. The loop tries again, and is
/// stopped if its leadership is over.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the ledger cannot be written: {0}")]
pub struct LedgerError(pub String);

/// The books of one cluster, under one leadership.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Every entry, and whether the cluster is being drained.
    async fn load(&self) -> Result<(Vec<Entry>, bool), LedgerError>;
    /// On disk, at a quorum, when it returns.
    async fn put(&self, entry: &Entry) -> Result<(), LedgerError>;
    /// Takes an entry off for which certainly nothing was made.
    async fn strike(&self, token: &ClientToken) -> Result<(), LedgerError>;
    /// Turns an entry into a line of the receipt.
    async fn close(&self, token: &ClientToken, line: &Gone) -> Result<(), LedgerError>;
}
