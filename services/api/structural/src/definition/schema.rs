//! One schema of a definition: what it may say, and what its rules may cost.

use std::collections::BTreeSet;
use std::sync::Arc;

use api_cel::limits::{STATIC_LIMIT, STATIC_LIMIT_OF_SCHEMA as TOTAL_COST, max_cardinality};
use api_machinery::{Field, FieldError};
use serde_json::{Value, json};

use super::Options;
use super::defaults;
use crate::bounds::{self, MAX_ERRORS};
use crate::nonstructural;
use crate::path;
use crate::prune::METADATA;
use crate::publish::TYPES;
use crate::rules;
use crate::schema::{Schema, Unsupported};

/// `apiextensions` of one schema: how strict to be.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub options: &'a Options,
    /// The status subresource is on: its schema is taken out of the whole, so that the root may say little.
    pub status: bool,
    pub structural: bool,
    /// What rules cost was accepted before.
    pub suppress_cost: bool,
}

/// With the status subresource on, these alone may stand at the root. As upstream's message lists them.
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";

pub(super) fn validate(
    at: &Field,
    schema: &Schema,
    written: &Value,
    how: How<'_>,
    errors: &mut Vec<FieldError>,
) {
    if let Some(why) = bounds::too_much_to_compile(schema) {
        errors.push(at.forbidden(why));
        return;
    }
    let mut found = Vec::new();
    if how.status {
        root_with_status(at, schema, written, &mut found);
    }
    if schema.nullable {
        found.push(at.child("nullable").forbidden("nullable cannot be true at the root"));
    }
    let mut unsupported = None;
    let mut with_rules = false;
    if how.structural {
        unsupported = nonstructural::unsupported(schema);
        if unsupported.is_none() {
            let violations = nonstructural::violations(at, schema);
            if violations.is_empty() {
                let before = found.len();
                defaults::validate(at, schema, how.options.pruned_defaults, &mut found);
                // Rules make sense of types, which only a structural schema has.
                with_rules = found.len() == before;
            }
            found.extend(violations);
        }
    }
    let mut walk = Walk { how, cost: Cost::default() };
    let flags = Flags { is_root: true, no_defaults: None, in_metadata: false, uncorrelatable: None };
    let scope = with_rules.then_some(Scope { cardinality: Some(1) });
    let Errors { schema: of_schema, rules } = walk.node(at, schema, flags, scope);
    found.extend(of_schema);
    found.extend(rules);
    if found.is_empty()
        && let Some(why) = unsupported
    {
        found.push(at.invalid("", why));
    }
    walk.cost.report(at, &mut found);
    errors.extend(found);
}

