//! `create`.

use api_kinds::defaults;
use api_machinery::{Document, Gvr, Status};
use store_mvcc::{Expect, Key, Op, Rejected};
use store_raft::WriteError;
use tenant_admission::{Attributes, Operation, Reinvocation, SideWrite};

use crate::context::{Context, Written};
use crate::convert;
use crate::error::write_status;
use crate::limit::put_within_limit;
use crate::manage;
use crate::metadata;
use crate::normalize::normalize;
use crate::registry::{Registry, key, object, stored_value, unstored};
use crate::resource::Resource;
use crate::strategy::{Moment, Write};
use crate::update::Ownership;
use crate::validation::meta;

/// Names tried for one `generateName`; with 27^5 suffixes the second already succeeds in practice.
const NAME_TRIES: usize = 8;
/// Rounds a write is decided again because something it depends on moved. Each loser of a round had a
/// winner, so this is reached only by more writers of one object than are ever reasonable.
pub(crate) const ROUNDS: usize = 64;

impl Registry {
    pub async fn create(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        object: Document,
    ) -> Result<Written, Status> {
        let resource = self.resource(of)?;
        if resource.hashed.is_none() {
            return self.create_unstored(ctx, &resource, namespace, object).await;
        }
        let object = self.decoded(&resource, namespace, object)?;
        self.create_decoded(ctx, &resource, object, Ownership::Update).await
    }

    /// A kind that is a verb in disguise. Reviews are answered by the API server; what is left is the old way
    /// to bind a pod, which does the same as `pods/binding`.
    async fn create_unstored(
        &self,
        ctx: &Context,
        resource: &Resource,
        namespace: Option<&str>,
        object: Document,
    ) -> Result<Written, Status> {
        if &*resource.collection != "bindings" {
            return Err(Status::method_not_allowed());
        }
        let name = object.name().to_owned();
        let pods = Gvr::core("pods");
        self.create_subresource(ctx, &pods, namespace, &name, "binding", object.clone()).await?;
        Ok(Written { object: unstored(resource, &object)?, created: true })
    }

    /// Type, namespace and form of a body; in the storage version afterwards.
    pub(crate) fn decoded(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        mut object: Document,
    ) -> Result<Document, Status> {
        metadata::check_type(&resource.gvk, &mut object)?;
        normalize(resource.message, &resource.gvk, &mut object)?;
        if let Some(schema) = resource.custom().and_then(|custom| custom.schema()) {
            // Unknown fields were reported where the body was read, if anybody wanted to hear of them.
            schema.prune(&mut object).map_err(Status::bad_request)?;
        }
        metadata::check_namespace(resource, namespace, &mut object)?;
        convert::to_storage(resource, &mut object);
        Ok(object)
    }

