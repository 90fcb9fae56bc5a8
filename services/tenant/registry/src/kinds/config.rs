//! ConfigMaps, Secrets and ServiceAccounts.

use api_machinery::{Document, Field, FieldError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::strategy::Strategy;
use crate::validation::meta::immutable;
use crate::validation::names;

/// Content of one object: leaves room for metadata within the store's limit for an object.
const MAX_BYTES: usize = 1 << 20;

pub(crate) struct ConfigMaps;

impl Strategy for ConfigMaps {
    fn creates_on_update(&self) -> bool {
        false
    }
    fn validate(&self, new: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut bytes = 0;
        let data = new.get("data").and_then(Value::as_object);
        for (key, value) in data.into_iter().flatten() {
            let field = Field::new("data").key(key);
            errors.extend(names::config_key(key).into_iter().map(|why| field.invalid(key.as_str(), why)));
            if new.get("binaryData").and_then(Value::as_object).is_some_and(|binary| binary.contains_key(key))
            {
                errors.push(field.invalid(key.as_str(), "duplicate of key present in binaryData"));
            }
            bytes += value.as_str().map_or(0, str::len);
        }
        for (key, value) in new.get("binaryData").and_then(Value::as_object).into_iter().flatten() {
            let field = Field::new("binaryData").key(key);
            errors.extend(names::config_key(key).into_iter().map(|why| field.invalid(key.as_str(), why)));
            bytes += value.as_str().map_or(0, |text| text.len() / 4 * 3);
        }
        if bytes > MAX_BYTES {
            errors.push(Field::new("").too_long(MAX_BYTES));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Vec<FieldError> {
        let mut errors = frozen(new, old, &["data", "binaryData"]);
        errors.extend(self.validate(new));
        errors
    }
}

/// Once `immutable: true`, neither that nor the content changes.
fn frozen(new: &Document, old: &Document, fields: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return errors;
    }
    if new.get("immutable") != Some(&Value::Bool(true)) {
        errors.push(Field::new("immutable").forbidden("field is immutable when `immutable` is set"));
    }
    for name in fields {
        if new.get(name) != old.get(name) {
            errors.push(Field::new(name).forbidden("field is immutable when `immutable` is set"));
        }
    }
    errors
}

pub(crate) struct Secrets;

impl Strategy for Secrets {
    fn defaults(&self, new: &mut Document) {
        // Write-only convenience: it never comes back.
        if let Some(Value::Object(plain)) = new.remove("stringData") {
            let data = new.object_mut("data");
            for (key, value) in plain {
                data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
            }
        }
        if new.get_str("type").is_none_or(str::is_empty) {
            new.set("type", "Opaque");
        }
    }
    fn validate(&self, new: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut bytes = 0;
        let data = new.get("data").and_then(Value::as_object);
        for (key, value) in data.into_iter().flatten() {
            let field = Field::new("data").key(key);
            errors.extend(names::config_key(key).into_iter().map(|why| field.invalid(key.as_str(), why)));
            match value.as_str().map(|text| STANDARD.decode(text)) {
                Some(Ok(decoded)) => bytes += decoded.len(),
                _ if value.is_null() => {}
                _ => errors.push(field.invalid("<base64>", "illegal base64 data")),
            }
        }
        if bytes > MAX_BYTES {
            errors.push(Field::new("data").too_long(MAX_BYTES));
        }
        let has = |key: &str| data.is_some_and(|data| data.contains_key(key));
        let need = |keys: &[&str], errors: &mut Vec<FieldError>| {
            for key in keys.iter().filter(|key| !has(key)) {
                errors.push(Field::new("data").key(key).required(""));
            }
        };
        match new.get_str("type").unwrap_or_default() {
            "kubernetes.io/service-account-token" => {
                let key = "kubernetes.io/service-account.name";
                if new.annotation(key).unwrap_or_default().is_empty() {
                    errors.push(Field::new("metadata.annotations").key(key).required(""));
                }
            }
            "kubernetes.io/dockercfg" => need(&[".dockercfg"], &mut errors),
            "kubernetes.io/dockerconfigjson" => {
                need(&[".dockerconfigjson"], &mut errors);
                let text = data.and_then(|data| data.get(".dockerconfigjson")?.as_str());
                if let Some(text) = text {
                    let parsed =
                        STANDARD.decode(text).ok().and_then(|raw| serde_json::from_slice::<Value>(&raw).ok());
                    if parsed.is_none() {
                        errors.push(
                            Field::new("data")
                                .key(".dockerconfigjson")
                                .invalid("<secret contents redacted>", "invalid character"),
                        );
                    }
                }
            }
            "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
                errors.push(Field::new("data[username]").required(""));
                errors.push(Field::new("data[password]").required(""));
            }
            "kubernetes.io/ssh-auth" => need(&["ssh-privatekey"], &mut errors),
            "kubernetes.io/tls" => need(&["tls.crt", "tls.key"], &mut errors),
            _ => {}
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        errors.extend(immutable(new.get("type"), old.get("type"), &Field::new("type")));
        errors.extend(frozen(new, old, &["data"]));
        errors.extend(self.validate(new));
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["type"]
    }
}

pub(crate) struct ServiceAccounts;

impl Strategy for ServiceAccounts {
    fn returns_deleted(&self) -> bool {
        true
    }
}
