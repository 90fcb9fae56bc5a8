//! What clients do all day, over real HTTP: write, read in every form, watch, discover.

mod support;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{Cluster, cluster};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn an_object_lives_and_is_shown_in_every_form() {
    let cluster = cluster().await;
    let one = &format!("{MAPS}/one");
    let created = cluster
        .admin_send(
            "POST",
            MAPS,
            json!({"metadata": {"name": "one", "labels": {"app": "x"}}, "data": {"k": "v"}}),
        )
        .await;
    assert_eq!(created.code, 201, "{}", created.text());
    let object = created.json();
    assert_eq!(object["kind"], "ConfigMap");
    assert_eq!(object["metadata"]["namespace"], "default");
    assert!(!object["metadata"]["uid"].as_str().unwrap().is_empty());

    let admin = cluster.admin();
    // path, accept, part of the content type, pointer into the answer, what is there
    for (path, accept, content_type, pointer, wanted) in [
        (one.as_str(), "application/json", "application/json", "/data/k", json!("v")),
        (one, "*/*", "application/json", "/apiVersion", json!("v1")),
        (one, TABLE, "application/json", "/kind", json!("Table")),
        (one, TABLE, "application/json", "/rows/0/cells/0", json!("one")),
        (one, TABLE, "application/json", "/rows/0/object/kind", json!("PartialObjectMetadata")),
        (
            one,
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            "application/json",
            "/metadata/name",
            json!("one"),
        ),
        (
            one,
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            "application/json",
            "/data",
            Value::Null,
        ),
        (MAPS, "application/json", "application/json", "/kind", json!("ConfigMapList")),
        (MAPS, "application/json", "application/json", "/items/0/kind", Value::Null),
        (
            MAPS,
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            "application/json",
            "/kind",
            json!("PartialObjectMetadataList"),
        ),
        (
            &format!("{MAPS}?labelSelector=app%3Dx"),
            TABLE,
            "application/json",
            "/columnDefinitions/0/name",
            json!("Name"),
        ),
        (&format!("{MAPS}?labelSelector=app%3Dy"), "", "application/json", "/items", json!([])),
    ] {
        let headers: Vec<(&str, &str)> = if accept.is_empty() { vec![] } else { vec![("accept", accept)] };
        let answer = cluster.send(Some(&admin), "GET", path, &headers, "").await;
        assert_eq!(answer.code, 200, "{path} {accept}: {}", answer.text());
        assert!(answer.header("content-type").contains(content_type), "{path} {accept}");
        let got = answer.json().pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(got, wanted, "{path} {accept} {pointer}: {}", answer.text());
    }
    let yaml = cluster.send(Some(&admin), "GET", one, &[("accept", "application/yaml")], "").await;
    assert!(yaml.text().contains("kind: ConfigMap"), "{}", yaml.text());

    let patched = cluster.admin_send("PATCH", one, json!({"data": {"k": null, "l": "w"}})).await;
    assert_eq!((patched.code, &patched.json()["data"]), (200, &json!({"l": "w"})), "{}", patched.text());
    let replaced =
        cluster.admin_send("PUT", one, json!({"metadata": {"name": "one"}, "data": {"m": "x"}})).await;
    assert_eq!(replaced.code, 200, "{}", replaced.text());
    let deleted = cluster.admin_send("DELETE", one, Value::Null).await;
    assert_eq!((deleted.code, &deleted.json()["status"]), (200, &json!("Success")), "{}", deleted.text());
    assert_eq!(cluster.admin_send("GET", one, Value::Null).await.code, 404);
}

