//! Webhook configurations and admission policies: defaults that decide what they match.

use api_machinery::Document;
use serde_json::{Map, Value, json};

use super::pod_defaults::{items, text};
use crate::strategy::{Generation, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{names, selector};

/// ValidatingWebhookConfiguration and MutatingWebhookConfiguration.
pub(crate) struct Webhooks {
    pub(crate) mutating: bool,
}

impl Strategy for Webhooks {
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
        let mut errors = Vec::new();
        let mut seen = std::collections::HashSet::new();
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

fn match_rule(rule: &At<'_>, errors: &mut Errors) {
    for name in ["operations", "apiGroups", "apiVersions", "resources"] {
        rule.get(name).require(errors);
    }
    for operation in rule.get("operations").items() {
        operation.one_of(errors, &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]);
    }
    rule.get("scope").one_of(errors, &["*", "Cluster", "Namespaced"]);
}

/// ValidatingAdmissionPolicy and MutatingAdmissionPolicy. Their expressions are compiled where they run.
pub(crate) struct Policies;

impl Strategy for Policies {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        text(new.object_mut("spec"), "failurePolicy", "Fail");
        match_defaults(new.get_mut("spec.matchConstraints"));
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        spec.get("failurePolicy").one_of(&mut errors, &["Fail", "Ignore"]);
        let constraints = spec.get("matchConstraints");
        if constraints.require(&mut errors) {
            let rules = constraints.get("resourceRules");
            rules.require(&mut errors);
            rules.items().for_each(|rule| match_rule(&rule, &mut errors));
        }
        for validation in spec.get("validations").items() {
            validation.get("expression").require(&mut errors);
        }
        errors
    }
}

/// Bindings of those policies.
pub(crate) struct PolicyBindings;

impl Strategy for PolicyBindings {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        match_defaults(new.get_mut("spec.matchResources"));
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        spec.get("policyName").require(&mut errors);
        for action in spec.get("validationActions").items() {
            action.one_of(&mut errors, &["Audit", "Deny", "Warn"]);
        }
        errors
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
