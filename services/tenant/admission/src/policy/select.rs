//! Which policies a request meets, through which bindings and with which parameters.
//!
//! Facts: upstream's `plugin/policy/generic/policy_dispatcher.go` and `plugin/policy/matching`.

use std::sync::Arc;

use api_machinery::{Document, Gvr, Object};
use serde_json::Value;

use super::definition::{Binding, Policy};
use crate::attributes::Attributes;
use crate::matching::{Matched, Matcher};
use crate::parsed::Parsed;

/// One cluster's policies of one kind, and their bindings.
pub(super) struct Policies {
    of: Gvr,
    bindings_of: Gvr,
    policies: Parsed<Policy>,
    bindings: Parsed<Binding>,
}

impl Policies {
    pub(super) fn new(of: Gvr, bindings_of: Gvr) -> Policies {
        Policies { of, bindings_of, policies: Parsed::default(), bindings: Parsed::default() }
    }

    /// Policies with their bindings, in the order of names. What nobody binds does nothing.
    pub(super) fn bound(&self, attributes: &Attributes<'_>) -> Vec<(Arc<Policy>, Vec<Arc<Binding>>)> {
        let stored = attributes.lookup.list(&self.of, None);
        let policies = self.policies.of(&stored, Policy::parse);
        if policies.is_empty() {
            return Vec::new();
        }
        let stored = attributes.lookup.list(&self.bindings_of, None);
        let bindings = self.bindings.of(&stored, Binding::parse);
        policies
            .into_iter()
            .map(|policy| {
                let own = bindings.iter().filter(|binding| binding.policy == policy.name);
                let own: Vec<_> = own.cloned().collect();
                (policy, own)
            })
            .filter(|(_, bindings)| !bindings.is_empty())
            .collect()
    }
}

/// Where a request matches, where no rules are all rules.
pub(super) fn matches(
    matcher: &Matcher,
    attributes: &Attributes<'_>,
    object: Option<&Document>,
    old: Option<&Document>,
) -> Result<Option<Matched>, String> {
    let outcome = if matcher.rules.is_empty() {
        matcher.matches_without_rules(attributes, object, old)
    } else {
        matcher.matches(attributes, object, old)
    };
    outcome.map_err(|status| status.message)
}

/// The parameters a binding runs with, in JSON with apiVersion and kind. One `None` for a run without; nothing
/// at all when there are none and that is to be let through.
pub(super) fn params(
    policy: &Policy,
    binding: &Binding,
    attributes: &Attributes<'_>,
) -> Result<Vec<Option<Value>>, String> {
    let (true, Some(reference)) = (policy.has_params(), &binding.params) else { return Ok(vec![None]) };
    let unknown = || format!("paramKind kind `{}` not known", policy.param_kind_text);
    let kind = policy.param_kind.as_ref().ok_or_else(unknown)?;
    let (of, namespaced) = attributes.lookup.resource_of(kind).ok_or_else(unknown)?;
    let own = attributes.effective_namespace();
    let namespace = match (namespaced, reference.namespace.as_str()) {
        (true, "") if own.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                    .to_owned(),
            );
        }
        (true, "") => Some(own),
        (true, named) => Some(named),
        (false, "") => None,
        (false, _) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
    };
    let found: Vec<Arc<Object>> = if !reference.name.is_empty() {
        attributes.lookup.get(&of, namespace, &reference.name).into_iter().collect()
    } else if let Some(selector) = &reference.selector {
        let all = attributes.lookup.list(&of, namespace);
        all.into_iter().filter(|one| selector.matches(&one.header.labels)).collect()
    } else {
        return Err("one of name or selector must be provided".to_owned());
    };
    if found.is_empty() && reference.required {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let whole = |object: Arc<Object>| {
        let mut document = object.to_document().map_err(|cause| cause.to_string())?;
        document.set("apiVersion", kind.api_version());
        document.set("kind", kind.kind.to_string());
        Ok(Some(document.into_value()))
    };
    found.into_iter().map(whole).collect()
}

/// The Namespace that a request is in, for `namespaceObject`. A request for a Namespace itself is in none.
pub(super) fn namespace_of(attributes: &Attributes<'_>) -> Result<Option<Document>, api_machinery::Status> {
    const NAMESPACES: Gvr = Gvr::core("namespaces");
    let namespace = attributes.namespace;
    if namespace.is_empty() || attributes.is_under("", "namespaces") {
        return Ok(None);
    }
    let found = attributes.lookup.get(&NAMESPACES, None, namespace);
    let found = found.ok_or_else(|| api_machinery::Status::not_found(&NAMESPACES, namespace))?;
    let document = found.to_document().map_err(|cause| api_machinery::Status::internal(cause.to_string()))?;
    Ok(Some(document))
}
