//! Webhooks behind real TLS on loopback.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::Document;
use base64::Engine;
use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tenant_outbound::testing::{OneService, TlsServer};
use tenant_outbound::{ClusterOutbound, Egress, EgressConfig};

use super::{MutatingWebhooks, ValidatingWebhooks};
use crate::attributes::Operation;
use crate::chain::{Admission, Chain};
use crate::testing::{Cluster, request};

fn base64(bytes: impl AsRef<[u8]>) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A webhook server that answers by path, and what it was asked.
struct Hooks {
    server: TlsServer,
    asked: Arc<Mutex<Vec<Value>>>,
    outbound: Arc<ClusterOutbound>,
}

impl Hooks {
    async fn start() -> Hooks {
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = asked.clone();
        let server = TlsServer::start(&["127.0.0.1"], move |request| {
            let mut review: Value = serde_json::from_slice(request.body()).unwrap();
            review["path"] = request.uri().path().into();
            review["query"] = request.uri().query().unwrap_or_default().into();
            seen.lock().push(review.clone());
            answer(&request, &review)
        })
        .await;
        let allow = vec![server.address.to_string()];
        let egress = Egress::new(&EgressConfig { allow, ..EgressConfig::default() }).unwrap();
        let directory = Arc::new(OneService(Vec::new()));
        let outbound = ClusterOutbound::new(directory, None, egress, base_net::tasks::Tasks::new());
        Hooks { server, asked, outbound }
    }

