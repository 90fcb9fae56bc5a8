//! The wall between organisations, drawn in a file: every route of the router × every kind of caller.
//!
//! `UPDATE_GOLDEN=1 cargo nextest run -p fleet-manager authorization` writes the file anew; its diff is what
//! a review looks at.

use std::fmt::Write;
use std::path::Path;

use axum::http::Method;
use base_ids::TenantId;
use fleet_model::Role;
use serde_json::Value;

use super::{Harness, PASSWORD, Who};
use crate::Place;
use crate::http::routes;

const FILE: &str = "tests/authorization.txt";

const LEGEND: &str = "\
# Every route and what each kind of caller gets, made by src/tests/authorization.rs from the router's own table.
#
# The organisation in the path is `red`. Who may is let on to the handler, which finds a cell that is away (503),
# an unreadable body (400) or no such member, token, pool, operation or receipt (404 and what is missing).
#
# nobody     no credentials                       developer  of red
# expired    a token of red's, expired            admin      of red
# removed    signed in, but no longer in red      forged     red's admin, by cookie, from another site's page
# stranger   admin of the organisation blue       provider   a provider's token
# viewer     of red                               scoped     red's developer token for the cluster in the path
# elsewhere  red's developer token for another cluster
#
";

/// A caller, and the cluster that stands in the path when they ask.
struct Caller {
    name: &'static str,
    who: Who,
    cluster: TenantId,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_and_every_caller() {
    let dir = tempfile::tempdir().unwrap();
    let harness = Harness::start(Place::Sqlite(dir.path().join("manager.db"))).await;
    let callers = callers(&harness).await;
    let mut table = LEGEND.to_owned();
    let names: Vec<String> = callers.iter().map(|caller| format!("{:<17}", caller.name)).collect();
    writeln!(table, "{:<92}{}", "", names.concat().trim_end()).unwrap();
    let mut rows: Vec<routes::Route> = routes::all();
    // Deletions last, of one's own session at the very end: what is deleted answers no more questions.
    rows.sort_by_key(|route| (route.method == Some(Method::DELETE), route.path == "/api/v1/session"));
    let mut lines = Vec::new();
    for route in &rows {
        let method = route.method.clone().unwrap_or(Method::GET);
        let shown = route.method.as_ref().map_or("ANY", |method| method.as_str());
        let mut line = format!("{:<92}", format!("{shown} {}", route.path));
        for caller in &callers {
            let answered = ask(&harness, caller, &method, route.path).await;
            write!(line, "{answered:<17}").unwrap();
        }
        lines.push((route.path, line.trim_end().to_owned()));
    }
    lines.sort();
    for (_, line) in lines {
        writeln!(table, "{line}").unwrap();
    }
    assert_matches_file(&table);
    harness.stop().await;
}

async fn callers(harness: &Harness) -> Vec<Caller> {
    let red = harness.organization("red").await;
    harness.organization("blue").await;
    let admin = harness.member("red", "admin@red.example", "admin").await;
    let Who::Bearer(cookie) = &admin else { unreachable!("members show a secret") };
    let forged = Who::Cookie(cookie.clone(), vec![("sec-fetch-site", "cross-site")]);
    let removed = harness.member("red", "removed@red.example", "developer").await;
    let id = harness.user_id("removed@red.example").await;
    harness.send(&admin, "DELETE", &format!("/api/v1/organizations/red/members/{id}"), None).await.is(204);
    let expired = harness.token(Some(red.id), Role::Admin, None, Some(harness.now())).await;
    let scoped_cluster = harness.cluster(red.id, "scoped").await;
    let scoped = harness.token(Some(red.id), Role::Developer, Some(scoped_cluster), None).await;
    let mut callers = Vec::new();
    for (name, who) in [
        ("nobody", Who::Nobody),
        ("expired", expired),
        ("removed", removed),
        ("stranger", harness.member("blue", "admin@blue.example", "admin").await),
        ("viewer", harness.member("red", "viewer@red.example", "viewer").await),
        ("developer", harness.member("red", "developer@red.example", "developer").await),
        ("admin", admin),
        ("forged", forged),
        ("provider", harness.provider().await),
        ("elsewhere", scoped.clone()),
    ] {
        let cluster = harness.cluster(red.id, name).await;
        callers.push(Caller { name, who, cluster });
    }
    callers.push(Caller { name: "scoped", who: scoped, cluster: scoped_cluster });
    callers
}

async fn ask(harness: &Harness, caller: &Caller, method: &Method, path: &str) -> String {
    const NOBODY: &str = "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d10";
    let path = path
        .replace("{organization}", "red")
        .replace("{cluster}", &caller.cluster.to_string())
        .replace("{nodepool}", "none")
        .replace("{token}", "none")
        .replace("{*path}", "api");
    let path = path.split('/').map(|part| if part.starts_with('{') { NOBODY } else { part });
    let path = path.collect::<Vec<_>>().join("/");
    // Unreadable, so that nothing is made: who gets as far as being told so was let in.
    let body = (!matches!(*method, Method::GET | Method::DELETE)).then(|| "{".to_owned());
    let answered = harness.send_with(&caller.who, method.as_str(), &path, body, &[]).await;
    assert!(!answered.status.is_server_error() || answered.status == 503, "{method} {path}: {answered:?}");
    match (answered.status.as_u16(), &answered.body["detail"]) {
        (404, Value::String(why)) => {
            let what = why.strip_prefix("there is no such ").unwrap_or(why);
            format!("404 {}", what.split(';').next().unwrap_or_default())
        }
        (status, _) => status.to_string(),
    }
}

fn assert_matches_file(table: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, table).unwrap();
    }
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    if table == wanted {
        return;
    }
    for (got, wanted) in table.lines().zip(wanted.lines()).filter(|(got, wanted)| got != wanted) {
        eprintln!("file: {wanted}\n now: {got}");
    }
    panic!("{FILE} says otherwise; if what changed is meant to, run this test with UPDATE_GOLDEN=1");
}

