//! One node of a schema, as the author of a CustomResourceDefinition wrote it.
//!
//! The same type serves the structural spine and what is nested under `allOf`, `anyOf`, `oneOf` and `not`;
//! which fields may be used where is for `nonstructural` to say. Fields follow `JSONSchemaProps` of
//! `apiextensions.k8s.io/v1`.

use std::collections::BTreeMap;

use api_machinery::{Field, FieldError, go_json};
use serde_json::{Map, Value};

use crate::pattern::Pattern;

/// How deep schemas may nest. Far beyond what anybody writes (a request is refused at 100 levels of JSON),
/// and shallow enough for every walk here to recurse.
pub const MAX_DEPTH: usize = 100;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schema {
    pub(crate) description: String,
    /// Empty when not said.
    pub(crate) kind: String,
    pub(crate) title: String,
    pub(crate) format: String,
    pub(crate) default: Option<Value>,
    pub(crate) example: Option<Value>,
    pub(crate) external_docs: Option<Value>,
    pub(crate) nullable: bool,

    pub(crate) items: Option<Box<Schema>>,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) additional: Option<Additional>,

    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) unique_items: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) enumeration: Vec<Value>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,

    /// `x-kubernetes-preserve-unknown-fields`; only `true` is allowed, `false` is remembered to be refused.
    pub(crate) preserve_unknown: Option<bool>,
    pub(crate) embedded_resource: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list_map_keys: Vec<String>,
    pub(crate) list_type: Option<String>,
    pub(crate) map_type: Option<String>,
    pub(crate) rules: Vec<Rule>,

    /// What JSON schema has and custom resources may not use.
    pub(crate) unsupported: Option<Box<Unsupported>>,
}

/// `additionalProperties`: a schema, or whether others are allowed at all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Additional {
    pub allows: bool,
    pub schema: Option<Box<Schema>>,
}

/// One of `x-kubernetes-validations`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: Option<String>,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Unsupported {
    pub id: String,
    pub schema: String,
    pub reference: Option<String>,
    pub pattern_properties: BTreeMap<String, Schema>,
    pub definitions: BTreeMap<String, Schema>,
    /// Present at all, and the schemas among them.
    pub dependencies: Option<BTreeMap<String, Schema>>,
    pub additional_items: Option<Additional>,
    /// `items` given as a list of schemas.
    pub item_list: Vec<Schema>,
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListType<'a> {
    Atomic,
    Set,
    /// With `x-kubernetes-list-map-keys`.
    Map(&'a [String]),
}

impl Schema {
    /// Reads `JSONSchemaProps`. Members of another JSON type than they should have are left out: decoding
    /// the definition refuses those.
    pub(crate) fn read(props: &Value) -> Result<Schema, FieldError> {
        Ok(*read(props, 0)?)
    }

    // ---- what others need to know of a schema: server-side apply, columns, tables ----

