//! `spec`: names, versions, columns, subresources, selectable fields.

use std::collections::BTreeSet;

use api_machinery::{Field, FieldError};
use serde_json::{Value, json};

use super::Options;
use super::conversion;
use super::form::{Form, Parts, Version, has_status, list, text};
use super::schema;
use crate::metadata::mixed_case;
use crate::nonstructural;
use crate::path;
use crate::schema::Schema;
use api_machinery::validation;

/// Fields by which one may select, of one version.
const MAX_SELECTABLE: usize = 8;

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

pub(super) fn validate(at: &Field, form: &Form<'_>, options: &Options, errors: &mut Vec<FieldError>) {
    let group = at.child("group");
    if form.group.is_empty() {
        errors.push(group.required(""));
    } else {
        let reasons = validation::dns_subdomain(form.group);
        if !reasons.is_empty() {
            errors.push(group.invalid(form.group, reasons.join(",")));
        } else if !form.group.contains('.') {
            errors.push(group.invalid(form.group, "should be a domain with at least one dot"));
        }
    }
    match form.scope {
        "" => errors.push(at.child("scope").required("")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(at.child("scope").not_supported(other, &["Cluster", "Namespaced"])),
    }
    let structural = structural_wanted(at, form, options, errors);
    schemas_present(at, form, options, errors);

    let versions_at = at.child("versions");
    let mut known = BTreeSet::new();
    let mut unique = true;
    for (index, version) in form.versions.iter().enumerate() {
        let at = versions_at.index(index);
        unique &= known.insert(version.name);
        let reasons = validation::dns_1035_label(version.name);
        if !reasons.is_empty() {
            errors.push(at.child("name").invalid(version.name, reasons.join(",")));
        }
        let status = has_status(form.subresources(version));
        validate_version(&at, version, status, structural, options, errors);
    }
    let mut wrong =
        |why: &str| errors.push(versions_at.invalid_unshown(format!("{}: {why}", form.shown_versions())));
    if !unique {
        wrong("must contain unique version names");
    }
    if form.versions.iter().filter(|version| version.storage).count() != 1 {
        wrong("must have exactly one version marked as storage version");
    }
    let first = form.versions.first().map(|version| version.name).unwrap_or_default();
    let reasons = validation::dns_1035_label(first);
    if !first.is_empty() && !reasons.is_empty() {
        errors.push(at.child("version").invalid(first, reasons.join(",")));
    }

    let names_at = at.child("names");
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(form.names, key).is_empty() {
            errors.push(names_at.child(key).required(""));
        }
    }
    validate_names(&names_at, Some(form.names), errors);
    let any_status = has_status(form.shared.subresources)
        || form.versions.iter().any(|version| has_status(version.own.subresources));
    let shared_at = at.child("validation");
    let cheap = options.unchanged_schemas.contains(first);
    validate_schema(&shared_at, &form.shared, any_status, structural, cheap, options, errors);
    validate_subresources(&at.child("subresources"), form.shared.subresources, errors);
    validate_columns(&at.child("additionalPrinterColumns"), form.shared.columns, errors);
    if !form.shared.selectable.is_empty() {
        let at = at.child("selectableFields");
        if form.shared.has_validation {
            selectable(&at, &form.shared, "", options, errors);
        } else {
            errors.push(at.invalid("", "may only be set when validations.schema is included"));
        }
    }
    let conversion_at = at.child("conversion");
    if let Some(conversion) = form.conversion
        && text(conversion, "strategy") != "None"
        && form.keep_unknown
    {
        let why = "must be None if spec.preserveUnknownFields is true";
        errors.push(conversion_at.child("strategy").invalid(text(conversion, "strategy"), why));
    }
    conversion::validate(
        &conversion_at,
        form.conversion,
        options.recognized_review_version,
        options.allow_invalid_ca,
        errors,
    );
}

/// Whether schemas have to be structural: where anything depends on it.
fn structural_wanted(at: &Field, form: &Form<'_>, options: &Options, errors: &mut Vec<FieldError>) -> bool {
    let schemas = form.schemas();
    let any = |wanted: &dyn Fn(&Schema) -> bool| {
        schemas.iter().any(|schema| schema.any(&mut |schema| wanted(schema)))
    };
    let defaults = any(&|schema| schema.default.is_some());
    if defaults && form.keep_unknown {
        let why = "must be false in order to use defaults in the schema";
        errors.push(at.child("preserveUnknownFields").invalid(true, why));
    }
    options.structural
        || !form.keep_unknown
        || defaults
        || any(&|schema| {
            schema.embedded_resource
                || schema.preserve_unknown.is_some()
                || schema.int_or_string
                || !schema.list_map_keys.is_empty()
                || schema.list_type.is_some()
                || !schema.rules.is_empty()
        })
}

