//! The process: listens, serves, and knows when to end.
//!
//! Not here: what is answered (`server`), how trust is made (`handshake`).

use std::io::Write;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::controller::Nothing;
use crate::controller::grpc_controller_server::{GrpcController, GrpcControllerServer};
use crate::handshake::{Agreed, HandshakeError, Offer, shake};
use crate::proto::provider_server::ProviderServer;
use crate::server::Server;

/// Terraform opens one connection; a few more are waiting room enough.
const CONNECTIONS: usize = 4;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A configuration with thousands of labels is still far below it.
const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// How long calls in flight may take once it is over.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("no working directory")]
    WorkingDir(#[source] std::io::Error),
    #[error("cannot answer Terraform")]
    Line(#[source] std::io::Error),
    #[error("serving ended")]
    Serve(#[source] tonic::transport::Error),
}

/// Serves Terraform until it says `Shutdown`, or is gone.
pub async fn run(
    env: impl Fn(&str) -> Option<String> + Clone + Send + Sync + 'static,
) -> Result<(), ServeError> {
    let Agreed { listener, tls, line, folder } = shake(&Offer::from_env(&env))?;
    let working_dir = std::env::current_dir().map_err(ServeError::WorkingDir)?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(ServeError::Line)?;
    }

    let (over, interrupted) = (CancellationToken::new(), CancellationToken::new());
    let (arrived, incoming) = mpsc::channel(CONNECTIONS);
    let acceptor = TlsAcceptor::from(tls);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // One at a time is enough, and a peer that is not Terraform gets no further than this.
            let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await
            else {
                continue;
            };
            let stream: Result<TlsStream<tokio::net::UnixStream>, std::io::Error> = Ok(stream);
            if arrived.send(stream).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(watch_the_world(over.clone()));

    let provider = ProviderServer::new(Server::new(env, working_dir, interrupted))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let serving = tonic::transport::Server::builder()
        .add_service(provider)
        .add_service(GrpcControllerServer::new(Controller { over: over.clone() }))
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), over.clone().cancelled_owned());
    let served = tokio::select! {
        served = serving => served.map_err(ServeError::Serve),
        () = async { over.cancelled().await; tokio::time::sleep(FAREWELL).await } => Ok(()),
    };
    drop(folder);
    served
}

/// Ends us when asked to, or when Terraform is gone without a word (it was killed). Ctrl-C reaches the whole
/// process group; it is Terraform that then says what to do, so here it is taken and ignored.
async fn watch_the_world(over: CancellationToken) {
    let parent = rustix::process::getppid();
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => break,
            _ = tick.tick() => if rustix::process::getppid() != parent { break },
            () = over.cancelled() => return,
        }
    }
    over.cancel();
}

struct Controller {
    over: CancellationToken,
}

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _: Request<Nothing>) -> Result<Response<Nothing>, Status> {
        self.over.cancel();
        Ok(Response::new(Nothing {}))
    }
}
