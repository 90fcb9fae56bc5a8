//! Idle connections, kept for the next call to the same place.
//!
//! A TLS handshake through a node's tunnel costs more than most webhooks take to answer, and a webhook may be
//! called on every write. What is idle is few and for a short time: a cluster that calls nobody holds nothing.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base_net::tasks::Tasks;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// What makes two connections interchangeable: where they go, through which node, and under which TLS rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) authority: String,
    pub(crate) through: Option<(String, std::net::SocketAddr)>,
    pub(crate) tls: Rules,
}

/// A client configuration, equal to itself alone. Held, so that no other can come to lie at its address.
#[derive(Debug, Clone)]
pub(crate) struct Rules(pub(crate) Arc<rustls::ClientConfig>);

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Rules {}
impl std::hash::Hash for Rules {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// Less than the 90 s for which Go servers keep an idle connection.
const IDLE: Duration = Duration::from_secs(30);
const PER_PLACE: usize = 8;
const IN_ALL: usize = 64;

#[derive(Default)]
pub(crate) struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    idle: HashMap<Key, Vec<(Sender, Instant)>>,
    count: usize,
    /// A task is looking after what is idle.
    swept: bool,
}

impl Pool {
    /// The newest one that the other side has not closed.
    pub(crate) fn take(&self, key: &Key) -> Option<Sender> {
        let mut state = self.0.lock();
        let mut found = None;
        if let Some(senders) = state.idle.get_mut(key) {
            let before = senders.len();
            while let Some((sender, _)) = senders.pop() {
                if !sender.is_closed() {
                    found = Some(sender);
                    break;
                }
            }
            let taken = before - senders.len();
            if senders.is_empty() {
                state.idle.remove(key);
            }
            state.count -= taken;
        }
        found
    }

    pub(crate) fn put(self: &Arc<Pool>, key: Key, sender: Sender, tasks: &Tasks) {
        let mut state = self.0.lock();
        if sender.is_closed() || state.count >= IN_ALL {
            return;
        }
        let senders = state.idle.entry(key).or_default();
        if senders.len() >= PER_PLACE {
            return;
        }
        senders.push((sender, Instant::now()));
        state.count += 1;
        if !std::mem::replace(&mut state.swept, true) {
            tasks.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes what has been idle for long; false when nothing is left.
    fn shrink(&self) -> bool {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.idle.retain(|_, senders| {
            senders.retain(|(sender, since)| !sender.is_closed() && now.duration_since(*since) < IDLE);
            !senders.is_empty()
        });
        state.count = state.idle.values().map(Vec::len).sum();
        state.swept = state.count > 0;
        state.swept
    }
}

/// Runs only while something is idle.
async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        match pool.upgrade() {
            Some(pool) if pool.shrink() => {}
            _ => return,
        }
    }
}
