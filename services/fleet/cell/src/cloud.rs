//! Where a cluster's cloud loops meet their surroundings: providers over gRPC, the ledger in the cluster's
//! group, join tokens, and the words of the manager.
//!
//! [`Clouds`] is the cell's, [`Seat`] one cluster's. Not here: what the loops do (`cloud-controllers`).

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base_clock::SharedClock;
use base_ids::Slug;
use bytes::Bytes;
use cloud_controllers::{Control, Entry, Gone, Joining, Ledger, LedgerError, Providers, Status, Wanted};
use cloud_interface::{ClientToken, Description, Join, Remote};
use fleet_rpc::{
    CloudReport, CloudResource, DrainClusterResponse, LoadBalancerReport, MachineReport, NodePoolReport,
    ProviderReport,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use store_mvcc::{Command, Expect, Key, Op, Term, Value};
use store_raft::Group;
use tenant_client::UserInfo;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::hosted::Hosted;
use crate::{Assignment, Config, join_tokens};

/// The ledger's collection: the API has no name for it.
const COLLECTION: &str = "_cloud";
const ENTRY: &str = "entry/";
/// Lines of the receipt, oldest first.
const GONE: &str = "gone/";
const DRAINING: &str = "draining";

/// Lines that a cluster keeps for its receipt. A pool that was resized every day for years has more; the
/// receipt's purpose is what existed at the end, and the newest lines have that.
const LINES: usize = 1000;

/// A machine's token: it boots within minutes, or is replaced.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// Providers are asked who they are this often, and while they do not answer.
const DESCRIBE: Duration = Duration::from_secs(60);
const DESCRIBE_AGAIN: Duration = Duration::from_secs(2);

/// A drain waits this long for its loop before it answers that something is left.
const DRAIN_WAIT: Duration = Duration::from_secs(3);

/// A cloud provider, a process of its own. On a command line: `NAME=IP:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderConfig {
    /// What clusters and pools call it; [`Slug`]'s rules.
    pub name: String,
    pub address: SocketAddr,
}

impl FromStr for ProviderConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<ProviderConfig, String> {
        let Some((name, address)) = text.split_once('=') else {
            return Err("it is NAME=IP:PORT, such as aws=127.0.0.1:7443".to_owned());
        };
        let provider = ProviderConfig {
            name: name.to_owned(),
            address: address.parse().map_err(|_| format!("{address:?} is not IP:PORT"))?,
        };
        provider.check()?;
        Ok(provider)
    }
}

impl ProviderConfig {
    fn check(&self) -> Result<(), String> {
        if self.name.parse::<Slug>().is_err() {
            return Err(format!(
                "the name {:?} is not 1 to 40 of a-z, 0-9 and '-', beginning with a letter",
                self.name
            ));
        }
        match self.address.port() {
            0 => Err(format!("{} has no port", self.address)),
            _ => Ok(()),
        }
    }

    /// What is wrong with these as the providers of one cell: the books say where a thing is by name alone,
    /// and a provider under two names would be asked twice for everything.
    pub fn check_all(providers: &[ProviderConfig]) -> Result<(), String> {
        for (nth, one) in providers.iter().enumerate() {
            one.check()?;
            for other in &providers[..nth] {
                if other.name == one.name {
                    return Err(format!("there are two providers named {}", one.name));
                }
                if other.address == one.address {
                    return Err(format!("{} and {} are both at {}", other.name, one.name, one.address));
                }
            }
        }
        Ok(())
    }
}

/// The cell's providers.
pub(crate) struct Clouds {
    providers: Providers,
    known: Mutex<Vec<(String, Option<Description>, String)>>,
}

impl Clouds {
    pub(crate) fn new(config: &Config) -> Result<Clouds, tonic::transport::Error> {
        let mut providers = Vec::new();
        for provider in &config.providers {
            let remote = Remote::new(provider.address, &config.ca_pem, &config.identity())?;
            providers.push((provider.name.clone(), Arc::new(remote) as _));
        }
        let known = config.providers.iter().map(|one| (one.name.clone(), None, "not asked yet".to_owned()));
        Ok(Clouds { known: Mutex::new(known.collect()), providers: Providers(providers) })
    }

    /// Keeps what is said about providers true, for ever.
    pub(crate) async fn describe(self: Arc<Clouds>) {
        if self.providers.0.is_empty() {
            return;
        }
        loop {
            let mut all_well = true;
            for (at, (_, cloud)) in self.providers.0.iter().enumerate() {
                let answer = cloud.describe().await;
                all_well &= answer.is_ok();
                if let Some((_, description, problem)) = self.known.lock().get_mut(at) {
                    match answer {
                        Ok(said) => (*description, *problem) = (Some(said), String::new()),
                        Err(error) => *problem = error.to_string(),
                    }
                }
            }
            tokio::time::sleep(if all_well { DESCRIBE } else { DESCRIBE_AGAIN }).await;
        }
    }

