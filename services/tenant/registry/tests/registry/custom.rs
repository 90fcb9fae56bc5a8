//! Custom resources, from their definition to the end of it.

use api_machinery::{Document, FieldSelector};
use serde_json::{Value, json};
use tenant_client::{DeleteOptions, Patch};
use tenant_outbound::{Connection, Destination, Limits, Outbound, OutboundError};
use tenant_registry::{Context, FieldValidation, ListOptions, WatchItem, WatchOptions};

use crate::support::*;

const DEFINITIONS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "example.com/v1/widgets";

/// A definition of widgets in `version`s.
fn definition(versions: Vec<Value>) -> Value {
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["w"]},
        "versions": versions}})
}
fn version(name: &str, storage: bool, spec: Value) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": spec, "status": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}}}})
}
fn with(mut version: Value, field: &str, value: Value) -> Value {
    version[field] = value;
    version
}
fn spec() -> Value {
    json!({"type": "object", "properties": {
        "replicas": {"type": "integer", "minimum": 0},
        "color": {"type": "string", "default": "blue"},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}}}})
}
fn widget(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

impl Cluster {
    /// Makes the definition and plays the controller that establishes it.
    async fn define(&self, definition: Value) -> Document {
        let made = self.create(DEFINITIONS, definition).await.unwrap();
        self.establish(made).await
    }
    async fn establish(&self, mut made: Document) -> Document {
        made.set("status.acceptedNames", made.get("spec.names").cloned().unwrap());
        made.set(
            "status.conditions",
            json!([
            {"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]),
        );
        self.status(DEFINITIONS, made).await.unwrap()
    }
    async fn redefine(&self, change: impl FnOnce(&mut Document)) {
        let mut definition = self.get(DEFINITIONS, "widgets.example.com").await.unwrap();
        change(&mut definition);
        self.update(DEFINITIONS, definition).await.unwrap();
    }
}

#[tokio::test]
async fn a_definition_makes_a_resource() {
    let cluster = cluster().await;
    let refused = cluster.create(WIDGETS, widget("a", json!({}))).await.unwrap_err();
    assert_eq!(refused.code, 404);
    let made = cluster.create(DEFINITIONS, definition(vec![version("v1", true, spec())])).await.unwrap();
    for (path, wanted) in [
        ("spec.names.singular", json!("widget")),
        ("spec.names.listKind", json!("WidgetList")),
        ("spec.conversion", json!({"strategy": "None"})),
        ("status.storedVersions", json!(["v1"])),
        ("metadata.generation", json!(1)),
    ] {
        assert_eq!(made.get(path), Some(&wanted), "{path}");
    }
    assert_eq!(
        cluster.create(WIDGETS, widget("a", json!({}))).await.unwrap_err().code,
        404,
        "not accepted yet"
    );
    cluster.establish(made).await;
    let first = cluster.create(WIDGETS, widget("a", json!({"replicas": 1, "unknown": true}))).await.unwrap();
    assert_eq!(first.get("spec"), Some(&json!({"replicas": 1, "color": "blue"})));
    assert_eq!(first.generation(), 1);
    let list = cluster.list(WIDGETS, None, &ListOptions::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert!(cluster.registry.find("example.com", "v2", "widgets").is_none());
    let kind = api_machinery::Gvk::new("example.com", "v1", "Widget");
    assert!(cluster.registry.by_kind(&kind).is_some_and(|found| found.namespaced));
}

#[tokio::test]
async fn writes_read_as_upstreams() {
    let cluster = cluster().await;
    cluster.define(definition(vec![version("v1", true, spec())])).await;
    let made = cluster.create(WIDGETS, widget("a", json!({"replicas": 1}))).await.unwrap();

    let mut without = made.clone();
    without.metadata_mut().remove("resourceVersion");
    let refused = cluster.update(WIDGETS, without).await.unwrap_err();
    assert_eq!(
        refused.message,
        "Widget.example.com \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    );

    // Without a subresource a status is content like any other.
    let mut changed = made.clone();
    changed.set("status.ready", true);
    let changed = cluster.update(WIDGETS, changed).await.unwrap();
    assert_eq!((changed.generation(), changed.get("status.ready")), (2, Some(&json!(true))));
    let mut labelled = changed.clone();
    labelled.set("metadata.labels.a", "b");
    assert_eq!(cluster.update(WIDGETS, labelled).await.unwrap().generation(), 2);

    for (spec, wanted) in [
        (
            json!({"replicas": -1}),
            "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        ),
        (
            json!({"replicas": "1"}),
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
        ),
        (
            json!({"parts": [{"name": "x"}, {"name": "x"}]}),
            "spec.parts[1]: Duplicate value: {\"name\":\"x\"}",
        ),
        (json!({"parts": [{}]}), "spec.parts[0].name: Required value"),
    ] {
        let refused = cluster.create(WIDGETS, widget("b", spec)).await.unwrap_err();
        assert_eq!(refused.code, 422);
        assert!(refused.message.contains(wanted), "{}", refused.message);
    }
    // Any name is a finalizer's; a warning says which are better.
    let mut held = widget("held", json!({}));
    held["metadata"]["finalizers"] = json!(["mine"]);
    cluster.create(WIDGETS, held).await.unwrap();
    assert_eq!(
        cluster.ctx.warnings.take(),
        [
            "metadata.finalizers: \"mine\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
        ]
    );
}

#[tokio::test]
async fn an_object_has_a_size_it_may_have() {
    let cluster = cluster().await;
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    cluster.define(definition(vec![version("v1", true, open)])).await;
    let spec = |bytes: usize| json!({"text": "x".repeat(bytes)});
    cluster.create(WIDGETS, widget("fits", spec(1_572_000))).await.unwrap();
    let refused = cluster.create(WIDGETS, widget("large", spec(1_573_000))).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.reason, refused.message.as_str()),
        (500, None, "etcdserver: request is too large")
    );
    // What is there can't grow beyond it, and can always go.
    let more = Patch::Merge(json!({"spec": {"more": "x".repeat(2_000)}}));
    assert_eq!(cluster.patch(WIDGETS, "default/fits", more).await.unwrap_err().code, 500);
    cluster.delete(WIDGETS, "default/fits", DeleteOptions::default()).await.unwrap();

    // The names of 15,000 fields that somebody owns are not what makes an object too large.
    let fields: serde_json::Map<String, Value> =
        (0..15_000).map(|n| (format!("field-{n:05}-{}", "y".repeat(20)), json!(n))).collect();
    let made = cluster.create(WIDGETS, widget("owned", json!({"in": {"a": fields}}))).await.unwrap();
    assert!(!made.get_array("metadata.managedFields").is_empty());
    let grown = Patch::Merge(json!({"spec": {"text": "x".repeat(700_000)}}));
    let grown = cluster.patch(WIDGETS, "default/owned", grown).await.unwrap();
    assert!(grown.get_array("metadata.managedFields").is_empty());

    // A built-in one counts as the protobuf that upstream stores, where a line's end is one byte.
    let map = |bytes: usize| json!({"metadata": {"name": "lines"}, "data": {"k": "\n".repeat(bytes)}});
    cluster.create("configmaps", map(1_048_000)).await.unwrap();
}

#[tokio::test]
async fn status_and_scale_are_subresources_when_asked_for() {
    let cluster = cluster().await;
    let subresources = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.count", "labelSelectorPath": ".status.selector"}});
    cluster.define(definition(vec![with(version("v1", true, spec()), "subresources", subresources)])).await;
    let mut new = widget("a", json!({"replicas": 2}));
    new["status"] = json!({"count": 9});
    let made = cluster.create(WIDGETS, new).await.unwrap();
    assert_eq!(made.get("status"), None, "a new object has none");

    let mut reported = made.clone();
    reported.set("status", json!({"count": 1, "selector": "app=a"}));
    reported.set("spec.replicas", 7);
    reported.set("metadata.labels.a", "b");
    let reported = cluster.status(WIDGETS, reported).await.unwrap();
    assert_eq!(reported.get("spec.replicas"), Some(&json!(2)));
    assert_eq!(reported.get("metadata.labels"), None, "nothing but the status");
    assert_eq!((reported.generation(), reported.get("status.count")), (1, Some(&json!(1))));

    let mut changed = reported.clone();
    changed.set("spec.replicas", 3);
    changed.remove("status");
    let changed = cluster.update(WIDGETS, changed).await.unwrap();
    assert_eq!((changed.generation(), changed.get("status.count")), (2, Some(&json!(1))));

    let of = gvr(WIDGETS);
    let scale = cluster
        .registry
        .get_subresource(&cluster.ctx, &of, Some("default"), "a", "scale", &Default::default())
        .await
        .unwrap();
    let tenant_registry::Output::Document(mut scale) = scale else { panic!("a view") };
    assert_eq!(scale.get("spec"), Some(&json!({"replicas": 3})));
    assert_eq!(scale.get("status"), Some(&json!({"replicas": 1, "selector": "app=a"})));
    scale.set("spec.replicas", 5);
    let scaled = cluster.sub(WIDGETS, "scale", scale.clone()).await.unwrap();
    assert_eq!(scaled.get("spec.replicas"), Some(&json!(5)));
    let now = cluster.get(WIDGETS, "default/a").await.unwrap();
    assert_eq!((now.generation(), now.get("spec.replicas")), (3, Some(&json!(5))));
    scale.set("spec.replicas", -1);
    scale.metadata_mut().remove("resourceVersion");
    assert_eq!(cluster.sub(WIDGETS, "scale", scale).await.unwrap_err().code, 422);
}

#[tokio::test]
async fn what_is_stored_reads_through_the_schema_of_today() {
    let cluster = cluster().await;
    cluster.define(definition(vec![version("v1", true, spec())])).await;
    cluster.create(WIDGETS, widget("a", json!({"replicas": 1}))).await.unwrap();
    cluster
        .redefine(|definition| {
            let schema = json!({"type": "object", "properties": {
                "color": {"type": "string"}, "shape": {"type": "string", "default": "round"}}});
            let versions = vec![version("v1", true, schema)];
            definition.set("spec.versions", versions);
        })
        .await;
    let read = cluster.get(WIDGETS, "default/a").await.unwrap();
    assert_eq!(read.get("spec"), Some(&json!({"color": "blue", "shape": "round"})));
    let listed = cluster.list(WIDGETS, None, &ListOptions::default()).await.unwrap();
    assert_eq!(open(&listed.items[0]).get("spec"), read.get("spec"));
    // A write of the same brings the store up to date, and is no new generation: the client changed nothing.
    let written = cluster.update(WIDGETS, read.clone()).await.unwrap();
    assert_eq!((written.generation(), written.get("spec")), (1, read.get("spec")));
}

#[tokio::test]
async fn versions_show_one_object() {
    let cluster = cluster().await;
    let other = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    cluster.define(definition(vec![version("v1", true, spec()), version("v2", false, other)])).await;
    const SECOND: &str = "example.com/v2/widgets";
    cluster.create(WIDGETS, widget("a", json!({"replicas": 1}))).await.unwrap();
    let shown = cluster.get(SECOND, "default/a").await.unwrap();
    assert_eq!(shown.get("spec"), Some(&json!({"replicas": 1})), "cut to what that version has");
    let made = cluster.create(SECOND, widget("b", json!({"replicas": 2, "color": "red"}))).await.unwrap();
    assert_eq!(made.get("spec"), Some(&json!({"replicas": 2})));
    assert_eq!(cluster.get(WIDGETS, "default/b").await.unwrap().get("spec.color"), Some(&json!("blue")));

    // The storage version moves; what was stored before is found as before.
    cluster
        .redefine(|definition| {
            let mut versions = definition.get_array("spec.versions").to_vec();
            versions[0]["storage"] = json!(false);
            versions[1]["storage"] = json!(true);
            definition.set("spec.versions", versions);
        })
        .await;
    let definition = cluster.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    assert_eq!(definition.get("status.storedVersions"), Some(&json!(["v1", "v2"])));
    let before = cluster.get(WIDGETS, "default/a").await.unwrap();
    assert_eq!(before.get("spec"), Some(&json!({"replicas": 1, "color": "blue"})));
    let written = cluster.update(WIDGETS, before).await.unwrap();
    assert_eq!(written.get("spec.replicas"), Some(&json!(1)));
    assert_eq!(cluster.list(SECOND, None, &ListOptions::default()).await.unwrap().items.len(), 2);

    // One that is no longer served is not found by clients, though it is still stored.
    cluster
        .redefine(|definition| {
            let mut versions = definition.get_array("spec.versions").to_vec();
            versions[1]["served"] = json!(false);
            definition.set("spec.versions", versions);
        })
        .await;
    assert_eq!(cluster.registry.find_served("example.com", "v2", "widgets").await.unwrap_err().code, 404);
    assert!(cluster.get(WIDGETS, "default/a").await.is_ok());
}

#[tokio::test]
async fn patches_know_the_schema() {
    let cluster = cluster().await;
    cluster.define(definition(vec![version("v1", true, spec())])).await;
    cluster.create(WIDGETS, widget("a", json!({"parts": [{"name": "x", "size": 1}]}))).await.unwrap();
    let merged =
        cluster.patch(WIDGETS, "default/a", Patch::Merge(json!({"spec": {"replicas": 4, "odd": 1}}))).await;
    assert_eq!(merged.unwrap().get("spec.replicas"), Some(&json!(4)));
    assert_eq!(cluster.ctx.warnings.take(), ["unknown field \"spec.odd\""]);
    let strict = Context { field_validation: FieldValidation::Strict, ..cluster.ctx.clone() };
    let patch = Patch::Json(json!([{"op": "add", "path": "/spec/odd", "value": 1}]));
    let refused =
        cluster.registry.patch(&strict, &gvr(WIDGETS), Some("default"), "a", &patch).await.unwrap_err();
    assert!(
        refused.message.contains("strict decoding error: unknown field \"spec.odd\""),
        "{}",
        refused.message
    );

    let apply = |manager: &str, spec: Value, force| Patch::Apply {
        document: json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec}),
        manager: manager.to_owned(),
        force,
    };
    let applied = cluster
        .patch(WIDGETS, "default/a", apply("ann", json!({"parts": [{"name": "y", "size": 2}]}), false))
        .await;
    assert_eq!(
        applied.unwrap().get("spec.parts"),
        Some(&json!([{"name": "x", "size": 1}, {"name": "y", "size": 2}])),
        "items are told apart by name"
    );
    let conflict = cluster
        .patch(WIDGETS, "default/a", apply("bob", json!({"parts": [{"name": "y", "size": 3}]}), false))
        .await;
    assert_eq!(conflict.unwrap_err().code, 409);
    let forced = cluster
        .patch(WIDGETS, "default/a", apply("bob", json!({"parts": [{"name": "y", "size": 3}]}), true))
        .await;
    assert_eq!(forced.unwrap().pointer("/spec/parts/1/size"), Some(&json!(3)));
    let missing = cluster.patch(WIDGETS, "default/new", Patch::Apply {
        document: json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "new"}, "spec": {}}),
        manager: "ann".to_owned(), force: false }).await;
    assert_eq!(missing.unwrap().get("spec.color"), Some(&json!("blue")));
}

