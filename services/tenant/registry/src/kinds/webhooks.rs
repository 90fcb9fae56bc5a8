//! Webhook configurations: defaults that decide what they match, and what is checked when they are written.
//!
//! Facts: upstream's `pkg/apis/admissionregistration/{v1/defaults.go,validation}`. Policies, which share rules
//! and match conditions with them, are in `policies`.

use std::collections::HashSet;

use api_machinery::{Document, Field};
use serde_json::{Value, json};
use tenant_admission::policy::{Checker, Purpose};

use super::pod_defaults::{items, text};
use crate::strategy::{Generation, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{names, selector};

/// ValidatingWebhookConfiguration and MutatingWebhookConfiguration.
pub(crate) struct Webhooks {
    pub(crate) mutating: bool,
}

impl Strategy for Webhooks {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn generation(&self) -> Generation {
        Generation::OnContent
    }
    fn defaults(&self, new: &mut Document) {
        for webhook in items(new.0.get_mut("webhooks")) {
            text(webhook, "failurePolicy", "Fail");
            text(webhook, "matchPolicy", "Equivalent");
            for name in ["namespaceSelector", "objectSelector"] {
                webhook.entry(name).or_insert_with(|| json!({}));
            }
            webhook.entry("timeoutSeconds").or_insert_with(|| 10.into());
            if self.mutating {
                text(webhook, "reinvocationPolicy", "Never");
            }
            for rule in items(webhook.get_mut("rules")) {
                text(rule, "scope", "*");
            }
            if let Some(Value::Object(client)) = webhook.get_mut("clientConfig")
                && let Some(Value::Object(service)) = client.get_mut("service")
            {
                service.entry("port").or_insert_with(|| 443.into());
            }
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        self.check(new, None)
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        self.check(new, Some(old))
    }
}

impl Webhooks {
    fn check(&self, new: &Document, old: Option<&Document>) -> Errors {
        let mut errors = Vec::new();
        let mut seen = HashSet::new();
        // Conditions that were stored once stay good, whatever the compiler has learnt since.
        let conditions = |document: &Document| -> Vec<Value> {
            let hooks = document.get_array("webhooks").iter();
            hooks.map(|hook| hook.get("matchConditions").cloned().unwrap_or_default()).collect()
        };
        let unchanged = old.is_some_and(|old| conditions(old) == conditions(new));
        for webhook in At::top(new, "webhooks").items() {
            let name = webhook.get("name");
            if name.require(&mut errors) {
                name.reasons(&mut errors, names::dns_subdomain(name.text()));
                if name.text().split('.').count() < 3 {
                    errors.push(
                        name.invalid("should be a domain with at least three segments separated by dots"),
                    );
                }
                if !seen.insert(name.text()) {
                    errors.push(name.duplicate());
                }
            }
            webhook.get("failurePolicy").one_of(&mut errors, &["Fail", "Ignore"]);
            webhook.get("matchPolicy").one_of(&mut errors, &["Equivalent", "Exact"]);
            webhook.get("reinvocationPolicy").one_of(&mut errors, &["IfNeeded", "Never"]);
            let effects = webhook.get("sideEffects");
            if effects.is_empty() {
                errors.push(effects.required("must specify one of None, NoneOnDryRun"));
            } else {
                effects.one_of(&mut errors, &["None", "NoneOnDryRun"]);
            }
            let timeout = webhook.get("timeoutSeconds");
            if timeout.int().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
                errors.push(timeout.invalid("the timeout value must be between 1 and 30 seconds"));
            }
            let versions = webhook.get("admissionReviewVersions");
            if versions.is_empty() {
                errors.push(versions.required("must specify one of v1, v1beta1"));
            } else if !versions.items().any(|one| matches!(one.text(), "v1" | "v1beta1")) {
                errors.push(versions.invalid("must include at least one of v1, v1beta1"));
            }
            for name in ["namespaceSelector", "objectSelector"] {
                let at = webhook.get(name);
                errors.extend(selector::validate(Some(at.value), &at.field));
            }
            client_config(&webhook.get("clientConfig"), &mut errors);
            for rule in webhook.get("rules").items() {
                match_rule(&rule, &mut errors);
            }
            if !unchanged {
                match_conditions(&webhook.get("matchConditions"), &Checker::new(false), &mut errors);
            }
        }
        errors
    }
}

fn client_config(client: &At<'_>, errors: &mut Errors) {
    let (url, service) = (client.get("url"), client.get("service"));
    match (url.is_set(), service.is_set()) {
        (true, true) | (false, false) => {
            errors.push(client.required("exactly one of url or service is required"));
        }
        (true, false) => {
            if !url.text().starts_with("https://") {
                errors.push(
                    url.invalid(
                        "'https' is the only allowed URL scheme; desired format: https://host[/path]",
                    ),
                );
            }
        }
        (false, true) => {
            service.get("name").require(errors);
            service.get("namespace").require(errors);
            let port = service.get("port");
            port.reasons(errors, names::port_number(port.int().unwrap_or(443)));
        }
    }
}

/// `RuleWithOperations`.
pub(super) fn match_rule(rule: &At<'_>, errors: &mut Errors) {
    let alone = |at: &At<'_>, what: &str, errors: &mut Errors| {
        if at.len() > 1 && at.items().any(|one| one.text() == "*") {
            errors.push(at.invalid(format!("if '*' is present, must not specify other {what}")));
        }
    };
    let operations = rule.get("operations");
    operations.require(errors);
    alone(&operations, "operations", errors);
    for operation in operations.items() {
        operation.one_of(errors, &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]);
    }
    let (groups, versions) = (rule.get("apiGroups"), rule.get("apiVersions"));
    groups.require(errors);
    alone(&groups, "API groups", errors);
    versions.require(errors);
    alone(&versions, "API versions", errors);
    for version in versions.items() {
        version.require(errors);
    }
    resources(&rule.get("resources"), errors);
    rule.get("scope").one_of(errors, &["*", "Cluster", "Namespaced"]);
}

