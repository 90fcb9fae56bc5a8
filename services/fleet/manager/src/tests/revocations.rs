//! Whose kubeconfigs are refused, as rows. No cell answers, so none is issued; it is written down before.

use fleet_model::Role;
use serde_json::{Value, json};

use super::{Harness, Who};
use crate::db::sql;

const KUBECONFIG: &str = "/api/v1/organizations/red/clusters/demo/kubeconfig";
const MEMBERS: &str = "/api/v1/organizations/red/members";
const DAY_SECONDS: u64 = 24 * 3600;

async fn ask(harness: &Harness, who: &Who, body: Option<Value>) -> u16 {
    harness.send(who, "POST", KUBECONFIG, body).await.status.as_u16()
}

pub(super) async fn who_may_less_is_refused_by_clusters(harness: &Harness) {
    let red = harness.organization("red").await;
    let blue = harness.organization("blue").await;
    let id = harness.cluster(red.id, "demo").await;
    let ann = harness.member("red", "ann@red.example", "admin").await;
    let bob = harness.member("red", "bob@red.example", "admin").await;
    let bob_path = format!("{MEMBERS}/{}", harness.user_id("bob@red.example").await);
    let db = &harness.manager.state.db;
    let state = async || {
        let mut users: Vec<(String, i64)> =
            db.revocations(red.id).await.unwrap().into_iter().map(|row| (row.user, row.before_ms)).collect();
        users.sort();
        (users, db.cluster_row(id).await.unwrap().unwrap().generation)
    };
    let token = async |who: &Who, name: &str| {
        let body = json!({"description": name, "role": "developer", "organization": "red"});
        let made = harness.send(who, "POST", "/api/v1/tokens", Some(body)).await.is(201);
        (made.text("id"), Who::Bearer(made.text("secret")))
    };

    for (body, wanted) in [
        (Some(json!({"expires_in_seconds": 599})), 400),
        (Some(json!({"expires_in_seconds": 366 * DAY_SECONDS})), 400),
        (Some(json!({"expires_in": 1})), 400),
        (Some(json!([])), 400),
        (Some(json!({})), 503),
        (None, 503),
    ] {
        assert_eq!(ask(harness, &bob, body.clone()).await, wanted, "{body:?}");
    }
    assert_eq!(ask(harness, &ann, None).await, 503);
    let (kept, by_kept) = token(&bob, "kept").await;
    let (unused, _) = token(&bob, "unused").await;
    let (gone, by_gone) = token(&ann, "gone").await;
    for program in [&by_kept, &by_gone] {
        assert_eq!(ask(harness, program, None).await, 503);
    }
    let (users, first) = state().await;
    assert_eq!(users, []);

    // A token that is deleted, and one that has no kubeconfig.
    let stranger = harness.member("blue", "eve@blue.example", "admin").await;
    harness.send(&stranger, "DELETE", &format!("/api/v1/tokens/{gone}"), None).await.is(404);
    assert_eq!(state().await, (vec![], first), "what a stranger asks for revokes nothing");
    harness.wait(10);
    let deleted_ms = harness.now().as_millisecond();
    harness.send(&ann, "DELETE", &format!("/api/v1/tokens/{gone}"), None).await.is(204);
    harness.send(&bob, "DELETE", &format!("/api/v1/tokens/{unused}"), None).await.is(204);
    assert_eq!(state().await, (vec![(format!("token:{gone}"), deleted_ms)], first + 1));

    // Demoted, with the tokens that he made; not when he stays what he is, or becomes more.
    harness.wait(10);
    let demoted_ms = harness.now().as_millisecond();
    for role in ["developer", "developer", "admin"] {
        harness.send(&ann, "PATCH", &bob_path, Some(json!({"role": role}))).await.is(200);
    }
    let wanted = |bob_ms| {
        let mut all = vec![
            ("bob@red.example".to_owned(), bob_ms),
            (format!("token:{gone}"), deleted_ms),
            (format!("token:{kept}"), bob_ms),
        ];
        all.sort();
        all
    };
    assert_eq!(state().await, (wanted(demoted_ms), first + 2));

    // Removed; what was asked for in that very moment is covered, whoever's clock is behind.
    assert_eq!(ask(harness, &bob, None).await, 503);
    harness.wait(10);
    let removed_ms = harness.now().as_millisecond();
    harness.send(&ann, "DELETE", &bob_path, None).await.is(204);
    assert_eq!(state().await, (wanted(removed_ms), first + 3));
    assert_eq!(ask(harness, &bob, None).await, 404);

    // Once nothing of it can be good any more it is forgotten.
    assert_eq!(db.revocations(blue.id).await.unwrap(), []);
    harness.wait(29 * DAY_SECONDS);
    db.forget_ended(harness.now(), harness.now()).await.unwrap();
    assert_eq!(state().await.0, []);
}

/// A provider's token may have been in every organisation.
pub(super) async fn a_provider_s_token_is_refused_everywhere(harness: &Harness) {
    let red = harness.organization("red").await;
    let blue = harness.organization("blue").await;
    harness.cluster(red.id, "demo").await;
    harness.cluster(blue.id, "demo").await;
    let made = harness.token(None, Role::Provider, None, None).await;
    for org in ["red", "blue"] {
        let path = format!("/api/v1/organizations/{org}/clusters/demo/kubeconfig");
        harness.send(&made, "POST", &path, None).await.is(503);
    }
    let id = harness.send(&made, "GET", "/api/v1/session", None).await.body["token"]["id"].clone();
    let id = id.as_str().unwrap();
    harness.send(&made, "DELETE", &format!("/api/v1/tokens/{id}"), None).await.is(204);
    for organization in [red.id, blue.id] {
        let rows = harness.manager.state.db.revocations(organization).await.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].user, format!("token:{id}"));
    }
}

/// Cells keep revocations in memory; past the bound the oldest are about everybody rather than about nobody.
pub(super) async fn revocations_are_bounded(harness: &Harness) {
    let red = harness.organization("red").await;
    harness.cluster(red.id, "demo").await;
    let db = &harness.manager.state.db;
    let now = harness.now().as_millisecond();
    for number in 0..500_i64 {
        db.run(
            sql("INSERT INTO revocations (organization_id, user_name, before_ms, expires_ms) VALUES ($1, $2, $3, $4)")
                .bind(red.id)
                .bind(format!("token:{number:03}"))
                .bind(now - 1000 + number)
                .bind(now + 1_000_000 + number),
        )
        .await
        .unwrap();
    }
    let made = harness.token(Some(red.id), Role::Admin, None, None).await;
    assert_eq!(ask(harness, &made, None).await, 503);
    let id = harness.send(&made, "GET", "/api/v1/session", None).await.body["token"]["id"].clone();
    let id = id.as_str().unwrap();
    harness.send(&made, "DELETE", &format!("/api/v1/tokens/{id}"), None).await.is(204);
    let rows = db.revocations(red.id).await.unwrap();
    assert_eq!(rows.len(), 252);
    assert_eq!((rows[0].user.as_str(), rows[0].before_ms), ("", now - 1000 + 249));
    assert!(rows.iter().any(|row| row.user == format!("token:{id}")));
    assert!(rows.iter().all(|row| row.user != "token:249") && rows.iter().any(|row| row.user == "token:250"));
}
