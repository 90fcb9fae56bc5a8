//! exec, attach and port-forward: a client's WebSocket on one side, containerd's SPDY on the other.
//!
//! `v5.channel.k8s.io` and `v4.channel.k8s.io` put a channel number before each message; 255 ends a channel in v5.
//! A tunnelled port-forward carries SPDY inside the WebSocket, and a SPDY client speaks it outright: both are
//! relayed byte for byte, since containerd understands them.
//!
//! Each session has two halves that never wait for one another: one carries what the runtime says to the client,
//! the other what the client says to the runtime. `cat` shows why: it reads no further while nobody takes what it
//! has written. Neither half has a queue of any size worth the name, so whoever does not read stops its writer.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
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

/// Pings of the runtime that wait for an answer.
const PONGS: usize = 4;

/// Read of a tunnelled connection at a time.
const TUNNEL_BYTES: usize = 32 << 10;

/// How long a client may take to read the end of a session.
const GOODBYE: Duration = Duration::from_secs(30);

/// Keeps proxies in between from giving up on a quiet session.
const PING_EVERY: Duration = Duration::from_secs(30);

type ToClient = SplitSink<WebSocket, Message>;
type FromClient = SplitStream<WebSocket>;

/// The client's channels and the runtime's streams, in pairs.
struct Streams(Vec<(u8, u32)>);

impl Streams {
    fn stream(&self, channel: u8) -> Option<u32> {
        self.0.iter().find(|(own, _)| *own == channel).map(|(_, stream)| *stream)
    }
    fn channel(&self, stream: u32) -> Option<u8> {
        self.0.iter().find(|(_, own)| *own == stream).map(|(channel, _)| *channel)
    }
}

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
pub async fn command(socket: WebSocket, url: &str, wanted: Wanted, words: Option<PathBuf>) {
    let v5 = socket.protocol().is_some_and(|protocol| protocol.as_bytes() == V5.as_bytes());
    let (mut client, mut messages) = socket.split();
    let result = async {
        let (mut to, from) = spdy::upgrade(url, &[REMOTE_COMMAND.to_owned()]).await?.into_spdy();
        let streams = open_command(&mut to, wanted).await?;
        // An empty message tells the client that the session stands.
        let lowest = [STDOUT, STDERR, ERROR].into_iter().find(|channel| streams.stream(*channel).is_some());
        send(&mut client, lowest.unwrap_or(ERROR), &[]).await?;
        let (pong, pongs) = mpsc::channel(PONGS);
        tokio::select! {
            ended = command_output(&mut client, frames(from), pong, &streams, words.as_deref()) => ended,
            () = command_input(&mut messages, to, pongs, &streams, v5) => Ok(()),
        }
    };
    let result: io::Result<()> = result.await;
    if let Err(error) = result {
        tracing::debug!(%error, "streams broke off");
        let status = serde_json::json!({
            "metadata": {}, "status": "Failure", "message": error.to_string(), "reason": "InternalError", "code": 500,
        });
        let mut message = vec![ERROR];
        message.extend_from_slice(status.to_string().as_bytes());
        // The client may be what broke off.
        let _ = client.send(Message::Binary(message.into())).await;
    }
    close(client, messages).await;
}

/// Kubernetes' server waits for all streams that the request named before it starts the command.
async fn open_command(to: &mut spdy::Sender, wanted: Wanted) -> io::Result<Streams> {
    let mut streams = Vec::new();
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
    Ok(Streams(streams))
}

/// Carries what the runtime says to the client, until all of it was said.
async fn command_output(
    client: &mut ToClient,
    mut frames: mpsc::Receiver<io::Result<Frame>>,
    pong: mpsc::Sender<u32>,
    streams: &Streams,
    words: Option<&Path>,
) -> io::Result<()> {
    let mut open: Vec<u8> = streams.0.iter().map(|(channel, _)| *channel).collect();
    open.retain(|channel| matches!(*channel, STDOUT | STDERR | ERROR));
    let mut heard = Heard::default();
    // Told once the runtime has attached: a client whose attachment fails reads the whole log by itself.
    let mut untold = words;
    let attached = tokio::time::sleep(ATTACH_PATIENCE);
    tokio::pin!(attached);
    let mut pings = tokio::time::interval(PING_EVERY);
    pings.tick().await;
    while !open.is_empty() {
        tokio::select! {
            frame = frames.recv() => match frame {
                Some(Ok(Frame::Data { stream, data, last })) => {
                    let Some(channel) = streams.channel(stream) else { continue };
                    if !data.is_empty() {
                        if channel != ERROR && let Some(log) = untold.take() {
                            heard.before = send_words(client, log, channel, &data).await?;
                        }
                        heard.count(channel, &data);
                        send(client, channel, &data).await?;
                    }
                    if last {
                        open.retain(|one| *one != channel);
                    }
                }
                Some(Ok(Frame::Reset { stream })) => open.retain(|one| Some(*one) != streams.channel(stream)),
                // No room means that standard input is stuck, which a ping cannot help.
                Some(Ok(Frame::Ping { id })) => drop(pong.try_send(id)),
                Some(Ok(Frame::GoAway)) | None => break,
                Some(Err(error)) => return Err(error),
            },
            () = attached.as_mut(), if untold.is_some() => {
                if let Some(log) = untold.take() {
                    heard.before = send_words(client, log, ERROR, &[]).await?;
                }
            }
            _ = pings.tick() => client.send(Message::Ping(Bytes::new())).await.map_err(io::Error::other)?,
        }
    }
    match words {
        Some(log) if !heard.failure => send_last_words(client, log, &heard).await,
        _ => Ok(()),
    }
}

