//! Which requests a webhook or a policy is about.
//!
//! Rules name operations, groups, versions, resources and a scope, with wildcards; with `matchPolicy:
//! Equivalent` a rule also covers the other versions under which the same objects are served. Selectors look
//! at the labels of the namespace and of the object, old or new.
//! Facts: upstream's `plugin/webhook/predicates` and `plugin/policy/matching`.

use std::collections::BTreeMap;

use api_machinery::{Document, Gvk, Gvr, LabelSelector, Requirement, Status};
use serde_json::Value;

use crate::attributes::{Attributes, Operation};

const NAMESPACES: Gvr = Gvr::core("namespaces");
const OWN_GROUP: &str = "admissionregistration.k8s.io";

/// Requests that nothing a tenant configured may hold up.
///
/// The configurations themselves, or nobody could remove a broken one. Leases of nodes, since their silence
/// costs pods; and what loops of this process do so that the cluster goes on at all: their own Leases and the
/// end of a namespace.
pub(crate) fn is_exempt(attributes: &Attributes<'_>) -> bool {
    if &*attributes.gvk.group == OWN_GROUP {
        return [
            "ValidatingWebhookConfiguration",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
        ]
        .contains(&&*attributes.gvk.kind);
    }
    if attributes.is_under("coordination.k8s.io", "leases") {
        return attributes.internal || attributes.namespace == "kube-node-lease";
    }
    attributes.internal
        && attributes.is_under("", "namespaces")
        && matches!(attributes.subresource, "status" | "finalize")
}

/// Where a request matched: the resource and kind in whose version its objects are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Matched {
    pub(crate) gvr: Gvr,
    pub(crate) gvk: Gvk,
}

/// `RuleWithOperations`, and the names of `NamedRuleWithOperations`.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<(String, String)>,
    scope: Scope,
    /// Empty for all.
    names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
}

impl Rule {
    pub(crate) fn parse(value: &Value) -> Rule {
        let texts = |name: &str| -> Vec<String> {
            let all = value.get(name).and_then(Value::as_array).into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let split = |text: String| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text, String::new()),
        };
        Rule {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources").into_iter().map(split).collect(),
            scope: match value.get("scope").and_then(Value::as_str) {
                Some("Cluster") => Scope::Cluster,
                Some("Namespaced") => Scope::Namespaced,
                _ => Scope::All,
            },
            names: texts("resourceNames"),
        }
    }

    pub(crate) fn parse_all(value: Option<&Value>) -> Vec<Rule> {
        value.and_then(Value::as_array).into_iter().flatten().map(Rule::parse).collect()
    }

    /// As if the request were for `of`.
    fn matches(&self, attributes: &Attributes<'_>, of: &Gvr) -> bool {
        let has = |all: &[String], one: &str| all.iter().any(|each| each == "*" || each == one);
        let in_namespace = *of != NAMESPACES && !attributes.effective_namespace().is_empty();
        (self.scope == Scope::All || in_namespace == (self.scope == Scope::Namespaced))
            && has(&self.operations, attributes.operation.as_str())
            && has(&self.groups, &of.group)
            && has(&self.versions, &of.version)
            && self.resources.iter().any(|(resource, subresource)| {
                (resource == "*" || *resource == of.resource)
                    && (subresource == "*" || subresource == attributes.subresource)
            })
            && (self.names.is_empty() || self.names.iter().any(|name| name == attributes.name))
    }
}

/// Rules, selectors and how strictly they are taken.
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    pub(crate) rules: Vec<Rule>,
    /// Requests that are left out although a rule names them. Policies have these.
    pub(crate) excluded: Vec<Rule>,
    pub(crate) equivalent: bool,
    pub(crate) namespaces: Selector,
    pub(crate) objects: Selector,
}

