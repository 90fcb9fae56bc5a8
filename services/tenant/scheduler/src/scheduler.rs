//! The loop.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Gvr, Object, Status};
use api_placement::{PodInfo, place, preempt};
use api_reconcile::{Backoff, EventText, Regarding};
use base_clock::{SharedClock, rfc3339};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, SelectAll, StreamExt};
use serde_json::json;
use tenant_client::{
    CreateOptions, DeleteOptions, ListOptions, Patch, Recorder, SharedApi, WatchEvent, WatchOptions,
    WatchStream, lease,
};
use tokio_util::sync::CancellationToken;

use crate::state::{Meaning, State};
use crate::waiting::{Key, Waiting};

const PODS: Gvr = Gvr::core("pods");
const NODES: Gvr = Gvr::core("nodes");
const NAMESPACES: Gvr = Gvr::core("namespaces");

/// The name its Lease and Events carry.
const SCHEDULER: &str = "kube-scheduler";
/// How Events and `spec.schedulerName` call it.
const PROFILE: &str = "default-scheduler";
/// Bindings and status writes under way at a time: hides a write's latency, leaves seats to others.
const WRITES_AT_ONCE: usize = 64;
/// Decisions between two looks at what has changed.
const DECISIONS_AT_ONCE: usize = 32;
const SIGNALS_AT_ONCE: usize = 512;

#[derive(Debug, Clone)]
pub struct Config {
    /// Who leads, for the Lease in kube-system.
    pub holder: String,
}

pub struct Scheduler {
    api: SharedApi,
    clock: SharedClock,
    holder: String,
    state: State,
    waiting: Waiting,
    writes: FuturesUnordered<BoxFuture<'static, Written>>,
    recorder: Recorder,
    lease_write: Option<BoxFuture<'static, ()>>,
    lease_renewed: Option<Duration>,
    listed: [bool; 3],
    decisions: u64,
}

enum Written {
    Bound { key: Key, pod: Arc<PodInfo>, node: String, result: Result<(), Status> },
    Told { key: Key, result: Result<(), Status> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Pods,
    Nodes,
    Namespaces,
}

enum Signal {
    Listed(Vec<Arc<Object>>),
    Event(WatchEvent),
}

type Sources = SelectAll<BoxStream<'static, (Of, Signal)>>;

impl Scheduler {
    /// Runs until `stop`, as `system:kube-scheduler`, whose access `api` is. Start it with leadership, stop it
    /// with its loss.
    pub async fn run(api: SharedApi, clock: SharedClock, config: Config, stop: CancellationToken) {
        let mut scheduler = Scheduler {
            api,
            clock,
            holder: config.holder,
            state: State::default(),
            waiting: Waiting::default(),
            writes: FuturesUnordered::new(),
            recorder: Recorder::default(),
            lease_write: None,
            lease_renewed: None,
            listed: [false; 3],
            decisions: 0,
        };
        scheduler.serve(&stop).await;
    }

