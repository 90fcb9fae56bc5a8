//! Bodies as documents: whichever encoding, checked against what the URL says they are.

use api_kinds::{MessageId, ResourceInfo};
use api_machinery::{Document, Gvk, Status};
use api_patch::{Decoded, PatchError, decode_strict, strict_error};
use bytes::Bytes;
use serde_json::Value;
use tenant_admission::Warnings;
use tenant_client::Patch;
use tenant_registry::{FieldValidation, Resource, Schema};

use crate::body::Body;
use crate::negotiate::{ContentType, Media};
use crate::options::WriteOptions;
use crate::pipeline::Call;
use crate::wire;

pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// What a body must be.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    pub kind: &'a Gvk,
    pub message: MessageId,
    /// Of a custom resource.
    pub schema: Option<&'a Schema>,
}

impl<'a> Shape<'a> {
    /// An object of this resource.
    pub fn of(resource: &'a Resource) -> Shape<'a> {
        let schema = resource.custom().and_then(|custom| custom.schema());
        Shape { schema, ..Shape::built_in(resource) }
    }
    pub fn built_in(resource: &'a ResourceInfo) -> Shape<'a> {
        Shape { kind: &resource.gvk, message: resource.message, schema: None }
    }
    fn is_custom(&self) -> bool {
        self.message == api_kinds::kinds().custom()
    }
}

/// The object a request carries. Unknown and duplicate fields are warned about or
/// refused, as `validation` says.
pub async fn object(
    call: &Call,
    body: Body,
    shape: &Shape<'_>,
    validation: FieldValidation,
) -> Result<Document, Status> {
    let expected = shape.kind;
    let content_type = ContentType::parse(call.header("content-type"));
    let media = content_type.media()?;
    if media == Media::Protobuf && shape.is_custom() {
        let accepted = [Media::Json.content_type(), Media::Yaml.content_type()];
        return Err(Status::unsupported_media_type(&content_type.essence, &accepted));
    }
    let raw = call.read(body).await?;
    let json = to_json(media, &raw, expected).map_err(|cause| unrecognized(expected, &cause, &raw))?;
    decode(&json, &raw, shape, validation, &call.warnings)
}

fn to_json(media: Media, raw: &Bytes, expected: &Gvk) -> Result<Bytes, String> {
    match media {
        Media::Json => Ok(raw.clone()),
        Media::Yaml => wire::json_of_yaml(raw).map(Bytes::from),
        Media::Protobuf => wire::json_of_protobuf(raw, expected).map(Bytes::from),
    }
}

fn decode(
    json: &Bytes,
    raw: &Bytes,
    shape: &Shape<'_>,
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<Document, Status> {
    let expected = shape.kind;
    let found = type_of(json).map_err(|cause| {
        unrecognized(expected, &format!("couldn't get version/kind; json parse error: {cause}"), raw)
    })?;
    if let Some((api_version, kind)) = &found {
        check_type(api_version, kind, expected)?;
    }
    let as_given = |cause: &str| match &found {
        Some((api_version, kind)) if !kind.is_empty() => {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            Status::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {}: {cause}",
                expected.kind
            ))
        }
        _ => unrecognized(expected, cause, raw),
    };
    let Decoded { mut document, mut problems } =
        decode_strict(shape.message, json).map_err(|cause| match cause {
            PatchError::Malformed(why) => as_given(&why),
            other => other.to_status(),
        })?;
    if let Some(schema) = shape.schema {
        problems.extend(schema.prune(&mut document).map_err(|cause| as_given(&cause))?);
    }
    if !problems.is_empty() {
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => problems.into_iter().for_each(|problem| warnings.add(problem)),
            FieldValidation::Strict => {
                return Err(as_given(&strict_error(&problems)));
            }
        }
    }
    document.set("apiVersion", expected.api_version());
    document.set("kind", expected.kind.to_string());
    Ok(document)
}

/// `apiVersion` and `kind` as given; `None` when both are absent.
fn type_of(json: &[u8]) -> Result<Option<(String, String)>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed {
        #[serde(default)]
        api_version: Option<String>,
        #[serde(default)]
        kind: Option<String>,
    }
    let Typed { api_version, kind } = serde_json::from_slice(json)?;
    let (api_version, kind) = (api_version.unwrap_or_default(), kind.unwrap_or_default());
    Ok((!api_version.is_empty() || !kind.is_empty()).then_some((api_version, kind)))
}

