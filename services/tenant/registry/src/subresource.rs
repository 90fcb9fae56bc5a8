//! Subresources that are more than a part of the object.
//!
//! `status`, `finalize`, `approval`, `ephemeralcontainers` and `resize` replace a part of their object and take
//! the same way as any update; `scale` is a view of another kind; `binding` and `eviction` are verbs.
//!
//! Not here: `token`, `log`, `exec` and the like, which store nothing (`tenant-apiserver`).

use api_kinds::ResourceInfo;
use api_machinery::{Cause, Document, Field, Gvk, Gvr, Status};
use serde_json::{Map, Value, json};
use tenant_admission::{Attributes, Operation, Reinvocation};
use tenant_client::{DeleteOptions, Patch, Propagation};

use crate::context::{Context, Deleted, GetOptions, Output};
use crate::custom::CustomResource;
use crate::kinds;
use crate::metadata;
use crate::patch::Shape;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::update::{Ownership, Part, Target};
use crate::validation::selector::selector_text;

/// Evictions a budget may have pending: more means that its controller is not keeping up.
const MAX_DISRUPTED_PODS: usize = 2000;

impl Registry {
    /// GET on `status`, `scale` and the like: the object, or the view of it.
    pub async fn get_subresource(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        options: &GetOptions,
    ) -> Result<Output, Status> {
        let resource = &self.resource(of)?;
        resource.subresource(subresource).ok_or_else(Status::no_route)?;
        let object = self.get(ctx, of, namespace, name, options).await?;
        if subresource != "scale" {
            return Ok(Output::Object(object));
        }
        let document = object.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
        if let Some(at) = resource.custom().and_then(CustomResource::scale)
            && document.get_i64(&at.spec_replicas).is_none()
        {
            let field = &at.spec_replicas;
            return Err(Status::internal(format!("the spec replicas field \".{field}\" does not exist")));
        }
        Ok(Output::Document(scale_of(resource, &document)?))
    }

    /// PUT on a subresource.
    pub async fn update_subresource(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        body: Document,
    ) -> Result<Output, Status> {
        let resource = &self.resource(of)?;
        let known = resource.subresource(subresource).ok_or_else(Status::no_route)?;
        if subresource == "scale" {
            let mut body = body;
            metadata::check_type(&known.gvk, &mut body)?;
            metadata::check_name(name, &mut body)?;
            return self.scale(ctx, resource, namespace, name, &mut |_| Ok(body.clone())).await;
        }
        let mut body = self.decoded(resource, namespace, body)?;
        metadata::check_name(name, &mut body)?;
        let target = part_target(resource, namespace, name, subresource, Ownership::Update)?;
        let (part, now) = (target.part, self.now());
        let mut make = |old: &Document| reshape(resource, part, body.clone(), old, now);
        Ok(Output::Object(self.modify(ctx, &target, &mut make).await?))
    }

    /// PATCH on a subresource; see [`Registry::patch`] for the object itself.
    pub async fn patch_subresource(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        patch: &Patch,
    ) -> Result<Output, Status> {
        let resource = &self.resource(of)?;
        let known = resource.subresource(subresource).ok_or_else(Status::no_route)?;
        if subresource == "scale" {
            let message = self.kinds.kind_message(&known.gvk).ok_or_else(Status::no_route)?.id;
            let shape = Shape { message, gvk: &known.gvk, schema: None };
            let mut make = |scale: &Document| self.patched(ctx, &shape, scale, patch);
            return self.scale(ctx, resource, namespace, name, &mut make).await;
        }
        let ownership =
            if matches!(patch, Patch::Apply { .. }) { Ownership::Applied } else { Ownership::Update };
        let target = part_target(resource, namespace, name, subresource, ownership)?;
        let (part, now) = (target.part, self.now());
        let mut make = |old: &Document| {
            let new = self.patched_object(ctx, resource, old, patch, subresource)?;
            reshape(resource, part, new, old, now)
        };
        Ok(Output::Object(self.modify(ctx, &target, &mut make).await?))
    }

