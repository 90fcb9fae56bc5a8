//! The loops against a provider and an API in memory: whole lives, and every place where one can break.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_machinery::Gvr;
use async_trait::async_trait;
use base_clock::{SharedClock, SystemClock};
use base_ids::{NodePoolId, TenantId};
use cloud_controllers::{
    Config, Control, Entry, Gone, Joining, Ledger, LedgerError, Phase, Pool, Providers, Status, Step, Wanted,
    run,
};
use cloud_interface::fake::{Call, Fake};
use cloud_interface::{ClientToken, CloudError, Join, MachineState};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tenant_client::fake::FakeApi;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const NODES: Gvr = Gvr::core("nodes");
const PODS: Gvr = Gvr::core("pods");
const SERVICES: Gvr = Gvr::core("services");
const EVENTS: Gvr = Gvr::core("events");
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Books that a test can read, tear out of a leader's hands, and make fail.
#[derive(Default)]
struct Books {
    entries: Mutex<BTreeMap<ClientToken, Entry>>,
    lines: Mutex<Vec<Gone>>,
    draining: Mutex<bool>,
    /// Only this leadership may write.
    term: Mutex<u32>,
}

struct Term(Arc<Books>, u32);

impl Term {
    fn check(&self) -> Result<(), LedgerError> {
        match *self.0.term.lock() == self.1 {
            true => Ok(()),
            false => Err(LedgerError("another term".to_owned())),
        }
    }
}

#[async_trait]
impl Ledger for Term {
    async fn load(&self) -> Result<(Vec<Entry>, bool), LedgerError> {
        Ok((self.0.entries.lock().values().cloned().collect(), *self.0.draining.lock()))
    }
    async fn put(&self, entry: &Entry) -> Result<(), LedgerError> {
        self.check()?;
        self.0.entries.lock().insert(entry.token.clone(), entry.clone());
        Ok(())
    }
    async fn strike(&self, token: &ClientToken) -> Result<(), LedgerError> {
        self.check()?;
        self.0.entries.lock().remove(token);
        Ok(())
    }
    async fn close(&self, token: &ClientToken, line: &Gone) -> Result<(), LedgerError> {
        self.check()?;
        self.0.entries.lock().remove(token);
        self.0.lines.lock().push(line.clone());
        Ok(())
    }
}

/// Names of nodes that have a token.
#[derive(Default)]
struct Door(parking_lot::Mutex<BTreeSet<String>>);

#[async_trait]
impl Joining for Door {
    async fn withdraw(&self, node: &str) -> Result<(), String> {
        self.0.lock().remove(node);
        Ok(())
    }
    async fn join(&self, node: &str, _: &str) -> Result<Join, String> {
        self.0.lock().insert(node.to_owned());
        Ok(Join { token: "abcdef.0123456789abcdef".to_owned(), ..Join::default() })
    }
}

/// A cluster whose leader can be killed and replaced.
struct Cluster {
    id: TenantId,
    cloud: Fake,
    api: FakeApi,
    books: Arc<Books>,
    door: Arc<Door>,
    wanted: watch::Sender<Wanted>,
    control: Control,
    clock: SharedClock,
    leader: Option<tokio::task::JoinHandle<()>>,
}

impl Cluster {
    fn new() -> Cluster {
        let clock = SystemClock::shared();
        let mut cluster = Cluster {
            id: TenantId::generate(),
            cloud: Fake::new(),
            api: FakeApi::new(clock.clone()),
            books: Arc::default(),
            door: Arc::default(),
            wanted: watch::Sender::new(Wanted::default()),
            control: Control::default(),
            clock,
            leader: None,
        };
        cluster.lead();
        cluster
    }

    /// The next leadership begins.
    fn lead(&mut self) {
        // One that was deposed may not know it yet, and goes on telling its own.
        self.control = Control::default();
        let term = {
            let mut term = self.books.term.lock();
            *term += 1;
            *term
        };
        let config = Config {
            cluster: self.id,
            api: Arc::new(self.api.clone()),
            service_api: Arc::new(self.api.clone()),
            ledger: Arc::new(Term(self.books.clone(), term)),
            providers: Providers(vec![("fake".to_owned(), self.cloud.shared())]),
            joining: self.door.clone(),
            wanted: self.wanted.subscribe(),
            clock: self.clock.clone(),
            control: self.control.clone(),
        };
        self.leader = Some(tokio::spawn(run(config, CancellationToken::new())));
    }