fn root_with_status(at: &Field, schema: &Schema, written: &Value, errors: &mut Vec<FieldError>) {
    let none = Unsupported::default();
    let other = schema.unsupported.as_deref().unwrap_or(&none);
    let early = !other.id.is_empty() || !other.schema.is_empty() || other.reference.is_some();
    let typed = schema.kind.is_empty() || schema.kind == "object";
    let late = schema.nullable
        || schema.default.is_some()
        || !schema.enumeration.is_empty()
        || schema.max_properties.is_some()
        || schema.min_properties.is_some()
        || !schema.all_of.is_empty()
        || !schema.one_of.is_empty()
        || !schema.any_of.is_empty()
        || schema.not.is_some()
        || schema.additional.is_some()
        || !other.pattern_properties.is_empty()
        || other.dependencies.is_some()
        || other.additional_items.is_some()
        || !other.definitions.is_empty()
        || schema.embedded_resource
        || schema.int_or_string
        || !schema.list_map_keys.is_empty()
        || schema.list_type.is_some()
        || schema.map_type.is_some();
    if !early && !typed {
        let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(at.child("type").invalid(schema.kind.as_str(), why));
    } else if early || late {
        let why = format!(
            "only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        errors.push(at.invalid(bounds::shown(written), why));
    }
}

/// What rules may cost together.
#[derive(Default)]
struct Cost {
    total: u64,
    /// The dearest, at most four of them.
    most: Vec<(Field, u64)>,
}

impl Cost {
    fn observe(&mut self, at: Field, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost < TOTAL_COST / 100 {
            return;
        }
        self.most.push((at, cost));
        self.most.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        self.most.truncate(4);
    }
    fn report(&self, at: &Field, errors: &mut Vec<FieldError>) {
        if self.total <= TOTAL_COST {
            return;
        }
        for (at, _) in &self.most {
            errors.push(at.forbidden(
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            ));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(at.forbidden(too_costly(what, self.total, TOTAL_COST)));
    }
}

fn too_costly(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Rules are only compiled where the schema around them is in order.
#[derive(Default)]
struct Errors {
    schema: Vec<FieldError>,
    rules: Vec<FieldError>,
}

impl Errors {
    fn append(&mut self, other: Errors) {
        let room = |known: &[FieldError]| MAX_ERRORS.saturating_sub(known.len());
        let (schema, rules) = (room(&self.schema), room(&self.rules));
        self.schema.extend(other.schema.into_iter().take(schema));
        self.rules.extend(other.rules.into_iter().take(rules));
    }
}

/// What holds for a node because of what is above it.
#[derive(Clone)]
struct Flags {
    is_root: bool,
    /// Why there may be no defaults.
    no_defaults: Option<String>,
    /// Part of ObjectMeta or TypeMeta.
    in_metadata: bool,
    /// The first schema on the way whose parts can't be told apart from what they were before.
    uncorrelatable: Option<Field>,
}

impl Flags {
    fn without_old_self(&self, at: &Field) -> Flags {
        let uncorrelatable = self.uncorrelatable.clone().or_else(|| Some(at.clone()));
        Flags { uncorrelatable, ..self.clone() }
    }
    fn without_defaults(&self, why: &str) -> Flags {
        Flags { no_defaults: Some(why.to_owned()), ..self.clone() }
    }
}

/// Where rules are looked at.
#[derive(Clone, Copy)]
struct Scope {
    /// How often there can be a value of this schema; `None` without a limit.
    cardinality: Option<u64>,
}

impl Scope {
    /// Of what is directly below `schema`.
    fn below(self, schema: &Schema) -> Scope {
        let bound = |bound: Option<i64>| bound.map(|bound| u64::try_from(bound).unwrap_or_default());
        let factor = match schema.kind.as_str() {
            "object" if schema.additional.is_some() => bound(schema.max_properties),
            "array" => bound(schema.max_items),
            _ => Some(1),
        };
        let cardinality = self.cardinality.zip(factor).map(|(all, factor)| all.saturating_mul(factor));
        Scope { cardinality }
    }
}

struct Walk<'a> {
    how: How<'a>,
    cost: Cost,
}

impl Walk<'_> {
    fn node(&mut self, at: &Field, schema: &Schema, mut flags: Flags, scope: Option<Scope>) -> Errors {
        let mut errors = Errors::default();
        self.allowed(at, schema, &flags, &mut errors.schema);
        if schema.unique_items {
            errors.schema.push(at.child("uniqueItems").forbidden(
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ));
        }
        let below = scope.map(|scope| scope.below(schema));
        let is_root = std::mem::replace(&mut flags.is_root, false);
        if let Some(additional) = &schema.additional {
            let at = at.child("additionalProperties");
            if !schema.properties.is_empty() && (!additional.allows || additional.schema.is_some()) {
                let why = "additionalProperties and properties are mutual exclusive";
                errors.schema.push(at.forbidden(why));
            }
            if let Some(schema) = &additional.schema {
                let flags = match flags.in_metadata {
                    true => flags.without_defaults("inside additionalProperties applying to object metadata"),
                    false => flags.clone(),
                };
                errors.append(self.node(&at, schema, flags, below));
            }
        }
        let correlatable =
            schema.map_type.as_deref().is_none_or(|kind| kind == "granular" || kind == "atomic");
        for (key, property) in &schema.properties {
            let mut flags = if correlatable { flags.clone() } else { flags.without_old_self(at) };
            if (is_root || schema.embedded_resource) && METADATA.contains(&key.as_str()) {
                flags.in_metadata = true;
                if is_root {
                    flags = flags.without_defaults(&format!("in top-level {key}"));
                }
            }
            errors.append(self.node(&at.child("properties").key(key), property, flags, below));
        }
        if let Some(not) = &schema.not {
            errors.append(self.node(&at.child("not"), not, flags.clone(), None));
        }
        for (name, list) in [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)]
        {
            for (index, one) in list.iter().enumerate() {
                errors.append(self.node(&at.child(name).index(index), one, flags.clone(), None));
            }
        }
        let other = schema.unsupported.as_deref();
        for (key, definition) in other.iter().flat_map(|other| &other.definitions) {
            errors.append(self.node(&at.child("definitions").key(key), definition, flags.clone(), None));
        }
        let list: &[Schema] = other.map_or(&[], |other| &other.item_list);
        if schema.items.is_some() || !list.is_empty() {
            let flags = match schema.list_type.as_deref() {
                Some("map") => flags.clone(),
                _ => flags.without_old_self(at),
            };
            let at = at.child("items");
            if let Some(items) = schema.items() {
                errors.append(self.node(&at, items, flags.clone(), below));
            }
            for (index, items) in list.iter().enumerate() {
                errors.append(self.node(&at.index(index), items, flags.clone(), below));
            }
        }
        for (key, dependency) in other.iter().filter_map(|other| other.dependencies.as_ref()).flatten() {
            errors.append(self.node(&at.child("dependencies").key(key), dependency, flags.clone(), None));
        }
        self.extensions(at, schema, &mut errors.schema);
        rule_texts(at, schema, &mut errors.schema);
        if let Some(scope) = scope
            && errors.schema.is_empty()
            && !schema.rules.is_empty()
        {
            self.rules(at, schema, is_root, &flags, scope, &mut errors.rules);
        }
        errors
    }

    fn allowed(&self, at: &Field, schema: &Schema, flags: &Flags, errors: &mut Vec<FieldError>) {
        let kind = schema.kind.as_str();
        if self.how.options.valid_types && !kind.is_empty() && !TYPES.contains(&kind) {
            errors.push(at.child("type").not_supported(kind, &TYPES));
        }
        if let Some(why) = &flags.no_defaults
            && schema.default.is_some()
        {
            errors.push(at.child("default").forbidden(format!("must not be set {why}")));
        }
        let none = Unsupported::default();
        let other = schema.unsupported.as_deref().unwrap_or(&none);
        for (is_set, key) in [
            (!other.id.is_empty(), "id"),
            (other.additional_items.is_some(), "additionalItems"),
            (!other.pattern_properties.is_empty(), "patternProperties"),
            (!other.definitions.is_empty(), "definitions"),
            (other.dependencies.is_some(), "dependencies"),
            (other.reference.is_some(), "$ref"),
        ] {
            if is_set {
                errors.push(at.child(key).forbidden(format!("{key} is not supported")));
            }
        }
        if kind == "null" {
            let why = "type cannot be set to null, use nullable as an alternative";
            errors.push(at.child("type").forbidden(why));
        }
        if !other.item_list.is_empty() {
            errors.push(at.child("items").forbidden("items must be a schema object and not an array"));
        }
        if flags.in_metadata && schema.embedded_resource {
            let at = at.child("x-kubernetes-embedded-resource");
            errors.push(at.forbidden("must not be used inside of resource meta"));
        }
    }

    fn extensions(&self, at: &Field, schema: &Schema, errors: &mut Vec<FieldError>) {
        let kind = schema.kind.as_str();
        let kind_at = at.child("type");
        let must_be = |why: &str| match kind {
            "" => kind_at.required(why),
            _ => kind_at.invalid(kind, why),
        };
        if schema.preserve_unknown == Some(false) {
            let at = at.child("x-kubernetes-preserve-unknown-fields");
            errors.push(at.invalid(false, "must be true or undefined"));
        }
        if let Some(map_type) = schema.map_type.as_deref() {
            if kind != "object" {
                errors.push(must_be("must be object if x-kubernetes-map-type is specified"));
            }
            if !["atomic", "granular"].contains(&map_type) {
                let at = at.child("x-kubernetes-map-type");
                errors.push(at.not_supported(map_type, &["atomic", "granular"]));
            }
        }
        let list_at = at.child("x-kubernetes-list-type");
        let list_type = schema.list_type.as_deref();
        if list_type.is_some() && kind != "array" {
            errors.push(must_be("must be array if x-kubernetes-list-type is specified"));
        } else if self.how.options.atomic_sets && is_set_of_parts(schema) {
            let items = schema.items().expect("a set of parts has items");
            let key = if items.kind == "array" { "x-kubernetes-list-type" } else { "x-kubernetes-map-type" };
            let shown = items.list_type.as_deref().map(Value::from).unwrap_or_default();
            let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
            errors.push(at.child("items").child(key).invalid(shown, why));
        }
        if let Some(list_type) = list_type
            && !["atomic", "set", "map"].contains(&list_type)
        {
            errors.push(list_at.not_supported(list_type, &["atomic", "set", "map"]));
        }
        if !schema.list_map_keys.is_empty() {
            let why = "must be map if x-kubernetes-list-map-keys is non-empty";
            match list_type {
                None => errors.push(list_at.required(why)),
                Some("map") => {}
                Some(other) => errors.push(list_at.invalid(other, why)),
            }
        }
        if list_type == Some("map") {
            list_map(at, schema, errors);
        }
        if self.how.options.map_keys {
            map_keys_and_set_items(at, schema, errors);
        }
    }

    fn rules(
        &mut self,
        at: &Field,
        schema: &Schema,
        is_root: bool,
        flags: &Flags,
        scope: Scope,
        errors: &mut Vec<FieldError>,
    ) {
        let rules_at = at.child("x-kubernetes-validations");
        let root = is_root || schema.embedded_resource;
        let Some(decl) = rules::declare(schema, root, rules::SELF).map(Arc::new) else {
            errors.push(rules_at.internal(
                "internal error: failed to retrieve type information for x-kubernetes-validations",
            ));
            return;
        };
        let often = scope.cardinality.unwrap_or_else(|| max_cardinality(decl.min_size));
        for (index, compiled) in rules::compile(schema, &decl).iter().enumerate() {
            if errors.len() >= MAX_ERRORS {
                return;
            }
            let at = rules_at.index(index);
            let rule_at = at.child("rule");
            let cost = compiled.max_cost().saturating_mul(often);
            if !self.how.suppress_cost && cost > STATIC_LIMIT {
                errors.push(rule_at.forbidden(too_costly("estimated rule cost", cost, STATIC_LIMIT)));
            }
            self.cost.observe(rule_at.clone(), cost);
            if let Err(why) = &compiled.program {
                errors.push(rule_at.invalid_unshown(format!("{}: {why}", compiled.rule.shown())));
            }
            let message_at = at.child("messageExpression");
            if let Some(Err(why)) = &compiled.message {
                errors.push(message_at.invalid_unshown(format!("{}: {why}", compiled.rule.shown())));
            } else if let Some(cost) = compiled.message_max_cost() {
                if !self.how.suppress_cost && cost > STATIC_LIMIT {
                    let why = too_costly("estimated messageExpression cost", cost, STATIC_LIMIT);
                    errors.push(message_at.forbidden(why));
                }
                self.cost.observe(message_at, cost);
            }
            if compiled.uses_old_self {
                if let Some(within) = &flags.uncorrelatable {
                    errors.push(rule_at.invalid(
                        compiled.rule.rule.as_str(),
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"),
                    ));
                }
            } else if let Some(optional) = compiled.rule.optional_old_self {
                let why = "may not be set if oldSelf is not used in rule";
                errors.push(at.child("optionalOldSelf").invalid(optional, why));
            }
        }
    }
}

