//! All groups of one cell: one directory, one log, one limit on what is in flight.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use openraft::SnapshotPolicy;
use parking_lot::Mutex;
use store_log::{Change, Failure, Files, Log, LogConfig, OsFiles, Position, Record, Stats, Urgency};
use store_mvcc::{Command, Limits};
use tokio::sync::{OnceCell, Semaphore, watch};

use crate::checkpoint::Checkpoints;
use crate::member::{Common, MAX_UNITS, Member, RaftConfigs};
use crate::message::{Request, Response};
use crate::replica::{Replica, group_of, tenant_of};
use crate::transport::Transport;
use crate::types::{Membership, Payload, Proposal, Seat, Vote};
use crate::{Group, HostError, WriteError, codec, note};

/// What a host needs to know.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The cell that this is; replicas made here carry it.
    pub cell: CellId,
    /// Bounds of every tenant's key space.
    pub limits: Limits,
    pub log: LogConfig,
    /// A group that wrote nothing for so long has its Raft closed.
    pub rest_after: Duration,
    /// A group that wrote so much has its Raft closed and opened again, since its rings have grown by then.
    pub rest_after_writes: u64,
    /// How other cells are reached; without one, groups have no replicas elsewhere.
    pub transport: Option<Arc<dyn Transport>>,
}

impl HostConfig {
    pub fn new(cell: CellId) -> HostConfig {
        HostConfig {
            cell,
            limits: Limits::default(),
            log: LogConfig::default(),
            rest_after: Duration::from_secs(2),
            rest_after_writes: 100_000,
            transport: None,
        }
    }
}

/// Between two looks for groups to put to rest.
const REST_ROUND: Duration = Duration::from_millis(500);
/// Between two looks at who leads the groups that have peers.
const TEND_ROUND: Duration = Duration::from_millis(50);
/// The replica that makes a new group; the only one, if it has no peers.
const FIRST_REPLICA: u64 = 1;
const FIRST_TERM: u64 = 1;

type Place = Arc<OnceCell<Arc<Member>>>;

/// The replicas that one cell has. One per process and directory.
pub struct Host {
    config: HostConfig,
    log: Log,
    checkpoints: Checkpoints,
    common: Common,
    places: Mutex<HashMap<TenantId, Place>>,
    /// Nothing is opened any more.
    closed: AtomicBool,
}

impl Host {
    /// Opens, or begins, what is in `directory`, and takes it for this process alone.
    ///
    /// Reads the whole log, but no group yet; see [`Host::open_group`].
    pub async fn open(directory: impl AsRef<Path>, config: HostConfig) -> Result<Arc<Host>, HostError> {
        let directory = directory.as_ref().to_owned();
        let log_config = config.log;
        let opened = tokio::task::spawn_blocking(move || {
            // The lock on the log protects both: it is let go when the log's writer has ended.
            let log_files: Arc<dyn Files> = Arc::new(OsFiles::open(&directory.join("log"))?);
            let checkpoints = OsFiles::open_unlocked(&directory.join("checkpoints"))?;
            let checkpoint_files: Arc<dyn Files> = Arc::new(checkpoints);
            Ok::<_, HostError>((Log::open(log_files, log_config)?, Checkpoints::new(checkpoint_files)))
        });
        let (log, checkpoints) = opened.await.map_err(|_| HostError::Closed)??;
        Host::start(log, checkpoints, config).await
    }

    /// As [`Host::open`], on files of the caller's choice; for tests and the simulator.
    pub async fn open_on(
        log_files: Arc<dyn Files>,
        checkpoint_files: Arc<dyn Files>,
        config: HostConfig,
    ) -> Result<Arc<Host>, HostError> {
        let log = Log::open(log_files, config.log)?;
        Host::start(log, Checkpoints::new(checkpoint_files), config).await
    }