    /// As kill -9: nothing is finished, nothing said.
    async fn kill(&mut self) {
        if let Some(leader) = self.leader.take() {
            leader.abort();
            let _ = leader.await;
        }
    }

    async fn fail_over(&mut self) {
        self.kill().await;
        self.lead();
    }

    fn pool(&self, size: u32) -> NodePoolId {
        let id = NodePoolId::generate();
        self.resize(id, size);
        id
    }

    fn resize(&self, id: NodePoolId, size: u32) {
        self.change(id, |pool| pool.size = size);
    }

    fn change(&self, id: NodePoolId, change: impl FnOnce(&mut Pool)) {
        let mut pool = Pool {
            id,
            name: "workers".to_owned(),
            size: 1,
            machine_type: String::new(),
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            taints: Vec::new(),
            deleting: false,
            provider: String::new(),
        };
        change(&mut pool);
        self.wanted.send_replace(Wanted { provider: String::new(), pools: vec![pool] });
    }

    /// What machines do by themselves: every one that runs and is no Node becomes one.
    fn boot(&self) {
        for machine in self.cloud.machines() {
            if machine.state == MachineState::Running && self.api.read(&NODES, "", &machine.name).is_none() {
                self.node(&machine.name, true);
            }
        }
    }

    fn node(&self, name: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        self.api.put(
            &NODES,
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {},
                "status": {
                    "conditions": [{"type": "Ready", "status": status}],
                    "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
                },
            }),
        );
    }

    fn service(&self, name: &str, kind: &str) {
        self.api.put(
            &SERVICES,
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
                "spec": {"type": kind, "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]},
                "status": {"loadBalancer": {}},
            }),
        );
    }

    fn address(&self, service: &str) -> Option<String> {
        let service = self.api.read(&SERVICES, "default", service)?;
        Some(service.pointer("/status/loadBalancer/ingress/0/ip")?.as_str()?.to_owned())
    }

    fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self
            .api
            .all(&EVENTS)
            .iter()
            .map(|one| one["reason"].as_str().unwrap_or_default().to_owned())
            .collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }

    fn status(&self) -> Status {
        self.control.status().borrow().clone()
    }

    async fn until(&self, what: &str, mut holds: impl FnMut(&Cluster) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            self.boot();
            assert!(
                Instant::now() < deadline,
                "{what}: never\n{:#?}\n{:#?}\n{:#?}\n{:?}",
                self.status(),
                self.books.entries.lock(),
                self.cloud.machines(),
                self.cloud.calls(),
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_joined(&self, count: usize) {
        self.until(&format!("{count} machines joined"), |cluster| {
            let status = cluster.status();
            let machines: Vec<Step> =
                status.pools.iter().flat_map(|pool| &pool.machines).map(|one| one.step).collect();
            machines.len() == count
                && machines.iter().all(|step| *step == Step::Joined)
                && cluster.cloud.machines().len() == count
                && cluster.books.entries.lock().len() == count
        })
        .await;
    }
}

#[tokio::test]
async fn a_pool_grows_shrinks_and_goes() {
    let cluster = Cluster::new();
    let id = cluster.pool(3);
    cluster.until_joined(3).await;
    for machine in cluster.cloud.machines() {
        assert_eq!(cluster.cloud.join_of(&machine.name).unwrap().labels["team"], "blue");
        cluster
            .until("the node says where it is from", |cluster| {
                let node = cluster.api.read(&NODES, "", &machine.name).unwrap_or_default();
                node["spec"]["providerID"] == machine.provider_id.as_str()
                    && node["metadata"]["labels"]["roadstead.dev/node-pool"] == "workers"
                    && node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "nowhere-1"
            })
            .await;
    }

    cluster.until("who has joined needs no token", |cluster| cluster.door.0.lock().is_empty()).await;

    // A pod on each: they are asked to leave before their node goes.
    for machine in cluster.cloud.machines() {
        cluster.api.put(
            &PODS,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": machine.name, "namespace": "default"},
                "spec": {"nodeName": machine.name}, "status": {"phase": "Running"},
            }),
        );
    }
    cluster.api.forget_writes();
    cluster.resize(id, 1);
    cluster
        .until("evictions", |cluster| {
            let writes = cluster.api.writes();
            let evicted: Vec<&String> = writes.iter().filter(|write| write.contains("delete pods")).collect();
            evicted.len() >= 2
        })
        .await;
    assert_eq!(cluster.cloud.machines().len(), 3, "no machine goes while its pods are there");
    let writes = cluster.api.writes();
    for machine in cluster.cloud.machines() {
        if writes.iter().any(|write| write.contains(&format!("default/{}", machine.name))) {
            cluster.api.remove(&PODS, "default", &machine.name);
        }
    }
    cluster.until_joined(1).await;
    cluster.until("one node is left", |cluster| cluster.api.all(&NODES).len() == 1).await;

    cluster.api.all(&PODS).iter().for_each(|pod| {
        cluster.api.remove(&PODS, "default", pod["metadata"]["name"].as_str().unwrap());
    });
    cluster.change(id, |pool| pool.deleting = true);
    cluster
        .until("nothing is left", |cluster| {
            cluster.cloud.machines().is_empty() && cluster.books.entries.lock().is_empty()
        })
        .await;
    assert_eq!(cluster.books.lines.lock().len(), 3, "each has a line in the receipt");
}

