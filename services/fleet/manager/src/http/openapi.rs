//! The API's description at `/openapi.json`.
//!
//! Handlers annotate what is theirs: bodies, successes, conflicts. What follows from the table of routes is
//! added here for all alike ([`Common`]): who may call, what a refusal looks like, the `Idempotency-Key`. So a
//! new route is described completely by being in the table, and a test compares the two.

use axum::http::Method;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi as Derive};

use super::access::COOKIE;
use super::routes::{self, Need, Route};
use super::{
    clusters, events, fleet, joining, members, operations, organizations, pools, proxy, session, tokens,
};

#[derive(Derive)]
#[openapi(
    info(
        title = "Roadstead",
        version = "1",
        description = "Organisations and their hosted Kubernetes clusters.\n\nProgrammes send an API token, \
            people a session, as `Authorization: Bearer …`; browsers the session's cookie. What a caller may \
            not know of is answered like what does not exist: 404. Errors are `application/problem+json` \
            (RFC 9457); `errors` names the fields of a body that were not taken, each by its JSON pointer \
            (RFC 6901). Every POST takes an `Idempotency-Key`: sent again with the same key and body it is \
            done once, and answered with the first answer for a day."
    ),
    paths(
        session::create,
        session::get,
        session::delete,
        session::change_password,
        session::accept,
        organizations::list,
        organizations::create,
        organizations::get,
        organizations::delete,
        members::list,
        members::create,
        members::update,
        members::delete,
        clusters::list,
        clusters::create,
        clusters::get,
        clusters::delete,
        clusters::update,
        joining::kubeconfig,
        joining::list,
        joining::create,
        joining::delete,
        pools::list,
        pools::create,
        pools::get,
        pools::update,
        pools::delete,
        proxy::forward,
        operations::list,
        operations::get,
        operations::cancel,
        operations::receipts,
        operations::receipt,
        operations::receipt_key,
        operations::versions,
        operations::machine_types,
        events::watch,
        tokens::list,
        tokens::create,
        tokens::get,
        tokens::delete,
        fleet::cells,
    ),
    modifiers(&Common)
)]
pub(crate) struct Document;

const PROBLEM: &str = "application/problem+json";

/// What all routes have in common.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API token, rs_…, or a session's secret, rss_…"))
            .build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let cookie = ApiKeyValue::with_description(
            COOKIE,
            "A session's secret. Changes are taken from this server's own pages only.",
        );
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        let none: [&str; 0] = [];
        document.security =
            Some(vec![SecurityRequirement::new("bearer", none), SecurityRequirement::new("cookie", none)]);
        for route in routes::all() {
            let Some(item) = document.paths.paths.get_mut(&documented(&route)) else { continue };
            for (method, operation) in operations(item) {
                if route.method.as_ref().is_none_or(|one| *one == method) {
                    complete(operation, &route, &method);
                }
            }
        }
    }
}

/// The path as OpenAPI writes it.
pub(crate) fn documented(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn operations(item: &mut PathItem) -> Vec<(Method, &mut Operation)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?))).collect()
}

fn complete(operation: &mut Operation, route: &Route, method: &Method) {
    let anybody = route.need == Need::Nothing;
    let keyed = *method == Method::POST && !anybody && !routes::is_streamed(route.path);
    if anybody {
        operation.security = Some(vec![SecurityRequirement::default()]);
    }
    if keyed {
        operation.parameters.get_or_insert_default().push(idempotency_key());
    }
    let takes_query =
        operation.parameters.iter().flatten().any(|parameter| parameter.parameter_in == ParameterIn::Query);
    let takes_path =
        operation.parameters.iter().flatten().any(|parameter| parameter.parameter_in == ParameterIn::Path);
    let takes_body = operation.request_body.is_some();
    let sees = !matches!(route.need, Need::Nothing | Need::SignedIn | Need::SomeAdmin);
    for (status, applies, description) in [
        (
            "400",
            takes_body || takes_query || keyed,
            "A value is not one that its field takes; `errors` names each such field of the body.",
        ),
        ("401", !anybody, "Not signed in, or what was shown has ended."),
        (
            "403",
            !anybody && (route.need != Need::SignedIn || !method.is_safe()),
            "The caller's role does not suffice; or a cookie was sent from another site's page.",
        ),
        ("404", sees || takes_path, "It does not exist, or not for this caller."),
        ("408", takes_body || keyed, "The body did not arrive in time."),
        ("409", keyed, "The first request with this Idempotency-Key is not answered yet."),
        ("413", takes_body || keyed, "A body is at most 64 KiB."),
        ("415", takes_body, "The body is not JSON."),
        ("422", keyed, "The Idempotency-Key was sent with another request; or fields contradict each other."),
        ("429", !method.is_safe(), "Too often; Retry-After says when it may be tried again."),
        ("503", true, "Something this depends on is away; Retry-After says when to try again."),
    ] {
        if applies && !operation.responses.responses.contains_key(status) {
            let response = ResponseBuilder::new().description(description).build();
            operation.responses.responses.insert(status.to_owned(), response.into());
        }
    }
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if status.starts_with(['4', '5']) {
            as_problem(status, response);
        }
    }
}

/// All refusals look alike.
fn as_problem(status: &str, response: &mut Response) {
    response.content.clear();
    let schema = RefOr::Ref(Ref::from_schema_name("Problem"));
    let mut example = serde_json::json!({
        "type": "about:blank",
        "title": title(status),
        "status": status.parse::<u16>().unwrap_or_default(),
        "detail": if response.description.is_empty() { title(status) } else { &response.description },
    });
    if status == "400" {
        example["detail"] = "/name: it is required".into();
        example["errors"] = serde_json::json!([{"field": "/name", "detail": "it is required"}]);
    }
    let content = ContentBuilder::new().schema(Some(schema)).example(Some(example)).build();
    response.content.insert(PROBLEM.to_owned(), content);
    if response.description.is_empty() {
        response.description = title(status).to_owned();
    }
    if matches!(status, "429" | "503") {
        let seconds = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer)).build();
        let header = HeaderBuilder::new().schema(seconds).description(Some("Seconds")).build();
        response.headers.insert("Retry-After".to_owned(), header);
    }
}

fn title(status: &str) -> &'static str {
    match status {
        "400" => "Invalid request",
        "401" => "Not signed in",
        "403" => "Not allowed",
        "404" => "Not found",
        "408" => "Too slow",
        "409" => "Conflict",
        "413" => "Request too large",
        "415" => "Unsupported media type",
        "422" => "Key used before",
        "429" => "Too many requests",
        "503" => "Try again",
        _ => "Error",
    }
}

fn idempotency_key() -> Parameter {
    let text = ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .min_length(Some(1))
        .max_length(Some(128))
        .pattern(Some("^[ -~]{1,128}$"))
        .build();
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("Chosen by the caller; the same key and body are done once"))
        .schema(Some(text))
        .build()
}