#[tokio::test]
async fn a_watch_misses_nothing_and_ends_in_time() {
    let cluster = cluster().await;
    let list = cluster.admin_send("GET", MAPS, Value::Null).await.json();
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for (method, path, body) in [
        ("POST", MAPS.to_owned(), json!({"metadata": {"name": "a"}})),
        ("PATCH", format!("{MAPS}/a"), json!({"data": {"k": "v"}})),
        ("DELETE", format!("{MAPS}/a"), Value::Null),
    ] {
        let answer = cluster.admin_send(method, &path, body).await;
        assert!(answer.code < 300, "{}", answer.text());
    }
    let events = watched(
        &cluster,
        &format!("{MAPS}?watch=1&resourceVersion={revision}&timeoutSeconds=1&allowWatchBookmarks=true"),
    )
    .await;
    let shown: Vec<String> = events
        .iter()
        .map(|event| format!("{} {}", event["type"].as_str().unwrap(), event["object"]["metadata"]["name"]))
        .collect();
    assert_eq!(shown, ["ADDED \"a\"", "MODIFIED \"a\"", "DELETED \"a\"", "BOOKMARK null"]);
    let revisions: Vec<u64> = events
        .iter()
        .map(|event| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(revisions.is_sorted(), "{revisions:?}");

    // Initial events, their end marked; then a revision that never was.
    cluster.admin_send("POST", MAPS, json!({"metadata": {"name": "b"}})).await;
    let events = watched(&cluster, &format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1")).await;
    assert_eq!(events[0]["type"], "ADDED");
    let end = events.iter().find(|event| event["type"] == "BOOKMARK").unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

async fn watched(cluster: &Cluster, path: &str) -> Vec<Value> {
    let response = cluster.open(Some(&cluster.admin()), "GET", path, &[], "").await;
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    body.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[tokio::test]
async fn paths_beside_resources_answer() {
    let cluster = cluster().await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let admin = cluster.admin();
    for (path, accept, wanted) in [
        ("/version", "", "v1.36.0"),
        ("/readyz", "", "ok"),
        ("/readyz?verbose", "", "[+]raft ok\n"),
        ("/readyz?verbose&exclude=raft", "", "[+]raft excluded: ok\n"),
        ("/livez/ping", "", "ok"),
        ("/healthz", "", "ok"),
        ("/metrics", "", "apiserver_current_inflight_requests"),
        ("/api", "", "\"versions\":[\"v1\"]"),
        ("/apis", "", "\"name\":\"apps\""),
        ("/apis/apps/v1", "", "\"deployments\""),
        ("/api/v1", "", "\"shortNames\":[\"po\"]"),
        ("/apis", aggregated, "APIGroupDiscoveryList"),
        ("/.well-known/openid-configuration", "", "jwks_uri"),
        ("/openid/v1/jwks", "", "\"keys\""),
        ("/", "", "/readyz/raft"),
    ] {
        let headers: Vec<(&str, &str)> = if accept.is_empty() { vec![] } else { vec![("accept", accept)] };
        let answer = cluster.send(Some(&admin), "GET", path, &headers, "").await;
        assert_eq!(answer.code, 200, "{path}");
        assert!(answer.text().contains(wanted), "{path}: {}", answer.text());
        let etag = answer.header("etag").to_owned();
        if !etag.is_empty() {
            let mut headers = headers;
            headers.push(("if-none-match", &etag));
            assert_eq!(cluster.send(Some(&admin), "GET", path, &headers, "").await.code, 304, "{path}");
        }
    }
    // Strangers may see that the cluster is well, and no more.
    for (path, code) in [("/readyz", 200), ("/version", 200), ("/metrics", 403), ("/api", 403)] {
        assert_eq!(cluster.send(None, "GET", path, &[], "").await.code, code, "{path}");
    }
}

#[tokio::test]
async fn reviews_answer_and_are_not_stored() {
    let cluster = cluster().await;
    let made = cluster
        .admin_send(
            "POST",
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "robot"}}),
        )
        .await;
    assert_eq!(made.code, 201, "{}", made.text());
    let token = cluster
        .admin_send(
            "POST",
            "/api/v1/namespaces/default/serviceaccounts/robot/token",
            json!({"spec": {"expirationSeconds": 600}}),
        )
        .await;
    assert_eq!(token.code, 201, "{}", token.text());
    let token = token.json()["status"]["token"].as_str().unwrap().to_owned();
    for (path, body, pointer, wanted) in [
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({"spec": {"token": token}}),
            "/status/user/username",
            json!("system:serviceaccount:default:robot"),
        ),
        (
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            json!({}),
            "/status/userInfo/username",
            json!("admin"),
        ),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            "/status/allowed",
            json!(true),
        ),
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "get", "resource": "pods"}}}),
            "/status/allowed",
            json!(false),
        ),
    ] {
        let answer = cluster.admin_send("POST", path, body).await;
        assert_eq!(answer.code, 201, "{path}: {}", answer.text());
        assert_eq!(answer.json().pointer(pointer), Some(&wanted), "{path}: {}", answer.text());
    }
    let bearer = format!("Bearer {token}");
    let me = cluster
        .send(
            None,
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            &[("authorization", &bearer), ("content-type", "application/json")],
            "{}",
        )
        .await;
    assert_eq!(
        me.json()["status"]["userInfo"]["username"],
        "system:serviceaccount:default:robot",
        "{}",
        me.text()
    );
    let table = cluster
        .send(
            Some(&cluster.admin()),
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            &[
                ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
                ("content-type", "application/json"),
            ],
            "{}",
        )
        .await;
    assert_eq!(table.code, 406, "{}", table.text());
}