    async fn start(log: Log, checkpoints: Checkpoints, config: HostConfig) -> Result<Arc<Host>, HostError> {
        for group in log.groups() {
            // Made halfway when the process ended; nobody was told that it exists.
            if log.note(group, note::IDENTITY).is_none() {
                log.submit(group, vec![Change::Remove], Urgency::Soon, |_| {})?;
            }
        }
        let host = Arc::new(Host {
            common: Common {
                raft_configs: Arc::new(raft_configs()?),
                transport: config.transport.clone(),
                in_flight: Arc::new(Semaphore::new(MAX_UNITS)),
                awake: Arc::default(),
            },
            places: Mutex::default(),
            closed: AtomicBool::new(false),
            config,
            log,
            checkpoints,
        });
        let sweeping = host.clone();
        let swept = tokio::task::spawn_blocking(move || sweeping.checkpoints.sweep(&sweeping.tenants()));
        match swept.await {
            Ok(Ok(())) => {}
            // Leftovers cost room, nothing else.
            Ok(Err(error)) => tracing::warn!(%error, "cannot sweep the checkpoints"),
            Err(error) => tracing::warn!(%error, "cannot sweep the checkpoints"),
        }
        tokio::spawn(rest_round(Arc::downgrade(&host)));
        if host.config.transport.is_some() {
            tokio::spawn(tend_round(Arc::downgrade(&host)));
        }
        tokio::spawn(resign_on_failure(Arc::downgrade(&host), host.log.failure()));
        Ok(host)
    }

    /// Every tenant with a replica here, open or not.
    pub fn tenants(&self) -> Vec<TenantId> {
        let complete = |group: &store_log::GroupId| self.log.note(*group, note::IDENTITY).is_some();
        self.log.groups().into_iter().filter(complete).map(tenant_of).collect()
    }

    /// Makes a group whose only replica is here and whose first command is `bootstrap`; both are durable
    /// when it returns, or the group does not exist.
    pub async fn create(&self, tenant: TenantId, bootstrap: Command) -> Result<Group, HostError> {
        self.make(tenant, self.form(tenant, &[self.config.cell], Some(bootstrap))).await
    }

    /// Makes a group with a replica on each of `cells`, of which this one is the first. The others
    /// [`Host::join`] it, with the same cells in the same order.
    ///
    /// The group is durable here when it returns; it takes writes once a majority has joined.
    pub async fn found(
        &self,
        tenant: TenantId,
        cells: &[CellId],
        bootstrap: Command,
    ) -> Result<Group, HostError> {
        self.make(tenant, self.form(tenant, cells, Some(bootstrap))).await
    }

    /// Makes this cell's replica of a group that the first of `cells` founds. It has nothing in it until the
    /// founder sends it.
    pub async fn join(&self, tenant: TenantId, cells: &[CellId]) -> Result<Group, HostError> {
        self.make(tenant, self.form(tenant, cells, None)).await
    }

    async fn make(
        &self,
        tenant: TenantId,
        form: impl Future<Output = Result<Arc<Member>, HostError>>,
    ) -> Result<Group, HostError> {
        let place = {
            let mut places = self.places.lock();
            if places.contains_key(&tenant) || self.log.state(group_of(tenant))?.is_some() {
                return Err(HostError::Exists(tenant));
            }
            places.entry(tenant).or_default().clone()
        };
        let made = match place.get_or_try_init(|| form).await {
            Ok(member) => Ok(member.clone()),
            Err(error) => Err(error),
        };
        match made {
            Ok(member) => {
                self.wake(&member).await?;
                Ok(Group::of(member))
            }
            Err(error) => {
                self.forget(tenant, &place);
                Err(error)
            }
        }
    }