fn schemas_present(at: &Field, form: &Form<'_>, options: &Options, errors: &mut Vec<FieldError>) {
    if form.shared.schema.is_some() {
        return;
    }
    for (index, version) in form.versions.iter().enumerate() {
        if version.own.schema.is_some() {
            continue;
        }
        let at = at.child("versions").index(index).child("schema").child("openAPIV3Schema");
        if options.openapi_schema {
            errors.push(at.required(""));
        } else if !form.keep_unknown && version.served {
            errors.push(at.required("because otherwise all fields are pruned"));
        }
    }
}

fn validate_version(
    at: &Field,
    version: &Version<'_>,
    status: bool,
    structural: bool,
    options: &Options,
    errors: &mut Vec<FieldError>,
) {
    let warning = version.deprecation_warning;
    let shown = warning.map(Value::from).unwrap_or_default();
    let warning_at = at.child("deprecationWarning");
    if !version.deprecated && warning.is_some() {
        errors.push(warning_at.invalid(shown, "can only be set for deprecated versions"));
    } else if let Some(warning) = warning {
        let mut wrong = |why: String| errors.push(warning_at.invalid(warning, why));
        if warning.len() > 256 {
            wrong("must be <= 256 characters long".to_owned());
        }
        if warning.is_empty() {
            wrong("must not be an empty string".to_owned());
        }
        let unprintable = |c: char| c != ' ' && (c.is_control() || c.is_whitespace());
        if let Some((index, _)) = warning.char_indices().find(|(_, char)| unprintable(*char)) {
            wrong(format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {index}"
            ));
        }
    }
    let cheap = options.unchanged_schemas.contains(version.name);
    validate_schema(&at.child("schema"), &version.own, status, structural, cheap, options, errors);
    validate_subresources(&at.child("subresources"), version.own.subresources, errors);
    validate_columns(&at.child("additionalPrinterColumns"), version.own.columns, errors);
    if !version.own.selectable.is_empty() {
        let at = at.child("selectableFields");
        if version.own.schema.is_some() {
            selectable(&at, &version.own, version.name, options, errors);
        } else {
            let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.push(at.invalid("", why));
        }
    }
}

fn validate_schema(
    at: &Field,
    parts: &Parts<'_>,
    status: bool,
    structural: bool,
    suppress_cost: bool,
    options: &Options,
    errors: &mut Vec<FieldError>,
) {
    let Some((schema, written)) = &parts.schema else { return };
    match schema {
        Ok(schema) => {
            let how = schema::How { options, status, structural, suppress_cost };
            schema::validate(&at.child("openAPIV3Schema"), schema, written, how, errors);
        }
        Err(error) => errors.push(at.child("openAPIV3Schema").invalid_unshown(error.detail.as_str())),
    }
}

pub(super) fn validate_names(at: &Field, names: Option<&Value>, errors: &mut Vec<FieldError>) {
    let Some(names) = names else { return };
    for key in ["plural", "singular"] {
        let name = text(names, key);
        let reasons = validation::dns_1035_label(name);
        if !name.is_empty() && !reasons.is_empty() {
            errors.push(at.child(key).invalid(name, reasons.join(",")));
        }
    }
    for key in ["kind", "listKind"] {
        let name = text(names, key);
        let reasons = validation::dns_1035_label(&name.to_lowercase());
        if !name.is_empty() && !reasons.is_empty() {
            errors.push(at.child(key).invalid(name, mixed_case(&reasons)));
        }
    }
    let labels = |key: &str, errors: &mut Vec<FieldError>| {
        for (index, name) in list(names.get(key)).iter().filter_map(Value::as_str).enumerate() {
            let reasons = validation::dns_1035_label(name);
            if !reasons.is_empty() {
                errors.push(at.child(key).index(index).invalid(name, reasons.join(",")));
            }
        }
    };
    labels("shortNames", errors);
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        errors.push(at.child("listKind").invalid(kind, "kind and listKind may not be the same"));
    }
    labels("categories", errors);
}

