//! `patch`: the four patch types on an object, and on the views that some subresources are.

use api_kinds::MessageId;
use api_machinery::{Document, Field, Gvk, Gvr, Reason, Status};
use api_patch::PatchError;
use serde_json::Value;
use tenant_client::Patch;

use crate::context::{Context, FieldValidation, Written};
use crate::convert;
use crate::custom::Schema;
use crate::manage;
use crate::metadata;
use crate::normalize::normalize;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::update::{Ownership, Part, Target};

/// What a patched document must be.
pub(crate) struct Shape<'a> {
    pub(crate) message: MessageId,
    pub(crate) gvk: &'a Gvk,
    /// Of a custom resource.
    pub(crate) schema: Option<&'a Schema>,
}

impl<'a> Shape<'a> {
    fn of(resource: &'a Resource) -> Shape<'a> {
        let schema = resource.custom().and_then(|custom| custom.schema());
        Shape { message: resource.message, gvk: &resource.gvk, schema }
    }
}

impl Registry {
    /// Patches an object. Without a resourceVersion in the patch it is applied again to whatever another
    /// writer left; server-side apply creates what is missing. For subresources see
    /// [`Registry::patch_subresource`].
    pub async fn patch(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        patch: &Patch,
    ) -> Result<Written, Status> {
        let resource = &self.resource(of)?;
        let applying = matches!(patch, Patch::Apply { .. });
        let target = Target {
            resource,
            namespace: namespace.unwrap_or_default(),
            name,
            part: Part::Object,
            ownership: if applying { Ownership::Applied } else { Ownership::Update },
            // A patch says what is to change, so what else changed is no matter.
            unconditional: true,
        };
        if let Patch::Apply { document, .. } = patch
            && self.entry(resource, target.namespace, name).is_none()
        {
            match self.apply_new(ctx, resource, namespace, name, document).await {
                Err(status) if status.is_already_exists() => {}
                other => return other,
            }
        }
        let mut make = |old: &Document| self.patched_object(ctx, resource, old, patch, "");
        let object = self.modify(ctx, &target, &mut make).await?;
        Ok(Written { object, created: false })
    }

