//! The loop that keeps the kernel's table what Services and slices say.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use node_network::{CommandError, run};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::compile::{LocalService, NodeFacts, Pieces, compile, compile_local};
use crate::health::Answering;
use crate::model::{ServiceKey, ServiceModel, SliceModel};
use crate::rules::{Rules, StaleFlow};

/// Changes that arrive within this time become one transaction: a rollout changes many slices at once,
/// and starting nft costs a few milliseconds.
const COALESCE: Duration = Duration::from_millis(3);

/// How often the table is looked for: another program may have flushed it.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// After a transaction that failed; the next one builds the table anew.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The proxy of one node. Clones are handles on the same one: feed it with what the API says, in any
/// order, and [`Proxy::run`] it.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    table: String,
    node_name: String,
    facts: NodeFacts,
    own: Vec<LocalService>,
    model: Mutex<Model>,
    wake: Notify,
    applied: watch::Sender<u64>,
}

#[derive(Default)]
struct Model {
    services: HashMap<ServiceKey, ServiceModel>,
    /// By Service, then by the slice's name.
    slices: HashMap<ServiceKey, BTreeMap<String, SliceModel>>,
    dirty: BTreeSet<ServiceKey>,
    services_complete: bool,
    slices_complete: bool,
}

impl Proxy {
    /// `table` names the nftables table (`inet`), `own` the Services this node answers itself.
    pub fn new(table: &str, node_name: &str, facts: NodeFacts, own: Vec<LocalService>) -> Proxy {
        Proxy {
            shared: Arc::new(Shared {
                table: table.to_owned(),
                node_name: node_name.to_owned(),
                facts,
                own,
                model: Mutex::default(),
                wake: Notify::new(),
                applied: watch::Sender::new(0),
            }),
        }
    }

    /// A Service as it is now.
    pub fn service(&self, service: &Service) {
        let Some(key) = key_of(service) else { return };
        let next = if service.metadata.deletion_timestamp.is_some() && service.spec.is_none() {
            None
        } else {
            ServiceModel::of(service)
        };
        let mut model = self.shared.model.lock();
        let same = match (&next, model.services.get(&key)) {
            (Some(next), Some(last)) => next == last,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            return; // metadata and conditions change often
        }
        match next {
            Some(next) => model.services.insert(key.clone(), next),
            None => model.services.remove(&key),
        };
        self.touch(model, key);
    }

    pub fn service_gone(&self, namespace: &str, name: &str) {
        let key = ServiceKey::new(namespace, name);
        let mut model = self.shared.model.lock();
        if model.services.remove(&key).is_some() {
            self.touch(model, key);
        }
    }

    /// All Services have been told; those not in `present` (namespace, name) are gone.
    pub fn services_complete(&self, present: &HashSet<(String, String)>) {
        let mut model = self.shared.model.lock();
        let gone =
            model.services.keys().filter(|key| !present.contains(&(key.namespace.clone(), key.name.clone())));
        let gone: Vec<ServiceKey> = gone.cloned().collect();
        for key in gone {
            model.services.remove(&key);
            model.dirty.insert(key);
        }
        model.services_complete = true;
        drop(model);
        self.shared.wake.notify_one();
    }

    /// An EndpointSlice as it is now.
    pub fn slice(&self, slice: &EndpointSlice) {
        let Some(name) = slice.metadata.name.clone() else { return };
        let Some((key, next)) = SliceModel::of(slice, &self.shared.node_name) else { return };
        let mut model = self.shared.model.lock();
        let slices = model.slices.entry(key.clone()).or_default();
        if slices.get(&name) == Some(&next) {
            return;
        }
        slices.insert(name, next);
        self.touch(model, key);
    }

    pub fn slice_gone(&self, slice: &EndpointSlice) {
        let (Some(name), Some(key)) = (&slice.metadata.name, SliceModel::service_of(slice)) else { return };
        let mut model = self.shared.model.lock();
        let Some(slices) = model.slices.get_mut(&key) else { return };
        if slices.remove(name).is_some() {
            if slices.is_empty() {
                model.slices.remove(&key);
            }
            self.touch(model, key);
        }
    }

    /// All slices have been told; those not in `present` (namespace, name of the slice) are gone.
    pub fn slices_complete(&self, present: &HashSet<(String, String)>) {
        let mut guard = self.shared.model.lock();
        let model = &mut *guard;
        for (key, slices) in &mut model.slices {
            let before = slices.len();
            slices.retain(|name, _| present.contains(&(key.namespace.clone(), name.clone())));
            if slices.len() != before {
                model.dirty.insert(key.clone());
            }
        }
        model.slices.retain(|_, slices| !slices.is_empty());
        model.slices_complete = true;
        drop(guard);
        self.shared.wake.notify_one();
    }

