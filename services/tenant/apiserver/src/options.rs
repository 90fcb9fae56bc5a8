//! Query parameters as the options of a verb.
//!
//! Upstream decodes them as `ListOptions`, `CreateOptions` and their kin and validates; so do we, with its
//! words. What an option means is the registry's.

use std::time::Duration;

use api_machinery::{Field, FieldError, FieldSelector, LabelSelector, Status};
use serde_json::Value;
use tenant_client::{DeleteOptions, Propagation};
use tenant_registry::{FieldValidation, GetOptions, ListOptions, WatchOptions};

use crate::query::Query;

pub fn get(query: &Query) -> GetOptions {
    GetOptions { resource_version: text(query, "resourceVersion") }
}

pub fn list(query: &Query) -> Result<ListOptions, Status> {
    let limit = query.int("limit")?.unwrap_or(0);
    Ok(ListOptions {
        labels: labels(query)?,
        fields: fields(query)?,
        // Negative limits read as none upstream.
        limit: u64::try_from(limit).unwrap_or(0),
        continue_token: text(query, "continue"),
        resource_version: text(query, "resourceVersion"),
        resource_version_match: text(query, "resourceVersionMatch"),
    })
}

pub fn watch(query: &Query) -> Result<WatchOptions, Status> {
    Ok(WatchOptions {
        labels: labels(query)?,
        fields: fields(query)?,
        resource_version: text(query, "resourceVersion"),
        resource_version_match: text(query, "resourceVersionMatch"),
        send_initial_events: query.text("sendInitialEvents").map(|_| query.flag("sendInitialEvents")),
        allow_bookmarks: query.flag("allowWatchBookmarks"),
    })
}

pub fn labels(query: &Query) -> Result<LabelSelector, Status> {
    LabelSelector::parse(query.get("labelSelector").unwrap_or_default())
        .map_err(|err| Status::bad_request(err.to_string()))
}

pub fn fields(query: &Query) -> Result<FieldSelector, Status> {
    FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())
        .map_err(|err| Status::bad_request(err.to_string()))
}

/// A year: what asks for more means "for ever", and no connection lasts that long.
const LONGEST_WATCH_SECONDS: u64 = 365 * 24 * 3600;

/// How long a watch lasts, when the client says so.
pub fn timeout(query: &Query) -> Result<Option<Duration>, Status> {
    let seconds = query.int("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    // Clocks do not reach as far as numbers do.
    let seconds = seconds.filter(|seconds| *seconds > 0).map(|seconds| seconds.min(LONGEST_WATCH_SECONDS));
    Ok(seconds.map(Duration::from_secs))
}

/// What create, update and patch have in common.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: Option<String>,
    pub field_validation: FieldValidation,
    pub force: bool,
}

/// `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`: whose validation it is, for the message.
pub fn write(query: &Query, kind: &str, apply: bool) -> Result<WriteOptions, Status> {
    let mut errors = Vec::new();
    let dry_run = dry_run(query.all("dryRun"), &mut errors);
    let field_manager = query.text("fieldManager").map(str::to_owned);
    match &field_manager {
        Some(name) => check_manager(name, &mut errors),
        None if apply => errors.push(Field::new("fieldManager").required("is required for apply patch")),
        None => {}
    }
    let field_validation = match query.get("fieldValidation").unwrap_or_default() {
        "" => FieldValidation::default(),
        "Ignore" => FieldValidation::Ignore,
        "Warn" => FieldValidation::Warn,
        "Strict" => FieldValidation::Strict,
        other => {
            let supported = ["", "Ignore", "Strict", "Warn"];
            errors.push(Field::new("fieldValidation").not_supported(other, &supported));
            FieldValidation::default()
        }
    };
    let force = query.flag("force");
    if query.text("force").is_some() && !apply && kind == "PatchOptions" {
        errors.push(Field::new("force").forbidden("may not be specified for non-apply patch"));
    }
    if !errors.is_empty() {
        return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
    }
    Ok(WriteOptions { dry_run, field_manager, field_validation, force })
}

/// Upstream's bound, so that managers written here can be read there.
const MANAGER_BYTES: usize = 128;

fn check_manager(name: &str, errors: &mut Vec<FieldError>) {
    let field = Field::new("fieldManager");
    if name.len() > MANAGER_BYTES {
        errors.push(field.too_long(MANAGER_BYTES));
    }
    if name.chars().any(char::is_control) {
        errors.push(field.invalid(name, "should only contain printable characters"));
    }
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Vec<FieldError>) -> bool {
    let mut dry = false;
    for (index, value) in values.filter(|value| !value.is_empty()).enumerate() {
        match value {
            "All" => dry = true,
            other => errors.push(Field::new("dryRun").index(index).not_supported(other, &["All"])),
        }
    }
    dry
}

