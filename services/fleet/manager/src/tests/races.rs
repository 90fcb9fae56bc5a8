//! Many at once, and one of them wins.

use futures::future::join_all;
use serde_json::json;

use super::{Harness, PASSWORD, Who};

const MEMBERS: &str = "/api/v1/organizations/red/members";

/// How many of `statuses` are `wanted`.
fn count(statuses: &[u16], wanted: u16) -> usize {
    statuses.iter().filter(|status| **status == wanted).count()
}

pub(super) async fn one_name_goes_to_one_of_many(harness: &Harness) {
    let provider = harness.provider().await;
    let attempts = (0..16).map(|_| async {
        let body = Some(json!({"name": "acme"}));
        harness.send(&provider, "POST", "/api/v1/organizations", body).await.status.as_u16()
    });
    let statuses = join_all(attempts).await;
    assert_eq!((count(&statuses, 201), count(&statuses, 409)), (1, 15), "{statuses:?}");
}

pub(super) async fn one_key_is_worked_on_once(harness: &Harness) {
    let provider = harness.provider().await;
    let attempts = (0..16).map(|_| async {
        let body = Some(json!({"description": "ci", "role": "provider"}).to_string());
        let headers = [("idempotency-key", "k")];
        harness.send_with(&provider, "POST", "/api/v1/tokens", body, &headers).await
    });
    let answers = join_all(attempts).await;
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert_eq!(count(&statuses, 201) + count(&statuses, 409), 16, "{statuses:?}");
    let made: Vec<String> =
        answers.iter().filter(|answer| answer.status == 201).map(|answer| answer.text("secret")).collect();
    assert!(!made.is_empty() && made.iter().all(|secret| *secret == made[0]), "{statuses:?}");
    let tokens = harness.send(&provider, "GET", "/api/v1/tokens", None).await.is(200).body;
    assert_eq!(tokens["items"].as_array().unwrap().len(), 2, "the provider's own and one more");
}

/// A patch changes what it names and nothing else, whoever patches at the same time.
pub(super) async fn patches_of_different_fields_all_hold(harness: &Harness) {
    let red = harness.organization("red").await;
    harness.cluster(red.id, "demo").await;
    let provider = harness.provider().await;
    let cluster = "/api/v1/organizations/red/clusters/demo";
    let pools = format!("{cluster}/nodepools");
    let made = json!({"name": "w", "size": 1});
    let pool = harness.send(&provider, "POST", &pools, Some(made)).await.is(201);
    // By id, since one of the patches is another name.
    let pool = format!("{pools}/{}", pool.text("id"));
    for round in 0..4 {
        let patches = [
            (&pool, json!({"size": 10 + round})),
            (&pool, json!({"labels": {format!("a{round}"): "1"}})),
            (&pool, json!({"name": format!("w{round}")})),
            (&cluster.to_owned(), json!({"labels": {format!("a{round}"): "1"}})),
            (&cluster.to_owned(), json!({"labels": {format!("b{round}"): "1"}})),
            (&cluster.to_owned(), json!({"labels": {format!("c{round}"): "1"}})),
        ];
        let sent = patches.iter().map(|(path, patch)| {
            let provider = &provider;
            async move { harness.send(provider, "PATCH", path, Some(patch.clone())).await.is(200) }
        });
        join_all(sent).await;
        let pool = harness.send(&provider, "GET", &pool, None).await.is(200).body;
        assert_eq!((&pool["size"], &pool["name"]), (&json!(10 + round), &json!(format!("w{round}"))));
        assert_eq!(pool["labels"][format!("a{round}")], "1", "{pool}");
        let cluster = harness.send(&provider, "GET", cluster, None).await.is(200).body;
        for letter in ["a", "b", "c"] {
            assert_eq!(cluster["labels"][format!("{letter}{round}")], "1", "{cluster}");
        }
    }
}

pub(super) async fn one_invitation_lets_one_in(harness: &Harness) {
    harness.organization("red").await;
    let invite = json!({"email": "ann@red.example", "role": "viewer"});
    let invited = harness.send(&harness.provider().await, "POST", MEMBERS, Some(invite)).await.is(201);
    let invitation = invited.text("invitation");
    let attempts = (0..4).map(|number| {
        let body = json!({"invitation": invitation, "name": format!("Ann {number}"), "password": PASSWORD});
        async { harness.send(&Who::Nobody, "POST", "/api/v1/invitations/accept", Some(body)).await }
    });
    let answers = join_all(attempts).await;
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    assert_eq!((count(&statuses, 201), count(&statuses, 404)), (1, 3), "{statuses:?}");
}

pub(super) async fn two_admins_cannot_both_leave(harness: &Harness) {
    harness.organization("red").await;
    let ann = harness.member("red", "ann@red.example", "admin").await;
    let bob = harness.member("red", "bob@red.example", "admin").await;
    let (ann_id, bob_id) =
        (harness.user_id("ann@red.example").await, harness.user_id("bob@red.example").await);
    let leave = async |who: &Who, id: &str| {
        harness.send(who, "DELETE", &format!("{MEMBERS}/{id}"), None).await.status.as_u16()
    };
    let (one, two) = futures::join!(leave(&ann, &ann_id), leave(&bob, &bob_id));
    let statuses = [one, two];
    assert_eq!((count(&statuses, 204), count(&statuses, 409)), (1, 1), "{statuses:?}");
}

pub(super) async fn a_removed_member_stops_at_once(harness: &Harness) {
    harness.organization("red").await;
    let ann = harness.member("red", "ann@red.example", "admin").await;
    let bob = harness.member("red", "bob@red.example", "admin").await;
    let bob_id = harness.user_id("bob@red.example").await;
    let remove = async {
        let path = format!("{MEMBERS}/{bob_id}");
        harness.send(&ann, "DELETE", &path, None).await.is(204);
    };
    // Whatever Bob is doing meanwhile is done as a member or refused, never an error.
    let act = join_all((0..8).map(|number| {
        let body = json!({"email": format!("friend{number}@red.example"), "role": "admin"});
        let bob = &bob;
        async move { harness.send(bob, "POST", MEMBERS, Some(body)).await.status.as_u16() }
    }));
    let ((), statuses) = futures::join!(remove, act);
    assert!(statuses.iter().all(|status| matches!(status, 201 | 404)), "{statuses:?}");
    let body = json!({"email": "late@red.example", "role": "admin"});
    harness.send(&bob, "POST", MEMBERS, Some(body)).await.is(404);
}
