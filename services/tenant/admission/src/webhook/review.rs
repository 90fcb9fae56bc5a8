//! `AdmissionReview`: what a webhook is told, and what its answer means.
//!
//! Facts: upstream's `plugin/webhook/request/admissionreview.go` and `plugin/webhook/errors`.

use std::collections::BTreeMap;

use api_machinery::{Document, Gvk, Gvr, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::attributes::Attributes;
use crate::matching::Matched;

const GROUP: &str = "admission.k8s.io";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'a str,
    api_version: String,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: Kind<'a>,
    resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: Kind<'a>,
    request_resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'a str,
    user_info: Value,
    object: Option<&'a Document>,
    old_object: Option<&'a Document>,
    dry_run: bool,
    options: Value,
}

#[derive(Serialize)]
struct Kind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

fn kind(of: &Gvk) -> Kind<'_> {
    Kind { group: &of.group, version: &of.version, kind: &of.kind }
}
fn resource(of: &Gvr) -> Resource<'_> {
    Resource { group: &of.group, version: &of.version, resource: &of.resource }
}

/// The user as reviews and CEL see it.
pub(crate) fn user_info(attributes: &Attributes<'_>) -> Value {
    let user = attributes.user;
    let mut info = serde_json::Map::new();
    info.insert("username".to_owned(), user.name.as_str().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

/// `AdmissionReview` in `version`, as JSON. `object` and `old` are in the version of `matched`.
pub(crate) fn request(
    version: &str,
    uid: &str,
    attributes: &Attributes<'_>,
    matched: &Matched,
    object: Option<&Document>,
    old: Option<&Document>,
) -> Vec<u8> {
    let review = Review {
        kind: "AdmissionReview",
        api_version: format!("{GROUP}/{version}"),
        request: Request {
            uid,
            kind: kind(&matched.gvk),
            resource: resource(&matched.gvr),
            sub_resource: attributes.subresource,
            request_kind: kind(attributes.gvk),
            request_resource: resource(attributes.gvr),
            request_sub_resource: attributes.subresource,
            name: attributes.name,
            namespace: attributes.effective_namespace(),
            operation: attributes.operation.as_str(),
            user_info: user_info(attributes),
            object,
            old_object: old,
            dry_run: attributes.dry_run,
            options: attributes.options.to_json(attributes.operation, attributes.dry_run),
        },
    };
    serde_json::to_vec(&review).unwrap_or_default()
}

/// What a webhook said.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    /// What it refuses with.
    pub(crate) refusal: Option<Status>,
    /// The operations of a JSON patch; at least one.
    pub(crate) patch: Option<Value>,
    pub(crate) warnings: Vec<String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Answer {
    kind: String,
    api_version: String,
    response: Option<Response>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    uid: Option<String>,
    allowed: bool,
    status: Option<Value>,
    patch: Option<String>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// Reads an answer of `hook` to the review `uid`. An error is why it is none.
pub(crate) fn verdict(
    version: &str,
    uid: &str,
    hook: &str,
    mutating: bool,
    body: &[u8],
) -> Result<Verdict, String> {
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let answer: Answer = serde_json::from_slice(body).map_err(|cause| {
        format!("failed to call webhook: couldn't get version/kind; json parse error: {cause}")
    })?;
    let response = answer.response.ok_or_else(|| invalid("webhook response was absent".to_owned()))?;
    // An older review was never checked this closely, and its webhooks rely on it.
    let strict = version == "v1";
    let given = response.uid.as_deref().unwrap_or_default();
    if strict && given != uid {
        return Err(invalid(format!("expected response.uid={uid:?}, got {given:?}")));
    }
    let wanted = format!("{GROUP}/{version}");
    if strict && (answer.api_version != wanted || answer.kind != "AdmissionReview") {
        let got = Gvk::parse(&answer.api_version, &answer.kind).unwrap_or_else(|| Gvk::new("", "", ""));
        return Err(invalid(format!(
            "expected webhook response of {wanted}, Kind=AdmissionReview, got {}/{}, Kind={}",
            got.group, got.version, got.kind
        )));
    }
    let patch = response.patch.as_deref().unwrap_or_default();
    let patch_type = match (&response.patch_type, strict) {
        (given, true) => given.as_deref(),
        (_, false) if patch.is_empty() => None,
        (_, false) => Some("JSONPatch"),
    };
    if !mutating && strict {
        if !patch.is_empty() {
            return Err(invalid("validating webhook may not return response.patch".to_owned()));
        }
        if patch_type.is_some() {
            return Err(invalid("validating webhook may not return response.patchType".to_owned()));
        }
    }
    let patch = match (patch, patch_type) {
        _ if !mutating => None,
        ("", None) => None,
        ("", Some(_)) => {
            return Err(invalid("webhook returned response.patchType but not response.patch".to_owned()));
        }
        (_, None) => {
            return Err(invalid("webhook returned response.patch but not response.patchType".to_owned()));
        }
        (_, Some("")) => {
            return Err(invalid("webhook returned invalid response.patchType of \"\"".to_owned()));
        }
        (encoded, Some(kind)) => {
            let operations = decode(encoded)?;
            let some = operations.as_array().is_none_or(|all| !all.is_empty());
            if response.allowed && some && kind != "JSONPatch" {
                return Err(format!("unsupported patch type {kind:?}"));
            }
            some.then_some(operations)
        }
    };
    Ok(Verdict {
        refusal: (!response.allowed).then(|| refusal(hook, response.status)),
        patch: patch.filter(|_| response.allowed),
        warnings: response.warnings.unwrap_or_default(),
        annotations: response.audit_annotations.unwrap_or_default(),
    })
}

fn decode(encoded: &str) -> Result<Value, String> {
    use base64::Engine;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|cause| format!("failed to call webhook: response.patch is no base64: {cause}"))?;
    let undecodable = |cause: String| format!("received undecodable patch in webhook response: {cause}");
    let operations: Value = serde_json::from_slice(&bytes).map_err(|cause| undecodable(cause.to_string()))?;
    if !operations.is_array() {
        let why = "json: cannot unmarshal object into Go value of type jsonpatch.Patch";
        return Err(undecodable(why.to_owned()));
    }
    Ok(operations)
}

/// A rejection never looks like a success, whatever the webhook made of its status.
fn refusal(hook: &str, status: Option<Value>) -> Status {
    let by = format!("admission webhook {hook:?} denied the request");
    let mut given = status.filter(Value::is_object).unwrap_or_else(|| json!({}));
    let text = |name: &str| given.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (message, reason) = (text("message"), text("reason"));
    let message = match (message.as_str(), reason.as_str()) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let code = given.get("code").and_then(Value::as_u64).filter(|code| (400..1000).contains(code));
    given["code"] = code.unwrap_or(400).into();
    given["status"] = "Failure".into();
    given["message"] = message.as_str().into();
    given["metadata"] = json!({});
    if reason.is_empty()
        && let Some(fields) = given.as_object_mut()
    {
        fields.remove("reason");
    }
    serde_json::from_value(given).unwrap_or_else(|_| {
        let mut plain = Status::bad_request(message);
        plain.reason = None;
        plain
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;

    use super::*;
    use crate::attributes::Operation;
    use crate::testing::{Cluster, request as asked};

    fn base64(text: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    #[test]
    fn a_webhook_is_told_everything() {
        let cluster = Cluster::default();
        let mut request_for = asked(
            &cluster,
            Operation::Update,
            "autoscaling/v1/horizontalpodautoscalers",
            "status",
            "ns",
            "web",
        );
        request_for.dry_run = true;
        let matched = Matched {
            gvr: Gvr::new("autoscaling", "v2", "horizontalpodautoscalers"),
            gvk: Gvk::new("autoscaling", "v2", "HorizontalPodAutoscaler"),
        };
        let object = Document::from_value(json!({"kind": "new"})).unwrap();
        let old = Document::from_value(json!({"kind": "old"})).unwrap();
        let bytes = request("v1", "u", &request_for.attributes(), &matched, Some(&object), Some(&old));
        let got: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            got,
            json!({
                "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
                "request": {
                    "uid": "u",
                    "kind": {"group": "autoscaling", "version": "v2", "kind": "HorizontalPodAutoscaler"},
                    "resource": {"group": "autoscaling", "version": "v2", "resource": "horizontalpodautoscalers"},
                    "subResource": "status",
                    "requestKind": {"group": "autoscaling", "version": "v1", "kind": "HorizontalPodAutoscaler"},
                    "requestResource": {"group": "autoscaling", "version": "v1", "resource": "horizontalpodautoscalers"},
                    "requestSubResource": "status",
                    "name": "web", "namespace": "ns", "operation": "UPDATE",
                    "userInfo": {"username": "ann", "groups": ["dev"]},
                    "object": {"kind": "new"}, "oldObject": {"kind": "old"},
                    "dryRun": true,
                    "options": {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "fieldManager": "test"},
                }
            })
        );
        let mut connect = asked(&cluster, Operation::Connect, "v1/namespaces", "", "", "ns");
        connect.gvk = Gvk::new("", "v1", "Namespace");
        let matched = Matched { gvr: connect.gvr.clone(), gvk: connect.gvk.clone() };
        let bytes = request("v1", "u", &connect.attributes(), &matched, None, None);
        let got: Value = serde_json::from_slice(&bytes).unwrap();
        for (pointer, wanted) in [
            ("/request/object", json!(null)),
            ("/request/oldObject", json!(null)),
            ("/request/options", json!(null)),
            ("/request/namespace", json!("ns")),
            ("/request/operation", json!("CONNECT")),
        ] {
            assert_eq!(got.pointer(pointer), Some(&wanted), "{pointer}");
        }
    }

    #[test]
    fn answers_are_checked() {
        let review = |response: Value| json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        let ok = |more: Value| {
            let mut response = json!({"uid": "u", "allowed": true});
            response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            review(response)
        };
        let patch = base64(r#"[{"op": "add", "path": "/a", "value": 1}]"#);
        for (mutating, answer, wanted) in [
            (true, ok(json!({})), "yes"),
            (false, ok(json!({})), "yes"),
            (true, ok(json!({"patch": patch, "patchType": "JSONPatch"})), "yes, with a patch"),
            (true, ok(json!({"patch": base64("[]"), "patchType": "JSONPatch"})), "yes"),
            (
                true,
                ok(json!({"patch": patch})),
                "received invalid webhook response: webhook returned response.patch but not response.patchType",
            ),
            (
                true,
                ok(json!({"patchType": "JSONPatch"})),
                "received invalid webhook response: webhook returned response.patchType but not response.patch",
            ),
            (
                true,
                ok(json!({"patch": patch, "patchType": ""})),
                "received invalid webhook response: webhook returned invalid response.patchType of \"\"",
            ),
            (true, ok(json!({"patch": patch, "patchType": "Merge"})), "unsupported patch type \"Merge\""),
            (
                true,
                ok(json!({"patch": base64("{}"), "patchType": "JSONPatch"})),
                "received undecodable patch in webhook response: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
            ),
            (
                false,
                ok(json!({"patch": patch})),
                "received invalid webhook response: validating webhook may not return response.patch",
            ),
            (
                false,
                ok(json!({"patchType": "JSONPatch"})),
                "received invalid webhook response: validating webhook may not return response.patchType",
            ),
            (
                true,
                review(json!({"uid": "v", "allowed": true})),
                "received invalid webhook response: expected response.uid=\"u\", got \"v\"",
            ),
            (
                true,
                json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
                "received invalid webhook response: webhook response was absent",
            ),
            (
                true,
                json!({"response": {"uid": "u", "allowed": true}}),
                "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
            ),
            (
                true,
                json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": {"uid": "u"}}),
                "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview",
            ),
            (
                true,
                review(json!({"uid": "u"})),
                "400: admission webhook \"h.example.com\" denied the request without explanation",
            ),
            (
                true,
                review(
                    json!({"uid": "u", "status": {"code": 200, "status": "Success", "message": "no pods here"}}),
                ),
                "400: admission webhook \"h.example.com\" denied the request: no pods here",
            ),
            (
                true,
                review(json!({"uid": "u", "status": {"code": 403, "reason": "Forbidden"}})),
                "403 Forbidden: admission webhook \"h.example.com\" denied the request: Forbidden",
            ),
            (
                true,
                review(json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"})),
                "400: admission webhook \"h.example.com\" denied the request without explanation",
            ),
        ] {
            let got = match verdict("v1", "u", "h.example.com", mutating, answer.to_string().as_bytes()) {
                Err(why) => why,
                Ok(Verdict { refusal: Some(status), .. }) => {
                    let reason = status.reason.map(|reason| format!(" {reason:?}")).unwrap_or_default();
                    format!("{}{reason}: {}", status.code, status.message)
                }
                Ok(Verdict { patch: Some(_), .. }) => "yes, with a patch".to_owned(),
                Ok(_) => "yes".to_owned(),
            };
            assert_eq!(got, wanted, "{answer}");
        }
        // The older review says neither uid nor type of its patch.
        let old = json!({"response": {"allowed": true, "patch": patch}}).to_string();
        assert!(verdict("v1beta1", "u", "h", true, old.as_bytes()).unwrap().patch.is_some());
        assert!(
            verdict("v1", "u", "h", true, b"<html>").unwrap_err().starts_with("failed to call webhook: ")
        );
    }
}
