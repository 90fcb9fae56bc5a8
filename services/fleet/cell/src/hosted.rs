//! One cluster on this cell: opened, served, led, stopped.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base_clock::SharedClock;
use base_ids::{CellId, TenantId};
use base_net::tasks::Tasks;
use futures::FutureExt;
use store_mvcc::{Key, Term};
use store_raft::Group;
use tenant_apiserver::ControlPlane;
use tenant_auth::{ClusterPki, Revocation};
use tenant_controllers::Controllers;
use tenant_registry::bootstrap;
use tenant_scheduler::Scheduler;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Shared;
use crate::assignments::{Assignment, AssignmentError, Revoked};
use crate::cloud::Seat;
use crate::signer::ClusterSigner;
use crate::tunnels::{Dialer, TunnelMount, announce};

/// Where a cluster's own private keys live: the API has no name for this collection.
const KEYS: &str = "_keys";

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("assignment")]
    Assignment(#[from] AssignmentError),
    #[error("the cluster's store")]
    Store(#[from] store_raft::HostError),
    #[error("the cluster's keys")]
    Keys(#[from] tenant_auth::PkiEntryError),
    #[error("the cluster's API server")]
    Plane(#[from] tenant_apiserver::StartError),
    #[error("the cluster's first objects")]
    Bootstrap(#[from] bootstrap::BootstrapError),
    #[error("{} has no data of a cluster that this cell had", store.display())]
    NoData { store: PathBuf },
    #[error("this cell is none of the cluster's")]
    NotOurs,
    #[error("the cluster's founder has not sent its keys within {FOUNDER_PATIENCE:?}; it may be away")]
    NoFounder,
}

impl HostError {
    /// What to do about damage.
    pub(crate) const ADVICE: &'static str =
        "if the cluster was in use, stop the fleet and put the cell's folder back from a backup";

    /// Whether it stays until somebody puts files back.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            HostError::NoData { .. } | HostError::Keys(_) => true,
            HostError::Store(cause) => {
                !matches!(cause, store_raft::HostError::Closed | store_raft::HostError::Bootstrap { .. })
            }
            HostError::Assignment(_)
            | HostError::Plane(_)
            | HostError::Bootstrap(_)
            | HostError::NotOurs
            | HostError::NoFounder => false,
        }
    }

    /// Whether there was no room for it on the disk.
    pub(crate) fn is_full(&self) -> bool {
        let HostError::Store(store_raft::HostError::Bootstrap { source, .. }) = self else { return false };
        matches!(source, store_raft::WriteError::NoSpace)
    }

    /// The whole chain, down to the bottom.
    pub(crate) fn in_full(&self) -> String {
        let causes = std::iter::successors(Some(self as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }
}

/// How long a replica waits for the group's first command. Less than the manager waits for an answer.
const FOUNDER_PATIENCE: Duration = Duration::from_secs(8);
const FOUNDER_POLL: Duration = Duration::from_millis(5);

/// A cluster that is being served.
pub(crate) struct Hosted {
    /// What the manager wants now; whoever acts on it subscribes.
    assignment: watch::Sender<Assignment>,
    id: TenantId,
    group: Group,
    plane: Arc<ControlPlane>,
    tunnels: base_tunnel::Registry,
    seat: Seat,
    tasks: Tasks,
}

impl Hosted {
    /// Opens the cluster's group, making it with fresh keys and default objects if there is none.
    pub(crate) async fn open(cell: &Shared, assignment: Assignment) -> Result<Arc<Hosted>, HostError> {
        let id = assignment.cluster;
        for replica in &assignment.replicas {
            cell.introduce(replica);
        }
        let group = if cell.host.tenants().contains(&id) {
            cell.host.open_group(id).await?
        } else {
            make(cell, &assignment).await?
        };
        let pki = keys(&group).await?;
        let tasks = cell.tasks.child();
        let tunnels = base_tunnel::Registry::new();
        let late_plane = Arc::new(OnceLock::new());
        let addresses: Vec<IpAddr> =
            assignment.gateway_addresses.iter().map(|address| address.ip()).collect();
        let plane = ControlPlane::start(tenant_apiserver::Config {
            tenant: id,
            group: group.clone(),
            pki,
            clock: cell.clock.clone(),
            dialer: Some(Arc::new(Dialer {
                cluster: id,
                group: group.clone(),
                registry: tunnels.clone(),
                peers: cell.peers.clone(),
            })),
            egress: cell.egress.clone(),
            mount: Some(Arc::new(TunnelMount::new(
                &tunnels,
                late_plane.clone(),
                group.space().clone(),
                tasks.clone(),
            ))),
            dns_names: vec![assignment.server_name.clone()],
            ip_addresses: addresses,
            tasks: tasks.clone(),
        })?;
        plane.revoke(revocations(&assignment));
        // Set once, right here; nobody else has the cell to set it.
        let _ = late_plane.set(Arc::downgrade(&plane));
        let seat = Seat::new(cell.clouds.clone(), &assignment);
        let assignment = watch::Sender::new(assignment);
        tasks.spawn(announce(group.clone(), id, tunnels.clone(), cell.peers.clone()));
        let hosted = Arc::new(Hosted { assignment, id, group, plane, tunnels, seat, tasks });
        hosted.tasks.spawn(lead(hosted.clone(), cell.id.to_string(), cell.clock.clone()));
        Ok(hosted)
    }

    pub(crate) fn id(&self) -> TenantId {
        self.id
    }
    /// As the manager last said.
    pub(crate) fn assignment(&self) -> Assignment {
        self.assignment.borrow().clone()
    }
    /// Tells whoever acts on it.
    pub(crate) fn reassign(&self, assignment: Assignment) {
        self.plane.revoke(revocations(&assignment));
        self.seat.reassign(&assignment);
        self.assignment.send_replace(assignment);
    }
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }
    pub(crate) fn tunnels(&self) -> &base_tunnel::Registry {
        &self.tunnels
    }
    pub(crate) fn plane(&self) -> &Arc<ControlPlane> {
        &self.plane
    }

    /// Ends loops, tunnels and connections, then the group.
    pub(crate) async fn stop(&self, patience: Duration) {
        self.tunnels.close();
        if !self.tasks.stop(patience).await {
            tracing::warn!(tenant = %self.id(), "tasks still running after {patience:?}");
        }
        self.group.close().await;
    }

    /// Kubeconfig without credentials, for `kube-public/cluster-info`.
    fn cluster_info(&self) -> Option<String> {
        use base64::Engine;
        let assignment = self.assignment();
        let server = assignment.gateway_addresses.first()?;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.plane.pki().ca_pem());
        Some(format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: https://{server}\n    \
             tls-server-name: {}\n    certificate-authority-data: {ca}\n",
            assignment.server_name
        ))
    }
}

fn revocations(assignment: &Assignment) -> impl Iterator<Item = Revocation> + '_ {
    let revocation = |one: &Revoked| Revocation { user: one.user.clone(), before_ms: one.before_ms };
    assignment.revocations.iter().map(revocation)
}

