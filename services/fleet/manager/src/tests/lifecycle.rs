//! Clusters, pools and operations as rows: nobody answers for the cell, so what is accepted stays under way.

use base_ids::TenantId;
use fleet_model::{Machine, MachineState, OperationKind, OperationState};
use serde_json::{Value, json};

use super::{Harness, Who};
use crate::lifecycle::plan::Progress;

const POOLS: &str = "/api/v1/organizations/red/clusters/demo/nodepools";
const OPERATIONS: &str = "/api/v1/organizations/red/operations";

async fn send(harness: &Harness, who: &Who, method: &str, path: &str, body: Value) -> super::Answered {
    let body = (!body.is_null()).then_some(body);
    harness.send(who, method, path, body).await
}

/// A cluster as if its cell had confirmed it.
async fn cluster(harness: &Harness) -> (Who, TenantId) {
    let red = harness.organization("red").await;
    let id = harness.cluster(red.id, "demo").await;
    let who = harness.member("red", "ann@red.example", "developer").await;
    (who, id)
}

pub(super) async fn pools_follow_what_is_asked_and_reported(harness: &Harness) {
    let (ann, id) = cluster(harness).await;
    let db = &harness.manager.state.db;
    for (body, status) in [
        (json!({"name": "w", "size": 1001}), 400),
        (json!({"name": "w", "size": -1}), 400),
        (json!({"name": "../w", "size": 1}), 400),
        (json!({"name": "w", "size": 1, "labels": {"a b": "c"}}), 400),
        (json!({"name": "w", "size": 1, "labels": {"kubernetes.io/hostname": "x"}}), 400),
        (json!({"name": "w", "size": 1, "taints": [{"key": "a", "effect": "Never"}]}), 400),
        (json!({"name": "w", "size": 1, "machine_type": ""}), 400),
        (json!({"name": "w", "size": 1, "colour": "red"}), 400),
        (
            json!({"name": "w", "size": 2, "labels": {"a": "b"}, "taints": [{"key": "gpu", "effect": "NoSchedule"}]}),
            201,
        ),
        (json!({"name": "w", "size": 2}), 409),
    ] {
        send(harness, &ann, "POST", POOLS, body).await.is(status);
    }
    let pool = send(harness, &ann, "GET", &format!("{POOLS}/w"), Value::Null).await.is(200);
    assert_eq!(pool.text("state"), "provisioning");
    let first = pool.text("operation");

    // What its leader says decides.
    let rows = db.pool_rows(id).await.unwrap();
    let machine = |name: &str| Machine {
        id: format!("m-{name}"),
        name: name.to_owned(),
        state: MachineState::Joined,
        address: None,
        message: None,
    };
    let mut said = rows[0].pool.clone();
    said.machines = vec![machine("1"), machine("2")];
    said.settled = true;
    assert!(db.report_pool(rows[0].id, &said).await.unwrap());
    let pool = send(harness, &ann, "GET", &format!("{POOLS}/w"), Value::Null).await.is(200);
    assert_eq!((pool.text("state").as_str(), &pool.body["ready"]), ("ready", &json!(2)));

    // Another size is another operation, and ends the one before; a report about the old size is late.
    let patch = json!({"size": 1, "name": "x", "labels": {"a": null, "c": "d"}});
    let pool = send(harness, &ann, "PATCH", &format!("{POOLS}/w"), patch).await.is(200);
    assert_eq!(pool.body["labels"], json!({"c": "d"}));
    assert_ne!(pool.text("operation"), first);
    assert!(!db.report_pool(rows[0].id, &said).await.unwrap(), "a late report");
    let old = send(harness, &ann, "GET", &format!("{OPERATIONS}/{first}"), Value::Null).await.is(200);
    assert_eq!(old.text("state"), "cancelled");
    let second = pool.text("operation");
    let taken_back =
        send(harness, &ann, "POST", &format!("{OPERATIONS}/{second}/cancel"), Value::Null).await.is(200);
    assert_eq!(taken_back.text("message"), "cancelled by ann@red.example");
    let pool = send(harness, &ann, "GET", &format!("{POOLS}/x"), Value::Null).await.is(200);
    assert_eq!(pool.body["size"], json!(2), "back to what it was");

    // Deleting is begun once, and asking again finds it.
    let begun = send(harness, &ann, "DELETE", &format!("{POOLS}/x"), Value::Null).await.is(202);
    let again = send(harness, &ann, "DELETE", &format!("{POOLS}/x"), Value::Null).await.is(202);
    assert_eq!(begun.text("id"), again.text("id"));
    send(harness, &ann, "PATCH", &format!("{POOLS}/x"), json!({"size": 5})).await.is(409);
    let cancel = format!("{OPERATIONS}/{}/cancel", begun.text("id"));
    send(harness, &ann, "POST", &cancel, Value::Null).await.is(409);
    assert!(db.forget_pool(rows[0].id, harness.manager.state.clock.now()).await.unwrap());
    send(harness, &ann, "GET", &format!("{POOLS}/x"), Value::Null).await.is(404);
    let done = send(harness, &ann, "GET", &format!("{OPERATIONS}/{}", begun.text("id")), Value::Null).await;
    assert_eq!(done.text("state"), "succeeded");
}

