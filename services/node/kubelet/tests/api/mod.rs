//! An API server of one node's needs, in memory: enough of the protocol to let a kubelet live.
//!
//! It stores documents by path, answers lists and watches, merges patches and finishes deletions. It checks
//! nothing: what the kubelet sends is the test's business to look at.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::{Mutex, broadcast};

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    changes: broadcast::Sender<(String, Value)>,
}

#[derive(Default)]
struct State {
    /// By path: `/api/v1/namespaces/blue/pods/web`.
    objects: BTreeMap<String, Value>,
    revision: u64,
    events: Vec<String>,
}

impl FakeApi {
    pub fn new() -> FakeApi {
        FakeApi { state: Arc::default(), changes: broadcast::channel(1000).0 }
    }

    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    pub async fn put(&self, path: &str, mut object: Value) {
        let mut state = self.state.lock().await;
        state.revision += 1;
        object["metadata"]["resourceVersion"] = state.revision.to_string().into();
        let kind = if state.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        state.objects.insert(path.to_owned(), object.clone());
        // Nobody may be watching.
        let _ = self.changes.send((path.to_owned(), json!({ "type": kind, "object": object })));
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().await.objects.get(path).cloned()
    }

    /// Reasons of the events so far.
    pub async fn events(&self) -> Vec<String> {
        self.state.lock().await.events.clone()
    }

    async fn remove(&self, path: &str) -> Option<Value> {
        let mut state = self.state.lock().await;
        state.revision += 1;
        let object = state.objects.remove(path)?;
        let _ = self.changes.send((path.to_owned(), json!({ "type": "DELETED", "object": object.clone() })));
        Some(object)
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let object_path = path.trim_end_matches("/status").to_owned();
        match parts.method {
            Method::GET if query.contains("watch=true") => self.watch(&path),
            Method::GET if path.ends_with("/pods") || path.ends_with("/services") => self.list(&path).await,
            Method::GET => match self.get(&path).await {
                Some(object) => answer(StatusCode::OK, &object),
                None => not_found(),
            },
            Method::POST if path.ends_with("/token") => {
                let token = json!({ "metadata": {}, "spec": body["spec"], "status": {
                    "token": "a-token", "expirationTimestamp": "2036-01-01T00:00:00Z" } });
                answer(StatusCode::CREATED, &token)
            }
            Method::POST => {
                if path.ends_with("/events") {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    self.state.lock().await.events.push(text(&body["reason"]));
                    println!("event {}: {}", text(&body["reason"]), text(&body["message"]));
                }
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                self.put(&format!("{path}/{name}"), body.clone()).await;
                answer(StatusCode::CREATED, &body)
            }
            Method::PATCH => match self.get(&object_path).await {
                Some(mut object) => {
                    merge(&mut object, &body);
                    self.put(&object_path, object.clone()).await;
                    answer(StatusCode::OK, &object)
                }
                None => not_found(),
            },
            Method::DELETE => match self.remove(&path).await {
                Some(object) => answer(StatusCode::OK, &object),
                None => not_found(),
            },
            _ => answer(StatusCode::METHOD_NOT_ALLOWED, &json!({})),
        }
    }

    async fn list(&self, path: &str) -> Response<Body> {
        let state = self.state.lock().await;
        let plural = path.rsplit('/').next().unwrap_or_default();
        let is_one = |key: &str| key.rsplit('/').nth(1) == Some(plural);
        let items: Vec<&Value> =
            state.objects.iter().filter(|(key, _)| is_one(key)).map(|(_, object)| object).collect();
        let meta = json!({ "resourceVersion": state.revision.to_string() });
        answer(
            StatusCode::OK,
            &json!({ "apiVersion": "v1", "kind": "List", "metadata": meta, "items": items }),
        )
    }

    fn watch(&self, path: &str) -> Response<Body> {
        let plural = path.rsplit('/').next().unwrap_or_default().to_owned();
        let changes = tokio_stream_of(self.changes.subscribe());
        let lines = changes.filter_map(move |(path, event)| {
            let mine = path.rsplit('/').nth(1) == Some(plural.as_str());
            let line = mine.then(|| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
            async move { line }
        });
        Response::new(BodyExt::boxed_unsync(StreamBody::new(lines)))
    }
}

fn tokio_stream_of<T: Clone + Send + 'static>(
    from: broadcast::Receiver<T>,
) -> impl futures::Stream<Item = T> + Send {
    futures::stream::unfold(from, |mut from| async move { from.recv().await.ok().map(|item| (item, from)) })
}

fn answer(status: StatusCode, object: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(object.to_string()));
    let mut response = Response::new(BodyExt::boxed_unsync(body));
    *response.status_mut() = status;
    response
}

fn not_found() -> Response<Body> {
    answer(
        StatusCode::NOT_FOUND,
        &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "not found", "reason": "NotFound", "code": 404 }),
    )
}

fn merge(object: &mut Value, patch: &Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    object.remove(key);
                } else {
                    merge(object.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (object, patch) => *object = patch.clone(),
    }
}
