use api_kinds::kinds;
use api_machinery::Gvk;
use serde_json::json;

use super::*;

fn tracking<'a>(manager: &'a str) -> Tracking<'a> {
    Tracking {
        message: kinds().kind_message(&Gvk::new("apps", "v1", "Deployment")).unwrap().id,
        schema: None,
        api_version: "apps/v1",
        manager,
        subresource: "",
        now: "2026-11-30T21:00:00Z".parse().unwrap(),
        ignored: &["status"],
    }
}

fn deployment(spec: Value) -> Document {
    Document::from_value(json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "blue"}, "spec": spec}))
    .unwrap()
}

fn containers(list: Value) -> Value {
    json!({"template": {"spec": {"containers": list}}})
}

/// `manager operation subresource: fields`, one line each.
fn owners(document: &Document) -> Vec<String> {
    document
        .get_array("metadata.managedFields")
        .iter()
        .map(|entry| {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let fields = FieldSet::from_fields_v1(&entry["fieldsV1"]).unwrap().paths().join(" ");
            format!("{} {} {}", text("manager"), text("operation"), fields)
        })
        .collect()
}

fn applied_by(manager: &str, live: Option<&Document>, spec: Value) -> Document {
    apply(&tracking(manager), live, &deployment(spec), false).unwrap()
}

#[test]
fn an_apply_creates_and_owns_what_it_says() {
    let made = applied_by(
        "ann",
        None,
        json!({"replicas": 3, "selector": {"matchLabels": {"app": "web"}},
        "template": {"spec": {"containers": [{"name": "c", "image": "1", "ports": [{"containerPort": 80}]}]}}}),
    );
    assert_eq!(
        made.get("metadata.managedFields"),
        Some(&json!([{
            "manager": "ann", "operation": "Apply", "apiVersion": "apps/v1", "time": "2026-11-30T21:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}, "f:selector": {}, "f:template": {"f:spec": {"f:containers": {
                "k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}, "f:ports": {
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}}}}
        }]))
    );
    assert_eq!(made.get_i64("spec.replicas"), Some(3));
}

#[test]
fn what_a_manager_no_longer_says_goes() {
    let two = json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]);
    let live = applied_by(
        "ann",
        None,
        json!({"replicas": 3, "paused": true, "template": {"spec": {"containers": two}}}),
    );
    let live = applied_by(
        "ann",
        Some(&live),
        json!({"replicas": 3, "template": {"spec": {"containers": [{"name": "b", "image": "1"}]}}}),
    );
    assert_eq!(
        live.spec(),
        Some(&json!({"replicas": 3, "template": {"spec": {"containers": [{"name": "b", "image": "1"}]}}}))
    );

    // Unless somebody else says it too.
    let live = applied_by("bob", Some(&live), json!({"replicas": 3}));
    let live = applied_by("ann", Some(&live), containers(json!([{"name": "b", "image": "1"}])));
    assert_eq!(live.get_i64("spec.replicas"), Some(3));
    assert_eq!(
        owners(&live),
        [
            "ann Apply .spec.template.spec.containers[name=\"b\"] .spec.template.spec.containers[name=\"b\"].image .spec.template.spec.containers[name=\"b\"].name",
            "bob Apply .spec.replicas",
        ]
    );
    // The last who says it takes it along.
    let live = applied_by("bob", Some(&live), json!({"paused": true}));
    assert_eq!(live.get("spec.replicas"), None);
}

