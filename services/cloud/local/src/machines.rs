//! The machines: their books, and one task each that keeps it running or takes it away.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base_child::{Health, Recipe};
use base_clock::SharedClock;
use base_files::write_private;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use cloud_interface::{CloudError, Join, Machine, MachineSpec, MachineState, MachineType};
use node_agent::{Bootstrap, TaintConfig};
use node_local::{Laid, LocalNode};
use node_network::RunId;
use node_network::host::{HostNetwork, NODES_MAX};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::{FIRST_NUMBER, NAME, REGION, ZONE, id_of};

/// Machines that start at the same time: each imports images and starts a container runtime, and on two
/// cores more at once only make all of them late.
const STARTING_AT_ONCE: usize = 2;
/// A slot is given on after this long, whether or not the machine became a node: some never do.
const START_SLOT: Duration = Duration::from_secs(30);
/// A node that is not Ready by then is started anew.
const READY_PATIENCE: Duration = Duration::from_secs(240);
/// Between attempts to lay a machine out or take it away.
const RETRY: Duration = Duration::from_secs(3);
/// For a machine's node to end by itself, and for all machines to be taken away when the provider ends.
const END_PATIENCE: Duration = Duration::from_secs(12);
const STOP_PATIENCE: Duration = Duration::from_secs(17);

pub(crate) struct Settings {
    pub dir: PathBuf,
    pub gateway: SocketAddr,
    pub types: Vec<MachineType>,
    pub most: u8,
    pub binary: PathBuf,
}

/// A machine as it is on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    machine: Machine,
    /// Of its place on the bridge.
    number: u8,
    /// Holds a token: the file is its owner's alone.
    join: Join,
    deleting: bool,
}

struct Slot {
    record: Record,
    delete: CancellationToken,
}

pub(crate) struct Machines {
    settings: Settings,
    host: HostNetwork,
    clock: SharedClock,
    slots: Mutex<BTreeMap<String, Slot>>,
    starting: Semaphore,
    tasks: Tasks,
}