    pub(crate) fn report(&self) -> Vec<ProviderReport> {
        let known = self.known.lock();
        let reports = known.iter().map(|(name, description, problem)| {
            let types = description.iter().flat_map(|one| &one.machine_types);
            ProviderReport {
                name: name.clone(),
                problem: problem.clone(),
                machines: description.as_ref().is_some_and(|one| one.capabilities.machines),
                load_balancers: description.as_ref().is_some_and(|one| one.capabilities.balancers),
                machine_types: types
                    .map(|one| fleet_rpc::MachineType {
                        name: one.name.clone(),
                        cpu_millis: one.cpu_millis,
                        memory_bytes: one.memory_bytes,
                    })
                    .collect(),
            }
        });
        reports.collect()
    }
}

/// A cluster's place for its loops, whether or not it leads.
pub(crate) struct Seat {
    clouds: Arc<Clouds>,
    wanted: watch::Sender<Wanted>,
    control: Control,
}

impl Seat {
    pub(crate) fn new(clouds: Arc<Clouds>, assignment: &Assignment) -> Seat {
        Seat { clouds, wanted: watch::Sender::new(wanted(assignment)), control: Control::default() }
    }

    /// The manager wants something else.
    pub(crate) fn reassign(&self, assignment: &Assignment) {
        let wanted = wanted(assignment);
        self.wanted.send_if_modified(|known| {
            let changed = *known != wanted;
            *known = wanted;
            changed
        });
    }

    /// The loop of one leadership.
    pub(crate) async fn lead(hosted: Arc<Hosted>, clock: SharedClock, term: Term, stop: CancellationToken) {
        let provider = UserInfo {
            name: "roadstead:cloud".to_owned(),
            groups: vec![UserInfo::MASTERS.to_owned(), UserInfo::AUTHENTICATED.to_owned()],
            ..UserInfo::default()
        };
        let service_controller = UserInfo::service_account("kube-system", "service-controller");
        let seat = hosted.seat();
        let config = cloud_controllers::Config {
            cluster: hosted.id(),
            api: hosted.plane().client(provider, Some(term)),
            service_api: hosted.plane().client(service_controller, Some(term)),
            ledger: Arc::new(Books { group: hosted.group().clone(), clock: clock.clone(), term }),
            providers: seat.clouds.providers.clone(),
            joining: Arc::new(Door { hosted: hosted.clone(), clock: clock.clone() }),
            wanted: seat.wanted.subscribe(),
            clock,
            control: seat.control.clone(),
        };
        cloud_controllers::run(config, stop).await;
    }

    pub(crate) fn report(&self) -> CloudReport {
        let status = self.control.status().borrow().clone();
        CloudReport {
            node_pools: status.pools.iter().map(pool_report).collect(),
            load_balancers: status
                .balancers
                .iter()
                .map(|one| LoadBalancerReport {
                    id: one.id.clone(),
                    service: one.service.clone(),
                    addresses: one.addresses.iter().map(ToString::to_string).collect(),
                    hostname: one.hostname.clone().unwrap_or_default(),
                    message: one.message.clone(),
                })
                .collect(),
            draining: status.draining,
        }
    }

    /// Begins to drain, or says how far it is. Only for the leader of `term`.
    pub(crate) async fn drain(
        &self,
        group: &Group,
        clock: &SharedClock,
        term: Term,
    ) -> Result<DrainClusterResponse, LedgerError> {
        let books = Books { group: group.clone(), clock: clock.clone(), term };
        let (_, draining) = books.load().await?;
        if !draining {
            books.write(vec![put(Key::new(COLLECTION, DRAINING), b"true")]).await?;
        }
        self.control.drain();
        let mut status = self.control.status();
        let drained = |status: &Status| status.draining && status.left == 0;
        let is_drained = tokio::time::timeout(DRAIN_WAIT, status.wait_for(drained)).await.is_ok();
        let (entries, _) = books.load().await?;
        let message = status.borrow().message.clone();
        // The books decide; the loop may only not have come to look at them yet.
        let left = match (entries.len(), is_drained) {
            (0, true) => 0,
            (left, _) => u32::try_from(left).unwrap_or(u32::MAX).max(1),
        };
        let resources = if left == 0 { books.lines() } else { Vec::new() };
        Ok(DrainClusterResponse { left, message, resources: resources.into_iter().map(resource).collect() })
    }
}

