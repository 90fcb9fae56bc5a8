//! A structural schema as it serves one version of a custom resource.
//!
//! Thousands of clusters install the same definitions, so what is read from one is kept once for the whole
//! process, for as long as somebody uses it: [`Structural::parse`] gives the same `Arc` for the same schema.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

use api_machinery::{Field, FieldError, FieldErrorKind};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::bounds::MAX_ERRORS;
use crate::correlate::Correlated;
use crate::metadata::Coerce;
use crate::prune::Unknown;
use crate::rules::{self, Rules};
use crate::schema::Schema;
use crate::{default, lists, metadata, nonstructural, prune, value};

/// The schema of one version of a custom resource; see [`Schema`] for what it says.
#[derive(Debug)]
pub struct Structural {
    root: Schema,
    /// Compiled when an object is first validated: a schema may be read only to be shown.
    rules: OnceLock<Option<Rules>>,
}

/// How [`Structural::prune`] goes about it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prune {
    /// Gather the paths of unknown fields, for `fieldValidation`.
    pub unknown: bool,
    /// What comes from the store may have been stored under another schema: embedded metadata that is
    /// malformed is left out, not refused.
    pub from_store: bool,
    /// `spec.preserveUnknownFields` of the definition, which only very old ones have: nothing is pruned.
    pub keep_unknown: bool,
}

/// What a write may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The object itself.
    Whole,
    /// `status` through its subresource.
    Status,
}

/// What came of validating an object.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    pub errors: Vec<FieldError>,
    /// For `Warning` headers: rules that an unchanged part breaks.
    pub warnings: Vec<String>,
}

impl Deref for Structural {
    type Target = Schema;
    fn deref(&self) -> &Schema {
        &self.root
    }
}

/// Schemas in use, by what they say.
static SHARED: LazyLock<Mutex<HashMap<[u8; 32], Weak<Structural>>>> = LazyLock::new(Mutex::default);

impl Structural {
    /// From `openAPIV3Schema`. The error says what such a schema cannot have at all; whether it is
    /// structural is for [`Structural::violations`].
    pub fn parse(props: &Value) -> Result<Arc<Structural>, Vec<FieldError>> {
        let mut hasher = Sha256::new();
        // Writing to a hasher cannot fail, and values have their members in order.
        let _ = serde_json::to_writer(&mut hasher, props);
        let hash: [u8; 32] = hasher.finalize().into();
        let shared = || SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shared().get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let parsed = Arc::new(Structural::parse_alone(props)?);
        let mut shared = shared();
        // Two who parse at once keep one: the first to get here.
        if let Some(known) = shared.get(&hash).and_then(Weak::upgrade) {
            return Ok(known);
        }
        if shared.len() == shared.capacity() {
            shared.retain(|_, schema| schema.strong_count() > 0);
        }
        shared.insert(hash, Arc::downgrade(&parsed));
        Ok(parsed)
    }

    fn parse_alone(props: &Value) -> Result<Structural, Vec<FieldError>> {
        let root = Schema::read(props).map_err(|error| vec![error])?;
        match nonstructural::unsupported(&root) {
            Some(why) => Err(vec![Field::new("openAPIV3Schema").invalid("", why)]),
            None => Ok(Structural { root, rules: OnceLock::new() }),
        }
    }

    /// What keeps the schema from being structural, for the condition `NonStructuralSchema`; fields begin
    /// with `at`.
    pub fn violations(&self, at: &Field) -> Vec<FieldError> {
        nonstructural::violations(at, &self.root)
    }

    /// What decoding does: removes what the schema does not name, nulls that mean nothing, and brings
    /// embedded metadata into form. Metadata of the object itself is left alone. Gives the unknown fields
    /// (`spec.list[0].x`), in order.
    pub fn prune(&self, object: &mut Value, how: Prune) -> Result<Vec<String>, FieldError> {
        let mut unknown = Unknown::new(how.unknown);
        if !how.keep_unknown {
            prune::prune(object, Some(&self.root), true, &mut unknown);
            let metadata = take_metadata(object);
            prune::prune_nulls(object, Some(&self.root));
            restore_metadata(object, metadata);
        }
        let mut paths = unknown.paths;
        paths.sort();
        let how = Coerce { drop_malformed: how.from_store, unknown: how.unknown };
        paths.extend(metadata::coerce(&Field::default(), object, &self.root, false, how)?);
        Ok(paths)
    }

    /// Fills in defaults, after [`Structural::prune`]: of requests, and of what comes from the store. Gives
    /// whether there was room for all of them (8 MiB); a request is to be refused as too large otherwise.
    pub fn default(&self, object: &mut Value) -> bool {
        let metadata = take_metadata(object);
        let complete = default::default(object, &self.root);
        restore_metadata(object, metadata);
        complete
    }

    /// Everything wrong with the object but its own metadata: schema, embedded metadata, duplicates in lists
    /// and, unless the former make that pointless, rules. With `old`, what did not change since may stay.
    pub fn validate(&self, new: &Value, old: Option<&Value>, part: Part) -> Verdict {
        let past = old.map(|old| Correlated::new(new, old, &self.root));
        let mut errors = match part {
            Part::Whole => value::validate(&Field::default(), new, &self.root, past),
            Part::Status => self.validate_status(new, old, past),
        };
        if part == Part::Whole {
            metadata::validate(&Field::default(), new, &self.root, false, &mut errors);
        }
        let duplicates = |object: &Value| {
            let mut found = Vec::new();
            lists::duplicates(&Field::default(), object, &self.root, &mut found);
            found
        };
        let found = duplicates(new);
        if !found.is_empty() && old.is_none_or(|old| duplicates(old).is_empty()) {
            errors.extend(found);
        }
        errors.truncate(MAX_ERRORS);
        let mut warnings = Vec::new();
        if let Some(rules) = self.rules() {
            if errors.iter().any(blocks_rules) {
                let at = FieldError {
                    field: "<nil>".to_owned(),
                    ..Field::default().invalid(Value::Null, UNCHECKED)
                };
                errors.push(at);
            } else {
                let broken = rules.validate(&Field::default(), new, old, past, &mut rules::budget());
                errors.extend(broken.errors);
                warnings = broken.warnings;
            }
        }
        Verdict { errors, warnings }
    }

    fn rules(&self) -> Option<&Rules> {
        self.rules.get_or_init(|| Rules::of(&self.root, true)).as_ref()
    }

    fn validate_status(
        &self,
        new: &Value,
        old: Option<&Value>,
        past: Option<Correlated<'_>>,
    ) -> Vec<FieldError> {
        let (Some(status), Some(schema)) = (new.get("status"), self.root.property("status")) else {
            return Vec::new();
        };
        let was = old.map(|old| old.get("status").unwrap_or(&Value::Null));
        let past = match past.and_then(|past| past.key("status")) {
            Some(past) => Some(past),
            None => was.map(|was| Correlated::new(status, was, schema)),
        };
        value::validate(&Field::new("status"), status, schema, past)
    }
}

const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// Rules are written for values that are what their schema says, and of a size that was estimated.
fn blocks_rules(error: &FieldError) -> bool {
    use FieldErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    matches!(error.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
}

/// The schema may name fields of metadata, but neither prunes nor fills them in.
fn take_metadata(object: &mut Value) -> Option<Value> {
    object.as_object_mut()?.remove("metadata")
}

fn restore_metadata(object: &mut Value, metadata: Option<Value>) {
    if let (Value::Object(members), Some(metadata)) = (object, metadata) {
        members.insert("metadata".to_owned(), metadata);
    }
}

#[cfg(test)]
mod tests;
