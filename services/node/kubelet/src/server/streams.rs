//! exec, attach and port-forward: a client's WebSocket on one side, containerd's SPDY on the other.
//!
//! `v5.channel.k8s.io` and `v4.channel.k8s.io` put a channel number before each message; 255 ends a channel in v5.
//! A tunnelled port-forward carries SPDY inside the WebSocket, and a SPDY client speaks it outright: both are
//! relayed byte for byte, since containerd understands them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::spdy::{self, Frame, Upgraded};
use crate::logs;

pub const V5: &str = "v5.channel.k8s.io";
pub const V4: &str = "v4.channel.k8s.io";
pub const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// What remote command streams are called towards the runtime.
const REMOTE_COMMAND: &str = "v4.channel.k8s.io";
const PORT_FORWARD: &str = "portforward.k8s.io";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Frames on their way from the runtime to a slow client.
const QUEUE: usize = 16;

/// Keeps proxies in between from giving up on a quiet session.
const PING_EVERY: Duration = Duration::from_secs(30);

/// Which streams a command has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// A log larger than this is no short session's, and is not repeated to whoever attaches.
const WORDS_LIMIT_BYTES: u64 = 1 << 20;

/// An attachment that has not failed by then stands.
const ATTACH_PATIENCE: Duration = Duration::from_millis(150);

/// How often, and how far apart, an ended session's log is looked at for what the runtime has yet to write.
const LAST_WORDS_LOOKS: usize = 5;
const LAST_WORDS_PAUSE: Duration = Duration::from_millis(40);

/// Relays a command's streams until it has ended. With `words`, the log of its container, the session also
/// gets what was written before it began.
pub async fn command(mut socket: WebSocket, url: &str, wanted: Wanted, words: Option<PathBuf>) {
    let v5 = socket.protocol().is_some_and(|protocol| protocol.as_bytes() == V5.as_bytes());
    let upgraded = spdy::upgrade(url, &[REMOTE_COMMAND.to_owned()]).await;
    let result = match upgraded {
        Ok(upgraded) => relay_command(&mut socket, upgraded, wanted, v5, words.as_deref()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "streams broke off");
        let status = serde_json::json!({
            "metadata": {}, "status": "Failure", "message": error.to_string(), "reason": "InternalError", "code": 500,
        });
        let mut message = vec![ERROR];
        message.extend_from_slice(status.to_string().as_bytes());
        // The client may be what broke off.
        let _ = socket.send(Message::Binary(message.into())).await;
    }
    close(socket).await;
}

async fn relay_command(
    socket: &mut WebSocket,
    upgraded: Upgraded,
    wanted: Wanted,
    v5: bool,
    words: Option<&Path>,
) -> io::Result<()> {
    let (mut to, from) = upgraded.into_spdy();
    // Kubernetes' server waits for all streams that the request named before it starts the command.
    let mut streams: Vec<(u8, u32)> = Vec::new();
    for (channel, kind, is_wanted) in [
        (ERROR, "error", true),
        (STDIN, "stdin", wanted.stdin),
        (STDOUT, "stdout", wanted.stdout),
        (STDERR, "stderr", wanted.stderr && !wanted.tty),
        (RESIZE, "resize", wanted.tty),
    ] {
        if is_wanted {
            streams.push((channel, to.open(&[("streamtype", kind)]).await?));
        }
    }
    let stream_of = |channel: u8| streams.iter().find(|(own, _)| *own == channel).map(|(_, stream)| *stream);
    let channel_of =
        |stream: u32| streams.iter().find(|(_, own)| *own == stream).map(|(channel, _)| *channel);
    let mut open: Vec<u8> = streams
        .iter()
        .map(|(channel, _)| *channel)
        .filter(|one| matches!(*one, STDOUT | STDERR | ERROR))
        .collect();
    // An empty message tells the client that the session stands.
    let lowest =
        [STDOUT, STDERR, ERROR].into_iter().find(|channel| stream_of(*channel).is_some()).unwrap_or(ERROR);
    send(socket, lowest, &[]).await?;
    let mut heard = Heard::default();
    // Told once the runtime has attached: a client whose attachment fails reads the whole log by itself.
    let mut untold = words;
    let attached = tokio::time::sleep(ATTACH_PATIENCE);
    tokio::pin!(attached);

    let mut frames = frames(from);
    let mut pings = tokio::time::interval(PING_EVERY);
    pings.tick().await;
    loop {
        tokio::select! {
            frame = frames.recv() => match frame {
                Some(Ok(Frame::Data { stream, data, last })) => {
                    let Some(channel) = channel_of(stream) else { continue };
                    if !data.is_empty() {
                        if channel != ERROR && let Some(log) = untold.take() {
                            heard.before = send_words(socket, log, channel, &data).await?;
                        }
                        heard.count(channel, &data);
                        send(socket, channel, &data).await?;
                    }
                    if last {
                        open.retain(|one| *one != channel);
                    }
                }
                Some(Ok(Frame::Reset { stream })) => open.retain(|one| Some(*one) != channel_of(stream)),
                Some(Ok(Frame::Ping { id })) => to.pong(id).await?,
                Some(Ok(Frame::GoAway)) | None => break,
                Some(Err(error)) => return Err(error),
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(message))) => {
                    let Some((channel, data)) = message.split_first() else { continue };
                    match (*channel, stream_of(*channel)) {
                        (CLOSE, _) if v5 => {
                            let ended = data.first().and_then(|channel| stream_of(*channel));
                            if let Some(stream) = ended {
                                to.end(stream).await?;
                            }
                        }
                        (STDIN | RESIZE, Some(stream)) => to.data(stream, data).await?,
                        _ => {}
                    }
                }
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(Message::Text(_) | Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(error)) => return Err(io::Error::other(error)),
            },
            () = attached.as_mut(), if untold.is_some() => {
                if let Some(log) = untold.take() {
                    heard.before = send_words(socket, log, ERROR, &[]).await?;
                }
            }
            _ = pings.tick() => socket.send(Message::Ping(Bytes::new())).await.map_err(io::Error::other)?,
        }
        if open.is_empty() {
            break;
        }
    }
    match words {
        Some(log) if !heard.failure => send_last_words(socket, log, &heard).await,
        _ => Ok(()),
    }
}

