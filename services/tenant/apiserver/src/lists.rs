//! Lists as answers: small ones whole, large ones piece by piece.
//!
//! A list may be far larger than what a cell has to spare: a hundred clients that each read 100 MB at their own
//! pace must not take 10 GB. So JSON is made from the stored bytes while it is sent, most of it without a copy.
//! Protobuf begins with a length: it is made twice, once to be measured, unless there is room to keep it. What
//! can only be made whole (YAML, indented JSON, tables) takes that room or is refused for the moment.
//!
//! Not here: which objects are listed (`tenant-registry`).

use std::io::Write;
use std::sync::{Arc, LazyLock};

use api_machinery::{Gvk, Object, Status};
use api_wire::protobuf;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt};
use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tenant_registry::{List, Resource};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{BodyError, Response, stream};
use crate::encode::{self, Form, GZIP_FROM_BYTES, PARTIAL, PARTIAL_LIST, partial_metadata};
use crate::negotiate::{Media, Shape};
use crate::tables::{self, Include};
use crate::wire;

/// Up to here a list is one piece, with its length in the headers.
const WHOLE_BYTES: usize = 128 * 1024;

/// What a piece holds at least; also when others get their turn.
const PIECE_BYTES: usize = 64 * 1024;

/// A body this long is sent from where it is stored.
const LENT_BYTES: usize = 16 * 1024;

/// Room of the process for large answers that are in memory as a whole.
const ROOM_KIB: usize = 96 * 1024;

/// What a row of a table takes, without the object.
const ROW_BYTES: usize = 2 * 1024;

static ROOM: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(ROOM_KIB)));

/// A list, or one page of it, in the form the client chose.
pub async fn answer(form: &Form, resource: &Resource, list: List) -> Result<Response, Status> {
    let shape = form.chosen.shape;
    let items = Items { metadata: metadata(&list), resource: resource.clone(), shape, list };
    let stored = items.stored_bytes();
    match form.chosen.media {
        _ if shape == Shape::Table => {
            let each =
                if form.include == Include::Object { stored } else { items.list.items.len() * ROW_BYTES };
            let room = room_or_later(each)?;
            let list = &items.list;
            let json = tables::render(resource, &list.items, list, form.include, true, form.now);
            Ok(holding(encode::table(form, 200, json), room))
        }
        Media::Protobuf if stored <= WHOLE_BYTES => {
            Ok(encode::bytes(form.gzip, 200, Media::Protobuf.content_type(), items.protobuf()?))
        }
        Media::Protobuf => match room(stored) {
            Some(room) => {
                let whole = encode::bytes(form.gzip, 200, Media::Protobuf.content_type(), items.protobuf()?);
                Ok(holding(whole, Some(room)))
            }
            None => {
                let lengths = items.protobuf_lengths().await?;
                let head = wire::protobuf_list_head(&items.gvk(), &items.metadata, lengths.iter().copied())?;
                Ok(piecewise(form, Media::Protobuf, protobuf_pieces(head, items)))
            }
        },
        Media::Json if !form.chosen.pretty && stored > WHOLE_BYTES => {
            Ok(piecewise(form, Media::Json, json_pieces(items)))
        }
        // Taken apart to be written again, it is several times its size.
        _ => {
            let room = if stored > WHOLE_BYTES { room_or_later(stored * 4)? } else { None };
            Ok(holding(encode::finish(form, 200, items.json(), &items.gvk())?, room))
        }
    }
}

fn metadata(list: &List) -> Value {
    let mut metadata = json!({"resourceVersion": list.revision.to_string()});
    if let Some(token) = &list.continue_token {
        metadata["continue"] = json!(token);
    }
    if let Some(remaining) = list.remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    metadata
}

/// Room for `bytes`, at most for all there is; `None` while others have it.
fn room(bytes: usize) -> Option<OwnedSemaphorePermit> {
    let kib = u32::try_from(bytes.div_ceil(1024).min(ROOM_KIB)).ok()?;
    ROOM.clone().try_acquire_many_owned(kib).ok()
}

fn room_or_later(bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Status> {
    if bytes <= WHOLE_BYTES {
        return Ok(None);
    }
    room(bytes).map(Some).ok_or_else(|| {
        Status::too_many_requests("too many large lists are being answered, please try again later", 1)
    })
}

/// Until the last byte of `response` has been taken.
fn holding(response: Response, room: Option<OwnedSemaphorePermit>) -> Response {
    match room {
        None => response,
        Some(room) => response.map(|body| {
            // In pieces, so that the end is not taken before it can be sent.
            let pieces = body.into_data_stream().flat_map(|whole| futures::stream::iter(slices(whole)));
            stream(pieces.map(move |piece| {
                let _held = &room;
                piece
            }))
        }),
    }
}

fn slices(whole: Piece) -> impl Iterator<Item = Piece> + Send {
    let (mut rest, mut failed) = match whole {
        Ok(bytes) => (bytes, None),
        Err(cause) => (Bytes::new(), Some(cause)),
    };
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return failed.take().map(Err);
        }
        Some(Ok(rest.split_to(rest.len().min(PIECE_BYTES))))
    })
}

/// The objects of a list and how they look.
struct Items {
    list: List,
    metadata: Value,
    resource: Resource,
    shape: Shape,
}

impl Items {
    fn stored_bytes(&self) -> usize {
        self.list.items.iter().map(|item| item.body().len() + 200).sum()
    }

    fn gvk(&self) -> Gvk {
        if self.shape == Shape::PartialMetadata {
            return PARTIAL_LIST;
        }
        Gvk {
            group: self.resource.gvk.group.clone(),
            version: self.resource.gvk.version.clone(),
            kind: self.resource.list_kind().into(),
        }
    }