#[tokio::test]
async fn fields_that_the_definition_names_select() {
    let cluster = cluster().await;
    let fields = json!([{"jsonPath": ".spec.color"}]);
    cluster.define(definition(vec![with(version("v1", true, spec()), "selectableFields", fields)])).await;
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        cluster.create(WIDGETS, widget(name, json!({"color": color}))).await.unwrap();
    }
    for (selector, wanted) in [
        ("spec.color=red", Ok("a c")),
        ("spec.color!=red", Ok("b")),
        ("spec.color=red,metadata.name=c", Ok("c")),
        ("spec.replicas=1", Err(400)),
    ] {
        let options =
            ListOptions { fields: FieldSelector::parse(selector).unwrap(), ..ListOptions::default() };
        let got = cluster.list(WIDGETS, None, &options).await.map_err(|status| status.code).map(|list| {
            list.items.iter().map(|item| item.header.name.to_string()).collect::<Vec<String>>().join(" ")
        });
        assert_eq!(got, wanted.map(str::to_owned), "{selector}");
    }
}

#[tokio::test]
async fn the_end_of_a_definition_ends_what_depends_on_it() {
    let cluster = cluster().await;
    cluster.define(definition(vec![version("v1", true, spec())])).await;
    cluster.create(WIDGETS, widget("a", json!({}))).await.unwrap();
    let options = WatchOptions { resource_version: "0".to_owned(), ..WatchOptions::default() };
    let mut watch = cluster.registry.watch(&cluster.ctx, &gvr(WIDGETS), None, &options).await.unwrap();
    let mut seen = Vec::new();
    let mut note = |item: WatchItem| match item {
        WatchItem::Change { change, object, .. } => {
            seen.push(format!("{} {}", change.as_str(), object.header.name))
        }
        WatchItem::Bookmark { .. } => seen.push("BOOKMARK".to_owned()),
    };
    note(watch.next().await.unwrap().unwrap());

    let waits = cluster.delete(DEFINITIONS, "widgets.example.com", DeleteOptions::default()).await.unwrap();
    let mut waits = waits.expect("held back until its objects are gone");
    assert_eq!(waits.finalizers(), ["customresourcecleanup.apiextensions.k8s.io"]);
    assert_eq!(waits.pointer("/status/conditions/2/reason"), Some(&json!("InstanceDeletionPending")));
    let refused = cluster.create(WIDGETS, widget("late", json!({}))).await.unwrap_err();
    assert_eq!(refused.code, 403);
    assert!(refused.message.contains("create not allowed while custom resource definition is terminating"));

    // The watch survives changes of the definition, and hears of everything before it goes.
    cluster.delete(WIDGETS, "default/a", DeleteOptions::default()).await.unwrap();
    waits.metadata_mut().remove("finalizers");
    waits.metadata_mut().remove("resourceVersion");
    let current = cluster.get(DEFINITIONS, "widgets.example.com").await.unwrap();
    waits.set("metadata.resourceVersion", current.resource_version());
    cluster.status(DEFINITIONS, waits).await.unwrap();
    assert_eq!(cluster.get(DEFINITIONS, "widgets.example.com").await.unwrap_err().code, 404);
    while let Some(item) = watch.next().await {
        note(item.unwrap());
    }
    assert_eq!(seen, ["ADDED a", "DELETED a"]);
    assert_eq!(cluster.create(WIDGETS, widget("b", json!({}))).await.unwrap_err().code, 404);
    assert!(cluster.registry.catalogue().is_empty());
}

