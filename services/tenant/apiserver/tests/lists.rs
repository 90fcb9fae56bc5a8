//! Lists too large to be one piece: every form says the same, and what waits to be read takes bounded room.

mod support;

use std::io::Read;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{Cluster, cluster};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PARTIAL: &str = "as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// Lengths of their values in base64: on both sides of what is sent from where it is stored.
const LENGTHS: [usize; 5] = [4, 8_000, 15_996, 60_000, 1_000_000];

async fn with_secrets(count: usize) -> Cluster {
    let cluster = cluster().await;
    for number in 0..count {
        let value = "QUJD".repeat(LENGTHS[number % LENGTHS.len()] / 4);
        let body = json!({"metadata": {"name": format!("s{number:03}"), "labels": {"n": "x"}},
            "data": {"x": value}});
        let made = cluster.admin_send("POST", SECRETS, body).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
    cluster
}

async fn list(cluster: &Cluster, headers: &[(&str, &str)]) -> support::Answer {
    let answer = cluster.send(Some(&cluster.admin()), "GET", SECRETS, headers, "").await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    answer
}

/// A list in protobuf as the JSON it stands for.
fn decoded(body: &[u8], kind: &'static str, group: &'static str) -> Value {
    let (gvk, value) = api_wire::protobuf::decode(body, None).unwrap();
    let version = if group.is_empty() { "v1" } else { "meta.k8s.io/v1" };
    assert_eq!((&*gvk.kind, gvk.api_version().as_str()), (kind, version));
    value
}

fn names_and_values(list: &Value) -> Vec<(String, usize)> {
    let items = list["items"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    items.map(|item| (text(&item["metadata"]["name"]), text(&item["data"]["x"]).len())).collect()
}

#[tokio::test]
async fn every_form_says_the_same() {
    let cluster = with_secrets(10).await;
    let plain = list(&cluster, &[]).await;
    assert!(plain.body.ends_with(b"]}\n") && plain.body.len() > 2_000_000);
    let json = plain.json();
    let wanted: Vec<(String, usize)> =
        (0..10).map(|number| (format!("s{number:03}"), LENGTHS[number % LENGTHS.len()])).collect();
    assert_eq!(names_and_values(&json), wanted);
    assert!(
        json["metadata"]["resourceVersion"].is_string() && json["items"][0]["kind"].is_null(),
        "{}",
        json["metadata"]
    );
    let one = cluster.send(Some(&cluster.admin()), "GET", &format!("{SECRETS}/s004"), &[], "").await.json();
    assert_eq!(json["items"][4]["metadata"], one["metadata"]);

    let packed = list(&cluster, &[("accept-encoding", "gzip")]).await;
    assert_eq!(packed.header("content-encoding"), "gzip");
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*packed.body).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == plain.body, "not what comes unpacked");

    let protobuf = list(&cluster, &[("accept", PROTOBUF)]).await;
    assert_eq!(decoded(&protobuf.body, "SecretList", "")["items"], json["items"]);
    let indented = list(&cluster, &[("accept", "application/json;pretty=1")]).await;
    assert_eq!(indented.json(), json);
    let yaml = list(&cluster, &[("accept", "application/yaml")]).await;
    assert_eq!(yaml.text().matches("\n    name: s0").count(), 10);

    let partial = list(&cluster, &[("accept", &format!("application/json;{PARTIAL}"))]).await.json();
    assert_eq!(partial["items"][4]["metadata"], one["metadata"]);
    assert_eq!(
        (&partial["kind"], &partial["items"][4]["data"]),
        (&json!("PartialObjectMetadataList"), &Value::Null)
    );
    let partial_protobuf = list(&cluster, &[("accept", &format!("{PROTOBUF};{PARTIAL}"))]).await;
    let partial_protobuf = decoded(&partial_protobuf.body, "PartialObjectMetadataList", "meta.k8s.io");
    assert_eq!(partial_protobuf["items"][4]["metadata"], one["metadata"]);
}

#[tokio::test]
async fn unread_answers_take_bounded_room() {
    let cluster = with_secrets(110).await;
    let alone = list(&cluster, &[("accept", PROTOBUF)]).await;
    assert!(alone.body.len() > 16_000_000);
    // Nobody reads these. As they are kept whole while there is room, the room is gone then.
    let mut unread = Vec::new();
    for _ in 0..5 {
        let admin = cluster.admin();
        unread.push(cluster.open(Some(&admin), "GET", SECRETS, &[("accept", PROTOBUF)], "").await);
    }
    let beside = list(&cluster, &[("accept", PROTOBUF)]).await;
    assert!(beside.body == alone.body, "made twice, it is not the same");
    assert_eq!(names_and_values(&list(&cluster, &[]).await.json()).len(), 110);
    let refused =
        cluster.send(Some(&cluster.admin()), "GET", SECRETS, &[("accept", "application/yaml")], "").await;
    assert_eq!((refused.code, refused.header("retry-after")), (429, "1"), "{}", refused.text());

    let last = unread.pop().unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(last == alone.body, "what waited is not the same");
    drop(unread);
    for _ in 0..100 {
        let admin = cluster.admin();
        let answer = cluster.send(Some(&admin), "GET", SECRETS, &[("accept", "application/yaml")], "").await;
        if answer.code == 200 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the room does not come back");
}