/// Bytes of standard output and standard error that a session got: from the log at its start, and live.
#[derive(Debug, Default)]
struct Heard {
    before: [usize; 2],
    live: [usize; 2],
    /// The runtime could not attach.
    failure: bool,
}

impl Heard {
    fn count(&mut self, channel: u8, data: &[u8]) {
        match channel {
            STDOUT => self.live[0] += data.len(),
            STDERR => self.live[1] += data.len(),
            // A `Status`, whose status is Success or Failure.
            ERROR => self.failure |= data.windows(9).any(|word| word == b"\"Failure\""),
            _ => {}
        }
    }

    /// Which part of `total` bytes, written in all, fell between the look at the log and the attachment.
    fn missed(&self, stream: usize, total: usize) -> std::ops::Range<usize> {
        let start = self.before[stream].min(total);
        start..total.saturating_sub(self.live[stream]).max(start)
    }
}

/// Sends what the log holds but for the beginning of `next`, which follows live on `channel` and may be in the
/// log by now. Says how much was sent.
async fn send_words(socket: &mut WebSocket, log: &Path, channel: u8, next: &[u8]) -> io::Result<[usize; 2]> {
    let mut words = logs::written(log, WORDS_LIMIT_BYTES).await;
    if let Some(words) = [STDOUT, STDERR].iter().position(|one| *one == channel).map(|at| &mut words[at]) {
        words.truncate(words.len() - overlap(words, next));
    }
    for (channel, words) in [STDOUT, STDERR].into_iter().zip(&words) {
        if !words.is_empty() {
            send(socket, channel, words).await?;
        }
    }
    Ok(words.map(|words| words.len()))
}

/// How many bytes at the end of `before` are those at the beginning of `next`.
fn overlap(before: &[u8], next: &[u8]) -> usize {
    (0..=before.len().min(next.len())).rev().find(|shared| before.ends_with(&next[..*shared])).unwrap_or(0)
}

/// What was written after the first look at the log and before the runtime had attached. The runtime may be
/// a moment behind with its log.
async fn send_last_words(socket: &mut WebSocket, log: &Path, heard: &Heard) -> io::Result<()> {
    for _ in 0..LAST_WORDS_LOOKS {
        let words = logs::written(log, WORDS_LIMIT_BYTES).await;
        let missed = [0, 1].map(|stream| heard.missed(stream, words[stream].len()));
        if missed.iter().any(|range| !range.is_empty()) {
            for (stream, channel) in [STDOUT, STDERR].into_iter().enumerate() {
                let words = &words[stream][missed[stream].clone()];
                if !words.is_empty() {
                    send(socket, channel, words).await?;
                }
            }
            return Ok(());
        }
        tokio::time::sleep(LAST_WORDS_PAUSE).await;
    }
    Ok(())
}

/// Relays `ports`, a pair of channels each: data and error, both opened by the port in two bytes.
pub async fn ports(mut socket: WebSocket, url: &str, ports: &[u16]) {
    let result = match spdy::upgrade(url, &[PORT_FORWARD.to_owned()]).await {
        Ok(upgraded) => relay_ports(&mut socket, upgraded, ports).await,
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "port-forward broke off");
    }
    close(socket).await;
}

