//! Asking a definition's webhook what objects look like in another version.
//!
//! One call carries all objects of a list. The answer is not believed where it would matter: an object keeps
//! its name, uid and all other metadata but labels and annotations. Facts:
//! `apiextensions-apiserver/pkg/apiserver/conversion/webhook_converter.go`.

use std::time::Duration;

use api_machinery::{Document, Status};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use serde_json::{Map, Value, json};
use tenant_outbound::{Destination, Limits};
use uuid::Uuid;

use super::definition::CustomResource;
use crate::registry::Registry;

/// As upstream's client has it. A request that waits for it holds its seat that long at most.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A list comes back in one piece: as much as this process would hold of it anyway.
const RESPONSE_BYTES: usize = 64 << 20;

impl Registry {
    /// `documents` in version `wanted` (`example.com/v2`), which none of them is in.
    pub(super) async fn convert(
        &self,
        custom: &CustomResource,
        wanted: &str,
        documents: Vec<Document>,
    ) -> Result<Vec<Document>, Status> {
        let Some(first) = documents.first() else { return Ok(documents) };
        let what = format!("conversion webhook for {}, Kind={}", first.api_version(), first.kind());
        let failed = |why: String| Status::internal(format!("{what} failed: {why}"));
        let uid = Uuid::new_v4().to_string();
        let answer = self.ask(custom, wanted, &uid, &documents).await.map_err(failed)?;
        let converted = objects_of(answer, &uid).map_err(failed)?;
        if converted.len() != documents.len() {
            let (got, asked) = (converted.len(), documents.len());
            return Err(Status::internal(format!("{what} returned {got} objects, expected {asked}")));
        }
        let mut done = Vec::with_capacity(documents.len());
        for (at, (before, after)) in documents.iter().zip(converted).enumerate() {
            let checked = check(before, after, wanted);
            done.push(checked.map_err(|why| {
                Status::internal(format!("{what} returned invalid converted object at index {at}: {why}"))
            })?);
        }
        Ok(done)
    }

    async fn ask(
        &self,
        custom: &CustomResource,
        wanted: &str,
        uid: &str,
        documents: &[Document],
    ) -> Result<Value, String> {
        let webhook = custom.spec.webhook.as_ref().ok_or("there is none")?;
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let version = versions
            .filter_map(Value::as_str)
            .find(|version| matches!(*version, "v1" | "v1beta1"))
            .ok_or("no supported conversion review versions")?;
        let destination =
            Destination::from_client_config(&webhook["clientConfig"]).map_err(|cause| cause.to_string())?;
        let outbound = self.outbound.get().ok_or("this server has no way out")?;
        let review = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": documents},
        });
        let target = destination.target(&format!("timeout={}s", TIMEOUT.as_secs()));
        let shown = format!("Post \"{}{target}\"", destination.base());
        let request = Request::builder()
            .method(Method::POST)
            .uri(target)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .body(Bytes::from(review.to_string()))
            .map_err(|cause| format!("{shown}: {cause}"))?;
        let limits = Limits { timeout: TIMEOUT, response_bytes: RESPONSE_BYTES };
        let answer = outbound.call(&destination, request, limits).await;
        let answer = answer.map_err(|cause| format!("{shown}: {cause}"))?;
        if !answer.status().is_success() {
            return Err(match answer.status().as_u16() {
                404 => "the server could not find the requested resource".to_owned(),
                500 => "an error on the server (\"\") has prevented the request from succeeding".to_owned(),
                code => format!("the server responded with the status code {code}"),
            });
        }
        let review: Value = serde_json::from_slice(answer.body()).map_err(|cause| cause.to_string())?;
        let kind =
            (review["apiVersion"].as_str().unwrap_or_default(), review["kind"].as_str().unwrap_or_default());
        let expected = format!("apiextensions.k8s.io/{version}");
        if version == "v1" && kind != (&*expected, "ConversionReview") {
            return Err(format!(
                "expected webhook response of {expected}, Kind=ConversionReview, got {}, Kind={}",
                kind.0, kind.1
            ));
        }
        Ok(review)
    }
}

