//! A cluster's API in memory, for tests of whatever works through [`Api`].
//!
//! It keeps the promises controllers lean on: one revision counter, optimistic updates, watches that miss
//! nothing, status apart from spec, generation, finalizers and graceful deletion, binding. It refuses on
//! request ([`FakeApi::fail_next`], [`FakeApi::compact`]), so that retries are tested too.
//! Start at [`FakeApi::new`]; [`FakeApi::put`] and [`FakeApi::read`] are shorthands for a test's own hands.
//!
//! Not here: authorization, defaulting, validation, admission. What the real server refuses, this may take.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use api_machinery::{Document, Gvr, Object, Reason, Status};
use async_trait::async_trait;
use base_clock::{SharedClock, rfc3339};
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

use crate::{
    Api, CreateOptions, DeleteOptions, ListOptions, ObjectList, Patch, Propagation, WatchEvent, WatchOptions,
    WatchStream,
};

/// Clones are handles on the same cluster.
#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    revision: Arc<watch::Sender<u64>>,
    clock: SharedClock,
}

type Key = (String, String, String);

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Arc<Object>>,
    /// Kind per stored resource, so that what is read back can be updated.
    log: Vec<(u64, String, WatchEvent)>,
    revision: u64,
    compacted: u64,
    refusals: VecDeque<(&'static str, String, Status)>,
    writes: Vec<String>,
    /// Group and subresource: what SubjectAccessReviews are answered by.
    grants: Vec<(String, String)>,
}

impl FakeApi {
    pub fn new(clock: SharedClock) -> FakeApi {
        let state = State { revision: 1, ..State::default() };
        FakeApi { state: Arc::new(Mutex::new(state)), revision: Arc::new(watch::channel(1).0), clock }
    }

