//! The API's description at `/openapi.json`, derived from the handlers' own annotations.

use utoipa::OpenApi;

use super::{clusters, fleet, members, organizations, session, tokens};

#[derive(OpenApi)]
#[openapi(
    info(title = "Roadstead", description = "Organisations and their hosted Kubernetes clusters."),
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
        clusters::create_kubeconfig,
        clusters::create_join_token,
        tokens::list,
        tokens::create,
        tokens::delete,
        fleet::cells,
    ),
    modifiers(&BearerAuth)
)]
pub(super) struct Document;

struct BearerAuth;

impl utoipa::Modify for BearerAuth {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
        document.security = Some(vec![SecurityRequirement::new("token", [] as [&str; 0])]);
    }
}