/// Nothing is let in by what it looks like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_have_one_form() {
    let dir = tempfile::tempdir().unwrap();
    let harness = Harness::start(Place::Sqlite(dir.path().join("manager.db"))).await;
    let red = harness.organization("red").await;
    let Who::Bearer(token) = harness.token(Some(red.id), Role::Admin, None, None).await else {
        unreachable!("tokens are shown")
    };
    let Who::Bearer(session) = harness.member("red", "ann@red.example", "admin").await else {
        unreachable!("sessions are shown")
    };
    let get = async |headers: &[(&str, &str)]| {
        harness.send_with(&Who::Nobody, "GET", "/api/v1/session", None, headers).await.status.as_u16()
    };
    let bearer = |secret: &str| format!("Bearer {secret}");
    let cookie = |secret: &str| format!("__Host-roadstead={secret}");
    let altered = format!("{}0", &token[..token.len() - 1]);
    let swapped = token.replacen("rs_", "rss_", 1);
    for (headers, wanted) in [
        (vec![("authorization", bearer(&token))], 200),
        (vec![("authorization", format!("bEARER   {token}"))], 200),
        (vec![("authorization", bearer(&session))], 200),
        (vec![("cookie", cookie(&session))], 200),
        (vec![("cookie", cookie(&token))], 401),
        (vec![("cookie", format!("{}; {}", cookie(&session), cookie(&session)))], 401),
        (vec![("cookie", format!("x=y; roadstead={session}"))], 401),
        (vec![("authorization", token.clone())], 401),
        (vec![("authorization", format!("Basic {token}"))], 401),
        (vec![("authorization", bearer(&swapped))], 401),
        (vec![("authorization", bearer(PASSWORD))], 401),
        (vec![("authorization", bearer(""))], 401),
        (vec![("authorization", bearer(&altered))], if altered == token { 200 } else { 401 }),
        // Wrong credentials are not made good by others.
        (vec![("authorization", bearer("rs_00_00")), ("cookie", cookie(&session))], 401),
    ] {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(get(&headers).await, wanted, "{headers:?}");
    }
    harness.stop().await;
}
