//! The API's description at `/openapi.json`, derived from the handlers' own annotations.

use utoipa::OpenApi;

use super::{
    clusters, events, fleet, joining, members, operations, organizations, pools, proxy, session, tokens,
};

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