/// A `set` whose items are taken apart: they would have no identity of their own.
pub(super) fn is_set_of_parts(schema: &Schema) -> bool {
    let Some(items) = schema.items().filter(|_| schema.list_type.as_deref() == Some("set")) else {
        return false;
    };
    match items.kind.as_str() {
        "array" => items.list_type.as_deref().is_some_and(|kind| kind != "atomic"),
        "object" => items.map_type.as_deref() != Some("atomic"),
        _ => false,
    }
}

fn list_map(at: &Field, schema: &Schema, errors: &mut Vec<FieldError>) {
    let keys_at = at.child("x-kubernetes-list-map-keys");
    if schema.list_map_keys.is_empty() {
        errors.push(keys_at.required("must not be empty if x-kubernetes-list-type is map"));
    }
    let items_at = at.child("items");
    let Some(items) = schema.items() else {
        let list = schema.unsupported.as_deref().is_some_and(|other| !other.item_list.is_empty());
        errors.push(match list {
            true => {
                items_at.invalid_unshown("must only have a single schema if x-kubernetes-list-type is map")
            }
            false => items_at.required("must have a schema if x-kubernetes-list-type is map"),
        });
        return;
    };
    if items.kind != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(items_at.child("type").invalid(items.kind.as_str(), why));
        return;
    }
    let mut seen = BTreeSet::new();
    let keys = bounds::shown(&json!(schema.list_map_keys));
    for key in schema.list_map_keys.iter().take(MAX_ERRORS) {
        match items.property(key) {
            Some(property) if property.kind == "array" || property.kind == "object" => {
                let at = items_at.child("properties").key(key).child("type");
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(at.invalid(items.kind.as_str(), why));
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                errors.push(keys_at.invalid(keys.clone(), why));
            }
        }
        if !seen.insert(key) {
            errors.push(keys_at.invalid(keys.clone(), "must not contain duplicate entries"));
        }
    }
}

