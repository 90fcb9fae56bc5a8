//! The shape of bodies: messages and their fields.

use std::collections::HashMap;

use api_machinery::Gvk;
use serde_json::Value;

/// Names one [`Message`]; look it up with [`crate::Kinds::message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(crate) u16);

/// One struct of the API.
#[derive(Debug)]
pub struct Message {
    pub id: MessageId,
    /// Its name in OpenAPI: `io.k8s.api.core.v1.PodSpec`.
    pub name: &'static str,
    /// As protobuf has them. An *inline* field (see [`FieldInfo::inline`]) has no JSON name of its own;
    /// [`Message::json_fields`] is the JSON view.
    pub fields: Vec<FieldInfo>,
    /// `x-kubernetes-map-type: atomic` on the struct: server-side apply owns it as a whole.
    pub map_atomic: bool,
    /// Fields not listed here are kept, not refused: the outer shell of custom resources.
    pub open: bool,
    /// The kinds this is the body of.
    pub kinds: Vec<Gvk>,
    /// `x-kubernetes-unions`, as OpenAPI shows them.
    pub unions: Vec<Value>,
    pub(crate) by_json: HashMap<&'static str, Place>,
    pub(crate) json_order: Vec<Place>,
}

/// Where a field is: in the message itself or in one it flattens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub message: MessageId,
    pub field: u16,
}

impl Message {
    /// The field with this JSON name, found through inline messages too.
    pub fn field(&self, json: &str) -> Option<&'static FieldInfo> {
        let place = self.by_json.get(json)?;
        crate::kinds().message(place.message).fields.get(usize::from(place.field))
    }
    /// Every field that has a JSON name, inline ones flattened.
    pub fn json_fields(&self) -> impl Iterator<Item = &'static FieldInfo> + use<> {
        let kinds = crate::kinds();
        let places = &kinds.message(self.id).json_order;
        places.iter().map(|place| &kinds.message(place.message).fields[usize::from(place.field)])
    }
    /// The field with this protobuf number; 0 is nobody's.
    pub fn by_number(&self, number: u32) -> Option<&FieldInfo> {
        self.fields.iter().find(|field| field.number == number && number != 0)
    }
    /// `PodSpec`
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

#[derive(Debug)]
pub struct FieldInfo {
    /// Empty for an inline field.
    pub json: &'static str,
    /// Protobuf field number; 0 where none is known (the field then travels in JSON only).
    pub number: u32,
    /// Of one element, for lists and maps.
    pub kind: FieldKind,
    pub cardinality: Cardinality,
    /// How server-side apply merges a list. `Atomic` for everything that is not a list.
    pub list_type: ListType,
    /// A map or struct that server-side apply owns as a whole.
    pub map_atomic: bool,
    /// The opposite, said of this one use of a struct that is atomic elsewhere.
    pub map_granular: bool,
    /// How strategic merge treats it.
    pub patch: Patch,
    /// OpenAPI's default. Only meaningful ones: zero values are left out.
    pub default: Option<Value>,
    pub required: bool,
    /// A message of its own in protobuf, flattened into its parent in JSON.
    pub inline: bool,
    /// What OpenAPI states although nothing follows from it.
    pub stated: Stated,
}

/// Details that only matter for showing the same OpenAPI documents as upstream.
#[derive(Debug, Clone, Default)]
pub struct Stated {
    /// `x-kubernetes-list-type: atomic` said aloud.
    pub atomic: bool,
    /// A default that is the zero value anyway.
    pub zero_default: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    String,
    Bool,
    Int32,
    Int64,
    Double,
    /// base64 in JSON
    Bytes,
    /// `resource.Quantity`: a string (or number) in JSON, a message with one string in protobuf.
    Quantity,
    IntOrString,
    /// `metav1.Time`: RFC 3339 with seconds.
    Time,
    /// `metav1.MicroTime`: RFC 3339 with microseconds.
    MicroTime,
    /// `metav1.Duration`: Go's duration text in JSON, nanoseconds in protobuf.
    Duration,
    /// `runtime.RawExtension`: any JSON object.
    RawExtension,
    /// `metav1.FieldsV1`: JSON, as bytes in protobuf.
    FieldsV1,
    /// Any JSON (`apiextensions.JSON`): a message with raw bytes in protobuf.
    Json,
    /// A list of strings in a message of its own in protobuf (`ExtraValue`, `items = 1`): the values of a map.
    Strings,
    /// `JSONSchemaPropsOrArray`; protobuf: `schema = 1`, `jSONSchemas = 2`.
    SchemaOrArray,
    /// `JSONSchemaPropsOrBool`; protobuf: `allows = 1`, `schema = 2`.
    SchemaOrBool,
    /// `JSONSchemaPropsOrStringArray`; protobuf: `schema = 1`, `property = 2`.
    SchemaOrStrings,
    Message(MessageId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cardinality {
    One,
    List,
    /// Keys are strings.
    Map,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    /// Items are objects; these fields of an item say which it is.
    Map {
        keys: Vec<&'static str>,
    },
}

/// `x-kubernetes-patch-strategy` and `-patch-merge-key`. All false and no key is the default: lists are
/// replaced, maps and structs merged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patch {
    /// Lists: merge by `merge_key`, or as a set of scalars without one.
    pub merge: bool,
    pub replace: bool,
    pub retain_keys: bool,
    pub merge_key: Option<&'static str>,
}