    pub fn property(&self, key: &str) -> Option<&Schema> {
        self.properties.get(key)
    }
    /// In the order of their names.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &Schema)> {
        self.properties.iter().map(|(key, schema)| (key.as_str(), schema))
    }
    /// The schema of what `properties` does not name.
    pub fn additional(&self) -> Option<&Schema> {
        self.additional.as_ref()?.schema.as_deref()
    }
    /// Of a member of an object of this schema: by name, or what fits all others.
    pub fn member(&self, key: &str) -> Option<&Schema> {
        self.property(key).or_else(|| self.additional())
    }
    pub fn items(&self) -> Option<&Schema> {
        self.items.as_deref()
    }
    /// A list without a type is atomic, as is one with a type nobody knows.
    pub fn list_type(&self) -> ListType<'_> {
        match self.list_type.as_deref() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(&self.list_map_keys),
            _ => ListType::Atomic,
        }
    }
    pub fn is_map_atomic(&self) -> bool {
        self.map_type.as_deref() == Some("atomic")
    }
    pub fn preserves_unknown(&self) -> bool {
        self.preserve_unknown == Some(true)
    }
    pub fn is_embedded_resource(&self) -> bool {
        self.embedded_resource
    }
    pub fn is_int_or_string(&self) -> bool {
        self.int_or_string
    }
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }
    pub fn default_value(&self) -> Option<&Value> {
        self.default.as_ref()
    }
    /// `object`, `array`, `string`, `integer`, `number` or `boolean`.
    pub fn type_name(&self) -> Option<&str> {
        Some(self.kind.as_str()).filter(|kind| !kind.is_empty())
    }
    pub fn description(&self) -> &str {
        &self.description
    }

    // ---- walks ----

    /// Restrictions on the value alone: no type, nothing below but junctors.
    pub(crate) fn clone_restrictions(&self) -> Schema {
        Schema {
            format: self.format.clone(),
            maximum: self.maximum,
            exclusive_maximum: self.exclusive_maximum,
            minimum: self.minimum,
            exclusive_minimum: self.exclusive_minimum,
            max_length: self.max_length,
            min_length: self.min_length,
            pattern: self.pattern.clone(),
            max_items: self.max_items,
            min_items: self.min_items,
            unique_items: self.unique_items,
            multiple_of: self.multiple_of,
            enumeration: self.enumeration.clone(),
            max_properties: self.max_properties,
            min_properties: self.min_properties,
            all_of: self.all_of.clone(),
            any_of: self.any_of.clone(),
            one_of: self.one_of.clone(),
            not: self.not.clone(),
            ..Schema::default()
        }
    }

    /// Whether `found` holds for this schema or one anywhere below it, junctors and unsupported fields
    /// included.
    pub(crate) fn any(&self, found: &mut dyn FnMut(&Schema) -> bool) -> bool {
        if found(self) {
            return true;
        }
        let additional = self.additional.iter().filter_map(|additional| additional.schema.as_deref());
        let spine = self.items.as_deref().into_iter().chain(self.properties.values()).chain(additional);
        let junctors = self.all_of.iter().chain(&self.any_of).chain(&self.one_of).chain(self.not.as_deref());
        if spine.chain(junctors).any(|below| below.any(found)) {
            return true;
        }
        let Some(other) = self.unsupported.as_deref() else { return false };
        let more = other.additional_items.iter().filter_map(|additional| additional.schema.as_deref());
        let named = other.pattern_properties.values().chain(other.definitions.values());
        let dependencies = other.dependencies.iter().flat_map(BTreeMap::values);
        more.chain(named).chain(dependencies).chain(&other.item_list).any(|below| below.any(found))
    }
}

impl Rule {
    /// As it stands in errors about it, members in upstream's order.
    pub(crate) fn shown(&self) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let reason = self.reason.as_deref().map(Value::from).unwrap_or_default();
        let optional = self.optional_old_self.map(Value::from).unwrap_or_default();
        go_json(&format!(
            r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{reason},"FieldPath":{},"OptionalOldSelf":{optional}}}"#,
            text(&self.rule),
            text(&self.message),
            text(&self.message_expression),
            text(&self.field_path),
        ))
    }
    /// What names the rule in messages: its own message, or itself.
    pub(crate) fn name(&self) -> &str {
        if self.message.is_empty() { self.rule.trim() } else { self.message.trim() }
    }
}

/// Written for small frames: this recurses as deep as requests may nest.
fn read(props: &Value, depth: usize) -> Result<Box<Schema>, FieldError> {
    let mut schema = Box::<Schema>::default();
    let Value::Object(props) = props else { return Ok(schema) };
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let from = Reader { props, depth };
    from.plain(&mut schema);
    from.optional("items", &mut schema.items)?;
    from.optional("not", &mut schema.not)?;
    from.named("properties", &mut schema.properties)?;
    from.list_of("allOf", &mut schema.all_of)?;
    from.list_of("anyOf", &mut schema.any_of)?;
    from.list_of("oneOf", &mut schema.one_of)?;
    from.additional("additionalProperties", &mut schema.additional)?;
    if UNSUPPORTED.iter().any(|key| props.contains_key(*key))
        || props.get("items").is_some_and(Value::is_array)
    {
        schema.unsupported = from.unsupported()?;
    }
    Ok(schema)
}

const UNSUPPORTED: [&str; 7] =
    ["id", "$schema", "$ref", "patternProperties", "definitions", "dependencies", "additionalItems"];

#[cold]
fn too_deep() -> FieldError {
    Field::new("openAPIV3Schema")
        .invalid_unshown(format!("schemas may be nested at most {MAX_DEPTH} levels deep"))
}

fn rule(value: &Value) -> Rule {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Rule {
        rule: text("rule"),
        message: text("message"),
        message_expression: text("messageExpression"),
        reason: value.get("reason").and_then(Value::as_str).map(str::to_owned),
        field_path: text("fieldPath"),
        optional_old_self: value.get("optionalOldSelf").and_then(Value::as_bool),
    }
}

