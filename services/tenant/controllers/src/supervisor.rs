//! One task that runs all controllers of one tenant.
//!
//! It takes in what the sources show, wakes the controllers concerned, starts their plans' writes and takes
//! in what came of them: all state is its own, so there is no lock, and a plan always sees a world that
//! stands still. Writes of different keys run at the same time, inside this task.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api_machinery::Object;
use api_reconcile::{Backoff, Queue};
use base_clock::SharedClock;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll, StreamExt};
use futures::{FutureExt, Stream};
use tenant_client::{Recorder, SharedApi, UserInfo, WatchEvent, lease};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Catalog, ResourceId, res};
use crate::cluster::definitions;
use crate::cluster::endpoint::API_SERVER;
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::runner::{Done, Job, Signer};
use crate::source::{Signal, Source};
use crate::world::World;

/// What a cell knows about a tenant before its controllers start.
#[derive(Clone)]
pub struct Config {
    /// Who leads, for the Lease in kube-system.
    pub holder: String,
    /// PEM of the cluster's CA: `kube-root-ca.crt` and `cluster-info` publish it.
    pub root_ca_pem: String,
    /// Kubeconfig (server and CA, no credentials) that `kube-public/cluster-info` carries; without one the
    /// ConfigMap is only signed, not made.
    pub cluster_info: Option<String>,
    /// Without one, certificate requests are approved but not signed.
    pub signer: Option<Arc<dyn Signer>>,
    /// Pods' addresses, given out in blocks of `node_block_bits`.
    pub pod_cidr: (std::net::Ipv4Addr, u8),
    pub node_block_bits: u8,
    /// Address of the Service `kubernetes`, and where it leads: what the cluster was made with.
    pub api_service: std::net::Ipv4Addr,
    pub api_end: (std::net::Ipv4Addr, u16),
    /// Every resource the cluster serves; [`Catalog::built_in`] unless custom resources come to it.
    pub catalog: Catalog,
}

impl Config {
    /// The settings every cluster shares; the caller fills in what differs.
    pub fn new(holder: impl Into<String>, root_ca_pem: impl Into<String>) -> Config {
        Config {
            holder: holder.into(),
            root_ca_pem: root_ca_pem.into(),
            cluster_info: None,
            signer: None,
            pod_cidr: (std::net::Ipv4Addr::new(10, 244, 0, 0), 16),
            node_block_bits: 24,
            api_service: std::net::Ipv4Addr::new(10, 96, 0, 1),
            // Nobody's address (RFC 5737). Pods reach the Service `kubernetes` through their node's agent and its
            // tunnel; nothing dials what the EndpointSlice holds. It becomes the gateway's address and the
            // cluster's own port there when stock kubelets can join (DESIGN §7).
            api_end: (std::net::Ipv4Addr::new(192, 0, 2, 1), 6443),
            catalog: Catalog::built_in(),
        }
    }
}

/// Whom a component name given to `api_for` stands for: `kube-controller-manager` and its like are users of
/// their own, controllers are ServiceAccounts in kube-system, as upstream. What the API server keeps itself
/// it also writes itself.
pub fn identity(component: &str) -> UserInfo {
    if component == API_SERVER {
        let mut server = UserInfo::component("system:apiserver");
        server.groups.push(UserInfo::MASTERS.to_owned());
        server
    } else if component.starts_with("kube-") {
        UserInfo::component(&format!("system:{component}"))
    } else {
        UserInfo::service_account("kube-system", component)
    }
}

/// The name under which the supervisor watches.
pub(crate) const WATCHER: &str = "kube-controller-manager";
/// Lists a starting tenant makes at a time: a cell that starts a thousand tenants must not list a thousand
/// times seventy resources at once.
const LISTS_AT_ONCE: usize = 4;
/// Signals taken in before plans are made again: enough to see a burst as one, few enough to stay prompt.
const SIGNALS_AT_ONCE: usize = 512;
pub struct Controllers;

