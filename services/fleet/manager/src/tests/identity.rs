//! Signing in, members, tokens.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Harness, OPERATOR, PASSWORD, Who};
use crate::db::sql;

const SESSIONS: &str = "/api/v1/sessions";
const SESSION: &str = "/api/v1/session";
const ACCEPT: &str = "/api/v1/invitations/accept";
const MEMBERS: &str = "/api/v1/organizations/red/members";

fn credentials(email: &str, password: &str) -> Option<Value> {
    Some(json!({"email": email, "password": password}))
}

pub(super) async fn people_sign_in_and_out(harness: &Harness) {
    harness.operator().await;
    let session = harness.send(&Who::Nobody, "POST", SESSIONS, credentials(OPERATOR, PASSWORD)).await.is(201);
    let cookie = session.header("set-cookie").unwrap();
    for part in ["__Host-roadstead=rss_", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert_eq!(session.body["user"]["email"], OPERATOR);
    assert_eq!(session.text("expires_at"), "2026-12-01T12:00:00Z");
    let who = Who::Bearer(session.text("secret"));
    let identity = harness.send(&who, "GET", SESSION, None).await.is(200).body;
    assert_eq!((&identity["provider"], &identity["memberships"]), (&json!(true), &json!([])), "{identity}");
    let out = harness.send(&who, "DELETE", SESSION, None).await.is(204);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    harness.send(&who, "GET", SESSION, None).await.is(401);
    // The address is found however it is written.
    harness
        .send(&Who::Nobody, "POST", SESSIONS, credentials(&OPERATOR.to_uppercase(), PASSWORD))
        .await
        .is(201);

    harness.organization("red").await;
    let viewer = harness.member("red", "vera@red.example", "viewer").await;
    let identity = harness.send(&viewer, "GET", SESSION, None).await.is(200).body;
    assert_eq!(identity["memberships"], json!([{"organization": "red", "role": "viewer"}]));
    assert_eq!(identity["provider"], json!(false));
    let token = harness.provider().await;
    harness.send(&token, "DELETE", SESSION, None).await.is(409);
}

pub(super) async fn a_wrong_password_and_an_unknown_person_are_alike(harness: &Harness) {
    harness.operator().await;
    harness.organization("red").await;
    // Invited, without a password yet.
    let provider = harness.provider().await;
    let invite = json!({"email": "new@red.example", "role": "viewer"});
    harness.send(&provider, "POST", MEMBERS, Some(invite)).await.is(201);
    let mut answers = Vec::new();
    for (email, password) in [
        (OPERATOR, "wrong horse battery"),
        (OPERATOR, ""),
        ("nobody@red.example", PASSWORD),
        ("new@red.example", PASSWORD),
        ("new@red.example", ""),
        ("no address", PASSWORD),
        ("a\0b@red.example", PASSWORD),
        ("' OR 1=1 --", "' OR 1=1 --"),
    ] {
        let answer = harness.send(&Who::Nobody, "POST", SESSIONS, credentials(email, password)).await.is(401);
        assert!(answer.header("set-cookie").is_none());
        answers.push(answer.body);
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}

pub(super) async fn wrong_passwords_run_out(harness: &Harness) {
    harness.operator().await;
    for _ in 0..10 {
        harness.send(&Who::Nobody, "POST", SESSIONS, credentials(OPERATOR, "wrong")).await.is(401);
    }
    let refused = harness.send(&Who::Nobody, "POST", SESSIONS, credentials(OPERATOR, PASSWORD)).await.is(429);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31).contains(&wait), "{wait}");
    harness.wait(wait);
    harness.send(&Who::Nobody, "POST", SESSIONS, credentials(OPERATOR, PASSWORD)).await.is(201);
}

pub(super) async fn sessions_slide_and_end(harness: &Harness) {
    const HOUR: u64 = 3600;
    harness.organization("red").await;
    let ann = harness.member("red", "ann@red.example", "viewer").await;
    // Used every eleven hours it goes on, for a week.
    for hours in (11..=7 * 24 - 1).step_by(11) {
        harness.wait(11 * HOUR);
        assert_eq!(harness.send(&ann, "GET", SESSION, None).await.status, 200, "after {hours} h");
    }
    harness.wait(4 * HOUR);
    harness.send(&ann, "GET", SESSION, None).await.is(401);
    // Not used for twelve, it ends.
    let again = harness.send(&Who::Nobody, "POST", SESSIONS, credentials("ann@red.example", PASSWORD)).await;
    let again = Who::Bearer(again.is(201).text("secret"));
    harness.wait(12 * HOUR - 1);
    harness.send(&again, "GET", SESSION, None).await.is(200);
    harness.wait(12 * HOUR);
    harness.send(&again, "GET", SESSION, None).await.is(401);
}

