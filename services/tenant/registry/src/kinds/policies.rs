//! ValidatingAdmissionPolicy, MutatingAdmissionPolicy and their bindings: defaults and checks.
//!
//! Expressions are compiled here, so that a mistake is told to whoever makes it; what they mean is
//! `tenant-admission`'s. Facts: upstream's `pkg/apis/admissionregistration/{v1/defaults.go,validation}`.

use std::collections::HashSet;

use api_machinery::Document;
use serde_json::{Map, Value};
use tenant_admission::policy::{Checker, Purpose};

use super::pod_defaults::{items, text};
use super::webhooks::{expression, match_conditions, match_rule};
use crate::strategy::{Generation, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{names, selector};

/// Annotations that one policy may add to an audit event.
const MAX_ANNOTATIONS: usize = 20;
const MAX_ANNOTATION_EXPRESSION: usize = 5 * 1024;

/// Policies.
pub(crate) struct Policies {
    pub(crate) mutating: bool,
}

impl Strategy for Policies {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        text(new.object_mut("spec"), "failurePolicy", "Fail");
        if self.mutating {
            text(new.object_mut("spec"), "reinvocationPolicy", "Never");
        }
        match_defaults(new.get_mut("spec.matchConstraints"));
    }
    fn validate(&self, new: &Document) -> Errors {
        self.check(new, None)
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        self.check(new, Some(old))
    }
}

impl Policies {
    fn check(&self, new: &Document, old: Option<&Document>) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        spec.get("failurePolicy").must_be_one_of(&mut errors, &["Fail", "Ignore"]);
        let kind = spec.get("paramKind");
        if kind.is_set() {
            param_kind(&kind, &mut errors);
        }
        let constraints = spec.get("matchConstraints");
        if constraints.is_set() {
            match_resources(&constraints, self.mutating, &mut errors);
            constraints.get("resourceRules").require(&mut errors);
        } else {
            errors.push(constraints.required(""));
        }
        let mut checker = Checker::new(kind.is_set());
        let conditions = |document: &Document| document.get("spec.matchConditions").cloned();
        if old.is_none_or(|old| conditions(old) != conditions(new)) {
            match_conditions(&spec.get("matchConditions"), &checker, &mut errors);
        }
        for variable in spec.get("variables").items() {
            let name = variable.get("name");
            if name.text().trim().is_empty() {
                errors.push(name.required("name is not specified"));
            } else if !is_identifier(name.text()) {
                errors.push(name.invalid("must be a valid CEL identifier"));
            }
            let source = variable.get("expression");
            if source.text().trim().is_empty() {
                errors.push(source.required("expression is not specified"));
            } else if let Err(why) = checker.variable(name.text(), source.text()) {
                errors.push(source.invalid(why));
            }
        }
        if self.mutating {
            mutations(&spec, &checker, &mut errors);
        } else {
            validations(new.name(), &spec, &checker, &mut errors);
        }
        errors
    }
}

fn is_identifier(name: &str) -> bool {
    let fits = |at: usize, c: char| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit());
    !name.is_empty() && name.char_indices().all(|(at, c)| fits(at, c)) && !api_cel::is_reserved(name)
}

fn param_kind(kind: &At<'_>, errors: &mut Errors) {
    let version = kind.get("apiVersion");
    if version.require(errors) {
        match version.text().split_once('/') {
            Some((_, rest)) if rest.contains('/') => {
                errors.push(version.invalid(format!("unexpected GroupVersion string: {}", version.text())));
            }
            Some((group, _)) if !group.is_empty() => {
                let reasons = names::dns_subdomain(group);
                errors.extend(reasons.into_iter().map(|why| version.field.invalid(group, why)));
            }
            _ => {}
        }
        if version.text().ends_with('/') {
            errors.push(version.invalid("version must be specified"));
        }
    }
    let name = kind.get("kind");
    if name.require(errors) {
        let reasons = names::dns_label(&name.text().to_ascii_lowercase());
        let told =
            reasons.into_iter().map(|why| format!("may have mixed case, but should otherwise match: {why}"));
        name.reasons(errors, told.collect());
    }
}

