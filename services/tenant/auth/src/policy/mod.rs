//! What RBAC starts with: the roles and bindings every Kubernetes cluster has.
//!
//! The tables are facts of upstream's bootstrap policy for 1.36 with default feature gates, in a notation
//! of their own: [`cluster`] for the roles of people, nodes and components, [`controllers`] for one role
//! and binding per controller, [`namespaced`] for what lives in a namespace, [`joining`] for what kubeadm
//! would add so that nodes can join. [`default_objects`] turns them into documents, the same bytes in
//! every cluster, so that the store keeps them once per process.
//!
//! Roles that aggregate others (`admin`, `edit`, `view`) come with their rules filled in: a cluster is
//! usable before its aggregation controller first runs, and the controller finds nothing to do.

mod cluster;
mod controllers;
mod joining;
mod namespaced;

use std::sync::LazyLock;

use api_machinery::{Document, Gvr};
use serde_json::{Map, Value, json};

use crate::rbac::Rule;

/// A rule as written in the tables: lists of words, `core` for the core group.
#[derive(Debug, Clone, Copy)]
struct Row {
    verbs: &'static str,
    groups: &'static str,
    resources: &'static str,
    names: &'static str,
    urls: &'static str,
}

const READ: &str = "get list watch";
const WRITE: &str = "create delete deletecollection patch update";
const READ_WRITE: &str = "create delete deletecollection get list patch update watch";
const READ_UPDATE: &str = "get list patch update watch";

/// `verbs` on `resources` in `groups`.
const fn on(verbs: &'static str, groups: &'static str, resources: &'static str) -> Row {
    Row { verbs, groups, resources, names: "", urls: "" }
}
/// Like [`on`], but only objects with these names.
const fn named(
    verbs: &'static str,
    groups: &'static str,
    resources: &'static str,
    names: &'static str,
) -> Row {
    Row { verbs, groups, resources, names, urls: "" }
}
/// Paths outside the resources.
const fn get(urls: &'static str) -> Row {
    Row { verbs: "get", groups: "", resources: "", names: "", urls }
}
/// Recording events, in both of their groups.
const EVENTS: Row = on("create patch update", "core events.k8s.io", "events");

#[derive(Debug, Clone, Copy)]
struct RoleRow {
    name: &'static str,
    /// `admin`, `edit` or `view`: the role that takes these rules over.
    into: &'static str,
    rules: &'static [Row],
}

const fn role(name: &'static str, rules: &'static [Row]) -> RoleRow {
    RoleRow { name, into: "", rules }
}

#[derive(Debug, Clone, Copy)]
struct BindingRow {
    name: &'static str,
    /// `ClusterRole/x` or `Role/x`.
    role: &'static str,
    /// `User:x`, `Group:x`, `ServiceAccount:namespace:x`, separated by spaces.
    subjects: &'static str,
}

const fn bind(name: &'static str, role: &'static str, subjects: &'static str) -> BindingRow {
    BindingRow { name, role, subjects }
}

/// Roles, bindings and whether they are upstream's own (labelled, and kept up to date by upstream).
struct Table {
    namespace: &'static str,
    roles: &'static [RoleRow],
    bindings: &'static [BindingRow],
    upstream: bool,
}

const GROUP: &str = "rbac.authorization.k8s.io";

/// All default objects with the resource each belongs to, in an order in which they may be created.
///
/// They carry no uid, creationTimestamp or resourceVersion: the caller stamps them.
pub fn default_objects() -> Vec<(Gvr, Document)> {
    DEFAULTS.clone()
}

/// What every node may do regardless of which: the rules of `system:node`.
pub(crate) fn node_rules() -> Vec<Rule> {
    let rows =
        cluster::ROLES.iter().find(|role| role.name == "system:node").map_or(&[][..], |role| role.rules);
    rows.iter().map(Row::rule).collect()
}

static DEFAULTS: LazyLock<Vec<(Gvr, Document)>> = LazyLock::new(|| {
    let gvr = |resource| Gvr::new(GROUP, "v1", resource);
    let mut objects = Vec::new();
    for (name, labels, from) in aggregates() {
        objects.push((gvr("clusterroles"), aggregate(name, labels, &from)));
    }
    let tables = [
        &cluster::TABLE,
        &namespaced::SYSTEM,
        &namespaced::PUBLIC,
        &joining::CLUSTER,
        &joining::SYSTEM,
        &joining::PUBLIC,
    ];
    for table in tables {
        let scoped = !table.namespace.is_empty();
        let (roles, bindings) =
            if scoped { ("roles", "rolebindings") } else { ("clusterroles", "clusterrolebindings") };
        for row in table.roles {
            objects.push((gvr(roles), role_document(row, table)));
        }
        for row in table.bindings {
            objects.push((gvr(bindings), binding_document(row.name, row.role, row.subjects, table)));
        }
    }
    for row in controllers::ROLES {
        objects.push((gvr("clusterroles"), role_document(row, &cluster::TABLE)));
        let account = row.name.trim_start_matches("system:controller:");
        let subject = format!("ServiceAccount:kube-system:{account}");
        let role = format!("ClusterRole/{}", row.name);
        objects
            .push((gvr("clusterrolebindings"), binding_document(row.name, &role, &subject, &cluster::TABLE)));
    }
    objects
});

/// The aggregated roles: name, the role they go into in turn, and the roles whose rules they take, in the
/// order in which the aggregation controller takes them (by name).
fn aggregates() -> [(&'static str, &'static str, Vec<Rule>); 3] {
    let rules = |into: &str| -> Vec<Rule> {
        let rows = cluster::ROLES.iter().filter(|role| role.into == into).flat_map(|role| role.rules);
        rows.map(Row::rule).collect()
    };
    let view = rules("view");
    let mut edit = rules("edit");
    extend_new(&mut edit, &view);
    let mut admin = edit.clone();
    extend_new(&mut admin, &rules("admin"));
    [("view", "edit", view), ("edit", "admin", edit), ("admin", "", admin)]
}

