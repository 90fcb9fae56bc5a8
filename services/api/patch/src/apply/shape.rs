//! How server-side apply sees a value: as one thing, or as parts with owners of their own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

use api_kinds::{Cardinality, FieldInfo, FieldKind, ListType, Message, MessageId, kinds};
use api_structural::{ListType as SchemaListType, Schema};
use serde_json::Value;

use super::set::{key_element, value_element};

#[derive(Debug, Clone, Copy)]
pub(super) enum Shape<'a> {
    /// One owner for all of it.
    Leaf,
    Struct(&'static Message),
    /// Each key is owned by itself; values have the field's element shape.
    Map(&'static FieldInfo),
    /// Items are told apart by value.
    Set,
    /// Items are told apart by these keys.
    List(&'static FieldInfo),
    /// Nothing is known: objects are taken apart, lists are one thing. Custom resources without a schema.
    Guessed,
    /// A custom resource, or one embedded in another object: what every object has, and what the schema says.
    Root(&'a Schema),
    /// An object with the schema's properties.
    Fields(&'a Schema),
    /// A list whose items are told apart by the schema's keys.
    Items(&'a Schema),
}

impl<'a> Shape<'a> {
    pub(super) fn of(message: MessageId) -> Shape<'a> {
        Shape::Struct(kinds().message(message))
    }

    fn of_field(field: &'static FieldInfo) -> Shape<'a> {
        match (field.cardinality, &field.list_type) {
            (Cardinality::One, _) if field.map_atomic => Shape::Leaf,
            (Cardinality::One, _) => Shape::of_element(field),
            (Cardinality::Map, _) if field.map_atomic => Shape::Leaf,
            (Cardinality::Map, _) => Shape::Map(field),
            (Cardinality::List, ListType::Atomic) => Shape::Leaf,
            (Cardinality::List, ListType::Set) => Shape::Set,
            (Cardinality::List, ListType::Map { .. }) => Shape::List(field),
        }
    }

    /// After the conversion of kube-openapi (`pkg/schemaconv`): what is not said is granular in objects and atomic
    /// in lists.
    fn of_schema(schema: &'a Schema) -> Shape<'a> {
        if schema.is_embedded_resource() {
            return Shape::Root(schema);
        }
        if schema.is_int_or_string() {
            return Shape::Leaf;
        }
        let told = schema.properties().next().is_some() || schema.additional().is_some();
        match schema.type_name() {
            Some("array") => match schema.list_type() {
                SchemaListType::Atomic => Shape::Leaf,
                SchemaListType::Set => Shape::Set,
                SchemaListType::Map(_) => Shape::Items(schema),
            },
            Some("object") | None if schema.is_map_atomic() => Shape::Leaf,
            Some("object") | None if told => Shape::Fields(schema),
            Some("object") => Shape::Guessed,
            None if schema.preserves_unknown() => Shape::Guessed,
            _ => Shape::Leaf,
        }
    }

    fn of_element(field: &'static FieldInfo) -> Shape<'a> {
        match field.kind {
            FieldKind::Message(id) => {
                let message = kinds().message(id);
                if message.map_atomic && !field.map_granular { Shape::Leaf } else { Shape::Struct(message) }
            }
            _ => Shape::Leaf,
        }
    }

    /// Of a member of an object, and whether the object's type names it (a map's keys are not named).
    pub(super) fn member(self, key: &str) -> (Shape<'a>, bool) {
        match self {
            Shape::Struct(message) => match message.field(key) {
                Some(field) => (Shape::of_field(field), true),
                None => (Shape::Guessed, false),
            },
            Shape::Map(field) => (Shape::of_element(field), false),
            Shape::Guessed => (Shape::Guessed, false),
            // These three every object has, whatever a schema says.
            Shape::Root(_) if ["apiVersion", "kind", "metadata"].contains(&key) => {
                Shape::of(kinds().custom()).member(key)
            }
            Shape::Root(schema) | Shape::Fields(schema) => {
                match (schema.property(key), schema.additional()) {
                    (Some(property), _) => (Shape::of_schema(property), true),
                    (None, Some(additional)) => (Shape::of_schema(additional), false),
                    (None, None) => (Shape::Guessed, false),
                }
            }
            Shape::Leaf | Shape::Set | Shape::List(_) | Shape::Items(_) => (Shape::Leaf, false),
        }
    }

    /// Of a list's items.
    pub(super) fn item(self) -> Shape<'a> {
        match self {
            Shape::List(field) => Shape::of_element(field),
            Shape::Items(schema) => schema.items().map_or(Shape::Leaf, Shape::of_schema),
            _ => Shape::Leaf,
        }
    }

    /// Whether a value of this shape is taken apart as an object.
    pub(super) fn is_object(self, value: Option<&Value>) -> bool {
        match self {
            Shape::Struct(_) | Shape::Map(_) | Shape::Root(_) | Shape::Fields(_) => true,
            Shape::Guessed => value.is_some_and(Value::is_object),
            Shape::Leaf | Shape::Set | Shape::List(_) | Shape::Items(_) => false,
        }
    }
    pub(super) fn is_list(self) -> bool {
        matches!(self, Shape::Set | Shape::List(_) | Shape::Items(_))
    }

    /// What tells an item of a list from the others; an error names the key it lacks.
    pub(super) fn element(self, item: &Value) -> Result<String, String> {
        let keys: Vec<&str> = match self {
            Shape::List(field) => match &field.list_type {
                ListType::Map { keys } => keys.clone(),
                _ => return Ok(value_element(item)),
            },
            Shape::Items(schema) => match schema.list_type() {
                SchemaListType::Map(keys) => keys.iter().map(String::as_str).collect(),
                _ => return Ok(value_element(item)),
            },
            _ => return Ok(value_element(item)),
        };
        let default = |key: &str| match self {
            Shape::List(field) => match field.kind {
                FieldKind::Message(id) => {
                    kinds().message(id).field(key).and_then(|field| field.default.clone())
                }
                _ => None,
            },
            Shape::Items(schema) => schema.items()?.property(key)?.default_value().cloned(),
            _ => None,
        };
        let mut values = BTreeMap::new();
        for &key in &keys {
            match item.get(key).filter(|value| !value.is_null()).cloned().or_else(|| default(key)) {
                Some(value) => {
                    values.insert(key, value);
                }
                // Ports without a protocol or a name are told apart by the rest, if any is there.
                None => continue,
            }
        }
        if values.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits key field {:?} (and doesn't have default value)",
                keys.first().copied().unwrap_or_default()
            ));
        }
        Ok(key_element(&values))
    }

    /// For [`super::set::FieldSet::mark_parents`]: whether `element` is a named field here, and the shape
    /// below it.
    pub(super) fn step(self, element: &str) -> (bool, Shape<'a>) {
        match element.strip_prefix("f:") {
            Some(name) => {
                let (shape, named) = self.member(name);
                (named, shape)
            }
            None => (false, self.item()),
        }
    }

    /// An object of this kind with nothing in it: structs that Go embeds by value are there all the same,
    /// which is why nobody ever owns `spec` as such. Made once per kind.
    pub(super) fn nothing(self) -> Arc<Value> {
        static MADE: LazyLock<Mutex<HashMap<MessageId, Arc<Value>>>> = LazyLock::new(Mutex::default);
        let Shape::Struct(message) = self else { return Arc::new(self.nothing_to(0)) };
        let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        made.entry(message.id).or_insert_with(|| Arc::new(self.nothing_to(0))).clone()
    }
    fn nothing_to(self, depth: usize) -> Value {
        let mut object = serde_json::Map::new();
        // Types may contain themselves only through pointers; the bound is for a table that says otherwise.
        if let Shape::Struct(message) = self
            && depth < 16
        {
            for field in message.json_fields() {
                let by_value = field.stated.zero_default.as_ref().or(field.default.as_ref());
                let embedded = field.cardinality == Cardinality::One
                    && by_value
                        .is_some_and(|default| default.as_object().is_some_and(serde_json::Map::is_empty));
                if let FieldKind::Message(id) = field.kind
                    && embedded
                {
                    object.insert(field.json.to_owned(), Shape::of(id).nothing_to(depth + 1));
                }
            }
        }
        Value::Object(object)
    }
}
