//! What openraft sees of other cells: our messages over the host's [`Transport`].
//!
//! A host without a transport has no peers: its groups have a single replica each, and whatever openraft
//! would send says so.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use crate::message::{Request, Response};
use crate::peers::Beliefs;
use crate::storage::Parcel;
use crate::transport::{Transport, TransportError};
use crate::types::{Seat, Types};

/// A replica that appends to a disk that is busy gets this long; asking again sooner would only add to it.
const APPEND_PATIENCE: Duration = Duration::from_secs(5);
const PART_PATIENCE: Duration = Duration::from_secs(10);
/// The last part is answered once the state is on disk and in memory there.
const INSTALL_PATIENCE: Duration = Duration::from_secs(120);
/// A part of a snapshot. Small beside what a connection may have in flight, so that others get their turn.
const PART_BYTES: usize = 512 << 10;

/// Makes the links of one group.
pub(crate) struct Network {
    pub(crate) tenant: TenantId,
    pub(crate) transport: Option<Arc<dyn Transport>>,
    pub(crate) beliefs: Arc<Beliefs>,
}

/// The way to one replica elsewhere.
pub(crate) struct Link {
    tenant: TenantId,
    cell: CellId,
    transport: Option<Arc<dyn Transport>>,
    beliefs: Arc<Beliefs>,
}

impl Link {
    /// Sends and waits. A cell that is gone ends the call at once, so `patience` is for one that is slow.
    async fn call(&self, request: Request, patience: Duration) -> Result<Response, RPCError<Types>> {
        let Some(transport) = &self.transport else {
            let message =
                format!("{} hosts a replica, but this host has no connection to other cells", self.cell);
            return Err(Unreachable::from_string(message).into());
        };
        let call = transport.call(self.cell, self.tenant, request.encode());
        let answer = match tokio::time::timeout(patience, call).await {
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

    /// Sends a checkpoint part by part, each after the one before was taken.
    async fn send_parts(
        &self,
        vote: VoteOf<Types>,
        checkpoint: Bytes,
    ) -> Result<VoteOf<Types>, RPCError<Types>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let total = checkpoint.len() as u64;
        let mut offset = 0;
        loop {
            let part = checkpoint.slice(offset..checkpoint.len().min(offset + PART_BYTES));
            let at = offset as u64;
            offset += part.len();
            let patience = if offset == checkpoint.len() { INSTALL_PATIENCE } else { PART_PATIENCE };
            let request = Request::Snapshot { vote, number, offset: at, total, part };
            match self.call(request, patience).await? {
                Response::More if offset < checkpoint.len() => {}
                Response::Snapshot { vote } => return Ok(vote),
                _ => return Err(unexpected().into()),
            }
        }
    }
}

fn unexpected() -> NetworkError<Types> {
    NetworkError::from_string("the answer is to another question")
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, _target: u64, node: &Seat) -> Link {
        Link {
            tenant: self.tenant,
            cell: node.cell,
            transport: self.transport.clone(),
            beliefs: self.beliefs.clone(),
        }
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = Parcel;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        match self.call(Request::Append(rpc), APPEND_PATIENCE).await? {
            Response::Append(response) => Ok(response),
            _ => Err(unexpected().into()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Request::Vote(rpc), option.hard_ttl()).await? {
            Response::Vote(response) => Ok(response),
            _ => Err(unexpected().into()),
        }
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let request = Request::PreVote { vote: rpc, deposed: self.beliefs.is_deposed() };
        match self.call(request, option.hard_ttl()).await? {
            Response::Vote(response) => Ok(response),
            _ => Err(unexpected().into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, Parcel>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let tenant = self.tenant;
        let read = tokio::task::spawn_blocking(move || {
            snapshot.snapshot.open().map(|checkpoint| checkpoint.encode(tenant))
        });
        let checkpoint: Bytes = match read.await {
            Ok(Ok(bytes)) => bytes.into(),
            Ok(Err(error)) => return Err(NetworkError::new(&error).into()),
            Err(error) => return Err(NetworkError::new(&error).into()),
        };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            answer = self.send_parts(vote, checkpoint) => match answer {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
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
        match self.call(Request::Transfer(req), option.hard_ttl()).await? {
            Response::Transfer { accepted: true } => Ok(Ok(())),
            // Why not is the other side's business; the leader that asked stays one either way.
            Response::Transfer { accepted: false } => Err(NetworkError::from_string("declined").into()),
            _ => Err(unexpected().into()),
        }
    }
}