    async fn serve(&mut self, stop: &CancellationToken) {
        let mut sources: Sources = SelectAll::new();
        for (of, gvr) in [(Of::Nodes, NODES), (Of::Namespaces, NAMESPACES), (Of::Pods, PODS)] {
            sources.push(source(self.api.clone(), gvr).map(move |signal| (of, signal)).boxed());
        }
        self.renew_lease();
        loop {
            self.decide();
            let now = self.clock.monotonic();
            let more = self.may_decide() && self.waiting.has_ready();
            let wake_at = self.waiting.next_at().filter(|_| self.may_decide());
            let sleep = async {
                match wake_at {
                    _ if more => tokio::task::yield_now().await,
                    Some(at) => tokio::time::sleep(at.saturating_sub(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(written) = self.writes.next(), if !self.writes.is_empty() => self.written(written),
                () = self.recorder.next(), if !self.recorder.is_idle() => {}
                () = wait_for(&mut self.lease_write), if self.lease_write.is_some() => self.lease_write = None,
                Some((of, signal)) = sources.next() => {
                    self.take_in(of, signal);
                    for _ in 0..SIGNALS_AT_ONCE {
                        match sources.next().now_or_never() {
                            Some(Some((of, signal))) => self.take_in(of, signal),
                            _ => break,
                        }
                    }
                }
                () = sleep => {}
            }
        }
    }

    // ---- taking in ----

    fn take_in(&mut self, of: Of, signal: Signal) {
        match signal {
            Signal::Listed(items) => {
                self.forget_unlisted(of, &items);
                items.iter().for_each(|object| self.saw(of, object));
                self.listed[of as usize] = true;
            }
            Signal::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => self.saw(of, &object),
            Signal::Event(WatchEvent::Deleted(object)) => self.lost(of, &object),
            Signal::Event(WatchEvent::Bookmark(_)) => {}
        }
    }

    fn saw(&mut self, of: Of, object: &Arc<Object>) {
        let now = self.clock.monotonic();
        match of {
            Of::Nodes => {
                if self.state.saw_node(object) {
                    self.waiting.wake(now, |_| true);
                }
            }
            Of::Namespaces => {
                if self.state.saw_namespace(object) {
                    self.waiting.wake(now, |pod| pod.affinity.is_some());
                }
            }
            Of::Pods => {
                let key = key(object);
                match self.state.saw_pod(&key, object) {
                    (Meaning::Wants, Some(pod)) if pod.scheduler == PROFILE => self.waiting.put(key, pod),
                    (Meaning::Placed, _) => {
                        self.waiting.remove(&key);
                        self.waiting.wake(now, |pod| pod.affinity.is_some() || !pod.spread.is_empty());
                    }
                    (Meaning::Freed, _) => {
                        self.waiting.remove(&key);
                        self.waiting.wake(now, |_| true);
                    }
                    (Meaning::Nothing, Some(pod)) if pod.node.is_empty() => {
                        // Deleted or gated while it waited.
                        if pod.is_deleting || pod.gated {
                            self.waiting.remove(&key);
                        }
                    }
                    (Meaning::Wants | Meaning::Nothing, _) => {}
                }
            }
        }
    }

    fn lost(&mut self, of: Of, object: &Object) {
        match of {
            Of::Nodes => self.state.lost_node(&object.header.name),
            Of::Namespaces => self.state.lost_namespace(&object.header.name),
            Of::Pods => self.lost_pod(&key(object)),
        }
    }
    fn lost_pod(&mut self, key: &Key) {
        self.waiting.remove(key);
        if self.state.lost_pod(key) {
            self.waiting.wake(self.clock.monotonic(), |_| true);
        }
    }

    /// What a fresh list doesn't show went away while nobody watched.
    fn forget_unlisted(&mut self, of: Of, items: &[Arc<Object>]) {
        if !self.listed[of as usize] {
            return;
        }
        match of {
            Of::Pods => {
                let present: std::collections::HashSet<Key> =
                    items.iter().map(|object| key(object)).collect();
                let known = self.state.placed_keys().into_iter().chain(self.waiting.keys());
                let gone: Vec<Key> = known.filter(|key| !present.contains(key)).collect();
                gone.iter().for_each(|key| self.lost_pod(key));
            }
            Of::Nodes => self.state.snapshot.nodes.retain(|name, _| is_listed(items, name)),
            Of::Namespaces => self.state.snapshot.namespaces.retain(|name, _| is_listed(items, name)),
        }
    }

    // ---- deciding ----

    fn may_decide(&self) -> bool {
        self.listed.iter().all(|listed| *listed) && self.writes.len() < WRITES_AT_ONCE
    }

    fn decide(&mut self) {
        for _ in 0..DECISIONS_AT_ONCE {
            if !self.may_decide() {
                return;
            }
            let now = self.clock.monotonic();
            let Some((key, pod)) = self.waiting.pop(now) else { return };
            self.decisions = self.decisions.wrapping_add(1);
            self.renew_lease();
            match place(&pod, &self.state.snapshot, self.decisions) {
                Ok(placement) => {
                    self.state.assume(&key, &pod, &placement.node);
                    self.writes.push(bind(self.api.clone(), key, pod, placement.node).boxed());
                }
                Err(why) => {
                    let message = why.to_string();
                    let preemption = preempt(&pod, &self.state.snapshot, &why);
                    let news = self.waiting.park(&key, &message);
                    if news || preemption.is_some() {
                        let text =
                            EventText::warning("FailedScheduling", message.clone()).action("Scheduling");
                        self.record(regarding(&pod), text);
                        let nominated = preemption.as_ref().map(|found| found.node.clone());
                        let since = rfc3339(self.clock.now());
                        let tell =
                            tell(self.api.clone(), key.clone(), pod.clone(), message, nominated, since);
                        self.writes.push(tell.boxed());
                    }
                    for victim in preemption.into_iter().flat_map(|found| found.victims) {
                        if victim.is_deleting {
                            continue;
                        }
                        let text = EventText::normal(
                            "Preempted",
                            format!("Preempted by pod {} on node {}", pod.uid, victim.node),
                        );
                        self.record(regarding(&victim), text.action("Preempting"));
                        self.writes.push(evict(self.api.clone(), key.clone(), victim).boxed());
                    }
                }
            }
        }
    }

    fn written(&mut self, written: Written) {
        let now = self.clock.monotonic();
        match written {
            Written::Bound { key, pod, node, result: Ok(()) } => {
                self.waiting.remove(&key);
                let name = format!("{}/{}", pod.namespace, pod.name);
                let text = EventText::normal("Scheduled", format!("Successfully assigned {name} to {node}"));
                self.record(regarding(&pod), text.action("Binding"));
            }
            Written::Bound { key, pod, node, result: Err(status) } => {
                self.state.forget(&key);
                // Gone, or somebody else's by now: its own event will tell.
                if status.is_not_found() {
                    self.waiting.remove(&key);
                    return;
                }
                tracing::info!(pod = %pod.name, node, %status, "binding refused, will try again");
                let text =
                    EventText::warning("FailedScheduling", format!("binding rejected: {}", status.message));
                self.record(regarding(&pod), text.action("Scheduling"));
                self.waiting.retry(&key, now);
            }
            Written::Told { key, result } => {
                if let Err(status) = result {
                    tracing::debug!(pod = %key.1, %status, "pod not told why it waits");
                }
            }
        }
    }

    fn record(&mut self, regarding: Regarding, text: EventText) {
        let now = (self.clock.now(), self.clock.monotonic());
        self.recorder.record(&self.api, PROFILE, regarding, text, now);
    }

    fn renew_lease(&mut self) {
        let now = self.clock.monotonic();
        let due = self.lease_renewed.is_none_or(|at| now.saturating_sub(at) >= lease::RENEW);
        if due && self.lease_write.is_none() {
            let first = self.lease_renewed.is_none();
            self.lease_renewed = Some(now);
            let (api, holder, wall) = (self.api.clone(), self.holder.clone(), self.clock.now());
            self.lease_write = Some(lease::renew(api, SCHEDULER, holder, wall, first).boxed());
        }
    }
}

fn key(object: &Object) -> Key {
    (object.header.namespace.as_deref().unwrap_or_default().into(), (&*object.header.name).into())
}

fn is_listed(items: &[Arc<Object>], name: &str) -> bool {
    items.iter().any(|object| &*object.header.name == name)
}

fn regarding(pod: &PodInfo) -> Regarding {
    Regarding {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: Some(pod.namespace.clone()),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: String::new(),
    }
}

async fn bind(api: SharedApi, key: Key, pod: Arc<PodInfo>, node: String) -> Written {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let options = CreateOptions {
        namespace: Some(pod.namespace.clone()),
        subresource: Some((pod.name.clone(), "binding")),
    };
    let binding = Document::from_value(binding).unwrap_or_default();
    let result = api.create(&PODS, binding, options).await.map(drop);
    Written::Bound { key, pod, node, result }
}

async fn tell(
    api: SharedApi,
    key: Key,
    pod: Arc<PodInfo>,
    message: String,
    nominated: Option<String>,
    since: String,
) -> Written {
    let mut status = json!({"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": message, "lastProbeTime": null, "lastTransitionTime": since,
    }]});
    if let Some(node) = nominated {
        status["nominatedNodeName"] = json!(node);
    }
    let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
    let result = api.patch(&PODS, Some("status"), Some(&pod.namespace), &pod.name, patch).await.map(drop);
    Written::Told { key, result }
}

async fn evict(api: SharedApi, key: Key, victim: Arc<PodInfo>) -> Written {
    let condition = json!({"status": {"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": format!("{PROFILE}: preempting to accommodate a higher priority pod"),
    }]}});
    // The mark is a courtesy to whoever counts disruptions; the delete is what makes room.
    let marked = api
        .patch(&PODS, Some("status"), Some(&victim.namespace), &victim.name, Patch::Strategic(condition))
        .await;
    if let Err(status) = marked {
        tracing::debug!(pod = %victim.name, %status, "victim not marked");
    }
    let options = DeleteOptions { uid: Some(victim.uid.clone()), ..DeleteOptions::default() };
    let result = api.delete(&PODS, Some(&victim.namespace), &victim.name, options).await;
    Written::Told { key, result }
}

