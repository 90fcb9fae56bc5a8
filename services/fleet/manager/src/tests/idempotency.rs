//! Keyed requests: sent twice, done once.

use std::time::Duration;

use base_ids::{OrgId, TenantId};
use fleet_model::Organization;
use serde_json::{Value, json};

use super::{Answered, Harness, Who};
use crate::db::{Db, KeptKey, MAX_POOLS, Read, Row, sql};

const ORGANIZATIONS: &str = "/api/v1/organizations";

async fn keyed(harness: &Harness, who: &Who, path: &str, key: &str, body: &Value) -> Answered {
    let body = Some(body.to_string());
    harness.send_with(who, "POST", path, body, &[("idempotency-key", key)]).await
}

pub(super) async fn the_first_answer_again(harness: &Harness) {
    let provider = harness.provider().await;
    let other = harness.provider().await;
    let token = json!({"description": "ci", "role": "provider"});
    let first = keyed(harness, &provider, "/api/v1/tokens", "k", &token).await.is(201);
    assert_eq!(first.header("idempotency-replayed"), None);
    let second = keyed(harness, &provider, "/api/v1/tokens", "k", &token).await.is(201);
    assert_eq!(second.header("idempotency-replayed"), Some("true"));
    assert_eq!(first.body, second.body, "with its secret");
    assert_eq!(first.header("content-type"), second.header("content-type"));
    // Another's key is another key.
    let others = keyed(harness, &other, "/api/v1/tokens", "k", &token).await.is(201);
    assert_ne!(first.body, others.body);
    // A day later it is a new request.
    harness.wait(24 * 3600);
    let later = keyed(harness, &provider, "/api/v1/tokens", "k", &token).await.is(201);
    assert_ne!(first.body, later.body);
    for key in ["", &"x".repeat(129), "ta\tb", "ü"] {
        let refused = keyed(harness, &provider, "/api/v1/tokens", key, &token).await;
        assert_eq!(refused.status, 400, "{key:?}");
    }
}

pub(super) async fn another_body_is_another_request(harness: &Harness) {
    let provider = harness.provider().await;
    keyed(harness, &provider, ORGANIZATIONS, "k", &json!({"name": "acme"})).await.is(201);
    keyed(harness, &provider, ORGANIZATIONS, "k", &json!({"name": "other"})).await.is(422);
    keyed(harness, &provider, "/api/v1/tokens", "k", &json!({"name": "acme"})).await.is(422);
    harness.send(&provider, "GET", "/api/v1/organizations/other", None).await.is(404);
}

pub(super) async fn a_refusal_is_not_kept(harness: &Harness) {
    let provider = harness.provider().await;
    harness.organization("acme").await;
    keyed(harness, &provider, ORGANIZATIONS, "k", &json!({"name": "acme"})).await.is(409);
    harness.send(&provider, "DELETE", "/api/v1/organizations/acme", None).await.is(204);
    keyed(harness, &provider, ORGANIZATIONS, "k", &json!({"name": "acme"})).await.is(201);
}

/// What kill -9 between the work and its record leaves: a key without an answer, and the work under its id.
async fn crash(db: &Db, at: &KeptKey) -> String {
    db.run(
        sql("UPDATE idempotency SET status = NULL, answer = NULL WHERE caller = $1 AND key = $2")
            .bind(&at.caller)
            .bind(&at.key),
    )
    .await
    .unwrap();
    db.kept(at).await.unwrap().unwrap().resource_id
}

fn key_of(who: &Who, key: &str) -> KeptKey {
    let Who::Bearer(secret) = who else { unreachable!("tokens are shown") };
    let id = secret.split('_').nth(1).unwrap();
    KeptKey { caller: format!("token:{id}"), key: key.to_owned() }
}

pub(super) async fn work_without_a_record_is_found_again(harness: &Harness) {
    let provider = harness.provider().await;
    let db = &harness.manager.state.db;
    let organization = json!({"name": "acme"});
    let first = keyed(harness, &provider, ORGANIZATIONS, "org", &organization).await.is(201);
    let id = crash(db, &key_of(&provider, "org")).await;
    assert_eq!(first.text("id"), id);
    // Nobody holds the lease for long.
    keyed(harness, &provider, ORGANIZATIONS, "org", &organization).await.is(409);
    harness.wait(10);
    let second = keyed(harness, &provider, ORGANIZATIONS, "org", &organization).await.is(201);
    assert_eq!(first.body, second.body);

    // A token's secret was seen by nobody, so the same token gets another one.
    let token = json!({"description": "ci", "role": "viewer", "organization": "acme"});
    let first = keyed(harness, &provider, "/api/v1/tokens", "token", &token).await.is(201);
    crash(db, &key_of(&provider, "token")).await;
    harness.wait(10);
    let second = keyed(harness, &provider, "/api/v1/tokens", "token", &token).await.is(201);
    assert_eq!(first.text("id"), second.text("id"));
    harness.send(&Who::Bearer(first.text("secret")), "GET", "/api/v1/session", None).await.is(401);
    harness.send(&Who::Bearer(second.text("secret")), "GET", "/api/v1/session", None).await.is(200);
}

