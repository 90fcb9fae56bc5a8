//! A definition taken apart, in upstream's internal form.

use std::collections::BTreeSet;

use api_machinery::{FieldError, go_json};
use serde_json::Value;

use crate::schema::Schema;

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// What a version says, or all of them alike.
#[derive(Default)]
pub(super) struct Parts<'a> {
    /// With what the author wrote of it. An error says why it can't be read.
    pub schema: Option<(Result<Schema, FieldError>, &'a Value)>,
    /// Whether there is a `schema` at all, be there something in it or not.
    pub has_validation: bool,
    pub subresources: Option<&'a Value>,
    pub columns: &'a [Value],
    pub selectable: &'a [Value],
}

pub(super) struct Version<'a> {
    pub name: &'a str,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub deprecation_warning: Option<&'a str>,
    pub own: Parts<'a>,
}

pub(super) struct Form<'a> {
    pub group: &'a str,
    pub scope: &'a str,
    pub names: &'a Value,
    pub keep_unknown: bool,
    pub conversion: Option<&'a Value>,
    pub versions: Vec<Version<'a>>,
    pub shared: Parts<'a>,
}

impl Version<'_> {
    fn shown(&self) -> String {
        let list = |list: &[Value]| if list.is_empty() { Value::Null } else { Value::from(list) };
        let schema = match &self.own.schema {
            Some((_, written)) => format!(r#"{{"OpenAPIV3Schema":{written}}}"#),
            None => "null".to_owned(),
        };
        format!(
            r#"{{"Name":{},"Served":{},"Storage":{},"Deprecated":{},"DeprecationWarning":{},"Schema":{schema},"Subresources":{},"AdditionalPrinterColumns":{},"SelectableFields":{}}}"#,
            Value::from(self.name),
            self.served,
            self.storage,
            self.deprecated,
            self.deprecation_warning.map(Value::from).unwrap_or_default(),
            self.own.subresources.unwrap_or(&Value::Null),
            list(self.own.columns),
            list(self.own.selectable),
        )
    }
}

impl<'a> Form<'a> {
    pub fn of(definition: &'a Value) -> Form<'a> {
        let spec = definition.get("spec").unwrap_or(&Value::Null);
        let versions = list(spec.get("versions"));
        // What all versions agree on is said once, at the top.
        let same = |key: &str| {
            let mut all = versions.iter().map(|version| without_empty(version.get(key)));
            let first = all.next().flatten();
            all.all(|other| other == first)
        };
        let read = |version: &'a Value, wanted: &dyn Fn(&str) -> bool| {
            let get = |key: &str| version.get(key).filter(|value| wanted(key) && !value.is_null());
            let schema = get("schema");
            let props = schema.and_then(|schema| schema.get("openAPIV3Schema"));
            Parts {
                schema: props.filter(|props| !props.is_null()).map(|props| (Schema::read(props), props)),
                has_validation: schema.is_some(),
                subresources: get("subresources"),
                columns: list(get("additionalPrinterColumns")),
                selectable: list(get("selectableFields")),
            }
        };
        let flag = |version: &Value, key: &str| version.get(key) == Some(&Value::Bool(true));
        Form {
            group: text(spec, "group"),
            scope: text(spec, "scope"),
            names: spec.get("names").unwrap_or(&Value::Null),
            keep_unknown: flag(spec, "preserveUnknownFields"),
            conversion: spec.get("conversion").filter(|conversion| !conversion.is_null()),
            shared: versions.first().map(|first| read(first, &same)).unwrap_or_default(),
            versions: versions
                .iter()
                .map(|version| Version {
                    name: text(version, "name"),
                    served: flag(version, "served"),
                    storage: flag(version, "storage"),
                    deprecated: flag(version, "deprecated"),
                    deprecation_warning: version.get("deprecationWarning").and_then(Value::as_str),
                    own: read(version, &|key| !same(key)),
                })
                .collect(),
        }
    }

    /// `versions` as it stands in errors, members in upstream's order. Parts that all versions share are not
    /// theirs any more; what is left of schemas is shown as it was written.
    pub fn shown_versions(&self) -> String {
        if self.versions.is_empty() {
            return "null".to_owned();
        }
        let versions: Vec<String> = self.versions.iter().map(Version::shown).collect();
        go_json(&format!("[{}]", versions.join(",")))
    }

    /// All schemas that can be read.
    pub fn schemas(&self) -> Vec<&Schema> {
        let parts = std::iter::once(&self.shared).chain(self.versions.iter().map(|version| &version.own));
        parts.filter_map(|parts| parts.schema.as_ref()?.0.as_ref().ok()).collect()
    }

    pub fn every_version_has_schema(&self) -> bool {
        self.shared.schema.is_some() || self.versions.iter().all(|version| version.own.schema.is_some())
    }

    /// The schema as it was written that serves a version.
    fn written_schema(&self, version: &str) -> Option<Option<&'a Value>> {
        let version = self.versions.iter().find(|known| known.name == version)?;
        let parts = if self.shared.schema.is_some() { &self.shared } else { &version.own };
        Some(parts.schema.as_ref().map(|(_, written)| *written))
    }

    /// Versions that are in both and have the same schema there.
    pub fn versions_with_schema_of(&self, other: &Form<'_>) -> BTreeSet<String> {
        self.versions
            .iter()
            .filter(|version| {
                let schema = self.written_schema(version.name);
                schema.is_some() && schema == other.written_schema(version.name)
            })
            .map(|version| version.name.to_owned())
            .collect()
    }

    /// Subresources of a version, its own or everybody's.
    pub fn subresources(&self, version: &Version<'a>) -> Option<&'a Value> {
        if self.versions.iter().any(|version| version.own.subresources.is_some()) {
            version.own.subresources
        } else {
            self.shared.subresources
        }
    }
}

/// Nothing, null and an empty list are one.
fn without_empty(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty))
}

pub(super) fn has_status(subresources: Option<&Value>) -> bool {
    subresources.and_then(|subresources| subresources.get("status")).is_some_and(|status| !status.is_null())
}