#[test]
fn what_others_own_is_a_conflict_unless_forced() {
    let live = applied_by("ann", None, json!({"replicas": 3, "paused": false}));
    // The same value is no conflict: both own it.
    let shared = applied_by("bob", Some(&live), json!({"replicas": 3}));
    assert_eq!(owners(&shared), ["ann Apply .spec.paused .spec.replicas", "bob Apply .spec.replicas"]);

    let error =
        |live: &Document, spec| apply(&tracking("bob"), Some(live), &deployment(spec), false).unwrap_err();
    assert_eq!(
        error(&live, json!({"replicas": 4})).to_string(),
        "Apply failed with 1 conflict: conflict with \"ann\": .spec.replicas"
    );
    assert_eq!(
        error(&live, json!({"replicas": 4, "paused": true})).to_string(),
        "Apply failed with 2 conflicts: conflicts with \"ann\":\n- .spec.paused\n- .spec.replicas"
    );
    let status = error(&live, json!({"replicas": 4})).to_status();
    assert_eq!((status.code, status.details.unwrap().causes[0].field.as_str()), (409, ".spec.replicas"));

    let forced = apply(&tracking("bob"), Some(&live), &deployment(json!({"replicas": 4})), true).unwrap();
    assert_eq!(forced.get_i64("spec.replicas"), Some(4));
    assert_eq!(owners(&forced), ["ann Apply .spec.paused", "bob Apply .spec.replicas"]);

    // Updates name their version.
    let mut updated = live.clone();
    updated.set("spec.replicas", 5);
    track_update(&tracking("kubectl-scale"), Some(&live), &mut updated);
    assert_eq!(
        error(&updated, json!({"replicas": 4})).to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-scale\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn an_update_owns_what_it_changed() {
    let mut made = deployment(json!({"replicas": 1, "template": {"metadata": {"labels": {"a": "1"}}}}));
    track_update(&tracking("kubectl-create"), None, &mut made);
    assert_eq!(
        made.get("metadata.managedFields.0").or(made.get_array("metadata.managedFields").first()).unwrap()["fieldsV1"],
        json!({"f:spec": {"f:replicas": {}, "f:template": {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}}})
    );

    let mut changed = made.clone();
    changed.set("spec.replicas", 2);
    changed.set("spec.paused", true);
    changed.set("status.replicas", 9);
    track_update(&tracking("edit"), Some(&made), &mut changed);
    assert_eq!(
        owners(&changed),
        [
            "edit Update .spec.paused .spec.replicas",
            "kubectl-create Update .spec.template.metadata.labels .spec.template.metadata.labels.a",
        ]
    );

    // Nothing changed: nothing moves, not even the time.
    let mut again = changed.clone();
    let later = Tracking { now: "2026-12-01T00:00:00Z".parse().unwrap(), ..tracking("other") };
    track_update(&later, Some(&changed), &mut again);
    assert_eq!(again, changed);

    // What is removed is nobody's.
    let mut removed = changed.clone();
    removed.remove("spec.paused");
    track_update(&tracking("other"), Some(&changed), &mut removed);
    assert_eq!(owners(&removed)[0], "edit Update .spec.replicas");

    // A client that sends no entries doesn't delete them; one that sends an empty list does.
    let mut forgetful = changed.clone();
    forgetful.remove("metadata.managedFields");
    track_update(&tracking("other"), Some(&changed), &mut forgetful);
    assert_eq!(owners(&forgetful), owners(&changed));
    let mut reset = changed.clone();
    reset.set("metadata.managedFields", json!([]));
    track_update(&tracking("other"), Some(&changed), &mut reset);
    assert_eq!(owners(&reset), Vec::<String>::new());
}

#[test]
fn subresources_keep_entries_of_their_own() {
    let live = applied_by("ann", None, json!({"replicas": 1}));
    let mut status = live.clone();
    status.set("status.replicas", 1);
    let of_status = Tracking { subresource: "status", ignored: &["spec"], ..tracking("controller") };
    track_update(&of_status, Some(&live), &mut status);
    assert_eq!(owners(&status), ["ann Apply .spec.replicas", "controller Update .status.replicas"]);
    assert_eq!(status.get_array("metadata.managedFields")[1]["subresource"], "status");
}

#[test]
fn lists_keep_live_order_and_take_in_new_items() {
    let names = |document: &Document| -> Vec<String> {
        document
            .get_array("spec.template.spec.containers")
            .iter()
            .map(|c| c["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let list = |names: &[&str]| containers(names.iter().map(|name| json!({"name": name})).collect());
    for (live, applied, wanted) in [
        (&["a", "b"][..], &["b"][..], &["a", "b"][..]),
        (&["a", "b"], &["c"], &["a", "b", "c"]),
        (&["a", "b"], &["c", "b"], &["a", "c", "b"]),
        (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        (&["a", "b"], &["b", "a"], &["b", "a"]),
        (&["a", "server", "b"], &["a", "b", "c"], &["a", "server", "b", "c"]),
        (&[], &["a"], &["a"]),
    ] {
        let mut before = deployment(list(live));
        track_update(&tracking("server"), None, &mut before);
        let after = apply(&tracking("ann"), Some(&before), &deployment(list(applied)), true).unwrap();
        let got = names(&after);
        assert_eq!(got, wanted, "{live:?} + {applied:?}");
    }
    let twice = apply(&tracking("ann"), None, &deployment(list(&["a", "a"])), false);
    assert_eq!(
        twice.unwrap_err().to_string(),
        "failed to create typed patch object (blue/web; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate entries for key [name=\"a\"]"
    );
    let nameless = apply(&tracking("ann"), None, &deployment(containers(json!([{"image": "1"}]))), false);
    assert!(matches!(nameless, Err(PatchError::Malformed(_))), "{nameless:?}");
}

#[test]
fn kubectl_takes_over_what_its_client_side_apply_wrote() {
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "blue"}, "spec": {"replicas": 1}});
    let mut live = Document::from_value(config.clone()).unwrap();
    live.set("metadata.annotations", json!({LAST_APPLIED: config.to_string()}));
    track_update(&tracking("kubectl-client-side-apply"), None, &mut live);
    let new = deployment(json!({"replicas": 2}));
    assert!(apply(&tracking("other"), Some(&live), &new, false).is_err());
    let upgraded = apply(&tracking("kubectl"), Some(&live), &new, false).unwrap();
    assert_eq!(upgraded.get_i64("spec.replicas"), Some(2));
    let annotation: Value = serde_json::from_str(upgraded.annotation(LAST_APPLIED).unwrap()).unwrap();
    assert_eq!(annotation["spec"]["replicas"], 2);
}

#[test]
fn objects_written_before_anybody_looked_belong_to_nobody_in_particular() {
    let mut live = deployment(json!({"replicas": 1}));
    live.set("metadata.uid", "u");
    let error = apply(&tracking("ann"), Some(&live), &deployment(json!({"replicas": 2})), false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn many_updaters_are_folded_into_one() {
    let mut live = deployment(json!({"replicas": 0}));
    track_update(&tracking("u0"), None, &mut live);
    for n in 1..15 {
        let name = format!("u{n}");
        let mut next = live.clone();
        next.set(&format!("metadata.annotations.x{n}"), "1");
        let at = Tracking { now: tracking("").now + jiff::SignedDuration::from_secs(n), ..tracking(&name) };
        track_update(&at, Some(&live), &mut next);
        live = next;
    }
    let owners = owners(&live);
    assert_eq!(owners.len(), 10, "{owners:?}");
    assert!(
        owners
            .iter()
            .any(|line| line.starts_with("ancient-changes Update") && line.contains(".spec.replicas"))
    );
}

#[test]
fn foreign_sets_are_read_whatever_their_spelling_or_refused() {
    for (text, wanted) in [
        (r#"{"f:a":{}}"#, Some(".a")),
        (r#"{"f:a":{".":{},"f:b":{}}}"#, Some(".a .a.b")),
        (r#"{"f:a":{"k:{\"y\":1,\"x\":\"2\"}":{}}}"#, Some(".a[x=\"2\",y=1]")),
        (r#"{"f:a":{"v:\"z\"":{}}}"#, Some(".a[=\"z\"]")),
        (r#"{"f:a":{"i:3":{}}}"#, Some(".a[3]")),
        (r#"{}"#, Some("")),
        (r#"{"x:a":{}}"#, None),
        (r#"{"a":{}}"#, None),
        (r#"{"k:[1]":{}}"#, None),
        (r#"{"f:a":1}"#, None),
        (r#"[]"#, None),
    ] {
        let set = FieldSet::from_fields_v1(&serde_json::from_str(text).unwrap());
        assert_eq!(set.map(|set| set.paths().join(" ")).as_deref(), wanted, "{text}");
    }
}

#[test]
fn custom_resources_merge_as_their_schema_says() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"},
                "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"}}}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "plain": {"type": "array", "items": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "size": {"x-kubernetes-int-or-string": true}}}}});
    let schema = api_structural::Structural::parse(&schema).unwrap();
    let by = |manager: &'static str| Tracking {
        message: kinds().custom(),
        schema: Some(&schema),
        api_version: "example.com/v1",
        ..tracking(manager)
    };
    let config = |spec: Value| {
        Document::from_value(json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": "w"}, "spec": spec}))
        .unwrap()
    };
    for (first, second, merged, conflicts) in [
        (
            json!({"ports": [{"port": 80, "name": "web"}]}),
            json!({"ports": [{"port": 80, "protocol": "UDP"}, {"port": 81}]}),
            json!({"ports": [{"port": 80, "name": "web"}, {"port": 80, "protocol": "UDP"}, {"port": 81}]}),
            0,
        ),
        (
            json!({"ports": [{"port": 80, "name": "web"}]}),
            json!({"ports": [{"port": 80, "name": "x"}]}),
            json!(null),
            1,
        ),
        (json!({"tags": ["a", "b"]}), json!({"tags": ["c", "a"]}), json!({"tags": ["c", "a", "b"]}), 0),
        (json!({"plain": ["a"]}), json!({"plain": ["b"]}), json!(null), 1),
        (json!({"whole": {"a": "1"}}), json!({"whole": {"b": "2"}}), json!(null), 1),
        (json!({"map": {"a": "1"}}), json!({"map": {"b": "2"}}), json!({"map": {"a": "1", "b": "2"}}), 0),
        (
            json!({"free": {"x": {"y": 1}}}),
            json!({"free": {"x": {"z": 2}}}),
            json!({"free": {"x": {"y": 1, "z": 2}}}),
            0,
        ),
        (json!({"size": 1}), json!({"size": "25%"}), json!(null), 1),
    ] {
        let live = apply(&by("ann"), None, &config(first.clone()), false).unwrap();
        match apply(&by("bob"), Some(&live), &config(second), false) {
            Ok(document) => assert_eq!(document.get("spec"), Some(&merged), "{first}"),
            Err(PatchError::Conflict { causes, .. }) => assert_eq!(causes.len(), conflicts, "{first}"),
            Err(other) => panic!("{first}: {other}"),
        }
    }
    // Nobody owns what every object has, nor the structs that lead to a field.
    let live = apply(&by("ann"), None, &config(json!({"ports": [{"port": 80}]})), false).unwrap();
    let owned = &live.get_array("metadata.managedFields")[0]["fieldsV1"];
    let item = "k:{\"port\":80,\"protocol\":\"TCP\"}";
    assert_eq!(*owned, json!({"f:spec": {"f:ports": {item: {".": {}, "f:port": {}}}}}));
}