    /// The next `verb` (`create`, `update`, `patch`, `delete`, `list`, `watch`) on `resource` is refused.
    pub fn fail_next(&self, verb: &'static str, resource: &str, status: Status) {
        self.state.lock().refusals.push_back((verb, resource.to_owned(), status));
    }
    /// SubjectAccessReviews of users in `group` about `subresource` are allowed from now on.
    pub fn grant(&self, group: &str, subresource: &str) {
        self.state.lock().grants.push((group.to_owned(), subresource.to_owned()));
    }
    /// Watches from before now end in 410.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.compacted = state.revision;
        state.revision += 1;
        let now = state.revision;
        drop(state);
        self.revision.send_replace(now);
    }
    /// Every write so far, as `verb resource namespace/name`.
    pub fn writes(&self) -> Vec<String> {
        self.state.lock().writes.clone()
    }
    pub fn forget_writes(&self) {
        self.state.lock().writes.clear();
    }
    pub fn revision(&self) -> u64 {
        self.state.lock().revision
    }

    /// Creates or replaces an object, status and all, as a test's own hands.
    pub fn put(&self, of: &Gvr, value: Value) -> Arc<Object> {
        let mut document = Document::from_value(value).expect("a test writes objects");
        let key = key(of, document.namespace(), document.name());
        let mut state = self.state.lock();
        let old = state.objects.get(&key).cloned();
        self.stamp(&mut document, old.as_deref());
        let object = self.store(&mut state, of, key, document);
        drop(state);
        self.tell();
        object
    }
    /// The object as JSON, if it exists.
    pub fn read(&self, of: &Gvr, namespace: &str, name: &str) -> Option<Value> {
        let object = self.state.lock().objects.get(&key(of, namespace, name)).cloned()?;
        object.to_document().ok().map(Document::into_value)
    }
    pub fn all(&self, of: &Gvr) -> Vec<Value> {
        let wanted = of.group_resource();
        let state = self.state.lock();
        let objects = state.objects.iter().filter(|((resource, _, _), _)| *resource == wanted);
        objects.filter_map(|(_, object)| Some(object.to_document().ok()?.into_value())).collect()
    }
    /// Removes an object at once, whatever its finalizers.
    pub fn remove(&self, of: &Gvr, namespace: &str, name: &str) {
        let mut state = self.state.lock();
        Self::drop_object(&mut state, of, &key(of, namespace, name));
        drop(state);
        self.tell();
    }

    fn refuse(&self, state: &mut State, verb: &'static str, of: &Gvr) -> Result<(), Status> {
        let wanted = of.resource.as_ref();
        let at = state.refusals.iter().position(|(v, resource, _)| *v == verb && resource == wanted);
        match at.and_then(|at| state.refusals.remove(at)) {
            Some((_, _, status)) => Err(status),
            None => Ok(()),
        }
    }

    fn stamp(&self, document: &mut Document, old: Option<&Object>) {
        let (uid, created) = match old {
            Some(old) => (old.header.uid.to_string(), rfc3339(old.header.created)),
            None => (Uuid::new_v4().to_string(), rfc3339(self.clock.now())),
        };
        if document.uid().is_empty() || old.is_some() {
            document.set("metadata.uid", uid);
        }
        if document.get("metadata.creationTimestamp").is_none() || old.is_some() {
            document.set("metadata.creationTimestamp", created);
        }
        if document.generation() == 0 {
            document.set_generation(1);
        }
    }

    fn store(&self, state: &mut State, of: &Gvr, key: Key, mut document: Document) -> Arc<Object> {
        state.revision += 1;
        document.set("metadata.resourceVersion", state.revision.to_string());
        if document.api_version().is_empty() {
            document.set("apiVersion", of.api_version());
        }
        let object = Arc::new(Object::from_document(&document).expect("a document has a stored form"));
        let event = match state.objects.insert(key.clone(), object.clone()) {
            Some(_) => WatchEvent::Modified(object.clone()),
            None => WatchEvent::Added(object.clone()),
        };
        state.log.push((state.revision, key.0, event));
        object
    }

    fn drop_object(state: &mut State, of: &Gvr, key: &Key) {
        let Some(old) = state.objects.remove(key) else { return };
        state.revision += 1;
        let mut last = old.to_document().expect("it was stored");
        last.set("metadata.resourceVersion", state.revision.to_string());
        last.set("apiVersion", of.api_version());
        let last = Arc::new(Object::from_document(&last).expect("it was stored"));
        state.log.push((state.revision, key.0.clone(), WatchEvent::Deleted(last)));
    }

    fn tell(&self) {
        let now = self.state.lock().revision;
        self.revision.send_replace(now);
    }

    fn change(
        &self,
        of: &Gvr,
        verb: &'static str,
        subresource: Option<&str>,
        namespace: &str,
        name: &str,
        with: impl FnOnce(Document) -> Result<Document, Status>,
    ) -> Result<Arc<Object>, Status> {
        let mut state = self.state.lock();
        self.refuse(&mut state, verb, of)?;
        let at = key(of, namespace, name);
        let Some(old) = state.objects.get(&at).cloned() else { return Err(Status::not_found(of, name)) };
        let before = old.to_document().map_err(|err| Status::internal(err.to_string()))?;
        let asked = with(before.clone())?;
        let version = asked.resource_version();
        if !version.is_empty() && version != before.resource_version() {
            return Err(Status::stale(of, name));
        }
        let mut after = before.clone();
        match subresource {
            None => {
                after = asked;
                after.keep_status_of(&before);
                self.stamp(&mut after, Some(&old));
                let changed = after.spec() != before.spec();
                after.set_generation(before.generation() + i64::from(changed));
                for kept in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
                    match before.get(&format!("metadata.{kept}")) {
                        Some(value) => after.set(&format!("metadata.{kept}"), value.clone()),
                        None => drop(after.remove(&format!("metadata.{kept}"))),
                    }
                }
            }
            Some("status" | "approval") => {
                match asked.status() {
                    Some(status) => after.set("status", status.clone()),
                    None => after.clear_status(),
                }
                // As the server has it: the status, and metadata. Service controllers set finalizers so.
                match asked.get("metadata.finalizers") {
                    Some(finalizers) => after.set("metadata.finalizers", finalizers.clone()),
                    None => drop(after.remove("metadata.finalizers")),
                }
            }
            Some("finalize") => {
                after.set("spec.finalizers", asked.get("spec.finalizers").cloned().unwrap_or(json!([])));
            }
            Some("scale") => {
                let replicas = asked.get("spec.replicas").cloned().unwrap_or(Value::Null);
                after.set("spec.replicas", replicas);
                after.set_generation(before.generation() + 1);
            }
            Some(other) => return Err(Status::bad_request(format!("no subresource {other}"))),
        }
        after.set("metadata.resourceVersion", before.resource_version().to_owned());
        state.writes.push(format!("{verb} {}{} {namespace}/{name}", of.resource, suffix(subresource)));
        let unchanged = without_type(&after) == without_type(&before);
        if unchanged {
            return Ok(old);
        }
        let is_namespace = of.resource == "namespaces";
        let held = !after.finalizers().is_empty()
            || (is_namespace && !after.get_array("spec.finalizers").is_empty());
        after.set("apiVersion", of.api_version());
        let object = if after.is_deleting()
            && !held
            && (of.resource != "pods" || is_over(&after) || !is_assigned(&after))
        {
            let object = Arc::new(Object::from_document(&after).expect("a document has a stored form"));
            Self::drop_object(&mut state, of, &at);
            object
        } else {
            self.store(&mut state, of, at, after)
        };
        drop(state);
        self.tell();
        Ok(object)
    }

    fn bind(&self, of: &Gvr, namespace: &str, name: &str, binding: &Document) -> Result<Arc<Object>, Status> {
        let mut state = self.state.lock();
        self.refuse(&mut state, "bind", of)?;
        let at = key(of, namespace, name);
        let Some(old) = state.objects.get(&at).cloned() else { return Err(Status::not_found(of, name)) };
        let mut after = old.to_document().map_err(|err| Status::internal(err.to_string()))?;
        if let Some(node) = after.get_str("spec.nodeName").filter(|node| !node.is_empty()) {
            return Err(Status::conflict(
                of,
                name,
                &format!("pod {name} is already assigned to node {node:?}"),
            ));
        }
        after.set("spec.nodeName", binding.get_str("target.name").unwrap_or_default());
        let mut conditions = after.get_array("status.conditions").to_vec();
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(json!({"type": "PodScheduled", "status": "True"}));
        after.set("status.conditions", conditions);
        after.set("apiVersion", of.api_version());
        state.writes.push(format!("bind pods {namespace}/{name}"));
        let object = self.store(&mut state, of, at, after);
        drop(state);
        self.tell();
        Ok(object)
    }
}