impl Controllers {
    /// Runs until `stop`. Start it with leadership, stop it with its loss; nothing survives in between.
    /// `api_for` gives access under the identity that [`identity`] says.
    pub async fn run(
        api_for: impl Fn(&str) -> SharedApi + Send + 'static,
        clock: SharedClock,
        config: Config,
        stop: CancellationToken,
    ) {
        let controllers = crate::all_controllers(&config);
        Controllers::run_these(controllers, api_for, clock, config, stop).await;
    }

    /// As [`Controllers::run`], with a choice of controllers.
    pub async fn run_these(
        controllers: Vec<Box<dyn Controller>>,
        api_for: impl Fn(&str) -> SharedApi + Send + 'static,
        clock: SharedClock,
        config: Config,
        stop: CancellationToken,
    ) {
        let mut supervisor = Supervisor::new(controllers, Box::new(api_for), clock, config);
        supervisor.run(&stop).await;
    }
}

type Sources = SelectAll<Source>;

struct Desk {
    controller: Box<dyn Controller>,
    queue: Queue<Key>,
    api: Option<SharedApi>,
}

struct Supervisor {
    desks: Vec<Desk>,
    /// Which desks a resource concerns.
    concerned: Vec<Vec<usize>>,
    lists: Arc<Semaphore>,
    /// Custom resources that are watched, and how their source is told to end.
    custom: HashMap<ResourceId, Arc<AtomicBool>>,
    /// Sources that are to be followed from now on.
    fresh: Vec<Source>,
    world: World,
    catalog: Arc<Catalog>,
    api_for: Box<dyn Fn(&str) -> SharedApi + Send>,
    apis: HashMap<&'static str, SharedApi>,
    clock: SharedClock,
    holder: String,
    signer: Option<Arc<dyn Signer>>,
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    recorder: Recorder,
    lease_write: Option<BoxFuture<'static, ()>>,
    lease_renewed: Option<Duration>,
}

impl Supervisor {
    fn new(
        controllers: Vec<Box<dyn Controller>>,
        api_for: Box<dyn Fn(&str) -> SharedApi + Send>,
        clock: SharedClock,
        config: Config,
    ) -> Supervisor {
        let catalog = Arc::new(config.catalog);
        let mut concerned = vec![Vec::new(); catalog.len()];
        for (at, controller) in controllers.iter().enumerate() {
            for id in controller.resources() {
                concerned[usize::from(id.0)].push(at);
            }
            // The collector is concerned by everything, and says so by naming nothing.
            if controller.resources().is_empty() {
                concerned.iter_mut().for_each(|list| list.push(at));
            }
        }
        let desks = controllers
            .into_iter()
            .map(|controller| Desk { controller, queue: Queue::new(Backoff::CONTROLLER), api: None })
            .collect();
        Supervisor {
            desks,
            concerned,
            lists: Arc::new(Semaphore::new(LISTS_AT_ONCE)),
            custom: HashMap::new(),
            fresh: Vec::new(),
            world: World::new(catalog.clone()),
            catalog,
            api_for,
            apis: HashMap::new(),
            clock,
            holder: config.holder,
            signer: config.signer,
            jobs: FuturesUnordered::new(),
            recorder: Recorder::default(),
            lease_write: None,
            lease_renewed: None,
        }
    }