    /// A webhook that is asked at `path`, with whatever else it has.
    fn hook(&self, name: &str, path: &str, more: Value) -> Value {
        let mut hook = json!({
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 1,
            "failurePolicy": "Fail",
            "clientConfig": {"url": format!("https://{}{path}", self.server.address), "caBundle": base64(&self.server.ca_pem)},
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*", "*/*"]}],
        });
        hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        hook
    }

    /// Paths that were asked since the last time.
    fn paths(&self) -> Vec<String> {
        self.asked.lock().drain(..).map(|review| review["path"].as_str().unwrap().to_owned()).collect()
    }
}

fn answer(_request: &Request<Bytes>, review: &Value) -> Response<Bytes> {
    let path = review["path"].as_str().unwrap();
    let mut response = json!({"uid": review["request"]["uid"], "allowed": true});
    let patch = |operations: Value| base64(operations.to_string());
    let data = review.pointer("/request/object/data").cloned().unwrap_or_default();
    match path {
        "/deny" => {
            response["allowed"] = false.into();
            response["status"] = json!({"message": "not on a Friday", "reason": "Friday", "code": 403});
        }
        "/warn" => {
            response["warnings"] = json!(["think twice"]);
            response["auditAnnotations"] = json!({"who": "me"});
        }
        "/other-uid" => response["uid"] = "other".into(),
        "/patch-a" | "/patch-b" => {
            let key = path.trim_start_matches("/patch-");
            if data.get(key).is_none() {
                response["patch"] =
                    patch(json!([{"op": "add", "path": format!("/data/{key}"), "value": "yes"}])).into();
                response["patchType"] = "JSONPatch".into();
            }
        }
        "/rename" => {
            response["patch"] =
                patch(json!([{"op": "replace", "path": "/metadata/name", "value": "y"}])).into();
            response["patchType"] = "JSONPatch".into();
        }
        "/does-not-apply" => {
            response["patch"] = patch(json!([{"op": "remove", "path": "/nothing"}])).into();
            response["patchType"] = "JSONPatch".into();
        }
        "/500" => return Response::builder().status(500).body(Bytes::from_static(b"boom")).unwrap(),
        "/404" => return Response::builder().status(404).body(Bytes::new()).unwrap(),
        "/302" => {
            let to = "https://169.254.169.254/";
            return Response::builder().status(302).header("location", to).body(Bytes::new()).unwrap();
        }
        "/garbage" => return Response::new(Bytes::from_static(b"<html>")),
        _ => {}
    }
    let review =
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    let mut response = Response::new(Bytes::from(review.to_string()));
    if path == "/slow" {
        response.extensions_mut().insert(Duration::from_secs(20));
    }
    response
}

fn config_map(data: Value) -> Document {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "ns"}, "data": data});
    Document::from_value(value).unwrap()
}

const MUTATING: &str = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

#[tokio::test]
async fn what_a_webhook_says_is_what_a_client_hears() {
    let hooks = Hooks::start().await;
    let base = format!("https://{}", hooks.server.address);
    let unreachable = json!({"clientConfig": {"url": "https://127.0.0.1:1/x"}});
    let (ignore, no_dry_run) = (json!({"failurePolicy": "Ignore"}), json!({"sideEffects": "Some"}));
    let failed =
        |why: &str| format!("500 Internal error occurred: failed calling webhook \"h.example.com\": {why}");
    for (path, more, dry_run, wanted) in [
        ("/allow", json!({}), false, "yes".to_owned()),
        (
            "/deny",
            json!({}),
            false,
            "403 admission webhook \"h.example.com\" denied the request: not on a Friday".to_owned(),
        ),
        (
            "/deny",
            ignore.clone(),
            false,
            "403 admission webhook \"h.example.com\" denied the request: not on a Friday".to_owned(),
        ),
        ("/allow", no_dry_run.clone(), false, "yes".to_owned()),
        (
            "/allow",
            no_dry_run,
            true,
            "400 admission webhook \"h.example.com\" does not support dry run".to_owned(),
        ),
        ("/allow", json!({"sideEffects": "NoneOnDryRun"}), true, "yes".to_owned()),
        (
            "/slow",
            json!({}),
            false,
            failed(&format!(
                "failed to call webhook: Post \"{base}/slow?timeout=1s\": context deadline exceeded"
            )),
        ),
        ("/slow", ignore.clone(), false, "yes".to_owned()),
        (
            "/500",
            json!({}),
            false,
            failed(
                "failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding",
            ),
        ),
        (
            "/404",
            json!({}),
            false,
            failed("failed to call webhook: the server could not find the requested resource"),
        ),
        (
            "/302",
            json!({}),
            false,
            failed(
                "failed to call webhook: the webhook answered with a redirect (302), which is not followed",
            ),
        ),
        ("/302", ignore.clone(), false, "yes".to_owned()),
        ("/garbage", ignore.clone(), false, "yes".to_owned()),
        (
            "/x",
            unreachable,
            false,
            failed(
                "failed to call webhook: Post \"https://127.0.0.1:1/x?timeout=1s\": dial tcp 127.0.0.1:1: address not allowed",
            ),
        ),
        (
            "/allow",
            json!({"admissionReviewVersions": ["v9"]}),
            false,
            failed(
                "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)",
            ),
        ),
    ] {
        let mut cluster = Cluster::default();
        let hook = hooks.hook("h.example.com", path, more.clone());
        for kind in [MUTATING, VALIDATING] {
            cluster.put(kind, json!({"metadata": {"name": "c"}, "webhooks": [hook]}));
        }
        let mut request = request(&cluster, Operation::Create, "v1/configmaps", "", "ns", "x");
        request.dry_run = dry_run;
        let object = config_map(json!({}));
        let mutating = MutatingWebhooks::new(hooks.outbound.clone());
        let validating = ValidatingWebhooks::new(hooks.outbound.clone());
        let admitted = mutating.admit(&request.attributes(), Some(&mut object.clone()), None).await;
        let validated = validating.validate(&request.attributes(), Some(&object), None).await.map(drop);
        for got in [admitted, validated] {
            let got = got
                .map_or_else(|status| format!("{} {}", status.code, status.message), |()| "yes".to_owned());
            assert_eq!(got, wanted, "{path} {more}");
        }
    }
}

#[tokio::test]
async fn an_answer_to_another_question_is_none() {
    let hooks = Hooks::start().await;
    let mut cluster = Cluster::default();
    let hook = hooks.hook("h.example.com", "/other-uid", json!({}));
    cluster.put(VALIDATING, json!({"metadata": {"name": "c"}, "webhooks": [hook]}));
    let request = request(&cluster, Operation::Create, "v1/configmaps", "", "ns", "x");
    let plugin = ValidatingWebhooks::new(hooks.outbound.clone());
    let refused =
        plugin.validate(&request.attributes(), Some(&config_map(json!({}))), None).await.unwrap_err();
    assert!(
        refused.message.contains("received invalid webhook response: expected response.uid="),
        "{refused}"
    );
}

#[tokio::test]
async fn mutations_build_on_each_other_and_are_repeated_when_asked_for() {
    let hooks = Hooks::start().await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    for (webhooks, data, wanted, order) in [
        // One after the other, in the order of configurations' names.
        (
            vec![("1", "/patch-a", json!({})), ("2", "/patch-b", json!({}))],
            json!({}),
            json!({"a": "yes", "b": "yes"}),
            vec!["/patch-a", "/patch-b"],
        ),
        (
            vec![("2", "/patch-a", json!({})), ("1", "/patch-b", json!({}))],
            json!({}),
            json!({"a": "yes", "b": "yes"}),
            vec!["/patch-b", "/patch-a"],
        ),
        // Nothing to change, nothing to repeat.
        (
            vec![("1", "/patch-a", again.clone())],
            json!({"a": "mine"}),
            json!({"a": "mine"}),
            vec!["/patch-a"],
        ),
        // Its own change is no reason to ask it again.
        (vec![("1", "/patch-a", again.clone())], json!({}), json!({"a": "yes"}), vec!["/patch-a"]),
        // Somebody changed the object after it.
        (
            vec![("1", "/patch-a", again.clone()), ("2", "/patch-b", again.clone())],
            json!({}),
            json!({"a": "yes", "b": "yes"}),
            vec!["/patch-a", "/patch-b", "/patch-a"],
        ),
        (
            vec![("1", "/allow", again), ("2", "/patch-b", json!({}))],
            json!({}),
            json!({"b": "yes"}),
            vec!["/allow", "/patch-b", "/allow"],
        ),
    ] {
        let mut cluster = Cluster::default();
        for (configuration, path, more) in &webhooks {
            let hook = hooks.hook("h.example.com", path, more.clone());
            cluster.put(MUTATING, json!({"metadata": {"name": configuration}, "webhooks": [hook]}));
        }
        let request = request(&cluster, Operation::Create, "v1/configmaps", "", "ns", "x");
        let chain = Chain::new(vec![Arc::new(MutatingWebhooks::new(hooks.outbound.clone()))]);
        let mut object = config_map(data);
        chain.admit(&request.attributes(), Some(&mut object), None).await.unwrap();
        assert_eq!(object.get("data"), Some(&wanted), "{webhooks:?}");
        assert_eq!(hooks.paths(), order, "{webhooks:?}");
    }
}

#[tokio::test]
async fn a_patch_cannot_make_another_object_of_it() {
    let hooks = Hooks::start().await;
    for (path, operation, has_object, wanted) in [
        (
            "/rename",
            Operation::Create,
            true,
            "Internal error occurred: admission webhook \"h.example.com\" changed metadata.name from \"x\" to \"y\", which is not allowed",
        ),
        (
            "/does-not-apply",
            Operation::Create,
            true,
            "Internal error occurred: remove operation does not apply: doc is missing path: \"/nothing\": missing value",
        ),
        (
            "/rename",
            Operation::Delete,
            false,
            "Internal error occurred: admission webhook \"h.example.com\" attempted to modify the object, which is not supported for this operation",
        ),
    ] {
        let mut cluster = Cluster::default();
        let hook = hooks.hook("h.example.com", path, json!({}));
        cluster.put(MUTATING, json!({"metadata": {"name": "c"}, "webhooks": [hook]}));
        let request = request(&cluster, operation, "v1/configmaps", "", "ns", "x");
        let mut object = config_map(json!({}));
        let old = object.clone();
        let plugin = MutatingWebhooks::new(hooks.outbound.clone());
        let shown = has_object.then_some(&mut object);
        let refused = plugin.admit(&request.attributes(), shown, Some(&old)).await.unwrap_err();
        assert_eq!(refused.message, wanted, "{path}");
        assert_eq!(object, old, "nothing of it is kept");
    }
}

#[tokio::test]
async fn a_webhook_is_shown_the_version_it_asked_for_and_patches_that() {
    let hooks = Hooks::start().await;
    let mut cluster = Cluster::default();
    let rules = json!([{"operations": ["UPDATE"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "resources": ["horizontalpodautoscalers"]}]);
    let hook = hooks.hook("h.example.com", "/patch-a", json!({"rules": rules}));
    cluster.put(MUTATING, json!({"metadata": {"name": "c"}, "webhooks": [hook]}));
    let request =
        request(&cluster, Operation::Update, "autoscaling/v2/horizontalpodautoscalers", "", "ns", "x");
    let mut object = config_map(json!({}));
    object.set("apiVersion", "autoscaling/v2");
    object.set("kind", "HorizontalPodAutoscaler");
    let old = object.clone();
    let plugin = MutatingWebhooks::new(hooks.outbound.clone());
    plugin.admit(&request.attributes(), Some(&mut object), Some(&old)).await.unwrap();
    let asked = hooks.asked.lock().pop().unwrap();
    for (pointer, wanted) in [
        ("/request/object/apiVersion", "autoscaling/v1"),
        ("/request/oldObject/apiVersion", "autoscaling/v1"),
        ("/request/kind/version", "v1"),
        ("/request/requestKind/version", "v2"),
        ("/request/resource/version", "v1"),
        ("/request/requestResource/version", "v2"),
        ("/query", "timeout=1s"),
    ] {
        assert_eq!(asked.pointer(pointer), Some(&json!(wanted)), "{pointer}");
    }
    assert_eq!((object.api_version(), object.get_str("data.a")), ("autoscaling/v2", Some("yes")));
}

#[tokio::test]
async fn warnings_and_annotations_are_noted() {
    let hooks = Hooks::start().await;
    let mut cluster = Cluster::default();
    let two =
        [hooks.hook("w.example.com", "/warn", json!({})), hooks.hook("p.example.com", "/patch-a", json!({}))];
    cluster.put(MUTATING, json!({"metadata": {"name": "c"}, "webhooks": two}));
    let open = hooks.hook("o.example.com", "/500", json!({"failurePolicy": "Ignore"}));
    cluster.put(VALIDATING, json!({"metadata": {"name": "v"}, "webhooks": [open]}));
    let request = request(&cluster, Operation::Create, "v1/configmaps", "", "ns", "x");
    let mut object = config_map(json!({}));
    let mutating = MutatingWebhooks::new(hooks.outbound.clone());
    mutating.admit(&request.attributes(), Some(&mut object), None).await.unwrap();
    let validating = ValidatingWebhooks::new(hooks.outbound.clone());
    validating.validate(&request.attributes(), Some(&object), None).await.unwrap();
    assert_eq!(request.warnings.take(), ["think twice"]);
    let notes = request.annotations.take();
    for (key, wanted) in [
        ("w.example.com/who", "me".to_owned()),
        (
            "mutation.webhook.admission.k8s.io/round_0_index_0",
            json!({"configuration": "c", "webhook": "w.example.com", "mutated": false}).to_string(),
        ),
        (
            "mutation.webhook.admission.k8s.io/round_0_index_1",
            json!({"configuration": "c", "webhook": "p.example.com", "mutated": true}).to_string(),
        ),
        ("failed-open.validating.webhook.admission.k8s.io/round_0_index_0", "o.example.com".to_owned()),
    ] {
        assert_eq!(notes.get(key), Some(&wanted), "{notes:?}");
    }
    assert!(notes.contains_key("patch.webhook.admission.k8s.io/round_0_index_1"), "{notes:?}");
}

#[tokio::test]
async fn validating_webhooks_are_asked_at_the_same_time() {
    let hooks = Hooks::start().await;
    let mut cluster = Cluster::default();
    let slow: Vec<Value> = (0..4)
        .map(|at| hooks.hook(&format!("h{at}.example.com"), "/slow", json!({"failurePolicy": "Ignore"})))
        .collect();
    cluster.put(VALIDATING, json!({"metadata": {"name": "c"}, "webhooks": slow}));
    let request = request(&cluster, Operation::Create, "v1/configmaps", "", "ns", "x");
    let plugin = ValidatingWebhooks::new(hooks.outbound.clone());
    let started = std::time::Instant::now();
    plugin.validate(&request.attributes(), Some(&config_map(json!({}))), None).await.unwrap();
    assert_eq!(hooks.paths().len(), 4);
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "four timeouts of a second in {:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_dead_webhook_fails_fast_for_all_but_one() {
    let hooks = Hooks::start().await;
    let mut cluster = Cluster::default();
    cluster.put(
        VALIDATING,
        json!({"metadata": {"name": "c"}, "webhooks": [hooks.hook("h.example.com", "/slow", json!({}))]}),
    );
    let request = request(&cluster, Operation::Create, "v1/configmaps", "", "ns", "x");
    let plugin = ValidatingWebhooks::new(hooks.outbound.clone());
    let object = config_map(json!({}));
    let round = |requests: usize| {
        let (plugin, request, object) = (&plugin, &request, &object);
        async move {
            let asked = (0..requests).map(|_| async {
                let started = std::time::Instant::now();
                plugin.validate(&request.attributes(), Some(object), None).await.unwrap_err();
                started.elapsed() > Duration::from_millis(900)
            });
            futures::future::join_all(asked).await.into_iter().filter(|slow| *slow).count()
        }
    };
    assert_eq!(round(10).await, 10, "all find out together");
    assert_eq!(round(50).await, 1, "then one holds its seat for the others");
}