#[async_trait]
impl Api for FakeApi {
    async fn get(&self, of: &Gvr, namespace: Option<&str>, name: &str) -> Result<Arc<Object>, Status> {
        let mut state = self.state.lock();
        self.refuse(&mut state, "get", of)?;
        let found = state.objects.get(&key(of, namespace.unwrap_or_default(), name)).cloned();
        found.ok_or_else(|| Status::not_found(of, name))
    }

    async fn list(&self, of: &Gvr, options: ListOptions) -> Result<ObjectList, Status> {
        let mut state = self.state.lock();
        self.refuse(&mut state, "list", of)?;
        let wanted = of.group_resource();
        let items = state
            .objects
            .iter()
            .filter(|((resource, namespace, _), object)| {
                *resource == wanted
                    && options.namespace.as_ref().is_none_or(|one| one == namespace)
                    && options.labels.matches(&object.header.labels)
                    && options.fields.matches(|path| field_text(object, path))
            })
            .map(|(_, object)| object.clone())
            .collect();
        Ok(ObjectList { revision: state.revision, items })
    }

    async fn watch(&self, of: &Gvr, options: WatchOptions) -> Result<WatchStream, Status> {
        self.refuse(&mut self.state.lock(), "watch", of)?;
        let wanted = of.group_resource();
        let state = self.state.clone();
        let from = (options.after, self.revision.subscribe(), false);
        let stream = futures::stream::unfold(from, move |(mut after, mut revision, ended)| {
            let (state, wanted, options) = (state.clone(), wanted.clone(), options.clone());
            async move {
                if ended {
                    return None;
                }
                loop {
                    revision.borrow_and_update();
                    let mut found = Vec::new();
                    {
                        let state = state.lock();
                        if after < state.compacted {
                            let gone = Err(Status::expired("too old resource version"));
                            return Some((vec![gone], (after, revision, true)));
                        }
                        let first = state.log.partition_point(|(at, _, _)| *at <= after);
                        for (_, resource, event) in &state.log[first..] {
                            let (WatchEvent::Added(object)
                            | WatchEvent::Modified(object)
                            | WatchEvent::Deleted(object)) = event
                            else {
                                continue;
                            };
                            let header = &object.header;
                            let here = options
                                .namespace
                                .as_ref()
                                .is_none_or(|one| header.namespace.as_deref() == Some(one));
                            if *resource == wanted
                                && here
                                && options.labels.matches(&header.labels)
                                && options.fields.matches(|path| field_text(object, path))
                            {
                                found.push(Ok(event.clone()));
                            }
                        }
                        after = state.revision;
                    }
                    if !found.is_empty() {
                        return Some((found, (after, revision, false)));
                    }
                    if revision.changed().await.is_err() {
                        return None;
                    }
                }
            }
        });
        Ok(stream.flat_map(futures::stream::iter).boxed())
    }

