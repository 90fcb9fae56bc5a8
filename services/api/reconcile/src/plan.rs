//! What a reconciler decided.

use std::time::Duration;

use api_machinery::{Document, Gvr};
use serde_json::Value;

use crate::events::{EventText, Regarding};

/// What to do about one key, and when to look again without being told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Applied in order; the first that fails ends the round, and the next round is the retry.
    pub actions: Vec<Action>,
    pub again_after: Option<Duration>,
}

/// One write. Each is applied through the API under the reconciler's own identity.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// An object that exists already is no failure: somebody was quicker, and the next look will see it.
    Create {
        of: Gvr,
        namespace: Option<String>,
        object: Document,
    },
    /// `pods/binding` and the like.
    CreateSub {
        of: Gvr,
        namespace: Option<String>,
        name: String,
        subresource: &'static str,
        object: Document,
    },
    /// Replaces; the document's resourceVersion makes it optimistic.
    Update {
        of: Gvr,
        subresource: Option<&'static str>,
        object: Document,
    },
    Patch {
        of: Gvr,
        subresource: Option<&'static str>,
        namespace: Option<String>,
        name: String,
        kind: PatchKind,
        patch: Value,
    },
    Delete(Deletion),
    /// Many independent creates or deletes: slowly first (1, 2, 4, …), so that a quota or a broken webhook
    /// costs one refused request and not a thousand.
    Spread(Spread),
    /// Best effort: an Event that cannot be written fails nobody.
    Event(Regarding, EventText),
    /// Ask the API whether the object with this uid still exists, and tell the reconciler.
    Verify {
        of: Gvr,
        namespace: Option<String>,
        name: String,
        uid: String,
    },
    /// Ask the API whether a user may do something, and tell the reconciler.
    Review {
        user: Subject,
        of: Gvr,
        verb: &'static str,
        subresource: &'static str,
    },
    /// Delete everything of one resource in one namespace, and tell the reconciler how much is left.
    Purge {
        of: Gvr,
        namespace: String,
    },
    /// Ask how many objects of one resource a namespace has, and tell the reconciler.
    Count {
        of: Gvr,
        namespace: String,
    },
    /// Sign the certificate request of a CertificateSigningRequest; `object` is the request as last seen.
    Sign {
        object: Document,
        profile: &'static str,
    },
}

/// Somebody whom an [`Action::Review`] asks about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Subject {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// As JSON: names to lists of strings.
    pub extra: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
}

/// A delete; gone already is no failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Deletion {
    pub of: Gvr,
    pub namespace: Option<String>,
    pub name: String,
    /// Only this very object, not a namesake made since.
    pub uid: String,
    pub resource_version: Option<String>,
    pub grace_period_seconds: Option<i64>,
    /// `Background`, `Foreground`, `Orphan`; `None` leaves it to the kind.
    pub propagation: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    pub regarding: Option<Regarding>,
    pub creates: Vec<(Gvr, Option<String>, Document)>,
    pub deletes: Vec<Deletion>,
    /// The Event for each that worked, by reason and the words before the object's name, and for each that
    /// failed.
    pub created: (&'static str, &'static str),
    pub create_failed: (&'static str, &'static str),
    pub deleted: (&'static str, &'static str),
    pub delete_failed: (&'static str, &'static str),
}

impl Plan {
    pub fn nothing() -> Plan {
        Plan::default()
    }
    pub fn of(actions: Vec<Action>) -> Plan {
        Plan { actions, again_after: None }
    }
    pub fn push(&mut self, action: Action) {
        self.actions.push(action);
    }
    /// Looks again after `wait` at the latest.
    pub fn again(&mut self, wait: Duration) {
        self.again_after = Some(self.again_after.map_or(wait, |known| known.min(wait)));
    }
    pub fn is_nothing(&self) -> bool {
        self.actions.is_empty()
    }
}