impl Machines {
    pub(crate) async fn open(
        settings: Settings,
        run_id: &RunId,
        clock: SharedClock,
        tasks: &Tasks,
    ) -> Result<Arc<Machines>> {
        base_files::private_dir(&settings.dir)?;
        let host = HostNetwork::attach(run_id).await?;
        let mut slots = BTreeMap::new();
        for entry in std::fs::read_dir(&settings.dir).context("cannot read the machines' folder")? {
            let folder = entry?.path();
            match read_record(&folder) {
                Ok(Some(record)) => {
                    let slot = Slot { record, delete: CancellationToken::new() };
                    slots.insert(slot.record.machine.id.clone(), slot);
                }
                // Killed before the machine was on the books: nothing else of it can be there.
                Ok(None) => std::fs::remove_dir_all(&folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?,
                Err(error) => tracing::error!("a machine is lost: {error:#}"),
            }
        }
        let machines = Arc::new(Machines {
            starting: Semaphore::new(STARTING_AT_ONCE),
            slots: Mutex::new(slots),
            tasks: tasks.child(),
            settings,
            host,
            clock,
        });
        // What a killed provider left running; also of machines whose record is lost.
        for number in FIRST_NUMBER..NODES_MAX {
            machines.host.remove_node(number).await?;
        }
        let found: Vec<(String, bool)> = {
            let slots = machines.slots.lock();
            slots.iter().map(|(id, slot)| (id.clone(), slot.record.deleting)).collect()
        };
        for (id, deleting) in found {
            if deleting && let Some(slot) = machines.slots.lock().get(&id) {
                slot.delete.cancel();
            }
            machines.clone().run(id);
        }
        Ok(machines)
    }

    pub(crate) fn create(self: &Arc<Self>, spec: &MachineSpec) -> Result<Machine, CloudError> {
        let wanted = match spec.machine_type.as_str() {
            "" => self.settings.types.first(),
            name => self.settings.types.iter().find(|one| one.name == name),
        };
        let id = id_of("m", spec.cluster, &spec.client_token);
        let mut slots = self.slots.lock();
        if let Some(Slot { record: Record { machine, .. }, .. }) = slots.get(&id) {
            let fits = machine.name == spec.name
                && (spec.machine_type.is_empty() || machine.machine_type == spec.machine_type);
            return match fits {
                true => Ok(machine.clone()),
                false => Err(CloudError::TokenUsed(format!("machine {} has it", machine.name))),
            };
        }
        let Some(machine_type) = wanted else {
            let names: Vec<&str> = self.settings.types.iter().map(|one| one.name.as_str()).collect();
            let given = &spec.machine_type;
            return Err(CloudError::Invalid(format!("no machine type {given:?}; there are {names:?}")));
        };
        if slots.len() >= usize::from(self.settings.most) {
            let most = self.settings.most;
            return Err(CloudError::Exhausted(format!("this provider has {most} machines at most")));
        }
        let taken = |number: &u8| slots.values().any(|slot| slot.record.number == *number);
        let number = (FIRST_NUMBER..NODES_MAX).find(|number| !taken(number));
        let number =
            number.ok_or_else(|| CloudError::Exhausted("the bridge has no place left".to_owned()))?;
        let address = self.host.node_address(number).map_err(unavailable)?;
        let record = Record {
            machine: Machine {
                id: id.clone(),
                cluster: spec.cluster,
                client_token: spec.client_token.clone(),
                name: spec.name.clone(),
                machine_type: machine_type.name.clone(),
                provider_id: format!("{NAME}:///{id}"),
                state: MachineState::Pending,
                addresses: vec![IpAddr::V4(address)],
                zone: ZONE.to_owned(),
                region: REGION.to_owned(),
                message: String::new(),
                created_at: self.clock.now(),
                tags: spec.tags.clone(),
            },
            number,
            join: spec.join.clone(),
            deleting: false,
        };
        self.write(&record)?;
        let machine = record.machine.clone();
        slots.insert(id.clone(), Slot { record, delete: CancellationToken::new() });
        drop(slots);
        self.clone().run(id);
        Ok(machine)
    }

    pub(crate) fn list(&self, cluster: TenantId) -> Vec<Machine> {
        let slots = self.slots.lock();
        let own = slots.values().map(|slot| &slot.record.machine).filter(|one| one.cluster == cluster);
        own.cloned().collect()
    }

    pub(crate) fn delete(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(id).filter(|slot| slot.record.machine.cluster == cluster) else {
            return Ok(());
        };
        if !slot.record.deleting {
            let mut record = slot.record.clone();
            record.deleting = true;
            record.machine.state = MachineState::Deleting;
            // Once this is on disk it will be deleted, whatever happens to us.
            self.write(&record)?;
            slot.record = record;
        }
        slot.delete.cancel();
        Ok(())
    }

    pub(crate) async fn stop(&self) {
        if !self.tasks.stop(STOP_PATIENCE).await {
            tracing::warn!("some machines still run; the next start sweeps them");
        }
    }

    fn folder(&self, id: &str) -> PathBuf {
        self.settings.dir.join(id)
    }

    fn write(&self, record: &Record) -> Result<(), CloudError> {
        let folder = self.folder(&record.machine.id);
        let write = || -> Result<()> {
            base_files::private_dir(&folder)?;
            write_private(&record_file(&folder), &serde_json::to_vec(record)?)?;
            // The folder's own name must be on disk before anybody hears of the machine.
            std::fs::File::open(&self.settings.dir)?.sync_all()?;
            Ok(())
        };
        write().map_err(|error| CloudError::Unavailable(format!("{error:#}")))
    }

    /// Its life, as a task: kept running until deleted or until the provider stops.
    fn run(self: Arc<Self>, id: String) {
        let Some(delete) = self.slots.lock().get(&id).map(|slot| slot.delete.clone()) else { return };
        let stop = self.tasks.stopping();
        let tasks = self.tasks.clone();
        tasks.spawn_to_end(async move {
            let own = self.tasks.child();
            tokio::select! {
                () = delete.cancelled() => {}
                () = stop.cancelled() => {}
                () = self.keep(&id, &own) => {}
            }
            own.stop(END_PATIENCE).await;
            while let Err(error) = self.take_away(&id, delete.is_cancelled()).await {
                tracing::warn!(machine = id, "not taken away yet: {error:#}");
                self.say(&id, None, &format!("not deleted yet: {error:#}"));
                if stop.is_cancelled() {
                    return;
                }
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    /// Never ends by itself.
    async fn keep(&self, id: &str, tasks: &Tasks) {
        loop {
            // The semaphore is never closed.
            let slot = self.starting.acquire().await.ok();
            match self.start(id, tasks).await {
                Ok(mut health) => {
                    let ready = async { health.wait_for(|health| *health == Health::Ready).await.map(drop) };
                    let _ = tokio::time::timeout(START_SLOT, ready).await;
                    drop(slot);
                    self.follow(id, health).await;
                    return std::future::pending().await;
                }
                Err(error) => {
                    drop(slot);
                    self.say(id, None, &format!("not started yet: {error:#}"));
                    tracing::warn!(machine = id, "not started yet: {error:#}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn start(&self, id: &str, tasks: &Tasks) -> Result<watch::Receiver<Health>> {
        let record = self.slots.lock().get(id).map(|slot| slot.record.clone());
        let record = record.context("it is gone")?;
        let machine_type = self.settings.types.iter().find(|one| one.name == record.machine.machine_type);
        let machine_type = machine_type.or(self.settings.types.first()).context("no machine types")?;
        let taint = |one: &cloud_interface::Taint| TaintConfig {
            key: one.key.clone(),
            value: one.value.clone(),
            effect: one.effect.clone(),
        };
        let dir = self.folder(id).join("node");
        let node = LocalNode {
            name: record.machine.name.clone(),
            number: record.number,
            cgroup: id.to_owned(),
            dir,
            server: self.settings.gateway,
            tls_server_name: record.join.tls_server_name.clone(),
            bootstrap: Bootstrap {
                token: record.join.token.clone(),
                ca_file: None,
                ca_cert_hashes: record.join.ca_cert_hashes.clone(),
            },
            cpu_millis: machine_type.cpu_millis.into(),
            memory_bytes: machine_type.memory_bytes,
            labels: record.join.labels.clone(),
            taints: record.join.taints.iter().map(taint).collect(),
        };
        // Of an attempt that got half-way.
        node_local::clear(&self.host, record.number, id).await?;
        let Laid { program, arguments, .. } = node.lay_out(&self.host, &self.settings.binary).await?;
        let recipe = Recipe {
            name: format!("machine {}", record.machine.name),
            program,
            arguments,
            log: self.folder(id).join("node.log"),
        };
        let health = recipe.keep_trying(READY_PATIENCE, tasks);
        self.say(id, Some(MachineState::Running), "");
        Ok(health)
    }

    /// What its node does is told in the machine's message. A machine whose node fails is still a machine.
    async fn follow(&self, id: &str, mut health: watch::Receiver<Health>) {
        loop {
            let message = match &*health.borrow_and_update() {
                Health::Starting => None,
                Health::Ready => Some(String::new()),
                Health::Down { why } => Some(why.clone()),
            };
            if let Some(message) = message {
                self.say(id, None, &message);
            }
            if health.changed().await.is_err() {
                return;
            }
        }
    }

    fn say(&self, id: &str, state: Option<MachineState>, message: &str) {
        if let Some(slot) = self.slots.lock().get_mut(id) {
            let machine = &mut slot.record.machine;
            if !slot.record.deleting {
                machine.state = state.unwrap_or(machine.state);
            }
            machine.message = message.to_owned();
        }
    }

    /// Nothing of it is left in the kernel when it returns; with `for_good`, nor on disk and in the books.
    async fn take_away(&self, id: &str, for_good: bool) -> Result<()> {
        let Some(number) = self.slots.lock().get(id).map(|slot| slot.record.number) else { return Ok(()) };
        node_local::clear(&self.host, number, id).await?;
        if for_good {
            let folder = self.folder(id);
            // The record goes last: a crash in the middle is a deletion to be finished.
            let node = folder.join("node");
            tokio::task::spawn_blocking(move || remove_all(&node).and_then(|()| remove_all(&folder)))
                .await??;
            self.slots.lock().remove(id);
        }
        Ok(())
    }
}

fn unavailable(error: impl std::fmt::Display) -> CloudError {
    CloudError::Unavailable(error.to_string())
}

fn record_file(folder: &Path) -> PathBuf {
    folder.join("machine.json")
}

fn read_record(folder: &Path) -> Result<Option<Record>> {
    let path = record_file(folder);
    let Some(text) = base_files::read_text(&path)? else { return Ok(None) };
    let mut record: Record =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    // Nothing runs yet.
    record.machine.state = if record.deleting { MachineState::Deleting } else { MachineState::Pending };
    Ok(Some(record))
}

fn remove_all(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
