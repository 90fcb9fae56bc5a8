//! MutatingAdmissionPolicy.
//!
//! Facts: upstream's `plugin/policy/mutating` (`dispatcher.go`, `patch/json_patch.go`, `patch/smd.go`).

use api_cel::{Budget, Value as Cel, limits};
use api_machinery::{Cause, Document, Gvr, Reason, Status};
use async_trait::async_trait;
use serde_json::{Map, Value};

use super::definition::{Mutation, Policy};
use super::select::{Policies, matches, namespace_of, params};
use super::validating::is_review;
use crate::attributes::{Attributes, Operation};
use crate::chain::Admission;
use crate::expression::{Scope, Seen};
use crate::matching::{Matched, is_exempt};
use crate::reinvocation::Who;
use crate::versions::{check_identity, in_version};
use crate::webhook::take_over;

/// One cluster's mutating policies.
pub struct MutatingPolicies(Policies);

impl Default for MutatingPolicies {
    fn default() -> MutatingPolicies {
        let of = |resource| Gvr::new("admissionregistration.k8s.io", "v1", resource);
        MutatingPolicies(Policies::new(
            of("mutatingadmissionpolicies"),
            of("mutatingadmissionpolicybindings"),
        ))
    }
}

/// One use of a policy for this request.
struct Invocation<'a> {
    policy: &'a Policy,
    binding: &'a str,
    matched: Matched,
    params: Option<Value>,
}

impl Invocation<'_> {
    fn id(&self) -> String {
        let name = |path: &str| self.params.as_ref().and_then(|params| params.pointer(path)?.as_str());
        let (namespace, param) = (name("/metadata/namespace"), name("/metadata/name"));
        format!(
            "{}/{}/{}/{}",
            self.policy.name,
            self.binding,
            namespace.unwrap_or_default(),
            param.unwrap_or_default()
        )
    }
}

#[async_trait]
impl Admission for MutatingPolicies {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        old: Option<&Document>,
    ) -> Result<(), Status> {
        let all = self.0.bound(attributes);
        if all.is_empty() || is_exempt(attributes) || is_review(attributes) {
            return Ok(());
        }
        // Only what is created or updated can be changed.
        let written = matches!(attributes.operation, Operation::Create | Operation::Update);
        let Some(object) = object.filter(|_| written) else { return Ok(()) };
        let mut problems: Vec<String> = Vec::new();
        let mut invocations = Vec::new();
        for (policy, bindings) in &all {
            let mut fail = |binding: Option<&str>, why: String| {
                if policy.fails_closed {
                    problems.push(worded(&policy.name, binding, &why));
                }
            };
            let matched = match matches(&policy.matcher, attributes, Some(object), old) {
                Ok(Some(matched)) => matched,
                Ok(None) => continue,
                Err(why) => {
                    fail(None, format!("failed to configure policy: {why}"));
                    continue;
                }
            };
            for binding in bindings {
                let narrowed = match &binding.matcher {
                    Some(matcher) => {
                        matches(matcher, attributes, Some(object), old).map(|found| found.is_some())
                    }
                    None => Ok(true),
                };
                let found = match narrowed {
                    Ok(false) => continue,
                    Ok(true) => params(policy, binding, attributes),
                    Err(why) => Err(why),
                };
                match found {
                    Ok(found) => invocations.extend(found.into_iter().map(|params| Invocation {
                        policy,
                        binding: &binding.name,
                        matched: matched.clone(),
                        params,
                    })),
                    Err(why) => fail(Some(&binding.name), format!("failed to configure binding: {why}")),
                }
            }
        }
        if !invocations.is_empty() {
            attributes.reinvocation.enter(Who::Policies, Some(object));
            let namespace = namespace_of(attributes)?;
            for invocation in &invocations {
                let outcome = invoke(attributes, invocation, object, old, namespace.as_ref()).await?;
                if let Some(why) = outcome.filter(|_| invocation.policy.fails_closed) {
                    problems.push(worded(&invocation.policy.name, Some(invocation.binding), &why));
                }
            }
            attributes.reinvocation.leave(Who::Policies, Some(object));
        }
        let Some(first) = problems.first() else { return Ok(()) };
        let mut status = attributes.forbidden("admission request denied by policy");
        status.message = first.clone();
        status.reason = Some(Reason::Invalid);
        for message in problems {
            status = status.with_cause(Cause { message, ..Cause::default() });
        }
        Err(status)
    }
}

fn worded(policy: &str, binding: Option<&str>, why: &str) -> String {
    match binding {
        Some(binding) => format!("policy '{policy}' with binding '{binding}' denied request: {why}"),
        None => format!("policy {policy:?} denied request: {why}"),
    }
}

/// Applies one policy's mutations. Gives what went wrong, for the failure policy to judge; an error ends the
/// request whatever that says.
async fn invoke(
    attributes: &Attributes<'_>,
    invocation: &Invocation<'_>,
    object: &mut Document,
    old: Option<&Document>,
    namespace: Option<&Document>,
) -> Result<Option<String>, Status> {
    let Invocation { policy, matched, params, .. } = invocation;
    let mut shown = in_version(attributes, object, &matched.gvk).await?;
    let shown_old = match old {
        Some(old) => Some(in_version(attributes, old, &matched.gvk).await?),
        None => None,
    };
    let before = shown.clone();
    let mut seen = Seen::new(attributes, matched, Some(&shown), shown_old.as_ref(), namespace);
    if !policy.conditions.is_empty() {
        match policy.conditions.hold(&seen, params.as_ref(), &policy.variables) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(why) => return Ok(Some(why)),
        }
    }
    let id = invocation.id();
    if attributes.reinvocation.skips(Who::Policies, &id) {
        return Ok(None);
    }
    let by = format!("policy {:?}", policy.name);
    let mut problem = None;
    for mutation in &policy.mutations {
        // Computed in one go, so that nothing of CEL is held while a conversion is waited for.
        let outcome = {
            let scope = Scope::new(&seen, params.as_ref(), &policy.variables);
            mutated(attributes, matched, mutation, &scope, &shown)
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(mut patched)) => {
                check_identity(&patched, &shown, &by)?;
                // Each mutation sees what the one before it made, defaults included.
                if patched != shown {
                    settle(attributes, matched, &mut patched)?;
                    shown = patched;
                    seen.set_object(&shown);
                }
            }
            Err(why) => {
                problem.get_or_insert(why);
            }
        }
    }
    if shown != before {
        take_over(attributes, matched, &mut shown, object).await?;
        attributes.reinvocation.changed(Who::Policies);
    }
    if policy.repeats {
        attributes.reinvocation.may_repeat(Who::Policies, &id);
    }
    Ok(problem)
}