fn wanted(assignment: &Assignment) -> Wanted {
    Wanted { provider: assignment.provider.clone(), pools: assignment.node_pools.clone() }
}

fn pool_report(status: &cloud_controllers::PoolStatus) -> NodePoolReport {
    NodePoolReport {
        id: status.id.to_string(),
        machines: status
            .machines
            .iter()
            .map(|one| MachineReport {
                id: one.id.clone(),
                name: one.name.clone(),
                state: one.step.as_str().to_owned(),
                address: one.address.map(|address| address.to_string()).unwrap_or_default(),
                message: one.message.clone(),
            })
            .collect(),
        message: status.message.clone(),
        refused: status.refused,
    }
}

fn resource(line: Gone) -> CloudResource {
    CloudResource {
        kind: line.kind,
        id: line.id,
        name: line.name,
        created_unix_ms: line.created_at.as_millisecond(),
        deleted_unix_ms: line.deleted_at.as_millisecond(),
        provider: line.provider,
    }
}

/// The ledger in the cluster's own group. Every write carries the term it is made in, and is refused in any
/// other: who was deposed writes nothing any more, and so begins no call.
struct Books {
    group: Group,
    clock: SharedClock,
    term: Term,
}

fn put(key: Key, body: &[u8]) -> Op {
    let value = Value { body: Bytes::copy_from_slice(body), stamp: Bytes::new() };
    Op::Put { key, value, expect: Expect::Any, expires_at_ms: None, shared: false }
}

fn entry_key(token: &ClientToken) -> Key {
    Key::new(COLLECTION, format!("{ENTRY}{token}"))
}

fn encode(what: &impl Serialize) -> Result<Vec<u8>, LedgerError> {
    serde_json::to_vec(what).map_err(|error| LedgerError(error.to_string()))
}

impl Books {
    async fn write(&self, ops: Vec<Op>) -> Result<(), LedgerError> {
        let command = Command { ops, fence: Some(self.term), at_ms: self.clock.now().as_millisecond() };
        match self.group.write(command).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let causes =
                    std::iter::successors(Some(&error as &dyn std::error::Error), |one| one.source());
                Err(LedgerError(causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")))
            }
        }
    }

    fn lines(&self) -> Vec<Gone> {
        let snapshot = self.group.space().snapshot(COLLECTION);
        let lines = snapshot.range(GONE, None);
        lines.filter_map(|entry| serde_json::from_slice(&entry.value.body).ok()).collect()
    }
}

#[async_trait]
impl Ledger for Books {
    async fn load(&self) -> Result<(Vec<Entry>, bool), LedgerError> {
        // What an earlier leader wrote is applied here: leadership begins after that. What this one wrote
        // is applied when its write returns.
        let snapshot = self.group.space().snapshot(COLLECTION);
        let mut entries = Vec::new();
        for entry in snapshot.range(ENTRY, None) {
            let read = serde_json::from_slice(&entry.value.body);
            // Going on without it would leak what it stands for.
            entries.push(read.map_err(|error| LedgerError(format!("{}: {error}", entry.key)))?);
        }
        let draining = snapshot.range(DRAINING, None).next().is_some();
        Ok((entries, draining))
    }

    async fn put(&self, entry: &Entry) -> Result<(), LedgerError> {
        self.write(vec![put(entry_key(&entry.token), &encode(entry)?)]).await
    }

    async fn strike(&self, token: &ClientToken) -> Result<(), LedgerError> {
        self.write(vec![Op::Delete { key: entry_key(token), expect: Expect::Any }]).await
    }

    async fn close(&self, token: &ClientToken, line: &Gone) -> Result<(), LedgerError> {
        // One command: the thing is in the books or in the receipt, at every moment.
        let name = format!("{GONE}{:015}-{token}", line.deleted_at.as_millisecond());
        let mut ops = vec![Op::Delete { key: entry_key(token), expect: Expect::Any }];
        // What was never made is no line of the receipt.
        if !line.id.is_empty() {
            ops.push(put(Key::new(COLLECTION, name), &encode(line)?));
        }
        let snapshot = self.group.space().snapshot(COLLECTION);
        let lines = snapshot.range(GONE, None).count();
        let surplus = snapshot.range(GONE, None).take((lines + 1).saturating_sub(LINES));
        ops.extend(surplus.map(|entry| Op::Delete { key: entry.key.clone(), expect: Expect::Any }));
        self.write(ops).await
    }
}

/// Lets machines in.
struct Door {
    hosted: Arc<Hosted>,
    clock: SharedClock,
}

