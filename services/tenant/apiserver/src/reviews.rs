//! Questions that are created: reviews and token requests. Nothing of them is stored.

use api_kinds::{ResourceInfo, Subresource, kinds};
use api_machinery::Status;
use base_clock::rfc3339;
use tenant_auth::{issue_token, review};

use crate::body::{Body, Response};
use crate::input::Shape;
use crate::negotiate::Offer;
use crate::pipeline::Call;
use crate::request::ResourcePath;
use crate::{encode, input, options};

pub async fn answer(
    call: &Call,
    at: &ResourcePath,
    resource: &ResourceInfo,
    body: Body,
) -> Result<Response, Status> {
    let form = call.form(Offer::PLAIN)?;
    let options = options::write(&call.query, "CreateOptions", false)?;
    let mut question =
        input::object(call, body, &Shape::built_in(resource), options.field_validation).await?;
    if resource.gvk.kind.starts_with("Self") || resource.gvk.kind == "TokenReview" {
        // Upstream stamps what it answers at once.
        question.set("metadata.creationTimestamp", rfc3339(call.plane.clock.now()));
    }
    let plane = &call.plane;
    let answered = review::evaluate(
        &at.resource,
        &plane.authenticator,
        &plane.authority,
        &call.user,
        &at.namespace,
        question,
    );
    let document = answered.ok_or_else(Status::no_route)??;
    encode::document(&form, 201, &document)
}

/// `serviceaccounts/<name>/token`
pub async fn token(
    call: &Call,
    at: &ResourcePath,
    resource: &ResourceInfo,
    subresource: &Subresource,
    body: Body,
) -> Result<Response, Status> {
    let form = call.form(Offer::PLAIN)?;
    let options = options::write(&call.query, "CreateOptions", false)?;
    let message = kinds().kind_message(&subresource.gvk).map_or(resource.message, |message| message.id);
    let shape = Shape { kind: &subresource.gvk, message, schema: None };
    let mut request = input::object(call, body, &shape, options.field_validation).await?;
    let ctx = call.context(&options);
    let registry = call.plane.registry();
    registry
        .admit_subresource(&ctx, resource, &subresource.gvk, &at.namespace, &at.name, "token", &mut request)
        .await?;
    let issued = issue_token(
        registry.group().space(),
        call.plane.pki().issuer(),
        &at.namespace,
        &at.name,
        request,
        call.plane.clock.now(),
    )?;
    encode::document(&form, 201, &issued)
}