/// Makes this cell's replica of a cluster that is new. The first of its cells makes the keys and the default
/// objects, and the others get them from there.
async fn make(cell: &Shared, assignment: &Assignment) -> Result<Group, HostError> {
    if !assignment.founding {
        return Err(HostError::NoData { store: cell.store.clone() });
    }
    let id = assignment.cluster;
    let cells: Vec<CellId> = assignment.replicas.iter().map(|replica| replica.cell).collect();
    match cells.iter().position(|one| *one == cell.id) {
        None if !cells.is_empty() => return Err(HostError::NotOurs),
        None | Some(0) => {}
        Some(_) => return Ok(cell.host.join(id, &cells).await?),
    }
    let pki = ClusterPki::generate()?;
    let first = bootstrap::command(&bootstrap::Options {
        now: cell.clock.now(),
        keys: pki.to_entries(),
        client_ca_pem: pki.ca_pem().to_owned(),
        front_proxy_ca_pem: pki.front_proxy_ca().cert_pem().to_owned(),
        defaults: tenant_auth::policy::default_objects(),
    })?;
    Ok(if cells.len() > 1 {
        cell.host.found(id, &cells, first).await?
    } else {
        cell.host.create(id, first).await?
    })
}

/// The cluster's keys, once they are here: they are in its first command.
async fn keys(group: &Group) -> Result<ClusterPki, HostError> {
    let deadline = tokio::time::Instant::now() + FOUNDER_PATIENCE;
    while group.space().revision().0 == 0 {
        if tokio::time::Instant::now() > deadline {
            return Err(HostError::NoFounder);
        }
        tokio::time::sleep(FOUNDER_POLL).await;
    }
    Ok(ClusterPki::from_entries(|name| {
        group.space().get(&Key::new(KEYS, name)).map(|entry| entry.value.body.clone())
    })?)
}

