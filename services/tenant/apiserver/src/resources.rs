//! Verbs on resources: what a URL and a method ask for, as calls of the registry and answers in bytes.
//!
//! Not here: what the verbs do (`tenant-registry`), streams (`watch`, `kubelet`, `proxy`).

use std::borrow::Cow;

use api_kinds::{ResourceInfo, Subresource, kinds};
use api_machinery::Status;
use http::Method;
use tenant_registry::{Context, Deleted, Output, Registry, Resource};

use crate::body::Response;
use crate::encode::{self, Form};
use crate::input::Shape;
use crate::lists;
use crate::negotiate::Offer;
use crate::options::{self, WriteOptions};
use crate::pipeline::{Call, Inbound};
use crate::request::ResourcePath;
use crate::tables::Include;
use crate::{components, connect, input, kubelet, proxy, reviews, watch};

/// What a URL's resource is in this cluster.
pub fn lookup(registry: &Registry, at: &ResourcePath) -> Option<Resource> {
    registry.find(&at.group, &at.version, &at.resource)
}

pub async fn answer(call: &Call, at: &ResourcePath, inbound: Inbound) -> Result<Response, Status> {
    let resource = &call.plane.registry().find_served(&at.group, &at.version, &at.resource).await?;
    check_scope(resource, at, &call.info.verb)?;
    if !at.subresource.is_empty() {
        let subresource = resource.subresource(&at.subresource).ok_or_else(Status::no_route)?;
        return answer_subresource(call, at, resource, subresource, inbound).await;
    }
    if call.method == Method::OPTIONS || !resource.allows(&call.info.verb) {
        return Err(Status::method_not_allowed());
    }
    // Authorization looked at the URL's name. A body that could say another, or a verb that finds no name in
    // the URL, would act on something else than what was allowed.
    if at.named_in_path != matches!(call.info.verb.as_str(), "get" | "update" | "patch" | "delete")
        && call.info.verb != "watch"
    {
        return Err(Status::method_not_allowed());
    }
    if !resource.is_custom() {
        if tenant_auth::review::GROUPS.contains(&at.group.as_str()) {
            return reviews::answer(call, at, resource, inbound.body).await;
        }
        if resource.gvk.kind == "ComponentStatus" {
            return components::answer(call, at, resource).await;
        }
        if resource.gvk.kind == "Binding" {
            return bind(call, at, resource, inbound).await;
        }
    }
    if let Some(why) = deprecation(resource) {
        call.warnings.add(why);
    }
    let registry = call.plane.registry();
    let gvr = &resource.gvr;
    let namespace = namespace_of(resource, at);
    let offer = Offer::of(resource);
    match call.info.verb.as_str() {
        "get" => {
            let form = call.form(offer)?;
            let ctx = call.context(&WriteOptions::default());
            let options = options::get(&call.query);
            let object = registry.get(&ctx, gvr, namespace, &at.name, &options).await?;
            encode::object(&form, 200, resource, &object)
        }
        "list" => {
            let form = call.form(offer)?;
            let ctx = call.context(&WriteOptions::default());
            let options = options::list(&call.query)?;
            let list = registry.list(&ctx, gvr, namespace, &options).await?;
            lists::answer(&form, resource, list).await
        }
        "watch" => {
            let ctx = call.context(&WriteOptions::default());
            watch::answer(call, at, resource, inbound.upgrade, &ctx).await
        }
        "create" => {
            let form = call.form(offer)?;
            let options = options::write(&call.query, "CreateOptions", false)?;
            let document =
                input::object(call, inbound.body, &Shape::of(resource), options.field_validation).await?;
            let written = registry.create(&call.context(&options), gvr, namespace, document).await?;
            encode::object(&form, 201, resource, &written.object)
        }
        "update" => {
            let form = call.form(offer)?;
            let options = options::write(&call.query, "UpdateOptions", false)?;
            let document =
                input::object(call, inbound.body, &Shape::of(resource), options.field_validation).await?;
            let ctx = call.context(&options);
            let written = registry.update(&ctx, gvr, namespace, &at.name, document).await?;
            encode::object(&form, if written.created { 201 } else { 200 }, resource, &written.object)
        }
        "patch" => {
            let form = call.form(offer)?;
            let options = options::write(&call.query, "PatchOptions", input::is_apply(call))?;
            let patch = input::patch(call, inbound.body, !resource.is_custom(), &options).await?;
            let ctx = call.context(&options);
            let written = registry.patch(&ctx, gvr, namespace, &at.name, &patch).await?;
            encode::object(&form, if written.created { 201 } else { 200 }, resource, &written.object)
        }
        "delete" => {
            let form = call.form(offer)?;
            let body = input::delete_options(call, inbound.body).await?;
            let (options, dry_run) = options::delete(&call.query, body.as_ref())?;
            let ctx = call.context(&WriteOptions { dry_run, ..WriteOptions::default() });
            match registry.delete(&ctx, gvr, namespace, &at.name, &options).await? {
                Deleted::Gone(output) => answer_output(&form, 200, resource, output),
                Deleted::Pending(object) => encode::object(&form, 200, resource, &object),
            }
        }
        "deletecollection" => {
            let form = call.form(offer)?;
            let body = input::delete_options(call, inbound.body).await?;
            let (options, dry_run) = options::delete(&call.query, body.as_ref())?;
            let list = options::list(&call.query)?;
            let ctx = call.context(&WriteOptions { dry_run, ..WriteOptions::default() });
            let deleted = registry.delete_collection(&ctx, gvr, namespace, &list, &options).await?;
            lists::answer(&form, resource, deleted).await
        }
        _ => Err(Status::method_not_allowed()),
    }
}