fn extend_new(rules: &mut Vec<Rule>, more: &[Rule]) {
    for rule in more {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
}

fn aggregate(name: &str, into: &str, rules: &[Rule]) -> Document {
    let selector = json!([{"matchLabels": {format!("{GROUP}/aggregate-to-{name}"): "true"}}]);
    let mut document = document("ClusterRole", metadata(name, "", into, true));
    document.set("aggregationRule", json!({"clusterRoleSelectors": selector}));
    document.set("rules", rules_value(rules));
    document
}

fn role_document(row: &RoleRow, table: &Table) -> Document {
    let kind = if table.namespace.is_empty() { "ClusterRole" } else { "Role" };
    let mut document = document(kind, metadata(row.name, table.namespace, row.into, table.upstream));
    let rules: Vec<Rule> = row.rules.iter().map(Row::rule).collect();
    document.set("rules", rules_value(&rules));
    document
}

fn binding_document(name: &str, role: &str, subjects: &str, table: &Table) -> Document {
    let kind = if table.namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    let (role_kind, role_name) = role.split_once('/').unwrap_or(("ClusterRole", role));
    let mut document = document(kind, metadata(name, table.namespace, "", table.upstream));
    document.set("roleRef", json!({"apiGroup": GROUP, "kind": role_kind, "name": role_name}));
    let subjects: Vec<Value> = subjects
        .split_whitespace()
        .filter_map(|subject| {
            let (kind, name) = subject.split_once(':')?;
            Some(match (kind, name.split_once(':')) {
                ("ServiceAccount", Some((namespace, name))) => {
                    json!({"kind": kind, "name": name, "namespace": namespace})
                }
                _ => json!({"apiGroup": GROUP, "kind": kind, "name": name}),
            })
        })
        .collect();
    if !subjects.is_empty() {
        document.set("subjects", subjects);
    }
    document
}

fn document(kind: &str, metadata: Map<String, Value>) -> Document {
    let mut document = Document::default();
    document.set("apiVersion", format!("{GROUP}/v1"));
    document.set("kind", kind);
    document.set("metadata", metadata);
    document
}

fn metadata(name: &str, namespace: &str, into: &str, upstream: bool) -> Map<String, Value> {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), name.into());
    if !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    if upstream {
        let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
        if !into.is_empty() {
            labels[format!("{GROUP}/aggregate-to-{into}")] = "true".into();
        }
        metadata.insert("labels".to_owned(), labels);
        metadata
            .insert("annotations".to_owned(), json!({"rbac.authorization.kubernetes.io/autoupdate": "true"}));
    }
    metadata
}

fn rules_value(rules: &[Rule]) -> Value {
    // A rule is strings in lists; nothing of it can fail to be JSON.
    serde_json::to_value(rules).unwrap_or_default()
}

impl Row {
    fn rule(&self) -> Rule {
        let words = |text: &str| -> Vec<String> {
            text.split_whitespace()
                .map(|word| if word == "core" { String::new() } else { word.to_owned() })
                .collect()
        };
        Rule {
            verbs: words(self.verbs),
            api_groups: words(self.groups),
            resources: words(self.resources),
            resource_names: words(self.names),
            non_resource_urls: words(self.urls),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_default_object_is_whole_and_named_once() {
        let objects = default_objects();
        let mut seen = BTreeSet::new();
        for (gvr, document) in &objects {
            let key = (gvr.resource.to_string(), document.namespace().to_owned(), document.name().to_owned());
            assert!(seen.insert(key.clone()), "{key:?} twice");
            if let Some(rules) = document.get("rules") {
                for rule in rules.as_array().unwrap() {
                    let rule: Rule = serde_json::from_value(rule.clone()).unwrap();
                    assert!(!rule.verbs.is_empty(), "{key:?}");
                    assert_eq!(rule.resources.is_empty(), !rule.non_resource_urls.is_empty(), "{key:?}");
                    assert_eq!(rule.resources.is_empty(), rule.api_groups.is_empty(), "{key:?}");
                }
            }
        }
        // Every binding's role is among them.
        for (gvr, document) in objects.iter().filter(|(gvr, _)| gvr.resource.ends_with("bindings")) {
            let (resource, namespace) = match document.get_str("roleRef.kind").unwrap() {
                "ClusterRole" => ("clusterroles", ""),
                _ => ("roles", document.namespace()),
            };
            let name = document.get_str("roleRef.name").unwrap();
            let wanted = (resource.to_owned(), namespace.to_owned(), name.to_owned());
            assert!(seen.contains(&wanted), "{} {} refers to {wanted:?}", gvr.resource, document.name());
        }
    }

    #[test]
    fn aggregated_roles_hold_the_rules_of_their_parts() {
        let objects = default_objects();
        let rules = |name: &str| -> Vec<Rule> {
            let (_, document) = objects
                .iter()
                .find(|(_, document)| document.name() == name && document.kind() == "ClusterRole")
                .unwrap();
            serde_json::from_value(document.get("rules").unwrap().clone()).unwrap()
        };
        for (whole, part) in [
            ("admin", "edit"),
            ("edit", "view"),
            ("admin", "system:aggregate-to-admin"),
            ("edit", "system:aggregate-to-edit"),
            ("view", "system:aggregate-to-view"),
        ] {
            let whole_rules = rules(whole);
            assert!(rules(part).iter().all(|rule| whole_rules.contains(rule)), "{whole} ⊇ {part}");
        }
    }
}
