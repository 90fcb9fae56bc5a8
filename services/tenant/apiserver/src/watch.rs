//! Watches as HTTP: a body that grows by one frame per event.
//!
//! A frame that depends on the event alone is made once and kept in the event's memo, so that a thousand
//! watchers of one resource cost one encoding. There is no task per watch: the connection polls the body.
//!
//! Not here: which events a watch sees (`tenant-registry`).

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Gvk, Status};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{FutureExt, Stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tenant_registry::{Change, Context, Resource, Watch, WatchItem};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::body::{BodyError, Response, stream};
use crate::metrics::GaugeGuard;
use crate::negotiate::{Chosen, Media, Offer, Shape};
use crate::pipeline::Call;
use crate::request::ResourcePath;
use crate::tables::Include;
use crate::{encode, options, streams, wire};

/// A watch without `timeoutSeconds` ends after this long or up to twice as long: upstream's
/// `--min-request-timeout`, spread so that clients do not come back all at once.
const LIFETIME: Duration = Duration::from_secs(1800);

const STATUS: Gvk = Gvk::new("", "v1", "Status");

/// Frames that are ready go out together up to this size.
const CHUNK_BYTES: usize = 64 * 1024;

/// Encodings of one event that are kept: core and `events.k8s.io` faces in JSON and protobuf, whole and as
/// metadata, are all that occur in numbers.
const KEPT_FRAMES: usize = 8;

pub async fn answer(
    call: &Call,
    at: &ResourcePath,
    resource: &Resource,
    upgrade: Option<OnUpgrade>,
    ctx: &Context,
) -> Result<Response, Status> {
    let chosen = call.accept.choose(Offer::watch_of(resource))?;
    let mut options = options::watch(&call.query)?;
    if at.named_in_path {
        // The old `/watch/…/<name>` form says in the path what the others say in a selector.
        options.fields.terms.push(("metadata.name".to_owned(), at.name.clone(), true));
    }
    let include = Include::of(&call.query)?;
    let namespace = (!at.namespace.is_empty()).then_some(at.namespace.as_str());
    let lifetime = options::timeout(&call.query)?.unwrap_or_else(|| spread(&call.request_id));
    let bookmarks = options.allow_bookmarks;
    let plane = &call.plane;
    let watch = plane.registry().watch(ctx, &resource.gvr, namespace, &options).await;
    // A revision that is gone is told in the stream, where client-go looks for it.
    let watch = match watch {
        Err(status) if status.code != 410 => return Err(status),
        other => other,
    };
    let gvr = &resource.gvr;
    let frames = Frames {
        watch,
        resource: resource.clone(),
        chosen,
        include,
        clock: plane.clock.clone(),
        columns_sent: false,
        bookmarks,
        deadline: Instant::now() + lifetime,
        stopping: plane.tasks.stopping(),
        sent: plane.metrics.watch_events(&gvr.group, &gvr.version, &resource.gvk.kind),
        _running: plane.metrics.long_running("WATCH", &gvr.group, &gvr.version, &gvr.resource),
        ended: false,
    };
    if streams::is_websocket(&call.headers) {
        return streams::send_websocket(call, upgrade, frames.into_stream(false), &[]);
    }
    let mut response = Response::new(stream(frames.into_stream(true)));
    let content_type = match chosen.media {
        Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        _ => "application/json",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// [`LIFETIME`] to twice that, by the request's random id.
fn spread(request_id: &str) -> Duration {
    let sum = request_id.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    LIFETIME + Duration::from_secs(sum % LIFETIME.as_secs())
}

struct Frames {
    watch: Result<Watch, Status>,
    resource: Resource,
    chosen: Chosen,
    include: Include,
    clock: base_clock::SharedClock,
    /// A table names its columns in the first event only.
    columns_sent: bool,
    bookmarks: bool,
    deadline: Instant,
    stopping: CancellationToken,
    sent: Counter,
    _running: GaugeGuard,
    ended: bool,
}

impl Frames {
    /// Chunks of frames; with `together`, those that are ready share one.
    fn into_stream(self, together: bool) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
        futures::stream::unfold(self, move |mut frames| async move {
            let first = frames.next().await?;
            if !together {
                return Some((Ok(first), frames));
            }
            let mut chunk: Option<BytesMut> = None;
            while chunk.as_ref().map_or(first.len(), BytesMut::len) < CHUNK_BYTES && !frames.ended {
                // Only what is there: a client must not wait for the next event to see this one.
                let Some(Some(more)) = frames.next().now_or_never() else { break };
                chunk.get_or_insert_with(|| BytesMut::from(&first[..])).extend_from_slice(&more);
            }
            Some((Ok(chunk.map_or(first, BytesMut::freeze)), frames))
        })
    }

    /// The next frame; `None` once the watch is over. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let watch = match &mut self.watch {
            Ok(watch) => watch,
            Err(status) => {
                self.ended = true;
                return Some(error_frame(self.chosen, status));
            }
        };
        let item = tokio::select! {
            biased;
            item = watch.next() => item,
            () = self.stopping.cancelled() => {
                self.ended = true;
                return None;
            }
            () = tokio::time::sleep_until(self.deadline) => {
                self.ended = true;
                // The last word lets the client resume from here instead of from its last event.
                if !self.bookmarks {
                    return None;
                }
                return match watch.bookmark().await {
                    Ok(item @ WatchItem::Bookmark { .. }) => Some(self.frame(&item)),
                    _ => None,
                };
            }
        };
        match item {
            None => {
                self.ended = true;
                None
            }
            Some(Err(status)) => {
                self.ended = true;
                Some(error_frame(self.chosen, &status))
            }
            Some(Ok(item)) => Some(self.frame(&item)),
        }
    }

    fn frame(&mut self, item: &WatchItem) -> Bytes {
        self.sent.inc();
        match item {
            WatchItem::Bookmark { revision, initial_events_end } => {
                let object =
                    encode::bookmark_object(self.chosen, &self.resource, *revision, *initial_events_end);
                envelope(self.chosen, "BOOKMARK", object, &self.resource)
            }
            WatchItem::Change { change, object, event } => {
                let make = |columns: bool| {
                    let now = self.clock.now();
                    let json =
                        encode::event_object(self.chosen, &self.resource, object, self.include, columns, now);
                    envelope(self.chosen, change.as_str(), json, &self.resource)
                };
                if self.chosen.shape == Shape::Table {
                    // Ages differ by the second and columns by the watcher: not worth sharing.
                    let columns = !std::mem::replace(&mut self.columns_sent, true);
                    return make(columns);
                }
                match event {
                    None => make(false),
                    Some(event) => {
                        let key = FrameKey {
                            change: *change,
                            api_version: self.resource.gvr.api_version(),
                            media: self.chosen.media,
                            shape: self.chosen.shape,
                        };
                        let kept: &Kept = event.memo.get_or_init(Kept::default);
                        kept.get_or_make(key, || make(false))
                    }
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct FrameKey {
    change: Change,
    api_version: String,
    media: Media,
    shape: Shape,
}

/// Frames of one event, in the event's memo.
#[derive(Default)]
struct Kept(Arc<Mutex<Vec<(FrameKey, Bytes)>>>);

impl Kept {
    fn get_or_make(&self, key: FrameKey, make: impl FnOnce() -> Bytes) -> Bytes {
        let mut kept = self.0.lock();
        if let Some((_, frame)) = kept.iter().find(|(known, _)| *known == key) {
            return frame.clone();
        }
        let frame = make();
        if kept.len() < KEPT_FRAMES {
            kept.push((key, frame.clone()));
        }
        frame
    }
}

fn error_frame(chosen: Chosen, status: &Status) -> Bytes {
    let json = serde_json::to_vec(status).unwrap_or_default();
    wrap(chosen, "ERROR", json, &STATUS)
}

fn envelope(chosen: Chosen, kind: &str, object: Vec<u8>, resource: &Resource) -> Bytes {
    match chosen.shape {
        Shape::Itself => wrap(chosen, kind, object, &resource.gvk),
        Shape::PartialMetadata => {
            wrap(chosen, kind, object, &Gvk::new("meta.k8s.io", "v1", "PartialObjectMetadata"))
        }
        Shape::Table => wrap(chosen, kind, object, &Gvk::new("meta.k8s.io", "v1", "Table")),
    }
}

fn wrap(chosen: Chosen, kind: &str, object: Vec<u8>, gvk: &Gvk) -> Bytes {
    if chosen.media == Media::Protobuf {
        return match wire::protobuf_frame(kind, gvk, &object) {
            Ok(frame) => frame.into(),
            Err(status) => {
                // The client must hear that it misses something: it lists again and sees the same error there.
                let error = serde_json::to_vec(&status).unwrap_or_default();
                wire::protobuf_frame("ERROR", &STATUS, &error).map(Bytes::from).unwrap_or_default()
            }
        };
    }
    let mut out = BytesMut::with_capacity(object.len() + 32);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(&object);
    out.put_slice(b"}\n");
    out.freeze()
}