#[async_trait]
impl Joining for Door {
    async fn withdraw(&self, node: &str) -> Result<(), String> {
        let gone = join_tokens::delete_of_node(&self.hosted, node).await;
        gone.map_err(|status| format!("join token not withdrawn: {}", status.message()))
    }

    async fn join(&self, node: &str, description: &str) -> Result<Join, String> {
        let made =
            join_tokens::create_for_node(&self.hosted, self.clock.now(), TOKEN_LIFETIME, node, description)
                .await
                .map_err(|status| format!("no join token: {}", status.message()))?;
        let assignment = self.hosted.assignment();
        Ok(Join {
            servers: assignment.gateway_addresses,
            tls_server_name: assignment.server_name,
            token: made.token,
            ca_cert_hashes: vec![made.ca_cert_hash],
            ..Join::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use base_clock::{SystemClock, Timestamp};
    use cloud_controllers::{Phase, What};
    use store_mvcc::Limits;

    use super::*;

    fn entry(token: &str, at: Timestamp) -> Entry {
        Entry {
            token: token.parse().unwrap(),
            provider: "local".to_owned(),
            what: What::Balancer { uid: token.to_owned(), service: format!("default/{token}") },
            phase: Phase::Made { id: format!("lb-{token}"), at },
            created_at: at,
        }
    }

    #[test]
    fn a_provider_is_a_name_and_a_place() {
        for (text, wanted) in [
            ("aws=127.0.0.1:7443", "fine"),
            ("aws-eu-1=[::1]:7443", "fine"),
            ("aws", "it is NAME=IP:PORT, such as aws=127.0.0.1:7443"),
            ("=127.0.0.1:7443", "the name \"\" is not 1 to 40"),
            ("AWS=127.0.0.1:7443", "the name \"AWS\" is not 1 to 40"),
            ("../aws=127.0.0.1:7443", "the name \"../aws\" is not 1 to 40"),
            ("aws=cloud.example:7443", "\"cloud.example:7443\" is not IP:PORT"),
            ("aws=127.0.0.1", "\"127.0.0.1\" is not IP:PORT"),
            ("aws=127.0.0.1:0", "127.0.0.1:0 has no port"),
        ] {
            let said = text.parse::<ProviderConfig>().map_or_else(|why| why, |_| "fine".to_owned());
            assert!(said.starts_with(wanted), "{text}: {said}");
        }
        let all = |texts: &[&str]| -> Vec<ProviderConfig> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        for (texts, wanted) in [
            (["a=127.0.0.1:1", "b=127.0.0.1:2"], Ok(())),
            (["a=127.0.0.1:1", "a=127.0.0.1:2"], Err("there are two providers named a")),
            (["a=127.0.0.1:1", "b=127.0.0.1:1"], Err("a and b are both at 127.0.0.1:1")),
        ] {
            assert_eq!(ProviderConfig::check_all(&all(&texts)), wanted.map_err(str::to_owned), "{texts:?}");
        }
    }

    #[tokio::test]
    async fn the_books_are_the_group_s_and_of_one_term() {
        let group = Group::in_memory(Limits::default());
        let term = group.leadership().borrow().unwrap();
        let clock = SystemClock::shared();
        let books = Books { group: group.clone(), clock: clock.clone(), term };
        let (one, two) = (entry("one", clock.now()), entry("two", clock.now()));
        books.put(&one).await.unwrap();
        books.put(&two).await.unwrap();
        books.put(&two.leaving(clock.now())).await.unwrap();
        assert_eq!(books.load().await.unwrap().0.len(), 2);

        let deposed = Books { group: group.clone(), clock: clock.clone(), term: Term(term.0 + 1) };
        let error = deposed.put(&one).await.unwrap_err();
        assert!(error.to_string().contains("term"), "{error}");

        let line = Gone {
            kind: "load-balancer".to_owned(),
            id: "lb-two".to_owned(),
            name: "default/two".to_owned(),
            provider: "local".to_owned(),
            created_at: two.created_at,
            deleted_at: clock.now(),
        };
        books.close(&two.token, &line).await.unwrap();
        books.strike(&"never".parse().unwrap()).await.unwrap();
        assert_eq!(books.load().await.unwrap(), (vec![one], false));
        assert_eq!(books.lines(), std::slice::from_ref(&line));

        for at in 0..LINES as i64 {
            let deleted_at = line.deleted_at + Duration::from_millis(at as u64 + 1);
            let line = Gone { id: format!("lb-{at}"), deleted_at, ..line.clone() };
            books.close(&format!("t{at}").parse().unwrap(), &line).await.unwrap();
        }
        let lines = books.lines();
        assert_eq!((lines.len(), lines[0].id.as_str()), (LINES, "lb-0"), "the oldest went");
    }
}
