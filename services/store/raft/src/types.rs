//! What this crate tells openraft about itself: ids, entries, answers.
//!
//! One leader per term (`leader_id_std`), since fences carry terms and must mean one leader.

use std::fmt;
use std::sync::Arc;

use base_ids::CellId;
use openraft::impls::leader_id_std;
use store_log::Position;
use store_mvcc::{Command, Outcome};

openraft::declare_raft_types!(
    pub(crate) Types:
        D = Proposal,
        R = Reply,
        NodeId = u64,
        Node = Seat,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<Self::Term, Self::NodeId>,
);

pub(crate) type LogId = openraft::alias::LogIdOf<Types>;
pub(crate) type Vote = openraft::alias::VoteOf<Types>;
pub(crate) type Entry = openraft::alias::EntryOf<Types>;
pub(crate) type Payload = openraft::alias::PayloadOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, Seat>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<Types>;
pub(crate) type LeaderId = openraft::alias::LeaderIdOf<Types>;

/// A number that names one replica within its group, for ever: it is never given to another.
pub(crate) type ReplicaId = u64;

/// Where a replica sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) cell: CellId,
}

/// A command on its way through consensus.
#[derive(Clone)]
pub(crate) struct Proposal {
    pub(crate) command: Arc<Command>,
    /// The entry as it goes into the log, made by whoever proposed, off the group's own task. Empty in an
    /// entry that was read back.
    pub(crate) encoded: bytes::Bytes,
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ops", self.command.ops.len())
    }
}
impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What came of an entry; `None` for entries that are no commands.
pub(crate) struct Reply(pub(crate) Option<Outcome>);

pub(crate) fn log_id(position: Position) -> LogId {
    LogId::new(leader_id_std_committed(position.term), position.index)
}

pub(crate) fn position(log_id: &LogId) -> Position {
    Position { term: log_id.committed_leader_id().term, index: log_id.index() }
}

fn leader_id_std_committed(term: u64) -> openraft::alias::CommittedLeaderIdOf<Types> {
    use openraft::vote::RaftLeaderId;
    LeaderId::new(term, 0).to_committed()
}
