//! The load balancers: their books and their addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use base_clock::SharedClock;
use base_files::write_private;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use cloud_interface::{Balancer, BalancerSpec, BalancerState, CloudError};
use node_network::Subnet;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::id_of;
use crate::proxy::Proxy;

/// On this machine at most: each has listeners, and a task that checks its targets.
const MOST: usize = 1000;
const RETRY: Duration = Duration::from_secs(2);

/// A balancer as it is on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    balancer: Balancer,
    spec: BalancerSpec,
}

struct Running {
    record: Record,
    proxy: Proxy,
}

pub(crate) struct Balancers {
    dir: PathBuf,
    pool: Subnet,
    clock: SharedClock,
    /// Held while one is made or changed: two callers with one token must get one balancer.
    running: Mutex<BTreeMap<String, Running>>,
    tasks: Tasks,
}

impl Balancers {
    pub(crate) async fn open(
        dir: &Path,
        pool: Subnet,
        clock: SharedClock,
        tasks: &Tasks,
    ) -> Result<Arc<Balancers>> {
        base_files::private_dir(dir)?;
        let mut running = BTreeMap::new();
        for entry in std::fs::read_dir(dir).context("cannot read the balancers' folder")? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut record: Record = match serde_json::from_slice(&bytes) {
                Ok(record) => record,
                // The caller makes it anew; the file is kept for whoever wants to know.
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "damaged: a balancer is lost");
                    continue;
                }
            };
            let mut proxy = Proxy::new(tasks);
            if let [address] = record.balancer.addresses[..] {
                settle(&mut record.balancer, proxy.become_(address, &record.spec).await);
            }
            running.insert(record.balancer.id.clone(), Running { record, proxy });
        }
        let running = Mutex::new(running);
        let balancers =
            Arc::new(Balancers { dir: dir.to_owned(), pool, clock, running, tasks: tasks.clone() });
        tasks.spawn(balancers.clone().catch_up());
        Ok(balancers)
    }

    /// Those whose port was still taken when the provider started are served once it is free: their
    /// owners know of no reason to ask again.
    async fn catch_up(self: Arc<Self>) {
        loop {
            let mut running = self.running.lock().await;
            let mut waiting = false;
            for one in running.values_mut() {
                let [address] = one.record.balancer.addresses[..] else { continue };
                if one.record.balancer.state == BalancerState::Pending {
                    settle(&mut one.record.balancer, one.proxy.become_(address, &one.record.spec).await);
                    waiting |= one.record.balancer.state == BalancerState::Pending;
                }
            }
            drop(running);
            if !waiting {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Nothing listens when it returns; the books stay.
    pub(crate) async fn stop(&self) {
        for one in std::mem::take(&mut *self.running.lock().await).into_values() {
            one.proxy.stop().await;
        }
    }

    pub(crate) async fn ensure(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError> {
        let id = id_of("lb", spec.cluster, &spec.client_token);
        let mut running = self.running.lock().await;
        let (balancer, fresh) = match running.get(&id) {
            Some(one) => (one.record.balancer.clone(), false),
            None => {
                if running.len() >= MOST {
                    return Err(CloudError::Exhausted(format!("this provider has {MOST} balancers at most")));
                }
                let address = self.address(&running, spec.wanted_address)?;
                let balancer = Balancer {
                    id: id.clone(),
                    cluster: spec.cluster,
                    client_token: spec.client_token.clone(),
                    name: spec.name.clone(),
                    state: BalancerState::Pending,
                    addresses: vec![address],
                    hostname: None,
                    message: String::new(),
                    created_at: self.clock.now(),
                    tags: spec.tags.clone(),
                };
                (balancer, true)
            }
        };
        let mut record = Record { balancer, spec: spec.clone() };
        record.balancer.name = spec.name.clone();
        record.balancer.tags = spec.tags.clone();
        let [address] = record.balancer.addresses[..] else {
            return Err(CloudError::Unavailable("this balancer has no address".to_owned()));
        };
        let same = running.get(&id).is_some_and(|one| {
            one.record.spec == *spec && one.record.balancer.state == BalancerState::Active
        });
        if same {
            return Ok(record.balancer);
        }
        // On the books first: what listens without being there could never be deleted.
        self.write(&record)?;
        let mut one = match (fresh, running.remove(&id)) {
            (false, Some(one)) => one,
            _ => Running { record: record.clone(), proxy: Proxy::new(&self.tasks) },
        };
        settle(&mut record.balancer, one.proxy.become_(address, spec).await);
        one.record = record.clone();
        running.insert(id, one);
        match record.balancer.state {
            BalancerState::Active => Ok(record.balancer),
            _ => Err(CloudError::Unavailable(record.balancer.message)),
        }
    }

    pub(crate) async fn list(&self, cluster: TenantId) -> Vec<Balancer> {
        let running = self.running.lock().await;
        let own = running.values().map(|one| &one.record.balancer).filter(|one| one.cluster == cluster);
        own.cloned().collect()
    }

    pub(crate) async fn delete(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        let mut running = self.running.lock().await;
        if running.get(id).is_none_or(|one| one.record.balancer.cluster != cluster) {
            return Ok(());
        }
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(CloudError::Unavailable(format!("its record cannot be removed: {error}")));
            }
            _ => {}
        }
        if let Some(one) = running.remove(id) {
            one.proxy.stop().await;
        }
        Ok(())
    }

    /// The lowest that nobody has: few addresses in use are easier to read than many.
    fn address(
        &self,
        running: &BTreeMap<String, Running>,
        wanted: Option<IpAddr>,
    ) -> Result<IpAddr, CloudError> {
        let taken =
            |address: &IpAddr| running.values().any(|one| one.record.balancer.addresses.contains(address));
        if let Some(wanted) = wanted {
            return match self.pool.contains(wanted) {
                false => Err(CloudError::Invalid(format!("{wanted} is not in {}", self.pool))),
                true if taken(&wanted) => Err(CloudError::Exhausted(format!("{wanted} is taken"))),
                true => Ok(wanted),
            };
        }
        let free = (1..).map_while(|offset| self.pool.nth(offset)).find(|address| !taken(address));
        free.ok_or_else(|| CloudError::Exhausted(format!("every address of {} is taken", self.pool)))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    fn write(&self, record: &Record) -> Result<(), CloudError> {
        let write = || -> Result<()> {
            write_private(&self.path(&record.balancer.id), &serde_json::to_vec(record)?)?;
            Ok(std::fs::File::open(&self.dir)?.sync_all()?)
        };
        write().map_err(|error| CloudError::Unavailable(format!("{error:#}")))
    }
}

fn settle(balancer: &mut Balancer, outcome: Result<(), String>) {
    (balancer.state, balancer.message) = match outcome {
        Ok(()) => (BalancerState::Active, String::new()),
        Err(why) => (BalancerState::Pending, why),
    };
}