/// A limit that the first try reached, and a state that it brought about, are not held against the second.
pub(super) async fn its_own_earlier_work_is_no_reason_to_refuse(harness: &Harness) {
    let provider = harness.provider().await;
    let db = &harness.manager.state.db;
    let red = harness.organization("red").await;
    let id = harness.cluster(red.id, "demo").await;
    let pools = "/api/v1/organizations/red/clusters/demo/nodepools";
    for number in 1..MAX_POOLS {
        let body = json!({"name": format!("p{number}"), "size": 0});
        harness.send(&provider, "POST", pools, Some(body)).await.is(201);
    }
    let last = json!({"name": "last", "size": 1});
    let first = keyed(harness, &provider, pools, "pool", &last).await.is(201);
    harness.send(&provider, "POST", pools, Some(json!({"name": "more", "size": 0}))).await.is(409);
    crash(db, &key_of(&provider, "pool")).await;
    harness.wait(10);
    let second = keyed(harness, &provider, pools, "pool", &last).await.is(201);
    assert_eq!(first.text("id"), second.text("id"));
    assert_eq!(first.header("roadstead-operation"), second.header("roadstead-operation"));

    let cancel = format!("/api/v1/organizations/red/operations/{}/cancel", first.text("operation"));
    let first = keyed(harness, &provider, &cancel, "cancel", &Value::Null).await.is(200);
    assert_eq!(first.text("state"), "cancelled");
    crash(db, &key_of(&provider, "cancel")).await;
    harness.wait(10);
    let second = keyed(harness, &provider, &cancel, "cancel", &Value::Null).await.is(200);
    assert_eq!(first.body, second.body);

    // The fleet's last place went to the cluster itself.
    let clusters = "/api/v1/organizations/red/clusters";
    let cell = &db.cells().await.unwrap()[0];
    let (rpc, api) = (cell.rpc_address, cell.rpc_address);
    db.upsert_cell(cell.id, &cell.name, rpc, api, 2).await.unwrap();
    // As if the one cell had answered, and before somebody finds out that it does not.
    let body = json!({"name": "second"});
    let at = key_of(&provider, "cluster");
    let made = TenantId::generate();
    let now = harness.now();
    let past = now - Duration::from_secs(1);
    assert!(db.keep(&at, &hash("POST", clusters, &body), &made.to_string(), now, past).await.unwrap());
    harness.cluster_as(made, red.id, "second").await;
    harness.send(&provider, "POST", clusters, Some(json!({"name": "third"}))).await.is(503);
    let answer = keyed(harness, &provider, clusters, "cluster", &body).await.is(201);
    assert_eq!(answer.text("id"), made.to_string());
    assert_ne!(made, id);
}

/// What the manager keeps of a request, to tell it from another one with its key.
fn hash(method: &str, path: &str, body: &Value) -> String {
    use sha2::{Digest, Sha256};
    let text = format!("{method}\0{path}\0\0{body}");
    hex::encode(Sha256::digest(text.as_bytes()))
}

pub(super) async fn a_running_request_is_not_started_twice(harness: &Harness) {
    let provider = harness.provider().await;
    let db = &harness.manager.state.db;
    let body = json!({"name": "acme"});
    let at = key_of(&provider, "k");
    keyed(harness, &provider, ORGANIZATIONS, "k", &body).await.is(201);
    crash(db, &at).await;
    let refused = keyed(harness, &provider, ORGANIZATIONS, "k", &body).await.is(409);
    assert!(refused.header("retry-after").is_some());
    // A runner that is alive moves the lease on, and is never overtaken.
    for _ in 0..5 {
        harness.wait(8);
        let row = db.kept(&at).await.unwrap().unwrap();
        let longer = harness.now() + base_clock::SignedDuration::from_secs(9);
        assert!(db.take_lease(&at, row.lease, longer).await.unwrap());
        assert!(!db.take_lease(&at, row.lease, longer).await.unwrap(), "one of two gets it");
        keyed(harness, &provider, ORGANIZATIONS, "k", &body).await.is(409);
    }
}

struct Text(String);

impl Read for Text {
    fn read(row: &Row) -> Result<Text, sqlx::Error> {
        Ok(Text(row.text("answer")?))
    }
}

pub(super) async fn kept_secrets_are_sealed(harness: &Harness) {
    use base64::Engine;
    let provider = harness.provider().await;
    let token = json!({"description": "ci", "role": "provider"});
    let made = keyed(harness, &provider, "/api/v1/tokens", "k", &token).await.is(201);
    let db = &harness.manager.state.db;
    let kept: Option<Text> = db.one(sql("SELECT answer FROM idempotency")).await.unwrap();
    let kept = base64::engine::general_purpose::STANDARD.decode(kept.unwrap().0).unwrap();
    let secret = made.text("secret");
    assert!(!kept.windows(16).any(|window| secret.as_bytes().windows(16).any(|part| part == window)));
    // Swept after a day, with everything else that ended.
    harness.wait(24 * 3600);
    let now = harness.now();
    let gone = db.forget_ended(now, now - Duration::from_secs(24 * 3600)).await.unwrap();
    assert_eq!(gone, 1);
    let organization = Organization { id: OrgId::generate(), name: "acme".parse().unwrap(), created_at: now };
    db.insert_organization(&organization).await.unwrap();
}
