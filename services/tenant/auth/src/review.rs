//! The review APIs: questions that are created and come back with an answer, and are never stored.
//!
//! Each function takes the decoded document and gives it back with its `status` filled.

use std::collections::BTreeMap;

use api_machinery::{Document, Field, FieldError, FieldSelector, Status};
use serde_json::{Map, Value, json};
use tenant_client::{Access, Authorizer, Decision, Target, UserInfo};

use crate::authenticate::Authenticator;
use crate::rbac::Rbac;
use crate::token::TokenError;

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// TokenReview: whose token is this?
pub fn token(authenticator: &Authenticator, mut review: Document) -> Result<Document, Status> {
    let token = review.get_str("spec.token").unwrap_or_default().to_owned();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences: Vec<String> = texts(review.get("spec.audiences"));
    let status = match authenticator.authenticate_token(&token, &audiences) {
        Ok((user, shared)) => json!({"authenticated": true, "user": user_value(&user), "audiences": shared}),
        Err(TokenError::Foreign) => json!({"user": {}, "error": "invalid bearer token"}),
        Err(other) => json!({"user": {}, "error": format!("[invalid bearer token, {other}]")}),
    };
    review.set("status", status);
    Ok(review)
}

/// SelfSubjectReview: who am I?
pub fn self_subject(user: &UserInfo, mut review: Document) -> Document {
    review.set("status", json!({"userInfo": user_value(user)}));
    review
}

/// SubjectAccessReview: may this user?
pub fn subject_access(authorizer: &dyn Authorizer, review: Document) -> Result<Document, Status> {
    let (user, mut errors) = subject(&review);
    errors.extend(check_attributes(&review));
    answer(authorizer, "SubjectAccessReview", &user, review, &errors)
}

/// SelfSubjectAccessReview: may I?
pub fn self_subject_access(
    authorizer: &dyn Authorizer,
    user: &UserInfo,
    review: Document,
) -> Result<Document, Status> {
    let errors = check_attributes(&review);
    answer(authorizer, "SelfSubjectAccessReview", user, review, &errors)
}

/// LocalSubjectAccessReview: may this user, in this namespace?
pub fn local_subject_access(
    authorizer: &dyn Authorizer,
    namespace: &str,
    review: Document,
) -> Result<Document, Status> {
    let (user, mut errors) = subject(&review);
    errors.extend(check_attributes(&review));
    let spec = Field::new("spec");
    let asked = review.get_str("spec.resourceAttributes.namespace").unwrap_or_default();
    if asked != namespace {
        let field = spec.child("resourceAttributes").child("namespace");
        errors.push(field.invalid(asked, "must match metadata.namespace"));
    }
    if present(&review, "spec.nonResourceAttributes") {
        errors.push(spec.child("nonResourceAttributes").invalid(
            review.get("spec.nonResourceAttributes").cloned().unwrap_or_default(),
            "disallowed on this kind of request",
        ));
    }
    answer(authorizer, "LocalSubjectAccessReview", &user, review, &errors)
}

