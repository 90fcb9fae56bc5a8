//! One byte stream of a tunnel, at either end.
//!
//! The end of a direction is a message of its own (`end`), not the end of the HTTP/2 stream: a gRPC
//! server that ends its side ends the call, which would take the other direction with it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::PollSender;
use tonic::Streaming;

use crate::proto::Chunk;

/// Bytes per message. HTTP/2 frames are 16 KiB by default; two of them amortise gRPC's header.
const CHUNK_BYTES: usize = 32 * 1024;

/// How long the call of a finished stream stays open for the other side to finish it as well.
const GOODBYE: Duration = Duration::from_secs(30);

/// Messages between a writer and the connection. The window is HTTP/2's; this only decouples wake-ups.
pub(crate) const CHUNKS_IN_FLIGHT: usize = 2;

/// A byte stream to the other side of a tunnel.
///
/// `shutdown` ends the writing direction only. Dropped before that, the other side sees a reset.
#[derive(Debug)]
pub struct TunnelStream {
    /// Gone only while this is being dropped.
    inbound: Option<Streaming<Chunk>>,
    unread: Bytes,
    reading: Reading,
    outbound: PollSender<Chunk>,
    writing: Writing,
    /// Counts against the node's streams as long as this lives.
    _slot: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    Ended,
    Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    Open,
    Ended,
}

impl TunnelStream {
    pub(crate) fn new(
        inbound: Streaming<Chunk>,
        outbound: mpsc::Sender<Chunk>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> TunnelStream {
        TunnelStream {
            inbound: Some(inbound),
            unread: Bytes::new(),
            reading: Reading::Open,
            outbound: PollSender::new(outbound),
            writing: Writing::Open,
            _slot: slot,
        }
    }

    fn poll_reserve(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.writing == Writing::Ended {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "already shut down")));
        }
        self.outbound.poll_reserve(cx).map_err(|_| cut())
    }

    fn send(&mut self, chunk: Chunk) -> io::Result<()> {
        self.outbound.send_item(chunk).map_err(|_| cut())
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if !self.unread.is_empty() {
                let take = self.unread.len().min(buf.remaining());
                buf.put_slice(&self.unread[..take]);
                self.unread.advance(take);
                return Poll::Ready(Ok(()));
            }
            match self.reading {
                Reading::Ended => return Poll::Ready(Ok(())),
                Reading::Cut => return Poll::Ready(Err(cut())),
                Reading::Open => {}
            }
            let Some(inbound) = &mut self.inbound else { return Poll::Ready(Err(cut())) };
            match ready!(Pin::new(inbound).poll_next(cx)) {
                Some(Ok(chunk)) => {
                    self.unread = chunk.data;
                    if chunk.end {
                        self.reading = Reading::Ended;
                    }
                }
                Some(Err(_)) | None => self.reading = Reading::Cut,
            }
        }
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_reserve(cx))?;
        let take = buf.len().min(CHUNK_BYTES);
        let data = Bytes::copy_from_slice(&buf[..take]);
        self.send(Chunk { data, end: false })?;
        Poll::Ready(Ok(take))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task takes messages as soon as the window allows; nothing waits for a flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.writing == Writing::Ended {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_reserve(cx))?;
        self.send(Chunk { data: Bytes::new(), end: true })?;
        self.writing = Writing::Ended;
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelStream {
    /// Whoever drops the receiving half of an HTTP/2 call cancels the call, and with it bytes of ours
    /// that are still on their way. So a stream that ended well both ways keeps it until the other side
    /// lets go; one that did not is cut, which is what the other side should see.
    fn drop(&mut self) {
        if self.reading != Reading::Ended || self.writing != Writing::Ended {
            return;
        }
        if let (Some(mut inbound), Ok(runtime)) = (self.inbound.take(), tokio::runtime::Handle::try_current())
        {
            self.outbound.close();
            runtime.spawn(tokio::time::timeout(GOODBYE, async move {
                while let Ok(Some(_)) = inbound.message().await {}
            }));
        }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the tunnel stream was cut")
}
