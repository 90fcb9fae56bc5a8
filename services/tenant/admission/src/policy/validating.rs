//! ValidatingAdmissionPolicy.
//!
//! Facts: upstream's `plugin/policy/validating/{dispatcher,validator}.go`.

use std::collections::BTreeMap;

use api_cel::{Budget, limits};
use api_machinery::{Cause, Document, Gvr, Reason, Status};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::definition::{Binding, Policy, Validation};
use super::select::{Policies, matches, namespace_of, params};
use crate::attributes::{Attributes, SideWrite};
use crate::chain::Admission;
use crate::expression::{Failed, Scope, Seen};
use crate::matching::is_exempt;
use crate::versions::in_version;

/// One cluster's validating policies.
pub struct ValidatingPolicies(Policies);

impl Default for ValidatingPolicies {
    fn default() -> ValidatingPolicies {
        let of = |resource| Gvr::new("admissionregistration.k8s.io", "v1", resource);
        ValidatingPolicies(Policies::new(
            of("validatingadmissionpolicies"),
            of("validatingadmissionpolicybindings"),
        ))
    }
}

/// Longer annotations are cut.
const ANNOTATION_BYTES: usize = 10 * 1024;

/// Why a request is refused; the first one is what the client hears.
struct Denial<'a> {
    policy: &'a str,
    binding: Option<&'a str>,
    message: String,
    reason: String,
}

/// What one validation came to.
enum Verdict {
    Fine,
    /// The expression was false, or failed under a policy that fails closed.
    Bad {
        message: String,
        reason: String,
    },
}

#[async_trait]
impl Admission for ValidatingPolicies {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let all = self.0.bound(attributes);
        if all.is_empty() || is_exempt(attributes) || is_review(attributes) {
            return Ok(Vec::new());
        }
        let mut denials = Vec::new();
        for (policy, bindings) in &all {
            let misconfigured = |why: String, binding: Option<&'_ str>| {
                let what = if binding.is_some() { "binding" } else { "policy" };
                (format!("failed to configure {what}: {why}"), policy.fails_closed)
            };
            let matched = match matches(&policy.matcher, attributes, object, old) {
                Ok(Some(matched)) => matched,
                Ok(None) => continue,
                Err(why) => {
                    if let (message, true) = misconfigured(why, None) {
                        denials.push(Denial {
                            policy: &policy.name,
                            binding: None,
                            message,
                            reason: String::new(),
                        });
                    }
                    continue;
                }
            };
            let mut seen = None;
            let mut notes: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for binding in bindings {
                let bad = |why: String| {
                    let (message, denies) = misconfigured(why, Some(&binding.name));
                    denies.then(|| Denial {
                        policy: &policy.name,
                        binding: Some(&binding.name),
                        message,
                        reason: String::new(),
                    })
                };
                if let Some(matcher) = &binding.matcher {
                    match matches(matcher, attributes, object, old) {
                        Ok(Some(_)) => {}
                        Ok(None) => continue,
                        Err(why) => {
                            denials.extend(bad(why));
                            continue;
                        }
                    }
                }
                let params = match params(policy, binding, attributes) {
                    Ok(params) => params,
                    Err(why) => {
                        denials.extend(bad(why));
                        continue;
                    }
                };
                if params.is_empty() {
                    continue;
                }
                if seen.is_none() {
                    let mut shown = [None, None];
                    for (shown, document) in shown.iter_mut().zip([object, old]) {
                        if let Some(document) = document {
                            *shown = Some(in_version(attributes, document, &matched.gvk).await?);
                        }
                    }
                    let namespace = namespace_of(attributes)?;
                    let [object, old] = &shown;
                    seen = Some(Seen::new(
                        attributes,
                        &matched,
                        object.as_ref(),
                        old.as_ref(),
                        namespace.as_ref(),
                    ));
                }
                let Some(seen) = &seen else { continue };
                for params in &params {
                    let outcome = evaluate(policy, seen, params.as_ref());
                    for (index, verdict) in outcome.verdicts.into_iter().enumerate() {
                        let Verdict::Bad { message, reason } = verdict else { continue };
                        denials.extend(act(attributes, policy, binding, index, message, reason));
                    }
                    for (key, value) in outcome.annotations {
                        let values = notes.entry(key).or_default();
                        if !values.contains(&value) {
                            values.push(value);
                        }
                    }
                    for message in outcome.failed_annotations {
                        denials.push(Denial {
                            policy: &policy.name,
                            binding: Some(&binding.name),
                            message,
                            reason: String::new(),
                        });
                    }
                }
            }
            for (key, values) in notes {
                attributes.annotations.add(format!("{}/{key}", policy.name), values.join(", "));
            }
        }
        match denials.into_iter().next() {
            Some(first) => Err(refusal(attributes, first)),
            None => Ok(Vec::new()),
        }
    }
}

/// Reviews are asked by everything that authenticates: no policy may break a cluster through them.
pub(super) fn is_review(attributes: &Attributes<'_>) -> bool {
    matches!(&*attributes.gvr.group, "authentication.k8s.io" | "authorization.k8s.io")
}

