//! Whether the defaults in a schema are themselves what the schema allows.
//!
//! After `apiserver/schema/defaulting/{validation,prune}.go` of `k8s.io/apiextensions-apiserver`.

use api_cel::Budget;
use api_machinery::{Field, FieldError};
use serde_json::{Value, json};

use crate::bounds::{self, MAX_ERRORS};
use crate::metadata::{self, Coerce};
use crate::prune::{METADATA, Unknown, prune};
use crate::rules::{self, Rules};
use crate::schema::Schema;
use crate::value;

/// From the object around it to a default.
#[derive(Clone, Copy)]
enum Way<'a> {
    Root,
    Key(&'a Way<'a>, &'a str),
    Item(&'a Way<'a>),
}

impl Way<'_> {
    /// An object with nothing but the value, where this leads.
    fn around(&self, value: Value) -> Value {
        match self {
            Way::Root => value,
            Way::Key(outer, key) => outer.around(json!({*key: value})),
            Way::Item(outer) => outer.around(json!([value])),
        }
    }
    /// What is there in such an object.
    fn find<'v>(&self, whole: &'v Value) -> Option<&'v Value> {
        match self {
            Way::Root => Some(whole),
            Way::Key(outer, key) => outer.find(whole)?.get(key),
            Way::Item(outer) => outer.find(whole)?.get(0),
        }
    }
}

/// What is wrong with the defaults of a structural schema, the root of a resource.
pub(super) fn validate(at: &Field, schema: &Schema, pruned: bool, errors: &mut Vec<FieldError>) {
    let around = Around { schema, way: &Way::Root, in_metadata: false };
    Check { pruned, budget: rules::budget(), errors }.walk(at, schema, true, around);
}

/// The resource that a part of the schema belongs to.
#[derive(Clone, Copy)]
struct Around<'a> {
    schema: &'a Schema,
    way: &'a Way<'a>,
    /// Within `metadata`, `apiVersion` or `kind` of it.
    in_metadata: bool,
}

struct Check<'a> {
    /// Whether defaults have to be free of unknown fields.
    pruned: bool,
    /// What rules on all of the defaults may cost.
    budget: Budget,
    errors: &'a mut Vec<FieldError>,
}

impl Check<'_> {
    fn walk(&mut self, at: &Field, schema: &Schema, is_root: bool, around: Around<'_>) {
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        let embedded = is_root || schema.embedded_resource;
        let around = match embedded {
            true => Around { schema, way: &Way::Root, in_metadata: false },
            false => around,
        };
        if let Some(default) = &schema.default {
            self.one(&at.child("default"), default, schema, embedded, around);
        }
        // Defaults are not allowed below `additionalProperties` of metadata, and apply to no absent value
        // elsewhere.
        if let Some(items) = schema.items() {
            let way = Way::Item(around.way);
            self.walk(&at.child("items"), items, false, Around { way: &way, ..around });
        }
        for (key, property) in &schema.properties {
            let way = Way::Key(around.way, key);
            let in_metadata = around.in_metadata || (embedded && METADATA.contains(&key.as_str()));
            let around = Around { way: &way, in_metadata, ..around };
            self.walk(&at.child("properties").key(key), property, false, around);
        }
    }

    fn one(&mut self, at: &Field, default: &Value, schema: &Schema, embedded: bool, around: Around<'_>) {
        let mut found = match around.in_metadata {
            true => in_metadata(at, default, around),
            false => self.outside(at, default, schema, embedded),
        };
        if found.is_empty() {
            found = value::validate(at, default, schema, None);
        }
        if found.is_empty()
            && let Some(rules) = Rules::of(schema, embedded)
        {
            found = rules.validate(at, default, Some(default), None, &mut self.budget).errors;
            if found.is_empty() {
                // Rules with an optional oldSelf have to hold as well where there was nothing before.
                found = rules.validate(at, default, None, None, &mut self.budget).errors;
            }
        }
        self.errors.extend(found);
    }

    fn outside(&mut self, at: &Field, default: &Value, schema: &Schema, embedded: bool) -> Vec<FieldError> {
        if self.pruned {
            let mut left = default.clone();
            prune(&mut left, Some(schema), embedded, &mut Unknown::new(false));
            if left != *default {
                self.errors.push(at.invalid(bounds::shown(default), "must not have unknown fields"));
            }
        }
        let mut found = Vec::new();
        match metadata::coerce(at, &mut default.clone(), schema, embedded, STRICT) {
            Err(error) => found.push(error),
            Ok(_) => metadata::validate(at, default, schema, embedded, &mut found),
        }
        found
    }
}

const STRICT: Coerce = Coerce { drop_malformed: false, unknown: false };

/// A default within metadata is judged with the object around it.
fn in_metadata(at: &Field, default: &Value, around: Around<'_>) -> Vec<FieldError> {
    let mut whole = around.way.around(default.clone());
    if let Some(members) = whole.as_object_mut() {
        members.entry("kind").or_insert_with(|| "Validation".into());
        members.entry("apiVersion").or_insert_with(|| "validation/v1".into());
    }
    let invalid =
        |why: String| at.invalid(bounds::shown(default), format!("must result in valid metadata: {why}"));
    let mut wrong = Vec::new();
    match metadata::coerce(&Field::default(), &mut whole, around.schema, true, STRICT) {
        Err(error) => return vec![invalid(error.to_string())],
        Ok(_) => metadata::validate(&Field::default(), &whole, around.schema, true, &mut wrong),
    }
    if wrong.is_empty() { Vec::new() } else { vec![invalid(aggregate(&wrong))] }
}

/// Several errors as one.
fn aggregate(errors: &[FieldError]) -> String {
    let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Whether a default has fields that its schema does not name.
pub(super) fn are_unpruned(schema: &Schema) -> bool {
    unpruned(schema, schema, &Way::Root)
}

fn unpruned(schema: &Schema, root: &Schema, way: &Way<'_>) -> bool {
    if let Some(default) = &schema.default {
        let mut whole = way.around(default.clone());
        let lenient = Coerce { drop_malformed: true, unknown: false };
        if metadata::coerce(&Field::default(), &mut whole, root, true, lenient).is_ok() {
            prune(&mut whole, Some(root), true, &mut Unknown::new(false));
            if way.find(&whole) != Some(default) {
                return true;
            }
        }
    }
    schema.items().is_some_and(|items| unpruned(items, root, &Way::Item(way)))
        || schema.additional().is_some_and(|additional| unpruned(additional, root, &Way::Key(way, "*")))
        || schema.properties.iter().any(|(key, property)| unpruned(property, root, &Way::Key(way, key)))
}
