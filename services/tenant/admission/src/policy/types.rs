//! Mistakes in a policy's expressions that the types of what it is about would show.
//!
//! A policy is compiled without types, since it may be about anything. Where its rules name resources plainly,
//! its expressions are checked once more against those resources' types; what is found is a warning in the
//! policy's status and changes nothing about the policy. Custom resources are not checked: their schemas are
//! not at hand where this runs.
//! Facts: upstream's `plugin/policy/validating/typechecking.go`.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use api_cel::{Decl, Field, ListKind, Shape, Type};
use api_kinds::{Cardinality, FieldInfo, FieldKind, MessageId, kinds};
use api_machinery::{Document, Gvk};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::expression::{Names, Variables, Wants};

/// Types that one policy is checked against.
const MAX_TYPES: usize = 10;
/// Structs in structs: enough for a pod in a template, and an end for those that contain themselves.
const MAX_DEPTH: usize = 12;

/// `status.typeChecking.expressionWarnings` of a ValidatingAdmissionPolicy.
pub fn expression_warnings(policy: &Document) -> Vec<Value> {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let types: Vec<(Gvk, Arc<Decl>)> =
        types_of(policy).into_iter().filter_map(|gvk| declared(&gvk).map(|decl| (gvk, decl))).collect();
    let param_kind = policy.get("spec.paramKind").filter(|kind| kind.is_object());
    let params = param_kind
        .and_then(|kind| Gvk::parse(&text(kind, "apiVersion"), &text(kind, "kind")))
        .and_then(|gvk| declared(&gvk));
    let names = Names { params: param_kind.is_some(), authorizer: true, patches: false };
    let check = |source: &str| -> Option<String> {
        let mut messages = Vec::new();
        for (gvk, object) in &types {
            let typed = Some((object, params.as_ref()));
            let mut variables = Variables::default();
            for variable in policy.get_array("spec.variables") {
                let (name, source) = (text(variable, "name"), text(variable, "expression"));
                variables.add_typed(&name, &source, names, typed);
            }
            if let Err(why) = variables.compile_with(source, names, Wants::Anything, typed) {
                messages.push(format!("{gvk}: {why}\n"));
            }
        }
        (!messages.is_empty()).then(|| messages.join("\n"))
    };
    let mut warnings = Vec::new();
    for (at, validation) in policy.get_array("spec.validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let source = text(validation, field);
            if let Some(warning) =
                Some(source).filter(|source| !source.is_empty()).and_then(|source| check(&source))
            {
                warnings
                    .push(json!({"fieldRef": format!("spec.validations[{at}].{field}"), "warning": warning}));
            }
        }
    }
    warnings
}

