//! What openraft sees of other cells: our messages over the host's [`Transport`].
//!
//! A host without a transport has no peers: its groups have a single replica each, and whatever openraft
//! would send says so.

use std::future::Future;
use std::sync::Arc;

use base_ids::{CellId, TenantId};
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use crate::message::{Request, Response};
use crate::storage::Parcel;
use crate::transport::{Transport, TransportError};
use crate::types::{Seat, Types};

/// Makes the links of one group.
pub(crate) struct Network {
    pub(crate) tenant: TenantId,
    pub(crate) transport: Option<Arc<dyn Transport>>,
}

/// The way to one replica elsewhere.
pub(crate) struct Link {
    tenant: TenantId,
    cell: CellId,
    transport: Option<Arc<dyn Transport>>,
}

impl Link {
    /// Sends and waits, at most as long as openraft would.
    async fn call(&self, request: Request, option: &RPCOption) -> Result<Response, RPCError<Types>> {
        let Some(transport) = &self.transport else {
            let message =
                format!("{} hosts a replica, but this host has no connection to other cells", self.cell);
            return Err(Unreachable::from_string(message).into());
        };
        let call = transport.call(self.cell, self.tenant, request.encode());
        let answer = match tokio::time::timeout(option.soft_ttl(), call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error @ TransportError::Unreachable { .. })) => {
                return Err(Unreachable::new(&error).into());
            }
            Ok(Err(error @ TransportError::Broken { .. })) => return Err(NetworkError::new(&error).into()),
            Err(late) => return Err(NetworkError::new(&late).into()),
        };
        match Response::decode(&answer) {
            Ok(Response::Failed { reason }) => Err(Unreachable::from_string(reason).into()),
            Ok(response) => Ok(response),
            Err(error) => Err(NetworkError::new(&error).into()),
        }
    }
}

fn unexpected() -> NetworkError<Types> {
    NetworkError::from_string("the answer is to another question")
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, _target: u64, node: &Seat) -> Link {
        Link { tenant: self.tenant, cell: node.cell, transport: self.transport.clone() }
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = Parcel;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        match self.call(Request::Append(rpc), &option).await? {
            Response::Append(response) => Ok(response),
            _ => Err(unexpected().into()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Request::Vote(rpc), &option).await? {
            Response::Vote(response) => Ok(response),
            _ => Err(unexpected().into()),
        }
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Request::PreVote(rpc), &option).await? {
            Response::Vote(response) => Ok(response),
            _ => Err(unexpected().into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, Parcel>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let tenant = self.tenant;
        let read = tokio::task::spawn_blocking(move || {
            snapshot.snapshot.open().map(|checkpoint| checkpoint.encode(tenant))
        });
        let checkpoint = match read.await {
            Ok(Ok(bytes)) => bytes.into(),
            Ok(Err(error)) => return Err(NetworkError::new(&error).into()),
            Err(error) => return Err(NetworkError::new(&error).into()),
        };
        let answer = self.call(Request::Snapshot { vote, checkpoint }, &option);
        tokio::select! {
            closed = cancel => Err(closed.into()),
            answer = answer => match answer {
                Ok(Response::Snapshot { vote }) => Ok(SnapshotResponse::new(vote)),
                Ok(_) => Err(unexpected().into()),
                Err(RPCError::Unreachable(error)) => Err(error.into()),
                Err(error) => Err(NetworkError::from_string(error.to_string()).into()),
            },
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        match self.call(Request::Transfer(req), &option).await? {
            Response::Transfer { accepted: true } => Ok(Ok(())),
            // Why not is the other side's business; the leader that asked stays one either way.
            Response::Transfer { accepted: false } => Err(NetworkError::from_string("declined").into()),
            _ => Err(unexpected().into()),
        }
    }
}
