//! A manager that is one table in memory, with the REST API that the provider uses and switches for what
//! goes wrong in the world: no answer, refusals, pools that never come up.
//!
//! Not here: what the real one decides; `tests/tests/terraform.rs` drives that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use base_net::pki::{Ca, Profile, YEAR};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub const TOKEN: &str = "rs_fake";

#[derive(Debug, Default)]
pub struct World {
    pub clusters: Vec<Value>,
    pub pools: Vec<Value>,
    pub join_tokens: Vec<Value>,
    pub tokens: Vec<Value>,
    /// First answers, by key.
    answers: HashMap<String, (String, StatusCode, Value)>,
    operations: u32,
    /// `METHOD path`, in order, of everything but reads.
    pub changes: Vec<String>,
    /// Changes are made and never answered.
    pub silent: bool,
    /// So many creations are made, and then said to be going on still, as after a crash of the manager.
    pub still_running: u32,
    /// Every request is refused with this.
    pub refuse: Option<u16>,
    /// State of new and changed pools, and their message; `ready` else.
    pub pool_state: Option<(&'static str, &'static str)>,
}

#[derive(Clone)]
pub struct Fake {
    world: Arc<Mutex<World>>,
    kubeconfig: Arc<String>,
    pub server: String,
    pub ca_pem: String,
}

impl Fake {
    /// Serves on a port of its own, on `runtime`, for as long as that lives.
    pub fn start(runtime: &tokio::runtime::Runtime) -> anyhow::Result<Fake> {
        let ca = Ca::generate("fake")?;
        let identity = ca.issue(&Profile {
            common_name: "manager".to_owned(),
            ip_addresses: vec!["127.0.0.1".parse()?],
            server: true,
            lifetime: YEAR,
            ..Profile::default()
        })?;
        let person = ca.issue(&Profile {
            common_name: "ann".to_owned(),
            client: true,
            lifetime: YEAR,
            ..Profile::default()
        })?;
        let data = |text: &str| STANDARD.encode(text);
        let kubeconfig = serde_json::to_string(&json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {
                "server": "https://127.0.0.1:6443",
                "tls-server-name": "c1.roadstead.local",
                "certificate-authority-data": data(ca.cert_pem()),
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate-data": data(&person.cert_pem),
                "client-key-data": data(&person.key_pem),
            }}],
        }))?;
        let acceptor = TlsAcceptor::from(base_net::tls::server(&identity, None, &["http/1.1"])?);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let fake = Fake {
            world: Arc::default(),
            kubeconfig: Arc::new(kubeconfig),
            server: format!("https://{}", listener.local_addr()?),
            ca_pem: ca.cert_pem().to_owned(),
        };
        let app = Router::new().fallback(serve).with_state(fake.clone());
        runtime.spawn(async move { axum::serve(Tls { listener, acceptor }, app).await });
        Ok(fake)
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;
    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }
    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn serve(
    State(fake): State<Fake>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (status, answer, silent, going_on) = {
        let mut world = fake.world();
        let (mut status, mut answer) = if text("authorization") != format!("Bearer {TOKEN}") {
            problem(401, "sign in first")
        } else if let Some(status) = world.refuse {
            problem(status, "not today")
        } else {
            let body = String::from_utf8_lossy(&body).into_owned();
            world.keyed(&fake, &method, uri.path(), text("idempotency-key"), &body)
        };
        let going_on = method == Method::POST && world.still_running > 0;
        if going_on {
            world.still_running -= 1;
            (status, answer) = problem(409, "the first request with this key is not answered yet");
        }
        (status, answer, world.silent && method != Method::GET, going_on)
    };
    if silent {
        // The change is made; its answer is lost.
        std::future::pending::<()>().await;
    }
    let kind = if status.is_success() { "application/json" } else { "application/problem+json" };
    let body = if status == StatusCode::NO_CONTENT { String::new() } else { answer.to_string() };
    let mut response = (status, [("content-type", kind)], body).into_response();
    if going_on {
        response.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
    }
    response
}

fn problem(status: u16, detail: &str) -> (StatusCode, Value) {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let title = code.canonical_reason().unwrap_or_default();
    (code, json!({"type": "about:blank", "title": title, "status": status, "detail": detail}))
}

fn is(object: &Value, reference: &str) -> bool {
    object["id"] == reference || object["name"] == reference
}

impl World {
    fn keyed(
        &mut self,
        fake: &Fake,
        method: &Method,
        path: &str,
        key: &str,
        body: &str,
    ) -> (StatusCode, Value) {
        if let Some((first, status, answer)) = self.answers.get(key) {
            return if first == body { (*status, answer.clone()) } else { problem(422, "another body") };
        }
        if *method != Method::GET {
            self.changes.push(format!("{method} {path}"));
        }
        let request: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        let path = path.strip_prefix("/api/v1/").unwrap_or_default();
        let parts: Vec<&str> = path.split('/').collect();
        let (status, answer) = self.answer(fake, method.as_str(), &parts, &request);
        if !key.is_empty() {
            self.answers.insert(key.to_owned(), (body.to_owned(), status, answer.clone()));
        }
        (status, answer)
    }