struct Reader<'a> {
    props: &'a Map<String, Value>,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn text(&self, key: &str) -> String {
        self.some_text(key).unwrap_or_default()
    }
    fn some_text(&self, key: &str) -> Option<String> {
        self.props.get(key)?.as_str().map(str::to_owned)
    }
    fn flag(&self, key: &str) -> bool {
        self.props.get(key).and_then(Value::as_bool).unwrap_or_default()
    }
    fn float(&self, key: &str) -> Option<f64> {
        self.props.get(key)?.as_f64()
    }
    fn integer(&self, key: &str) -> Option<i64> {
        self.props.get(key)?.as_i64()
    }
    /// `null` is as good as nothing here.
    fn json(&self, key: &str) -> Option<Value> {
        self.props.get(key).filter(|value| !value.is_null()).cloned()
    }
    fn list(&self, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.props.get(key).and_then(Value::as_array).into_iter().flatten()
    }
    fn texts(&self, key: &str) -> Vec<String> {
        self.list(key).filter_map(Value::as_str).map(str::to_owned).collect()
    }
    /// What has nothing below it.
    #[inline(never)]
    fn plain(&self, schema: &mut Schema) {
        schema.description = self.text("description");
        schema.kind = self.text("type");
        schema.title = self.text("title");
        schema.format = self.text("format");
        schema.default = self.json("default");
        schema.example = self.json("example");
        schema.external_docs = self.json("externalDocs");
        schema.nullable = self.flag("nullable");
        schema.maximum = self.float("maximum");
        schema.exclusive_maximum = self.flag("exclusiveMaximum");
        schema.minimum = self.float("minimum");
        schema.exclusive_minimum = self.flag("exclusiveMinimum");
        schema.max_length = self.integer("maxLength");
        schema.min_length = self.integer("minLength");
        schema.pattern = Some(self.text("pattern")).filter(|text| !text.is_empty()).map(Pattern::new);
        schema.max_items = self.integer("maxItems");
        schema.min_items = self.integer("minItems");
        schema.unique_items = self.flag("uniqueItems");
        schema.multiple_of = self.float("multipleOf");
        schema.enumeration = self.list("enum").cloned().collect();
        schema.max_properties = self.integer("maxProperties");
        schema.min_properties = self.integer("minProperties");
        schema.required = self.texts("required");
        schema.preserve_unknown =
            self.props.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool);
        schema.embedded_resource = self.flag("x-kubernetes-embedded-resource");
        schema.int_or_string = self.flag("x-kubernetes-int-or-string");
        schema.list_map_keys = self.texts("x-kubernetes-list-map-keys");
        schema.list_type = self.some_text("x-kubernetes-list-type");
        schema.map_type = self.some_text("x-kubernetes-map-type");
        schema.rules = self.list("x-kubernetes-validations").map(rule).collect();
    }

    fn optional(&self, key: &str, into: &mut Option<Box<Schema>>) -> Result<(), FieldError> {
        if let Some(props @ Value::Object(_)) = self.props.get(key) {
            *into = Some(read(props, self.depth + 1)?);
        }
        Ok(())
    }
    fn list_of(&self, key: &str, into: &mut Vec<Schema>) -> Result<(), FieldError> {
        for props in self.list(key) {
            into.push(*read(props, self.depth + 1)?);
        }
        Ok(())
    }
    fn named(&self, key: &str, into: &mut BTreeMap<String, Schema>) -> Result<(), FieldError> {
        for (name, props) in self.props.get(key).and_then(Value::as_object).into_iter().flatten() {
            into.insert(name.clone(), *read(props, self.depth + 1)?);
        }
        Ok(())
    }
    fn additional(&self, key: &str, into: &mut Option<Additional>) -> Result<(), FieldError> {
        match self.props.get(key) {
            Some(Value::Bool(allows)) => *into = Some(Additional { allows: *allows, schema: None }),
            Some(props @ Value::Object(_)) => {
                *into = Some(Additional { allows: true, schema: Some(read(props, self.depth + 1)?) });
            }
            _ => {}
        }
        Ok(())
    }
    #[inline(never)]
    fn unsupported(&self) -> Result<Option<Box<Unsupported>>, FieldError> {
        let mut found = Box::<Unsupported>::default();
        found.id = self.text("id");
        found.schema = self.text("$schema");
        found.reference = self.some_text("$ref");
        self.named("patternProperties", &mut found.pattern_properties)?;
        self.named("definitions", &mut found.definitions)?;
        if let Some(Value::Object(members)) = self.props.get("dependencies") {
            let schemas = found.dependencies.insert(BTreeMap::new());
            for (name, props) in members.iter().filter(|(_, props)| props.is_object()) {
                schemas.insert(name.clone(), *read(props, self.depth + 1)?);
            }
        }
        self.additional("additionalItems", &mut found.additional_items)?;
        self.list_of("items", &mut found.item_list)?;
        Ok(Some(found).filter(|found| **found != Unsupported::default()))
    }
}