/// SelfSubjectRulesReview: what may I, in this namespace?
pub fn self_subject_rules(rbac: &Rbac, user: &UserInfo, mut review: Document) -> Result<Document, Status> {
    let namespace = review.get_str("spec.namespace").unwrap_or_default().to_owned();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let (grants, missing) = rbac.grants(user, &namespace);
    let mut rules: Vec<_> = grants.into_iter().map(|grant| grant.rule).collect();
    if user.is_in(UserInfo::MASTERS) {
        // Their rights come from no rule, but this is what they amount to.
        rules.extend(crate::rbac::Rule::full_authority());
    }
    let mut resources = Vec::new();
    let mut paths = Vec::new();
    for rule in rules {
        if !rule.resources.is_empty() {
            let mut shown =
                json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            resources.push(shown);
        }
        if !rule.non_resource_urls.is_empty() {
            paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut errors = missing;
    let is_node = user.is_in("system:nodes");
    if is_node {
        errors.insert(0, "node authorizer does not support user rule resolution".to_owned());
    }
    let mut status = json!({
        "resourceRules": resources, "nonResourceRules": paths, "incomplete": is_node || !errors.is_empty(),
    });
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
    }
    review.set("status", status);
    Ok(review)
}

/// `UserInfo` as the API shows it.
pub fn user_value(user: &UserInfo) -> Value {
    let mut value = Map::new();
    value.insert("username".to_owned(), user.name.clone().into());
    if !user.uid.is_empty() {
        value.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        value.insert("groups".to_owned(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        value.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(value)
}

fn answer(
    authorizer: &dyn Authorizer,
    kind: &str,
    user: &UserInfo,
    mut review: Document,
    errors: &[FieldError],
) -> Result<Document, Status> {
    if !errors.is_empty() {
        return Err(Status::invalid(AUTHORIZATION, kind, review.name(), errors));
    }
    let (allowed, denied, reason) = match authorizer.decide(user, &access(&review)) {
        Decision::Allow { reason } => (true, false, reason),
        Decision::NoOpinion { reason } => (false, false, reason),
        Decision::Deny { reason } => (false, true, reason),
    };
    let mut status = Map::new();
    status.insert("allowed".to_owned(), allowed.into());
    if denied {
        status.insert("denied".to_owned(), true.into());
    }
    if !reason.is_empty() {
        status.insert("reason".to_owned(), reason.into());
    }
    review.set("status", Value::Object(status));
    Ok(review)
}

fn subject(review: &Document) -> (UserInfo, Vec<FieldError>) {
    let extra = review.get("spec.extra").and_then(Value::as_object).into_iter().flatten();
    let extra: BTreeMap<String, Vec<String>> =
        extra.map(|(key, values)| (key.to_lowercase(), texts(Some(values)))).collect();
    let user = UserInfo {
        name: review.get_str("spec.user").unwrap_or_default().to_owned(),
        uid: review.get_str("spec.uid").unwrap_or_default().to_owned(),
        groups: texts(review.get("spec.groups")),
        extra,
    };
    let mut errors = Vec::new();
    if user.name.is_empty() && user.groups.is_empty() {
        let field = Field::new("spec").child("user");
        errors.push(field.invalid("", "at least one of user or group must be specified"));
    }
    (user, errors)
}

fn check_attributes(review: &Document) -> Vec<FieldError> {
    let spec = Field::new("spec");
    let resource = present(review, "spec.resourceAttributes");
    let path = present(review, "spec.nonResourceAttributes");
    match (resource, path) {
        (true, true) => vec![spec.child("nonResourceAttributes").invalid(
            review.get("spec.nonResourceAttributes").cloned().unwrap_or_default(),
            "cannot be specified in combination with resourceAttributes",
        )],
        (false, false) => vec![spec.child("resourceAttributes").invalid(
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )],
        _ => Vec::new(),
    }
}

fn present(review: &Document, path: &str) -> bool {
    review.get(path).is_some_and(|value| !value.is_null())
}

fn access(review: &Document) -> Access {
    let text = |path: &str| review.get_str(path).unwrap_or_default().to_owned();
    if present(review, "spec.nonResourceAttributes") {
        return Access {
            verb: text("spec.nonResourceAttributes.verb"),
            target: Target::Path(text("spec.nonResourceAttributes.path")),
            ..Access::default()
        };
    }
    let of = |field: &str| text(&format!("spec.resourceAttributes.{field}"));
    let raw = of("fieldSelector.rawSelector");
    let mut fields = FieldSelector::parse(&raw).unwrap_or_default();
    for requirement in review.get_array("spec.resourceAttributes.fieldSelector.requirements") {
        // Only equality narrows what a node may see; other operators merely don't help.
        let values = texts(requirement.get("values"));
        if let (Some("In"), Some(key), [value]) = (
            requirement.get("operator").and_then(Value::as_str),
            requirement.get("key").and_then(Value::as_str),
            values.as_slice(),
        ) {
            fields.terms.push((key.to_owned(), value.clone(), true));
        }
    }
    Access {
        verb: of("verb"),
        target: Target::Resource {
            group: of("group"),
            version: of("version"),
            resource: of("resource"),
            subresource: of("subresource"),
            namespace: of("namespace"),
            name: of("name"),
        },
        fields,
    }
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A review of a kind this module answers, by its resource; `None` for any other resource.
///
/// `namespace` is the request's, for LocalSubjectAccessReview.
pub fn evaluate(
    resource: &str,
    authenticator: &Authenticator,
    authority: &crate::Authority,
    user: &UserInfo,
    namespace: &str,
    review: Document,
) -> Option<Result<Document, Status>> {
    Some(match resource {
        "tokenreviews" => token(authenticator, review),
        "selfsubjectreviews" => Ok(self_subject(user, review)),
        "subjectaccessreviews" => subject_access(authority, review),
        "selfsubjectaccessreviews" => self_subject_access(authority, user, review),
        "localsubjectaccessreviews" => local_subject_access(authority, namespace, review),
        "selfsubjectrulesreviews" => self_subject_rules(authority.rbac(), user, review),
        _ => return None,
    })
}

/// Groups whose resources [`evaluate`] answers.
pub const GROUPS: [&str; 2] = [AUTHENTICATION, AUTHORIZATION];