fn settle(attributes: &Attributes<'_>, matched: &Matched, patched: &mut Document) -> Result<(), Status> {
    let served = attributes.lookup.equivalents(&matched.gvr);
    if served.iter().any(|(gvr, gvk)| (gvr, gvk) == (&matched.gvr, &matched.gvk)) {
        attributes.lookup.settle(&matched.gvr, patched)?;
    }
    Ok(())
}

/// The object as one mutation makes it; `None` where a `test` of its patch says no.
fn mutated<'a>(
    attributes: &Attributes<'_>,
    matched: &Matched,
    mutation: &'a Mutation,
    scope: &Scope<'a>,
    shown: &Document,
) -> Result<Option<Document>, String> {
    let mut budget = Budget::new(limits::RUNTIME_BUDGET);
    let (Mutation::JsonPatch(expression) | Mutation::Apply(expression)) = mutation;
    if let Err(why) = &expression.program {
        return Err(why.clone());
    }
    let value =
        scope.eval(&expression.source, &expression.program, &mut budget).map_err(|why| why.to_string())?;
    match mutation {
        Mutation::JsonPatch(_) => json_patch(&value, shown),
        Mutation::Apply(_) => {
            check_names(&value, "Object").map_err(|why| format!("type mismatch: {why}"))?;
            let config = value.to_json().map_err(|cause| cause.0)?;
            let mut config = Document::from_value(config)
                .ok_or_else(|| "unsupported return type from ApplyConfiguration expression".to_owned())?;
            config.set("apiVersion", shown.api_version());
            config.set("kind", shown.kind());
            let merged = attributes.lookup.merge(&matched.gvr, shown, &config);
            merged.map(Some).map_err(|why| format!("error applying patch: {why}"))
        }
    }
}

/// The operations of `[JSONPatch{...}]`, applied.
fn json_patch(value: &Cel<'_>, shown: &Document) -> Result<Option<Document>, String> {
    let Cel::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut operations = Vec::with_capacity(list.len().min(1024));
    for item in list.iter() {
        let item = item.map_err(|cause| cause.to_string())?;
        let Cel::Struct(patch) = &item else {
            return Err(format!(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {}",
                item.type_name()
            ));
        };
        let mut operation = Map::new();
        for name in ["op", "path", "from"] {
            let text = patch.get(name).and_then(Cel::as_str).unwrap_or_default();
            if name != "from" || !text.is_empty() {
                operation.insert(name.to_owned(), text.into());
            }
        }
        if let Some(value) = patch.get("value") {
            if let Cel::Struct(object) = value {
                check_names(value, &object.name).map_err(|why| format!("type mismatch: {why}"))?;
            }
            let value = value.to_json().map_err(|cause| {
                format!(
                    "JSONPath valueExpression evaluated to a type that could not marshal to JSON: {}",
                    cause.0
                )
            })?;
            operation.insert("value".to_owned(), value);
        }
        operations.push(Value::Object(operation));
    }
    let current = Value::Object(shown.0.clone());
    match api_patch::json_patch(&current, &Value::Array(operations)) {
        Ok(patched) => match Document::from_value(patched) {
            Some(document) => Ok(Some(document)),
            None => Err("JSON Patch: the result is no object".to_owned()),
        },
        // A test that fails says that there is nothing to do.
        Err(cause) if cause.to_string().ends_with("failed: test failed") => Ok(None),
        Err(cause) => Err(format!("JSON Patch: {cause}")),
    }
}

/// `Object.spec{...}` may only stand where `spec` is: nothing else tells a mistaken initializer.
fn check_names(value: &Cel<'_>, expected: &str) -> Result<(), String> {
    match value {
        Cel::Struct(object) => {
            if &*object.name != expected {
                return Err(format!(
                    "unexpected type name {:?}, expected {expected:?}, which matches field name path from root Object type",
                    object.name
                ));
            }
            for (field, value) in &object.fields {
                check_names(value, &format!("{expected}.{field}"))?;
            }
            Ok(())
        }
        Cel::List(list) => {
            // Items of a list have the list's own name; JSON that came in has none.
            for item in list.iter() {
                let item = item.map_err(|cause| cause.to_string())?;
                if !matches!(item, Cel::Struct(_) | Cel::List(_) | Cel::Map(_)) {
                    break;
                }
                check_names(&item, expected)?;
            }
            Ok(())
        }
        Cel::Map(map) => {
            for value in map.keys().iter().filter_map(|key| map.get(key)) {
                check_names(&value.map_err(|cause| cause.to_string())?, expected)?;
            }
            Ok(())
        }
        Cel::Optional(Some(inner)) => check_names(inner, expected),
        _ => Ok(()),
    }
}