pub(super) async fn a_new_password_ends_other_sessions(harness: &Harness) {
    const NEW: &str = "wrong horse battery";
    harness.organization("red").await;
    let here = harness.member("red", "ann@red.example", "viewer").await;
    let sign_in = async |password: &str| {
        harness.send(&Who::Nobody, "POST", SESSIONS, credentials("ann@red.example", password)).await
    };
    let there = Who::Bearer(sign_in(PASSWORD).await.is(201).text("secret"));
    let change = async |who: &Who, current: &str, new: &str| {
        let body = json!({"current": current, "new": new});
        harness.send(who, "PUT", "/api/v1/session/password", Some(body)).await.status.as_u16()
    };
    assert_eq!(change(&here, "not the one it is", NEW).await, 403);
    assert_eq!(change(&here, PASSWORD, "too short").await, 400);
    assert_eq!(change(&here, PASSWORD, &"x".repeat(129)).await, 400);
    assert_eq!(change(&harness.provider().await, PASSWORD, NEW).await, 403, "a token has none");
    assert_eq!(change(&here, PASSWORD, NEW).await, 204);
    harness.send(&here, "GET", SESSION, None).await.is(200);
    harness.send(&there, "GET", SESSION, None).await.is(401);
    sign_in(PASSWORD).await.is(401);
    sign_in(NEW).await.is(201);
}

pub(super) async fn a_cookie_works_from_our_own_pages_only(harness: &Harness) {
    harness.organization("red").await;
    let Who::Bearer(secret) = harness.member("red", "ann@red.example", "admin").await else {
        unreachable!("members show a secret")
    };
    let body = json!({"email": "bob@red.example", "role": "viewer"});
    for (headers, wanted) in [
        (vec![], 403),
        (vec![("sec-fetch-site", "same-origin")], 201),
        (vec![("sec-fetch-site", "same-site")], 403),
        (vec![("sec-fetch-site", "cross-site")], 403),
        (vec![("sec-fetch-site", "none")], 403),
        (vec![("origin", "https://roadstead.test:8443")], 201),
        (vec![("origin", "https://roadstead.test")], 403),
        (vec![("origin", "http://roadstead.test:8443")], 403),
        (vec![("origin", "null")], 403),
        (vec![("origin", "https://evil.example")], 403),
        (vec![("sec-fetch-site", "cross-site"), ("origin", "https://roadstead.test:8443")], 403),
    ] {
        let who = Who::Cookie(secret.clone(), headers.clone());
        let answer = harness.send(&who, "POST", MEMBERS, Some(body.clone())).await;
        assert_eq!(answer.status.as_u16(), wanted, "{headers:?}");
        harness.send(&who, "GET", MEMBERS, None).await.is(200);
    }
}

pub(super) async fn an_invitation_works_once(harness: &Harness) {
    harness.organization("red").await;
    let admin = harness.member("red", "ann@red.example", "admin").await;
    let invite = async || {
        let body = json!({"email": "Bob@Red.example", "role": "developer"});
        harness.send(&admin, "POST", MEMBERS, Some(body)).await.is(201).text("invitation")
    };
    let accept = async |invitation: &str, password: &str| {
        let body = json!({"invitation": invitation, "name": " Bob ", "password": password});
        harness.send(&Who::Nobody, "POST", ACCEPT, Some(body)).await
    };
    let replaced = invite().await;
    let invitation = invite().await;
    let listed = harness.send(&admin, "GET", MEMBERS, None).await.is(200).body;
    assert_eq!(listed["items"][1]["invited"], json!(true), "{listed}");
    assert_eq!(listed["items"][1].get("invitation"), None, "shown once");
    accept(&replaced, PASSWORD).await.is(404);
    accept("rsi_00_00", PASSWORD).await.is(404);
    accept(&invitation, "too short").await.is(400);
    let session = accept(&invitation, PASSWORD).await.is(201);
    assert_eq!(session.body["user"]["name"], "Bob");
    assert_eq!(session.body["user"]["email"], "bob@red.example");
    accept(&invitation, PASSWORD).await.is(404);
    let bob = Who::Bearer(session.text("secret"));
    harness.send(&bob, "GET", "/api/v1/organizations/red", None).await.is(200);
    let again = json!({"email": "bob@red.example", "role": "viewer"});
    harness.send(&admin, "POST", MEMBERS, Some(again)).await.is(409);
    // Expired.
    let late = json!({"email": "late@red.example", "role": "viewer"});
    let late =
        harness.send(&harness.provider().await, "POST", MEMBERS, Some(late)).await.is(201).text("invitation");
    harness.wait(7 * 24 * 3600);
    accept(&late, PASSWORD).await.is(404);
}

