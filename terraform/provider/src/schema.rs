//! What attributes a resource, a data source or the provider has, and how each behaves when it changes.
//!
//! A schema is data: [`plan`](crate::plan) reads it to decide, `server` shows it to Terraform. Start at
//! [`Attribute`]; a resource's own schema is in its file.
//!
//! Not here: nested blocks. Nesting is by attributes, which is what protocol 6 brought.

use std::collections::BTreeMap;

use crate::diagnostic::Diagnostic;
use crate::proto;
use crate::value::{Object, Value, ValueError};

#[derive(Debug)]
pub struct Schema {
    /// Markdown.
    pub description: &'static str,
    pub attributes: Vec<Attribute>,
}

#[derive(Debug)]
pub struct Attribute {
    pub name: &'static str,
    /// Markdown.
    pub description: &'static str,
    pub kind: Kind,
    pub from: From,
    pub on_change: OnChange,
    pub sensitive: bool,
    /// What a known value must look like, in words if it doesn't.
    pub check: Option<Check>,
    /// Attributes of the state that name the same thing in other words: a change to one of these values
    /// is a change of spelling alone, whatever [`OnChange`] says.
    pub same_as: &'static [&'static str],
}

pub type Check = fn(&Value) -> Result<(), String>;

#[derive(Debug)]
pub enum Kind {
    Bool,
    Number,
    Text,
    TextMap,
    TextList,
    /// One object.
    Single(Vec<Attribute>),
    /// Objects whose order does not matter.
    Set(Vec<Attribute>),
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum From {
    Required,
    /// Null when it is not configured.
    Optional,
    /// This when it is not configured.
    Default(Value),
    /// Chosen when the thing is made, unless it is configured; it stays then.
    Chosen,
    /// Never configured; stays while the thing lives.
    Computed,
    /// Never configured; may be another one after each change.
    Reported,
}

/// What becomes of the thing when the attribute's planned value differs from the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnChange {
    InPlace,
    Replace,
    /// An error with these words: replacing would lose too much to be done unasked.
    Refuse(&'static str),
}

impl Attribute {
    fn new(name: &'static str, kind: Kind, description: &'static str) -> Attribute {
        Attribute {
            name,
            description,
            kind,
            from: From::Optional,
            on_change: OnChange::InPlace,
            sensitive: false,
            check: None,
            same_as: &[],
        }
    }
    pub fn bool(name: &'static str, description: &'static str) -> Attribute {
        Attribute::new(name, Kind::Bool, description)
    }
    pub fn number(name: &'static str, description: &'static str) -> Attribute {
        Attribute::new(name, Kind::Number, description)
    }
    pub fn text(name: &'static str, description: &'static str) -> Attribute {
        Attribute::new(name, Kind::Text, description)
    }
    pub fn text_map(name: &'static str, description: &'static str) -> Attribute {
        Attribute::new(name, Kind::TextMap, description)
    }
    pub fn text_list(name: &'static str, description: &'static str) -> Attribute {
        Attribute::new(name, Kind::TextList, description)
    }
    pub fn single(name: &'static str, description: &'static str, of: Vec<Attribute>) -> Attribute {
        Attribute::new(name, Kind::Single(of), description)
    }
    pub fn set(name: &'static str, description: &'static str, of: Vec<Attribute>) -> Attribute {
        Attribute::new(name, Kind::Set(of), description)
    }
    pub fn required(mut self) -> Attribute {
        self.from = From::Required;
        self
    }
    pub fn default(mut self, value: impl Into<Value>) -> Attribute {
        self.from = From::Default(value.into());
        self
    }
    pub fn chosen(mut self) -> Attribute {
        self.from = From::Chosen;
        self
    }
    pub fn computed(mut self) -> Attribute {
        self.from = From::Computed;
        self
    }
    pub fn reported(mut self) -> Attribute {
        self.from = From::Reported;
        self
    }
    pub fn replaces(mut self) -> Attribute {
        self.on_change = OnChange::Replace;
        self
    }
    pub fn refuses(mut self, why: &'static str) -> Attribute {
        self.on_change = OnChange::Refuse(why);
        self
    }
    pub fn sensitive(mut self) -> Attribute {
        self.sensitive = true;
        self
    }
    pub fn checked(mut self, check: Check) -> Attribute {
        self.check = Some(check);
        self
    }
    pub fn same_as(mut self, names: &'static [&'static str]) -> Attribute {
        self.same_as = names;
        self
    }

    /// Whether a person may write it.
    pub fn is_configurable(&self) -> bool {
        !matches!(self.from, From::Computed | From::Reported)
    }

    fn fit(&self, value: Value) -> Result<Value, ValueError> {
        match (&self.kind, value) {
            (_, Value::Null) => Ok(Value::Null),
            (_, Value::Unknown) => Ok(Value::Unknown),
            (Kind::Bool, value @ Value::Bool(_)) | (Kind::Number, value @ Value::Number(_)) => Ok(value),
            // Numbers that are no double travel as text.
            (Kind::Number, Value::Text(text)) => match text.parse() {
                Ok(number) => Ok(Value::Number(number)),
                Err(_) => Err(ValueError::Number(text)),
            },
            (Kind::Text, value @ Value::Text(_)) => Ok(value),
            (Kind::TextMap, Value::Map(items)) if items.values().all(is_text) => Ok(Value::Map(items)),
            (Kind::TextList, Value::List(items)) if items.iter().all(is_text) => Ok(Value::List(items)),
            (Kind::Single(of), value @ Value::Map(_)) => fit_all(of, value),
            (Kind::Set(of), Value::List(items)) => {
                Ok(Value::List(items.into_iter().map(|item| fit_all(of, item)).collect::<Result<_, _>>()?))
            }
            _ => Err(ValueError::Unexpected(self.name)),
        }
    }

