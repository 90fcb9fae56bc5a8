//! What a controller is.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Object, Status};
use api_reconcile::Plan;
use base_clock::Timestamp;

use crate::catalog::ResourceId;
use crate::world::World;

/// What a controller looks at: usually an object of its own kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub of: ResourceId,
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(of: ResourceId, namespace: &str, name: &str) -> Key {
        Key { of, namespace: namespace.into(), name: name.into() }
    }
    pub fn of(of: ResourceId, object: &Object) -> Key {
        Key::new(of, object.header.namespace.as_deref().unwrap_or_default(), &object.header.name)
    }
}

/// One moment, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub wall: Timestamp,
    pub mono: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Found by a list, or new.
    Seen,
    Changed,
    Gone,
}

/// Something the world has just taken in.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub of: ResourceId,
    pub kind: ChangeKind,
    pub object: &'a Arc<Object>,
    /// What was known before, if it was kept.
    pub old: Option<&'a Arc<Object>>,
}

/// What a controller learns from the API when its plan asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// `Action::Verify`: whether the object with this uid exists.
    Verified { uid: String, exists: bool, waits_for_dependents: bool },
    /// `Action::Review`: whether the user may.
    Reviewed { subresource: &'static str, allowed: bool },
    /// `Action::Purge`: what is left in the namespace, and what stands in the way of deleting it.
    Purged { resource: String, left: usize, finalizers: Vec<String>, error: Option<String> },
    /// `Action::Count`.
    Counted { resource: String, count: i64 },
    /// `Action::Sign`: why not.
    SignFailed { message: String },
}

/// One controller of one tenant.
///
/// It may keep what it has seen (when a Lease last moved), never what it has decided: every round reads the
/// world anew, so a lost hint costs time, not truth.
pub trait Controller: Send {
    /// Whose hand writes: `deployment-controller`.
    fn name(&self) -> &'static str;
    /// Its plans wait until all of these have been listed.
    fn resources(&self) -> &'static [ResourceId];
    /// Which keys to look at after `change`.
    fn concerns(&mut self, world: &World, change: &Change<'_>, now: Now, wake: &mut dyn FnMut(Key));
    /// What to do about `key`. Reads nothing but its arguments.
    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan;
    /// The answer to a question a plan asked; the key is looked at again afterwards.
    fn learn(&mut self, _key: &Key, _news: &News) {}
    /// A round for `key` failed; it will be looked at again. For conditions that say so, nothing else.
    fn failed(&mut self, _key: &Key, _status: &Status) {}
    /// Rounds at a time. Upstream's default for most controllers is 5.
    fn workers(&self) -> usize {
        5
    }
}
