//! One tenant's replicated key space, as the planes above see it.

use std::fmt;
use std::sync::Arc;

use base_ids::CellId;
use parking_lot::Mutex;
use store_mvcc::{Applied, Command, Expect, Limits, Op, Revision, Space, Term};
use tokio::sync::watch;

use crate::WriteError;
use crate::member::Member;

/// Entries that one round of [`Group::delete_expired`] deletes at most, so that a burst of expiring
/// Events does not become one huge log entry. The next round takes the rest.
const EXPIRED_PER_ROUND: usize = 500;

/// A handle on one tenant's key space. Cheap to clone; all clones are the same group.
#[derive(Clone)]
pub struct Group {
    backing: Backing,
}

#[derive(Clone)]
enum Backing {
    Memory(Arc<InMemory>),
    Member(Arc<Member>),
}

impl Group {
    /// A group without disk and without peers: what is written is gone with the process.
    ///
    /// For tests of upper planes. It keeps the contract of a real one: same errors, revisions, watches.
    pub fn in_memory(limits: Limits) -> Group {
        let (leadership, _) = watch::channel(Some(InMemory::TERM));
        let memory = InMemory { space: Arc::new(Space::new(limits)), leadership, closed: Mutex::new(false) };
        Group { backing: Backing::Memory(Arc::new(memory)) }
    }

    pub(crate) fn of(member: Arc<Member>) -> Group {
        Group { backing: Backing::Member(member) }
    }

    /// Takes one command through consensus. `Ok` means: durable, applied, visible in [`Group::space`].
    ///
    /// Dropping the future does not take the command back; it may still be applied.
    pub async fn write(&self, command: Command) -> Result<Vec<Applied>, WriteError> {
        match &self.backing {
            Backing::Memory(memory) => memory.write(&command),
            Backing::Member(member) => member.write(command).await,
        }
    }

    /// A revision that contains every write acknowledged, by any replica, before this was called.
    ///
    /// When it returns, [`Group::space`] is at that revision or beyond: reading it now is linearizable.
    pub async fn read_index(&self) -> Result<Revision, WriteError> {
        match &self.backing {
            Backing::Memory(memory) => memory.read_index(),
            Backing::Member(member) => member.read_index().await,
        }
    }

    /// The applied state: reads and watches. Never write to it but through [`Group::write`].
    pub fn space(&self) -> &Arc<Space> {
        match &self.backing {
            Backing::Memory(memory) => &memory.space,
            Backing::Member(member) => member.space(),
        }
    }

    /// The term in which this replica leads, and has applied all earlier terms; `None` when it does not.
    ///
    /// Loops that run on the leader start and stop by it, and put its term into [`Command::fence`].
    pub fn leadership(&self) -> watch::Receiver<Option<Term>> {
        match &self.backing {
            Backing::Memory(memory) => memory.leadership.subscribe(),
            Backing::Member(member) => member.leadership(),
        }
    }

    /// The cell whose replica leads, as far as this one knows, and in which term.
    pub fn leader(&self) -> Option<(CellId, Term)> {
        match &self.backing {
            Backing::Memory(_) => None,
            Backing::Member(member) => member.leading_cell(),
        }
    }

    /// Cells with a voting replica, this one's among them.
    pub fn cells(&self) -> Vec<CellId> {
        match &self.backing {
            Backing::Memory(_) => Vec::new(),
            Backing::Member(member) => member.cells(),
        }
    }

    /// Deletes entries whose time was up at `now_ms`, some at a time; says how many went. Also lets go of
    /// history that is too old by then.
    ///
    /// The cell calls it now and then for groups that it leads. An entry that somebody renewed in the
    /// meantime stays, and its neighbours are tried again in the next round.
    pub async fn delete_expired(&self, now_ms: i64) -> Result<usize, WriteError> {
        self.space().forget_history(now_ms);
        let Some(term) = *self.leadership().borrow() else { return Ok(0) };
        let expired = self.space().expired(now_ms, EXPIRED_PER_ROUND);
        if expired.is_empty() {
            return Ok(0);
        }
        let ops = expired
            .iter()
            .map(|entry| Op::Delete { key: entry.key.clone(), expect: Expect::At(entry.modified) })
            .collect();
        let command = Command { ops, fence: Some(term), at_ms: now_ms };
        match self.write(command).await {
            Ok(applied) => Ok(applied.len()),
            // Changed under our eyes: the next round looks again.
            Err(WriteError::Rejected(_)) => Ok(0),
            Err(other) => Err(other),
        }
    }

    /// Stops this replica: watches end, further writes get [`WriteError::Closed`]. What was acknowledged
    /// stays on disk. Closing twice is fine.
    pub async fn close(&self) {
        match &self.backing {
            Backing::Memory(memory) => memory.close(),
            Backing::Member(member) => member.close().await,
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.backing {
            Backing::Memory(memory) => write!(f, "Group(in memory, at {})", memory.space.revision()),
            Backing::Member(member) => {
                write!(f, "Group({}, at {})", member.tenant(), member.space().revision())
            }
        }
    }
}

struct InMemory {
    space: Arc<Space>,
    leadership: watch::Sender<Option<Term>>,
    /// Held while applying, so that nothing is applied after `close` returned.
    closed: Mutex<bool>,
}

impl InMemory {
    const TERM: Term = Term(1);

    fn write(&self, command: &Command) -> Result<Vec<Applied>, WriteError> {
        let closed = self.closed.lock();
        if *closed {
            return Err(WriteError::Closed);
        }
        Ok(self.space.apply(InMemory::TERM, command)?)
    }

    fn read_index(&self) -> Result<Revision, WriteError> {
        if *self.closed.lock() {
            return Err(WriteError::Closed);
        }
        Ok(self.space.revision())
    }

    fn close(&self) {
        *self.closed.lock() = true;
        self.space.close();
        self.leadership.send_replace(None);
    }
}
