//! An organisation's clusters, pools and operations as a stream of server-sent events.
//!
//! A stream remembers a hash of everything it sent. Woken by a change or by a timer, it reads the rows
//! again and sends what differs: a lost wake-up, a restart or another manager's change cost time, not
//! truth. A client that connects again starts over with the present state.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use fleet_model::{Event, Gone, Problem};
use serde::Serialize;
use tokio::sync::mpsc;

use super::access::InOrganization;
use super::{Answer, Shared};
use crate::State;
use crate::auth;
use crate::db::DbError;
use crate::problem::Failure;

/// A stream looks this often even when nobody woke it.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Changes come in bursts; one look is enough for those of this long.
const GATHER: Duration = Duration::from_millis(50);

/// Comments that keep proxies from ending a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Messages that wait for a reader, and for how long: a slower one is ended, and starts over.
const WAITING: usize = 256;
const SLOWEST_READER: Duration = Duration::from_secs(30);

/// Objects of each kind in one stream. An organisation with more sees the first ones by name.
const MOST: i64 = 5000;

/// Operations that a fresh stream begins with: those that a page shows.
const OPERATIONS: i64 = 100;

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/events", operation_id = "watch_events",
    params(("organization" = String, Path)),
    responses((status = 200, description = "`event: cluster|nodepool|operation|deleted|synced`; `data` is the object, `{kind, id}` for `deleted`. First the present state, then `synced`, then changes.",
            content_type = "text/event-stream", body = String),
        (status = 401, body = Problem), (status = 404, body = Problem), (status = 429, body = Problem)))]