/// The same wish, with a leader that dies in every place there is.
#[tokio::test]
async fn a_leader_that_dies_between_intent_call_and_outcome_leaks_nothing_and_makes_no_twins() {
    for (what, call, after, size) in [
        ("before a machine is made", Call::CreateMachine, false, 1),
        ("after a machine was made", Call::CreateMachine, true, 1),
        ("before a machine is deleted", Call::DeleteMachine, false, 0),
        ("after a machine was deleted", Call::DeleteMachine, true, 0),
        ("while machines are listed", Call::ListMachines, true, 1),
    ] {
        let mut cluster = Cluster::new();
        let id = cluster.pool(1);
        if size == 0 {
            cluster.until_joined(1).await;
        }
        let held = cluster.cloud.hold(call, after);
        cluster.resize(id, size);
        let mut reached = false;
        tokio::select! {
            () = held.reached() => reached = true,
            // The node has to go first.
            () = cluster.until(what, |_| false) => {}
        }
        assert!(reached, "{what}");
        cluster.kill().await;
        let intents = cluster.books.entries.lock().len();
        assert_eq!(intents, 1, "{what}: it is on the books");
        cluster.lead();
        cluster.until_joined(size as usize).await;
        let made = cluster.cloud.count(Call::CreateMachine);
        assert!(made <= 2, "{what}: {made} calls to make one");
        cluster.kill().await;
    }
}

/// Killed after the call, and meanwhile nobody wants the machine any more.
#[tokio::test]
async fn what_was_made_for_nothing_is_found_and_deleted() {
    let mut cluster = Cluster::new();
    let held = cluster.cloud.hold(Call::CreateMachine, true);
    let id = cluster.pool(1);
    held.reached().await;
    cluster.kill().await;
    assert_eq!(cluster.cloud.machines().len(), 1);
    cluster.resize(id, 0);
    cluster.lead();
    cluster.until_joined(0).await;
    assert_eq!(cluster.books.lines.lock().len(), 1);
}

#[tokio::test]
async fn what_the_ledger_does_not_know_is_adopted_or_deleted() {
    let mut cluster = Cluster::new();
    let id = cluster.pool(2);
    cluster.until_joined(2).await;
    cluster.kill().await;
    // As after a restore of the store from a backup: the books are from another time.
    cluster.books.entries.lock().clear();
    cluster.lead();
    cluster.until_joined(2).await;
    assert_eq!(cluster.cloud.machines().len(), 2, "adopted, not made anew");
    cluster.kill().await;
    cluster.books.entries.lock().clear();
    cluster.change(id, |pool| pool.deleting = true);
    cluster.lead();
    cluster.until("deleted", |cluster| cluster.cloud.machines().is_empty()).await;
}

