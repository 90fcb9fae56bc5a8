//! `spec.conversion`.

use api_machinery::{Field, FieldError};
use base64::Engine;
use serde_json::{Value, json};

use super::form::{list, text};
use crate::formats;
use api_machinery::validation;

/// Versions of ConversionReview that this server speaks.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

pub(super) fn has_recognized_version_or_none(conversion: Option<&Value>) -> bool {
    let versions = review_versions(conversion);
    versions.is_empty()
        || versions.iter().any(|version| version.as_str().is_some_and(|text| REVIEW_VERSIONS.contains(&text)))
}

fn review_versions(conversion: Option<&Value>) -> &[Value] {
    list(conversion.and_then(|conversion| conversion.pointer("/webhook/conversionReviewVersions")))
}

fn client_config(conversion: &Value) -> Option<&Value> {
    conversion.pointer("/webhook/clientConfig").filter(|config| !config.is_null())
}

pub(super) fn has_invalid_ca(conversion: Option<&Value>) -> bool {
    let config = conversion.and_then(client_config);
    config.map(|config| text(config, "caBundle")).is_some_and(|ca| !ca.is_empty() && !is_ca(ca))
}

/// At least one certificate in PEM.
fn is_ca(encoded: &str) -> bool {
    let engine = base64::engine::general_purpose::STANDARD;
    let Some(pem) = engine.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else {
        return false;
    };
    let Some((_, rest)) = pem.split_once("-----BEGIN CERTIFICATE-----") else { return false };
    let Some((body, _)) = rest.split_once("-----END CERTIFICATE-----") else { return false };
    let body: String = body.split_whitespace().collect();
    // A certificate is a DER sequence.
    engine.decode(body).is_ok_and(|der| der.first() == Some(&0x30))
}

pub(super) fn validate(
    at: &Field,
    conversion: Option<&Value>,
    recognized: bool,
    allow_invalid_ca: bool,
    errors: &mut Vec<FieldError>,
) {
    let Some(conversion) = conversion else { return };
    let config_at = at.child("webhookClientConfig");
    let versions_at = at.child("conversionReviewVersions");
    match text(conversion, "strategy") {
        "" => errors.push(at.child("strategy").required("")),
        "None" | "Webhook" => {}
        other => errors.push(at.child("strategy").not_supported(other, &["None", "Webhook"])),
    }
    let versions = review_versions(Some(conversion));
    if text(conversion, "strategy") != "Webhook" {
        if client_config(conversion).is_some() {
            errors.push(config_at.forbidden("should not be set when strategy is not set to Webhook"));
        }
        if !versions.is_empty() {
            errors.push(versions_at.forbidden("should not be set when strategy is not set to Webhook"));
        }
        return;
    }
    match client_config(conversion) {
        None => errors.push(config_at.required("required when strategy is set to Webhook")),
        Some(config) => {
            let url = config.get("url").and_then(Value::as_str);
            let service = config.get("service").filter(|service| !service.is_null());
            match (url, service) {
                (Some(url), None) => webhook_url(&config_at.child("url"), url, errors),
                (None, Some(service)) => webhook_service(&config_at.child("service"), service, errors),
                _ => errors.push(config_at.required("exactly one of url or service is required")),
            }
            let ca = text(config, "caBundle");
            if !ca.is_empty() && !allow_invalid_ca && !is_ca(ca) {
                let why = "unable to load root certificates: unable to parse bytes as PEM block";
                errors.push(config_at.child("caBundle").invalid(ca, why));
            }
        }
    }
    if versions.is_empty() {
        errors.push(versions_at.required(""));
        return;
    }
    let mut seen = Vec::new();
    for (index, version) in versions.iter().filter_map(Value::as_str).enumerate() {
        let at = versions_at.index(index);
        if seen.contains(&version) {
            errors.push(at.invalid(version, "duplicate version"));
            continue;
        }
        seen.push(version);
        errors.extend(validation::dns_1035_label(version).into_iter().map(|why| at.invalid(version, why)));
    }
    if recognized && !seen.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(versions_at.invalid(json!(seen), why));
    }
}

fn webhook_url(at: &Field, url: &str, errors: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let Some((scheme, rest)) = formats::scheme(url) else {
        let why = format!("url must be a valid URL: parse {url:?}: missing protocol scheme{FORM}");
        errors.push(at.required(why));
        return;
    };
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.strip_prefix("//").map(|rest| rest.split('/').next().unwrap_or_default());
    let (user, host) = match authority {
        Some(authority) => match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        },
        None => (None, ""),
    };
    if scheme.to_lowercase() != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(at.invalid(scheme.to_lowercase(), why));
    }
    if host.is_empty() {
        errors.push(at.invalid("", format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(at.invalid(user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(at.invalid(fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(at.invalid(query, "query parameters are not permitted in the URL"));
    }
}

fn webhook_service(at: &Field, service: &Value, errors: &mut Vec<FieldError>) {
    // Upstream hands over name and namespace the wrong way round, so that each is missed under the other's
    // name.
    for (missing, named) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, missing).is_empty() {
            errors.push(at.child(named).required(""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(at.child("port").invalid(port, why));
    }
    let Some(path) = service.get("path").and_then(Value::as_str) else { return };
    let at = at.child("path");
    match path {
        "" | "/" => return,
        "//" => return errors.push(at.invalid(path, "segment[0] may not be empty")),
        _ => {}
    }
    if !path.starts_with('/') {
        errors.push(at.invalid(path, "must start with a '/'"));
    }
    let mut chars = path.chars();
    chars.next();
    let steps = chars.as_str();
    for (index, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            errors.push(at.invalid(path, format!("segment[{index}] may not be empty")));
            continue;
        }
        let reasons = validation::dns_subdomain(step).into_iter();
        errors.extend(reasons.map(|why| at.invalid(path, format!("segment[{index}]: {why}"))));
    }
}