async fn answer_subresource(
    call: &Call,
    at: &ResourcePath,
    resource: &Resource,
    subresource: &Subresource,
    inbound: Inbound,
) -> Result<Response, Status> {
    if at.name.is_empty() || (at.rest.as_deref().is_some_and(|rest| rest != "/") && at.subresource != "proxy")
    {
        return Err(Status::no_route());
    }
    if !subresource.allows(&call.info.verb) {
        return Err(Status::method_not_allowed());
    }
    let gvr = &resource.gvr;
    let namespace = namespace_of(resource, at);
    if connect::is_connect(&at.subresource) {
        connect::admit(call, at, resource, subresource).await?;
    }
    match at.subresource.as_str() {
        "log" => return kubelet::log(call, at, inbound).await,
        "exec" | "attach" | "portforward" => return kubelet::stream(call, at, inbound).await,
        "proxy" => return proxy::answer(call, at, inbound).await,
        "token" => return reviews::token(call, at, resource, subresource, inbound.body).await,
        _ => {}
    }
    let registry = call.plane.registry();
    // `status` and its like carry their parent's kind, which has the parent's shape.
    let own = subresource.gvk == resource.gvk;
    let form = call.form(if own { Offer::of(resource) } else { Offer::OBJECTS })?;
    let message = kinds().kind_message(&subresource.gvk).filter(|_| !own);
    let shape = match message {
        Some(message) => Shape { kind: &subresource.gvk, message: message.id, schema: None },
        None => Shape { kind: &subresource.gvk, ..Shape::of(resource) },
    };
    let (code, output) = match call.info.verb.as_str() {
        "get" => {
            let ctx = call.context(&WriteOptions::default());
            let options = options::get(&call.query);
            (200, registry.get_subresource(&ctx, gvr, namespace, &at.name, &at.subresource, &options).await?)
        }
        "create" => {
            let options = options::write(&call.query, "CreateOptions", false)?;
            let document = input::object(call, inbound.body, &shape, options.field_validation).await?;
            let ctx = call.context(&options);
            (
                201,
                registry
                    .create_subresource(&ctx, gvr, namespace, &at.name, &at.subresource, document)
                    .await?,
            )
        }
        "update" => {
            let options = options::write(&call.query, "UpdateOptions", false)?;
            let document = input::object(call, inbound.body, &shape, options.field_validation).await?;
            let ctx = call.context(&options);
            (
                200,
                registry
                    .update_subresource(&ctx, gvr, namespace, &at.name, &at.subresource, document)
                    .await?,
            )
        }
        "patch" => {
            let options = options::write(&call.query, "PatchOptions", input::is_apply(call))?;
            let patch = input::patch(call, inbound.body, !resource.is_custom(), &options).await?;
            let ctx = call.context(&options);
            (200, registry.patch_subresource(&ctx, gvr, namespace, &at.name, &at.subresource, &patch).await?)
        }
        _ => return Err(Status::method_not_allowed()),
    };
    answer_output(&form, code, resource, output)
}

/// `POST …/bindings`: the old way to say `pods/<name>/binding`.
async fn bind(
    call: &Call,
    at: &ResourcePath,
    resource: &Resource,
    inbound: Inbound,
) -> Result<Response, Status> {
    let form = call.form(Offer::PLAIN)?;
    let options = options::write(&call.query, "CreateOptions", false)?;
    let binding = input::object(call, inbound.body, &Shape::of(resource), options.field_validation).await?;
    let name = binding.name().to_owned();
    let ctx = call.context(&options);
    let namespace = Some(at.namespace.as_str());
    let output = call
        .plane
        .registry()
        .create_subresource(&ctx, &kubelet::PODS, namespace, &name, "binding", binding)
        .await?;
    answer_output(&form, 201, resource, output)
}