impl Matcher {
    /// From a webhook, or from the `matchConstraints` or `matchResources` of a policy or binding.
    pub(crate) fn parse(value: &Value, rules: &str, excluded: Option<&str>) -> Matcher {
        Matcher {
            rules: Rule::parse_all(value.get(rules)),
            excluded: excluded.map(|name| Rule::parse_all(value.get(name))).unwrap_or_default(),
            equivalent: value.get("matchPolicy").and_then(Value::as_str) != Some("Exact"),
            namespaces: Selector::parse(value.get("namespaceSelector")),
            objects: Selector::parse(value.get("objectSelector")),
        }
    }

    /// Where the request matches, if it does. An error only if it would.
    pub(crate) fn matches(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Option<Matched>, Status> {
        // Rules first: they are cheap and rule most webhooks out.
        if self.find(&self.excluded, attributes).is_some() {
            return Ok(None);
        }
        let Some(matched) = self.find(&self.rules, attributes) else { return Ok(None) };
        if !self.selects(attributes, object, old)? {
            return Ok(None);
        }
        Ok(Some(matched))
    }

    /// For what has no rules of its own and so takes every request that its selectors take.
    pub(crate) fn matches_without_rules(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Option<Matched>, Status> {
        let fits =
            self.find(&self.excluded, attributes).is_none() && self.selects(attributes, object, old)?;
        Ok(fits.then(|| Matched { gvr: attributes.gvr.clone(), gvk: attributes.gvk.clone() }))
    }

    fn selects(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<bool, Status> {
        if !self.objects.is_everything() {
            let labelled = |one: Option<&Document>| {
                one.filter(|one| one.0.contains_key("metadata"))
                    .is_some_and(|one| self.objects.0.matches(&one.labels()))
            };
            if !labelled(object) && !labelled(old) {
                return Ok(false);
            }
        }
        let namespace = attributes.effective_namespace();
        let is_namespace = &*attributes.gvr.resource == "namespaces";
        if self.namespaces.is_everything() || (namespace.is_empty() && !is_namespace) {
            // What is in no namespace is exempted by none.
            return Ok(true);
        }
        let written = matches!(attributes.operation, Operation::Create | Operation::Update);
        let labels: BTreeMap<String, String> =
            match object.filter(|_| is_namespace && attributes.subresource.is_empty() && written) {
                // Stored are the old labels, if any.
                Some(object) => object.labels(),
                None => match attributes.lookup.get(&NAMESPACES, None, namespace) {
                    Some(found) => found.header.labels.clone(),
                    None => return Err(Status::not_found(&NAMESPACES, namespace)),
                },
            };
        Ok(self.namespaces.0.matches(&labels))
    }

    fn find(&self, rules: &[Rule], attributes: &Attributes<'_>) -> Option<Matched> {
        if rules.iter().any(|rule| rule.matches(attributes, attributes.gvr)) {
            return Some(Matched { gvr: attributes.gvr.clone(), gvk: attributes.gvk.clone() });
        }
        if !self.equivalent || rules.is_empty() {
            return None;
        }
        let others = attributes.lookup.equivalents(attributes.gvr);
        let own_kind = others.iter().find(|(gvr, _)| gvr == attributes.gvr).map(|(_, gvk)| gvk);
        // A subresource's body of another kind (a Binding, a Scale) is the same in all versions.
        let follows = own_kind == Some(attributes.gvk);
        // Earlier rules are honoured first.
        rules.iter().find_map(|rule| {
            let other = others
                .iter()
                .filter(|(gvr, _)| gvr != attributes.gvr)
                .find(|(gvr, _)| rule.matches(attributes, gvr));
            other.map(|(gvr, gvk)| Matched {
                gvr: gvr.clone(),
                gvk: if follows { gvk.clone() } else { attributes.gvk.clone() },
            })
        })
    }
}

/// `metav1.LabelSelector`. An absent one selects everything here, as its default does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector(LabelSelector);

impl Selector {
    pub(crate) fn parse(value: Option<&Value>) -> Selector {
        let mut requirements = Vec::new();
        let Some(value) = value else { return Selector::default() };
        let equal = value.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
        for (key, value) in equal {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement::In(key.clone(), vec![value]));
        }
        for expression in value.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values: Vec<String> = values.filter_map(Value::as_str).map(str::to_owned).collect();
            let key = text("key").to_owned();
            requirements.push(match text("operator") {
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::NotExists(key),
                // Others are refused when the object is made; what selects nothing is the safe reading.
                _ => Requirement::In(key, values),
            });
        }
        Selector(LabelSelector { requirements })
    }
    pub(crate) fn is_everything(&self) -> bool {
        self.0.is_everything()
    }
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, request};