    /// Counts the transactions the kernel took; the first one holds everything known at the start.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.shared.applied.subscribe()
    }

    /// Keeps the table until `stop`, then removes it.
    ///
    /// The node's own Services are there at once; all others when Services and slices are complete, so
    /// that a restart never refuses what it only has not heard of yet.
    pub async fn run(&self, stop: CancellationToken) {
        let mut rules = Rules::new(&self.shared.table);
        let own = self.shared.own.iter().enumerate();
        // An empty namespace sorts first: nobody's claim comes before the node's own.
        rules.change(
            own.map(|(at, own)| (ServiceKey::new("", format!("{at}")), Some(compile_local(own)))).collect(),
        );
        // The table of an earlier run stays in force until ours is complete.
        let mut in_kernel = !self.is_in_kernel().await && self.apply(&rules.everything()).await;
        let mut stale = Vec::new();
        let mut check = tokio::time::interval(CHECK_EVERY);
        let mut answering = Answering::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.shared.wake.notified() => tokio::time::sleep(COALESCE).await,
                _ = check.tick() => {
                    if in_kernel && !self.is_in_kernel().await {
                        warn!(table = %self.shared.table, "somebody removed the rules of Services; building them anew");
                        in_kernel = false;
                    }
                }
            }
            let Some(changes) = self.take_changes() else { continue };
            // What fails here is tried again with the next change or check.
            answering.become_(self.health_ports()).await;
            let change = rules.change(changes);
            stale.extend(change.stale);
            if in_kernel && change.transaction.is_empty() {
                continue;
            }
            let took = match in_kernel {
                true => self.apply(&change.transaction).await || self.apply(&rules.everything()).await,
                false => self.apply(&rules.everything()).await,
            };
            in_kernel = took;
            if took {
                let stale = std::mem::take(&mut stale);
                if stale.len() > FORGET_ONE_BY_ONE {
                    // Takes a while and nothing waits for it.
                    tokio::spawn(forget(stale));
                } else {
                    forget(stale).await;
                }
                self.shared.applied.send_modify(|count| *count += 1);
            } else {
                self.shared.wake.notify_one();
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(RETRY_AFTER) => {}
                }
            }
        }
        self.apply(&Rules::removal(&self.shared.table)).await;
    }

    fn touch(&self, mut model: parking_lot::MutexGuard<'_, Model>, key: ServiceKey) {
        model.dirty.insert(key);
        drop(model);
        self.shared.wake.notify_one();
    }

    /// What to compile anew; `None` while not everything was heard.
    fn take_changes(&self) -> Option<Vec<(ServiceKey, Option<Pieces>)>> {
        let mut model = self.shared.model.lock();
        if !model.services_complete || !model.slices_complete {
            return None;
        }
        let dirty = std::mem::take(&mut model.dirty);
        let compiled = dirty.into_iter().map(|key| {
            let pieces = model.services.get(&key).map(|service| {
                let slices: Vec<&SliceModel> =
                    model.slices.get(&key).into_iter().flat_map(BTreeMap::values).collect();
                compile(&key, service, &slices, &self.shared.facts)
            });
            (key, pieces)
        });
        Some(compiled.collect())
    }

    /// Ports on which balancers ask, and how many endpoints of the Service they would find here.
    fn health_ports(&self) -> BTreeMap<u16, (ServiceKey, usize)> {
        let model = self.shared.model.lock();
        let asked = model.services.iter().filter_map(|(key, service)| Some((service.health_port?, key)));
        let counted = asked.map(|(port, key)| {
            let slices = model.slices.get(key).into_iter().flat_map(BTreeMap::values);
            let here = slices.flat_map(|slice| &slice.endpoints).filter(|one| one.local && one.ready);
            let addresses: HashSet<_> = here.map(|one| one.address).collect();
            (port, (key.clone(), addresses.len()))
        });
        counted.collect()
    }

    async fn is_in_kernel(&self) -> bool {
        // Checked, not done: unlike listing, it costs the same however many Services there are.
        let probe = format!("add rule inet {} services accept\n", self.shared.table);
        run("nft", &["--check", "-f", "-"], Some(&probe)).await.is_ok()
    }

    async fn apply(&self, transaction: &str) -> bool {
        if transaction.is_empty() {
            return true;
        }
        match run("nft", &["-f", "-"], Some(transaction)).await {
            Ok(_) => true,
            Err(error) => {
                warn!(%error, "nft refused the rules of Services");
                false
            }
        }
    }
}

fn key_of(service: &Service) -> Option<ServiceKey> {
    Some(ServiceKey::new(service.metadata.namespace.clone()?, service.metadata.name.clone()?))
}

/// More stale flows than this are not worth a process each.
const FORGET_ONE_BY_ONE: usize = 16;

/// Tracked datagram flows outlive rules: they would go to an endpoint that is gone for as long as the
/// client keeps sending.
async fn forget(stale: Vec<StaleFlow>) {
    if stale.len() > FORGET_ONE_BY_ONE {
        // All translated datagram flows: those that are right find their endpoint again with the next packet.
        for family in ["ipv4", "ipv6"] {
            let _ = run("conntrack", &["-D", "-f", family, "-p", "udp", "--dst-nat"], None).await;
            // And those that went to a Service address before it had an endpoint.
            let untranslated = stale.iter().filter(|flow| flow.endpoint.is_none()).take(FORGET_ONE_BY_ONE);
            for ip in untranslated.filter_map(|flow| flow.target.address) {
                let _ = run("conntrack", &["-D", "-p", "udp", "--orig-dst", &ip.to_string()], None).await;
            }
        }
        return;
    }
    for flow in stale {
        let port = flow.target.port.to_string();
        let family = if flow.target.family == crate::compile::Family::V4 { "ipv4" } else { "ipv6" };
        let mut arguments = vec!["-D", "-f", family, "-p", "udp", "--orig-port-dst", &port];
        let address = flow.target.address.map(|address| address.to_string());
        if let Some(address) = &address {
            arguments.extend(["--orig-dst", address]);
        }
        let endpoint = flow.endpoint.map(|endpoint| endpoint.to_string());
        if let Some(endpoint) = &endpoint {
            arguments.extend(["--reply-src", endpoint]);
        }
        // It also fails when there was nothing to delete, which is the usual case.
        if let Err(CommandError::Missing { .. }) = run("conntrack", &arguments, None).await {
            debug!("conntrack is not installed; datagram flows to gone endpoints end by their timeout");
            return;
        }
    }
}