    async fn create(
        &self,
        of: &Gvr,
        mut object: Document,
        options: CreateOptions,
    ) -> Result<Arc<Object>, Status> {
        let namespace = options.namespace.clone().unwrap_or_else(|| object.namespace().to_owned());
        match &options.subresource {
            Some((name, "binding")) => return self.bind(of, &namespace, name, &object),
            Some((name, "eviction")) => {
                self.delete(of, Some(&namespace), name, DeleteOptions::default()).await?;
                return Ok(Arc::new(Object::from_document(&object).expect("a document has a stored form")));
            }
            Some((_, other)) => return Err(Status::bad_request(format!("no subresource {other}"))),
            None => {}
        }
        let mut state = self.state.lock();
        self.refuse(&mut state, "create", of)?;
        if of.resource == "subjectaccessreviews" {
            let about = object.get_str("spec.resourceAttributes.subresource").unwrap_or_default();
            let groups = object.get_array("spec.groups");
            let allowed = state.grants.iter().any(|(group, subresource)| {
                subresource == about && groups.iter().any(|one| one == group.as_str())
            });
            object.set("status.allowed", allowed);
            return Object::from_document(&object)
                .map(Arc::new)
                .map_err(|cause| Status::internal(cause.to_string()));
        }
        if !namespace.is_empty() {
            object.set("metadata.namespace", namespace.clone());
        }
        if object.name().is_empty() {
            let suffix = Uuid::new_v4().simple().to_string();
            let name = format!("{}{}", object.generate_name(), &suffix[..5]);
            object.set("metadata.name", name);
        }
        let at = key(of, &namespace, object.name());
        if state.objects.contains_key(&at) {
            return Err(Status::already_exists(of, object.name()));
        }
        object.remove("metadata.uid");
        object.remove("metadata.creationTimestamp");
        if of.resource == "namespaces" {
            object.set_default("spec.finalizers", json!(["kubernetes"]));
            object.set_default("status.phase", "Active");
        }
        if of.resource == "pods" {
            object.set_default("status.phase", "Pending");
        }
        self.stamp(&mut object, None);
        state.writes.push(format!("create {} {namespace}/{}", of.resource, object.name()));
        let object = self.store(&mut state, of, at, object);
        drop(state);
        self.tell();
        Ok(object)
    }

    async fn update(
        &self,
        of: &Gvr,
        subresource: Option<&str>,
        object: Document,
    ) -> Result<Arc<Object>, Status> {
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        self.change(of, "update", subresource, &namespace, &name, |_| Ok(object))
    }

    async fn patch(
        &self,
        of: &Gvr,
        subresource: Option<&str>,
        namespace: Option<&str>,
        name: &str,
        patch: Patch,
    ) -> Result<Arc<Object>, Status> {
        self.change(of, "patch", subresource, namespace.unwrap_or_default(), name, |old| {
            let mut value = old.into_value();
            match patch {
                Patch::Merge(patch) => merge(&mut value, patch, false),
                Patch::Strategic(patch) => merge(&mut value, patch, true),
                Patch::Apply { document, .. } => merge(&mut value, document, true),
                Patch::Json(patch) => {
                    let patch: json_patch::Patch =
                        serde_json::from_value(patch).map_err(|err| Status::bad_request(err.to_string()))?;
                    json_patch::patch(&mut value, &patch)
                        .map_err(|err| Status::failure(422, Reason::Invalid, err.to_string()))?;
                }
            }
            Document::from_value(value).ok_or_else(|| Status::bad_request("not an object"))
        })
    }