    /// POST on a subresource: `binding` and `eviction`.
    pub async fn create_subresource(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        mut body: Document,
    ) -> Result<Output, Status> {
        let resource = &self.resource(of)?;
        let known = resource.subresource(subresource).ok_or_else(Status::no_route)?;
        let pods = &*resource.collection == "pods";
        if !pods || !matches!(subresource, "binding" | "eviction") {
            return Err(Status::method_not_allowed());
        }
        if subresource == "eviction" && body.api_version() == "policy/v1beta1" {
            body.set("apiVersion", "policy/v1");
        }
        metadata::check_type(&known.gvk, &mut body)?;
        let namespace = namespace.unwrap_or_default();
        metadata::check_namespace(resource, Some(namespace), &mut body)?;
        if body.name().is_empty() && subresource == "binding" {
            body.set("metadata.name", name);
        }
        if body.name() != name {
            let kind = &known.gvk.kind;
            return Err(Status::bad_request(format!("name in URL does not match name in {kind} object")));
        }
        self.admit_subresource(ctx, resource, &known.gvk, namespace, name, subresource, &mut body).await?;
        let ctx = &Context { admitted: true, ..ctx.clone() };
        if subresource == "binding" {
            self.bind(ctx, resource, namespace, name, &body).await
        } else {
            self.evict(ctx, resource, namespace, name, &body).await
        }
    }

    /// Admission of a body that is not stored. Also for `token`, which the API server answers itself.
    #[allow(clippy::too_many_arguments)] // The words of a request; a struct would only rename them.
    pub async fn admit_subresource(
        &self,
        ctx: &Context,
        resource: &ResourceInfo,
        gvk: &Gvk,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &mut Document,
    ) -> Result<(), Status> {
        self.admit_unstored(Operation::Create, ctx, resource, gvk, namespace, name, subresource, body).await
    }

    /// Admission of `exec`, `proxy` and the like, which end in a connection. Their options are their object.
    #[allow(clippy::too_many_arguments)] // As above.
    pub async fn admit_connect(
        &self,
        ctx: &Context,
        resource: &ResourceInfo,
        gvk: &Gvk,
        namespace: &str,
        name: &str,
        subresource: &str,
        options: &mut Document,
    ) -> Result<(), Status> {
        self.admit_unstored(Operation::Connect, ctx, resource, gvk, namespace, name, subresource, options)
            .await
    }

    #[allow(clippy::too_many_arguments)] // As above.
    async fn admit_unstored(
        &self,
        operation: Operation,
        ctx: &Context,
        resource: &ResourceInfo,
        gvk: &Gvk,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &mut Document,
    ) -> Result<(), Status> {
        let attributes = Attributes {
            operation,
            gvr: &resource.gvr,
            gvk,
            namespace,
            name,
            subresource,
            user: &ctx.user,
            dry_run: ctx.dry_run,
            options: ctx.options(None),
            internal: ctx.fence.is_some(),
            warnings: &ctx.warnings,
            annotations: &ctx.annotations,
            lookup: self,
            reinvocation: Reinvocation::default(),
        };
        self.admission.admit(&attributes, Some(body), None).await?;
        self.admission.validate(&attributes, Some(body), None).await?;
        Ok(())
    }

    // ---- scale ----