    async fn apply_new(
        &self,
        ctx: &Context,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        config: &Value,
    ) -> Result<Written, Status> {
        let config = self.config(ctx, &Shape::of(resource), config)?;
        if !config.uid().is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                config.uid()
            );
            return Err(Status::conflict(&resource.gvr, name, &why));
        }
        let version = resource.gvk.api_version();
        let tracking = manage::tracking(ctx, resource, resource.message, &version, "", self.now());
        let object =
            api_patch::apply(&tracking, None, &config, false).map_err(|cause| patch_status(&cause))?;
        let mut object = self.decoded(resource, namespace, object)?;
        metadata::check_name(name, &mut object)?;
        self.may_create(ctx, resource, namespace.unwrap_or_default(), name)?;
        self.create_decoded(ctx, resource, object, Ownership::Applied).await
    }

    /// `old`, patched; in and out in the storage version.
    pub(crate) fn patched_object(
        &self,
        ctx: &Context,
        resource: &Resource,
        old: &Document,
        patch: &Patch,
        subresource: &str,
    ) -> Result<Document, Status> {
        let mut current = old.clone();
        convert::to_served(resource, &mut current);
        let mut new = match patch {
            Patch::Apply { document, force, .. } => {
                let config = self.config(ctx, &Shape::of(resource), document)?;
                let version = resource.gvk.api_version();
                let tracking =
                    manage::tracking(ctx, resource, resource.message, &version, subresource, self.now());
                let mut new = api_patch::apply(&tracking, Some(&current), &config, *force)
                    .map_err(|cause| patch_status(&cause))?;
                // A configuration may insist on a revision like any other write.
                if !config.resource_version().is_empty() {
                    new.set("metadata.resourceVersion", config.resource_version());
                }
                new
            }
            _ => self.patched(ctx, &Shape::of(resource), &current, patch)?,
        };
        metadata::check_type(&resource.gvk, &mut new)?;
        metadata::check_name(old.name(), &mut new)?;
        if resource.namespaced && new.namespace() != old.namespace() {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        normalize(resource.message, &resource.gvk, &mut new)?;
        convert::to_storage(resource, &mut new);
        Ok(new)
    }

    /// `current`, patched and checked against the shape of its kind.
    pub(crate) fn patched(
        &self,
        ctx: &Context,
        shape: &Shape<'_>,
        current: &Document,
        patch: &Patch,
    ) -> Result<Document, Status> {
        let Shape { message, gvk, schema } = *shape;
        let before = Value::Object(current.0.clone());
        let (after, shown) = match patch {
            Patch::Json(operations) => (
                api_patch::json_patch(&before, operations).map_err(|cause| patch_status(&cause))?,
                operations,
            ),
            Patch::Merge(changes) => {
                if !changes.is_object() {
                    return Err(Status::bad_request(
                        "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
                    ));
                }
                (api_patch::merge_patch(&before, changes), changes)
            }
            Patch::Strategic(changes) => (
                api_patch::strategic_merge(message, &before, changes)
                    .map_err(|cause| patch_status(&cause))?,
                changes,
            ),
            // Only views come here with it: their one field is set, and nobody records who owns a view.
            Patch::Apply { document, .. } => (api_patch::merge_patch(&before, document), document),
        };
        let mut after = Document::from_value(after)
            .ok_or_else(|| Status::bad_request("the patched object is not a JSON object"))?;
        let mut problems =
            api_patch::check(message, &mut after).map_err(|cause| decode_status(gvk, &cause))?;
        if let Some(schema) = schema {
            problems.extend(schema.prune(&mut after).map_err(Status::bad_request)?);
        }
        self.report(ctx, problems, |text| {
            let error = Field::new("patch").invalid(shown.to_string(), text);
            Status::invalid("", "", "", &[error])
        })?;
        Ok(after)
    }

    /// The configuration of an apply, in canonical form.
    fn config(&self, ctx: &Context, shape: &Shape<'_>, config: &Value) -> Result<Document, Status> {
        let Shape { message, gvk, schema } = *shape;
        let mut config = Document::from_value(config.clone())
            .ok_or_else(|| Status::bad_request("error decoding YAML: the configuration is not an object"))?;
        let (version, kind) = (gvk.api_version(), &*gvk.kind);
        if config.api_version() != version || config.kind() != kind {
            metadata::check_type(gvk, &mut config)?;
        }
        let mut problems =
            api_patch::check(message, &mut config).map_err(|cause| decode_status(gvk, &cause))?;
        if let Some(schema) = schema {
            problems.extend(schema.prune(&mut config).map_err(Status::bad_request)?);
            undeclared(&config, &problems)?;
        }
        self.report(ctx, problems, |text| {
            Status::bad_request(format!("error strict decoding YAML: {text}"))
        })?;
        Ok(config)
    }

    fn report(
        &self,
        ctx: &Context,
        problems: Vec<String>,
        refuse: impl FnOnce(String) -> Status,
    ) -> Result<(), Status> {
        if problems.is_empty() {
            return Ok(());
        }
        match ctx.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => problems.into_iter().for_each(|text| ctx.warnings.add(text)),
            FieldValidation::Strict => return Err(refuse(api_patch::strict_error(&problems))),
        }
        Ok(())
    }
}

/// What a custom resource's schema does not know nobody can own: refused, whatever the field validation.
fn undeclared(config: &Document, problems: &[String]) -> Result<(), Status> {
    let path = |problem: &String| {
        let path: String = serde_json::from_str(problem.strip_prefix("unknown field ")?).ok()?;
        Some(format!(".{path}: field not declared in schema"))
    };
    let found: Vec<String> = problems.iter().filter_map(path).collect();
    let shown = match &found[..] {
        [] => return Ok(()),
        [one] => one.clone(),
        several => format!("errors:\n  {}", several.join("\n  ")),
    };
    let (namespace, name) = (config.namespace(), config.name());
    let kind = format!("{}, Kind={}", config.api_version(), config.kind());
    let why = format!("failed to create typed patch object ({namespace}/{name}; {kind}): {shown}");
    Err(Status::failure(500, Reason::Unknown, why))
}

fn patch_status(cause: &PatchError) -> Status {
    cause.to_status()
}

fn decode_status(gvk: &Gvk, cause: &PatchError) -> Status {
    Status::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}: {cause}",
        gvk.kind, gvk.version, gvk.kind
    ))
}