#[tokio::test]
async fn errors_of_the_provider_are_said_and_got_over() {
    let cluster = Cluster::new();
    cluster.cloud.fail(Call::CreateMachine, CloudError::Exhausted("no more today".to_owned()));
    let held = cluster.cloud.hold(Call::CreateMachine, false);
    let id = cluster.pool(1);
    held.reached().await;
    let pool = cluster.status().pools.remove(0);
    assert_eq!((pool.message.as_str(), pool.refused), ("used up: no more today", false));
    held.release();
    cluster.until_joined(1).await;
    cluster.until("no complaint is left", |cluster| cluster.status().pools[0].message.is_empty()).await;

    // The answer got lost: the machine is there, once.
    cluster.cloud.lose_answer(Call::CreateMachine);
    cluster.resize(id, 2);
    cluster.until_joined(2).await;

    // What will never work is said, and nothing stays on the books for it.
    cluster.change(id, |pool| (pool.size, pool.machine_type) = (3, "enormous".to_owned()));
    cluster.until("refused", |cluster| cluster.status().pools[0].refused).await;
    let pool = cluster.status().pools.remove(0);
    assert!(pool.message.contains("enormous"), "{pool:?}");
    cluster.until("no intent is left", |cluster| cluster.books.entries.lock().len() == 2).await;
    cluster.resize(id, 3);
    cluster.until_joined(3).await;

    // A provider that is down.
    for _ in 0..3 {
        cluster.cloud.fail(Call::ListMachines, CloudError::Unavailable("nobody there".to_owned()));
    }
    let held = cluster.cloud.hold(Call::ListMachines, false);
    cluster.resize(id, 4);
    held.reached().await;
    let message = cluster.status().pools.remove(0).message;
    assert!(message.contains("nobody there"), "{message:?}");
    held.release();
    cluster.until_joined(4).await;
    cluster.until("it is well again", |cluster| cluster.status().pools[0].message.is_empty()).await;
}

#[tokio::test]
async fn machines_that_fail_or_vanish_are_replaced() {
    let cluster = Cluster::new();
    cluster.pool(2);
    cluster.until_joined(2).await;
    let before: Vec<String> = cluster.cloud.machines().into_iter().map(|one| one.id).collect();
    cluster.cloud.set_machine(&before[0], MachineState::Failed, "its disk broke");
    let name = cluster.cloud.machines().into_iter().find(|one| one.id == before[0]).unwrap().name;
    cluster.node(&name, false);
    cluster.until("it is said", |cluster| cluster.status().pools[0].message.contains("its disk broke")).await;
    cluster.until_joined(2).await;
    let after: Vec<String> = cluster.cloud.machines().into_iter().map(|one| one.id).collect();
    assert!(!after.contains(&before[0]) && after.contains(&before[1]), "{before:?} {after:?}");
    cluster.until("its node is gone", |cluster| cluster.api.read(&NODES, "", &name).is_none()).await;
}

