//! What clients get for requests that are wrong: code, reason and words of upstream's Status.

mod support;

use serde_json::json;
use support::cluster;

const JSON: &str = "application/json";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn every_mistake_has_its_status() {
    let cluster = cluster().await;
    let made =
        cluster.admin_send("POST", MAPS, json!({"metadata": {"name": "here"}, "data": {"a": "1"}})).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let stale = json!({"metadata": {"name": "here", "resourceVersion": "1"}, "data": {"a": "2"}}).to_string();
    let big = format!(
        "{{\"metadata\":{{\"name\":\"big\"}},\"data\":{{\"x\":\"{}\"}}}}",
        "x".repeat(3 * 1024 * 1024)
    );

    // method, path, content type, accept, body, code, reason, part of the message
    let rows = [
        (
            "POST",
            MAPS,
            JSON,
            "",
            "{\"metadata\":",
            400,
            "BadRequest",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error",
        ),
        ("POST", MAPS, JSON, "", "", 400, "BadRequest", "(<empty>)"),
        ("POST", MAPS, JSON, "", "[]", 400, "BadRequest", "must be of type ConfigMap"),
        ("POST", MAPS, JSON, "", big.as_str(), 413, "RequestEntityTooLarge", "limit is 3145728"),
        (
            "POST",
            MAPS,
            "text/plain",
            "",
            "x",
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json",
        ),
        (
            "POST",
            MAPS,
            JSON,
            "",
            "{\"kind\":\"Pod\",\"apiVersion\":\"v1\"}",
            400,
            "BadRequest",
            "Pod in version \"v1\" cannot be handled as a ConfigMap",
        ),
        (
            "POST",
            MAPS,
            JSON,
            "",
            "{\"kind\":\"ConfigMap\",\"apiVersion\":\"apps/v1\"}",
            400,
            "BadRequest",
            "the API version in the data (apps/v1) does not match the expected API version (v1)",
        ),
        (
            "POST",
            MAPS,
            JSON,
            "",
            "{\"metadata\":{\"name\":\"here\"}}",
            409,
            "AlreadyExists",
            "configmaps \"here\" already exists",
        ),
        ("POST", MAPS, JSON, "", "{\"metadata\":{\"name\":\"Not_OK\"}}", 422, "Invalid", "metadata.name"),
        ("POST", MAPS, JSON, "", "{\"metadata\":{}}", 422, "Invalid", "name or generateName is required"),
        (
            "PUT",
            "/api/v1/namespaces/default/configmaps/here",
            JSON,
            "",
            &stale,
            409,
            "Conflict",
            "Operation cannot be fulfilled on configmaps \"here\": the object has been modified",
        ),
        (
            "PUT",
            "/api/v1/namespaces/default/configmaps/other",
            JSON,
            "",
            "{\"metadata\":{\"name\":\"here\"}}",
            400,
            "BadRequest",
            "does not match",
        ),
        (
            "PATCH",
            "/api/v1/namespaces/default/configmaps/here",
            JSON,
            "",
            "{}",
            415,
            "UnsupportedMediaType",
            "application/json-patch+json, application/merge-patch+json",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/widgets",
            "",
            "",
            "",
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        (
            "GET",
            "/apis/nobody.example.com/v1/widgets",
            "",
            "",
            "",
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps/gone",
            "",
            "",
            "",
            404,
            "NotFound",
            "configmaps \"gone\" not found",
        ),
        ("GET", "/nowhere", "", "", "", 404, "NotFound", "the server could not find the requested resource"),
        (
            "POST",
            "/api/v1/pods",
            JSON,
            "",
            "{}",
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            "GET",
            PODS,
            "",
            "text/html",
            "",
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods?labelSelector=a%3D%3D%3D",
            "",
            "",
            "",
            400,
            "BadRequest",
            "",
        ),
        ("GET", "/api/v1/namespaces/default/pods?limit=x", "", "", "", 400, "BadRequest", "invalid syntax"),
        (
            "GET",
            "/api/v1/namespaces/default/pods?fieldSelector=spec.color%3Dred",
            "",
            "",
            "",
            400,
            "BadRequest",
            "field label not supported: spec.color",
        ),
    ];
    let admin = cluster.admin();
    for (method, path, content_type, accept, body, code, reason, message) in rows {
        let mut headers = Vec::new();
        if !content_type.is_empty() {
            headers.push(("content-type", content_type));
        }
        if !accept.is_empty() {
            headers.push(("accept", accept));
        }
        let answer = cluster.send(Some(&admin), method, path, &headers, body.to_owned()).await;
        let shown = format!("{method} {path} {}: {}", &body[..body.len().min(60)], answer.text());
        let status = answer.json();
        assert_eq!(answer.code, code, "{shown}");
        assert_eq!(status["kind"], "Status", "{shown}");
        assert_eq!(status["status"], "Failure", "{shown}");
        assert_eq!(status["code"], code, "{shown}");
        assert_eq!(status["reason"], reason, "{shown}");
        assert!(status["message"].as_str().unwrap().contains(message), "{shown}");
        assert!(!answer.header("audit-id").is_empty(), "{shown}");
    }
}

#[tokio::test]
async fn strangers_are_told_apart() {
    let blue = cluster().await;
    let red = cluster().await;
    let user = blue.pki.issue_client("jane", &["developers"], std::time::Duration::from_secs(3600)).unwrap();
    let list = |headers: Vec<(&'static str, String)>, identity: Option<base_net::pki::Issued>| {
        let blue = &blue;
        async move {
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let answer = blue.send(identity.as_ref(), "GET", PODS, &headers, "").await;
            (answer.code, answer.json()["message"].as_str().unwrap_or_default().to_owned())
        }
    };
    // A token of the red cluster's own issuer, good in red.
    let token = red
        .admin_send(
            "POST",
            "/api/v1/namespaces/kube-system/serviceaccounts",
            json!({"metadata": {"name": "sa"}}),
        )
        .await;
    assert_eq!(token.code, 201, "{}", token.text());
    let issued = red
        .admin_send("POST", "/api/v1/namespaces/kube-system/serviceaccounts/sa/token", json!({"spec": {}}))
        .await;
    assert_eq!(issued.code, 201, "{}", issued.text());
    let foreign = format!("Bearer {}", issued.json()["status"]["token"].as_str().unwrap());

    assert_eq!(
        list(vec![], None).await,
        (403, "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"".to_owned())
    );
    assert_eq!(
        list(vec![], Some(user)).await,
        (403, "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"".to_owned())
    );
    assert_eq!(
        list(vec![("authorization", "Bearer rubbish".to_owned())], None).await,
        (401, "Unauthorized".to_owned())
    );
    assert_eq!(list(vec![("authorization", foreign.clone())], None).await, (401, "Unauthorized".to_owned()));
    let own = red.send(None, "GET", PODS, &[("authorization", &foreign)], "").await;
    assert!(
        own.json()["message"].as_str().unwrap().contains("system:serviceaccount:kube-system:sa"),
        "{}",
        own.text()
    );

    // A certificate of another cluster's authority does not get past TLS.
    let intruder = red.admin();
    let refused = match blue.connect(Some(&intruder)).await {
        Err(_) => true,
        // TLS 1.3 clients learn of the refusal when they read.
        Ok(mut stream) => {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let _ = stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let mut buffer = [0u8; 16];
            !matches!(stream.read(&mut buffer).await, Ok(read) if read > 0)
        }
    };
    assert!(refused, "a stranger's certificate was accepted");
}