pub fn answer_output(
    form: &Form,
    code: u16,
    resource: &Resource,
    output: Output,
) -> Result<Response, Status> {
    match output {
        Output::Object(object) => encode::object(form, code, resource, &object),
        Output::Document(document) => encode::document(form, code, &document),
        Output::Status(status) => {
            let mut status = *status;
            // A success says so in its code as well.
            if status.status == "Success" {
                status.code = code;
            }
            Ok(encode::status(&status, form.chosen))
        }
    }
}

/// Namespaced resources live below a namespace, others do not; only lists may look at all namespaces.
fn check_scope(resource: &ResourceInfo, at: &ResourcePath, verb: &str) -> Result<(), Status> {
    if !resource.namespaced {
        let own = resource.gvr.resource == "namespaces" && resource.gvr.group.is_empty();
        return if at.namespace.is_empty() || own { Ok(()) } else { Err(Status::no_route()) };
    }
    if !at.namespace.is_empty() {
        return Ok(());
    }
    match verb {
        "list" | "watch" => Ok(()),
        _ if at.named_in_path || resource.is_custom() => Err(Status::no_route()),
        // The collection exists, but nothing can be put into or taken out of all namespaces at once.
        _ => Err(Status::method_not_allowed()),
    }
}

fn namespace_of<'a>(resource: &ResourceInfo, at: &'a ResourcePath) -> Option<&'a str> {
    (resource.namespaced && !at.namespace.is_empty()).then_some(at.namespace.as_str())
}

/// What every request for an old resource is told.
fn deprecation(resource: &Resource) -> Option<Cow<'_, str>> {
    if let Some(custom) = resource.custom() {
        return custom.deprecation().map(Cow::Borrowed);
    }
    match (&*resource.gvr.group, &*resource.gvr.resource) {
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into())
        }
        _ => None,
    }
}

impl Call {
    /// How the answer is to look; 406 before anything is done.
    pub fn form(&self, offer: Offer) -> Result<Form, Status> {
        Ok(Form {
            chosen: self.accept.choose(offer)?,
            gzip: self.gzip,
            include: Include::of(&self.query)?,
            now: self.plane.clock.now(),
        })
    }

    /// Who asks, for the registry.
    pub fn context(&self, options: &WriteOptions) -> Context {
        let agent = || manager_of(self.header("user-agent").unwrap_or_default());
        Context {
            user: self.user.clone(),
            dry_run: options.dry_run,
            field_manager: options.field_manager.clone().unwrap_or_else(agent),
            field_validation: options.field_validation,
            fence: None,
            request_id: self.request_id.clone(),
            warnings: self.warnings.clone(),
            annotations: self.annotations.clone(),
            admitted: false,
        }
    }
}

/// The first word of the user agent, as upstream names managers that did not name themselves.
fn manager_of(agent: &str) -> String {
    let word = agent.split('/').next().unwrap_or_default();
    let printable = word.chars().filter(|c| !c.is_control());
    let mut name = String::new();
    for c in printable {
        if name.len() + c.len_utf8() > 128 {
            break;
        }
        name.push(c);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_the_first_word_of_the_agent() {
        for (agent, wanted) in [
            ("kubectl/v1.36.0 (linux/amd64) kubernetes/abc", "kubectl"),
            ("e2e.test/v1.36 -- [sig-x]", "e2e.test"),
            ("", ""),
            ("curl", "curl"),
        ] {
            assert_eq!(manager_of(agent), wanted);
        }
    }

    #[test]
    fn scopes_are_told_apart() {
        let at = |resource: &str, namespace: &str, named: bool| ResourcePath {
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            named_in_path: named,
            ..ResourcePath::default()
        };
        for (path, verb, wanted) in [
            (at("pods", "blue", true), "get", 200),
            (at("pods", "", false), "list", 200),
            (at("pods", "", false), "create", 405),
            (at("pods", "", true), "get", 404),
            (at("nodes", "blue", true), "get", 404),
            (at("nodes", "", true), "get", 200),
            (at("namespaces", "blue", true), "get", 200),
        ] {
            let got = check_scope(kinds().find("", "v1", &path.resource).unwrap(), &path, verb)
                .map_or_else(|status| status.code, |()| 200);
            assert_eq!(got, wanted, "{path:?} {verb}");
        }
    }
}