/// The kinds that the rules name without wildcards, in order.
fn types_of(policy: &Document) -> BTreeSet<Gvk> {
    let mut found = BTreeSet::new();
    for rule in policy.get_array("spec.matchConstraints.resourceRules") {
        let all = |name: &str| -> Vec<&str> {
            rule[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        let (groups, versions) = (all("apiGroups"), all("apiVersions"));
        if groups.iter().chain(&versions).any(|one| one.contains('*')) {
            continue;
        }
        for group in &groups {
            for version in &versions {
                for resource in all("resources").into_iter().filter(|one| !one.contains(['*', '/'])) {
                    if let Some(info) = kinds().find(group, version, resource)
                        && found.len() < MAX_TYPES
                    {
                        found.insert(info.gvk.clone());
                    }
                }
            }
        }
    }
    found
}

/// A built-in kind's type. Made once per kind and process.
fn declared(gvk: &Gvk) -> Option<Arc<Decl>> {
    static MADE: LazyLock<Mutex<HashMap<MessageId, Arc<Decl>>>> = LazyLock::new(Mutex::default);
    let message = kinds().kind_message(gvk)?.id;
    if let Some(found) = MADE.lock().get(&message) {
        return Some(found.clone());
    }
    let made = object(message, 0);
    Some(MADE.lock().entry(message).or_insert(made).clone())
}

fn object(id: MessageId, depth: usize) -> Arc<Decl> {
    if depth >= MAX_DEPTH {
        return Arc::new(Decl::dynamic());
    }
    let message = kinds().message(id);
    if message.open {
        return Arc::new(Decl::dynamic());
    }
    let fields = message.json_fields().map(|field| {
        let declared = Field { decl: Arc::new(field_type(field, depth)), required: field.required };
        (field.json.to_owned(), declared)
    });
    let mut fields: Vec<(String, Field)> = fields.collect();
    if depth == 0 {
        for name in ["apiVersion", "kind"] {
            let text = Field { decl: Arc::new(Decl::string(None)), required: true };
            fields.push((name.to_owned(), text));
        }
    }
    Arc::new(Decl::object(message.short_name(), fields, 2))
}

fn field_type(field: &FieldInfo, depth: usize) -> Decl {
    let one = match field.kind {
        FieldKind::String => Decl::string(None),
        FieldKind::Bool => Decl::boolean(),
        FieldKind::Int32 | FieldKind::Int64 => Decl::integer(),
        FieldKind::Double => Decl::number(),
        FieldKind::Bytes => Decl { ty: Type::Bytes, shape: Shape::Bytes, ..Decl::string(None) },
        FieldKind::Time | FieldKind::MicroTime => {
            Decl { ty: Type::Timestamp, shape: Shape::DateTime, ..Decl::string(None) }
        }
        FieldKind::Message(id) => Arc::unwrap_or_clone(object(id, depth + 1)),
        // A number or a text, or JSON of any kind.
        _ => Decl::dynamic(),
    };
    match field.cardinality {
        Cardinality::One => one,
        Cardinality::List => Decl::list(one, ListKind::Atomic, None),
        Cardinality::Map => Decl::map(one, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_show_mistakes() {
        let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["*"]}]);
        for (rules, validation, wanted) in [
            (&rules, json!({"expression": "object.spec.replicas > 1"}), vec![]),
            (
                &rules,
                json!({"expression": "object.metadata.labels['a'] == 'b' && object.spec.template.spec.containers.all(c, c.image.startsWith('x'))"}),
                vec![],
            ),
            (
                &rules,
                json!({"expression": "object.spec.template.spec.containers[0].resources.limits['cpu'] == '1'"}),
                vec![],
            ),
            (
                &rules,
                json!({"expression": "object.spec.replicas > '1'"}),
                vec![(
                    "spec.validations[0].expression",
                    "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^\n",
                )],
            ),
            (
                &rules,
                json!({"expression": "object.spec.replica > 1"}),
                vec![(
                    "spec.validations[0].expression",
                    "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:12: undefined field 'replica'\n | object.spec.replica > 1\n | ...........^\n",
                )],
            ),
            (&rules, json!({"expression": "variables.count > 1"}), vec![]),
            (
                &rules,
                json!({"expression": "variables.count > '1'"}),
                vec![("spec.validations[0].expression", "(int, string)")],
            ),
            (
                &rules,
                json!({"expression": "true", "messageExpression": "'a' + object.spec.replicas"}),
                vec![("spec.validations[0].messageExpression", "'_+_' applied to '(string, int)'")],
            ),
            (
                &json!([{"apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["deployments"]}]),
                json!({"expression": "object.spec.replicas > '1'"}),
                vec![],
            ),
        ] {
            let policy = json!({"spec": {"matchConstraints": {"resourceRules": rules}, "validations": [validation],
                "variables": [{"name": "count", "expression": "object.spec.replicas"}]}});
            let warnings = expression_warnings(&Document::from_value(policy).unwrap());
            let got: Vec<(&str, &str)> = warnings
                .iter()
                .map(|one| (one["fieldRef"].as_str().unwrap(), one["warning"].as_str().unwrap()))
                .collect();
            assert_eq!(got.len(), wanted.len(), "{validation}: {got:?}");
            for ((field, text), (wanted_field, wanted_text)) in got.iter().zip(&wanted) {
                assert!(field == wanted_field && text.contains(wanted_text), "{validation}: {field} {text}");
            }
        }
    }
}
