//! `watch`: the store's events as one client is to see them.
//!
//! A watch has a cursor into the collection's ring and no queue of its own beyond the initial objects.
//! Selectors turn events: an object that begins to match was ADDED, one that no longer does was DELETED.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Field, Gvr, Object, Status};
use store_mvcc::{Batch, Event, EventKind, ReadError, Revision};

use crate::context::{Context, WatchOptions};
use crate::convert;
use crate::custom::{CustomResource, DEFINITIONS};
use crate::error::read_status;
use crate::read::{Selection, invalid_options, parse_revision, shown};
use crate::registry::Registry;
use crate::resource::Resource;

/// Quiet watchers that asked for bookmarks get one this often, so that they resume from a fresh revision.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    /// As the wire has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        }
    }
}

#[derive(Debug, Clone)]
pub enum WatchItem {
    Change {
        change: Change,
        object: Arc<Object>,
        /// The event behind it, whose memo can hold encoded frames for all watchers. `None` for initial
        /// objects and where a selector made this watcher's view its own (entry and exit).
        event: Option<Arc<Event>>,
    },
    Bookmark {
        revision: u64,
        /// Carries the annotation `k8s.io/initial-events-end: "true"`.
        initial_events_end: bool,
    },
}

/// One running watch. Dropping it ends it.
pub struct Watch {
    resource: Resource,
    selection: Selection,
    inner: store_mvcc::Watch,
    ready: VecDeque<WatchItem>,
    /// Events up to here are not this watcher's business, though the cursor may pass them.
    after: u64,
    bookmarks: bool,
    failed: bool,
    /// Of a custom resource's watch, which ends with its definition.
    definition: Option<Box<Followed>>,
    /// Whether webhooks are asked what objects look like in this version.
    converts: bool,
}

/// The definitions, as long as a watch depends on one of them.
struct Followed {
    registry: Arc<Registry>,
    changes: store_mvcc::Watch,
}

/// An event, its object and the object before, as a watcher is shown them.
type Seen = (Arc<Event>, Arc<Object>, Option<Arc<Object>>);

enum Woken {
    Events(Result<Batch, ReadError>),
    /// Something about definitions is new.
    Definitions,
}

impl Registry {
    /// `Err` for a request that is wrong, or whose revision is gone: 410, list again.
    pub async fn watch(
        self: &Arc<Registry>,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        options: &WatchOptions,
    ) -> Result<Watch, Status> {
        let resource = &self.resource(of)?;
        check_watch_options(options)?;
        let selection = Selection::new(resource, namespace, &options.labels, &options.fields)?;
        let asked = parse_revision(&options.resource_version)?;
        let space = self.group.space();
        let initial = match options.send_initial_events {
            Some(wanted) => wanted,
            None => matches!(asked, None | Some(0)),
        };
        if asked.is_none() {
            self.barrier().await?;
        }
        let mut ready = VecDeque::new();
        let start = match asked {
            _ if initial => {
                if let Some(at_least) = asked.filter(|at| *at > 0) {
                    self.wait_for(at_least).await?;
                }
                let snapshot = space.snapshot(&resource.collection);
                for entry in snapshot.range(&selection.prefix, None) {
                    if selection.rules_out(entry) {
                        continue;
                    }
                    let found = shown(resource, entry)?;
                    if selection.may_select(&found) {
                        let object = convert::served_object(resource, &found)?;
                        ready.push_back(WatchItem::Change { change: Change::Added, object, event: None });
                    }
                }
                if options.send_initial_events == Some(true) && options.allow_bookmarks {
                    ready.push_back(WatchItem::Bookmark {
                        revision: snapshot.revision.0,
                        initial_events_end: true,
                    });
                }
                snapshot.revision.0
            }
            None | Some(0) => space.revision().0,
            Some(after) => after,
        };
        // A revision this replica has not reached is waited for by reading on and skipping what is older.
        let cursor = Revision(start.min(space.revision().0));
        let inner = space.watch(&resource.collection, cursor).map_err(|cause| match cause {
            ReadError::Compacted { asked, oldest } => {
                Status::expired(format!("too old resource version: {asked} ({oldest})"))
            }
            other => read_status(&other),
        })?;
        let definition = match resource.custom() {
            None => None,
            Some(_) => Some(Box::new(self.follow().map_err(|cause| read_status(&cause))?)),
        };
        let mut watch = Watch {
            resource: resource.clone(),
            selection,
            inner,
            ready,
            after: start,
            bookmarks: options.allow_bookmarks,
            failed: false,
            definition,
            converts: !ctx.is_loop(),
        };
        watch.convert_ready().await?;
        Ok(watch)
    }