    fn answer(&mut self, fake: &Fake, method: &str, parts: &[&str], request: &Value) -> (StatusCode, Value) {
        let missing = |what: &str| problem(404, &format!("no such {what}"));
        match (method, parts) {
            ("GET", ["versions"]) => page(&[json!({"version": "v1.36.0", "default": true})]),
            ("GET", ["tokens"]) => page(&self.tokens),
            ("POST", ["tokens"]) => {
                let mut token = request.clone();
                token["id"] = id(9, self.changes.len()).into();
                token["created_at"] = "2026-01-01T00:00:00Z".into();
                self.tokens.push(token.clone());
                token["secret"] = format!("rs_secret{}", self.tokens.len()).into();
                (StatusCode::CREATED, token)
            }
            ("DELETE", ["tokens", token]) => {
                self.tokens.retain(|one| one["id"] != **token);
                (StatusCode::NO_CONTENT, Value::Null)
            }
            (_, ["organizations", org, ..]) if *org != "acme" => missing("organization"),
            ("GET", [_, _, "operations", operation]) => (StatusCode::OK, finished(operation)),
            ("POST", [_, org, "clusters"]) => {
                if self.clusters.iter().any(|one| one["name"] == request["name"]) {
                    return problem(409, "a cluster of this name exists");
                }
                let mut cluster = json!({
                    "id": id(1, self.changes.len()), "organization": org, "state": "ready",
                    "kubernetes_version": "v1.36.0", "replicas": 1, "cells": [], "labels": {},
                    "server_name": "c1.roadstead.local", "created_at": "2026-01-01T00:00:00Z",
                });
                merge(&mut cluster, request);
                self.clusters.push(cluster.clone());
                (StatusCode::CREATED, cluster)
            }
            (_, [_, _, "clusters", cluster, rest @ ..]) => {
                let Some(at) = self.clusters.iter().position(|one| is(one, cluster)) else {
                    return missing("cluster");
                };
                self.of_cluster(fake, method, at, rest, request)
            }
            _ => missing("path"),
        }
    }

    fn of_cluster(
        &mut self,
        fake: &Fake,
        method: &str,
        at: usize,
        parts: &[&str],
        request: &Value,
    ) -> (StatusCode, Value) {
        let name = self.clusters[at]["name"].clone();
        match (method, parts) {
            ("GET", []) => (StatusCode::OK, self.clusters[at].clone()),
            ("PATCH", []) => {
                merge(&mut self.clusters[at], request);
                (StatusCode::OK, self.clusters[at].clone())
            }
            ("DELETE", []) => {
                self.clusters.remove(at);
                self.begun()
            }
            ("POST", ["kubeconfig"]) => (
                StatusCode::CREATED,
                json!({"kubeconfig": *fake.kubeconfig, "expires_at": "2999-01-01T00:00:00Z"}),
            ),
            ("GET", ["join-tokens"]) => page(&self.join_tokens),
            ("POST", ["join-tokens"]) => {
                let number = self.changes.len();
                let token = format!("aaa{number:03}");
                self.join_tokens.push(json!({
                    "id": token, "description": request["description"].as_str().unwrap_or_default(),
                    "expires_at": "2999-01-01T00:00:00Z",
                }));
                let answer = json!({
                    "id": token, "token": format!("{token}.0123456789abcdef"), "ca_cert_hash": "sha256:00",
                    "server": "https://127.0.0.1:6443", "tls_server_name": "c1.roadstead.local",
                    "command": format!("roadstead node join --token {token}.0123456789abcdef"),
                    "expires_at": "2999-01-01T00:00:00Z",
                });
                (StatusCode::CREATED, answer)
            }
            ("DELETE", ["join-tokens", token]) => {
                self.join_tokens.retain(|one| one["id"] != **token);
                (StatusCode::NO_CONTENT, Value::Null)
            }
            ("POST", ["nodepools"]) => {
                let mut pool = json!({
                    "id": id(2, self.changes.len()), "cluster": name, "provider": "local",
                    "machine_type": "small", "labels": {}, "taints": [], "machines": [],
                    "created_at": "2026-01-01T00:00:00Z",
                });
                merge(&mut pool, request);
                self.stand(&mut pool);
                self.pools.push(pool.clone());
                (StatusCode::CREATED, pool)
            }
            (_, ["nodepools", pool]) => {
                let Some(at) = self.pools.iter().position(|one| is(one, pool)) else {
                    return problem(404, "no such node pool");
                };
                match method {
                    "PATCH" => {
                        let mut pool = self.pools[at].clone();
                        merge(&mut pool, request);
                        self.stand(&mut pool);
                        self.pools[at] = pool;
                    }
                    "DELETE" => {
                        self.pools.remove(at);
                        return self.begun();
                    }
                    _ => {}
                }
                (StatusCode::OK, self.pools[at].clone())
            }
            _ => problem(404, "no such path"),
        }
    }

    fn stand(&self, pool: &mut Value) {
        let (state, message) = self.pool_state.unwrap_or(("ready", ""));
        pool["state"] = state.into();
        pool["message"] = message.into();
        pool["ready"] = if state == "ready" { pool["size"].clone() } else { 0.into() };
    }

    fn begun(&mut self) -> (StatusCode, Value) {
        self.operations += 1;
        (StatusCode::ACCEPTED, finished(&id(3, self.operations as usize)))
    }
}

fn id(kind: usize, number: usize) -> String {
    format!("01938f5e-7c1a-7c3b-9d1f-{kind:04}{number:08}")
}

fn finished(id: &str) -> Value {
    json!({
        "id": id, "kind": "cluster.delete", "organization": "acme", "target": "x", "state": "succeeded",
        "progress": 100, "message": "", "created_at": "2026-01-01T00:00:00Z",
    })
}

fn page(items: &[Value]) -> (StatusCode, Value) {
    (StatusCode::OK, json!({"items": items}))
}

/// RFC 7396.
fn merge(object: &mut Value, patch: &Value) {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(object.remove(key)),
            Value::Object(_) => merge(object.entry(key.clone()).or_insert_with(|| json!({})), value),
            value => drop(object.insert(key.clone(), value.clone())),
        }
    }
}