pub(super) async fn watch(state: Shared, at: InOrganization) -> Answer<Response> {
    let permit = state.streams.clone().try_acquire_owned().map_err(|_| Failure::TooMany(KEEP_ALIVE))?;
    let (sender, receiver) = mpsc::channel(WAITING);
    let state = state.0.clone();
    let stop = state.tasks.stopping();
    tokio::spawn(async move {
        let _permit = permit;
        tokio::select! {
            () = stop.cancelled() => {}
            () = sender.closed() => {}
            ended = run(&state, at, &sender) => if let Err(error) = ended {
                tracing::warn!(error = &error as &dyn std::error::Error, "event stream ended");
            },
        }
    });
    let stream = futures::stream::unfold(receiver, |mut receiver| async move {
        let message: Message = receiver.recv().await?;
        Some((Ok::<_, Infallible>(message), receiver))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Until the reader is gone or too slow, or may not see it any more.
async fn run(state: &Arc<State>, at: InOrganization, to: &mpsc::Sender<Message>) -> Result<(), DbError> {
    let mut changes = state.changes.subscribe();
    let mut sent = Sent::default();
    let mut synced = false;
    let mut checked = Instant::now();
    loop {
        changes.mark_unchanged();
        let now = look(state, &at).await?;
        let mut messages = sent.news(now);
        if !synced {
            messages.push(Event::Synced);
            synced = true;
        }
        for event in &messages {
            let waited = tokio::time::timeout(SLOWEST_READER, to.send(message(event))).await;
            if !matches!(waited, Ok(Ok(()))) {
                return Ok(());
            }
        }
        // An error means that the manager ends.
        if matches!(tokio::time::timeout(LOOK_INTERVAL, changes.changed()).await, Ok(Err(_))) {
            return Ok(());
        }
        tokio::time::sleep(GATHER).await;
        if checked.elapsed() >= auth::RECHECK_INTERVAL {
            checked = Instant::now();
            // A viewer sees what everybody else does, so any role will do.
            if auth::role_now(state, &at.caller, &at.organization.name).await?.is_none() {
                return Ok(());
            }
        }
    }
}

/// Everything there is, in an order in which a page can take it.
async fn look(state: &State, at: &InOrganization) -> Result<Vec<Event>, DbError> {
    let organization = at.organization.id;
    let mut events = Vec::new();
    let clusters = state.db.clusters(organization, at.only(), "", MOST).await?;
    let pools = state.db.pools_of(organization, at.only(), MOST).await?;
    let mut operations = state.db.operations(organization, at.only(), None, "", OPERATIONS).await?;
    operations.reverse();
    events.extend(clusters.into_iter().map(Event::Cluster));
    events.extend(pools.into_iter().map(Event::NodePool));
    events.extend(operations.into_iter().map(Event::Operation));
    Ok(events)
}

/// What a reader was told.
#[derive(Debug, Default)]
struct Sent(HashMap<(&'static str, String), u64>);

impl Sent {
    /// What differs between `now` and what was told.
    fn news(&mut self, now: Vec<Event>) -> Vec<Event> {
        let mut news = Vec::new();
        let mut there = HashMap::with_capacity(now.len());
        for event in now {
            let Some(key) = key(&event) else { continue };
            let hash = fingerprint(&event);
            if self.0.get(&key) != Some(&hash) {
                news.push(event);
            }
            there.insert(key, hash);
        }
        // Operations are not deleted, they only leave the page.
        for (kind, id) in self.0.keys().filter(|key| !there.contains_key(*key) && key.0 != "operation") {
            news.push(Event::Deleted(Gone { kind: (*kind).to_owned(), id: id.clone() }));
        }
        self.0 = there;
        news
    }
}

fn key(event: &Event) -> Option<(&'static str, String)> {
    let id = match event {
        Event::Cluster(cluster) => cluster.id.to_string(),
        Event::NodePool(pool) => pool.id.to_string(),
        Event::Operation(operation) => operation.id.to_string(),
        Event::Deleted(_) | Event::Synced => return None,
    };
    Some((event.name(), id))
}

fn fingerprint(event: &Event) -> u64 {
    let mut hasher = DefaultHasher::new();
    data(event).hash(&mut hasher);
    hasher.finish()
}

fn message(event: &Event) -> Message {
    Message::default().event(event.name()).data(data(event))
}

/// One line: JSON has no line breaks of its own.
fn data(event: &Event) -> String {
    fn text(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap_or_default()
    }
    match event {
        Event::Cluster(cluster) => text(cluster),
        Event::NodePool(pool) => text(pool),
        Event::Operation(operation) => text(operation),
        Event::Deleted(gone) => text(gone),
        Event::Synced => "{}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_model::Cluster;

    fn cluster(id: u8, name: &str) -> Event {
        let id = format!("00000000-0000-7000-8000-0000000000{id:02}");
        let cluster: Cluster = serde_json::from_value(serde_json::json!({
            "id": id, "organization": "acme", "name": name, "state": "ready",
            "kubernetes_version": "v1.36.0", "server_name": "x", "created_at": "2026-12-01T00:00:00Z",
        }))
        .unwrap();
        Event::Cluster(cluster)
    }

    #[test]
    fn a_stream_tells_what_differs() {
        let mut sent = Sent::default();
        for (now, wanted) in [
            (vec![cluster(1, "a"), cluster(2, "b")], vec!["cluster a", "cluster b"]),
            (vec![cluster(1, "a"), cluster(2, "b")], vec![]),
            (vec![cluster(1, "renamed"), cluster(2, "b")], vec!["cluster renamed"]),
            (vec![cluster(2, "b")], vec!["deleted cluster"]),
            (vec![], vec!["deleted cluster"]),
            (vec![cluster(2, "b")], vec!["cluster b"]),
        ] {
            let news: Vec<String> = sent
                .news(now)
                .iter()
                .map(|event| match event {
                    Event::Cluster(cluster) => format!("cluster {}", cluster.name),
                    Event::Deleted(gone) => format!("deleted {}", gone.kind),
                    other => other.name().to_owned(),
                })
                .collect();
            assert_eq!(news, wanted);
        }
    }
}
