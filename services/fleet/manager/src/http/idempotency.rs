//! `Idempotency-Key`: a POST that is sent twice is done once.
//!
//! The key is written down before the work, with the id that the work's resource will have, and the answer
//! after it. What a crash can leave in between is a key without an answer: its lease ends within seconds,
//! and whoever sends the request again has it done again *under the same id* ([`NewId`]). A handler that
//! finds its own id there has therefore found its own earlier work, and answers with that; so no crash makes
//! two of anything, and none turns a success into "exists already" or "too many".
//!
//! Kept are successes, for a day. A refusal changes nothing, so the same request is judged again.
//!
//! Answers hold secrets (tokens, kubeconfigs): they are sealed with a key made of the caller's own secret, of
//! which the database has only a hash. For the same reason POSTs by nobody (sign-in, accepting an
//! invitation) are not kept: a second sign-in is a second session, and an invitation works once anyway.
//!
//! [`NewId`]: super::extract::NewId

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use axum::body::Body;
use axum::extract::{Request, State as Extract};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base_clock::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Answer;
use super::extract::NewId;
use crate::State;
use crate::auth::{Caller, later};
use crate::db::KeptKey;
use crate::problem::Failure;

pub(super) const HEADER: &str = "idempotency-key";

/// On an answer that was given before.
const REPEATED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The contract's day.
pub(crate) const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Whoever works moves the lease on three times as often as it ends.
const LEASE: Duration = Duration::from_secs(9);
const RENEWAL: Duration = Duration::from_secs(3);

/// Keys a caller has at the same time: one each ten seconds, all day.
const MAX_KEYS: i64 = 10_000;

/// Larger answers are given but not kept; none of ours comes near.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// An answer as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    headers: Vec<(String, String)>,
    body: String,
}

/// Stands between `admit` and the handler of every POST.
pub(super) async fn once(Extract(state): Extract<Arc<State>>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let key = request.headers().get(HEADER).cloned();
    match (request.method(), caller, key) {
        (&Method::POST, Some(caller), Some(key)) => {
            keyed(state, caller, key, request, next).await.unwrap_or_else(IntoResponse::into_response)
        }
        _ => next.run(request).await,
    }
}

async fn keyed(
    state: Arc<State>,
    caller: Caller,
    key: HeaderValue,
    request: Request,
    next: Next,
) -> Answer<Response> {
    let key = key
        .to_str()
        .ok()
        .filter(|key| (1..=128).contains(&key.len()) && key.bytes().all(|byte| (32..127).contains(&byte)))
        .ok_or_else(|| Failure::Invalid("Idempotency-Key is 1 to 128 printable characters".to_owned()))?
        .to_owned();
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, super::MAX_BODY_BYTES).await.map_err(|_| Failure::TooLarge)?;
    let request_hash = {
        let mut hash = Sha256::new();
        for part in [parts.method.as_str().as_bytes(), parts.uri.path().as_bytes()] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update(parts.uri.query().unwrap_or_default().as_bytes());
        hash.update([0]);
        hash.update(&body);
        hex::encode(hash.finalize())
    };
    let at = KeptKey { caller: caller.key(), key };
    let seal = Seal::new(&caller, &at.key)?;
    let started = match start(&state, &at, &request_hash).await? {
        Start::Work(started) => started,
        Start::Answered(status, sealed) => return seal.open(status, &sealed),
    };
    parts.extensions.insert(NewId { id: started.id, again: started.again });
    let request = Request::from_parts(parts, Body::from(body));
    // On a task of its own: a client that hangs up must not leave work without its record.
    let work = tokio::spawn(async move { work(&state, &at, &seal, started, request, next).await });
    work.await.map_err(|error| Failure::Internal(Box::new(error)))
}

enum Start {
    Work(Started),
    Answered(u16, String),
}

struct Started {
    id: Uuid,
    /// Somebody began before and has not said how it ended.
    again: bool,
    created_at: Timestamp,
    lease: Timestamp,
}