pub(super) async fn a_cluster_is_changed_in_place_and_ends_in_a_receipt(harness: &Harness) {
    let (ann, id) = cluster(harness).await;
    let state = &harness.manager.state;
    let path = format!("/api/v1/organizations/red/clusters/{id}");
    for (patch, status) in [
        (json!({"name": null}), 400),
        (json!({"replicas": 3}), 400),
        (json!({"labels": {"a": "not a value"}}), 400),
        (json!({"name": "a190163d-8694-739b-aea5-966c26f8ad91"}), 400),
        (json!({"name": "other", "labels": {"a": "1", "b": "2"}}), 200),
        (json!({"labels": {"a": null}}), 200),
        (json!({}), 200),
    ] {
        send(harness, &ann, "PATCH", &path, patch).await.is(status);
    }
    let changed = send(harness, &ann, "GET", &path, Value::Null).await.is(200);
    assert_eq!((changed.text("name").as_str(), &changed.body["labels"]), ("other", &json!({"b": "2"})));
    // Two changes, two generations that cells have to hear of.
    let row = state.db.cluster_row(id).await.unwrap().unwrap();
    assert!(row.generation > row.assigned_generation, "{row:?}");

    let pools = format!("{path}/nodepools");
    send(harness, &ann, "POST", &pools, json!({"name": "w", "size": 0})).await.is(201);
    let begun = send(harness, &ann, "DELETE", &path, Value::Null).await.is(202);
    let again = send(harness, &ann, "DELETE", &path, Value::Null).await.is(202);
    assert_eq!(begun.text("id"), again.text("id"));
    assert_eq!(begun.header("roadstead-operation"), Some(begun.text("id").as_str()));
    send(harness, &ann, "PATCH", &path, json!({"name": "late"})).await.is(409);
    send(harness, &ann, "POST", &pools, json!({"name": "late", "size": 0})).await.is(409);
    let running =
        send(harness, &ann, "GET", &format!("{OPERATIONS}?state=running"), Value::Null).await.is(200);
    assert_eq!(
        running.body["items"].as_array().unwrap().len(),
        1,
        "everything else ended: {:?}",
        running.body
    );

    // As the driver does when nothing is left: what was drained is kept over a crash, and the end is one step.
    state.db.progress_of(id, OperationKind::ClusterDelete, &Progress::running(20, "draining")).await.unwrap();
    state.db.set_drained(id, &[]).await.unwrap();
    let row = state.db.cluster_row(id).await.unwrap().unwrap();
    assert_eq!(row.drained, Some(Vec::new()));
    let now = state.clock.now();
    let receipt = state.receipts.sign(&row.cluster, Vec::new(), now).unwrap();
    state.db.finish_cluster(&row, &receipt).await.unwrap();
    state.db.finish_cluster(&row, &receipt).await.unwrap();
    send(harness, &ann, "GET", &path, Value::Null).await.is(404);
    let kept =
        send(harness, &ann, "GET", &format!("/api/v1/organizations/red/receipts/{id}"), Value::Null).await;
    assert_eq!(kept.is(200).text("signature"), receipt.signature);
    let done = send(harness, &ann, "GET", &format!("{OPERATIONS}/{}", begun.text("id")), Value::Null).await;
    assert_eq!((done.text("state").as_str(), &done.body["progress"]), ("succeeded", &json!(100)));

    // A stranger knows of none of it.
    harness.organization("blue").await;
    let stranger = harness.member("blue", "bob@blue.example", "admin").await;
    for path in [OPERATIONS.to_owned(), format!("/api/v1/organizations/red/receipts/{id}")] {
        send(harness, &stranger, "GET", &path, Value::Null).await.is(404);
    }
    let before =
        state.db.operations(row.organization_id, None, Some(OperationState::Succeeded), "", 10).await;
    assert!(!before.unwrap().is_empty());
    state.db.forget_operations(base_clock::Timestamp::MAX).await.unwrap();
    assert!(state.db.operations(row.organization_id, None, None, "", 10).await.unwrap().is_empty());
}
