//! Roles and bindings. That nobody gives away more than they have is an admission plugin's business, since it
//! takes the authorizer; see `tenant-apiserver`.

use api_machinery::Document;
use serde_json::Value;

use super::pod_defaults::{items, text};
use crate::strategy::{NameRule, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{names, selector};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Role and ClusterRole.
pub(crate) struct Roles;

impl Strategy for Roles {
    fn names(&self) -> NameRule {
        NameRule::PathSegment
    }
    fn creates_on_update(&self) -> bool {
        true
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let namespaced = !new.namespace().is_empty();
        for rule in At::top(new, "rules").items() {
            let (verbs, paths) = (rule.get("verbs"), rule.get("nonResourceURLs"));
            if verbs.is_empty() {
                errors.push(verbs.required("verbs must contain at least one value"));
            }
            if !paths.is_empty() {
                if namespaced {
                    errors.push(paths.invalid("namespaced rules cannot apply to non-resource URLs"));
                }
                if ["apiGroups", "resources", "resourceNames"].iter().any(|name| !rule.get(name).is_empty()) {
                    errors.push(
                        paths.invalid("rules cannot apply to both regular resources and non-resource URLs"),
                    );
                }
                continue;
            }
            if rule.get("apiGroups").is_empty() {
                errors.push(
                    rule.get("apiGroups").required("resource rules must supply at least one api group"),
                );
            }
            if rule.get("resources").is_empty() {
                errors
                    .push(rule.get("resources").required("resource rules must supply at least one resource"));
            }
        }
        let aggregation = At::top(new, "aggregationRule");
        if aggregation.is_set() {
            let selectors = aggregation.get("clusterRoleSelectors");
            if selectors.is_empty() {
                errors.push(
                    selectors
                        .required("at least one clusterRoleSelector required if aggregationRule is non-nil"),
                );
            }
            for one in selectors.items() {
                errors.extend(selector::validate(Some(one.value), &one.field));
            }
        }
        errors
    }
}

/// RoleBinding and ClusterRoleBinding.
pub(crate) struct Bindings;

impl Strategy for Bindings {
    fn names(&self) -> NameRule {
        NameRule::PathSegment
    }
    fn creates_on_update(&self) -> bool {
        true
    }
    fn defaults(&self, new: &mut Document) {
        text(new.object_mut("roleRef"), "apiGroup", GROUP);
        for subject in items(new.0.get_mut("subjects")) {
            if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
                text(subject, "apiGroup", GROUP);
            }
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let cluster = new.namespace().is_empty();
        let role = At::top(new, "roleRef");
        if role.get("apiGroup").text() != GROUP {
            errors.push(role.get("apiGroup").unsupported(&[GROUP]));
        }
        role.get("kind")
            .must_be_one_of(&mut errors, if cluster { &["ClusterRole"] } else { &["Role", "ClusterRole"] });
        let name = role.get("name");
        if name.require(&mut errors) {
            name.reasons(&mut errors, names::path_segment(name.text(), false));
        }
        for subject in At::top(new, "subjects").items() {
            let name = subject.get("name");
            name.require(&mut errors);
            let group = subject.get("apiGroup");
            match subject.get("kind").text() {
                "ServiceAccount" => {
                    if !name.is_empty() {
                        name.reasons(&mut errors, names::dns_subdomain(name.text()));
                    }
                    if !group.is_empty() {
                        errors.push(group.unsupported(&[""]));
                    }
                    if cluster && subject.get("namespace").is_empty() {
                        errors.push(subject.get("namespace").required(""));
                    }
                }
                "User" | "Group" => {
                    if group.text() != GROUP {
                        errors.push(group.unsupported(&[GROUP]));
                    }
                }
                _ => errors.push(subject.get("kind").unsupported(&["ServiceAccount", "User", "Group"])),
            }
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        if new.0.get("roleRef") != old.0.get("roleRef") {
            let at = At::top(new, "roleRef");
            errors.push(at.invalid("cannot change roleRef"));
        }
        errors
    }
}