    fn rule(
        operations: &[&str],
        groups: &[&str],
        versions: &[&str],
        resources: &[&str],
        scope: &str,
    ) -> Value {
        json!({"operations": operations, "apiGroups": groups, "apiVersions": versions, "resources": resources,
            "scope": scope})
    }

    #[test]
    fn rules_have_wildcards_scopes_and_subresources() {
        let pods = || rule(&["CREATE"], &[""], &["v1"], &["pods"], "*");
        let any = |resources: &[&str], scope: &str| rule(&["*"], &["*"], &["*"], resources, scope);
        for (rule, operation, of, subresource, namespace, wanted) in [
            (pods(), Operation::Create, "v1/pods", "", "ns", true),
            (pods(), Operation::Update, "v1/pods", "", "ns", false),
            (pods(), Operation::Create, "v1/pods", "eviction", "ns", false),
            (pods(), Operation::Create, "v1/services", "", "ns", false),
            (pods(), Operation::Create, "apps/v1/pods", "", "ns", false),
            (any(&["*"], "*"), Operation::Delete, "apps/v1/deployments", "", "ns", true),
            (any(&["*"], "*"), Operation::Update, "apps/v1/deployments", "scale", "ns", false),
            (any(&["*/*"], "*"), Operation::Update, "apps/v1/deployments", "scale", "ns", true),
            (any(&["*/*"], "*"), Operation::Update, "apps/v1/deployments", "", "ns", true),
            (any(&["*/scale"], "*"), Operation::Update, "apps/v1/deployments", "scale", "ns", true),
            (any(&["*/scale"], "*"), Operation::Update, "apps/v1/deployments", "", "ns", false),
            (any(&["deployments/*"], "*"), Operation::Update, "apps/v1/deployments", "status", "ns", true),
            (any(&["pods/attach"], "*"), Operation::Connect, "v1/pods", "attach", "ns", true),
            (any(&["*"], "Namespaced"), Operation::Create, "v1/pods", "", "ns", true),
            (any(&["*"], "Cluster"), Operation::Create, "v1/pods", "", "ns", false),
            (any(&["*"], "Cluster"), Operation::Create, "v1/nodes", "", "", true),
            (any(&["*"], "Namespaced"), Operation::Create, "v1/nodes", "", "", false),
            // Namespaces are in no namespace, though requests for them carry one.
            (any(&["*"], "Cluster"), Operation::Create, "v1/namespaces", "", "", true),
            (any(&["*"], "Namespaced"), Operation::Create, "v1/namespaces", "", "", false),
        ] {
            let cluster = Cluster::default();
            let request = request(&cluster, operation, of, subresource, namespace, "x");
            let matcher = Matcher::parse(&json!({"rules": [rule], "matchPolicy": "Exact"}), "rules", None);
            let got = matcher.matches(&request.attributes(), None, None).unwrap().is_some();
            assert_eq!(got, wanted, "{rule} {operation:?} {of} {subresource}");
        }
    }

    #[test]
    fn other_versions_are_covered_unless_told_otherwise() {
        for (policy, versions, of, wanted) in [
            (
                "Equivalent",
                "v2",
                "autoscaling/v1/horizontalpodautoscalers",
                Some("autoscaling/v2/horizontalpodautoscalers"),
            ),
            (
                "Equivalent",
                "v1",
                "autoscaling/v1/horizontalpodautoscalers",
                Some("autoscaling/v1/horizontalpodautoscalers"),
            ),
            ("Exact", "v2", "autoscaling/v1/horizontalpodautoscalers", None),
            ("Equivalent", "v3", "autoscaling/v1/horizontalpodautoscalers", None),
        ] {
            let cluster = Cluster::default();
            let request = request(&cluster, Operation::Create, of, "", "ns", "x");
            let rule = rule(&["CREATE"], &["autoscaling"], &[versions], &["horizontalpodautoscalers"], "*");
            let matcher = Matcher::parse(&json!({"rules": [rule], "matchPolicy": policy}), "rules", None);
            let got = matcher.matches(&request.attributes(), None, None).unwrap();
            assert_eq!(
                got.map(|matched| matched.gvr.to_string()).as_deref(),
                wanted,
                "{policy} {versions} {of}"
            );
        }
    }