/// Each of `pods`, `pods/status`, `pods/*`, `*/scale`, `*` and `*/*` covers some of the others, and what is covered
/// is not to be named as well.
fn resources(at: &At<'_>, errors: &mut Errors) {
    at.require(errors);
    let (mut whole, mut parts) = (HashSet::new(), HashSet::new());
    let (mut everything, mut all_plain, mut some_plain) = (false, false, false);
    for one in at.items() {
        let text = one.text();
        if !one.require(errors) {
            continue;
        }
        everything |= text == "*/*";
        all_plain |= text == "*";
        let Some((resource, part)) = text.split_once('/') else {
            some_plain = text != "*";
            continue;
        };
        if whole.contains(resource) {
            errors.push(one.invalid(format!("if '{resource}/*' is present, must not specify {text}")));
        }
        if parts.contains(part) {
            errors.push(one.invalid(format!("if '*/{part}' is present, must not specify {text}")));
        }
        if part == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            parts.insert(part);
        }
    }
    if at.len() > 1 && everything {
        errors.push(at.invalid("if '*/*' is present, must not specify other resources"));
    }
    if all_plain && some_plain {
        errors.push(at.invalid("if '*' is present, must not specify other resources without subresources"));
    }
}

/// `matchConditions`, of webhooks and of policies.
pub(super) fn match_conditions(at: &At<'_>, checker: &Checker, errors: &mut Errors) {
    if at.len() > 64 {
        errors.push(at.field.too_many(at.len(), 64));
    }
    let mut names = HashSet::new();
    for condition in at.items() {
        let source = condition.get("expression");
        let trimmed = source.text().trim();
        if trimmed.is_empty() {
            errors.push(source.required(""));
        } else if let Err(why) = checker.check(Purpose::MatchCondition, trimmed) {
            errors.push(source.field.invalid(trimmed, why));
        }
        let name = condition.get("name");
        if name.require(errors) {
            name.reasons(errors, names::qualified_name(name.text()));
            if !names.insert(name.text()) {
                errors.push(name.duplicate());
            }
        }
    }
}

/// One expression of a policy, that must be there.
pub(super) fn expression(
    at: &At<'_>,
    checker: &Checker,
    purpose: Purpose,
    absent: &str,
    errors: &mut Errors,
) {
    if at.text().trim().is_empty() {
        errors.push(at.required(absent));
    } else if let Err(why) = checker.check(purpose, at.text()) {
        errors.push(Field::new(at.field.as_str()).invalid(at.text(), why));
    }
}