pub(super) fn validate_immutable(
    at: &Field,
    form: &Form<'_>,
    was: &Form<'_>,
    names: bool,
    errors: &mut Vec<FieldError>,
) {
    let mut same = |at: Field, new: &str, old: &str| {
        if new != old {
            errors.push(at.invalid(new, "field is immutable"));
        }
    };
    let names_at = at.child("names");
    if names {
        same(at.child("scope"), form.scope, was.scope);
        same(names_at.child("kind"), text(form.names, "kind"), text(was.names, "kind"));
    }
    same(at.child("group"), form.group, was.group);
    same(names_at.child("plural"), text(form.names, "plural"), text(was.names, "plural"));
}

fn validate_columns(at: &Field, columns: &[Value], errors: &mut Vec<FieldError>) {
    for (index, column) in columns.iter().enumerate() {
        let at = at.index(index);
        if text(column, "name").is_empty() {
            errors.push(at.child("name").required(""));
        }
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        match text(column, "type") {
            "" => errors.push(at.child("type").required(types)),
            kind if !COLUMN_TYPES.contains(&kind) => errors.push(at.child("type").invalid(kind, types)),
            _ => {}
        }
        let format = text(column, "format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(at.child("format").invalid(format, why));
        }
        let path_at = at.child("JSONPath");
        match text(column, "jsonPath") {
            "" => errors.push(path_at.required("")),
            path => drop(is_simple_path(&path_at, path, errors)),
        }
    }
}

fn is_simple_path(at: &Field, path: &str, errors: &mut Vec<FieldError>) -> bool {
    let simple = path.starts_with('.');
    if !simple {
        errors.push(at.invalid(path, "must be a simple json path starting with ."));
    }
    simple
}

fn validate_subresources(at: &Field, subresources: Option<&Value>, errors: &mut Vec<FieldError>) {
    let scale = subresources.and_then(|subresources| subresources.get("scale"));
    let Some(scale) = scale.filter(|scale| !scale.is_null()) else { return };
    for (key, under, why) in [
        ("specReplicasPath", &[".spec."][..], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ] {
        let at = at.child(&format!("scale.{key}"));
        match text(scale, key) {
            "" if key == "labelSelectorPath" => {}
            "" => errors.push(at.required("")),
            path => {
                let simple = is_simple_path(&at, path, errors);
                if simple && !under.iter().any(|under| path.starts_with(under)) {
                    errors.push(at.invalid(path, why));
                }
            }
        }
    }
}

fn selectable(at: &Field, parts: &Parts<'_>, version: &str, options: &Options, errors: &mut Vec<FieldError>) {
    let Some((Ok(schema), _)) = &parts.schema else { return };
    if nonstructural::unsupported(schema).is_some() {
        // Said where the schema is looked at.
        return;
    }
    let mut unique = BTreeSet::new();
    for (index, field) in parts.selectable.iter().enumerate() {
        let at = at.index(index).child("jsonPath");
        let json_path = text(field, "jsonPath");
        if json_path.is_empty() {
            errors.push(at.required(""));
            continue;
        }
        let found = match path::find(json_path, schema, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(at.invalid(json_path, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.root == "metadata" {
            errors.push(at.invalid(json_path, "must not point to fields in metadata"));
        }
        let kind = found.schema.map(|schema| schema.kind.as_str()).unwrap_or_default();
        if !["string", "boolean", "integer"].contains(&kind) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(at.invalid(json_path, why));
        }
        if !unique.insert(found.path.as_str().to_owned()) {
            errors.push(at.duplicate(json_path));
        }
    }
    if unique.len() > MAX_SELECTABLE && !options.many_selectable.contains(version) {
        errors.push(at.too_many(unique.len(), MAX_SELECTABLE));
    }
}

/// Versions whose selectable fields are too many and were so before, the same ones.
pub(super) fn many_selectable(form: &Form<'_>, was: &Form<'_>) -> BTreeSet<String> {
    let kept = |new: &[Value], old: &[Value]| old.len() > MAX_SELECTABLE && json!(new) == json!(old);
    let mut found = BTreeSet::new();
    if kept(form.shared.selectable, was.shared.selectable) {
        found.insert(String::new());
    }
    for version in &form.versions {
        let old = was.versions.iter().find(|old| old.name == version.name);
        if old.is_some_and(|old| kept(version.own.selectable, old.own.selectable)) {
            found.insert(version.name.to_owned());
        }
    }
    found
}