    /// Items of custom resources say what they are, unlike those of typed lists.
    fn item_gvk(&self) -> Option<&Gvk> {
        self.resource.is_custom().then_some(&self.resource.gvk)
    }

    /// Up to the first item.
    fn json_head(&self) -> Vec<u8> {
        let gvk = self.gvk();
        format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
            gvk.kind,
            gvk.api_version(),
            self.metadata
        )
        .into_bytes()
    }

    fn json(&self) -> Vec<u8> {
        let mut out = self.json_head();
        out.reserve(self.stored_bytes());
        for (index, item) in self.list.items.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match self.shape {
                Shape::PartialMetadata => partial_metadata(item, &mut out),
                _ => item.write_json(self.item_gvk(), &mut out),
            }
        }
        out.extend_from_slice(b"]}");
        out
    }

    fn protobuf(&self) -> Result<Vec<u8>, Status> {
        let items: Result<Vec<Vec<u8>>, Status> =
            self.list.items.iter().map(|item| self.protobuf_item(item)).collect();
        wire::protobuf_list(&self.gvk(), &self.metadata, &items?)
    }

    fn protobuf_item(&self, item: &Object) -> Result<Vec<u8>, Status> {
        let mut json = Vec::new();
        if self.shape == Shape::PartialMetadata {
            partial_metadata(item, &mut json);
            wire::protobuf_item(&PARTIAL, &json)
        } else {
            item.write_json(None, &mut json);
            wire::protobuf_item(&self.resource.gvk, &json)
        }
    }

    /// How long each item is, one at a time.
    async fn protobuf_lengths(&self) -> Result<Vec<usize>, Status> {
        let mut lengths = Vec::with_capacity(self.list.items.len());
        let mut since_others = 0;
        for item in &self.list.items {
            lengths.push(self.protobuf_item(item)?.len());
            since_others += item.body().len();
            if since_others >= PIECE_BYTES {
                since_others = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(lengths)
    }
}

type Piece = Result<Bytes, BodyError>;

/// The same bytes as [`Items::json`] and the line's end that follows them.
fn json_pieces(items: Items) -> impl Iterator<Item = Piece> + Send + 'static {
    let mut next = 0;
    let mut head = items.json_head();
    // The end of an object that is sent from where it is stored, behind what comes before it.
    let mut lent: Option<Bytes> = None;
    let mut ended = false;
    std::iter::from_fn(move || {
        if let Some(bytes) = lent.take() {
            return Some(Ok(bytes));
        }
        if ended {
            return None;
        }
        let mut out = std::mem::take(&mut head);
        while let Some(item) = items.list.items.get(next) {
            if out.len() >= PIECE_BYTES {
                return Some(Ok(out.into()));
            }
            if next > 0 {
                out.push(b',');
            }
            next += 1;
            match items.shape {
                Shape::PartialMetadata => partial_metadata(item, &mut out),
                _ => {
                    let rest = item.split_json(items.item_gvk(), &mut out);
                    if rest.len() >= LENT_BYTES {
                        lent = Some(rest);
                        return Some(Ok(out.into()));
                    }
                    out.extend_from_slice(&rest);
                }
            }
        }
        ended = true;
        out.extend_from_slice(b"]}\n");
        Some(Ok(out.into()))
    })
}

/// The same bytes as [`Items::protobuf`].
fn protobuf_pieces(head: Vec<u8>, items: Items) -> impl Iterator<Item = Piece> + Send + 'static {
    let mut next = 0;
    let mut head = head;
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut out = std::mem::take(&mut head);
        while let Some(item) = items.list.items.get(next) {
            if out.len() >= PIECE_BYTES {
                return Some(Ok(out.into()));
            }
            next += 1;
            match items.protobuf_item(item) {
                Ok(encoded) => {
                    out.extend(protobuf::item_head(encoded.len()));
                    out.extend_from_slice(&encoded);
                }
                // It was measured a moment ago, so this can't be; a body that ends early is not taken for one.
                Err(status) => {
                    ended = true;
                    return Some(Err(BodyError::other(status.message)));
                }
            }
        }
        ended = true;
        out.extend_from_slice(protobuf::ENVELOPE_END);
        Some(Ok(out.into()))
    })
}

fn piecewise(form: &Form, media: Media, pieces: impl Iterator<Item = Piece> + Send + 'static) -> Response {
    const { assert!(WHOLE_BYTES >= GZIP_FROM_BYTES) };
    let body = if form.gzip { stream(in_turns(packed(pieces))) } else { stream(in_turns(pieces)) };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media.content_type()));
    if form.gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// Others get their turn after each piece, however fast the client reads.
fn in_turns(pieces: impl Iterator<Item = Piece> + Send + 'static) -> impl Stream<Item = Piece> + Send {
    futures::stream::iter(pieces).then(|piece| async {
        tokio::task::yield_now().await;
        piece
    })
}

/// `pieces` compressed, as much as comes of each.
fn packed(mut pieces: impl Iterator<Item = Piece> + Send + 'static) -> impl Iterator<Item = Piece> + Send {
    let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    std::iter::from_fn(move || {
        loop {
            let packing = encoder.as_mut()?;
            match pieces.next() {
                Some(Ok(piece)) => {
                    if let Err(cause) = packing.write_all(&piece) {
                        return Some(Err(cause));
                    }
                    if packing.get_ref().len() >= PIECE_BYTES / 4 {
                        return Some(Ok(std::mem::take(packing.get_mut()).into()));
                    }
                }
                Some(Err(cause)) => return Some(Err(cause)),
                None => return encoder.take().map(|last| last.finish().map(Bytes::from)),
            }
        }
    })
}