pub(super) async fn an_account_is_whoever_knows_its_password(harness: &Harness) {
    harness.organization("red").await;
    harness.organization("blue").await;
    let mallory = harness.member("blue", "mallory@blue.example", "admin").await;
    harness.member("red", "ann@red.example", "admin").await;
    let invite = json!({"email": "ann@red.example", "role": "admin"});
    let invited =
        harness.send(&mallory, "POST", "/api/v1/organizations/blue/members", Some(invite)).await.is(201);
    assert_eq!(invited.body["user"]["name"], "", "what she is called elsewhere is not told");
    let accept = async |password: &str| {
        let body = json!({"invitation": invited.text("invitation"), "name": "Mallory", "password": password});
        harness.send(&Who::Nobody, "POST", ACCEPT, Some(body)).await
    };
    // The one who holds the invitation is not therefore the person.
    accept("mallory's own choice").await.is(401);
    let session = accept(PASSWORD).await.is(201);
    assert_eq!(session.body["user"]["name"], "ann@red.example");
    let both = harness.send(&Who::Bearer(session.text("secret")), "GET", SESSION, None).await.is(200).body;
    assert_eq!(
        both["memberships"],
        json!([{"organization": "blue", "role": "admin"}, {"organization": "red", "role": "admin"}])
    );
}

pub(super) async fn the_last_admin_stays(harness: &Harness) {
    harness.organization("red").await;
    let ann = harness.member("red", "ann@red.example", "admin").await;
    let (ann_id, provider) = (harness.user_id("ann@red.example").await, harness.provider().await);
    let at = |id: &str| format!("{MEMBERS}/{id}");
    // One who was only invited is no admin yet.
    let invite = json!({"email": "bob@red.example", "role": "admin"});
    harness.send(&ann, "POST", MEMBERS, Some(invite)).await.is(201);
    for who in [&ann, &provider] {
        harness.send(who, "DELETE", &at(&ann_id), None).await.is(409);
        harness.send(who, "PATCH", &at(&ann_id), Some(json!({"role": "viewer"}))).await.is(409);
        harness.send(who, "PATCH", &at(&ann_id), Some(json!({"role": "admin"}))).await.is(200);
    }
    let bob_id = harness.user_id("bob@red.example").await;
    harness.send(&ann, "DELETE", &at(&bob_id), None).await.is(204);
    harness.send(&ann, "DELETE", &at(&bob_id), None).await.is(404);
    let carl = harness.member("red", "carl@red.example", "admin").await;
    harness.send(&carl, "PATCH", &at(&ann_id), Some(json!({"role": "viewer"}))).await.is(200);
    harness.send(&ann, "GET", MEMBERS, None).await.is(403);
    harness.send(&carl, "PATCH", &at(&ann_id), Some(json!({"role": "provider"}))).await.is(400);
    harness.send(&carl, "DELETE", &at(&ann_id), None).await.is(204);
    harness.send(&ann, "GET", "/api/v1/organizations/red", None).await.is(404);
}

