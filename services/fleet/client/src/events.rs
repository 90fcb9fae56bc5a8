//! The stream of an organisation's changes (`text/event-stream`).

use base_ids::Slug;
use bytes::Bytes;
use fleet_model::Event;
use futures::{Stream, StreamExt};
use std::time::Duration;

use crate::{Client, ClientError};

/// The manager sends a comment every 15 s; a stream that is silent for three of them is dead.
const SILENCE: Duration = Duration::from_secs(45);

/// One message of a few objects' size; a server that sends more without an end is not ours.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Why a stream ended. Open another one: it begins with the present state.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    #[error("the stream broke")]
    Broken(#[source] reqwest::Error),
    #[error("the stream was silent for {SILENCE:?}")]
    Silent,
    #[error("a message is not understood")]
    Message(#[source] serde_json::Error),
    #[error("a message is larger than {MAX_MESSAGE_BYTES} bytes")]
    TooLarge,
}

impl Client {
    /// First everything that is there, then [`Event::Synced`], then what changes.
    pub async fn events(
        &self,
        org: &Slug,
    ) -> Result<impl Stream<Item = Result<Event, EventsError>> + Send + use<>, ClientError> {
        let request = self
            .http
            .get(format!("{}/api/v1/organizations/{org}/events", self.server))
            .header("accept", "text/event-stream")
            .bearer_auth(&self.token);
        let response = request.send().await.map_err(|cause| self.unreachable(cause))?;
        if !response.status().is_success() {
            return Err(self.problem(response).await);
        }
        let bytes = response.bytes_stream().boxed();
        let state = (bytes, Parser::default(), false);
        Ok(futures::stream::unfold(state, |(mut bytes, mut parser, ended)| async move {
            if ended {
                return None;
            }
            let item = next(&mut bytes, &mut parser).await?;
            let ended = item.is_err();
            Some((item, (bytes, parser, ended)))
        }))
    }
}

async fn next(
    bytes: &mut (impl Stream<Item = reqwest::Result<Bytes>> + Unpin),
    parser: &mut Parser,
) -> Option<Result<Event, EventsError>> {
    loop {
        match parser.message() {
            Ok(Some(event)) => return Some(Ok(event)),
            Ok(None) => {}
            Err(error) => return Some(Err(error)),
        }
        match tokio::time::timeout(SILENCE, bytes.next()).await {
            Err(_) => return Some(Err(EventsError::Silent)),
            Ok(None) => return None,
            Ok(Some(Err(error))) => return Some(Err(EventsError::Broken(error))),
            Ok(Some(Ok(more))) => parser.pending.extend_from_slice(&more),
        }
    }
}

/// As much of the format (WHATWG HTML, "Server-sent events") as our manager uses: LF, `event`, `data`.
#[derive(Debug, Default)]
struct Parser {
    pending: Vec<u8>,
}

impl Parser {
    fn message(&mut self) -> Result<Option<Event>, EventsError> {
        while let Some(end) = self.pending.windows(2).position(|two| two == b"\n\n") {
            let message: Vec<u8> = self.pending.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&message);
            let (mut name, mut data) = (String::new(), String::new());
            for line in text.lines() {
                if let Some(value) = line.strip_prefix("event:") {
                    name = value.trim().to_owned();
                } else if let Some(value) = line.strip_prefix("data:") {
                    data += value.strip_prefix(' ').unwrap_or(value);
                }
            }
            let parsed = match name.as_str() {
                "cluster" => serde_json::from_str(&data).map(Event::Cluster),
                "nodepool" => serde_json::from_str(&data).map(Event::NodePool),
                "operation" => serde_json::from_str(&data).map(Event::Operation),
                "deleted" => serde_json::from_str(&data).map(Event::Deleted),
                "synced" => Ok(Event::Synced),
                // Comments, and kinds that a newer manager knows.
                _ => continue,
            };
            return parsed.map(Some).map_err(EventsError::Message);
        }
        if self.pending.len() > MAX_MESSAGE_BYTES { Err(EventsError::TooLarge) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_whatever_the_pieces() {
        let sent = ": hello\n\nevent: deleted\ndata: {\"kind\":\"cluster\",\"id\":\"1\"}\n\nevent: later\ndata: {}\n\nevent: synced\ndata: {}\n\n";
        for size in [1, 7, sent.len()] {
            let mut parser = Parser::default();
            let mut names = Vec::new();
            for piece in sent.as_bytes().chunks(size) {
                parser.pending.extend_from_slice(piece);
                while let Some(event) = parser.message().unwrap() {
                    names.push(event.name());
                }
            }
            assert_eq!(names, ["deleted", "synced"], "pieces of {size}");
        }
    }
}