    async fn run(&mut self, stop: &CancellationToken) {
        let watcher = self.api(WATCHER);
        let mut sources: Sources = SelectAll::new();
        for id in self.catalog.ids() {
            if !self.concerned[usize::from(id.0)].is_empty() {
                let lists = self.lists.clone();
                sources.push(Source::new(watcher.clone(), self.catalog.clone(), id, lists, None));
            }
        }
        loop {
            sources.extend(self.fresh.drain(..));
            let wake_at = self.dispatch();
            let now = self.clock.monotonic();
            let sleep = async {
                match wake_at {
                    Some(at) => tokio::time::sleep(at.saturating_sub(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => self.finish(done),
                () = self.recorder.next(), if !self.recorder.is_idle() => {}
                () = wait_for(&mut self.lease_write), if self.lease_write.is_some() => self.lease_write = None,
                Some((id, signal)) = sources.next() => {
                    self.take_in(id, signal);
                    self.drain(&mut sources);
                }
                () = sleep => {}
            }
        }
    }

    /// Takes in what else is there already, so that a burst is planned once.
    fn drain(&mut self, sources: &mut Sources) {
        for _ in 0..SIGNALS_AT_ONCE {
            match sources.next().now_or_never() {
                Some(Some((id, signal))) => self.take_in(id, signal),
                _ => break,
            }
        }
    }

    fn take_in(&mut self, id: ResourceId, signal: Signal) {
        match signal {
            Signal::Listed { revision, items } => {
                for gone in self.world.listed(id, revision, &items) {
                    self.announce(id, ChangeKind::Gone, &gone, Some(&gone));
                }
                for object in items {
                    self.saw(id, &object);
                }
            }
            Signal::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => self.saw(id, &object),
            Signal::Event(WatchEvent::Deleted(object)) => {
                let old = self.world.lost(id, &object);
                self.announce(id, ChangeKind::Gone, &object, old.as_ref());
            }
            Signal::Event(WatchEvent::Bookmark(revision)) => self.world.reached(id, revision),
        }
    }

    fn saw(&mut self, id: ResourceId, object: &Arc<Object>) {
        if let Some(old) = self.world.saw(id, object) {
            let kind = if old.is_some() { ChangeKind::Changed } else { ChangeKind::Seen };
            self.announce(id, kind, object, old.as_ref());
        }
    }

    /// Watches what a definition serves, if that is news.
    fn serve(&mut self, definition: &Object) {
        let Some((gvr, gvk, namespaced)) = definitions::served(definition) else { return };
        let mut catalog = Catalog::clone(&self.catalog);
        let Some(id) = catalog.serve(gvr, gvk, namespaced) else { return };
        self.catalog = Arc::new(catalog);
        self.world.serves(self.catalog.clone());
        let everything = |desk: &Desk| desk.controller.resources().is_empty();
        let concerned = (0..self.desks.len()).filter(|at| everything(&self.desks[*at])).collect::<Vec<_>>();
        if concerned.is_empty() {
            return;
        }
        self.concerned.resize(self.catalog.len(), Vec::new());
        self.concerned[usize::from(id.0)] = concerned;
        let retired = Arc::new(AtomicBool::new(false));
        if let Some(before) = self.custom.insert(id, retired.clone()) {
            before.store(true, Ordering::Relaxed);
        }
        let (api, lists) = (self.api(WATCHER), self.lists.clone());
        self.fresh.push(Source::new(api, self.catalog.clone(), id, lists, Some(retired)));
    }

    /// Forgets what a definition that is gone has served.
    fn retire(&mut self, definition: &Object) {
        let Some((plural, group)) = definition.header.name.split_once('.') else { return };
        let mut catalog = Catalog::clone(&self.catalog);
        let Some(id) = catalog.retire(plural, group) else { return };
        self.catalog = Arc::new(catalog);
        for gone in self.world.retire(id) {
            self.announce(id, ChangeKind::Gone, &gone, Some(&gone));
        }
        self.world.serves(self.catalog.clone());
        if let Some(source) = self.custom.remove(&id) {
            source.store(true, Ordering::Relaxed);
        }
    }

    fn announce(
        &mut self,
        of: ResourceId,
        kind: ChangeKind,
        object: &Arc<Object>,
        old: Option<&Arc<Object>>,
    ) {
        let now = self.now();
        let change = Change { of, kind, object, old };
        for at in &self.concerned[usize::from(of.0)] {
            let Desk { controller, queue, .. } = &mut self.desks[*at];
            controller.concerns(&self.world, &change, now, &mut |key| queue.add(key));
        }
        if of == res::DEFINITIONS {
            match kind {
                ChangeKind::Gone => self.retire(object),
                ChangeKind::Seen | ChangeKind::Changed => self.serve(object),
            }
        }
    }

    /// Plans for every key that is ready, as far as workers allow. Returns when the next delayed key is due.
    fn dispatch(&mut self) -> Option<Duration> {
        let now = self.now();
        let mut worked = false;
        for at in 0..self.desks.len() {
            let synced = self.desks[at].controller.resources().iter().all(|id| self.world.is_synced(*id));
            if !synced {
                continue;
            }
            loop {
                let desk = &mut self.desks[at];
                if desk.queue.working() >= desk.controller.workers() {
                    break;
                }
                let Some(key) = desk.queue.pop(now.mono) else { break };
                let plan = desk.controller.plan(&self.world, &key, now);
                if plan.is_nothing() {
                    desk.queue.forget(&key);
                    if let Some(wait) = plan.again_after {
                        desk.queue.add_at(key.clone(), now.mono + wait);
                    }
                    desk.queue.done(&key);
                    continue;
                }
                worked = true;
                let name = desk.controller.name();
                let api = match &desk.api {
                    Some(api) => api.clone(),
                    None => {
                        let api = self.api(name);
                        self.desks[at].api = Some(api.clone());
                        api
                    }
                };
                let job = Job {
                    controller: at,
                    key,
                    actions: plan.actions,
                    again_after: plan.again_after,
                    api,
                    catalog: self.catalog.clone(),
                    signer: self.signer.clone(),
                };
                self.jobs.push(job.run().boxed());
            }
        }
        if worked || self.lease_renewed.is_none() {
            self.renew_lease(now);
        }
        // Desks that wait for a list, or have all workers busy, are woken by those, not by a timer.
        self.desks
            .iter()
            .filter(|desk| desk.queue.working() < desk.controller.workers())
            .filter(|desk| desk.controller.resources().iter().all(|id| self.world.is_synced(*id)))
            .filter_map(|desk| desk.queue.next_at())
            .min()
    }

    fn finish(&mut self, done: Done) {
        let now = self.now();
        for (id, deletion) in &done.deleted {
            let namespace = deletion.namespace.as_deref().unwrap_or_default();
            self.world.deleted(*id, namespace, &deletion.name, &deletion.uid);
        }
        for (id, object) in &done.wrote {
            if let Some(old) = self.world.wrote(*id, object) {
                let kind = if old.is_some() { ChangeKind::Changed } else { ChangeKind::Seen };
                self.announce(*id, kind, object, old.as_ref());
            }
        }
        let name = self.desks[done.controller].controller.name();
        if !done.events.is_empty() {
            let api = self.api(name);
            for (regarding, text) in done.events {
                self.recorder.record(&api, name, regarding, text, (now.wall, now.mono));
            }
        }
        let desk = &mut self.desks[done.controller];
        for news in &done.news {
            desk.controller.learn(&done.key, news);
        }
        match done.result {
            Ok(()) => {
                desk.queue.forget(&done.key);
                if !done.news.is_empty() {
                    desk.queue.add(done.key.clone());
                }
                if let Some(wait) = done.again_after {
                    desk.queue.add_at(done.key.clone(), now.mono + wait);
                }
            }
            Err(status) => {
                desk.controller.failed(&done.key, &status);
                let wait = desk.queue.retry(&done.key, now.mono);
                let key = format!("{}/{}", done.key.namespace, done.key.name);
                let wait_ms = wait.as_millis() as u64;
                if status.is_conflict() {
                    tracing::debug!(controller = name, key, wait_ms, %status, "will look again");
                } else {
                    tracing::info!(controller = name, key, wait_ms, %status, "round failed, will look again");
                }
            }
        }
        desk.queue.done(&done.key);
    }

    fn renew_lease(&mut self, now: Now) {
        let due = self.lease_renewed.is_none_or(|at| now.mono.saturating_sub(at) >= lease::RENEW);
        if due && self.lease_write.is_none() {
            let first = self.lease_renewed.is_none();
            self.lease_renewed = Some(now.mono);
            let api = self.api(WATCHER);
            self.lease_write = Some(lease::renew(api, WATCHER, self.holder.clone(), now.wall, first).boxed());
        }
    }

    fn api(&mut self, component: &'static str) -> SharedApi {
        self.apis.entry(component).or_insert_with(|| (self.api_for)(component)).clone()
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.now(), mono: self.clock.monotonic() }
    }
}

async fn wait_for(write: &mut Option<BoxFuture<'static, ()>>) {
    match write {
        Some(write) => write.await,
        None => std::future::pending().await,
    }
}

/// `SelectAll` must stay a stream that can be polled in `select!` and in `drain` alike.
const _: fn() = || {
    fn assert_stream<T: Stream + Unpin>() {}
    assert_stream::<Sources>();
};