    async fn delete(
        &self,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        options: DeleteOptions,
    ) -> Result<(), Status> {
        let namespace = namespace.unwrap_or_default();
        let mut state = self.state.lock();
        self.refuse(&mut state, "delete", of)?;
        let at = key(of, namespace, name);
        let Some(old) = state.objects.get(&at).cloned() else { return Err(Status::not_found(of, name)) };
        if options.uid.as_ref().is_some_and(|uid| *uid != old.header.uid.to_string()) {
            return Err(Status::conflict(of, name, "the UID in the precondition does not match"));
        }
        if options.resource_version.as_ref().is_some_and(|wanted| *wanted != old.header.revision.to_string())
        {
            return Err(Status::conflict(of, name, "the resourceVersion in the precondition does not match"));
        }
        state.writes.push(format!("delete {} {namespace}/{name}", of.resource));
        let mut document = old.to_document().map_err(|err| Status::internal(err.to_string()))?;
        document.set("apiVersion", of.api_version());
        let mut finalizers: Vec<String> = document.finalizers().into_iter().map(str::to_owned).collect();
        finalizers.retain(|one| !["orphan", "foregroundDeletion"].contains(&one.as_str()));
        match options.propagation {
            Some(Propagation::Foreground) => finalizers.push("foregroundDeletion".to_owned()),
            Some(Propagation::Orphan) => finalizers.push("orphan".to_owned()),
            Some(Propagation::Background) | None => {}
        }
        let is_namespace = of.resource == "namespaces" && !document.get_array("spec.finalizers").is_empty();
        let graceful = of.resource == "pods"
            && options.grace_period_seconds != Some(0)
            && is_assigned(&document)
            && !is_over(&document);
        if finalizers.is_empty() && !is_namespace && !graceful {
            Self::drop_object(&mut state, of, &at);
        } else {
            let before = document.clone();
            document.set("metadata.finalizers", finalizers);
            document.set_default("metadata.deletionTimestamp", rfc3339(self.clock.now()));
            document.set("metadata.deletionGracePeriodSeconds", options.grace_period_seconds.unwrap_or(0));
            if is_namespace {
                document.set("status.phase", "Terminating");
            }
            // Deleted already: nothing new to tell anybody.
            if document != before {
                self.store(&mut state, of, at, document);
            }
        }
        drop(state);
        self.tell();
        Ok(())
    }
}

fn key(of: &Gvr, namespace: &str, name: &str) -> Key {
    (of.group_resource(), namespace.to_owned(), name.to_owned())
}

fn suffix(subresource: Option<&str>) -> String {
    subresource.map(|one| format!("/{one}")).unwrap_or_default()
}

/// A kubelet has to end it first.
fn is_assigned(pod: &Document) -> bool {
    pod.get_str("spec.nodeName").is_some_and(|node| !node.is_empty())
}

fn is_over(pod: &Document) -> bool {
    matches!(pod.get_str("status.phase"), Some("Succeeded" | "Failed"))
}

fn without_type(document: &Document) -> Document {
    let mut document = document.clone();
    document.remove("apiVersion");
    document.remove("kind");
    document
}

fn field_text(object: &Object, path: &str) -> String {
    match path {
        "metadata.name" => object.header.name.to_string(),
        "metadata.namespace" => object.header.namespace.as_deref().unwrap_or_default().to_owned(),
        _ => match object.field(path) {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        },
    }
}

/// RFC 7396; with `by_key`, lists of objects are joined by `type`, `uid` or `name`, which is near enough to a
/// strategic merge for what controllers send.
fn merge(target: &mut Value, patch: Value, by_key: bool) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(&key);
            continue;
        }
        let slot = map.entry(key).or_insert(Value::Null);
        match (slot.as_array_mut(), &value) {
            (Some(old), Value::Array(new)) if by_key => merge_list(old, new),
            _ => merge(slot, value, by_key),
        }
    }
}

fn merge_list(old: &mut Vec<Value>, new: &[Value]) {
    let by = ["type", "uid", "name"]
        .into_iter()
        .find(|by| !new.is_empty() && new.iter().all(|one| one.get(by).is_some()));
    let Some(by) = by else {
        *old = new.to_vec();
        return;
    };
    for one in new {
        let known = old.iter().position(|known| known.get(by) == one.get(by));
        let delete = one.get("$patch").is_some_and(|patch| patch == "delete");
        match known {
            Some(at) if delete => drop(old.remove(at)),
            Some(at) => merge(&mut old[at], one.clone(), true),
            None if delete => {}
            None => old.push(one.clone()),
        }
    }
}

/// A clock that follows tokio's, so that a test with paused time moves both at once.
#[derive(Debug)]
pub struct TokioClock {
    started: tokio::time::Instant,
    epoch: base_clock::Timestamp,
}

impl TokioClock {
    pub fn shared() -> SharedClock {
        let epoch = base_clock::Timestamp::from_second(1_796_000_000).expect("a time in range");
        Arc::new(TokioClock { started: tokio::time::Instant::now(), epoch })
    }
}

impl base_clock::Clock for TokioClock {
    fn now(&self) -> base_clock::Timestamp {
        self.epoch.saturating_add(self.started.elapsed()).unwrap_or(base_clock::Timestamp::MAX)
    }
    fn monotonic(&self) -> std::time::Duration {
        self.started.elapsed()
    }
}

/// Waits until `holds`, a minute of (paused) time at most; then says what was waited for.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("waited in vain: {what}");
}