    /// Raft of a group with peers is open all the time: it has to answer.
    async fn wake(&self, member: &Arc<Member>) -> Result<(), HostError> {
        if member.has_peers() {
            let opened = member.open().await;
            opened.map(drop).map_err(|error| HostError::Consensus {
                tenant: member.tenant(),
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Writes what openraft would have written: the membership and, where the group is founded, a first
    /// leader's vote and blank entry and the command. In one piece, so that a new cluster costs one sync
    /// instead of four.
    ///
    /// Every replica begins with the same first entry and having voted for the founder in term 1, so the
    /// founder leads by right, and nobody else can in that term. Nobody stands for election before having the
    /// first command, so no leader can begin without it, and it may count as committed from the start.
    async fn form(
        &self,
        tenant: TenantId,
        cells: &[CellId],
        bootstrap: Option<Command>,
    ) -> Result<Arc<Member>, HostError> {
        let failed = |source| HostError::Bootstrap { tenant, source };
        let consensus = |reason: String| HostError::Consensus { tenant, reason };
        if !self.log.accepting() {
            return Err(failed(WriteError::NoSpace));
        }
        let founds = bootstrap.is_some();
        let place = cells.iter().position(|cell| *cell == self.config.cell);
        let id = match place {
            Some(place) if founds == (place == 0) => FIRST_REPLICA + place as u64,
            _ => return Err(consensus("this cell has another place in it".to_owned())),
        };
        let replica =
            Replica::empty(tenant, id, self.config.limits, self.log.clone(), self.checkpoints.clone());
        let seats: BTreeMap<u64, Seat> =
            (FIRST_REPLICA..).zip(cells.iter().map(|cell| Seat { cell: *cell })).collect();
        if seats.values().map(|seat| seat.cell).collect::<BTreeSet<_>>().len() != seats.len() {
            return Err(consensus("two of its replicas would be on one cell".to_owned()));
        }
        let membership = Membership::new(vec![seats.keys().copied().collect()], seats)
            .map_err(|error| consensus(error.to_string()))?;
        let mut payloads = vec![(0, Payload::Membership(membership))];
        let vote = match bootstrap {
            Some(bootstrap) => {
                let encoded = codec::encode_command(&bootstrap);
                let command = Proposal { command: Arc::new(bootstrap), encoded };
                payloads.extend([(FIRST_TERM, Payload::Blank), (FIRST_TERM, Payload::Normal(command))]);
                Vote::new_committed(FIRST_TERM, FIRST_REPLICA)
            }
            None => Vote::new(FIRST_TERM, FIRST_REPLICA),
        };
        let mut changes = vec![Change::Note { slot: note::VOTE, value: codec::encode_vote(&vote) }];
        for (index, (term, payload)) in (0..).zip(payloads) {
            let position = Position { term, index };
            let body = codec::encode_payload(&payload);
            replica.seed(position, payload).map_err(|rejected| failed(rejected.into()))?;
            changes.push(Change::Append(Record { position, body }));
        }
        changes.push(Change::Note { slot: note::IDENTITY, value: note::encode_identity(id) });
        self.log.commit(replica.group, changes).await?;
        self.member(replica, founds)
    }

    /// The group of a tenant that has a replica here. The same one for everybody who asks.
    pub async fn open_group(&self, tenant: TenantId) -> Result<Group, HostError> {
        loop {
            if self.closed.load(Ordering::Acquire) {
                return Err(HostError::Closed);
            }
            let place = self.places.lock().entry(tenant).or_default().clone();
            match place.get_or_try_init(|| self.load(tenant)).await {
                Ok(member) if member.is_closed() => {
                    // Closed by whoever had it before: wait until it is, then begin anew.
                    member.close().await;
                    self.forget(tenant, &place);
                }
                Ok(member) => {
                    self.wake(member).await?;
                    return Ok(Group::of(member.clone()));
                }
                Err(error) => {
                    self.forget(tenant, &place);
                    return Err(error);
                }
            }
        }
    }

    async fn load(&self, tenant: TenantId) -> Result<Arc<Member>, HostError> {
        let (limits, log, checkpoints) = (self.config.limits, self.log.clone(), self.checkpoints.clone());
        let loaded = tokio::task::spawn_blocking(move || Replica::load(tenant, limits, log, checkpoints));
        let replica = loaded.await.map_err(|_| HostError::Closed)??;
        self.member(replica, false)
    }

    fn member(&self, replica: Replica, founder: bool) -> Result<Arc<Member>, HostError> {
        Ok(Arc::new(Member::new(replica, self.common.clone(), founder)?))
    }

    /// Answers a message that another cell's transport sent for `tenant`. The transport must have made sure
    /// that it is a cell of the same fleet. What cannot be done is said in the answer.
    pub async fn receive(&self, tenant: TenantId, from: CellId, message: &[u8]) -> Bytes {
        let failed = |reason: String| Response::Failed { reason }.encode();
        let request = match Request::decode(message) {
            Ok(request) => request,
            Err(error) => return failed(format!("a message that is none: {error}")),
        };
        // What has not been opened yet is opened, what was closed is not: its owner has done so on purpose, and a
        // replica that came back while it is being deleted would go on in memory without anything on disk.
        let member = match self.opened(tenant) {
            Some(member) => member,
            None => {
                if let Err(error) = self.open_group(tenant).await {
                    return failed(error.to_string());
                }
                let Some(member) = self.opened(tenant) else {
                    return failed(HostError::Unknown(tenant).to_string());
                };
                member
            }
        };
        if member.is_closed() {
            return failed(WriteError::Closed.to_string());
        }
        // A cell without a replica has nothing to say in the group, or one that is no longer its own could write
        // what it likes into every cluster. Only a replica that knows of nobody yet believes whoever fills it. (Once
        // replicas can be added, who speaks before the entry that adds it is applied here has to be known from
        // elsewhere.)
        let cells = member.cells();
        if !cells.is_empty() && !cells.contains(&from) {
            return failed(format!("cell {from} has no replica of {tenant}"));
        }
        member.receive(request).await.encode()
    }

    /// Removes a tenant's replica and everything on disk of it.
    pub async fn delete(&self, tenant: TenantId) -> Result<(), HostError> {
        let place = {
            let mut places = self.places.lock();
            if !places.contains_key(&tenant) && self.log.state(group_of(tenant))?.is_none() {
                return Err(HostError::Unknown(tenant));
            }
            // Taken even by one that was never opened: a message that comes now finds the closed member.
            places.entry(tenant).or_default().clone()
        };
        // One that is just being opened is waited for; one that cannot be opened needs no closing.
        if let Ok(member) = place.get_or_try_init(|| self.load(tenant)).await {
            member.close().await;
        }
        // The log first: a checkpoint without log is swept at the next open, a log without its checkpoint
        // would be damage.
        self.log.commit(group_of(tenant), vec![Change::Remove]).await?;
        let checkpoints = self.checkpoints.clone();
        let removed = tokio::task::spawn_blocking(move || checkpoints.remove(tenant)).await;
        self.forget(tenant, &place);
        match removed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => {
                Err(HostError::Io { doing: "remove the checkpoint in", path: "checkpoints".into(), source })
            }
            Err(error) => {
                let source = io::Error::other(error);
                Err(HostError::Io { doing: "remove the checkpoint in", path: "checkpoints".into(), source })
            }
        }
    }

    /// Writes a tenant's state into a checkpoint and shortens its log. Hosts do so by themselves when it is
    /// worth it; this is for whoever wants the next start to be quick.
    pub async fn checkpoint(&self, tenant: TenantId) -> Result<(), WriteError> {
        match self.opened(tenant) {
            Some(member) => member.checkpoint().await,
            None => Err(WriteError::Closed),
        }
    }

    /// Becomes something when the disk has failed for good: nothing is acknowledged any more, and the
    /// process should end, saying what it finds here.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<Failure>>> {
        self.log.failure()
    }

    /// How many groups have their Raft open at the moment; the others are at rest.
    pub fn awake(&self) -> usize {
        self.common.awake.tenants().len()
    }

    /// What the shared log has done since it was opened.
    pub fn log_stats(&self) -> Stats {
        self.log.stats()
    }

    /// Closes all groups, writes what is queued, and lets go of the directory.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let places: Vec<Place> = self.places.lock().values().cloned().collect();
        // Together: each may wait for another cell to take over.
        futures::future::join_all(places.iter().filter_map(|place| place.get()).map(|member| member.close()))
            .await;
        let log = self.log.clone();
        if tokio::task::spawn_blocking(move || log.close()).await.is_err() {
            tracing::error!("the log did not close cleanly");
        }
    }

    /// Makes room for replica `id` of a group whose leader will add it and send it everything.
    #[cfg(test)]
    pub(crate) async fn make_room(&self, tenant: TenantId, id: u64) -> Result<(), HostError> {
        let change = Change::Note { slot: note::IDENTITY, value: note::encode_identity(id) };
        Ok(self.log.commit(group_of(tenant), vec![change]).await?)
    }

    #[cfg(test)]
    pub(crate) async fn raft(&self, tenant: TenantId) -> Result<crate::member::Raft, WriteError> {
        self.opened(tenant).ok_or(WriteError::Closed)?.raft().await
    }

    fn forget(&self, tenant: TenantId, place: &Place) {
        let mut places = self.places.lock();
        if places.get(&tenant).is_some_and(|found| Arc::ptr_eq(found, place)) {
            places.remove(&tenant);
        }
    }

    /// The tenant's member, if it was opened; it may have been closed since.
    fn opened(&self, tenant: TenantId) -> Option<Arc<Member>> {
        self.places.lock().get(&tenant).and_then(|place| place.get()).cloned()
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.places.lock().values().filter_map(|place| place.get().cloned()).collect()
    }

    /// Those whose Raft is open.
    fn awake_members(&self) -> Vec<Arc<Member>> {
        let tenants = self.common.awake.tenants();
        let places = self.places.lock();
        tenants.iter().filter_map(|tenant| places.get(tenant)?.get().cloned()).collect()
    }
}

/// Puts groups to rest that have nothing to do, as long as the host lives.
async fn rest_round(host: Weak<Host>) {
    let mut rounds = tokio::time::interval(REST_ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let Some(host) = host.upgrade() else { return };
        let (idle, writes) = (host.config.rest_after, host.config.rest_after_writes);
        for member in host.awake_members() {
            member.rest(idle, writes).await;
        }
    }
}

/// Ends all leadership when the disk fails, so that no loop goes on in a term that can commit nothing.
async fn resign_on_failure(host: Weak<Host>, mut failure: watch::Receiver<Option<Arc<Failure>>>) {
    // An error means that the log is gone, and with it all groups.
    if failure.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let Some(host) = host.upgrade() else { return };
    host.members().iter().for_each(|member| member.resign());
}

/// Looks after the leaders of groups with peers, as long as the host lives.
async fn tend_round(host: Weak<Host>) {
    let mut rounds = tokio::time::interval(TEND_ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let Some(host) = host.upgrade() else { return };
        let now = Instant::now();
        for member in host.awake_members() {
            member.tend(now);
        }
    }
}

/// No timers in groups: cells watch each other, and a group that is alone needs no watching. Checkpoints are
/// ours to trigger, since openraft counts entries and we count bytes.
fn raft_configs() -> Result<RaftConfigs, HostError> {
    let config = |alone: bool| {
        let config = openraft::Config {
            cluster_name: "roadstead".to_owned(),
            enable_tick: false,
            enable_heartbeat: false,
            enable_elect: false,
            // Sent only to confirm that a leader leads; bounds how long an answer is waited for.
            heartbeat_interval: 250,
            heartbeat_min_interval: Some(0),
            election_timeout_min: 300,
            // Also the time for which a follower refuses to vote against a leader it has heard.
            election_timeout_max: 500,
            backoff: "20ms 50ms 100ms ...500ms".to_owned(),
            snapshot_policy: SnapshotPolicy::Never,
            // A replica that was away for a moment need not be sent everything.
            max_in_snapshot_log_to_keep: if alone { 0 } else { 2_000 },
            enable_leader_restore: Some(alone),
            api_channel_size: Some(4096),
            notification_channel_size: Some(1024),
            state_machine_channel_size: Some(256),
            ..openraft::Config::default()
        };
        config.validate().map(Arc::new).map_err(|error| {
            let source = io::Error::other(error);
            HostError::Io { doing: "configure consensus for", path: "the host".into(), source }
        })
    };
    Ok(RaftConfigs { alone: config(true)?, among_peers: config(false)? })
}
