//! A body that is refused says which fields it was refused for.

use serde_json::{Value, json};

use super::{Harness, Who};

const POOLS: &str = "/api/v1/organizations/red/clusters/mine/nodepools";
const CLUSTERS: &str = "/api/v1/organizations/red/clusters";
const MEMBERS: &str = "/api/v1/organizations/red/members";
const TOKENS: &str = "/api/v1/tokens";

pub(super) async fn every_refused_field_is_named(harness: &Harness) {
    let red = harness.organization("red").await;
    harness.cluster(red.id, "mine").await;
    harness.operator().await;
    let provider = harness.provider().await;
    let pool = |more: Value| {
        let mut body = json!({"name": "w", "size": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let uuid = "a190163d-8694-739b-aea5-966c26f8ad91";
    let long = "x".repeat(201);
    for (method, path, body, status, fields) in [
        ("POST", POOLS, json!({"name": "w"}), 400, vec!["/size"]),
        ("POST", POOLS, json!({"name": "../w", "size": 1}), 400, vec!["/name"]),
        ("POST", POOLS, pool(json!({"size": -1})), 400, vec!["/size"]),
        ("POST", POOLS, pool(json!({"size": 1001, "machine_type": ""})), 400, vec!["/size", "/machine_type"]),
        ("POST", POOLS, pool(json!({"provider": "a b"})), 400, vec!["/provider"]),
        (
            "POST",
            POOLS,
            pool(json!({"labels": {"a b": "c", "kubernetes.io/os": "plan9", "fine": "1", "team": "a/b"}})),
            400,
            vec!["/labels/a b", "/labels/team", "/labels/kubernetes.io~1os"],
        ),
        (
            "POST",
            POOLS,
            pool(json!({"taints": [
                {"key": "a", "effect": "NoSchedule"},
                {"key": "a b", "effect": "NoSchedule"},
                {"key": "a", "value": "1", "effect": "NoSchedule"},
            ]})),
            400,
            vec!["/taints/1/key", "/taints/2"],
        ),
        (
            "POST",
            POOLS,
            pool(json!({"taints": [{"key": "a", "effect": "Never"}]})),
            400,
            vec!["/taints/0/effect"],
        ),
        ("POST", POOLS, pool(json!({"colour": "red", "shape": "round"})), 400, vec!["/colour", "/shape"]),
        ("POST", CLUSTERS, json!({"name": uuid, "replicas": 2}), 400, vec!["/name", "/replicas"]),
        (
            "POST",
            CLUSTERS,
            json!({"name": "x", "kubernetes_version": "v1.0.0"}),
            400,
            vec!["/kubernetes_version"],
        ),
        ("PATCH", "/api/v1/organizations/red/clusters/mine", json!({"name": null}), 400, vec!["/name"]),
        (
            "PATCH",
            "/api/v1/organizations/red/clusters/mine",
            json!({"name": uuid, "labels": {"a": "not a value"}}),
            400,
            vec!["/name", "/labels/a"],
        ),
        ("POST", MEMBERS, json!({"email": "x", "role": "viewer"}), 400, vec!["/email"]),
        ("POST", MEMBERS, json!({"email": "x@red.example", "role": "provider"}), 400, vec!["/role"]),
        (
            "POST",
            TOKENS,
            json!({"description": long, "role": "provider", "expires_in_seconds": 0}),
            400,
            vec!["/description", "/expires_in_seconds"],
        ),
        ("POST", TOKENS, json!({"description": "", "role": "viewer"}), 422, vec!["/organization"]),
        (
            "POST",
            TOKENS,
            json!({"description": "", "role": "admin", "organization": "red", "cluster": "mine"}),
            422,
            vec!["/role"],
        ),
        // What is not about the body names no field.
        ("POST", "/api/v1/organizations", json!({"name": "red"}), 409, vec![]),
        ("GET", "/api/v1/organizations?limit=0", Value::Null, 400, vec![]),
    ] {
        let body = (!body.is_null()).then_some(body);
        let answer = harness.send(&provider, method, path, body.clone()).await.is(status);
        let errors = answer.body["errors"].as_array().cloned().unwrap_or_default();
        let named: Vec<&str> = errors.iter().map(|one| one["field"].as_str().unwrap()).collect();
        assert_eq!(named, fields, "{path} {body:?}: {:?}", answer.body);
        // Whoever shows the one line shows all of it.
        let detail = answer.text("detail");
        for error in &errors {
            assert!(detail.contains(error["detail"].as_str().unwrap()), "{detail}");
        }
    }
    let list = harness.send(&provider, "POST", "/api/v1/organizations", Some(json!(["acme"]))).await.is(400);
    assert_eq!(list.body["errors"], json!([{"field": "", "detail": "the body is a JSON object"}]));
    // An invitation's fields are those of the form that a person fills in.
    let invited = json!({"email": "ann@red.example", "role": "viewer"});
    let invited = harness.send(&provider, "POST", MEMBERS, Some(invited)).await.is(201);
    for (name, password, field) in
        [("Ann", "short", "/password"), ("A\u{7}n", "correct horse battery", "/name")]
    {
        let body = json!({"invitation": invited.text("invitation"), "name": name, "password": password});
        let answer =
            harness.send(&Who::Nobody, "POST", "/api/v1/invitations/accept", Some(body)).await.is(400);
        assert_eq!(answer.body["errors"][0]["field"], field, "{answer:?}");
    }
}
