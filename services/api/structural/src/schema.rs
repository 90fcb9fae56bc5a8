//! One node of a schema, as the author of a CustomResourceDefinition wrote it.
//!
//! The same type serves the structural spine and what is nested under `allOf`, `anyOf`, `oneOf` and `not`;
//! which fields may be used where is for `nonstructural` to say. Fields follow `JSONSchemaProps` of
//! `apiextensions.k8s.io/v1`.

use std::collections::BTreeMap;

use api_machinery::{Field, FieldError};
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
        read(props, 0)
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
    /// As it stands in errors about it.
    pub(crate) fn shown(&self) -> Value {
        serde_json::json!({
            "Rule": self.rule,
            "Message": self.message,
            "MessageExpression": self.message_expression,
            "Reason": self.reason,
            "FieldPath": self.field_path,
            "OptionalOldSelf": self.optional_old_self,
        })
    }
    /// What names the rule in messages: its own message, or itself.
    pub(crate) fn name(&self) -> &str {
        if self.message.is_empty() { self.rule.trim() } else { self.message.trim() }
    }
}

fn read(props: &Value, depth: usize) -> Result<Schema, FieldError> {
    let empty = Map::new();
    let props = props.as_object().unwrap_or(&empty);
    if depth > MAX_DEPTH {
        return Err(Field::new("openAPIV3Schema")
            .invalid_unshown(format!("schemas may be nested at most {MAX_DEPTH} levels deep")));
    }
    let from = Reader { props, depth };
    let unsupported = from.unsupported()?;
    Ok(Schema {
        description: from.text("description"),
        kind: from.text("type"),
        title: from.text("title"),
        format: from.text("format"),
        default: from.json("default"),
        example: from.json("example"),
        external_docs: from.json("externalDocs"),
        nullable: from.flag("nullable"),
        items: match props.get("items") {
            Some(items @ Value::Object(_)) => Some(Box::new(read(items, depth + 1)?)),
            _ => None,
        },
        properties: from.named("properties")?,
        additional: from.additional("additionalProperties")?,
        maximum: from.float("maximum"),
        exclusive_maximum: from.flag("exclusiveMaximum"),
        minimum: from.float("minimum"),
        exclusive_minimum: from.flag("exclusiveMinimum"),
        max_length: from.integer("maxLength"),
        min_length: from.integer("minLength"),
        pattern: Some(from.text("pattern")).filter(|text| !text.is_empty()).map(Pattern::new),
        max_items: from.integer("maxItems"),
        min_items: from.integer("minItems"),
        unique_items: from.flag("uniqueItems"),
        multiple_of: from.float("multipleOf"),
        enumeration: from.list("enum").cloned().collect(),
        max_properties: from.integer("maxProperties"),
        min_properties: from.integer("minProperties"),
        required: from.texts("required"),
        all_of: from.schemas("allOf")?,
        any_of: from.schemas("anyOf")?,
        one_of: from.schemas("oneOf")?,
        not: match props.get("not") {
            Some(not @ Value::Object(_)) => Some(Box::new(read(not, depth + 1)?)),
            _ => None,
        },
        preserve_unknown: props.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool),
        embedded_resource: from.flag("x-kubernetes-embedded-resource"),
        int_or_string: from.flag("x-kubernetes-int-or-string"),
        list_map_keys: from.texts("x-kubernetes-list-map-keys"),
        list_type: from.some_text("x-kubernetes-list-type"),
        map_type: from.some_text("x-kubernetes-map-type"),
        rules: from.list("x-kubernetes-validations").map(rule).collect(),
        unsupported,
    })
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
    fn schemas(&self, key: &str) -> Result<Vec<Schema>, FieldError> {
        self.list(key).map(|props| read(props, self.depth + 1)).collect()
    }
    fn named(&self, key: &str) -> Result<BTreeMap<String, Schema>, FieldError> {
        let members = self.props.get(key).and_then(Value::as_object).into_iter().flatten();
        members.map(|(name, props)| Ok((name.clone(), read(props, self.depth + 1)?))).collect()
    }
    fn additional(&self, key: &str) -> Result<Option<Additional>, FieldError> {
        Ok(match self.props.get(key) {
            Some(Value::Bool(allows)) => Some(Additional { allows: *allows, schema: None }),
            Some(props @ Value::Object(_)) => {
                Some(Additional { allows: true, schema: Some(Box::new(read(props, self.depth + 1)?)) })
            }
            _ => None,
        })
    }
    fn unsupported(&self) -> Result<Option<Box<Unsupported>>, FieldError> {
        let dependencies = match self.props.get("dependencies") {
            Some(Value::Object(members)) => {
                let schemas = members.iter().filter(|(_, props)| props.is_object());
                let read = schemas.map(|(name, props)| Ok((name.clone(), read(props, self.depth + 1)?)));
                Some(read.collect::<Result<_, FieldError>>()?)
            }
            _ => None,
        };
        let found = Unsupported {
            id: self.text("id"),
            schema: self.text("$schema"),
            reference: self.some_text("$ref"),
            pattern_properties: self.named("patternProperties")?,
            definitions: self.named("definitions")?,
            dependencies,
            additional_items: self.additional("additionalItems")?,
            item_list: self.schemas("items")?,
        };
        Ok(Some(found).filter(|found| *found != Unsupported::default()).map(Box::new))
    }
}