/// The objects of a `ConversionReview`'s response.
fn objects_of(mut review: Value, uid: &str) -> Result<Vec<Value>, String> {
    let v1 = review["apiVersion"] == "apiextensions.k8s.io/v1";
    let response = &mut review["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let text = |pointer: &str| response.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if v1 && text("/uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text("/uid")));
    }
    if text("/result/status") != "Success" {
        return Err(match text("/result/message") {
            "" => format!("response.result.status was '{}', not 'Success'", text("/result/status")),
            message => message.to_owned(),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// The converted object, with the metadata it had before but for labels and annotations.
fn check(before: &Document, after: Value, wanted: &str) -> Result<Document, String> {
    let mut after = Document::from_value(after).ok_or("it is no object")?;
    if after.api_version() != wanted {
        return Err(format!("invalid groupVersion (expected {wanted}, received {})", after.api_version()));
    }
    if after.kind() != before.kind() {
        return Err(format!("invalid kind (expected {}, received {})", before.kind(), after.kind()));
    }
    for (what, had, has) in [
        ("name", before.name(), after.name()),
        ("namespace", before.namespace(), after.namespace()),
        ("UID", before.uid(), after.uid()),
    ] {
        if had != has {
            return Err(format!("must have the same {what}: {had} != {has}"));
        }
    }
    let Some(Value::Object(said)) = after.0.remove("metadata") else {
        return Err("missing metadata in converted object".to_owned());
    };
    let mut metadata = before.metadata().cloned().unwrap_or_default();
    for part in ["labels", "annotations"] {
        match said.get(part) {
            None | Some(Value::Null) => {
                metadata.remove(part);
            }
            Some(Value::Object(texts)) => {
                if let Some((key, _)) = texts.iter().find(|(_, value)| !value.is_string()) {
                    return Err(format!("metadata.{part}[{key}] must be a string in converted object"));
                }
                metadata.insert(part.to_owned(), Value::Object(Map::clone(texts)));
            }
            Some(_) => return Err(format!("invalid metadata.{part} in converted object")),
        }
    }
    after.0.insert("metadata".to_owned(), Value::Object(metadata));
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked() {
        let before = json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "a", "uid": "u",
            "labels": {"x": "1"}, "annotations": {"y": "1"}, "resourceVersion": "7"}});
        let before = Document::from_value(before).unwrap();
        let good = json!({"apiVersion": "e.com/v2", "kind": "W", "metadata": {"name": "a", "uid": "u",
            "labels": {"x": "2"}, "resourceVersion": "9"}, "spec": {}});
        let with = |pointer: &str, value: Value| {
            let mut changed = good.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            changed
        };
        for (after, wanted) in [
            (
                good.clone(),
                Ok(json!({"name": "a", "uid": "u", "labels": {"x": "2"}, "resourceVersion": "7"})),
            ),
            (
                with("/apiVersion", json!("e.com/v3")),
                Err("invalid groupVersion (expected e.com/v2, received e.com/v3)"),
            ),
            (with("/kind", json!("X")), Err("invalid kind (expected W, received X)")),
            (with("/metadata/name", json!("b")), Err("must have the same name: a != b")),
            (with("/metadata/uid", json!("v")), Err("must have the same UID: u != v")),
            (
                with("/metadata/labels", json!({"x": 1})),
                Err("metadata.labels[x] must be a string in converted object"),
            ),
            (json!([]), Err("it is no object")),
        ] {
            let got = check(&before, after, "e.com/v2");
            assert_eq!(
                got.map(|after| Value::Object(after.metadata().cloned().unwrap())),
                wanted.map_err(str::to_owned)
            );
        }
    }

    #[test]
    fn responses_are_read_as_upstream_reads_them() {
        let review = |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "response": response});
        for (response, wanted) in [
            (json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [1]}), Ok(1)),
            (json!(null), Err("no response provided")),
            (json!({"uid": "v"}), Err("expected response.uid=\"u\", got \"v\"")),
            (json!({"uid": "u", "result": {"status": "Failure", "message": "no way"}}), Err("no way")),
            (json!({"uid": "u", "result": {}}), Err("response.result.status was '', not 'Success'")),
        ] {
            let got = objects_of(review(response), "u").map(|objects| objects.len());
            assert_eq!(got, wanted.map_err(str::to_owned));
        }
    }
}