    pub(crate) async fn create_decoded(
        &self,
        ctx: &Context,
        resource: &Resource,
        template: Document,
        ownership: Ownership,
    ) -> Result<Written, Status> {
        if !template.resource_version().is_empty() && template.resource_version() != "0" {
            return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let generated = template.name().is_empty() && !template.generate_name().is_empty();
        let mut names_left = NAME_TRIES;
        for _ in 0..ROUNDS {
            let mut object = template.clone();
            if generated {
                object.set("metadata.name", metadata::generate_name(template.generate_name()));
            }
            let name = object.name().to_owned();
            let (object, mut ops) = self.decide_create(ctx, resource, object, ownership).await?;
            let main = key(resource, object.namespace(), &name);
            if ctx.dry_run {
                return match self.group.space().get(&main) {
                    Some(found) => Err(self.exists(resource, &name, &found)),
                    None => Ok(Written { object: unstored(resource, &object)?, created: true }),
                };
            }
            let now_ms = self.now().as_millisecond();
            let stored = self.closed(resource, &object).await?;
            ops.insert(0, put_within_limit(resource, main.clone(), stored, Expect::Absent, now_ms)?);
            match self.group.write(self.command(ctx, ops)).await {
                Ok(applied) => {
                    let entry = applied.into_iter().next().and_then(|first| first.entry);
                    let entry = entry.ok_or_else(|| Status::internal("the store gave no entry for a put"))?;
                    return Ok(Written { object: self.served(resource, &entry).await?, created: true });
                }
                Err(WriteError::Rejected(Rejected::Conflict { op: 0, found: Some(found), .. })) => {
                    if generated && names_left > 1 {
                        names_left -= 1;
                        continue;
                    }
                    return Err(self.exists(resource, &name, &found));
                }
                // An address or a quota moved under this request: decide again.
                Err(WriteError::Rejected(Rejected::Conflict { .. })) => tokio::task::yield_now().await,
                Err(other) => return Err(write_status(&other)),
            }
        }
        Err(Status::conflict(&resource.gvr, template.name(), "too many concurrent writers; please try again"))
    }

    /// The object as it is to be stored, and what must be committed with it.
    async fn decide_create(
        &self,
        ctx: &Context,
        resource: &Resource,
        mut object: Document,
        ownership: Ownership,
    ) -> Result<(Document, Vec<Op>), Status> {
        let strategy = resource.strategy();
        let now = self.now();
        let name = object.name().to_owned();
        let namespace = object.namespace().to_owned();
        if let Some(why) = strategy.refuses_new() {
            return Err(Status::forbidden(&resource.gvr, &name, why));
        }
        if name.is_empty() {
            let errors = meta::validate(&object, resource.namespaced, strategy);
            return Err(self.invalid(resource, &name, &errors));
        }
        let message = self.storage_message(resource);
        defaults::apply(message, &mut object);
        strategy.defaults(&mut object);

        let attributes = Attributes {
            operation: Operation::Create,
            gvr: &resource.gvr,
            gvk: &resource.gvk,
            namespace: &namespace,
            name: &name,
            subresource: "",
            user: &ctx.user,
            dry_run: ctx.dry_run,
            options: ctx.options(None),
            internal: ctx.fence.is_some(),
            warnings: &ctx.warnings,
            annotations: &ctx.annotations,
            lookup: self,
            reinvocation: Reinvocation::default(),
        };
        self.admission.admit(&attributes, Some(&mut object), None).await?;
        if let Some(schema) = resource.custom().and_then(|custom| custom.schema()) {
            // Whatever a plug-in or a webhook put in, no field comes in that the schema does not have.
            schema.prune(&mut object).map_err(Status::bad_request)?;
        }
        defaults::apply(message, &mut object);
        strategy.defaults(&mut object);

        metadata::stamp_new(&mut object, now, strategy.generation());
        let moment = Moment {
            now,
            user: &ctx.user,
            requested: &resource.gvr,
            resource,
            lookup: self,
            space: self.group.space(),
        };
        if strategy.has_empty_status()
            && strategy.separates_status()
            && resource.subresource("status").is_some()
        {
            object.set("status", serde_json::Map::new());
        }
        strategy.prepare_for_create(&moment, &mut object);
        let mut ops = strategy.allocate(&moment, Some(&mut object), None)?;

        let mut errors = meta::validate(&object, resource.namespaced, strategy);
        let mut warnings = Vec::new();
        errors.extend(strategy.judge(&object, None, Write::Object, &mut warnings));
        if !errors.is_empty() {
            return Err(self.invalid(resource, &name, &errors));
        }
        warnings.extend(strategy.warnings(&object, None));
        warnings.into_iter().for_each(|text| ctx.warnings.add(text));
        let writes = self.admission.validate(&attributes, Some(&object), None).await?;
        ops.extend(self.side_ops(writes)?);
        if ownership == Ownership::Update {
            manage::created(ctx, resource, message, &mut object, now);
        }
        Ok((object, ops))
    }

    pub(crate) fn invalid(
        &self,
        resource: &Resource,
        name: &str,
        errors: &[api_machinery::FieldError],
    ) -> Status {
        Status::invalid(&resource.gvk.group, &resource.gvk.kind, name, errors)
    }

    pub(crate) fn storage_message(&self, resource: &Resource) -> api_kinds::MessageId {
        self.kinds.stored(resource).map_or(resource.message, |stored| stored.message)
    }

    pub(crate) fn side_ops(&self, writes: Vec<SideWrite>) -> Result<Vec<Op>, Status> {
        let mut ops = Vec::new();
        for write in writes {
            let resource = self.resource(&write.gvr)?;
            let key = key(&resource, write.namespace.as_deref().unwrap_or_default(), &write.name);
            let expect = Expect::At(store_mvcc::Revision(write.at));
            ops.push(put(&resource, key, &write.document, expect, self.now().as_millisecond()));
        }
        Ok(ops)
    }

    fn exists(&self, resource: &Resource, name: &str, found: &store_mvcc::Entry) -> Status {
        let mut status = Status::already_exists(&resource.gvr, name);
        if object(found).is_ok_and(|object| object.header.deleting_since.is_some()) {
            status.message = format!("object is being deleted: {}", status.message);
        }
        status
    }
}

/// The op that stores `document`, with the expiry its kind has.
pub(crate) fn put(resource: &Resource, key: Key, document: &Document, expect: Expect, now_ms: i64) -> Op {
    let expires_at_ms = resource.strategy().lives_ms().map(|lives| now_ms + lives);
    Op::Put { key, value: stored_value(document), expect, expires_at_ms, shared: false }
}
