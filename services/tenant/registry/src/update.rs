//! `update`, and the loop that every change of an existing object goes through.

use std::sync::Arc;

use api_kinds::defaults;
use api_machinery::{Document, Gvr, Status};
use store_mvcc::{Entry, Expect, Op, Rejected};
use store_raft::WriteError;
use tenant_admission::{Attributes, Operation, Reinvocation};

use crate::context::{Context, Written};
use crate::create::ROUNDS;
use crate::error::write_status;
use crate::limit::put_within_limit;
use crate::manage;
use crate::metadata;
use crate::registry::{Registry, key, unstored};
use crate::resource::Resource;
use crate::strategy::{Moment, Strategy, Write};
use crate::validation::meta;

/// Which part of the object a change may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status, where the kind separates it.
    Object,
    /// The status, and nothing else but metadata.
    Status,
    /// What the subresource's own code changed, which is trusted to have changed nothing else.
    Subresource(&'static str),
}

impl Part {
    /// Changes what somebody wants, which is a new generation; binding a pod, say, only records what is.
    fn wants(self) -> bool {
        matches!(self, Part::Object | Part::Subresource("scale" | "resize" | "ephemeralcontainers"))
    }
    pub(crate) fn subresource(self) -> &'static str {
        match self {
            Part::Object => "",
            Part::Status => "status",
            Part::Subresource(name) => name,
        }
    }
}

/// Who wrote, for managed fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The fields that changed are now the request's manager's.
    Update,
    /// Server-side apply has recorded ownership already.
    Applied,
}

pub(crate) struct Target<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) part: Part,
    pub(crate) ownership: Ownership,
    /// A change without a resourceVersion is decided again when it meets another one.
    pub(crate) unconditional: bool,
}

impl Registry {
    /// Replaces an object or its status. Other subresources that take a PUT (`scale`, `approval`, `finalize`,
    /// `ephemeralcontainers`, `resize`) are found in `subresource`.
    pub async fn update(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        object: Document,
    ) -> Result<Written, Status> {
        let resource = &self.resource(of)?;
        let mut object = self.decoded(resource, namespace, object)?;
        metadata::check_name(name, &mut object)?;
        let target = Target {
            resource,
            namespace: namespace.unwrap_or_default(),
            name,
            part: Part::Object,
            ownership: Ownership::Update,
            unconditional: resource.strategy().updates_unconditionally(),
        };
        let missing = self.entry(resource, target.namespace, name).is_none();
        if missing && resource.strategy().creates_on_update() && object.resource_version().is_empty() {
            if !object.uid().is_empty() {
                return Err(Status::conflict(
                    &resource.gvr,
                    name,
                    &format!(
                        "Precondition failed: UID in precondition: {}, UID in object meta: ",
                        object.uid()
                    ),
                ));
            }
            self.may_create(ctx, resource, target.namespace, name)?;
            match self.create_decoded(ctx, resource, object.clone(), Ownership::Update).await {
                // Somebody was quicker: then it is an update after all.
                Err(status) if status.is_already_exists() => {}
                other => return other,
            }
        }
        let written = self.modify(ctx, &target, &mut |_| Ok(object.clone())).await?;
        Ok(Written { object: written, created: false })
    }

    /// Reads, lets `make` say what the object is to become, checks and writes; again if another was quicker
    /// and the client did not insist on a revision. `make` works in the storage version.
    pub(crate) async fn modify(
        &self,
        ctx: &Context,
        target: &Target<'_>,
        make: &mut (dyn FnMut(&Document) -> Result<Document, Status> + Send),
    ) -> Result<Arc<api_machinery::Object>, Status> {
        let Target { resource, namespace, name, .. } = *target;
        let mut found: Option<Arc<Entry>> = self.entry(resource, namespace, name);
        if found.is_none() {
            // A follower may not have applied the creation yet; a 404 must be the truth.
            self.barrier().await?;
            found = self.entry(resource, namespace, name);
        }
        for _ in 0..ROUNDS {
            let entry = found.take().ok_or_else(|| Status::not_found(&resource.gvr, name))?;
            let old = self.opened(resource, &entry).await?;
            let new = make(&old)?;
            let insists = !new.resource_version().is_empty() && new.resource_version() != "0";
            if insists && new.resource_version() != old.resource_version() {
                return Err(Status::stale(&resource.gvr, name));
            }
            let decided = self.decide_update(ctx, target, new, &old).await?;
            let Some((new, mut ops)) = decided else { return self.served(resource, &entry).await };
            if ctx.dry_run {
                return unstored(resource, &new);
            }
            let key = key(resource, namespace, name);
            let expect = Expect::At(entry.modified);
            let vanishes = vanishes(resource, &new);
            ops.insert(
                0,
                if vanishes {
                    Op::Delete { key, expect }
                } else {
                    let stored = self.closed(resource, &new).await?;
                    put_within_limit(resource, key, stored, expect, self.now().as_millisecond())?
                },
            );
            match self.group.write(self.command(ctx, ops)).await {
                Ok(applied) => {
                    let first = applied.into_iter().next();
                    return match first.and_then(|first| first.entry) {
                        Some(entry) => self.served(resource, &entry).await,
                        None => unstored(resource, &new),
                    };
                }
                // Another was quicker. Whoever insists on a revision is refused when it is compared again; a
                // patch has none of its own and is applied to what is there now.
                Err(WriteError::Rejected(Rejected::Conflict { op: 0, found: now, .. })) => found = now,
                Err(WriteError::Rejected(Rejected::Conflict { .. })) => {
                    tokio::task::yield_now().await;
                    found = self.entry(resource, namespace, name);
                }
                Err(other) => return Err(write_status(&other)),
            }
        }
        Err(Status::stale(&resource.gvr, name))
    }