pub(super) async fn nobody_makes_a_token_mightier_than_themselves(harness: &Harness) {
    let red = harness.organization("red").await;
    harness.organization("blue").await;
    let admin = harness.member("red", "ann@red.example", "admin").await;
    let developer = harness.member("red", "dev@red.example", "developer").await;
    let in_an_hour = harness.now() + base_clock::SignedDuration::from_hours(1);
    let short = harness.token(Some(red.id), fleet_model::Role::Admin, None, Some(in_an_hour)).await;
    let provider = harness.provider().await;
    let request = |role: &str, organization: Option<&str>| json!({"description": "ci", "role": role, "organization": organization});
    for (who, body, wanted) in [
        (&admin, request("admin", Some("red")), 201),
        (&admin, request("viewer", Some("red")), 201),
        (&admin, request("provider", None), 403),
        (&admin, request("provider", Some("red")), 422),
        (&admin, request("admin", Some("blue")), 404),
        (&admin, request("admin", None), 422),
        (&developer, request("viewer", Some("red")), 403),
        (&short, request("provider", None), 403),
        (&short, request("viewer", Some("blue")), 404),
        (&provider, request("provider", None), 201),
        (&provider, request("admin", Some("blue")), 201),
    ] {
        let answer = harness.send(who, "POST", "/api/v1/tokens", Some(body.clone())).await;
        assert_eq!(answer.status.as_u16(), wanted, "{who:?} {body}");
    }
    // Nor one that outlives them.
    for seconds in [None, Some(24 * 3600)] {
        let body = json!({"description": "", "role": "viewer", "organization": "red", "expires_in_seconds": seconds});
        let made = harness.send(&short, "POST", "/api/v1/tokens", Some(body)).await.is(201);
        assert_eq!(made.text("expires_at"), in_an_hour.to_string());
        let made = Who::Bearer(made.text("secret"));
        harness.send(&made, "GET", SESSION, None).await.is(200);
    }
    // An admin of red neither sees nor deletes the others'.
    let listed = harness.send(&admin, "GET", "/api/v1/tokens", None).await.is(200).body;
    let organizations: Vec<&Value> =
        listed["items"].as_array().unwrap().iter().map(|token| &token["organization"]).collect();
    assert!(organizations.len() >= 4 && organizations.iter().all(|name| **name == "red"), "{listed}");
    let all = harness.send(&provider, "GET", "/api/v1/tokens", None).await.is(200).body;
    for token in all["items"].as_array().unwrap().iter().filter(|token| token["organization"] != "red") {
        let path = format!("/api/v1/tokens/{}", token["id"].as_str().unwrap());
        harness.send(&admin, "DELETE", &path, None).await.is(404);
    }
    harness.send(&admin, "GET", "/api/v1/tokens?organization=blue", None).await.is(404);
}

pub(super) async fn a_token_falls_with_its_maker(harness: &Harness) {
    harness.organization("red").await;
    let ann = harness.member("red", "ann@red.example", "admin").await;
    let bob = harness.member("red", "bob@red.example", "admin").await;
    let body = json!({"description": "ci", "role": "admin", "organization": "red"});
    let made = harness.send(&bob, "POST", "/api/v1/tokens", Some(body.clone())).await.is(201);
    assert_eq!(made.text("created_by"), "bob@red.example");
    let token = Who::Bearer(made.text("secret"));
    // One made by the token is bound by the same person.
    let child = harness.send(&token, "POST", "/api/v1/tokens", Some(body)).await.is(201);
    assert_eq!(child.text("created_by"), "bob@red.example");
    let child = Who::Bearer(child.text("secret"));
    let bob_path = format!("{MEMBERS}/{}", harness.user_id("bob@red.example").await);
    harness.send(&ann, "PATCH", &bob_path, Some(json!({"role": "viewer"}))).await.is(200);
    for who in [&token, &child] {
        harness.send(who, "GET", MEMBERS, None).await.is(403);
        harness.send(who, "GET", "/api/v1/organizations/red", None).await.is(200);
    }
    harness.send(&ann, "DELETE", &bob_path, None).await.is(204);
    for who in [&token, &child] {
        harness.send(who, "GET", "/api/v1/organizations/red", None).await.is(401);
    }
    harness.send(&bob, "GET", SESSION, None).await.is(200);
    harness.send(&bob, "GET", "/api/v1/organizations/red", None).await.is(404);
}