async fn wait_for(write: &mut Option<BoxFuture<'static, ()>>) {
    match write {
        Some(write) => write.await,
        None => std::future::pending().await,
    }
}

enum Step {
    List,
    Watch(u64),
    Follow(WatchStream, u64),
}

const RETRY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(30) };

/// One resource, listed and watched for ever.
fn source(api: SharedApi, of: Gvr) -> impl futures::Stream<Item = Signal> {
    futures::stream::unfold((Step::List, 0u32), move |(mut step, mut failures)| {
        let (api, of) = (api.clone(), of.clone());
        async move {
            loop {
                let failed = match step {
                    Step::List => match api.list(&of, ListOptions::default()).await {
                        Ok(list) => {
                            return Some((Signal::Listed(list.items), (Step::Watch(list.revision), 0)));
                        }
                        Err(status) => (Step::List, status),
                    },
                    Step::Watch(after) => {
                        match api.watch(&of, WatchOptions { after, ..WatchOptions::default() }).await {
                            Ok(stream) => {
                                step = Step::Follow(stream, after);
                                continue;
                            }
                            Err(status) if status.code == 410 => {
                                step = Step::List;
                                continue;
                            }
                            Err(status) => (Step::Watch(after), status),
                        }
                    }
                    Step::Follow(mut stream, after) => match stream.next().await {
                        Some(Ok(event)) => {
                            let after = match &event {
                                WatchEvent::Added(object)
                                | WatchEvent::Modified(object)
                                | WatchEvent::Deleted(object) => object.header.revision.max(after),
                                WatchEvent::Bookmark(revision) => after.max(*revision),
                            };
                            return Some((Signal::Event(event), (Step::Follow(stream, after), 0)));
                        }
                        Some(Err(status)) if status.code == 410 => {
                            step = Step::List;
                            continue;
                        }
                        Some(Err(status)) => (Step::Watch(after), status),
                        None => (Step::Watch(after), Status::timeout("the watch ended")),
                    },
                };
                failures = failures.saturating_add(1);
                tracing::debug!(resource = %of, status = %failed.1, "will ask again");
                tokio::time::sleep(RETRY.after(failures)).await;
                step = failed.0;
            }
        }
    })
}