    /// `None` when the change changes nothing.
    async fn decide_update(
        &self,
        ctx: &Context,
        target: &Target<'_>,
        mut new: Document,
        old: &Document,
    ) -> Result<Option<(Document, Vec<Op>)>, Status> {
        let Target { resource, namespace, name, part, .. } = *target;
        let strategy = resource.strategy();
        let now = self.now();
        let path = key(resource, namespace, name).to_string();
        metadata::check_uid(resource, new.uid(), old, &path)?;
        if !target.unconditional && new.resource_version().is_empty() {
            let field = api_machinery::Field::new("metadata.resourceVersion");
            let error = field.invalid(0, "must be specified for an update");
            return Err(self.invalid(resource, name, &[error]));
        }
        metadata::carry(&mut new, old);
        let moment = Moment {
            now,
            user: &ctx.user,
            requested: &resource.gvr,
            resource,
            lookup: self,
            space: self.group.space(),
        };
        let message = self.storage_message(resource);
        self.confine(&moment, strategy, part, &mut new, old);
        defaults::apply(message, &mut new);
        strategy.defaults(&mut new);

        let attributes = Attributes {
            operation: Operation::Update,
            gvr: &resource.gvr,
            gvk: &resource.gvk,
            namespace,
            name,
            subresource: part.subresource(),
            user: &ctx.user,
            dry_run: ctx.dry_run,
            options: ctx.options(None),
            internal: ctx.fence.is_some(),
            warnings: &ctx.warnings,
            annotations: &ctx.annotations,
            lookup: self,
            reinvocation: Reinvocation::default(),
        };
        if !ctx.admitted {
            self.admission.admit(&attributes, Some(&mut new), Some(old)).await?;
            if let Some(schema) = resource.custom().and_then(|custom| custom.schema()) {
                // Whatever a plug-in or a webhook put in, no field comes in that the schema does not have.
                schema.prune(&mut new).map_err(Status::bad_request)?;
            }
        }
        metadata::carry(&mut new, old);
        self.confine(&moment, strategy, part, &mut new, old);
        defaults::apply(message, &mut new);
        strategy.defaults(&mut new);

        let mut ops = Vec::new();
        if part != Part::Status {
            if part == Part::Object {
                strategy.prepare_for_update(&moment, &mut new, old);
            }
            if part.wants() {
                metadata::next_generation(strategy.generation(), &mut new, old);
            }
            ops = strategy.allocate(&moment, Some(&mut new), Some(old))?;
        }

        let mut errors = meta::validate(&new, resource.namespaced, strategy);
        errors.extend(meta::validate_update(&new, old));
        let mut warnings = Vec::new();
        errors.extend(match part {
            Part::Object => strategy.judge(&new, Some(old), Write::Object, &mut warnings),
            Part::Status => strategy.judge(&new, Some(old), Write::Status, &mut warnings),
            // Whatever is behind a custom resource's scale, the definition's rules hold for it.
            Part::Subresource("scale") if resource.is_custom() => {
                strategy.judge(&new, Some(old), Write::Object, &mut warnings)
            }
            // Checked by the subresource's own code, which knows what it allows.
            Part::Subresource(_) => Vec::new(),
        });
        if !errors.is_empty() {
            return Err(self.invalid(resource, name, &errors));
        }
        if part == Part::Object {
            warnings.extend(strategy.warnings(&new, Some(old)));
        }
        warnings.into_iter().for_each(|text| ctx.warnings.add(text));
        if !ctx.admitted {
            let writes = self.admission.validate(&attributes, Some(&new), Some(old)).await?;
            ops.extend(self.side_ops(writes)?);
        }
        if vanishes(resource, &new) {
            ops.extend(strategy.allocate(&moment, None, Some(old))?);
            return Ok(Some((new, ops)));
        }
        if target.ownership == Ownership::Update {
            manage::updated(ctx, resource, message, part.subresource(), &mut new, old, now);
        }
        // Owners alone may be what a client came to change: that is how `kubectl apply --server-side` takes
        // over what it once applied itself.
        let same = metadata::same_content(&new, old) && manage::same_owners(&new, old);
        if same && ops.is_empty() && strategy.lives_ms().is_none() {
            return Ok(None);
        }
        Ok(Some((new, ops)))
    }

    /// Takes back what this part of the object may not change.
    fn confine(
        &self,
        moment: &Moment<'_>,
        strategy: &dyn Strategy,
        part: Part,
        new: &mut Document,
        old: &Document,
    ) {
        match part {
            Part::Object => {
                if strategy.separates_status() && moment.resource.subresource("status").is_some() {
                    new.keep_status_of(old);
                }
            }
            Part::Status => {
                let metadata = new.0.remove("metadata");
                let status = new.0.remove("status");
                new.0 = old.0.clone();
                metadata.and_then(|metadata| new.0.insert("metadata".to_owned(), metadata));
                match status {
                    Some(status) => new.0.insert("status".to_owned(), status),
                    None => new.0.remove("status"),
                };
                strategy.prepare_for_status_update(moment, new, old);
            }
            Part::Subresource(_) => {}
        }
    }
}

/// A deleted object whose last finalizer and grace are gone ceases to exist with the update that says so.
fn vanishes(resource: &Resource, new: &Document) -> bool {
    new.is_deleting()
        && new.finalizers().is_empty()
        && new.get_i64("metadata.deletionGracePeriodSeconds").unwrap_or(0) == 0
        && resource.strategy().may_vanish(new)
}