pub(super) async fn a_token_of_one_cluster_sees_no_other(harness: &Harness) {
    let red = harness.organization("red").await;
    let (mine, other) = (harness.cluster(red.id, "mine").await, harness.cluster(red.id, "other").await);
    let admin = harness.member("red", "ann@red.example", "admin").await;
    let request = |cluster: &str, role: &str| json!({"description": "", "role": role, "organization": "red", "cluster": cluster});
    let create = async |body| harness.send(&admin, "POST", "/api/v1/tokens", Some(body)).await;
    create(request("none", "developer")).await.is(404);
    create(request("mine", "admin")).await.is(422);
    let by_id = create(request(&mine.to_string(), "viewer")).await.is(201);
    let made = create(request("mine", "developer")).await.is(201);
    assert_eq!(by_id.text("cluster"), made.text("cluster"));
    let token = Who::Bearer(made.text("secret"));
    let clusters = "/api/v1/organizations/red/clusters";
    for (path, wanted) in [
        (format!("{clusters}/mine"), 200),
        (format!("{clusters}/{mine}"), 200),
        (format!("{clusters}/other"), 404),
        (format!("{clusters}/{other}"), 404),
        (format!("{clusters}/nothing"), 404),
        (MEMBERS.to_owned(), 403),
        ("/api/v1/tokens".to_owned(), 403),
    ] {
        assert_eq!(harness.send(&token, "GET", &path, None).await.status.as_u16(), wanted, "{path}");
    }
    let listed = harness.send(&token, "GET", clusters, None).await.is(200).body;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    harness.send(&token, "POST", clusters, Some(json!({"name": "more"}))).await.is(403);
    // With the cluster goes the token.
    let db = &harness.manager.state.db;
    db.run(sql("DELETE FROM clusters WHERE id = $1").bind(mine)).await.unwrap();
    harness.send(&token, "GET", SESSION, None).await.is(401);
}