/// Turns `hostPort` of v1 into `host` and `port` of v2 and back, and counts how often it is asked.
#[derive(Default)]
struct Converter {
    calls: std::sync::atomic::AtomicUsize,
    broken: std::sync::atomic::AtomicBool,
}

#[async_trait::async_trait]
impl Outbound for Converter {
    async fn call(
        &self,
        to: &Destination,
        request: http::Request<bytes::Bytes>,
        _limits: Limits,
    ) -> Result<http::Response<bytes::Bytes>, OutboundError> {
        use std::sync::atomic::Ordering;
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!((to.base(), request.uri().path()), ("https://convert.example.com".to_owned(), "/now"));
        let review: Value = serde_json::from_slice(request.body()).unwrap();
        let wanted = review["request"]["desiredAPIVersion"].as_str().unwrap();
        let objects = review["request"]["objects"].as_array().unwrap().iter().map(|object| {
            let mut object = object.clone();
            assert_ne!(object["apiVersion"], wanted, "only what needs it is sent");
            object["apiVersion"] = wanted.into();
            let members = object.as_object_mut().unwrap();
            if wanted == "example.com/v2" {
                let both = members.remove("hostPort").unwrap_or_default();
                let (host, port) = both.as_str().unwrap_or_default().split_once(':').unwrap_or_default();
                members.insert("host".to_owned(), host.into());
                members.insert("port".to_owned(), port.into());
            } else {
                let text =
                    |value: Option<Value>| value.unwrap_or_default().as_str().unwrap_or_default().to_owned();
                let both = format!("{}:{}", text(members.remove("host")), text(members.remove("port")));
                members.insert("hostPort".to_owned(), both.into());
            }
            object
        });
        let objects: Vec<Value> = objects.collect();
        let result = match self.broken.load(Ordering::Relaxed) {
            true => json!({"status": "Failure", "message": "not today"}),
            false => json!({"status": "Success"}),
        };
        let answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "response": {"uid": review["request"]["uid"], "result": result, "convertedObjects": objects}});
        Ok(http::Response::new(answer.to_string().into()))
    }
    async fn connect(&self, _: &Destination, _: std::time::Duration) -> Result<Connection, OutboundError> {
        Err(OutboundError::Busy)
    }
}