/// Does what the binding says is to be done about a failed validation.
fn act<'a>(
    attributes: &Attributes<'_>,
    policy: &'a Policy,
    binding: &'a Binding,
    index: usize,
    message: String,
    reason: String,
) -> Option<Denial<'a>> {
    let mut denial = None;
    for action in &binding.actions {
        match action.as_str() {
            "Deny" => {
                denial = Some(Denial {
                    policy: &policy.name,
                    binding: Some(&binding.name),
                    message: message.clone(),
                    reason: reason.clone(),
                });
            }
            "Warn" => attributes.warnings.add(format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                policy.name, binding.name
            )),
            "Audit" => {
                let note = json!([{"message": message, "policy": binding.policy, "binding": binding.name,
                    "expressionIndex": index, "validationActions": binding.actions}]);
                attributes
                    .annotations
                    .add("validation.policy.admission.k8s.io/validation_failure", note.to_string());
            }
            _ => {}
        }
    }
    denial
}

struct Outcome {
    verdicts: Vec<Verdict>,
    annotations: Vec<(String, String)>,
    failed_annotations: Vec<String>,
}

/// One policy over one request with one set of parameters.
fn evaluate(policy: &Policy, seen: &Seen, params: Option<&Value>) -> Outcome {
    let nothing =
        || Outcome { verdicts: Vec::new(), annotations: Vec::new(), failed_annotations: Vec::new() };
    // An expression that fails counts as false if the policy fails closed, and else as true.
    let error = |message: String| match policy.fails_closed {
        true => Verdict::Bad { message, reason: String::new() },
        false => Verdict::Fine,
    };
    if !policy.conditions.is_empty() {
        match policy.conditions.hold(seen, params, &policy.variables) {
            Ok(true) => {}
            Ok(false) => return nothing(),
            Err(why) => return Outcome { verdicts: vec![error(why)], ..nothing() },
        }
    }
    let mut outcome = nothing();
    let scope = Scope::new(seen, params, &policy.variables);
    let mut budget = Budget::new(limits::RUNTIME_BUDGET);
    let mut results = Vec::with_capacity(policy.validations.len());
    for validation in &policy.validations {
        let result = scope.eval(&validation.expression.source, &validation.expression.program, &mut budget);
        if matches!(result, Err(Failed::Budget)) {
            outcome.verdicts = vec![error(Failed::Budget.to_string())];
            return outcome;
        }
        results.push(result.map(|value| value.as_bool() == Some(true)));
    }
    // Messages are computed only for what failed, from what is left of the budget.
    let scope = Scope::new(seen, params, &policy.variables);
    let mut spent = false;
    for (validation, result) in policy.validations.iter().zip(results) {
        outcome.verdicts.push(match result {
            Err(why) => error(why.to_string()),
            Ok(true) => Verdict::Fine,
            Ok(false) if spent => error(format!("failed messageExpression: {}", Failed::Budget)),
            Ok(false) => match message(validation, &scope, &mut budget) {
                Ok(message) => Verdict::Bad { message, reason: validation.reason.clone() },
                Err(why) => {
                    spent = true;
                    error(format!("failed messageExpression: {why}"))
                }
            },
        });
    }
    let scope = Scope::new(seen, params, &policy.variables);
    let mut budget = Budget::new(limits::RUNTIME_BUDGET);
    for (key, expression) in &policy.annotations {
        match scope.eval(&expression.source, &expression.program, &mut budget) {
            Ok(value) => {
                // Null and blanks are no annotation.
                let text = value.as_str().map(str::trim).unwrap_or_default();
                if !text.is_empty() {
                    outcome.annotations.push((key.clone(), cut(text).to_owned()));
                }
            }
            Err(why) if policy.fails_closed => outcome.failed_annotations.push(why.to_string()),
            Err(_) => {}
        }
    }
    outcome
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(ANNOTATION_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What is told of a failed validation. An error is for the whole policy: the budget is used up.
fn message<'a>(validation: &'a Validation, scope: &Scope<'a>, budget: &mut Budget) -> Result<String, Failed> {
    if let Some(expression) = &validation.message_expression {
        match scope.eval(&expression.source, &expression.program, budget) {
            Ok(value) => {
                let text = value.as_str().map(str::trim).unwrap_or_default();
                if !text.is_empty() && text.len() <= limits::MAX_MESSAGE_BYTES && !text.contains('\n') {
                    return Ok(text.to_owned());
                }
            }
            Err(Failed::Budget) => return Err(Failed::Budget),
            // A message that cannot be made is replaced by the plain one.
            Err(Failed::Expression(_)) => {}
        }
    }
    Ok(match validation.message.trim() {
        "" => format!("failed expression: {}", validation.expression.source.trim()),
        message => message.to_owned(),
    })
}

fn refusal(attributes: &Attributes<'_>, denial: Denial<'_>) -> Status {
    let Denial { policy, binding, message, reason } = denial;
    let message = match binding {
        Some(binding) => {
            format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}")
        }
        None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {message}"),
    };
    let mut status = attributes.forbidden(&message);
    (status.reason, status.code) = match reason.as_str() {
        "Forbidden" => (Some(Reason::Forbidden), 403),
        "Unauthorized" => (Some(Reason::Unauthorized), 401),
        "RequestEntityTooLarge" => (Some(Reason::RequestEntityTooLarge), 413),
        _ => (Some(Reason::Invalid), 422),
    };
    status.with_cause(Cause { message, ..Cause::default() })
}
