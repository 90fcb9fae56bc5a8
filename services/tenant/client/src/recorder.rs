//! Writes the Events of one component: best effort, counted, bounded.
//!
//! [`Recorder::record`] starts a write and returns; [`Recorder::next`] must be polled for it to go on.

use std::time::Duration;

use api_machinery::{Document, Gvr};
use api_reconcile::{Correlator, EventText, Recorded, Regarding};
use base_clock::{Timestamp, rfc3339};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use serde_json::json;

use crate::{CreateOptions, Patch, SharedApi};

const EVENTS: Gvr = Gvr::core("events");
/// Events being written at a time; more are dropped, as Events are best effort.
const AT_ONCE: usize = 64;

#[derive(Default)]
pub struct Recorder {
    correlator: Correlator,
    writes: FuturesUnordered<BoxFuture<'static, Option<Written>>>,
    written: u64,
}

/// An Event that was written anew, to be counted from now on.
struct Written {
    regarding: Regarding,
    text: EventText,
    name: String,
    at: Duration,
}

impl Recorder {
    /// Writes an Event as `component` through `api`, or raises the count of the one that says the same.
    pub fn record(
        &mut self,
        api: &SharedApi,
        component: &str,
        regarding: Regarding,
        text: EventText,
        now: (Timestamp, Duration),
    ) {
        if self.writes.len() >= AT_ONCE {
            return;
        }
        let (wall, mono) = now;
        let api = api.clone();
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let at = rfc3339(wall);
        match self.correlator.record(&regarding, &text, mono) {
            Recorded::Dropped => {}
            Recorded::Again { name, count } => {
                let patch = Patch::Merge(json!({"count": count, "lastTimestamp": at}));
                let write = async move {
                    if let Err(status) = api.patch(&EVENTS, None, Some(&namespace), &name, patch).await {
                        tracing::debug!(event = name, %status, "event not counted");
                    }
                    None
                };
                self.writes.push(write.boxed());
            }
            Recorded::First => {
                self.written += 1;
                // Unique among this component's Events of one object, as upstream's nanoseconds are.
                let suffix = (wall.as_nanosecond() as u64).wrapping_add(self.written);
                let name = format!("{}.{suffix:016x}", regarding.name);
                let event = event(component, &namespace, &name, &regarding, &text, &at);
                let options = CreateOptions { namespace: Some(namespace), subresource: None };
                let write = async move {
                    match api.create(&EVENTS, event, options).await {
                        Ok(_) => Some(Written { regarding, text, name, at: mono }),
                        Err(status) => {
                            tracing::debug!(reason = text.reason, %status, "event not written");
                            None
                        }
                    }
                };
                self.writes.push(write.boxed());
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.writes.is_empty()
    }

    /// Waits for one write; for ever when none is under way.
    pub async fn next(&mut self) {
        match self.writes.next().await {
            Some(Some(Written { regarding, text, name, at })) => {
                self.correlator.named(&regarding, &text, name, at);
            }
            Some(None) => {}
            None => std::future::pending().await,
        }
    }
}

fn event(
    component: &str,
    namespace: &str,
    name: &str,
    regarding: &Regarding,
    text: &EventText,
    at: &str,
) -> Document {
    let value = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": regarding.api_version, "kind": regarding.kind,
            "namespace": regarding.namespace.clone().unwrap_or_default(), "name": regarding.name,
            "uid": regarding.uid, "resourceVersion": regarding.resource_version,
        },
        "reason": text.reason, "message": text.message,
        "type": if text.warning { "Warning" } else { "Normal" },
        "source": {"component": component},
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
        "reportingComponent": component, "reportingInstance": "",
    });
    Document::from_value(value).unwrap_or_default()
}
