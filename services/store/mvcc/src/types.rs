//! The words of the store: keys, entries, commands and what comes of them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Mark, Memo};

/// A moment of one tenant's key space. Starts at 1 with the first mutation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A Raft term, as far as this crate needs one: to refuse writes of a loop that outlived its leadership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// Where an entry lives: `/registry/<collection>/<name>`.
///
/// `collection` is what is listed and watched together (`pods`, `stable.example.com/crontabs`); `name` is
/// the rest (`<namespace>/<name>` or `<name>`). Collections that begin with `_` are internal: the API has
/// no way to name them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub collection: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(collection: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Key {
        Key { collection: collection.into(), name: name.into() }
    }
}
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/registry/{}/{}", self.collection, self.name)
    }
}
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is stored under a key: a body, and a small stamp beside it.
///
/// The body of an object that every tenant has (default RBAC) is the same bytes everywhere; what differs
/// (uid, creation time) is in the stamp. Bodies put with `shared` ([`Op::Put`]) are held once per process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    pub body: Bytes,
    pub stamp: Bytes,
}

impl Value {
    pub fn len(&self) -> usize {
        self.body.len() + self.stamp.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One stored value with its place in history. Immutable; shared by snapshots, rings and watchers.
#[derive(Debug)]
pub struct Entry {
    pub key: Key,
    pub value: Value,
    pub created: Revision,
    pub modified: Revision,
    /// Wall-clock milliseconds since 1970 after which the leader deletes this entry. Never acted on here.
    pub expires_at_ms: Option<i64>,
    /// Whether the body is held once per process; see [`Op::Put`].
    pub shared: bool,
    /// Belongs to the API plane: the parsed header, made on first use.
    pub memo: Memo,
    /// Belongs to the API plane: what of the labels can be said in one word.
    pub mark: Mark,
}

/// What a mutation requires of the key before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Any,
    Absent,
    At(Revision),
}

/// One mutation. Each gets a revision of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put {
        key: Key,
        value: Value,
        expect: Expect,
        expires_at_ms: Option<i64>,
        shared: bool,
    },
    /// Deleting what is absent is a conflict unless [`Expect::Any`], which makes it a no-op without a revision.
    Delete {
        key: Key,
        expect: Expect,
    },
}

impl Op {
    pub fn key(&self) -> &Key {
        match self {
            Op::Put { key, .. } | Op::Delete { key, .. } => key,
        }
    }
}

/// All of `ops` happen, in order, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    pub ops: Vec<Op>,
    /// Set by loops that run on the leader: refused at apply in any other term (DESIGN §5, fencing).
    pub fence: Option<Term>,
    /// The proposer's wall clock, milliseconds since 1970; ages the history, decides nothing else.
    pub at_ms: i64,
}

/// What one op did.
#[derive(Clone, Debug)]
pub struct Applied {
    pub revision: Revision,
    pub entry: Option<Arc<Entry>>,
    pub previous: Option<Arc<Entry>>,
}

/// Why a command did nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Rejected {
    /// `found` is what lives there, so that the caller need not read again.
    #[error("{key} is not as expected")]
    Conflict { op: usize, key: Key, found: Option<Arc<Entry>> },
    #[error("written in term {written:?}, applied in {now:?}")]
    Fenced { written: Term, now: Term },
    #[error("the key space holds {used} bytes, its quota is {quota}; deletes still work")]
    OverQuota { used: u64, quota: u64 },
}

pub type Outcome = Result<Vec<Applied>, Rejected>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// One mutation, as watchers see it.
#[derive(Debug)]
pub struct Event {
    pub kind: EventKind,
    pub revision: Revision,
    pub at_ms: i64,
    /// The entry after a put; the last entry before a delete.
    pub entry: Arc<Entry>,
    /// The entry before a put that replaced one; `None` on creation and on deletion (see `entry`).
    pub previous: Option<Arc<Entry>>,
    /// Belongs to the API plane: encoded frames, made once and shared by all watchers.
    pub memo: Memo,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("revision {asked} is compacted, oldest is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    #[error("revision {asked} is ahead of {current}")]
    Future { asked: Revision, current: Revision },
    #[error("the key space was closed")]
    Closed,
}