    #[test]
    fn selectors_look_at_the_namespace_and_at_both_objects() {
        let mut cluster = Cluster::default();
        cluster.put("v1/namespaces", json!({"metadata": {"name": "ns", "labels": {"team": "blue"}}}));
        let labelled =
            |labels: Value| Document::from_value(json!({"metadata": {"name": "x", "labels": labels}}));
        let (red, none) = (labelled(json!({"color": "red"})), labelled(json!({})));
        let options = Document::from_value(json!({"kind": "PodExecOptions"}));
        let team = |team: &str| json!({"namespaceSelector": {"matchLabels": {"team": team}}});
        let color = |operator: &str| json!({"objectSelector": {"matchExpressions": [{"key": "color", "operator": operator, "values": ["red"]}]}});
        for (selectors, of, namespace, object, old, wanted) in [
            (team("blue"), "v1/pods", "ns", &none, &None, Ok(true)),
            (team("red"), "v1/pods", "ns", &none, &None, Ok(false)),
            (team("red"), "v1/nodes", "", &none, &None, Ok(true)),
            (team("blue"), "v1/pods", "gone", &none, &None, Err(404)),
            // A namespace's own labels, as they are to be.
            (
                json!({"namespaceSelector": {"matchLabels": {"color": "red"}}}),
                "v1/namespaces",
                "",
                &red,
                &none,
                Ok(true),
            ),
            (color("In"), "v1/pods", "ns", &red, &None, Ok(true)),
            (color("In"), "v1/pods", "ns", &none, &red, Ok(true)),
            (color("In"), "v1/pods", "ns", &none, &none, Ok(false)),
            (color("NotIn"), "v1/pods", "ns", &red, &none, Ok(true)),
            (color("NotIn"), "v1/pods", "ns", &red, &red, Ok(false)),
            (color("NotIn"), "v1/pods", "ns", &options, &None, Ok(false)),
        ] {
            let mut config = selectors.clone();
            config["rules"] = json!([rule(&["*"], &["*"], &["*"], &["*"], "*")]);
            let request = request(&cluster, Operation::Update, of, "", namespace, "ns");
            let matcher = Matcher::parse(&config, "rules", None);
            let got = matcher.matches(&request.attributes(), object.as_ref(), old.as_ref());
            let got = got.map(|matched| matched.is_some()).map_err(|status| status.code);
            assert_eq!(got, wanted, "{selectors} {of} {namespace}");
        }
    }

    #[test]
    fn what_keeps_a_cluster_going_is_exempt() {
        let cluster = Cluster::default();
        for (of, subresource, namespace, internal, wanted) in [
            ("admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "", "", false, true),
            ("admissionregistration.k8s.io/v1/validatingadmissionpolicies", "", "", false, true),
            ("coordination.k8s.io/v1/leases", "", "kube-node-lease", false, true),
            ("coordination.k8s.io/v1/leases", "", "default", false, false),
            ("coordination.k8s.io/v1/leases", "", "kube-system", true, true),
            ("v1/namespaces", "finalize", "", true, true),
            ("v1/namespaces", "finalize", "", false, false),
            ("v1/namespaces", "", "", true, false),
            ("v1/pods", "", "ns", true, false),
        ] {
            let mut request = request(&cluster, Operation::Update, of, subresource, namespace, "x");
            request.internal = internal;
            assert_eq!(is_exempt(&request.attributes()), wanted, "{of} {subresource} {internal}");
        }
    }
}