    async fn scale(
        &self,
        ctx: &Context,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
        make: &mut (dyn FnMut(&Document) -> Result<Document, Status> + Send),
    ) -> Result<Output, Status> {
        let mut target = part_target(resource, namespace, name, "scale", Ownership::Update)?;
        target.unconditional = true;
        let mut reshape = |old: &Document| {
            let scale = make(&scale_of(resource, old)?)?;
            let replicas = scale.get_i64("spec.replicas").unwrap_or(0);
            if replicas < 0 {
                let error =
                    Field::new("spec.replicas").invalid(replicas, "must be greater than or equal to 0");
                return Err(Status::invalid("autoscaling", "Scale", name, &[error]));
            }
            let mut new = old.clone();
            new.set(
                resource
                    .custom()
                    .and_then(CustomResource::scale)
                    .map_or("spec.replicas", |at| &at.spec_replicas),
                replicas,
            );
            // The scale's own preconditions hold for the object behind it.
            new.set("metadata.resourceVersion", scale.resource_version());
            new.set("metadata.uid", scale.uid());
            Ok(new)
        };
        let object = self.modify(ctx, &target, &mut reshape).await?;
        let document = object.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
        Ok(Output::Document(scale_of(resource, &document)?))
    }

    // ---- binding ----

    async fn bind(
        &self,
        ctx: &Context,
        resource: &Resource,
        namespace: &str,
        name: &str,
        binding: &Document,
    ) -> Result<Output, Status> {
        let node = binding.get_str("target.name").unwrap_or_default().to_owned();
        let kind = binding.get_str("target.kind").unwrap_or_default();
        if !kind.is_empty() && kind != "Node" {
            let error = Field::new("target.kind").not_supported(kind, &["Node", "<empty>"]);
            return Err(Status::invalid("", "Binding", name, &[error]));
        }
        if node.is_empty() {
            let error = Field::new("target.name").required("");
            return Err(Status::invalid("", "Binding", name, &[error]));
        }
        let of = Gvr::core("pods/binding");
        let refuse = |why: String| Status::conflict(&of, name, &why);
        let now = self.now();
        let target = part_target(resource, Some(namespace), name, "binding", Ownership::Update)?;
        let mut make = |old: &Document| {
            if old.is_deleting() {
                return Err(refuse(format!("pod {name} is being deleted, cannot be assigned to a host")));
            }
            if let Some(bound) = old.get_str("spec.nodeName").filter(|bound| !bound.is_empty()) {
                return Err(refuse(format!("pod {name} is already assigned to node {bound:?}")));
            }
            if !old.get_array("spec.schedulingGates").is_empty() {
                return Err(refuse(format!("pod {name} has non-empty .spec.schedulingGates")));
            }
            let mut new = old.clone();
            new.set("spec.nodeName", node.as_str());
            new.remove("status.nominatedNodeName");
            for part in ["labels", "annotations"] {
                let path = format!("metadata.{part}");
                if let Some(Value::Object(added)) = binding.get(&path).filter(|all| !all.is_null()) {
                    new.object_mut(&path).extend(added.clone());
                }
            }
            let condition = json!({"type": "PodScheduled", "status": "True"});
            kinds::pod::set_condition(&mut new, condition, now);
            new.set("metadata.uid", binding.uid());
            new.set("metadata.resourceVersion", binding.resource_version());
            Ok(new)
        };
        self.modify(ctx, &target, &mut make).await?;
        Ok(Output::Status(Box::new(created())))
    }

    // ---- eviction ----