/// Carries what the client says to the runtime, until the client leaves.
async fn command_input(
    messages: &mut FromClient,
    to: spdy::Sender,
    pongs: mpsc::Receiver<u32>,
    streams: &Streams,
    v5: bool,
) {
    let to_what = |message: &[u8]| match message {
        [CLOSE, channel, ..] if v5 => streams.stream(*channel).map(Step::End),
        [channel @ (STDIN | RESIZE), ..] => streams.stream(*channel).map(Step::Data),
        _ => None,
    };
    input(messages, to, pongs, to_what).await;
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
async fn send_words(client: &mut ToClient, log: &Path, channel: u8, next: &[u8]) -> io::Result<[usize; 2]> {
    let mut words = logs::written(log, WORDS_LIMIT_BYTES).await;
    if let Some(words) = [STDOUT, STDERR].iter().position(|one| *one == channel).map(|at| &mut words[at]) {
        words.truncate(words.len() - overlap(words, next));
    }
    for (channel, words) in [STDOUT, STDERR].into_iter().zip(&words) {
        if !words.is_empty() {
            send(client, channel, words).await?;
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
async fn send_last_words(client: &mut ToClient, log: &Path, heard: &Heard) -> io::Result<()> {
    for _ in 0..LAST_WORDS_LOOKS {
        let words = logs::written(log, WORDS_LIMIT_BYTES).await;
        let missed = [0, 1].map(|stream| heard.missed(stream, words[stream].len()));
        if missed.iter().any(|range| !range.is_empty()) {
            for (stream, channel) in [STDOUT, STDERR].into_iter().enumerate() {
                let words = &words[stream][missed[stream].clone()];
                if !words.is_empty() {
                    send(client, channel, words).await?;
                }
            }
            return Ok(());
        }
        tokio::time::sleep(LAST_WORDS_PAUSE).await;
    }
    Ok(())
}

/// Relays `ports`, a pair of channels each: data and error, both opened by the port in two bytes.
pub async fn ports(socket: WebSocket, url: &str, ports: &[u16]) {
    let (mut client, mut messages) = socket.split();
    let result = async {
        let (mut to, from) = spdy::upgrade(url, &[PORT_FORWARD.to_owned()]).await?.into_spdy();
        let streams = open_ports(&mut to, ports).await?;
        for (channel, _) in &streams.0 {
            let port = ports.get(usize::from(channel / 2)).copied().unwrap_or(0);
            send(&mut client, *channel, &port.to_le_bytes()).await?;
        }
        let (pong, pongs) = mpsc::channel(PONGS);
        let to_what = |message: &[u8]| streams.stream(*message.first()?).map(Step::Data);
        tokio::select! {
            ended = ports_output(&mut client, frames(from), pong, &streams) => ended,
            () = input(&mut messages, to, pongs, to_what) => Ok(()),
        }
    };
    let result: io::Result<()> = result.await;
    if let Err(error) = result {
        tracing::debug!(%error, "port-forward broke off");
    }
    close(client, messages).await;
}

async fn open_ports(to: &mut spdy::Sender, ports: &[u16]) -> io::Result<Streams> {
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
    Ok(Streams(streams))
}

async fn ports_output(
    client: &mut ToClient,
    mut frames: mpsc::Receiver<io::Result<Frame>>,
    pong: mpsc::Sender<u32>,
    streams: &Streams,
) -> io::Result<()> {
    let mut open: Vec<u32> = streams.0.iter().map(|(_, stream)| *stream).collect();
    while !open.is_empty() {
        match frames.recv().await {
            Some(Ok(Frame::Data { stream, data, last })) => {
                if let Some(channel) = streams.channel(stream).filter(|_| !data.is_empty()) {
                    send(client, channel, &data).await?;
                }
                open.retain(|one| !(last && *one == stream));
            }
            Some(Ok(Frame::Reset { stream })) => open.retain(|one| *one != stream),
            Some(Ok(Frame::Ping { id })) => drop(pong.try_send(id)),
            Some(Ok(Frame::GoAway)) | None => break,
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(())
}

/// A WebSocket that carries SPDY: bytes go through as they are.
pub async fn tunnel(socket: WebSocket, url: &str) {
    let (mut client, mut messages) = socket.split();
    let result = async {
        let Upgraded { stream, early, .. } = spdy::upgrade(url, &[PORT_FORWARD.to_owned()]).await?;
        let (mut from, mut to) = stream.into_split();
        let output = async {
            if !early.is_empty() {
                client.send(Message::Binary(early)).await.map_err(io::Error::other)?;
            }
            let mut buffer = BytesMut::with_capacity(TUNNEL_BYTES);
            while from.read_buf(&mut buffer).await? > 0 {
                client.send(Message::Binary(buffer.split().freeze())).await.map_err(io::Error::other)?;
                buffer.reserve(TUNNEL_BYTES);
            }
            Ok(())
        };
        let input = async {
            while let Some(data) = next_binary(&mut messages).await {
                if let Err(error) = to.write_all(&data).await {
                    return drain(&mut messages, error).await;
                }
            }
        };
        tokio::select! {
            ended = output => ended,
            () = input => Ok(()),
        }
    };
    let result: io::Result<()> = result.await;
    if let Err(error) = result {
        tracing::debug!(%error, "tunnelled port-forward broke off");
    }
    close(client, messages).await;
}

/// Log lines as WebSocket messages, for `binary.k8s.io` clients.
pub async fn lines(socket: WebSocket, mut from: mpsc::Receiver<Bytes>) {
    let (mut client, messages) = socket.split();
    while let Some(line) = from.recv().await {
        if client.send(Message::Binary(line)).await.is_err() {
            return;
        }
    }
    close(client, messages).await;
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

async fn send(client: &mut ToClient, channel: u8, data: &[u8]) -> io::Result<()> {
    let mut message = BytesMut::with_capacity(data.len() + 1);
    message.put_u8(channel);
    message.put_slice(data);
    client.send(Message::Binary(message.freeze())).await.map_err(io::Error::other)
}

/// What a message of the client means to the runtime.
enum Step {
    /// Behind the number of its channel it has data for this stream.
    Data(u32),
    End(u32),
}

/// Carries the client's messages to the runtime and answers the runtime's pings, until the client leaves.
async fn input(
    messages: &mut FromClient,
    mut to: spdy::Sender,
    mut pongs: mpsc::Receiver<u32>,
    to_what: impl Fn(&[u8]) -> Option<Step>,
) {
    loop {
        let sent = tokio::select! {
            message = next_binary(messages) => {
                let Some(message) = message else { return };
                match to_what(&message) {
                    Some(Step::Data(stream)) => to.data(stream, &message[1..]).await,
                    Some(Step::End(stream)) => to.end(stream).await,
                    None => Ok(()),
                }
            }
            Some(id) = pongs.recv() => to.pong(id).await,
        };
        if let Err(error) = sent {
            return drain(messages, error).await;
        }
    }
}

/// The runtime takes no more. That is no end of the session: what a command said last, and how it ended, may still
/// be on its way out.
async fn drain(messages: &mut FromClient, error: io::Error) {
    tracing::debug!(%error, "the runtime takes no more input");
    while next_binary(messages).await.is_some() {}
}

/// The client's next binary message; `None` when it has left.
async fn next_binary(messages: &mut FromClient) -> Option<Bytes> {
    loop {
        match messages.next().await? {
            Ok(Message::Binary(data)) => return Some(data),
            Ok(Message::Close(_)) => return None,
            Ok(Message::Text(_) | Message::Ping(_) | Message::Pong(_)) => {}
            Err(error) => {
                tracing::debug!(%error, "the client broke off");
                return None;
            }
        }
    }
}

/// Says goodbye and waits until the client has heard it: what is still on its way to a slow client would be
/// lost in a reset if the connection were given up with words of the client's unread.
async fn close(mut client: ToClient, mut messages: FromClient) {
    let goodbye = Message::Close(Some(CloseFrame { code: 1000, reason: "".into() }));
    let farewell = async {
        if client.send(goodbye).await.is_ok() {
            while let Some(Ok(_)) = messages.next().await {}
        }
    };
    let _ = tokio::time::timeout(GOODBYE, farewell).await;
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
