//! One cluster's loop: what wakes what, and how it stands.
//!
//! It keeps what it has seen in [`State`], and a queue of keys to look at. A job per key reads the state,
//! asks a pure function what comes next, does that one thing and pokes the keys it concerns; no key is
//! worked on twice at a time. Failures wait longer each time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Gvr, Object};
use api_reconcile::{Backoff, EventText, Queue, Regarding};
use base_clock::{SharedClock, Timestamp};
use base_ids::{NodePoolId, TenantId};
use cloud_interface::{Balancer, BalancerSpec, ClientToken, CloudError, Join, SharedCloud};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tenant_client::{ListOptions, Recorder, SharedApi, WatchEvent, WatchOptions};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::ledger::{Entry, Ledger, LedgerError, What};
use crate::model::{BalancerStatus, Joining, NodeView, Pool, PoolStatus, Providers, Status, Wanted};
use crate::pools::{self, Farewell, Listing, Seen};
use crate::services::{Need, ServiceView};

pub(crate) const SERVICES: Gvr = Gvr::core("services");
pub(crate) const NODES: Gvr = Gvr::core("nodes");

/// Upstream's identity for what concerns Services.
const SERVICE_CONTROLLER: &str = "service-controller";

/// Providers answer in milliseconds or throttle; a person who fixes something does not want to wait long.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), most: Duration::from_secs(60) };

/// Jobs of one cluster at a time, so that one with a thousand machines does not fill a provider's queue.
const JOBS_AT_ONCE: usize = 8;

/// How often a provider is asked while something is on its way, and otherwise.
const LOOK_OFTEN: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(60);

const RELIST: Backoff = Backoff { first: Duration::from_millis(200), most: Duration::from_secs(30) };

/// What a cell gives to one cluster's loop.
pub struct Config {
    pub cluster: TenantId,
    /// Access as the provider's own hand: nodes, pods.
    pub api: SharedApi,
    /// Access as the service controller.
    pub service_api: SharedApi,
    pub ledger: Arc<dyn Ledger>,
    pub providers: Providers,
    pub joining: Arc<dyn Joining>,
    pub wanted: watch::Receiver<Wanted>,
    pub clock: SharedClock,
    pub control: Control,
}

/// The cell's hold on the loop, which comes and goes with leadership. Clones are handles.
#[derive(Debug, Clone, Default)]
pub struct Control {
    status: watch::Sender<Status>,
    drain: watch::Sender<bool>,
}

impl Control {
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }
    /// The ledger says that the cluster is being drained: look at it.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }
}

/// What there is to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// All pools.
    Pools,
    Machine(ClientToken),
    /// `namespace/name`
    Service(String),
    /// A balancer whose Service is gone, or that is drained.
    Stray(ClientToken),
    /// What a provider has.
    Provider(String),
}

/// What came of a job.
pub(crate) struct Outcome {
    /// Look again by itself.
    pub again: Option<Duration>,
    pub poke: Vec<Key>,
    pub events: Vec<(Regarding, EventText)>,
    pub failure: Option<String>,
}

impl Outcome {
    pub(crate) fn fine() -> Outcome {
        Outcome { again: None, poke: Vec::new(), events: Vec::new(), failure: None }
    }
    pub(crate) fn poke(key: Key) -> Outcome {
        Outcome { poke: vec![key], ..Outcome::fine() }
    }
    pub(crate) fn again(after: Duration) -> Outcome {
        Outcome { again: Some(after), ..Outcome::fine() }
    }
    pub(crate) fn failed(why: impl ToString) -> Outcome {
        Outcome { failure: Some(why.to_string()), ..Outcome::fine() }
    }
}

impl From<LedgerError> for Outcome {
    fn from(error: LedgerError) -> Outcome {
        Outcome::failed(error)
    }
}