#[tokio::test]
async fn typed_clients_speak_protobuf() {
    use api_machinery::Gvk;
    use api_wire::protobuf;
    const BINARY: &str = "application/vnd.kubernetes.protobuf";
    let cluster = cluster().await;
    let admin = cluster.admin();
    let gvk = Gvk::new("", "v1", "ConfigMap");
    let body = protobuf::encode(&gvk, &json!({"metadata": {"name": "binary"}, "data": {"k": "v"}})).unwrap();
    let headers =
        [("content-type", BINARY), ("accept", "application/vnd.kubernetes.protobuf,application/json")];
    let made = cluster.send(Some(&admin), "POST", MAPS, &headers, body).await;
    assert_eq!((made.code, made.header("content-type")), (201, BINARY), "{}", made.text());
    let (kind, object) = protobuf::decode(&made.body, None).unwrap();
    assert_eq!((kind, &object["data"]["k"]), (gvk, &json!("v")));

    let list = cluster.send(Some(&admin), "GET", MAPS, &[("accept", BINARY)], "").await;
    let (kind, list) = protobuf::decode(&list.body, None).unwrap();
    assert_eq!(&*kind.kind, "ConfigMapList");
    assert_eq!(list["items"][0]["metadata"]["name"], "binary");

    let missing = cluster.send(Some(&admin), "GET", &format!("{MAPS}/gone"), &[("accept", BINARY)], "").await;
    let (kind, status) = protobuf::decode(&missing.body, None).unwrap();
    assert_eq!((&*kind.kind, &status["reason"], missing.code), ("Status", &json!("NotFound"), 404));

    let path = format!("{MAPS}?watch=1&resourceVersion=0&timeoutSeconds=1");
    let watch = cluster
        .send(
            Some(&admin),
            "GET",
            &path,
            &[("accept", "application/vnd.kubernetes.protobuf;stream=watch")],
            "",
        )
        .await;
    assert_eq!(watch.header("content-type"), "application/vnd.kubernetes.protobuf;stream=watch");
    let length = u32::from_be_bytes(watch.body[..4].try_into().unwrap()) as usize;
    assert_eq!(watch.body.len(), 4 + length, "one frame and nothing else");

    let garbage =
        cluster.send(Some(&admin), "POST", MAPS, &[("content-type", BINARY)], "k8s\0\x0a\x05x").await;
    assert_eq!(
        (garbage.code, garbage.json()["reason"].clone()),
        (400, json!("BadRequest")),
        "{}",
        garbage.text()
    );
}

#[tokio::test]
async fn loops_beside_the_server_take_the_same_road() {
    use api_machinery::{Document, Gvr};
    use futures::StreamExt;
    use tenant_client::{CreateOptions, ListOptions, UserInfo, WatchEvent, WatchOptions};
    let cluster = cluster().await;
    let maps = Gvr::core("configmaps");
    let document = |name: &str| Document::from_value(json!({"metadata": {"name": name}})).unwrap();
    let here = CreateOptions { namespace: Some("default".to_owned()), ..CreateOptions::default() };

    let stranger = cluster.plane.client(UserInfo::component("system:stranger"), None);
    let refused = stranger.create(&maps, document("a"), here.clone()).await.unwrap_err();
    assert_eq!(refused.code, 403, "{refused}");

    let mut admin = UserInfo::component("admin");
    admin.groups.push(UserInfo::MASTERS.to_owned());
    let client = cluster.plane.client(admin.clone(), None);
    let before = client.list(&maps, ListOptions::default()).await.unwrap().revision;
    let options = WatchOptions { after: before, ..WatchOptions::default() };
    let mut watch = client.watch(&maps, options).await.unwrap();
    let made = client.create(&maps, document("a"), here.clone()).await.unwrap();
    match watch.next().await {
        Some(Ok(WatchEvent::Added(seen))) => assert_eq!(seen.header.uid, made.header.uid),
        other => panic!("{other:?}"),
    }
    // A loop that outlived its leadership changes nothing.
    let fenced = cluster.plane.client(admin, Some(store_mvcc::Term(999)));
    let refused = fenced.create(&maps, document("b"), here).await.unwrap_err();
    assert_eq!(refused.code, 409, "{refused}");
    assert_eq!(client.get(&maps, Some("default"), "b").await.unwrap_err().code, 404);
}

#[tokio::test]
async fn concurrent_watches_see_one_order() {
    let cluster = cluster().await;
    let list = cluster.admin_send("GET", MAPS, Value::Null).await.json();
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let creating = async {
        let makes = (0..40).map(|index| {
            let body = json!({"metadata": {"name": format!("many-{index}")}});
            cluster.admin_send("POST", MAPS, body)
        });
        for answer in futures::future::join_all(makes).await {
            assert_eq!(answer.code, 201, "{}", answer.text());
        }
    };
    let path = format!("{MAPS}?watch=1&resourceVersion={revision}&timeoutSeconds=4");
    let ((), one, two) = tokio::join!(creating, watched(&cluster, &path), watched(&cluster, &path));
    assert_eq!(one.len(), 40);
    assert_eq!(one, two);
}