#[tokio::test]
async fn a_webhook_converts() {
    use std::sync::atomic::Ordering;
    let cluster = cluster().await;
    let converter = std::sync::Arc::new(Converter::default());
    cluster.registry.call_through(converter.clone());
    let version = |name: &str, storage: bool, fields: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
        let selectable: Vec<Value> =
            fields.iter().map(|field| json!({"jsonPath": format!(".{field}")})).collect();
        json!({"name": name, "served": true, "storage": storage, "selectableFields": selectable,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
    };
    let mut definition =
        definition(vec![version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"])]);
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"url": "https://convert.example.com/now"}, "conversionReviewVersions": ["v1"]}});
    cluster.define(definition).await;
    const SECOND: &str = "example.com/v2/widgets";

    // Written in one version, stored and found in another.
    let made =
        cluster.create(SECOND, json!({"metadata": {"name": "a"}, "host": "h1", "port": "80"})).await.unwrap();
    assert_eq!((made.get_str("host"), made.get_str("port")), (Some("h1"), Some("80")));
    assert_eq!(cluster.get(WIDGETS, "default/a").await.unwrap().get_str("hostPort"), Some("h1:80"));
    for (name, port) in [("b", "8080"), ("c", "80")] {
        let host = if name == "c" { "h2" } else { "h1" };
        cluster
            .create(WIDGETS, json!({"metadata": {"name": name}, "hostPort": format!("{host}:{port}")}))
            .await
            .unwrap();
    }
    let before = converter.calls.load(Ordering::Relaxed);
    for (of, selector, wanted) in [
        (SECOND, "", "a b c"),
        (SECOND, "host=h1", "a b"),
        (SECOND, "host=h1,port=80", "a"),
        (WIDGETS, "hostPort=h1:8080", "b"),
    ] {
        let options =
            ListOptions { fields: FieldSelector::parse(selector).unwrap(), ..ListOptions::default() };
        let list = cluster.list(of, None, &options).await.unwrap();
        let names: Vec<&str> = list.items.iter().map(|item| &*item.header.name).collect();
        assert_eq!(names.join(" "), wanted, "{of} {selector}");
    }
    assert_eq!(converter.calls.load(Ordering::Relaxed) - before, 3, "one call for a list");

    // A watch sees objects enter and leave by what they look like in its version.
    let options = WatchOptions {
        fields: FieldSelector::parse("host=h1").unwrap(),
        resource_version: "0".to_owned(),
        ..WatchOptions::default()
    };
    let mut watch = cluster.registry.watch(&cluster.ctx, &gvr(SECOND), None, &options).await.unwrap();
    let moved = Patch::Merge(json!({"hostPort": "h9:80"}));
    cluster.patch(WIDGETS, "default/a", moved).await.unwrap();
    cluster.patch(SECOND, "default/c", Patch::Merge(json!({"host": "h1"}))).await.unwrap();
    cluster.delete(SECOND, "default/b", DeleteOptions::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 5 {
        if let WatchItem::Change { change, object, .. } = watch.next().await.unwrap().unwrap() {
            let host = object.field("host").unwrap_or_default();
            seen.push(format!(
                "{} {} {}",
                change.as_str(),
                object.header.name,
                host.as_str().unwrap_or_default()
            ));
        }
    }
    assert_eq!(seen, ["ADDED a h1", "ADDED b h1", "DELETED a h1", "ADDED c h1", "DELETED b h1"]);

    converter.broken.store(true, Ordering::Relaxed);
    let refused = cluster.get(SECOND, "default/a").await.unwrap_err();
    assert_eq!(refused.code, 500);
    assert!(
        refused.message.contains("conversion webhook for example.com/v1, Kind=Widget failed: not today"),
        "{}",
        refused.message
    );
    assert!(cluster.get(WIDGETS, "default/a").await.is_ok(), "what needs no conversion does without");
}
