//! Lists and watches: selectors, pages, revisions.

use crate::support::{Cluster, cluster, gvr};
use api_machinery::{FieldSelector, LabelSelector};
use serde_json::json;
use tenant_client::DeleteOptions;
use tenant_registry::{ListOptions, WatchItem, WatchOptions};

async fn fill(cluster: &Cluster) {
    for (name, app) in [("a", "web"), ("b", "web"), ("c", "api"), ("d", "api"), ("e", "web")] {
        let value = json!({"metadata": {"name": name, "labels": {"app": app}}});
        cluster.create("configmaps", value).await.unwrap();
    }
    cluster
        .create("configmaps", json!({"metadata": {"name": "z", "namespace": "kube-public"}}))
        .await
        .unwrap();
}

fn names(list: &tenant_registry::List) -> String {
    list.items.iter().map(|item| &*item.header.name).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn selectors_select() {
    let cluster = cluster().await;
    fill(&cluster).await;
    for (namespace, labels, fields, wanted) in [
        (Some("default"), "", "", Ok("a b c d e")),
        (Some("default"), "app=web", "", Ok("a b e")),
        (Some("default"), "app=web", "metadata.name=b", Ok("b")),
        (Some("default"), "", "metadata.name!=b,metadata.name!=c", Ok("a d e")),
        (None, "", "metadata.namespace=kube-public", Ok("z")),
        (Some("default"), "", "data.k=x", Err("field label not supported: data.k")),
    ] {
        let options = ListOptions {
            labels: LabelSelector::parse(labels).unwrap(),
            fields: FieldSelector::parse(fields).unwrap(),
            ..ListOptions::default()
        };
        let got = cluster.list("configmaps", namespace, &options).await;
        let got = got.map(|list| names(&list)).map_err(|status| status.message);
        assert_eq!(got, wanted.map(str::to_owned).map_err(str::to_owned), "{labels:?} {fields:?}");
    }
}

#[tokio::test]
async fn pages_are_of_one_moment() {
    let cluster = cluster().await;
    fill(&cluster).await;
    let page =
        |token: &str| ListOptions { limit: 2, continue_token: token.to_owned(), ..ListOptions::default() };
    let first = cluster.list("configmaps", Some("default"), &page("")).await.unwrap();
    assert_eq!((names(&first).as_str(), first.remaining), ("a b", Some(3)));
    cluster.delete("configmaps", "default/c", DeleteOptions::default()).await.unwrap();
    let second = cluster
        .list("configmaps", Some("default"), &page(first.continue_token.as_deref().unwrap()))
        .await
        .unwrap();
    assert_eq!(
        (names(&second).as_str(), second.revision, second.remaining),
        ("c d", first.revision, Some(1))
    );
    let third = cluster
        .list("configmaps", Some("default"), &page(second.continue_token.as_deref().unwrap()))
        .await
        .unwrap();
    assert_eq!((names(&third).as_str(), third.continue_token, third.remaining), ("e", None, None));
    let status = cluster.list("configmaps", None, &page("nonsense")).await.unwrap_err();
    assert_eq!(status.code, 400);
}

#[tokio::test]
async fn revisions_mean_what_the_docs_say() {
    let cluster = cluster().await;
    fill(&cluster).await;
    let now = cluster.registry.group().space().revision().0;
    cluster.delete("configmaps", "default/a", DeleteOptions::default()).await.unwrap();
    let at = now.to_string();
    for (version, matched, wanted) in [
        ("", "", Ok("b c d e")),
        ("0", "", Ok("b c d e")),
        (at.as_str(), "", Ok("b c d e")),
        (at.as_str(), "NotOlderThan", Ok("b c d e")),
        (at.as_str(), "Exact", Ok("a b c d e")),
        ("", "Exact", Err(422)),
        ("0", "Exact", Err(422)),
        (at.as_str(), "Nearly", Err(422)),
        ("x", "", Err(422)),
        ("1", "Exact", Ok("")),
    ] {
        let options = ListOptions {
            resource_version: version.to_owned(),
            resource_version_match: matched.to_owned(),
            ..ListOptions::default()
        };
        let got = cluster.list("configmaps", Some("default"), &options).await;
        let got = got.map(|list| names(&list)).map_err(|status| status.code);
        assert_eq!(got, wanted.map(str::to_owned), "{version:?} {matched:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_from_the_future_is_not_waited_for_forever() {
    let cluster = cluster().await;
    let options = ListOptions { resource_version: "999999".to_owned(), ..ListOptions::default() };
    let status = cluster.list("configmaps", None, &options).await.unwrap_err();
    assert_eq!(status.code, 504);
    assert!(status.message.contains("Too large resource version: 999999"), "{status}");
}

fn told(item: Option<Result<WatchItem, api_machinery::Status>>) -> String {
    match item {
        None => "end".to_owned(),
        Some(Err(status)) => format!("{}", status.code),
        Some(Ok(WatchItem::Bookmark { initial_events_end, .. })) => format!("BOOKMARK {initial_events_end}"),
        Some(Ok(WatchItem::Change { change, object, .. })) => {
            format!("{} {}", change.as_str(), object.header.name)
        }
    }
}

#[tokio::test]
async fn watchers_see_objects_enter_and_leave_their_selection() {
    let cluster = cluster().await;
    fill(&cluster).await;
    let options = WatchOptions {
        labels: LabelSelector::parse("app=web").unwrap(),
        send_initial_events: Some(true),
        resource_version_match: "NotOlderThan".to_owned(),
        allow_bookmarks: true,
        ..WatchOptions::default()
    };
    let mut watch =
        cluster.registry.watch(&cluster.ctx, &gvr("configmaps"), Some("default"), &options).await.unwrap();
    for wanted in ["ADDED a", "ADDED b", "ADDED e", "BOOKMARK true"] {
        assert_eq!(told(watch.next().await), wanted);
    }
    let label = |object: &mut api_machinery::Document, app: &str| object.set("metadata.labels.app", app);
    let mut a = cluster.get("configmaps", "default/a").await.unwrap();
    a.set("data.x", "1");
    let mut a = cluster.update("configmaps", a).await.unwrap();
    label(&mut a, "api");
    let mut a = cluster.update("configmaps", a).await.unwrap();
    label(&mut a, "web");
    cluster.update("configmaps", a).await.unwrap();
    cluster.create("configmaps", json!({"metadata": {"name": "other"}})).await.unwrap();
    cluster.delete("configmaps", "default/a", DeleteOptions::default()).await.unwrap();
    for wanted in ["MODIFIED a", "DELETED a", "ADDED a", "DELETED a"] {
        assert_eq!(told(watch.next().await), wanted);
    }
}

#[tokio::test]
async fn a_watch_goes_on_from_a_list() {
    let cluster = cluster().await;
    fill(&cluster).await;
    let list = cluster.list("configmaps", None, &ListOptions::default()).await.unwrap();
    cluster.create("configmaps", json!({"metadata": {"name": "late"}})).await.unwrap();
    let options = WatchOptions { resource_version: list.revision.to_string(), ..WatchOptions::default() };
    let mut watch = cluster.registry.watch(&cluster.ctx, &gvr("configmaps"), None, &options).await.unwrap();
    assert_eq!(told(watch.next().await), "ADDED late");
    let wrong = WatchOptions { resource_version_match: "Exact".to_owned(), ..WatchOptions::default() };
    let refused = cluster.registry.watch(&cluster.ctx, &gvr("configmaps"), None, &wrong).await;
    assert_eq!(refused.err().map(|status| status.code), Some(422));
}

#[tokio::test]
async fn events_have_two_faces() {
    let cluster = cluster().await;
    let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello", "reason": "Started", "type": "Normal", "action": "Start", "eventTime": "2026-11-30T21:00:00.000000Z",
        "reportingController": "kubelet", "reportingInstance": "n1"});
    let made = cluster.create("events.k8s.io/v1/events", event).await.unwrap();
    assert_eq!(made.get_str("note"), Some("hello"));
    let core = cluster.get("events", "default/e").await.unwrap();
    assert_eq!(core.get_str("message"), Some("hello"));
    assert_eq!(core.get_str("involvedObject.name"), Some("p"));
    let options = ListOptions {
        fields: FieldSelector::parse("involvedObject.name=p").unwrap(),
        ..ListOptions::default()
    };
    assert_eq!(cluster.list("events", None, &options).await.unwrap().items.len(), 1);
    let expired = cluster.registry.group().space().expired(i64::MAX, 10);
    assert_eq!(expired.len(), 1, "events are kept for an hour, other objects for good");
}

#[tokio::test]
async fn what_history_forgot_is_gone() {
    // One event is all that is kept.
    let limits = store_mvcc::Limits { ring_bytes: 1, ..store_mvcc::Limits::default() };
    let cluster =
        crate::support::cluster_of(std::sync::Arc::new(tenant_admission::Chain::default()), limits).await;
    fill(&cluster).await;
    let page =
        |token: &str| ListOptions { limit: 2, continue_token: token.to_owned(), ..ListOptions::default() };
    let first = cluster.list("configmaps", Some("default"), &page("")).await.unwrap();
    for name in ["x", "y", "z"] {
        cluster.create("configmaps", json!({"metadata": {"name": name}})).await.unwrap();
    }
    let token = first.continue_token.as_deref().unwrap();
    let gone = cluster.list("configmaps", Some("default"), &page(token)).await.unwrap_err();
    assert_eq!((gone.code, gone.reason), (410, Some(api_machinery::Reason::Expired)));
    let body = serde_json::to_value(&gone).unwrap();
    let fresh = body["metadata"]["continue"].as_str().expect("a token to go on with").to_owned();
    let rest = ListOptions { continue_token: fresh, ..ListOptions::default() };
    assert_eq!(names(&cluster.list("configmaps", Some("default"), &rest).await.unwrap()), "c d e x y z");

    let exact = ListOptions {
        resource_version: first.revision.to_string(),
        resource_version_match: "Exact".to_owned(),
        ..ListOptions::default()
    };
    assert_eq!(cluster.list("configmaps", None, &exact).await.unwrap_err().code, 410);
    let options = WatchOptions { resource_version: first.revision.to_string(), ..WatchOptions::default() };
    let refused = cluster.registry.watch(&cluster.ctx, &gvr("configmaps"), None, &options).await;
    let refused = refused.err().expect("too old");
    assert_eq!(refused.code, 410);
    assert!(refused.message.starts_with("too old resource version:"), "{refused}");
}

#[tokio::test]
async fn a_continue_token_ends_with_its_history_even_where_nothing_changed() {
    let history_ms = store_mvcc::Limits::default().history_ms;
    // Milliseconds between the first page and the second, and what the second answers.
    for (pause_ms, answer) in [(history_ms, Ok("c d")), (history_ms + 1, Err(410))] {
        let cluster = cluster().await;
        fill(&cluster).await;
        let page = |token: &str| ListOptions {
            limit: 2,
            continue_token: token.to_owned(),
            ..ListOptions::default()
        };
        let first = cluster.list("configmaps", Some("default"), &page("")).await.unwrap();
        cluster.clock.advance(std::time::Duration::from_millis(pause_ms.unsigned_abs()));
        let token = first.continue_token.unwrap();
        let second = cluster.list("configmaps", Some("default"), &page(&token)).await;
        let seen = second.as_ref().map(names).map_err(|refused| refused.code);
        assert_eq!(seen, answer.map(str::to_owned), "after {pause_ms} ms");
    }
}
