//! A pod's volumes as its containers would find them.

use super::*;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;

/// A cluster with one ConfigMap, one Secret and tokens that name what they are for.
struct Cluster {
    greeting: &'static str,
}

#[async_trait]
impl Sources for Cluster {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, String> {
        let found =
            json!({ "data": { "greeting": self.greeting, "other": "o" }, "binaryData": { "bin": "AAE=" } });
        Ok((namespace == "blue" && name == "words").then(|| serde_json::from_value(found).unwrap()))
    }
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, String> {
        let found = json!({ "data": { "password": "c2VjcmV0" } });
        Ok((namespace == "blue" && name == "keys").then(|| serde_json::from_value(found).unwrap()))
    }
    async fn token(&self, wanted: &TokenWanted) -> Result<Token, String> {
        let token = format!("{}/{}/{}", wanted.service_account, wanted.pod_uid, wanted.lifetime_s);
        Ok(Token { token, issued: Timestamp::UNIX_EPOCH, expires: Timestamp::UNIX_EPOCH })
    }
    fn allocatable(&self) -> BTreeMap<String, Quantity> {
        BTreeMap::from([("memory".to_owned(), Quantity("1Gi".to_owned()))])
    }
}

fn pod(volume: Value, security: Value) -> Pod {
    let mut volume = volume;
    volume["name"] = "v".into();
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "blue", "uid": "u1", "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main" }], "volumes": [volume], "securityContext": security },
    }))
    .unwrap()
}

/// `name:mode=content`, in order of names.
fn listing(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| !name.starts_with(".."));
    names.sort();
    let show = |name: &String| {
        let path = folder.join(name);
        let data = fs::read(&path).unwrap_or_default();
        format!("{name}:{:o}={}", fs::metadata(&path).unwrap().mode() & 0o777, data.escape_ascii())
    };
    names.iter().map(show).collect()
}

#[tokio::test]
async fn volumes_hold_what_the_pod_asked_for() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    let token = json!({ "projected": { "sources": [
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 1200 } },
        { "configMap": { "name": "words", "items": [{ "key": "other", "path": "o" }] } },
        { "downwardAPI": { "items": [{ "path": "ns", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ] } });
    for (volume, security, expected) in [
        (json!({ "emptyDir": {} }), json!({}), Ok(vec![])),
        (json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }), json!({}), Ok(vec![])),
        (
            json!({ "configMap": { "name": "words" } }),
            json!({}),
            Ok(vec!["bin:644=\\x00\\x01", "greeting:644=hi", "other:644=o"]),
        ),
        (
            json!({ "configMap": { "name": "words", "defaultMode": 256, "items": [{ "key": "greeting", "path": "g" }] } }),
            json!({}),
            Ok(vec!["g:400=hi"]),
        ),
        (json!({ "configMap": { "name": "none", "optional": true } }), json!({}), Ok(vec![])),
        (
            json!({ "configMap": { "name": "none" } }),
            json!({}),
            Err("MountVolume.SetUp failed for volume \"v\" : configmap \"none\" not found"),
        ),
        (
            json!({ "secret": { "secretName": "keys", "items": [{ "key": "nope", "path": "x" }] } }),
            json!({}),
            Err("MountVolume.SetUp failed for volume \"v\" : references non-existent secret key: nope"),
        ),
        (
            json!({ "secret": { "secretName": "keys", "defaultMode": 256 } }),
            json!({ "fsGroup": 1000 }),
            Ok(vec!["password:440=secret"]),
        ),
        (token.clone(), json!({}), Ok(vec!["ns:644=blue", "o:644=o", "token:644=default/u1/1200"])),
        (
            token,
            json!({ "runAsUser": 1000 }),
            Ok(vec!["ns:644=blue", "o:644=o", "token:600=default/u1/1200"]),
        ),
        (
            json!({ "persistentVolumeClaim": { "claimName": "data" } }),
            json!({}),
            Err("volume \"v\": persistentVolumeClaim volumes are not supported on this node"),
        ),
        (
            json!({ "hostPath": { "path": "/etc/passwd", "type": "Directory" } }),
            json!({}),
            Err(
                "MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: /etc/passwd is not a directory",
            ),
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(root.path());
        let pod = pod(volume.clone(), security);
        let now = Timestamp::UNIX_EPOCH;
        let found = volumes.set_up(&pod, &Cluster { greeting: "hi" }, now).await;
        let found = found.map(|mounted| listing(&mounted.path("v", "", "main", 0).unwrap()));
        let found = found.map_err(|error| error.to_string());
        let expected =
            expected.map(|rows| rows.into_iter().map(str::to_owned).collect()).map_err(str::to_owned);
        assert_eq!(found, expected, "{volume}");
        volumes.tear_down("u1").unwrap();
        assert!(!volumes.pod_folder("u1").join("volumes").exists(), "{volume}");
        volumes.remove("u1").unwrap();
        assert!(mounts::mounted_below(root.path()).unwrap().is_empty(), "{volume}");
        assert!(!volumes.pod_folder("u1").exists(), "{volume}");
    }
}

#[tokio::test]
async fn content_follows_the_cluster_and_a_sub_path_is_a_mount() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(root.path());
    let pod = pod(json!({ "configMap": { "name": "words" } }), json!({}));
    for (second, greeting) in [(0, "hi"), (1, "hello")] {
        let now = Timestamp::from_second(second).unwrap();
        let mounted = volumes.set_up(&pod, &Cluster { greeting }, now).await.unwrap();
        let whole = mounted.path("v", "", "main", 0).unwrap();
        assert_eq!(fs::read_to_string(whole.join("greeting")).unwrap(), greeting);
        // A part keeps what it was mounted with, as upstream's does.
        let part = mounted.path("v", "greeting", "main", 1).unwrap();
        assert_eq!(fs::read_to_string(part).unwrap(), "hi");
        assert!(mounted.path("v", "../../x", "main", 2).is_err());
        assert!(mounted.path("w", "", "main", 3).is_err());
    }
    assert_eq!(volumes.orphans(&BTreeSet::new()).unwrap(), ["u1"]);
    assert!(volumes.orphans(&BTreeSet::from(["u1".to_owned()])).unwrap().is_empty());
    for uid in ["", ".", "..", "a/b"] {
        assert!(volumes.tear_down(uid).is_err(), "{uid:?}");
    }
    volumes.remove("u1").unwrap();
    volumes.remove("u1").unwrap();
}

#[test]
fn tokens_are_replaced_before_they_end() {
    let at = |s: i64| Timestamp::from_second(s).unwrap();
    let hour = Token { token: String::new(), issued: at(0), expires: at(3600) };
    let year = Token { token: String::new(), issued: at(0), expires: at(365 * 86400) };
    for (token, now, stale) in [
        (&hour, 0, false),
        (&hour, 2880, false),
        (&hour, 2881, true),
        (&year, 86400, false),
        (&year, 86401, true),
    ] {
        assert_eq!(token.is_stale(at(now)), stale, "{now}");
    }
}
