//! Answers other cells.

use std::pin::Pin;
use std::sync::Arc;

use base_ids::CellId;
use fleet_rpc::peer_server::{Peer, PeerServer};
use fleet_rpc::{PeerAnswer, PeerCall, PeerFrame, RelayChunk};
use futures::Stream;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::{FRAME_BYTES, FRAME_CALLS, MAX_FRAME_BYTES, certificate_name, relay, tenant};
use crate::Shared;

/// Questions of one cell that are being answered; the next frames wait in the connection meanwhile.
const ANSWERING: usize = 1024;
/// Frames on their way back.
const FRAMES: usize = 16;

pub(crate) struct PeerService(Arc<Shared>);

impl PeerService {
    pub(crate) fn server(shared: Arc<Shared>) -> PeerServer<PeerService> {
        PeerServer::new(PeerService(shared)).max_decoding_message_size(MAX_FRAME_BYTES)
    }
}

type Outbound<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for PeerService {
    type ExchangeStream = Outbound<PeerFrame>;
    type RelayStream = Outbound<RelayChunk>;

    async fn exchange(
        &self,
        request: Request<Streaming<PeerFrame>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let named = names(&request);
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.and_then(|frame| frame.hello);
        let hello = first.ok_or_else(|| Status::invalid_argument("the first frame is no Hello"))?;
        let cell: CellId =
            hello.cell_id.parse().map_err(|_| Status::invalid_argument("a cell's id is a UUID"))?;
        if !named.contains(&certificate_name(cell)) {
            return Err(Status::permission_denied("the certificate is not that cell's"));
        }
        if let Ok(address) = hello.address.parse() {
            self.0.peers.learn(cell, address);
        }
        let (frames, outbound) = mpsc::channel(FRAMES);
        let hello = PeerFrame { hello: Some(self.0.peers.hello()), ..PeerFrame::default() };
        // The channel is empty.
        let _ = frames.try_send(Ok(hello));
        let shared = self.0.clone();
        self.0.tasks.spawn(async move {
            let exchange = shared.peers.exchange_begins();
            answer(&shared, cell, exchange, inbound, frames).await;
            shared.peers.exchange_ended(cell, exchange);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outbound))))
    }

    async fn relay(
        &self,
        request: Request<Streaming<RelayChunk>>,
    ) -> Result<Response<Self::RelayStream>, Status> {
        // Any cell may ask: what it may reach is decided by whether it has a replica of the cluster.
        let named = names(&request);
        let outbound = relay::serve(&self.0, &named, request.into_inner()).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(outbound).map(Ok))))
    }
}

/// The DNS names in the certificate of whoever is there. Gateways and managers have none of a cell.
fn names<T>(request: &Request<T>) -> Vec<String> {
    let certificates = request.peer_certs();
    let Some(der) = certificates.as_ref().and_then(|chain| chain.first()) else { return Vec::new() };
    let Ok((_, certificate)) = x509_parser::certificate::X509Certificate::from_der(der) else {
        return Vec::new();
    };
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = alternatives.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// Reads frames until the connection ends, and answers what they ask, each as soon as it can be.
async fn answer(
    shared: &Arc<Shared>,
    from: CellId,
    exchange: u64,
    mut inbound: Streaming<PeerFrame>,
    frames: mpsc::Sender<Result<PeerFrame, Status>>,
) {
    let (answers, ready) = mpsc::channel(ANSWERING);
    let writing = shared.tasks.child();
    writing.spawn(write(ready, frames.clone()));
    let slots = Arc::new(Semaphore::new(ANSWERING));
    while let Ok(Some(frame)) = inbound.message().await {
        for held in frame.tunnels {
            // Of clusters that are not open yet as well: it is said once. Whether that cell has a replica is
            // looked at when it matters.
            if let Some(cluster) = tenant(&held.cluster_id) {
                shared.peers.note_elsewhere(cluster, from, exchange, held.nodes);
            }
        }
        if frame.beat > 0 {
            let beat = PeerFrame { beat: frame.beat, ..PeerFrame::default() };
            if frames.send(Ok(beat)).await.is_err() {
                break;
            }
        }
        for call in frame.calls {
            // Closed never: it is ours.
            let Ok(slot) = slots.clone().acquire_owned().await else { break };
            let (shared, answers) = (shared.clone(), answers.clone());
            tokio::spawn(async move {
                let answered = reply(&shared, from, call).await;
                // The connection may be gone; the other side knows then.
                let _ = answers.send(answered).await;
                drop(slot);
            });
        }
    }
    writing.stop(std::time::Duration::ZERO).await;
}

async fn reply(shared: &Shared, from: CellId, call: PeerCall) -> PeerAnswer {
    let message = match tenant(&call.cluster_id) {
        Some(cluster) => shared.host.receive(cluster, from, &call.message).await,
        // Unintelligible to the other side, which is what it asked for.
        None => bytes::Bytes::new(),
    };
    PeerAnswer { id: call.id, message }
}

/// Batches answers.
async fn write(mut ready: mpsc::Receiver<PeerAnswer>, frames: mpsc::Sender<Result<PeerFrame, Status>>) {
    while let Some(answer) = ready.recv().await {
        let mut bytes = answer.message.len();
        let mut answers = vec![answer];
        while answers.len() < FRAME_CALLS && bytes < FRAME_BYTES {
            let Ok(answer) = ready.try_recv() else { break };
            bytes += answer.message.len();
            answers.push(answer);
        }
        if frames.send(Ok(PeerFrame { answers, ..PeerFrame::default() })).await.is_err() {
            return;
        }
    }
}