fn validations(policy: &str, spec: &At<'_>, checker: &Checker, errors: &mut Errors) {
    let (all, annotations) = (spec.get("validations"), spec.get("auditAnnotations"));
    if all.is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.extend([all.required(why), annotations.required(why)]);
        return;
    }
    for validation in all.items() {
        let source = validation.get("expression");
        expression(&source, checker, Purpose::Validation, "expression is not specified", errors);
        let message_source = validation.get("messageExpression");
        if !message_source.text().is_empty() {
            if message_source.text().trim().is_empty() {
                errors.push(message_source.invalid("must be non-empty if specified"));
            } else if let Err(why) = checker.check(Purpose::Message, message_source.text()) {
                errors.push(message_source.invalid(why));
            }
        }
        let message = validation.get("message");
        if !message.text().is_empty() && message.text().trim().is_empty() {
            errors.push(message.invalid("must be non-empty if specified"));
        } else if message.text().trim().contains(['\n', '\r']) {
            errors.push(message.invalid("must not contain line breaks"));
        }
        let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
        validation.get("reason").one_of(errors, &reasons);
    }
    if annotations.len() > MAX_ANNOTATIONS {
        errors
            .push(annotations.invalid(format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations")));
    }
    let mut keys = HashSet::new();
    for annotation in annotations.items() {
        let key = annotation.get("key");
        let whole = format!("{policy}/{}", key.text());
        let reasons = names::qualified_name(&whole);
        errors.extend(reasons.into_iter().map(|why| key.field.invalid(whole.as_str(), why)));
        let source = annotation.get("valueExpression");
        if source.text().trim().len() > MAX_ANNOTATION_EXPRESSION {
            errors.push(
                source.required(&format!("must not exceed {MAX_ANNOTATION_EXPRESSION} bytes in length")),
            );
        } else {
            expression(&source, checker, Purpose::Annotation, "valueExpression is not specified", errors);
        }
        if !keys.insert(key.text()) {
            errors.push(key.duplicate());
        }
    }
}

fn mutations(spec: &At<'_>, checker: &Checker, errors: &mut Errors) {
    let all = spec.get("mutations");
    if all.is_empty() {
        errors.push(all.required("mutations must contain at least one item"));
    }
    for mutation in all.items() {
        let kind = mutation.get("patchType");
        let (patch, config) = (mutation.get("jsonPatch"), mutation.get("applyConfiguration"));
        let (wanted, other, other_name, purpose) = match kind.text() {
            "JSONPatch" => (patch, config, "applyConfiguration", Purpose::JsonPatch),
            "ApplyConfiguration" => (config, patch, "jsonPatch", Purpose::Configuration),
            _ => {
                kind.must_be_one_of(errors, &["ApplyConfiguration", "JSONPatch"]);
                continue;
            }
        };
        if wanted.is_set() {
            expression(&wanted.get("expression"), checker, purpose, "", errors);
        } else {
            errors.push(wanted.required(&format!("must be specified when patchType is {}", kind.text())));
        }
        if other.is_set() {
            let why = format!("must not be specified when patchType is {}", kind.text());
            errors.push(other.field.invalid(format!("{{{other_name}}}"), why));
        }
    }
    spec.get("reinvocationPolicy").must_be_one_of(errors, &["IfNeeded", "Never"]);
}

/// Bindings of those policies.
pub(crate) struct PolicyBindings {
    pub(crate) mutating: bool,
}

impl Strategy for PolicyBindings {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        match_defaults(new.get_mut("spec.matchResources"));
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let policy = spec.get("policyName");
        if policy.require(&mut errors) {
            policy.reasons(&mut errors, names::dns_subdomain(policy.text()));
        }
        param_ref(&spec.get("paramRef"), &mut errors);
        let resources = spec.get("matchResources");
        if resources.is_set() {
            match_resources(&resources, self.mutating, &mut errors);
        }
        if !self.mutating {
            actions(&spec.get("validationActions"), &mut errors);
        }
        errors
    }
}

fn param_ref(reference: &At<'_>, errors: &mut Errors) {
    if !reference.is_set() {
        return;
    }
    let (name, selected) = (reference.get("name"), reference.get("selector"));
    if !name.is_empty() {
        name.reasons(errors, names::path_segment(name.text(), false));
    }
    match (name.is_empty(), selected.is_set()) {
        (false, true) => {
            let why = "name and selector are mutually exclusive";
            errors.extend([name.forbidden(why), selected.forbidden(why)]);
        }
        (true, false) => errors.push(reference.required("one of name or selector must be specified")),
        _ => {}
    }
    if selected.is_set() {
        errors.extend(selector::validate(Some(selected.value), &selected.field));
    }
    reference.get("parameterNotFoundAction").must_be_one_of(errors, &["Allow", "Deny"]);
}

fn actions(at: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for action in at.items() {
        action.one_of(errors, &["Audit", "Deny", "Warn"]);
        if !seen.insert(action.text()) {
            errors.push(action.duplicate());
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        errors.push(at.invalid("must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"));
    }
    if seen.is_empty() {
        errors.push(at.required("at least one validation action is required"));
    }
}

fn match_resources(at: &At<'_>, mutating: bool, errors: &mut Errors) {
    at.get("matchPolicy").must_be_one_of(errors, &["Equivalent", "Exact"]);
    for name in ["namespaceSelector", "objectSelector"] {
        let selected = at.get(name);
        errors.extend(selector::validate(Some(selected.value), &selected.field));
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in at.get(list).items() {
            let mut seen = HashSet::new();
            for name in rule.get("resourceNames").items() {
                name.reasons(errors, names::path_segment(name.text(), false));
                if !seen.insert(name.text()) {
                    errors.push(name.duplicate());
                }
            }
            match_rule(&rule, errors);
            if mutating && list == "resourceRules" {
                // Nothing else has an object that could be changed.
                for operation in rule.get("operations").items() {
                    let field = at.get("resourceRules").field.child("operations");
                    At::new(Some(operation.value), field).one_of(errors, &["CREATE", "UPDATE"]);
                }
            }
        }
    }
}

fn match_defaults(constraints: Option<&mut Value>) {
    let Some(Value::Object(constraints)) = constraints else { return };
    text(constraints, "matchPolicy", "Equivalent");
    for name in ["namespaceSelector", "objectSelector"] {
        constraints.entry(name).or_insert_with(|| Value::Object(Map::new()));
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for rule in items(constraints.get_mut(list)) {
            text(rule, "scope", "*");
        }
    }
}