/// `DeleteOptions` out of the body if it is there, else out of the query; and whether it is a dry run.
pub fn delete(query: &Query, body: Option<&Value>) -> Result<(DeleteOptions, bool), Status> {
    let mut errors = Vec::new();
    let mut options = DeleteOptions::default();
    let (orphan, policy, dry);
    match body {
        Some(body) => {
            let values = body.get("dryRun").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            dry = dry_run(values.iter().filter_map(Value::as_str), &mut errors);
            orphan = body.get("orphanDependents").and_then(Value::as_bool);
            policy = body.get("propagationPolicy").and_then(Value::as_str).map(str::to_owned);
            options.grace_period_seconds = body.get("gracePeriodSeconds").and_then(Value::as_i64);
            let precondition = |name: &str| body.get("preconditions")?.get(name)?.as_str().map(str::to_owned);
            options.uid = precondition("uid");
            options.resource_version = precondition("resourceVersion");
        }
        None => {
            dry = dry_run(query.all("dryRun"), &mut errors);
            orphan = query.text("orphanDependents").map(|_| query.flag("orphanDependents"));
            policy = query.text("propagationPolicy").map(str::to_owned);
            options.grace_period_seconds = query.int("gracePeriodSeconds")?;
        }
    }
    let field = Field::new("propagationPolicy");
    options.propagation = match (policy.as_deref(), orphan) {
        (Some(_), Some(_)) => {
            errors.push(field.invalid(
                policy.clone().unwrap_or_default(),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
            None
        }
        (Some("Background"), None) => Some(Propagation::Background),
        (Some("Foreground"), None) => Some(Propagation::Foreground),
        (Some("Orphan"), None) => Some(Propagation::Orphan),
        (Some(other), None) => {
            errors.push(field.not_supported(other, &["Background", "Foreground", "Orphan"]));
            None
        }
        (None, Some(true)) => Some(Propagation::Orphan),
        (None, Some(false)) => Some(Propagation::Background),
        (None, None) => None,
    };
    if !errors.is_empty() {
        return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
    }
    Ok((options, dry))
}

fn text(query: &Query, name: &str) -> String {
    query.get(name).unwrap_or_default().to_owned()
}

/// Go's duration text (`30s`, `1m30s`, `500ms`), as `timeout=` carries it.
pub fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_named() {
        for (raw, kind, apply, wanted) in [
            ("", "CreateOptions", false, Ok(())),
            ("dryRun=All&fieldManager=me&fieldValidation=Strict", "CreateOptions", false, Ok(())),
            (
                "dryRun=Some",
                "CreateOptions",
                false,
                Err(
                    "CreateOptions.meta.k8s.io \"\" is invalid: dryRun[0]: Unsupported value: \"Some\": supported values: \"All\"",
                ),
            ),
            (
                "",
                "PatchOptions",
                true,
                Err(
                    "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
                ),
            ),
            (
                "force=true",
                "PatchOptions",
                false,
                Err(
                    "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
                ),
            ),
        ] {
            let got = write(&Query::parse(Some(raw)), kind, apply);
            assert_eq!(
                got.map(|_| ()).map_err(|status| status.message),
                wanted.map_err(str::to_owned),
                "{raw}"
            );
        }
    }

    #[test]
    fn delete_options_come_from_body_or_query() {
        use serde_json::json;
        for (raw, body, wanted) in [
            ("", None, "None None dry=false"),
            ("propagationPolicy=Orphan&gracePeriodSeconds=3", None, "Some(Orphan) Some(3) dry=false"),
            (
                "propagationPolicy=Orphan",
                Some(json!({"propagationPolicy": "Foreground", "dryRun": ["All"]})),
                "Some(Foreground) None dry=true",
            ),
            ("", Some(json!({"orphanDependents": true})), "Some(Orphan) None dry=false"),
            ("propagationPolicy=Often", None, "422"),
        ] {
            let got = match delete(&Query::parse(Some(raw)), body.as_ref()) {
                Ok((options, dry)) => {
                    format!("{:?} {:?} dry={dry}", options.propagation, options.grace_period_seconds)
                }
                Err(status) => status.code.to_string(),
            };
            assert_eq!(got, wanted, "{raw} {body:?}");
        }
    }

    #[test]
    fn durations_read_as_go_writes_them() {
        for (text, wanted_ms) in [
            ("32s", Some(32_000)),
            ("1m30s", Some(90_000)),
            ("1.5s", Some(1500)),
            ("250ms", Some(250)),
            ("", None),
            ("5", None),
            ("s", None),
            ("5x", None),
        ] {
            assert_eq!(duration(text).map(|got| got.as_millis()), wanted_ms, "{text:?}");
        }
    }
}