    fn follow(self: &Arc<Registry>) -> Result<Followed, ReadError> {
        let space = self.group.space();
        Ok(Followed { registry: self.clone(), changes: space.watch(DEFINITIONS, space.revision())? })
    }
}

impl Watch {
    /// The next thing to send; `None` once the watch has ended. Dropping the future loses nothing.
    ///
    /// An `Err` is sent as an ERROR event and is the last item.
    pub async fn next(&mut self) -> Option<Result<WatchItem, Status>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(Ok(item));
            }
            if self.failed {
                return None;
            }
            let woken = if self.bookmarks {
                // Boxed, so that watches without bookmarks do not carry the timer's room.
                match Box::pin(tokio::time::timeout(BOOKMARK_EVERY, self.woken())).await {
                    Ok(woken) => woken,
                    Err(_) => match Box::pin(self.bookmark()).await {
                        Ok(item) => return Some(Ok(item)),
                        Err(status) => return Some(Err(status)),
                    },
                }
            } else {
                self.woken().await
            };
            let batch = match woken {
                Woken::Events(batch) => batch,
                Woken::Definitions if self.is_defined() => continue,
                Woken::Definitions => {
                    // What happened to the objects before their definition went is still told.
                    self.failed = true;
                    self.inner.poll()
                }
            };
            let batch = match batch {
                Ok(batch) => batch,
                Err(ReadError::Closed) => {
                    self.failed = true;
                    return None;
                }
                Err(cause) => {
                    self.failed = true;
                    return Some(Err(read_status(&cause)));
                }
            };
            if let Err(status) = self.take_in(batch.events).await {
                self.failed = true;
                return Some(Err(status));
            }
        }
    }

    /// What events mean to this watcher, in `ready`.
    async fn take_in(&mut self, events: Vec<Arc<Event>>) -> Result<(), Status> {
        let mut seen = Vec::with_capacity(events.len());
        for event in events {
            if event.revision.0 <= self.after || !self.selection.in_scope(&event.entry.key.name) {
                continue;
            }
            let now = shown(&self.resource, &event.entry)?;
            let before = match (&event.previous, event.kind) {
                (Some(previous), EventKind::Put) => Some(shown(&self.resource, previous)?),
                _ => None,
            };
            seen.push((event, now, before));
        }
        self.convert(&mut seen).await?;
        for (event, now, before) in seen {
            if let Some(item) = self.view(event, now, before)? {
                self.ready.push_back(item);
            }
        }
        Ok(())
    }

    /// Of a resource whose objects a webhook may have to convert: the resource, and who asks.
    fn converter(&self) -> Option<(&CustomResource, &Arc<Registry>)> {
        let custom = self.resource.custom().filter(|custom| custom.may_need_webhook())?;
        self.definition.as_ref().filter(|_| self.converts).map(|followed| (custom, &followed.registry))
    }

    /// Where only a webhook can say what objects look like, it is asked once for all of them.
    async fn convert(&self, seen: &mut [Seen]) -> Result<(), Status> {
        let Some((custom, registry)) = self.converter() else { return Ok(()) };
        let mut objects: Vec<Arc<Object>> = Vec::new();
        for (_, now, before) in seen.iter() {
            objects.push(now.clone());
            objects.extend(before.clone());
        }
        registry.serve_all(custom, &mut objects).await?;
        let mut converted = objects.into_iter();
        for (_, now, before) in seen {
            for slot in [Some(now), before.as_mut()].into_iter().flatten() {
                if let Some(object) = converted.next() {
                    *slot = object;
                }
            }
        }
        Ok(())
    }

    async fn woken(&mut self) -> Woken {
        let Some(followed) = &mut self.definition else { return Woken::Events(self.inner.next().await) };
        let inner = &mut self.inner;
        // Boxed: built-in resources, of which there are most watches, need no room for a choice.
        Box::pin(async move {
            tokio::select! {
                biased;
                batch = inner.next() => Woken::Events(batch),
                _ = followed.changes.next() => Woken::Definitions,
            }
        })
        .await
    }

    /// Looks the resource up again; `false` when it is served no longer.
    fn is_defined(&mut self) -> bool {
        let Some(followed) = &mut self.definition else { return true };
        let of = &self.resource.gvr;
        let uid = |resource: &Resource| resource.custom().map(|custom| custom.edition().0);
        let found = followed.registry.find(&of.group, &of.version, &of.resource);
        match found.filter(|found| uid(found) == uid(&self.resource)) {
            Some(found) => {
                self.selection.follow(&found);
                self.resource = found;
                // A history that is gone is no loss: what counts is how it is now.
                if followed.changes.poll().is_err() {
                    match followed.registry.follow() {
                        Ok(fresh) => **followed = fresh,
                        Err(_) => return false,
                    }
                }
                true
            }
            None => false,
        }
    }

    /// The same for the objects a watch begins with.
    async fn convert_ready(&mut self) -> Result<(), Status> {
        let Some((custom, registry)) = self.converter() else { return Ok(()) };
        let objects = self.ready.iter().filter_map(|item| match item {
            WatchItem::Change { object, .. } => Some(object.clone()),
            WatchItem::Bookmark { .. } => None,
        });
        let mut objects: Vec<Arc<Object>> = objects.collect();
        registry.serve_all(custom, &mut objects).await?;
        let mut converted = objects.into_iter();
        for item in &mut self.ready {
            if let WatchItem::Change { object, .. } = item
                && let Some(shown) = converted.next()
            {
                *object = shown;
            }
        }
        let selection = &self.selection;
        self.ready.retain(|item| match item {
            WatchItem::Change { object, .. } => selection.selects(object),
            WatchItem::Bookmark { .. } => true,
        });
        Ok(())
    }

    /// A bookmark at what this watcher has seen; for the last word before a timeout as well.
    pub async fn bookmark(&mut self) -> Result<WatchItem, Status> {
        match self.inner.poll() {
            Ok(batch) => {
                let revision = batch.revision.0;
                self.take_in(batch.events).await?;
                match self.ready.pop_front() {
                    // What was missed goes first; a bookmark must not overtake it.
                    Some(item) => Ok(item),
                    None => Ok(WatchItem::Bookmark {
                        revision: revision.max(self.after),
                        initial_events_end: false,
                    }),
                }
            }
            Err(cause) => {
                self.failed = true;
                Err(read_status(&cause))
            }
        }
    }

    pub fn into_stream(self) -> impl futures::Stream<Item = Result<WatchItem, Status>> + Send {
        futures::stream::unfold(self, |mut watch| async move { watch.next().await.map(|item| (item, watch)) })
    }

    /// What an event means to this watcher; nothing, for most events of a busy collection. `now` is what the
    /// event's entry looks like to it, `before` what that was before.
    fn view(
        &self,
        event: Arc<Event>,
        now: Arc<Object>,
        before: Option<Arc<Object>>,
    ) -> Result<Option<WatchItem>, Status> {
        let served = |object: &Arc<Object>| convert::served_object(&self.resource, object);
        let selected = self.selection.selects(&now);
        if event.kind == EventKind::Delete {
            if !selected {
                return Ok(None);
            }
            let object = served(&at_revision(&now, event.revision))?;
            return Ok(Some(WatchItem::Change { change: Change::Deleted, object, event: Some(event) }));
        }
        let was_selected = before.as_ref().is_some_and(|before| self.selection.selects(before));
        let item = match (was_selected, selected) {
            (false, false) => return Ok(None),
            (false, true) => {
                let entered = event.previous.is_some();
                let event = (!entered).then_some(event);
                WatchItem::Change { change: Change::Added, object: served(&now)?, event }
            }
            (true, true) => {
                WatchItem::Change { change: Change::Modified, object: served(&now)?, event: Some(event) }
            }
            (true, false) => {
                let Some(before) = before else { return Ok(None) };
                let object = served(&at_revision(&before, event.revision))?;
                WatchItem::Change { change: Change::Deleted, object, event: None }
            }
        };
        Ok(Some(item))
    }
}

/// The object as it last was, at the moment it went away: clients resume from that revision.
fn at_revision(object: &Arc<Object>, revision: Revision) -> Arc<Object> {
    let mut gone = Object::clone(object);
    gone.header.revision = revision.0;
    Arc::new(gone)
}

fn check_watch_options(options: &WatchOptions) -> Result<(), Status> {
    let field = Field::new("resourceVersionMatch");
    let matched = &*options.resource_version_match;
    let mut errors = Vec::new();
    if options.send_initial_events.is_some() && matched != "NotOlderThan" {
        errors
            .push(field.forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if !matched.is_empty() {
        if options.send_initial_events.is_none() {
            errors.push(field.forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if matched != "NotOlderThan" {
            errors.push(field.not_supported(matched, &["NotOlderThan"]));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(invalid_options(&errors)) }
}