    async fn evict(
        &self,
        ctx: &Context,
        resource: &Resource,
        namespace: &str,
        name: &str,
        eviction: &Document,
    ) -> Result<Output, Status> {
        let mut options = delete_options(eviction.get("deleteOptions"));
        let dry_run = ctx.dry_run || !eviction.get_array("deleteOptions.dryRun").is_empty();
        let ctx = &Context { dry_run, ..ctx.clone() };
        let pod = self.get(ctx, &resource.gvr, Some(namespace), name, &GetOptions::default()).await?;
        let document = pod.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
        let phase = document.get_str("status.phase").unwrap_or_default();
        let over = matches!(phase, "Succeeded" | "Failed") || document.is_deleting();
        if !over && phase != "Pending" {
            let guarded = self.ask_budget(ctx, namespace, &document).await?;
            if guarded == Budget::Unneeded && options.resource_version.is_none() {
                // It must not have become healthy since it was found not to be.
                options.resource_version = Some(pod.header.revision.to_string());
            }
        } else if !over && options.resource_version.is_none() {
            options.resource_version = Some(pod.header.revision.to_string());
        }
        if !ctx.dry_run {
            let now = self.now();
            let target = part_target(resource, Some(namespace), name, "eviction", Ownership::Update)?;
            let (uid, revision) = (options.uid.clone(), options.resource_version.clone());
            let mut make = |old: &Document| {
                let mut new = old.clone();
                let condition = json!({"type": "DisruptionTarget", "status": "True",
                    "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"});
                kinds::pod::set_condition(&mut new, condition, now);
                new.set("metadata.uid", uid.clone().unwrap_or_default());
                new.set("metadata.resourceVersion", revision.clone().unwrap_or_default());
                Ok(new)
            };
            let marked = self.modify(ctx, &target, &mut make).await?;
            if options.resource_version.is_some() {
                options.resource_version = Some(marked.header.revision.to_string());
            }
        }
        match self.delete(ctx, &resource.gvr, Some(namespace), name, &options).await? {
            Deleted::Gone(_) | Deleted::Pending(_) => Ok(Output::Status(Box::new(created()))),
        }
    }

