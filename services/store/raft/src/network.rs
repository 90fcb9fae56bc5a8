//! What openraft sees of other cells.
//!
//! A host without a transport has no peers: its groups have a single replica each, and whatever openraft
//! would send says so.

use std::future::Future;

use base_ids::{CellId, TenantId};
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use crate::storage::Parcel;
use crate::types::{Seat, Types};

/// Makes the links of one group.
pub(crate) struct Network {
    pub(crate) tenant: TenantId,
}

/// The way to one replica elsewhere.
pub(crate) struct Link {
    tenant: TenantId,
    cell: CellId,
}

impl Link {
    fn unreachable(&self) -> Unreachable<Types> {
        Unreachable::from_string(format!(
            "cluster {} has a replica on {}, and this host has no connection to other cells",
            self.tenant, self.cell
        ))
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, _target: u64, node: &Seat) -> Link {
        Link { tenant: self.tenant, cell: node.cell }
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = Parcel;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: VoteOf<Types>,
        _snapshot: SnapshotOf<Types, Parcel>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(self.unreachable().into())
    }
}