/// What one leadership has seen and done. Nothing in it outlives that; the ledger does.
#[derive(Default)]
pub(crate) struct State {
    pub entries: BTreeMap<ClientToken, Entry>,
    pub draining: bool,
    pub listings: BTreeMap<String, Listing>,
    /// Of provider ids, by provider: asked once.
    pub schemes: BTreeMap<String, String>,
    pub nodes: BTreeMap<String, NodeView>,
    pub nodes_synced: bool,
    /// Those that need something, by `namespace/name`.
    pub services: BTreeMap<String, ServiceView>,
    pub services_synced: bool,
    /// What the last attempt for a pool ran into, and whether only a change of it helps.
    pub problems: BTreeMap<NodePoolId, (String, bool)>,
    /// Pools that begin no machine before that moment, after so many failures.
    pub held: BTreeMap<NodePoolId, (Duration, u32)>,
    /// Join parameters of machines that are being asked for, so that attempts share a token.
    pub joins: BTreeMap<ClientToken, (Join, Duration)>,
    /// Machines that are Ready nodes and have no join token left.
    pub arrived: BTreeSet<ClientToken>,
    pub farewells: BTreeMap<ClientToken, Farewell>,
    /// Why pods do not leave the node of a machine that is to go.
    pub stays: BTreeMap<ClientToken, String>,
    /// What the provider was last told, by `namespace/name`.
    pub applied: BTreeMap<String, BalancerSpec>,
    pub balancers: BTreeMap<ClientToken, Balancer>,
    pub balancer_problems: BTreeMap<String, String>,
    pub provider_problems: BTreeMap<String, String>,
}

/// What jobs share.
pub(crate) struct Shared {
    pub cluster: TenantId,
    pub api: SharedApi,
    pub service_api: SharedApi,
    pub ledger: Arc<dyn Ledger>,
    pub providers: Providers,
    pub joining: Arc<dyn Joining>,
    pub wanted: watch::Receiver<Wanted>,
    pub clock: SharedClock,
    pub state: Mutex<State>,
}

