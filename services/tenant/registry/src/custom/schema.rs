//! A version's structural schema, as the generic path asks it.

use std::sync::Arc;

use api_machinery::{Document, FieldError};
use api_structural::{Part, Prune, Structural};
use serde_json::{Map, Value};

/// What one version of a definition says about its objects. Shared, like the schema behind it.
#[derive(Debug)]
pub struct Schema(Arc<Structural>);

impl Schema {
    pub(super) fn compile(schema: &Value) -> Result<Schema, String> {
        let joined = |errors: Vec<FieldError>| {
            errors.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ")
        };
        Structural::parse(schema).map(Schema).map_err(joined)
    }

    /// What decoding a body does: drops what the schema does not name and says what that was, as
    /// `fieldValidation` reports it. An error is for a body that cannot be used at all.
    pub fn prune(&self, document: &mut Document) -> Result<Vec<String>, String> {
        let how = Prune { unknown: true, ..Prune::default() };
        let found =
            with_value(document, |value| self.0.prune(value, how)).map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|path| format!("unknown field {path:?}")).collect())
    }

    /// The same for what was stored under whatever schema there was.
    pub(super) fn prune_stored(&self, document: &mut Document) {
        let how = Prune { from_store: true, ..Prune::default() };
        // Malformed metadata is dropped then, so that there is no error; and an object that could not be read
        // could not be repaired either.
        let _pruned = with_value(document, |value| self.0.prune(value, how));
    }

    /// Defaults that would make it larger than any object may be are left out; the limit on what is stored
    /// refuses it then.
    pub(super) fn default(&self, document: &mut Document) {
        with_value(document, |value| self.0.default(value));
    }

    /// Errors, and what is to be warned of.
    pub(super) fn validate(
        &self,
        new: &Document,
        old: Option<&Document>,
        part: Part,
    ) -> (Vec<FieldError>, Vec<String>) {
        let value = |document: &Document| Value::Object(document.0.clone());
        let verdict = self.0.validate(&value(new), old.map(value).as_ref(), part);
        (verdict.errors, verdict.warnings)
    }

    /// For server-side apply: which parts are told apart, and by what.
    pub(crate) fn shape(&self) -> &api_structural::Schema {
        &self.0
    }
}

/// The document as a value, without a copy.
fn with_value<T>(document: &mut Document, work: impl FnOnce(&mut Value) -> T) -> T {
    let mut value = Value::Object(std::mem::take(&mut document.0));
    let done = work(&mut value);
    document.0 = match value {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    done
}
