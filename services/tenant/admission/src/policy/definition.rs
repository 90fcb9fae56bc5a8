//! Policies and bindings, parsed and compiled.

use api_cel::Program;
use api_machinery::{Gvk, Object};
use serde_json::Value;

use crate::conditions::Conditions;
use crate::expression::{Names, Variables, Wants};
use crate::matching::{Matcher, Selector};

/// An expression as written, and what it was compiled to; or why it could not be.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) source: String,
    pub(crate) program: Result<Program, String>,
}

/// What both kinds of policies have.
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) matcher: Matcher,
    /// `failurePolicy: Fail`.
    pub(crate) fails_closed: bool,
    /// The kind of what bindings name as parameters.
    pub(crate) param_kind: Option<Gvk>,
    /// What was written there, for messages.
    pub(crate) param_kind_text: String,
    pub(crate) variables: Variables,
    pub(crate) conditions: Conditions,
    pub(crate) validations: Vec<Validation>,
    pub(crate) annotations: Vec<(String, Expression)>,
    pub(crate) mutations: Vec<Mutation>,
    /// `reinvocationPolicy: IfNeeded`.
    pub(crate) repeats: bool,
}

#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) expression: Expression,
    pub(crate) message: String,
    pub(crate) message_expression: Option<Expression>,
    /// Empty when it was left open.
    pub(crate) reason: String,
}

#[derive(Debug)]
pub(crate) enum Mutation {
    JsonPatch(Expression),
    Apply(Expression),
}

/// One use of a policy.
pub(crate) struct Binding {
    pub(crate) name: String,
    pub(crate) policy: String,
    /// `None` when it narrows nothing.
    pub(crate) matcher: Option<Matcher>,
    pub(crate) params: Option<ParamRef>,
    /// `Deny`, `Warn`, `Audit`.
    pub(crate) actions: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct ParamRef {
    pub(crate) name: String,
    /// Empty for the request's own.
    pub(crate) namespace: String,
    pub(crate) selector: Option<Selector>,
    /// `parameterNotFoundAction: Deny`.
    pub(crate) required: bool,
}

impl Policy {
    pub(crate) fn parse(object: &Object) -> Policy {
        let spec = object.field("spec").unwrap_or_default();
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let all = |name: &str| spec[name].as_array().cloned().unwrap_or_default();
        let fails_closed = spec["failurePolicy"] != "Ignore";
        let has_params = spec["paramKind"].is_object();
        let names = Names { params: has_params, authorizer: true, patches: false };
        let mut variables = Variables::default();
        for variable in all("variables") {
            // What is wrong with one shows when it is used.
            let _shows_later = variables.add(&text(&variable, "name"), &text(&variable, "expression"), names);
        }
        let expression = |source: String, names: Names, wants: Wants| Expression {
            program: variables.compile(&source, names, wants),
            source,
        };
        let validations = all("validations")
            .iter()
            .map(|one| Validation {
                expression: expression(text(one, "expression"), names, Wants::Bool),
                message: text(one, "message"),
                message_expression: Some(text(one, "messageExpression"))
                    .filter(|source| !source.is_empty())
                    .map(|source| expression(source, Names { authorizer: false, ..names }, Wants::Text)),
                reason: text(one, "reason"),
            })
            .collect();
        let annotations = all("auditAnnotations")
            .iter()
            .map(|one| (text(one, "key"), expression(text(one, "valueExpression"), names, Wants::TextOrNull)))
            .collect();
        let patching = Names { patches: true, ..names };
        let mutations = all("mutations")
            .iter()
            .map(|one| match one["patchType"].as_str() {
                Some("JSONPatch") => Mutation::JsonPatch(expression(
                    text(&one["jsonPatch"], "expression"),
                    patching,
                    Wants::Patch,
                )),
                _ => {
                    let source = text(&one["applyConfiguration"], "expression");
                    Mutation::Apply(expression(source, patching, Wants::Configuration))
                }
            })
            .collect();
        let kind = &spec["paramKind"];
        let conditions = Conditions::parse(spec.get("matchConditions"), fails_closed, has_params, &variables);
        Policy {
            name: object.header.name.to_string(),
            matcher: Matcher::parse(&spec["matchConstraints"], "resourceRules", Some("excludeResourceRules")),
            fails_closed,
            param_kind: has_params
                .then(|| Gvk::parse(&text(kind, "apiVersion"), &text(kind, "kind")))
                .flatten(),
            param_kind_text: if has_params {
                format!("&ParamKind{{APIVersion:{},Kind:{},}}", text(kind, "apiVersion"), text(kind, "kind"))
            } else {
                String::new()
            },
            conditions,
            validations,
            annotations,
            mutations,
            repeats: spec["reinvocationPolicy"] == "IfNeeded",
            variables,
        }
    }

    pub(crate) fn has_params(&self) -> bool {
        !self.param_kind_text.is_empty()
    }
}

impl Binding {
    pub(crate) fn parse(object: &Object) -> Binding {
        let spec = object.field("spec").unwrap_or_default();
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let resources = &spec["matchResources"];
        let reference = &spec["paramRef"];
        let actions = spec["validationActions"].as_array().into_iter().flatten();
        Binding {
            name: object.header.name.to_string(),
            policy: text(&spec, "policyName"),
            matcher: resources
                .is_object()
                .then(|| Matcher::parse(resources, "resourceRules", Some("excludeResourceRules"))),
            params: reference.is_object().then(|| ParamRef {
                name: text(reference, "name"),
                namespace: text(reference, "namespace"),
                selector: reference
                    .get("selector")
                    .filter(|one| one.is_object())
                    .map(|one| Selector::parse(Some(one))),
                required: reference["parameterNotFoundAction"] == "Deny",
            }),
            actions: actions.filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}