pub(super) async fn hostile_values_are_refused_with_words(harness: &Harness) {
    let red = harness.organization("red").await;
    harness.cluster(red.id, "mine").await;
    let provider = harness.provider().await;
    let long = "x".repeat(300);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let post = |path: &str, body: &str| (path.to_owned(), body.to_owned());
    let organizations = "/api/v1/organizations";
    for (path, body) in [
        post(organizations, ""),
        post(organizations, "null"),
        post(organizations, "[]"),
        post(organizations, r#"{"name":null}"#),
        post(organizations, r#"{"name":""}"#),
        post(organizations, r#"{"name":"Red"}"#),
        post(organizations, r#"{"name":"a/b"}"#),
        post(organizations, r#"{"name":"..\u0000"}"#),
        post(organizations, r#"{"name":"a'; DROP TABLE users; --"}"#),
        post(organizations, r#"{"name":"ok","admin":true}"#),
        post(organizations, r#"{"name":"ok","name":"ok"}"#),
        post(organizations, &format!(r#"{{"name":{deep}}}"#)),
        post(MEMBERS, r#"{"email":"x","role":"viewer"}"#),
        post(MEMBERS, r#"{"email":"x\u0000@red.example","role":"viewer"}"#),
        post(MEMBERS, r#"{"email":"x@red.example","role":"root"}"#),
        post(MEMBERS, r#"{"email":"x@red.example","role":"provider"}"#),
        post("/api/v1/tokens", &format!(r#"{{"description":"{long}","role":"provider"}}"#)),
        post("/api/v1/tokens", r#"{"description":"a\u0000b","role":"provider"}"#),
        post("/api/v1/tokens", r#"{"description":"","role":"provider","expires_in_seconds":0}"#),
        post("/api/v1/tokens", r#"{"description":"","role":"provider","expires_in_seconds":-1}"#),
        post("/api/v1/tokens", r#"{"description":"","role":"provider","expires_in_seconds":1e99}"#),
        post("/api/v1/organizations/red/clusters", r#"{"name":"x","replicas":-1}"#),
        post("/api/v1/organizations/red/clusters", r#"{"name":"x","labels":{"a b":"c"}}"#),
        post("/api/v1/organizations/red/clusters/mine/nodepools", r#"{"name":"w","size":-1}"#),
        post("/api/v1/organizations/red/clusters/mine/nodepools", r#"{"name":"w","size":1001}"#),
    ] {
        let answer = harness.send_with(&provider, "POST", &path, Some(body.clone()), &[]).await;
        assert_eq!(answer.status.as_u16(), 400, "{path} {body:.80}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{body:.80}");
        assert!(answer.text("detail").len() > 5, "{answer:?}");
    }
    for path in [
        "/api/v1/organizations?limit=0",
        "/api/v1/organizations?limit=501",
        "/api/v1/organizations?limit=-9223372036854775809",
        "/api/v1/organizations?limit=1&limit=2",
        "/api/v1/organizations?continue=%00",
    ] {
        harness.send(&provider, "GET", path, None).await.is(400);
    }
    for path in [
        "/api/v1/organizations/%00",
        "/api/v1/organizations/%ff",
        "/api/v1/organizations/..%2f..",
        "/api/v1/organizations/red/members/%00",
        "/api/v1/organizations/red/clusters/%00",
        "/api/v1/organizations/red%00",
    ] {
        let answer = harness.send(&provider, "GET", path, None).await;
        assert!(matches!(answer.status.as_u16(), 404 | 405), "{path}: {answer:?}");
    }
    let huge = harness
        .send_with(
            &provider,
            "POST",
            organizations,
            Some(format!(r#"{{"name":"{}"}}"#, "x".repeat(70_000))),
            &[],
        )
        .await;
    assert_eq!(huge.status, 413);
    let form =
        harness.send_with(&provider, "POST", organizations, None, &[("content-type", "text/plain")]).await;
    assert_eq!(form.status, 415);
}

/// Who was invited, never came and was removed leaves nothing behind; who has an account keeps it.
pub(super) async fn an_address_that_is_nobody_s_is_forgotten(harness: &Harness) {
    harness.organization("red").await;
    let provider = harness.provider().await;
    harness.member("red", "ann@red.example", "viewer").await;
    let invite = json!({"email": "gone@red.example", "role": "viewer"});
    harness.send(&provider, "POST", MEMBERS, Some(invite)).await.is(201);
    let db = &harness.manager.state.db;
    for email in ["ann@red.example", "gone@red.example"] {
        let id = harness.user_id(email).await;
        // While they are invited they are somebody.
        db.forget_ended(harness.now(), harness.now()).await.unwrap();
        harness.send(&provider, "DELETE", &format!("{MEMBERS}/{id}"), None).await.is(204);
    }
    db.forget_ended(harness.now(), harness.now()).await.unwrap();
    let found = async |email: &str| db.user_by_email(&email.parse().unwrap()).await.unwrap().is_some();
    assert_eq!((found("ann@red.example").await, found("gone@red.example").await), (true, false));
}

/// Whoever wonders why a program stopped can look, for a month.
pub(super) async fn an_expired_token_is_listed_for_a_while(harness: &Harness) {
    harness.organization("red").await;
    let provider = harness.provider().await;
    for name in ["short", "endless"] {
        let mut token = json!({"description": name, "role": "viewer", "organization": "red"});
        if name == "short" {
            token["expires_in_seconds"] = json!(60);
        }
        harness.send(&provider, "POST", "/api/v1/tokens", Some(token)).await.is(201);
    }
    for (days, wanted) in [(1, 2), (30, 2), (31, 1)] {
        let now = harness.now() + Duration::from_secs(days * 24 * 3600);
        harness.manager.state.db.forget_ended(now, harness.now()).await.unwrap();
        let listed = harness.send(&provider, "GET", "/api/v1/tokens?organization=red", None).await;
        assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(wanted), "after {days} days");
    }
}

pub(super) async fn lists_come_in_pages(harness: &Harness) {
    let red = harness.organization("red").await;
    let provider = harness.provider().await;
    for number in 0..5 {
        harness.organization(&format!("org-{number}")).await;
        harness.cluster(red.id, &format!("cluster-{number}")).await;
        let invite = json!({"email": format!("u{number}@red.example"), "role": "viewer"});
        harness.send(&provider, "POST", MEMBERS, Some(invite)).await.is(201);
        harness.provider().await;
    }
    for (path, count) in [
        ("/api/v1/organizations", 6),
        ("/api/v1/organizations/red/clusters", 5),
        (MEMBERS, 5),
        ("/api/v1/tokens", 6),
    ] {
        let mut seen = Vec::new();
        let mut next = String::new();
        loop {
            let asked = format!("{path}?limit=2{next}");
            let page = harness.send(&provider, "GET", &asked, None).await.is(200).body;
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= 2);
            seen.extend(items.iter().map(Value::to_string));
            match page["continue"].as_str() {
                Some(token) => next = format!("&continue={token}"),
                None => break,
            }
        }
        let whole = harness.send(&provider, "GET", path, None).await.is(200).body;
        let whole: Vec<String> = whole["items"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!((seen.len(), &seen), (count, &whole), "{path}");
    }
}