    fn to_proto(&self) -> proto::Attribute {
        let nested = |of: &[Attribute], nesting: proto::nested::Nesting| proto::Nested {
            attributes: of.iter().map(Attribute::to_proto).collect(),
            nesting: nesting.into(),
        };
        let (kind, nested) = match &self.kind {
            Kind::Bool => (r#""bool""#, None),
            Kind::Number => (r#""number""#, None),
            Kind::Text => (r#""string""#, None),
            Kind::TextMap => (r#"["map","string"]"#, None),
            Kind::TextList => (r#"["list","string"]"#, None),
            Kind::Single(of) => ("", Some(nested(of, proto::nested::Nesting::Single))),
            Kind::Set(of) => ("", Some(nested(of, proto::nested::Nesting::Set))),
        };
        proto::Attribute {
            name: self.name.to_owned(),
            r#type: kind.as_bytes().to_vec(),
            description: self.description.to_owned(),
            description_kind: proto::TextKind::Markdown.into(),
            required: self.from == From::Required,
            optional: matches!(self.from, From::Optional | From::Default(_) | From::Chosen),
            computed: !matches!(self.from, From::Required | From::Optional),
            sensitive: self.sensitive,
            deprecated: false,
            nested,
        }
    }
}

fn is_text(value: &Value) -> bool {
    matches!(value, Value::Text(_) | Value::Null | Value::Unknown)
}

/// The members of `value` that the schema knows, null where there is none. What an older version of this
/// provider wrote and this one no longer has is dropped here.
fn fit_all(attributes: &[Attribute], value: Value) -> Result<Value, ValueError> {
    let mut items = match value {
        Value::Map(items) => items,
        Value::Null => return Ok(Value::Null),
        Value::Unknown => return Ok(Value::Unknown),
        _ => return Err(ValueError::Unexpected("something that is no object")),
    };
    let mut fitting = BTreeMap::new();
    for attribute in attributes {
        let value = items.remove(attribute.name).unwrap_or(Value::Null);
        fitting.insert(attribute.name.to_owned(), attribute.fit(value)?);
    }
    Ok(Value::Map(fitting))
}

impl Schema {
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    /// A value from Terraform as an object of this schema; `None` for null.
    pub fn fit(&self, value: Value) -> Result<Option<Object>, ValueError> {
        match fit_all(&self.attributes, value)? {
            Value::Map(items) => Ok(Some(Object(items))),
            _ => Ok(None),
        }
    }

    /// For Terraform: every attribute there, null where there is no value.
    pub fn complete(&self, object: &Object) -> Value {
        Value::Map(
            self.attributes
                .iter()
                .map(|attribute| (attribute.name.to_owned(), object.get(attribute.name).clone()))
                .collect(),
        )
    }

    /// What is wrong with the values that are known already.
    pub fn check(&self, config: &Object) -> Vec<Diagnostic> {
        let finding = |attribute: &Attribute| {
            let value = config.known(attribute.name)?;
            let why = attribute.check?(value).err()?;
            Some(Diagnostic::error(format!("Invalid {}", attribute.name), why).at(attribute.name))
        };
        self.attributes.iter().filter_map(finding).collect()
    }

    pub(crate) fn to_proto(&self) -> proto::Schema {
        proto::Schema {
            version: 0,
            block: Some(proto::Block {
                version: 0,
                attributes: self.attributes.iter().map(Attribute::to_proto).collect(),
                description: self.description.to_owned(),
                description_kind: proto::TextKind::Markdown.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema {
            description: "",
            attributes: vec![
                Attribute::text("name", "").required(),
                Attribute::number("size", ""),
                Attribute::text_map("labels", ""),
                Attribute::set("taints", "", vec![Attribute::text("key", ""), Attribute::text("value", "")]),
            ],
        }
    }

    #[test]
    fn state_of_any_age_fits_or_is_refused() {
        for (json, wanted) in [
            (r#"{"name":"a"}"#, Some(r#"{"labels": Null, "name": Text("a"), "size": Null, "taints": Null}"#)),
            (
                r#"{"name":"a","gone":[1],"size":"3"}"#,
                Some(r#"{"labels": Null, "name": Text("a"), "size": Number(3.0), "taints": Null}"#),
            ),
            (
                r#"{"taints":[{"key":"k","old":1}]}"#,
                Some(
                    r#"{"labels": Null, "name": Null, "size": Null, "taints": List([Map({"key": Text("k"), "value": Null})])}"#,
                ),
            ),
            (r#"{"name":1}"#, None),
            (r#"{"size":"many"}"#, None),
            (r#"{"labels":{"a":{}}}"#, None),
            (r#"{"taints":[1]}"#, None),
            (r#"[]"#, None),
        ] {
            let fitted = Value::from_json(json.as_bytes()).and_then(|value| schema().fit(value));
            let said = fitted.ok().flatten().map(|object| format!("{:?}", object.0));
            assert_eq!(said.as_deref(), wanted, "{json}");
        }
        assert_eq!(schema().fit(Value::Null).unwrap(), None);
    }
}