/// Runs controllers and scheduler while this replica leads, under the term it leads in.
async fn lead(hosted: Arc<Hosted>, holder: String, clock: SharedClock) {
    let mut leadership = hosted.group.leadership();
    let mut running: Option<(Term, CancellationToken, Tasks)> = None;
    loop {
        let term = *leadership.borrow_and_update();
        if running.as_ref().map(|(term, ..)| *term) != term {
            if let Some((term, stop, loops)) = running.take() {
                tracing::info!(tenant = %hosted.id(), term = term.0, "leadership lost");
                stop.cancel();
                loops.stop(Duration::from_secs(5)).await;
            }
            if let Some(term) = term {
                tracing::debug!(tenant = %hosted.id(), term = term.0, "leading");
                running = Some(start_loops(&hosted, &holder, &clock, term));
            }
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

fn start_loops(
    hosted: &Arc<Hosted>,
    holder: &str,
    clock: &SharedClock,
    term: Term,
) -> (Term, CancellationToken, Tasks) {
    let loops = hosted.tasks.child();
    let stop = loops.stopping();
    let plane = hosted.plane.clone();
    let aggregation = plane.clone();
    let api_for = move |component: &str| plane.client(tenant_controllers::identity(component), Some(term));
    let config = tenant_controllers::Config {
        cluster_info: hosted.cluster_info(),
        signer: Some(Arc::new(ClusterSigner {
            ca: hosted.plane.pki().ca().clone(),
            server_name: hosted.assignment().server_name,
        })),
        ..tenant_controllers::Config::new(holder, hosted.plane.pki().ca_pem())
    };
    let scheduler = tenant_scheduler::Config { holder: holder.to_owned() };
    let (id, clock) = (hosted.id(), clock.clone());
    loops.spawn(keep(id, "scheduler", {
        let (api_for, clock, stop) = (api_for.clone(), clock.clone(), stop.clone());
        move || Scheduler::run(api_for("kube-scheduler"), clock.clone(), scheduler.clone(), stop.clone())
    }));
    loops.spawn(keep(id, "aggregation", move || {
        tenant_apiserver::keep_availability(aggregation.clone(), term)
    }));
    loops.spawn(keep(id, "cloud", {
        let (hosted, clock, stop) = (hosted.clone(), clock.clone(), stop.clone());
        move || Seat::lead(hosted.clone(), clock.clone(), term, stop.clone())
    }));
    loops.spawn(keep(id, "controllers", {
        let stop = stop.clone();
        move || Controllers::run(api_for.clone(), clock.clone(), config.clone(), stop.clone())
    }));
    (term, stop, loops)
}

/// Between a loop's panic and its next life.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// Runs one of a leader's loops to its end, which comes with the leadership's. One that panics begins anew: it keeps
/// nothing that outlives it, and without it the cluster would be left alone until another replica leads, which may
/// be never.
async fn keep<F: Future<Output = ()>>(cluster: TenantId, name: &str, run: impl Fn() -> F) {
    while AssertUnwindSafe(run()).catch_unwind().await.is_err() {
        tracing::error!(tenant = %cluster, name, "a loop of the leader panicked; it begins anew");
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_begins_anew() {
        let lives = AtomicU32::new(0);
        let run = || async {
            tokio::task::yield_now().await;
            assert!(lives.fetch_add(1, Ordering::Relaxed) >= 2, "as a defect would");
        };
        keep(TenantId::generate(), "test", run).await;
        assert_eq!(lives.load(Ordering::Relaxed), 3, "it ends when it returns");
    }
}