async fn relay_ports(socket: &mut WebSocket, upgraded: Upgraded, ports: &[u16]) -> io::Result<()> {
    let (mut to, from) = upgraded.into_spdy();
    let mut streams = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let (port_text, request) = (port.to_string(), index.to_string());
        for kind in ["error", "data"] {
            let headers =
                [("streamtype", kind), ("port", port_text.as_str()), ("requestid", request.as_str())];
            let channel = u8::try_from(index * 2 + usize::from(kind == "error")).map_err(io::Error::other)?;
            streams.push((channel, to.open(&headers).await?));
        }
    }
    for (channel, _) in &streams {
        let port = ports.get(usize::from(channel / 2)).copied().unwrap_or(0);
        send(socket, *channel, &port.to_le_bytes()).await?;
    }
    let mut open = streams.len();
    let mut frames = frames(from);
    while open > 0 {
        tokio::select! {
            frame = frames.recv() => match frame {
                Some(Ok(Frame::Data { stream, data, last })) => {
                    let channel = streams.iter().find(|(_, own)| *own == stream).map(|(channel, _)| *channel);
                    if let Some(channel) = channel.filter(|_| !data.is_empty()) {
                        send(socket, channel, &data).await?;
                    }
                    open -= usize::from(last);
                }
                Some(Ok(Frame::Reset { .. })) => open -= 1,
                Some(Ok(Frame::Ping { id })) => to.pong(id).await?,
                Some(Ok(Frame::GoAway)) | None => return Ok(()),
                Some(Err(error)) => return Err(error),
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(message))) => {
                    let Some((channel, data)) = message.split_first() else { continue };
                    if let Some((_, stream)) = streams.iter().find(|(own, _)| own == channel) {
                        to.data(*stream, data).await?;
                    }
                }
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(io::Error::other(error)),
            },
        }
    }
    Ok(())
}

/// A WebSocket that carries SPDY: bytes go through as they are.
pub async fn tunnel(mut socket: WebSocket, url: &str) {
    let result = async {
        let Upgraded { stream, early, .. } = spdy::upgrade(url, &[PORT_FORWARD.to_owned()]).await?;
        let (mut from, mut to) = stream.into_split();
        if !early.is_empty() {
            socket.send(Message::Binary(early)).await.map_err(io::Error::other)?;
        }
        let mut buffer = BytesMut::with_capacity(32 << 10);
        loop {
            tokio::select! {
                read = from.read_buf(&mut buffer) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    socket.send(Message::Binary(buffer.split().freeze())).await.map_err(io::Error::other)?;
                    buffer.reserve(32 << 10);
                }
                message = socket.recv() => match message {
                    Some(Ok(Message::Binary(data))) => to.write_all(&data).await?,
                    Some(Ok(Message::Close(_))) | None => return Ok(()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(io::Error::other(error)),
                },
            }
        }
    };
    let result: io::Result<()> = result.await;
    if let Err(error) = result {
        tracing::debug!(%error, "tunnelled port-forward broke off");
    }
    close(socket).await;
}

/// Log lines as WebSocket messages, for `binary.k8s.io` clients.
pub async fn lines(mut socket: WebSocket, mut from: mpsc::Receiver<Bytes>) {
    while let Some(line) = from.recv().await {
        if socket.send(Message::Binary(line)).await.is_err() {
            return;
        }
    }
    close(socket).await;
}

/// Reads frames in a task of its own, since reading one must not be broken off half-way.
fn frames(mut from: spdy::Receiver) -> mpsc::Receiver<io::Result<Frame>> {
    let (to, frames) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            let (item, over) = match from.next().await {
                Ok(Some(frame)) => (Ok(frame), false),
                Ok(None) => return,
                Err(error) => (Err(error), true),
            };
            tokio::select! {
                sent = to.send(item) => if sent.is_err() || over { return },
                () = to.closed() => return,
            }
        }
    });
    frames
}

async fn send(socket: &mut WebSocket, channel: u8, data: &[u8]) -> io::Result<()> {
    let mut message = BytesMut::with_capacity(data.len() + 1);
    message.put_u8(channel);
    message.put_slice(data);
    socket.send(Message::Binary(message.freeze())).await.map_err(io::Error::other)
}

/// Says goodbye and gives the client a moment to answer, so that its last messages are not lost in a reset.
async fn close(mut socket: WebSocket) {
    let goodbye = Message::Close(Some(CloseFrame { code: 1000, reason: "".into() }));
    if socket.send(goodbye).await.is_err() {
        return;
    }
    let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
    let _ = tokio::time::timeout(Duration::from_secs(2), answered).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_live_is_not_said_twice() {
        for (before, next, shared) in [
            ("", "", 0),
            ("got it\n", "got it\n", 7),
            ("one\ngot it\n", "got it\n", 7),
            ("one\ngot", "got it\n", 3),
            ("one\n", "two\n", 0),
        ] {
            assert_eq!(overlap(before.as_bytes(), next.as_bytes()), shared, "{before:?} {next:?}");
        }
    }

    #[test]
    fn what_fell_between_log_and_attachment_is_told_last() {
        for (before, live, total, missed) in [
            (0, 0, 5, 0..5),
            (5, 0, 5, 5..5),
            (0, 5, 5, 0..0),
            (3, 4, 10, 3..6),
            // The runtime is behind with its log.
            (3, 4, 5, 3..3),
            (8, 0, 5, 5..5),
        ] {
            let heard = Heard { before: [before, 0], live: [live, 0], failure: false };
            assert_eq!(heard.missed(0, total), missed, "{before} before, {live} live, {total} in all");
        }
    }
}