    /// Takes one disruption from the budget that covers the pod, if one does.
    async fn ask_budget(&self, ctx: &Context, namespace: &str, pod: &Document) -> Result<Budget, Status> {
        use tenant_admission::Lookup;
        let of = Gvr::new("policy", "v1", "poddisruptionbudgets");
        let labels = pod.labels();
        let covering: Vec<_> = self
            .list_now(&of, namespace)
            .into_iter()
            .filter(|budget| {
                let selector = budget.field("spec.selector");
                selector.is_some_and(|selector| crate::validation::selector::matches(&selector, &labels))
            })
            .collect();
        let budget = match &covering[..] {
            [] => return Ok(Budget::None),
            [one] => one,
            _ => {
                return Err(Status::failure(
                    500,
                    api_machinery::Reason::InternalError,
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let number = |path: &str| budget.field(path).and_then(|value| value.as_i64()).unwrap_or(0);
        if !kinds::pod::is_ready(pod) {
            let always = budget.field("spec.unhealthyPodEvictionPolicy") == Some(Value::from("AlwaysAllow"));
            let (current, desired) = (number("status.currentHealthy"), number("status.desiredHealthy"));
            if always || (current >= desired && desired > 0) {
                return Ok(Budget::Unneeded);
            }
        }
        let resource = &self.resource(&of)?;
        let name = budget.header.name.to_string();
        let target = Target {
            resource,
            namespace,
            name: &name,
            part: Part::Subresource("status"),
            ownership: Ownership::Update,
            unconditional: true,
        };
        let now = Lookup::now(self);
        let mut make = |old: &Document| take_disruption(old, pod.name(), now);
        self.modify(ctx, &target, &mut make).await?;
        Ok(Budget::Taken)
    }

    fn list_now(&self, of: &Gvr, namespace: &str) -> Vec<std::sync::Arc<api_machinery::Object>> {
        tenant_admission::Lookup::list(self, of, Some(namespace))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Budget {
    /// No budget covers the pod.
    None,
    /// The pod is not healthy and so takes nothing away.
    Unneeded,
    Taken,
}

fn take_disruption(budget: &Document, pod: &str, now: jiff::Timestamp) -> Result<Document, Status> {
    let of = Gvr::new("policy", "v1", "poddisruptionbudget");
    let name = budget.name();
    let number = |path: &str| budget.get_i64(path).unwrap_or(0);
    let violated = |retry: u32, why: String| {
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
        Status::too_many_requests(text, retry).with_cause(cause)
    };
    if number("status.observedGeneration") < budget.generation() {
        return Err(violated(
            10,
            format!("The disruption budget {name} is still being processed by the server."),
        ));
    }
    let allowed = number("status.disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden(&of, name, "pdb disruptions allowed is negative"));
    }
    let disrupted = budget.get("status.disruptedPods").and_then(Value::as_object).map_or(0, Map::len);
    if disrupted > MAX_DISRUPTED_PODS {
        return Err(Status::forbidden(
            &of,
            name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let conditions = budget.get_array("status.conditions");
        let text = |name: &str| {
            let found =
                conditions.iter().find(|one| one["type"] == "DisruptionAllowed" && one["status"] == "False");
            found.and_then(|one| one[name].as_str()).unwrap_or_default().to_owned()
        };
        let (reason, message) = (text("reason"), text("message"));
        let (desired, current) = (number("status.desiredHealthy"), number("status.currentHealthy"));
        let why = if reason == "SyncFailed" && !message.is_empty() {
            format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            )
        } else if current <= desired {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        } else if !message.is_empty() {
            format!(
                "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
            )
        } else {
            format!("The disruption budget {name} does not allow evicting pods currently")
        };
        return Err(violated(0, why));
    }
    let mut new = budget.clone();
    new.metadata_mut().remove("resourceVersion");
    new.set("status.disruptionsAllowed", allowed - 1);
    if allowed == 1 {
        let conditions = new.object_mut("status").entry("conditions").or_insert_with(|| json!([]));
        for condition in conditions.as_array_mut().into_iter().flatten() {
            if condition["type"] == "DisruptionAllowed" && condition["status"] == "True" {
                condition["status"] = "False".into();
                condition["reason"] = "InsufficientPods".into();
                condition["lastTransitionTime"] = base_clock::rfc3339(now).into();
            }
        }
    }
    new.object_mut("status.disruptedPods").insert(pod.to_owned(), base_clock::rfc3339(now).into());
    Ok(new)
}

/// What binding and eviction answer.
fn created() -> Status {
    let mut status = Status::success(api_machinery::Details::default());
    status.details = None;
    status.code = 201;
    status
}

/// `DeleteOptions` from a body.
pub(crate) fn delete_options(body: Option<&Value>) -> DeleteOptions {
    let text = |pointer: &str| body?.pointer(pointer)?.as_str().map(str::to_owned);
    let propagation = match text("/propagationPolicy").as_deref() {
        Some("Orphan") => Some(Propagation::Orphan),
        Some("Foreground") => Some(Propagation::Foreground),
        Some("Background") => Some(Propagation::Background),
        _ => None,
    };
    DeleteOptions {
        propagation,
        grace_period_seconds: body.and_then(|body| body.get("gracePeriodSeconds")?.as_i64()),
        uid: text("/preconditions/uid"),
        resource_version: text("/preconditions/resourceVersion"),
    }
}

fn part_target<'a>(
    resource: &'a Resource,
    namespace: Option<&'a str>,
    name: &'a str,
    subresource: &str,
    ownership: Ownership,
) -> Result<Target<'a>, Status> {
    let part = match subresource {
        "status" => Part::Status,
        "scale" => Part::Subresource("scale"),
        "binding" => Part::Subresource("binding"),
        "eviction" => Part::Subresource("eviction"),
        "finalize" => Part::Subresource("finalize"),
        "approval" => Part::Subresource("approval"),
        "ephemeralcontainers" => Part::Subresource("ephemeralcontainers"),
        "resize" => Part::Subresource("resize"),
        _ => return Err(Status::method_not_allowed()),
    };
    let unconditional = resource.strategy().updates_unconditionally();
    Ok(Target { resource, namespace: namespace.unwrap_or_default(), name, part, ownership, unconditional })
}

/// `old` with the part of `new` that the subresource is about.
fn reshape(
    resource: &Resource,
    part: Part,
    new: Document,
    old: &Document,
    now: jiff::Timestamp,
) -> Result<Document, Status> {
    let copy = |shaped: &mut Document, path: &str| match new.get(path) {
        Some(value) => shaped.set(path, value.clone()),
        None => {
            shaped.remove(path);
        }
    };
    // All of the old object but `path`.
    let take = |path: &str| {
        let mut shaped = old.clone();
        // Preconditions are the client's, and so is what its managers own.
        shaped.set("metadata.resourceVersion", new.resource_version());
        shaped.set("metadata.uid", new.uid());
        if let Some(managed) = new.get("metadata.managedFields") {
            shaped.set("metadata.managedFields", managed.clone());
        }
        copy(&mut shaped, path);
        shaped
    };
    // Labels, annotations and the like may change along with `path`.
    let take_with_metadata = |path: &str| {
        let mut shaped = old.clone();
        copy(&mut shaped, "metadata");
        copy(&mut shaped, path);
        shaped
    };
    let invalid = |errors: Vec<api_machinery::FieldError>, shaped: Document| {
        if errors.is_empty() {
            return Ok(shaped);
        }
        Err(Status::invalid(&resource.gvk.group, &resource.gvk.kind, old.name(), &errors))
    };
    match part {
        Part::Subresource("finalize") => {
            let shaped = take_with_metadata("spec.finalizers");
            let field = Field::new("spec.finalizers");
            let errors = shaped.get_array("spec.finalizers").iter().enumerate().flat_map(|(at, name)| {
                crate::validation::meta::finalizer_name(name.as_str().unwrap_or_default(), &field.index(at))
            });
            let errors = errors.collect();
            invalid(errors, shaped)
        }
        Part::Subresource("approval") => {
            let mut shaped = take_with_metadata("status.conditions");
            kinds::certificates::stamp_conditions(&mut shaped, old, now);
            let errors = kinds::certificates::validate_approval(&shaped, old);
            invalid(errors, shaped)
        }
        Part::Subresource("ephemeralcontainers") => {
            let mut shaped = take("spec.ephemeralContainers");
            resource.strategy().defaults(&mut shaped);
            let errors = kinds::pod::validate_ephemeral_update(&shaped, old);
            invalid(errors, shaped)
        }
        Part::Subresource("resize") => {
            let mut shaped = old.clone();
            shaped.set("metadata.resourceVersion", new.resource_version());
            shaped.set("metadata.uid", new.uid());
            let errors = kinds::pod::resize(&mut shaped, &new, old);
            invalid(errors, shaped)
        }
        // The status part is cut to its size by the generic path.
        _ => Ok(new),
    }
}

/// `autoscaling/v1` Scale of anything with `spec.replicas`, or of a custom resource whose definition says where
/// its replicas are.
fn scale_of(resource: &Resource, object: &Document) -> Result<Document, Status> {
    let custom = resource.custom().and_then(CustomResource::scale);
    let mut metadata = Map::new();
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.get(&format!("metadata.{name}")) {
            metadata.insert(name.to_owned(), value.clone());
        }
    }
    let mut scale = Document::default();
    scale.set("apiVersion", "autoscaling/v1");
    scale.set("kind", "Scale");
    scale.set("metadata", metadata);
    let (spec, status) =
        custom.map_or(("spec.replicas", "status.replicas"), |at| (&*at.spec_replicas, &*at.status_replicas));
    // Where none are written down, a change of the scale begins from none; only showing it is refused.
    let replicas = object.get_i64(spec).unwrap_or(0);
    scale.set("spec", json!({}));
    if replicas != 0 {
        scale.set("spec.replicas", replicas);
    }
    scale.set("status.replicas", object.get_i64(status).unwrap_or(0));
    if let Some(at) = custom {
        if let Some(selector) = at.selector.as_deref().and_then(|path| object.get_str(path)) {
            scale.set("status.selector", selector);
        }
        return Ok(scale);
    }
    if let Some(selector) = object.get("spec.selector") {
        let text = selector_text(selector);
        if !text.is_empty() {
            scale.set("status.selector", text);
        }
    }
    Ok(scale)
}