/// What is given must be what the URL means; what is absent is taken from there.
fn check_type(api_version: &str, kind: &str, expected: &Gvk) -> Result<(), Status> {
    let wanted = expected.api_version();
    if !kind.is_empty() && kind != expected.kind {
        let version = if api_version.is_empty() { &wanted } else { api_version };
        return Err(Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: no kind {kind:?} is registered for version {version:?} at this URL",
            version.rsplit('/').next().unwrap_or_default(),
            expected.kind
        )));
    }
    if !api_version.is_empty() && api_version != wanted && !is_alias(api_version, expected) {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({wanted})"
        )));
    }
    Ok(())
}

/// Bodies of verbs that are older than their groups: evictions and delete options come as either.
fn is_alias(api_version: &str, expected: &Gvk) -> bool {
    matches!(
        (&*expected.kind, api_version),
        ("Eviction", "policy/v1beta1" | "policy/v1") | ("DeleteOptions", _)
    )
}

/// Upstream's words for a body whose kind nobody could make out.
fn unrecognized(expected: &Gvk, cause: &str, raw: &[u8]) -> Status {
    const SHOWN: usize = 30;
    let dots = if raw.len() > SHOWN { " ..." } else { "" };
    let start = &raw[..raw.len().min(SHOWN)];
    let shown = match raw.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{dots}", String::from_utf8_lossy(start)),
        Some(_) => {
            let hex: String = start.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{dots}")
        }
    };
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {cause} ({shown})",
        expected.kind
    ))
}

/// `DeleteOptions` if the request has a body.
pub async fn delete_options(call: &Call, body: Body) -> Result<Option<Value>, Status> {
    let raw = call.read(body).await?;
    if raw.is_empty() {
        return Ok(None);
    }
    let expected = Gvk::new("", "v1", "DeleteOptions");
    let media = ContentType::parse(call.header("content-type")).media()?;
    let json = to_json(media, &raw, &expected).map_err(|cause| unrecognized(&expected, &cause, &raw))?;
    let value: Value = serde_json::from_slice(&json).map_err(|cause| {
        unrecognized(&expected, &format!("couldn't get version/kind; json parse error: {cause}"), &raw)
    })?;
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !value.is_object() || !matches!(kind, "" | "DeleteOptions") {
        return Err(Status::bad_request(format!(
            "decoded object cannot be converted to DeleteOptions: it is {}",
            if kind.is_empty() { "no object" } else { kind }
        )));
    }
    Ok(Some(value))
}

/// A patch by its content type.
pub async fn patch(
    call: &Call,
    body: Body,
    strategic: bool,
    options: &WriteOptions,
) -> Result<Patch, Status> {
    let kind = ContentType::parse(call.header("content-type")).essence;
    let mut accepted = vec![JSON_PATCH, MERGE_PATCH];
    if strategic {
        accepted.push(STRATEGIC_PATCH);
    }
    accepted.push(APPLY_PATCH);
    if !accepted.contains(&kind.as_str()) {
        return Err(Status::unsupported_media_type(&kind, &accepted));
    }
    let raw = call.read(body).await?;
    if kind == APPLY_PATCH {
        let json = wire::json_of_yaml(&raw)
            .map_err(|cause| Status::bad_request(format!("error decoding YAML: {cause}")))?;
        let document = parse(&json)?;
        if let Some(why) = wire::yaml_duplicates(&raw) {
            match options.field_validation {
                FieldValidation::Ignore => {}
                FieldValidation::Warn => call.warnings.add(why),
                FieldValidation::Strict => {
                    return Err(Status::bad_request(format!("error strict decoding YAML: {why}")));
                }
            }
        }
        let manager = options.field_manager.clone().unwrap_or_default();
        return Ok(Patch::Apply { document, manager, force: options.force });
    }
    let value = parse(&raw)?;
    Ok(match kind.as_str() {
        JSON_PATCH => {
            check_operations(&value)?;
            Patch::Json(value)
        }
        MERGE_PATCH => Patch::Merge(value),
        _ => Patch::Strategic(value),
    })
}

/// Upstream's bound on operations in one JSON patch.
const OPERATIONS: usize = 10_000;

fn check_operations(patch: &Value) -> Result<(), Status> {
    match patch.as_array() {
        None => Err(Status::bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
        )),
        Some(all) if all.len() > OPERATIONS => Err(Status::too_large(format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS}, got {}",
            all.len()
        ))),
        Some(_) => Ok(()),
    }
}

fn parse(json: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(json)
        .map_err(|cause| Status::bad_request(format!("error decoding patch: {cause}")))
}

pub fn is_apply(call: &Call) -> bool {
    ContentType::parse(call.header("content-type")).essence == APPLY_PATCH
}
