//! Connections that stop being HTTP: upgrades passed through to a kubelet or a proxied server, and
//! WebSockets that this server itself sends on.
//!
//! Exec, attach and port-forward come as WebSocket (`v5.channel.k8s.io`, `v4.channel.k8s.io`, or SPDY inside
//! one) or as SPDY/3.1. The API server reads none of it: it repeats the client's handshake towards the
//! kubelet, answers with the kubelet's, and then carries bytes both ways.

use api_machinery::{Reason, Status};
use base64::Engine;
use bytes::Bytes;
use futures::{SinkExt, Stream, StreamExt};
use http::header::{
    CONNECTION, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

use crate::body::{Body, Response, empty, read_within};
use crate::frames::Apart;
use crate::kubelet::Kubelet;
use crate::pipeline::Call;

pub fn is_websocket(headers: &HeaderMap) -> bool {
    let has = |name, wanted: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|line| line.split(','))
            .any(|one| one.trim().eq_ignore_ascii_case(wanted))
    };
    has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

/// What exec and its kin need; everything else is told so before a kubelet is troubled.
pub fn require_upgrade(call: &Call) -> Result<(), Status> {
    let upgrade = call.header("upgrade").unwrap_or_default();
    if is_websocket(&call.headers) || upgrade.eq_ignore_ascii_case("SPDY/3.1") {
        return Ok(());
    }
    if upgrade.is_empty() {
        return Err(Status::bad_request("Upgrade request required"));
    }
    Err(Status::bad_request(format!("unable to upgrade to {upgrade}: expected websocket or SPDY/3.1")))
}

/// Repeats the client's upgrade towards `target` on a kubelet and joins the two connections.
pub async fn tunnel(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    mut kubelet: Kubelet,
    target: &str,
) -> Result<Response, Status> {
    let mut headers = call.headers.clone();
    // Who the client is was settled here; its credentials are none of the node's business.
    strip_credentials(&mut headers);
    if let Ok(host) = HeaderValue::from_str(kubelet.authority()) {
        headers.insert(HOST, host);
    }
    let request = build(call.method.clone(), target, headers, empty())?;
    let response = kubelet.forward(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(response).await);
    }
    join(call, upgrade, response)
}

/// Answers the client with the backend's 101 and carries bytes both ways until both are done.
pub fn join(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    mut response: http::Response<Body>,
) -> Result<Response, Status> {
    let client = upgrade.ok_or_else(|| Status::bad_request("Upgrade request required"))?;
    let backend = hyper::upgrade::on(&mut response);
    let frames = is_websocket(response.headers());
    let plane = call.plane.clone();
    let span = tracing::Span::current();
    plane.tasks.spawn(async move {
        let (client, backend) = match tokio::try_join!(client, backend) {
            Ok(both) => both,
            Err(cause) => {
                span.in_scope(|| tracing::debug!(error = %cause, "an upgrade did not happen"));
                return;
            }
        };
        let (client, backend) = (TokioIo::new(client), TokioIo::new(backend));
        let relayed = if frames {
            base_net::relay(client, Apart::new(backend)).await
        } else {
            base_net::relay(client, backend).await
        };
        if let Err(cause) = relayed {
            span.in_scope(|| tracing::debug!(error = %cause, "a tunnelled connection ended"));
        }
    });
    let (parts, _) = response.into_parts();
    let mut answer = Response::new(empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = parts.headers;
    Ok(answer)
}

pub fn build(
    method: Method,
    target: &str,
    headers: HeaderMap,
    body: Body,
) -> Result<http::Request<Body>, Status> {
    let mut request = http::Request::builder()
        .method(method)
        .uri(target)
        .body(body)
        .map_err(|_| Status::bad_request(format!("{target:?} is no path that can be requested")))?;
    *request.headers_mut() = headers;
    Ok(request)
}

pub fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(http::header::AUTHORIZATION);
    let named: Vec<_> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            name.starts_with("impersonate-") || name.starts_with("x-remote-")
        })
        .cloned()
        .collect();
    for name in named {
        headers.remove(name);
    }
    // A bearer token can hide among a WebSocket's subprotocols.
    let kept: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|one| !one.starts_with("base64url.bearer.authorization.k8s.io."))
        .map(str::to_owned)
        .collect();
    if headers.remove(SEC_WEBSOCKET_PROTOCOL).is_some()
        && !kept.is_empty()
        && let Ok(value) = HeaderValue::from_str(&kept.join(", "))
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

async fn refused(response: http::Response<Body>) -> Status {
    let code = response.status().as_u16();
    let body = read_within(response.into_body(), 64 * 1024).await.unwrap_or_default();
    if let Ok(status) = serde_json::from_slice::<Status>(&body)
        && status.code >= 400
    {
        return status;
    }
    let text = String::from_utf8_lossy(&body).trim().to_owned();
    match code {
        400 => Status::bad_request(text),
        500 => Status::internal(text),
        code if code >= 400 => Status::failure(code, Reason::Unknown, text),
        code => Status::internal(format!("unable to upgrade connection: the kubelet answered {code}")),
    }
}

/// Sends `chunks` as the messages of a WebSocket: logs and watches, for clients that have nothing else.
///
/// `protocols` are those the endpoint speaks; one that begins with `base64.` gets text messages.
pub fn send_websocket<S, E>(
    call: &Call,
    upgrade: Option<OnUpgrade>,
    chunks: S,
    protocols: &[&'static str],
) -> Result<Response, Status>
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: std::fmt::Display + Send,
{
    let key =
        call.header("sec-websocket-key").ok_or_else(|| Status::bad_request("not websocket protocol"))?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        .map_err(|_| Status::bad_request("bad WebSocket key"))?;
    let upgrade = upgrade.ok_or_else(|| Status::bad_request("Upgrade request required"))?;
    let asked: Vec<&str> = call
        .headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .collect();
    let chosen = asked.iter().find_map(|one| protocols.iter().find(|known| *known == one)).copied();
    let mut answer = Response::new(empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    headers.remove(SEC_WEBSOCKET_KEY);
    if let Some(protocol) = chosen {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    let base64 = chosen.is_some_and(|protocol| protocol.starts_with("base64."));
    // Watch events are text; logs are whatever the container wrote.
    let text = protocols.is_empty();
    call.plane.tasks.spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        let mut chunks = std::pin::pin!(chunks);
        loop {
            tokio::select! {
                chunk = chunks.next() => {
                    let Some(Ok(chunk)) = chunk else { break };
                    let message = if base64 {
                        Message::text(base64::engine::general_purpose::STANDARD.encode(&chunk))
                    } else if text {
                        Message::text(String::from_utf8_lossy(&chunk).into_owned())
                    } else {
                        Message::binary(chunk)
                    };
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
                // What the client says matters only when it leaves; pings are answered while reading.
                from = socket.next() => match from {
                    Some(Ok(Message::Close(_))) | Some(Err(_)) | None => return,
                    Some(Ok(_)) => {}
                },
            }
        }
        let _ = socket.close(None).await;
    });
    Ok(answer)
}
