//! Events: what the node tells a pod's owner.
//!
//! [`Events::send`] never waits: events are worth less than what they report on. Repeats of one event raise its
//! count instead of making another, as upstream's recorder does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base_clock::SharedClock;
use base_net::tasks::Tasks;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use crate::pod::PodExt;
use crate::status::seconds;

/// Events that may wait for the API server; more are dropped, and counted.
const QUEUE: usize = 256;

/// Events remembered for counting repeats.
const REMEMBERED: usize = 1024;

/// Repeats of one event are reported this often at most.
const REPEAT_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Normal,
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    namespace: String,
    /// apiVersion, kind, name, uid, fieldPath
    about: [String; 5],
    kind: Kind,
    reason: String,
    message: String,
}

struct Known {
    name: String,
    count: i32,
    told: Duration,
}

#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Key>,
    dropped: std::sync::Arc<AtomicU64>,
}

impl Events {
    pub fn start(client: Client, node: String, clock: SharedClock, tasks: &Tasks) -> Events {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tasks.spawn(write(client, node, clock, waiting));
        Events { queue, dropped: std::sync::Arc::default() }
    }

    /// Says something about a pod, or about one of its containers (`spec.containers{main}`).
    pub fn pod(
        &self,
        pod: &Pod,
        field: Option<String>,
        kind: Kind,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.send(Key {
            namespace: pod.namespace().to_owned(),
            about: [
                "v1".into(),
                "Pod".into(),
                pod.name().into(),
                pod.uid().into(),
                field.unwrap_or_default(),
            ],
            kind,
            reason: reason.to_owned(),
            message: message.into(),
        });
    }

    /// Says something about the node, whose uid is its name in events, as upstream has it.
    pub fn node(&self, node: &str, kind: Kind, reason: &str, message: impl Into<String>) {
        self.send(Key {
            namespace: "default".to_owned(),
            about: ["v1".into(), "Node".into(), node.into(), node.into(), String::new()],
            kind,
            reason: reason.to_owned(),
            message: message.into(),
        });
    }

    fn send(&self, key: Key) {
        if self.queue.try_send(key).is_err()
            && self.dropped.fetch_add(1, Ordering::Relaxed).is_multiple_of(100)
        {
            tracing::warn!("events are dropped: the API server does not take them fast enough");
        }
    }
}

async fn write(client: Client, node: String, clock: SharedClock, mut waiting: mpsc::Receiver<Key>) {
    let mut known: HashMap<Key, Known> = HashMap::new();
    while let Some(key) = waiting.recv().await {
        let now = clock.monotonic();
        let events = Api::<Event>::namespaced(client.clone(), &key.namespace);
        if let Some(event) = known.get_mut(&key) {
            event.count = event.count.saturating_add(1);
            if now.saturating_sub(event.told) < REPEAT_EVERY {
                continue;
            }
            event.told = now;
            let patch = json!({ "count": event.count, "lastTimestamp": Time(seconds(clock.now())) });
            let patched = events.patch(&event.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            // An event lives an hour; a repeat after that makes a new one below.
            if patched.is_ok() {
                continue;
            }
        }
        let event = event(&key, &node, clock.now());
        let name = event.metadata.name.clone().unwrap_or_default();
        match events.create(&PostParams::default(), &event).await {
            Ok(_) => {
                if known.len() >= REMEMBERED {
                    known.clear();
                }
                known.insert(key, Known { name, count: 1, told: now });
            }
            // A namespace that ends takes no events, an API server that is away will not miss this one.
            Err(error) => tracing::debug!(reason = key.reason, %error, "event was not taken"),
        }
    }
}

fn event(key: &Key, node: &str, now: jiff::Timestamp) -> Event {
    let [api_version, kind, name, uid, field_path] = key.about.clone();
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let at = Time(seconds(now));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(key.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: some(api_version),
            kind: some(kind),
            name: some(name),
            namespace: if key.about[1] == "Pod" { Some(key.namespace.clone()) } else { None },
            uid: some(uid),
            field_path: some(field_path),
            resource_version: None,
        },
        count: Some(1),
        first_timestamp: Some(at.clone()),
        last_timestamp: Some(at),
        reason: Some(key.reason.clone()),
        message: Some(key.message.clone()),
        type_: Some(format!("{:?}", key.kind)),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}