/// Makes this request the one that works on the key, or says why it isn't.
async fn start(state: &State, at: &KeptKey, request_hash: &str) -> Answer<Start> {
    // Again, should the row be forgotten or made by somebody else between two looks at it.
    for _ in 0..3 {
        let now = state.now();
        let (id, lease) = (Uuid::now_v7(), later(now, LEASE));
        if let Some(row) = state.db.kept(at).await? {
            if later(row.created_at, KEPT) <= now {
                state.db.forget(at, row.created_at).await?;
                continue;
            }
            if row.request_hash != request_hash {
                return Err(Failure::KeyReused);
            }
            if let Some((status, sealed)) = row.answer {
                return Ok(Start::Answered(status, sealed));
            }
            if row.lease > now || !state.db.take_lease(at, row.lease, lease).await? {
                return Err(Failure::StillRunning);
            }
            let id = row.resource_id.parse().map_err(|error| Failure::Internal(Box::new(error)))?;
            return Ok(Start::Work(Started { id, again: true, created_at: row.created_at, lease }));
        }
        if state.db.kept_count(&at.caller).await? >= MAX_KEYS {
            return Err(Failure::TooMany(Duration::from_secs(60)));
        }
        if state.db.keep(at, request_hash, &id.to_string(), now, lease).await? {
            return Ok(Start::Work(Started { id, again: false, created_at: now, lease }));
        }
    }
    Err(Failure::StillRunning)
}

async fn work(
    state: &State,
    at: &KeptKey,
    seal: &Seal,
    started: Started,
    request: Request,
    next: Next,
) -> Response {
    let mut lease = started.lease;
    let answer = {
        let mut handler = std::pin::pin!(next.run(request));
        loop {
            tokio::select! {
                answer = &mut handler => break answer,
                () = tokio::time::sleep(RENEWAL) => {
                    let longer = later(state.now(), LEASE);
                    // Not so when it is lost or the database is away: what is done is done under the same id by
                    // whoever comes next, so going on is safe.
                    if let Ok(true) = state.db.take_lease(at, lease, longer).await {
                        lease = longer;
                    }
                }
            }
        }
    };
    match record(state, at, seal, &started, lease, answer).await {
        Ok(answer) => answer,
        Err(failure) => failure.into_response(),
    }
}

async fn record(
    state: &State,
    at: &KeptKey,
    seal: &Seal,
    started: &Started,
    lease: Timestamp,
    answer: Response,
) -> Answer<Response> {
    let status = answer.status();
    if status.is_client_error() {
        state.db.forget(at, started.created_at).await?;
        return Ok(answer);
    }
    if !status.is_success() {
        // It may have been done in part; the id stays and anybody may try again at once.
        state.db.take_lease(at, lease, state.now()).await?;
        return Ok(answer);
    }
    let (parts, body) = answer.into_parts();
    let body =
        axum::body::to_bytes(body, usize::MAX).await.map_err(|error| Failure::Internal(Box::new(error)))?;
    if body.len() <= MAX_ANSWER_BYTES {
        let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
        let kept = Kept {
            headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: STANDARD.encode(&body),
        };
        state.db.keep_answer(at, status.as_u16(), &seal.close(&kept)?).await?;
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// Seals one caller's answer to one key.
struct Seal {
    key: RandomizedNonceKey,
    aad: Vec<u8>,
}

impl Seal {
    fn new(caller: &Caller, key: &str) -> Answer<Seal> {
        let sealing = RandomizedNonceKey::new(&AES_256_GCM, &caller.sealing_key())
            .map_err(|_| Failure::Internal("no sealing key".into()))?;
        Ok(Seal { key: sealing, aad: key.as_bytes().to_vec() })
    }

    fn close(&self, kept: &Kept) -> Answer<String> {
        let mut bytes = serde_json::to_vec(kept).map_err(|error| Failure::Internal(Box::new(error)))?;
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(&self.aad), &mut bytes)
            .map_err(|_| Failure::Internal("an answer cannot be sealed".into()))?;
        let mut sealed = nonce.as_ref().to_vec();
        sealed.append(&mut bytes);
        Ok(STANDARD.encode(sealed))
    }

    fn open(&self, status: u16, sealed: &str) -> Answer<Response> {
        let damaged = || Failure::Internal("a kept answer cannot be opened".into());
        let bytes = STANDARD.decode(sealed).map_err(|_| damaged())?;
        let (nonce, rest) = bytes.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let mut rest = rest.to_vec();
        let plain = self.key.open_in_place(nonce, Aad::from(&self.aad), &mut rest).map_err(|_| damaged())?;
        let kept: Kept = serde_json::from_slice(plain).map_err(|error| Failure::Internal(Box::new(error)))?;
        let body = STANDARD.decode(kept.body).map_err(|_| damaged())?;
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(status).map_err(|_| damaged())?;
        for (name, value) in kept.headers {
            // What belongs to the connection is made anew.
            if name == header::DATE.as_str() || name == header::CONTENT_LENGTH.as_str() {
                continue;
            }
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().append(name, value);
            }
        }
        response.headers_mut().insert(REPEATED, HeaderValue::from_static("true"));
        Ok(response)
    }
}
