//! Custom resources over real HTTP: every form, every document, every refusal.

mod support;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{Cluster, cluster};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

fn definition() -> Value {
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {
    "group": "example.com", "scope": "Namespaced",
    "names": {"plural": "widgets", "kind": "Widget", "listKind": "WidgetCollection", "shortNames": ["w"], "categories": ["all"]},
    "versions": [
        {"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
            "additionalPrinterColumns": [
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How large", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            "schema": {"openAPIV3Schema": {"type": "object", "description": "Of use", "properties": {
                "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1},
                    "inner": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}},
                "status": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}},
        {"name": "v1alpha1", "served": true, "storage": false, "deprecated": true, "deprecationWarning": "use v1",
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
    ]}})
}

/// Plays the controller that establishes definitions.
async fn define(cluster: &Cluster) {
    let made = cluster.admin_send("POST", DEFINITIONS, definition()).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let status = json!({"status": {"acceptedNames": made.json()["spec"]["names"], "conditions": [
        {"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]}});
    let set = cluster.admin_send("PATCH", &format!("{DEFINITIONS}/widgets.example.com/status"), status).await;
    assert_eq!(set.code, 200, "{}", set.text());
}

#[tokio::test]
async fn custom_objects_have_every_form() {
    let cluster = cluster().await;
    let before = cluster.admin_send("GET", WIDGETS, Value::Null).await;
    assert_eq!(
        (before.code, before.json()["message"].clone()),
        (404, json!("the server could not find the requested resource"))
    );
    define(&cluster).await;
    let made = cluster
        .admin_send(
            "POST",
            WIDGETS,
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {}}),
        )
        .await;
    assert_eq!(made.code, 201, "{}", made.text());
    let admin = cluster.admin();
    let one = &format!("{WIDGETS}/a");
    let all = "/apis/example.com/v1/widgets";
    for (path, accept, code, pointer, wanted) in [
        (one.as_str(), "application/json", 200, "/spec/size", json!(1)),
        (one, "application/json", 200, "/metadata/generation", json!(1)),
        (one, "application/vnd.kubernetes.protobuf, application/json", 200, "/kind", json!("Widget")),
        (one, "application/vnd.kubernetes.protobuf", 406, "/reason", json!("NotAcceptable")),
        (WIDGETS, "", 200, "/kind", json!("WidgetCollection")),
        (WIDGETS, "", 200, "/items/0/kind", json!("Widget")),
        (WIDGETS, "", 200, "/items/0/apiVersion", json!("example.com/v1")),
        (all, TABLE, 200, "/columnDefinitions/0/name", json!("Name")),
        (all, TABLE, 200, "/columnDefinitions/1/description", json!("How large")),
        (all, TABLE, 200, "/columnDefinitions/1/priority", json!(1)),
        (all, TABLE, 200, "/columnDefinitions/2/type", json!("date")),
        (all, TABLE, 200, "/rows/0/cells/1", json!(1)),
        (
            all,
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            200,
            "/items/0/metadata/name",
            json!("a"),
        ),
        (
            "/apis/example.com/v1alpha1/namespaces/default/widgets/a",
            "",
            200,
            "/apiVersion",
            json!("example.com/v1alpha1"),
        ),
        ("/apis/example.com/v1alpha1/widgets", TABLE, 200, "/columnDefinitions/1/name", json!("Age")),
        ("/apis/example.com/v2/widgets", "", 404, "/reason", json!("NotFound")),
        ("/apis/example.com/v1/widgets/a", "", 404, "/reason", json!("NotFound")),
        (&format!("{one}/scale"), "", 200, "/spec/replicas", json!(1)),
        (&format!("{one}/log"), "", 404, "/reason", json!("NotFound")),
        (
            "/apis/example.com/v1alpha1/namespaces/default/widgets/a/status",
            "",
            404,
            "/reason",
            json!("NotFound"),
        ),
    ] {
        let headers: Vec<(&str, &str)> = if accept.is_empty() { vec![] } else { vec![("accept", accept)] };
        let answer = cluster.send(Some(&admin), "GET", path, &headers, "").await;
        assert_eq!(answer.code, code, "{path} {accept}: {}", answer.text());
        if !answer.header("content-type").contains("protobuf") {
            let got = answer.json().pointer(pointer).cloned().unwrap_or_default();
            assert_eq!(got, wanted, "{path} {accept} {pointer}: {}", answer.text());
        }
    }
    let old = cluster.admin_send("GET", "/apis/example.com/v1alpha1/widgets", Value::Null).await;
    assert_eq!(old.header("warning"), "299 - \"use v1\"");
    let metrics = cluster.admin_send("GET", "/metrics", Value::Null).await.text();
    assert!(metrics.contains("group=\"example.com\",version=\"v1\",resource=\"widgets\""), "{metrics}");
}

#[tokio::test]
async fn bodies_are_checked_as_upstream_checks_them() {
    let cluster = cluster().await;
    define(&cluster).await;
    let admin = cluster.admin();
    let whole = |rest: &str| {
        format!(
            "{{\"apiVersion\":\"example.com/v1\",\"kind\":\"Widget\",\"metadata\":{{\"name\":\"x\"}},{rest}}}"
        )
    };
    let (json_type, merge) = ("application/json", "application/merge-patch+json");
    let created = cluster.admin_send("POST", WIDGETS, json!({"metadata": {"name": "there"}})).await;
    assert_eq!(created.code, 201);
    for (method, path, kind, body, code, message) in [
        (
            "POST",
            "?fieldValidation=Strict",
            json_type,
            whole("\"spec\":{\"size\":1,\"size\":2,\"odd\":1}"),
            400,
            "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: duplicate field \"spec.size\", unknown field \"spec.odd\"",
        ),
        (
            "POST",
            "?fieldValidation=Strict",
            json_type,
            whole("\"odd\":1").replace("\"name\":\"x\"", "\"name\":\"x\",\"odd\":1"),
            400,
            "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"metadata.odd\", unknown field \"odd\"",
        ),
        (
            "POST",
            "",
            json_type,
            whole("\"spec\":{\"size\":\"1\"}"),
            422,
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            "POST",
            "",
            json_type,
            whole("\"spec\":{}").replace("Widget", "Gadget"),
            400,
            "Gadget in version \"v1\" cannot be handled as a Widget: no kind \"Gadget\" is registered",
        ),
        (
            "POST",
            "",
            "application/vnd.kubernetes.protobuf",
            "k8s".to_owned(),
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml",
        ),
        (
            "PATCH",
            "/there",
            "application/strategic-merge-patch+json",
            "{}".to_owned(),
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        ),
        (
            "PATCH",
            "/there?fieldValidation=Strict",
            merge,
            "{\"spec\":{\"odd\":1}}".to_owned(),
            422,
            " \"\" is invalid: patch: Invalid value: \"{\\\"spec\\\":{\\\"odd\\\":1}}\": strict decoding error: unknown field \"spec.odd\"",
        ),
        (
            "PATCH",
            "/there/scale",
            merge,
            "{\"spec\":{\"replicas\":-1}}".to_owned(),
            422,
            "Scale.autoscaling \"there\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "POST",
            "",
            json_type,
            whole("\"spec\":{\"inner\":{\"kind\":\"Pod\"}}"),
            422,
            "Widget.example.com \"x\" is invalid: spec.inner.apiVersion: Required value",
        ),
        (
            "PATCH",
            "/new?fieldManager=me",
            "application/apply-patch+yaml",
            "apiVersion: example.com/v1\nkind: Widget\nodd: 1\n".to_owned(),
            500,
            "failed to create typed patch object (/; example.com/v1, Kind=Widget): .odd: field not declared in schema",
        ),
        (
            "PATCH",
            "/new?fieldManager=me&fieldValidation=Strict",
            "application/apply-patch+yaml",
            "apiVersion: example.com/v1\nkind: Widget\nspec:\n  size: 1\n  size: 2\n".to_owned(),
            400,
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 5: key \"size\" already set in map",
        ),
    ] {
        let answer = cluster
            .send(Some(&admin), method, &format!("{WIDGETS}{path}"), &[("content-type", kind)], body.clone())
            .await;
        assert_eq!(answer.code, code, "{method} {path} {body}: {}", answer.text());
        let said = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(
            said.starts_with(message) || said.contains(message),
            "{method} {path} {body}:\n{said}\n{message}"
        );
    }
    let warned = cluster
        .send(Some(&admin), "POST", WIDGETS, &[("content-type", json_type)], whole("\"spec\":{\"odd\":1}"))
        .await;
    assert_eq!((warned.code, warned.header("warning")), (201, "299 - \"unknown field \\\"spec.odd\\\"\""));
    assert_eq!(warned.json()["spec"], json!({"size": 1}));
    let dry = cluster
        .admin_send(
            "POST",
            &format!("{WIDGETS}?dryRun=All"),
            json!({"metadata": {"name": "dry"}, "spec": {}}),
        )
        .await;
    assert_eq!((dry.code, dry.json()["spec"]["size"].clone()), (201, json!(1)), "{}", dry.text());
    assert_eq!(cluster.admin_send("GET", &format!("{WIDGETS}/dry"), Value::Null).await.code, 404);
}

#[tokio::test]
async fn documents_show_custom_resources_while_they_are_served() {
    let cluster = cluster().await;
    let admin = cluster.admin();
    let get = |path: &'static str, accept: &'static str| {
        let (cluster, admin) = (&cluster, &admin);
        async move { cluster.send(Some(admin), "GET", path, &[("accept", accept)], "").await }
    };
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let plain = get("/apis", "application/json").await;
    assert!(!plain.text().contains("example.com"));
    let none = get("/apis/example.com", "application/json").await;
    assert_eq!(none.code, 404);
    let index = get("/openapi/v3", "application/json").await;
    define(&cluster).await;
    for (path, accept, wanted) in [
        (
            "/apis",
            "application/json",
            "{\"name\":\"example.com\",\"preferredVersion\":{\"groupVersion\":\"example.com/v1\",\"version\":\"v1\"}",
        ),
        (
            "/apis",
            AGGREGATED,
            "\"responseKind\":{\"group\":\"example.com\",\"kind\":\"Widget\",\"version\":\"v1\"}",
        ),
        ("/apis/example.com", "application/json", "\"groupVersion\":\"example.com/v1alpha1\""),
        ("/apis/example.com/v1", "application/json", "\"name\":\"widgets/scale\""),
        ("/apis/example.com/v1", "application/json", "\"categories\":[\"all\"]"),
        ("/openapi/v2", "application/json", "\"com.example.v1.Widget\":{\"description\":\"Of use\""),
        ("/openapi/v3", "application/json", "apis/example.com/v1alpha1?hash="),
        (
            "/openapi/v3/apis/example.com/v1",
            "application/json",
            "\"#/components/schemas/com.example.v1.Widget\"",
        ),
        ("/", "application/json", "/apis/example.com/v1alpha1"),
    ] {
        let answer = get(path, accept).await;
        assert_eq!(answer.code, 200, "{path}");
        assert!(answer.text().contains(wanted), "{path} {accept} lacks {wanted}: {:.4000}", answer.text());
    }
    let protobuf = get("/openapi/v2", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf").await;
    assert!(protobuf.body.windows(21).any(|part| part == b"com.example.v1.Widget"));
    let then = get("/openapi/v3", "application/json").await;
    assert_ne!(then.header("etag"), index.header("etag"));
    let gone = cluster.admin_send("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    assert_eq!((gone.code, gone.json()["kind"].clone()), (200, json!("CustomResourceDefinition")));
    let ending = get("/apis/example.com/v1", "application/json").await;
    assert!(!ending.text().contains("\"create\""), "{}", ending.text());
    let free = json!({"metadata": {"finalizers": null}});
    assert_eq!(
        cluster.admin_send("PATCH", &format!("{DEFINITIONS}/widgets.example.com"), free).await.code,
        200
    );
    assert_eq!(get("/apis/example.com/v1", "application/json").await.code, 404);
    assert_eq!(get("/openapi/v3", "application/json").await.header("etag"), index.header("etag"));
}

#[tokio::test]
async fn a_watch_ends_with_its_definition() {
    let cluster = cluster().await;
    define(&cluster).await;
    let admin = cluster.admin();
    let response =
        cluster.open(Some(&admin), "GET", &format!("{WIDGETS}?watch=1&resourceVersion=0"), &[], "").await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    cluster.admin_send("POST", WIDGETS, json!({"metadata": {"name": "a"}})).await;
    let free = json!({"metadata": {"finalizers": null}});
    cluster.admin_send("DELETE", &format!("{WIDGETS}/a"), Value::Null).await;
    cluster.admin_send("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    cluster.admin_send("PATCH", &format!("{DEFINITIONS}/widgets.example.com"), free).await;
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.unwrap().into_data() {
            all.extend_from_slice(&data);
        }
    }
    let events: Vec<Value> =
        String::from_utf8(all).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds, ["ADDED", "DELETED"]);
    assert_eq!(events[0]["object"]["apiVersion"], "example.com/v1");
}