/// Items of sets and maps are there, and keys have values.
pub(super) fn map_keys_and_set_items(at: &Field, schema: &Schema, errors: &mut Vec<FieldError>) {
    let (Some(items), Some(kind @ ("set" | "map"))) = (schema.items(), schema.list_type.as_deref()) else {
        return;
    };
    let at = at.child("items");
    if items.nullable {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(at.child("nullable").forbidden(why));
    }
    if kind == "set" {
        return;
    }
    for key in &schema.list_map_keys {
        let Some(property) = items.property(key) else { continue };
        let at = at.child("properties").key(key);
        if !items.required.contains(key) && property.default.is_none() {
            errors.push(at.child("default").required(
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ));
        }
        if property.nullable {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(at.child("nullable").forbidden(why));
        }
    }
}

const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// What rules say beside their expressions.
fn rule_texts(at: &Field, schema: &Schema, errors: &mut Vec<FieldError>) {
    let broken = |text: &str| text.contains(['\n', '\r']);
    for (index, rule) in schema.rules.iter().enumerate() {
        if errors.len() >= MAX_ERRORS {
            return;
        }
        let at = at.child("x-kubernetes-validations").index(index);
        let text = rule.rule.trim();
        let message = rule.message.trim();
        let message_at = at.child("message");
        if text.is_empty() {
            errors.push(at.child("rule").required("rule is not specified"));
        } else if !rule.message.is_empty() && message.is_empty() {
            errors.push(message_at.invalid(rule.message.as_str(), "must be non-empty if specified"));
        } else if broken(message) {
            errors.push(message_at.invalid(rule.message.as_str(), "must not contain line breaks"));
        } else if broken(text) && message.is_empty() {
            errors.push(message_at.required("message must be specified if rule contains line breaks"));
        }
        if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            errors.push(at.child("messageExpression").required(why));
        }
        if let Some(reason) = rule.reason.as_deref()
            && !REASONS.contains(&reason)
        {
            errors.push(at.child("reason").not_supported(reason, &REASONS));
        }
        let path = rule.field_path.as_str();
        if path.is_empty() {
            continue;
        }
        let mut wrong = |why: &str| errors.push(at.child("fieldPath").invalid(path, why));
        if path.trim().is_empty() {
            wrong("must be non-empty if specified");
        }
        if broken(path) {
            wrong("must not contain line breaks");
        }
        if nonstructural::unsupported(schema).is_none() && path::find(path, schema, true).is_err() {
            wrong("must be a valid path");
        }
    }
}