impl Shared {
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
    pub(crate) fn wanted(&self) -> Wanted {
        self.wanted.borrow().clone()
    }
    pub(crate) fn cloud(&self, name: &str) -> Result<SharedCloud, String> {
        let found = self.providers.0.iter().find(|(one, _)| one == name);
        found.map(|(_, cloud)| cloud.clone()).ok_or_else(|| format!("this cell has no cloud provider {name}"))
    }
    pub(crate) async fn put(&self, entry: Entry) -> Result<(), LedgerError> {
        self.ledger.put(&entry).await?;
        self.state.lock().entries.insert(entry.token.clone(), entry);
        Ok(())
    }
    pub(crate) async fn strike(&self, token: &ClientToken) -> Result<(), LedgerError> {
        self.ledger.strike(token).await?;
        self.state.lock().forget(token);
        Ok(())
    }
    pub(crate) async fn close(&self, entry: &Entry) -> Result<(), LedgerError> {
        self.ledger.close(&entry.token, &entry.gone(self.now())).await?;
        self.state.lock().forget(&entry.token);
        Ok(())
    }
    /// Runs a pure function of `pools` on what is seen.
    pub(crate) fn seen<T>(&self, decide: impl FnOnce(&Seen<'_>, &State) -> T) -> T {
        let wanted = self.wanted();
        let (now, mono) = (self.now(), self.clock.monotonic());
        let state = self.state.lock();
        let held = |pool: NodePoolId| state.held.get(&pool).is_some_and(|(until, _)| *until > mono);
        let provider_of = |pool: &Pool| {
            self.providers.choose(&pool.provider, &wanted.provider).ok().map(|(name, _)| name.clone())
        };
        let seen = Seen {
            pools: &wanted.pools,
            entries: &state.entries,
            listings: &state.listings,
            nodes: &state.nodes,
            held: &held,
            provider_of: &provider_of,
            draining: state.draining,
            now,
        };
        decide(&seen, &state)
    }
}

impl State {
    fn forget(&mut self, token: &ClientToken) {
        self.entries.remove(token);
        self.joins.remove(token);
        self.arrived.remove(token);
        self.farewells.remove(token);
        self.stays.remove(token);
        self.balancers.remove(token);
    }
    fn is_interesting(&self, wanted: &Wanted) -> bool {
        !wanted.pools.is_empty() || !self.entries.is_empty() || !self.services.is_empty()
    }
}

enum Signal {
    Listed(Vec<Arc<Object>>),
    Event(WatchEvent),
}

/// Runs until `stop`. Start it with leadership, stop it with its loss; only the ledger survives in between.
pub async fn run(config: Config, stop: CancellationToken) {
    let Config { cluster, api, service_api, ledger, providers, joining, wanted, clock, control } = config;
    let mut drain = control.drain.subscribe();
    let shared = Arc::new(Shared {
        cluster,
        api,
        service_api,
        ledger,
        providers,
        joining,
        wanted: wanted.clone(),
        clock,
        state: Mutex::default(),
    });
    tokio::select! {
        () = stop.cancelled() => return,
        () = read_ledger(&shared) => {}
    }
    let mut this = Runner {
        shared: shared.clone(),
        queue: Queue::new(BACKOFF),
        jobs: FuturesUnordered::new(),
        recorder: Recorder::default(),
        services: None,
        nodes: None,
        pools_seen: Vec::new(),
    };
    let mut wanted = wanted;
    if !shared.providers.0.is_empty() {
        this.services = Some(follow(shared.service_api.clone(), SERVICES));
    }
    this.look_at_everything();
    loop {
        // A cluster whose jobs never have to wait must not take the thread from the others.
        tokio::task::consume_budget().await;
        if this.nodes.is_none() && shared.state.lock().is_interesting(&wanted.borrow()) {
            this.nodes = Some(follow(shared.api.clone(), NODES));
        }
        let wake_at = this.dispatch();
        this.publish(&control.status);
        let now = shared.clock.monotonic();
        let sleep = async {
            match wake_at {
                Some(at) => tokio::time::sleep(at.saturating_sub(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // What is seen goes first: a job that is made from an old view may have to be done again.
            Some(signal) = next_of(&mut this.services) => this.saw_services(signal),
            Some(signal) = next_of(&mut this.nodes) => this.saw_nodes(signal),
            () = this.recorder.next(), if !this.recorder.is_idle() => {}
            Some((key, outcome)) = this.jobs.next(), if !this.jobs.is_empty() => this.finish(key, outcome),
            Ok(()) = wanted.changed() => this.look_at_everything(),
            Ok(()) = drain.changed() => {
                read_ledger(&shared).await;
                this.look_at_everything();
            }
            () = sleep => {}
        }
    }
}

/// Takes the books over; tries until it can, since nothing may be done without.
async fn read_ledger(shared: &Shared) {
    let mut failures = 0;
    loop {
        match shared.ledger.load().await {
            Ok((entries, draining)) => {
                let mut state = shared.state.lock();
                state.entries = entries.into_iter().map(|one| (one.token.clone(), one)).collect();
                state.draining = draining;
                return;
            }
            Err(error) => {
                failures += 1;
                tracing::debug!(tenant = %shared.cluster, %error, "ledger not read yet");
                tokio::time::sleep(RELIST.after(failures)).await;
            }
        }
    }
}

type Watch = Option<BoxStream<'static, Signal>>;

async fn next_of(watch: &mut Watch) -> Option<Signal> {
    match watch {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

struct Runner {
    shared: Arc<Shared>,
    queue: Queue<Key>,
    jobs: FuturesUnordered<BoxFuture<'static, (Key, Outcome)>>,
    recorder: Recorder,
    services: Watch,
    nodes: Watch,
    /// As they were when last looked at.
    pools_seen: Vec<Pool>,
}

impl Runner {
    fn look_at_everything(&mut self) {
        let wanted = self.shared.wanted();
        let mut keys = vec![Key::Pools];
        {
            let mut state = self.shared.state.lock();
            // A pool that was changed is tried at once, whatever happened to it before.
            for pool in &wanted.pools {
                if !self.pools_seen.contains(pool) {
                    state.held.remove(&pool.id);
                    state.problems.remove(&pool.id);
                }
            }
            state.problems.retain(|id, _| wanted.pools.iter().any(|pool| pool.id == *id));
            keys.extend(state.services.keys().cloned().map(Key::Service));
            keys.extend(state.entries.values().map(key_of));
        }
        self.pools_seen = wanted.pools;
        keys.extend(self.interesting_providers().into_iter().map(Key::Provider));
        keys.into_iter().for_each(|key| self.queue.add(key));
    }

    fn interesting_providers(&self) -> BTreeSet<String> {
        self.shared.seen(|seen, state| {
            let of_pools = seen.pools.iter().filter_map(|pool| (seen.provider_of)(pool));
            of_pools.chain(state.entries.values().map(|entry| entry.provider.clone())).collect()
        })
    }

    fn saw_services(&mut self, signal: Signal) {
        let mut keys = Vec::new();
        {
            let mut state = self.shared.state.lock();
            let mut take = |state: &mut State, object: &Object| {
                let view = ServiceView::of(object);
                let key = view.key();
                if view.need() == Need::Nothing {
                    // It may have been renamed into another life: whose balancer is left is a stray.
                    if state.services.remove(&key).is_some() {
                        keys.extend(view.token().map(Key::Stray));
                    }
                } else {
                    state.services.insert(key.clone(), view);
                    keys.push(Key::Service(key));
                }
            };
            match signal {
                Signal::Listed(items) => {
                    let before = std::mem::take(&mut state.services);
                    items.iter().for_each(|object| take(&mut state, object));
                    state.services_synced = true;
                    let gone = before.iter().filter(|(key, _)| !state.services.contains_key(*key));
                    keys.extend(gone.filter_map(|(_, view)| view.token()).map(Key::Stray));
                    keys.extend(state.entries.values().map(key_of));
                }
                Signal::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    take(&mut state, &object);
                }
                Signal::Event(WatchEvent::Deleted(object)) => {
                    let view = ServiceView::of(&object);
                    state.services.remove(&view.key());
                    state.applied.remove(&view.key());
                    state.balancer_problems.remove(&view.key());
                    keys.extend(view.token().map(Key::Stray));
                }
                Signal::Event(WatchEvent::Bookmark(_)) => {}
            }
        }
        keys.into_iter().for_each(|key| self.queue.add(key));
    }

    fn saw_nodes(&mut self, signal: Signal) {
        let mut keys = Vec::new();
        {
            let mut state = self.shared.state.lock();
            let mut changed: BTreeSet<String> = BTreeSet::new();
            match signal {
                Signal::Listed(items) => {
                    let views = items.iter().map(|object| NodeView::of(object));
                    let fresh: BTreeMap<String, NodeView> =
                        views.map(|one| (one.name.clone(), one)).collect();
                    let before = std::mem::replace(&mut state.nodes, fresh);
                    changed.extend(before.into_keys());
                    changed.extend(state.nodes.keys().cloned());
                    keys.extend(state.services.keys().cloned().map(Key::Service));
                    keys.extend(state.entries.values().map(key_of));
                    state.nodes_synced = true;
                    keys.push(Key::Pools);
                }
                Signal::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    let view = NodeView::of(&object);
                    let name = view.name.clone();
                    // The usual heartbeat ends here.
                    if state.nodes.get(&name) != Some(&view) {
                        state.nodes.insert(name.clone(), view);
                        changed.insert(name);
                    }
                }
                Signal::Event(WatchEvent::Deleted(object)) => {
                    state.nodes.remove(&*object.header.name);
                    changed.insert(object.header.name.to_string());
                }
                Signal::Event(WatchEvent::Bookmark(_)) => {}
            }
            if !changed.is_empty() {
                keys.push(Key::Pools);
                keys.extend(state.services.keys().cloned().map(Key::Service));
                let concerned = state.entries.values().filter(|entry| changed.contains(entry.name()));
                keys.extend(concerned.map(key_of));
            }
        }
        keys.into_iter().for_each(|key| self.queue.add(key));
    }

    /// Starts jobs for keys that are ready; says when the next delayed one is.
    fn dispatch(&mut self) -> Option<Duration> {
        // Plans are made from whole views only.
        let (nodes, services) = {
            let state = self.shared.state.lock();
            (state.nodes_synced || self.nodes.is_none(), state.services_synced || self.services.is_none())
        };
        if !nodes || !services {
            return None;
        }
        let now = self.shared.clock.monotonic();
        while self.jobs.len() < JOBS_AT_ONCE {
            let Some(key) = self.queue.pop(now) else { break };
            let shared = self.shared.clone();
            self.jobs.push(
                async move {
                    let outcome = work(&shared, &key).await;
                    (key, outcome)
                }
                .boxed(),
            );
        }
        if self.jobs.len() < JOBS_AT_ONCE { self.queue.next_at() } else { None }
    }

    fn finish(&mut self, key: Key, outcome: Outcome) {
        let now = (self.shared.now(), self.shared.clock.monotonic());
        for (regarding, text) in outcome.events {
            self.recorder.record(&self.shared.service_api, SERVICE_CONTROLLER, regarding, text, now);
        }
        outcome.poke.into_iter().for_each(|key| self.queue.add(key));
        match outcome.failure {
            Some(why) => {
                let wait_ms = self.queue.retry(&key, now.1).as_millis() as u64;
                tracing::info!(tenant = %self.shared.cluster, ?key, wait_ms, why, "will try again");
            }
            None => {
                self.queue.forget(&key);
                if let Some(wait) = outcome.again {
                    self.queue.add_at(key.clone(), now.1 + wait);
                }
            }
        }
        self.queue.done(&key);
    }

    fn publish(&self, to: &watch::Sender<Status>) {
        let status = self.shared.seen(|seen, state| {
            let problem = |pool: &Pool| match (seen.provider_of)(pool) {
                None => {
                    let fallback = &self.shared.wanted.borrow().provider;
                    let why =
                        self.shared.providers.choose(&pool.provider, fallback).err().unwrap_or_default();
                    Some((why, false))
                }
                Some(provider) => state
                    .problems
                    .get(&pool.id)
                    .cloned()
                    .or_else(|| state.provider_problems.get(&provider).map(|why| (why.clone(), false))),
            };
            let mut pools: Vec<PoolStatus> =
                seen.pools.iter().map(|pool| pools::status(seen, pool, problem(pool).as_ref())).collect();
            for machine in pools.iter_mut().flat_map(|pool| &mut pool.machines) {
                let named = |(token, _): &(&ClientToken, &String)| {
                    state.entries.get(*token).is_some_and(|entry| entry.name() == machine.name)
                };
                if let (true, Some((_, why))) = (machine.message.is_empty(), state.stays.iter().find(named)) {
                    machine.message.clone_from(why);
                }
            }
            let balancers = state.entries.values().filter_map(|entry| {
                let What::Balancer { service, .. } = &entry.what else { return None };
                let known = state.balancers.get(&entry.token);
                Some(BalancerStatus {
                    id: entry.id().unwrap_or_default().to_owned(),
                    service: service.clone(),
                    addresses: known.map(|one| one.addresses.clone()).unwrap_or_default(),
                    hostname: known.and_then(|one| one.hostname.clone()),
                    message: state.balancer_problems.get(service).cloned().unwrap_or_default(),
                })
            });
            let problems = state.entries.values().find_map(|one| state.provider_problems.get(&one.provider));
            Status {
                pools,
                balancers: balancers.collect(),
                draining: state.draining,
                left: state.entries.len(),
                message: problems.cloned().unwrap_or_default(),
            }
        });
        to.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
    }
}

pub(crate) fn key_of(entry: &Entry) -> Key {
    match &entry.what {
        What::Machine { .. } => Key::Machine(entry.token.clone()),
        What::Balancer { .. } => Key::Stray(entry.token.clone()),
    }
}

async fn work(shared: &Shared, key: &Key) -> Outcome {
    match key {
        Key::Pools => crate::machines::pools(shared).await,
        Key::Machine(token) => crate::machines::machine(shared, token).await,
        Key::Service(key) => crate::balancers::service(shared, key).await,
        Key::Stray(token) => crate::balancers::stray(shared, token).await,
        Key::Provider(name) => look(shared, name).await,
    }
}

/// Asks a provider what the cluster has there, and pokes whoever may be concerned.
async fn look(shared: &Shared, name: &str) -> Outcome {
    let interesting = shared.seen(|seen, state| {
        let entries: Vec<Entry> =
            state.entries.values().filter(|entry| entry.provider == name).cloned().collect();
        let of_pools = seen.pools.iter().any(|pool| (seen.provider_of)(pool).as_deref() == Some(name));
        (of_pools || !entries.is_empty()).then_some(entries)
    });
    let Some(entries) = interesting else {
        let mut state = shared.state.lock();
        state.listings.remove(name);
        state.provider_problems.remove(name);
        return Outcome::fine();
    };
    let cloud = match shared.cloud(name) {
        Ok(cloud) => cloud,
        Err(why) => return problem(shared, name, why),
    };
    let known = shared.state.lock().schemes.get(name).cloned();
    let scheme = match known {
        Some(scheme) => scheme,
        None => match cloud.describe().await {
            Ok(description) => description.name,
            Err(error) => return problem(shared, name, unreachable(name, &error)),
        },
    };
    // What is made while we ask may be missing in the answer: it is as of before.
    let at = shared.now();
    let machines = match cloud.list_machines(shared.cluster).await {
        Ok(machines) => machines,
        Err(error) => return problem(shared, name, unreachable(name, &error)),
    };
    let balancers = match entries.iter().any(|entry| matches!(entry.what, What::Balancer { .. })) {
        true => match cloud.list_balancers(shared.cluster).await {
            Ok(balancers) => balancers,
            Err(error) => return problem(shared, name, unreachable(name, &error)),
        },
        false => Vec::new(),
    };
    let mut poke = vec![Key::Pools];
    let mut state = shared.state.lock();
    state.provider_problems.remove(name);
    state.schemes.insert(name.to_owned(), scheme.clone());
    state.listings.insert(name.to_owned(), Listing { at, scheme, machines });
    for entry in &entries {
        match &entry.what {
            What::Machine { .. } => poke.push(key_of(entry)),
            What::Balancer { service, .. } => {
                let found = balancers.iter().find(|one| one.client_token == entry.token);
                match found {
                    Some(balancer) => drop(state.balancers.insert(entry.token.clone(), balancer.clone())),
                    // Somebody deleted it behind our back: it is made again.
                    None if !entry.is_deleting() && entry.created_at < at => {
                        state.balancers.remove(&entry.token);
                        state.applied.remove(service);
                        poke.push(Key::Service(service.clone()));
                    }
                    None => drop(state.balancers.remove(&entry.token)),
                }
                if entry.is_deleting() {
                    poke.push(key_of(entry));
                }
            }
        }
    }
    drop(state);
    let restless = shared.seen(|seen, state| {
        let pools =
            pools::plan(seen).iter().any(|action| !matches!(action, pools::Action::DeleteNode { .. }));
        pools
            || state
                .entries
                .values()
                .filter(|entry| entry.provider == name)
                .any(|entry| is_restless(seen, entry))
    });
    Outcome { again: Some(if restless { LOOK_OFTEN } else { LOOK_SELDOM }), poke, ..Outcome::fine() }
}

/// Something about it is still to happen.
fn is_restless(seen: &Seen<'_>, entry: &Entry) -> bool {
    match &entry.what {
        What::Machine { .. } => pools::next(seen, entry, Farewell::Begun) != pools::Next::Rest,
        What::Balancer { .. } => entry.is_deleting(),
    }
}

fn unreachable(name: &str, error: &CloudError) -> String {
    format!("provider {name}: {error}")
}

fn problem(shared: &Shared, name: &str, why: String) -> Outcome {
    shared.state.lock().provider_problems.insert(name.to_owned(), why.clone());
    Outcome::failed(why)
}

enum Following {
    List { failures: u32 },
    Watch { after: u64, failures: u32 },
    Stream { stream: tenant_client::WatchStream, after: u64 },
}

/// One resource, listed and watched for ever.
fn follow(api: SharedApi, of: Gvr) -> BoxStream<'static, Signal> {
    let start = Following::List { failures: 0 };
    let step = move |mut at: Following| {
        let (api, of) = (api.clone(), of.clone());
        async move {
            loop {
                at = match at {
                    Following::List { failures } => match api.list(&of, ListOptions::default()).await {
                        Ok(list) => {
                            let next = Following::Watch { after: list.revision, failures: 0 };
                            return Some((Signal::Listed(list.items), next));
                        }
                        Err(status) => {
                            tracing::debug!(resource = %of, %status, "not listed yet");
                            tokio::time::sleep(RELIST.after(failures + 1)).await;
                            Following::List { failures: failures + 1 }
                        }
                    },
                    Following::Watch { after, failures } => {
                        match api.watch(&of, WatchOptions { after, ..WatchOptions::default() }).await {
                            Ok(stream) => Following::Stream { stream, after },
                            Err(status) if status.code == 410 => Following::List { failures },
                            Err(status) => {
                                tracing::debug!(resource = %of, %status, "not watched yet");
                                tokio::time::sleep(RELIST.after(failures + 1)).await;
                                Following::Watch { after, failures: failures + 1 }
                            }
                        }
                    }
                    Following::Stream { mut stream, after } => match stream.next().await {
                        Some(Ok(event)) => {
                            let after = match &event {
                                WatchEvent::Added(object)
                                | WatchEvent::Modified(object)
                                | WatchEvent::Deleted(object) => object.header.revision.max(after),
                                WatchEvent::Bookmark(revision) => after.max(*revision),
                            };
                            return Some((Signal::Event(event), Following::Stream { stream, after }));
                        }
                        Some(Err(status)) if status.code == 410 => Following::List { failures: 0 },
                        // A server that ends watches at once must not make this spin.
                        Some(Err(_)) | None => {
                            tokio::time::sleep(RELIST.first).await;
                            Following::Watch { after, failures: 0 }
                        }
                    },
                };
            }
        }
    };
    futures::stream::unfold(start, step).boxed()
}
