//! The calls that gather a question for the authorizer, and what can be asked of its decision.

use super::{Body, named, no_overload};
use crate::authorize::{AuthorizerValue, Question, ResourceQuestion, Stage, What};
use crate::eval::{EvalError, Outcome, bool_value, text_value};
use crate::plan::Call;
use crate::value::{Opaque, Value};

pub(super) const BODIES: &[(&str, Body)] = &[
    ("path", |_, call, args| match with_text(args) {
        Some((AuthorizerValue { stage: Stage::Authorizer, .. }, path)) if path.trim().is_empty() => {
            Err(EvalError::failed("path must not be empty"))
        }
        Some((value @ AuthorizerValue { stage: Stage::Authorizer, .. }, path)) => {
            next(value, Stage::Path(path.to_owned()))
        }
        _ => no_overload(call, args),
    }),
    ("group", |_, call, args| match with_text(args) {
        Some((value @ AuthorizerValue { stage: Stage::Authorizer, .. }, group)) => {
            next(value, Stage::Group(group.to_owned()))
        }
        _ => no_overload(call, args),
    }),
    ("serviceAccount", service_account),
    ("resource", |_, call, args| match with_text(args) {
        Some((AuthorizerValue { stage: Stage::Group(_), .. }, resource)) if resource.trim().is_empty() => {
            Err(EvalError::failed("resource must not be empty"))
        }
        Some((value @ AuthorizerValue { stage: Stage::Group(group), .. }, resource)) => {
            let (group, resource) = (group.clone(), resource.to_owned());
            next(value, Stage::Resource(ResourceQuestion { group, resource, ..Default::default() }))
        }
        _ => no_overload(call, args),
    }),
    ("subresource", |_, call, args| refine(call, args, |question, text| question.subresource = text)),
    ("namespace", |_, call, args| refine(call, args, |question, text| question.namespace = text)),
    ("name", |_, call, args| refine(call, args, |question, text| question.name = text)),
    ("fieldSelector", |_, call, args| refine(call, args, |question, text| question.field_selector = text)),
    ("labelSelector", |_, call, args| refine(call, args, |question, text| question.label_selector = text)),
    ("check", check),
    ("errored", |_, call, args| match decision(args) {
        Some(decision) => bool_value(decision.error.is_some()),
        None => no_overload(call, args),
    }),
    ("error", |_, call, args| match decision(args) {
        Some(decision) => text_value(decision.error.clone().unwrap_or_default()),
        None => no_overload(call, args),
    }),
    ("allowed", |_, call, args| match decision(args) {
        Some(decision) => bool_value(decision.allowed),
        None => no_overload(call, args),
    }),
    ("reason", |_, call, args| match decision(args) {
        Some(decision) => text_value(decision.reason.clone()),
        None => no_overload(call, args),
    }),
];

fn authorizer<'v>(value: Option<&'v Value<'_>>) -> Option<&'v AuthorizerValue> {
    match value {
        Some(Value::Opaque(value)) => match &**value {
            Opaque::Authorizer(value) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

fn with_text<'v>(args: &'v [Value<'_>]) -> Option<(&'v AuthorizerValue, &'v str)> {
    match args {
        [value, Value::String(text)] => Some((authorizer(Some(value))?, text.as_str())),
        _ => None,
    }
}

fn next<'a>(value: &AuthorizerValue, stage: Stage) -> Outcome<'a> {
    Ok(Value::opaque(Opaque::Authorizer(AuthorizerValue { stage, ..value.clone() })))
}

fn refine<'a>(call: &Call, args: &[Value<'a>], set: fn(&mut ResourceQuestion, String)) -> Outcome<'a> {
    match with_text(args) {
        Some((value @ AuthorizerValue { stage: Stage::Resource(question), .. }, text)) => {
            let mut question = question.clone();
            set(&mut question, text.to_owned());
            next(value, Stage::Resource(question))
        }
        _ => no_overload(call, args),
    }
}

fn service_account<'a>(_: &mut crate::eval::Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let [value, Value::String(namespace), Value::String(name)] = args else { return no_overload(call, args) };
    let Some(value @ AuthorizerValue { stage: Stage::Authorizer, .. }) = authorizer(Some(value)) else {
        return no_overload(call, args);
    };
    if !named::is_dns_subdomain(name) {
        return Err(EvalError::failed("Invalid service account name"));
    }
    if !named::is_dns_label(namespace) {
        return Err(EvalError::failed("Invalid service account namespace"));
    }
    let service_account = Some((namespace.as_str().to_owned(), name.as_str().to_owned()));
    Ok(Value::opaque(Opaque::Authorizer(AuthorizerValue { service_account, ..value.clone() })))
}

fn check<'a>(_: &mut crate::eval::Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let Some((value, verb)) = with_text(args) else { return no_overload(call, args) };
    let what = match &value.stage {
        Stage::Path(path) => What::Path(path.clone()),
        Stage::Resource(question) => What::Resource(question.clone()),
        _ => return no_overload(call, args),
    };
    let question = Question { verb: verb.to_owned(), service_account: value.service_account.clone(), what };
    next(value, Stage::Decision(value.by.check(&question)))
}

fn decision<'v>(args: &'v [Value<'_>]) -> Option<&'v crate::authorize::Decision> {
    match &authorizer(args.first())?.stage {
        Stage::Decision(decision) => Some(decision),
        _ => None,
    }
}
