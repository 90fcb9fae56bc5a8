//! `delete` and `deletecollection`.
//!
//! Deleting is a mark, then a wait, then the end. What waits: a grace period (pods), finalizers (anything),
//! content (namespaces). The end comes here if nothing waits, else with the update that lifts the last
//! reason (`update`).

use std::sync::Arc;

use api_machinery::{Details, Document, Gvr, Status};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use store_mvcc::{Expect, Op, Rejected};
use store_raft::WriteError;
use tenant_admission::{Attributes, Operation, Reinvocation};
use tenant_client::{DeleteOptions, Propagation};

use crate::context::{Context, Deleted, List, ListOptions, Output};
use crate::create::{ROUNDS, put};
use crate::error::write_status;
use crate::metadata;
use crate::registry::{Registry, key, unstored};
use crate::resource::Resource;
use crate::strategy::{GarbagePolicy, Moment, Strategy};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

impl Registry {
    pub async fn delete(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        let resource = self.resource(of)?;
        self.delete_one(ctx, &resource, namespace.unwrap_or_default(), name, options).await
    }

    /// Deletes what the list options select, one by one; what vanished meanwhile is no error. Gives the
    /// objects as they were.
    pub async fn delete_collection(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<List, Status> {
        let resource = self.resource(of)?;
        let found = self.list(ctx, of, namespace, list).await?;
        for item in &found.items {
            let namespace = item.header.namespace.as_deref().unwrap_or_default();
            match self.delete_one(ctx, &resource, namespace, &item.header.name, options).await {
                Err(status) if !status.is_not_found() => return Err(status),
                _ => {}
            }
        }
        Ok(found)
    }

    async fn delete_one(
        &self,
        ctx: &Context,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        let strategy = resource.strategy();
        if options.propagation.is_none()
            && let Some(text) = strategy.warning_on_default_deletion()
        {
            ctx.warnings.add(text);
        }
        let mut found = self.entry(resource, namespace, name);
        if found.is_none() {
            self.barrier().await?;
            found = self.entry(resource, namespace, name);
        }
        for _ in 0..ROUNDS {
            let entry = found.take().ok_or_else(|| Status::not_found(&resource.gvr, name))?;
            let old = self.opened(resource, &entry).await?;
            check_preconditions(resource, &old, options)?;
            let attributes = Attributes {
                operation: Operation::Delete,
                gvr: &resource.gvr,
                gvk: &resource.gvk,
                namespace,
                name,
                subresource: "",
                user: &ctx.user,
                dry_run: ctx.dry_run,
                options: ctx.options(Some(options)),
                internal: ctx.fence.is_some(),
                warnings: &ctx.warnings,
                annotations: &ctx.annotations,
                lookup: self,
                reinvocation: Reinvocation::default(),
            };
            let mut ops = Vec::new();
            if !ctx.admitted {
                self.admission.admit(&attributes, None, Some(&old)).await?;
                let writes = self.admission.validate(&attributes, None, Some(&old)).await?;
                ops = self.side_ops(writes)?;
            }

            let now = self.now();
            let step = next_step(strategy, &old, options, now);
            let key = key(resource, namespace, name);
            let expect = Expect::At(entry.modified);
            let op = match &step {
                Step::Waits => return Ok(Deleted::Pending(self.served(resource, &entry).await?)),
                Step::Mark(marked) => {
                    let stored = self.closed(resource, marked).await?;
                    put(resource, key, &stored, expect, now.as_millisecond())
                }
                Step::Remove => {
                    let moment = Moment {
                        now,
                        user: &ctx.user,
                        requested: &resource.gvr,
                        resource,
                        lookup: self,
                        space: self.group.space(),
                    };
                    ops.extend(strategy.allocate(&moment, None, Some(&old))?);
                    Op::Delete { key, expect }
                }
            };
            if ctx.dry_run {
                return match step {
                    Step::Mark(marked) => Ok(Deleted::Pending(unstored(resource, &marked)?)),
                    _ => Ok(Deleted::Gone(self.last_words(
                        resource,
                        strategy,
                        &old,
                        self.served(resource, &entry).await?,
                    ))),
                };
            }
            ops.insert(0, op);
            match self.group.write(self.command(ctx, ops)).await {
                Ok(applied) => {
                    let first = applied.into_iter().next().and_then(|first| first.entry);
                    return match first {
                        Some(entry) => Ok(Deleted::Pending(self.served(resource, &entry).await?)),
                        None => Ok(Deleted::Gone(self.last_words(
                            resource,
                            strategy,
                            &old,
                            self.served(resource, &entry).await?,
                        ))),
                    };
                }
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

    fn last_words(
        &self,
        resource: &Resource,
        strategy: &dyn Strategy,
        old: &Document,
        object: Arc<api_machinery::Object>,
    ) -> Output {
        if strategy.returns_deleted() {
            return Output::Object(object);
        }
        Output::Status(Box::new(Status::success(Details {
            name: old.name().to_owned(),
            group: resource.gvr.group.to_string(),
            kind: resource.gvr.resource.to_string(),
            uid: old.uid().to_owned(),
            ..Details::default()
        })))
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    /// Already on its way and this request doesn't hurry it.
    Waits,
    Mark(Document),
    Remove,
}

/// What deleting `old` comes to, now.
fn next_step(strategy: &dyn Strategy, old: &Document, options: &DeleteOptions, now: Timestamp) -> Step {
    let mut new = old.clone();
    let mut graceful = false;
    if let Some(grace) = strategy.grace_seconds(old, options.grace_period_seconds) {
        if old.is_deleting() {
            // On its way already: only a shorter grace changes anything.
            if let Some(running) = old.get_i64("metadata.deletionGracePeriodSeconds") {
                match options.grace_period_seconds {
                    Some(asked) if asked.max(0) < running => {
                        let asked = asked.max(0);
                        let end = metadata::deletion_time(old).unwrap_or(now);
                        let end =
                            end.saturating_add(SignedDuration::from_secs(asked - running)).unwrap_or(now);
                        metadata::mark_deleting(&mut new, end, asked);
                        graceful = true;
                    }
                    _ => return Step::Waits,
                }
            }
        } else {
            let end = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
            metadata::mark_deleting(&mut new, end, grace);
            graceful = true;
        }
    }
    let mut finalizers = finalizers_after(strategy, &new, options);
    if let Some(last) = strategy
        .last_finalizer()
        .filter(|last| !old.is_deleting() && !finalizers.iter().any(|one| one == last))
    {
        finalizers.push(last.to_owned());
    }
    if finalizers.is_empty() {
        new.metadata_mut().remove("finalizers");
    } else {
        new.set("metadata.finalizers", Value::from(finalizers.clone()));
    }
    let held = !finalizers.is_empty() || !strategy.may_vanish(&new);
    if held && !graceful && !new.is_deleting() {
        metadata::mark_deleting(&mut new, now, 0);
    }
    let waits_for_grace = graceful && new.get_i64("metadata.deletionGracePeriodSeconds").unwrap_or(0) > 0;
    if !held && !waits_for_grace {
        return Step::Remove;
    }
    strategy.mark(&mut new, now);
    if new == *old { Step::Waits } else { Step::Mark(new) }
}

/// The finalizers the object has once the wish about its dependents is written into them.
fn finalizers_after(strategy: &dyn Strategy, object: &Document, options: &DeleteOptions) -> Vec<String> {
    let present: Vec<&str> = object.finalizers();
    let policy = strategy.garbage_policy();
    let (orphan, foreground) = match (policy, options.propagation) {
        (GarbagePolicy::Unsupported, _) => (false, false),
        (_, Some(Propagation::Orphan)) => (true, false),
        (_, Some(Propagation::Foreground)) => (false, true),
        (_, Some(Propagation::Background)) => (false, false),
        (policy, None) => {
            let orphan = present.contains(&ORPHAN);
            let foreground = present.contains(&FOREGROUND);
            (orphan || (!foreground && policy == GarbagePolicy::Orphan), foreground)
        }
    };
    let mut finalizers: Vec<String> = present
        .into_iter()
        .filter(|name| *name != ORPHAN && *name != FOREGROUND)
        .map(str::to_owned)
        .collect();
    if orphan {
        finalizers.push(ORPHAN.to_owned());
    }
    if foreground {
        finalizers.push(FOREGROUND.to_owned());
    }
    finalizers
}

fn check_preconditions(resource: &Resource, old: &Document, options: &DeleteOptions) -> Result<(), Status> {
    if let Some(uid) = &options.uid
        && uid != old.uid()
    {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            old.uid()
        );
        return Err(Status::conflict(&resource.gvr, old.name(), &why));
    }
    if let Some(revision) = &options.resource_version
        && revision != old.resource_version()
    {
        let why = format!(
            "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record ({}). The object might have been modified",
            old.resource_version()
        );
        return Err(Status::conflict(&resource.gvr, old.name(), &why));
    }
    Ok(())
}