#[tokio::test]
async fn a_service_gets_an_address_and_gives_it_back() {
    let cluster = Cluster::new();
    cluster.node("n1", true);
    cluster.service("web", "LoadBalancer");
    cluster.until("an address", |cluster| cluster.address("web").is_some()).await;
    let service = cluster.api.read(&SERVICES, "default", "web").unwrap();
    assert_eq!(service["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP");
    let (spec, balancer) = cluster.cloud.balancers().remove(0);
    assert_eq!(balancer.addresses[0].to_string(), cluster.address("web").unwrap());
    assert_eq!(spec.targets.len(), 1);
    cluster
        .until("events", |cluster| cluster.reasons() == ["EnsuredLoadBalancer", "EnsuringLoadBalancer"])
        .await;

    // Nodes come and go.
    cluster.node("n2", true);
    cluster.until("two targets", |cluster| cluster.cloud.balancers()[0].0.targets.len() == 2).await;
    cluster
        .until("it is said", |cluster| cluster.reasons().contains(&"UpdatedLoadBalancer".to_owned()))
        .await;
    cluster.api.remove(&NODES, "", "n1");
    cluster.until("one target", |cluster| cluster.cloud.balancers()[0].0.targets.len() == 1).await;

    // Somebody deletes the balancer behind our back: a minute later it is there again.
    let calls = cluster.cloud.count(Call::EnsureBalancer);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(cluster.cloud.count(Call::EnsureBalancer), calls, "nothing is asked for twice");

    // Another type: the balancer goes, then the finalizer.
    let mut changed = cluster.api.read(&SERVICES, "default", "web").unwrap();
    changed["spec"]["type"] = json!("ClusterIP");
    cluster.api.put(&SERVICES, changed);
    cluster
        .until("given back", |cluster| {
            let service = cluster.api.read(&SERVICES, "default", "web").unwrap();
            cluster.cloud.balancers().is_empty()
                && cluster.books.entries.lock().is_empty()
                && service["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
                && cluster.address("web").is_none()
        })
        .await;
    assert_eq!(cluster.books.lines.lock()[0].kind, "load-balancer");

    // And back again.
    let mut changed = cluster.api.read(&SERVICES, "default", "web").unwrap();
    changed["spec"]["type"] = json!("LoadBalancer");
    cluster.api.put(&SERVICES, changed);
    cluster.until("an address again", |cluster| cluster.address("web").is_some()).await;
}

#[tokio::test]
async fn a_service_s_failure_is_an_event_and_is_tried_again() {
    let cluster = Cluster::new();
    cluster.cloud.fail(Call::EnsureBalancer, CloudError::Exhausted("no addresses".to_owned()));
    cluster.service("web", "LoadBalancer");
    cluster.until("an address in the end", |cluster| cluster.address("web").is_some()).await;
    cluster
        .until("the event", |cluster| cluster.reasons().contains(&"SyncLoadBalancerFailed".to_owned()))
        .await;
    let events = cluster.api.all(&EVENTS);
    let failed: Vec<&Value> = events.iter().filter(|one| one["reason"] == "SyncLoadBalancerFailed").collect();
    assert_eq!(failed[0]["type"], "Warning");
    assert!(failed[0]["message"].as_str().unwrap().ends_with("used up: no addresses"), "{failed:?}");
}

#[tokio::test]
async fn a_leader_that_dies_over_a_balancer_leaves_one() {
    for (what, call, after) in [
        ("before it is made", Call::EnsureBalancer, false),
        ("after it was made", Call::EnsureBalancer, true),
    ] {
        let mut cluster = Cluster::new();
        let held = cluster.cloud.hold(call, after);
        cluster.service("web", "LoadBalancer");
        held.reached().await;
        cluster.fail_over().await;
        cluster.until(what, |cluster| cluster.address("web").is_some()).await;
        assert_eq!(cluster.cloud.balancers().len(), 1, "{what}");
    }
    for (what, after) in [("before it is deleted", false), ("after it was deleted", true)] {
        let mut cluster = Cluster::new();
        cluster.service("web", "LoadBalancer");
        cluster.until("an address", |cluster| cluster.address("web").is_some()).await;
        let held = cluster.cloud.hold(Call::DeleteBalancer, after);
        // Somebody also took the finalizer away, so that the Service is gone at once.
        cluster.api.remove(&SERVICES, "default", "web");
        held.reached().await;
        cluster.fail_over().await;
        cluster
            .until(what, |cluster| {
                cluster.cloud.balancers().is_empty() && cluster.books.entries.lock().is_empty()
            })
            .await;
    }
}

#[tokio::test]
async fn a_cluster_that_is_drained_keeps_nothing_and_makes_nothing() {
    let mut cluster = Cluster::new();
    cluster.pool(2);
    cluster.service("web", "LoadBalancer");
    cluster
        .until("all is there", |cluster| {
            cluster.cloud.machines().len() == 2 && cluster.address("web").is_some()
        })
        .await;
    // Killed in the middle of it, too.
    let held = cluster.cloud.hold(Call::DeleteMachine, true);
    *cluster.books.draining.lock() = true;
    cluster.control.drain();
    held.reached().await;
    cluster.fail_over().await;
    cluster
        .until("drained", |cluster| {
            let status = cluster.status();
            status.draining && status.left == 0
        })
        .await;
    assert!(cluster.cloud.machines().is_empty() && cluster.cloud.balancers().is_empty());
    assert_eq!(cluster.books.lines.lock().len(), 3);
    let (machines, balancers) =
        (cluster.cloud.count(Call::CreateMachine), cluster.cloud.count(Call::EnsureBalancer));
    cluster.service("late", "LoadBalancer");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(cluster.cloud.count(Call::CreateMachine), machines);
    assert_eq!(cluster.cloud.count(Call::EnsureBalancer), balancers);
}

#[tokio::test]
async fn a_cluster_without_either_asks_for_nothing() {
    let cluster = Cluster::new();
    cluster.service("inner", "ClusterIP");
    cluster.node("n1", true);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(cluster.cloud.calls(), [], "no call");
    assert_eq!(cluster.api.writes(), Vec::<String>::new(), "no write");
    assert_eq!(cluster.status(), Status::default());
}

/// A deposed leader's call may still be under way when the next one looks; what it makes is found.
#[tokio::test]
async fn a_deposed_leader_writes_nothing() {
    let mut cluster = Cluster::new();
    let held = cluster.cloud.hold(Call::CreateMachine, true);
    cluster.pool(1);
    held.reached().await;
    // It is deposed, and does not know it yet.
    let deposed = cluster.leader.take();
    cluster.lead();
    cluster.until_joined(1).await;
    held.release();
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.until_joined(1).await;
    let entries = cluster.books.entries.lock().clone();
    assert!(entries.values().all(|entry| matches!(entry.phase, Phase::Made { .. })), "{entries:?}");
    if let Some(deposed) = deposed {
        deposed.abort();
    }
}
