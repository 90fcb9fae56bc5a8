//! Which pods this node has: a watch of the cluster, a worker per pod, and a steady eye on the runtime.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use node_runtime::cri::{ContainerState, PodSandboxState};
use parking_lot::Mutex;

use crate::container::chain;
use crate::observed::label;
use crate::pod::PodExt;
use crate::shared::Shared;
use crate::worker::{Desired, Handle, View, Worker};

/// How often the runtime is asked what changed. Own actions look at once; this finds containers that ended alone.
const RELIST: Duration = Duration::from_secs(1);

/// How often folders of pods that nobody wants are looked for.
const SWEEP_EVERY: u32 = 60;

/// All pods of this node. Cheap to clone.
#[derive(Clone)]
pub struct Pods {
    shared: Arc<Shared>,
    table: Arc<Mutex<Table>>,
    /// Containers of unknown pods whose stop is under way.
    stopping: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Default)]
struct Table {
    workers: HashMap<String, Handle>,
    /// The cluster's first answer is in: what isn't in the table is not wanted.
    synced: bool,
}

impl Pods {
    pub fn start(shared: Arc<Shared>) -> Pods {
        let pods = Pods { shared: shared.clone(), table: Arc::default(), stopping: Arc::default() };
        shared.tasks.spawn(pods.clone().follow_cluster());
        shared.tasks.spawn(pods.clone().follow_runtime());
        pods
    }

    /// The pod of that name with what its worker last saw.
    pub fn find(&self, namespace: &str, name: &str) -> Option<(Arc<Pod>, View)> {
        let table = self.table.lock();
        let found = table.workers.values().filter_map(|worker| {
            let pod = worker.desired.borrow().pod.clone();
            (pod.namespace() == namespace && pod.name() == name).then(|| (pod, worker.view.borrow().clone()))
        });
        // Of two with one name, one is going; the newer is meant.
        found.max_by_key(|(pod, _)| pod.metadata.creation_timestamp.as_ref().map(|at| at.0))
    }

    pub fn all(&self) -> Vec<(Arc<Pod>, View)> {
        let table = self.table.lock();
        let mut all: Vec<_> = table
            .workers
            .values()
            .map(|one| (one.desired.borrow().pod.clone(), one.view.borrow().clone()))
            .collect();
        all.sort_by(|(a, _), (b, _)| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
        all
    }

    pub fn is_synced(&self) -> bool {
        self.table.lock().synced
    }

    async fn follow_cluster(self) {
        let mine = format!("spec.nodeName={}", self.shared.config.node_name);
        let api = Api::<Pod>::all(self.shared.config.client.clone());
        let mut watch = watcher(api, watcher::Config::default().fields(&mine)).default_backoff().boxed();
        let mut listed: Vec<Pod> = Vec::new();
        while let Some(event) = watch.next().await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(pod)) => listed.push(pod),
                Ok(watcher::Event::InitDone) => self.replace_all(std::mem::take(&mut listed)),
                Ok(watcher::Event::Apply(pod)) => self.want(pod),
                Ok(watcher::Event::Delete(pod)) => self.lose(pod),
                Err(error) => tracing::warn!(error = chain(&error), "watch of pods starts again"),
            }
        }
    }

    fn replace_all(&self, pods: Vec<Pod>) {
        let listed: BTreeSet<String> = pods.iter().map(|pod| pod.uid().to_owned()).collect();
        for pod in pods {
            self.want(pod);
        }
        let mut table = self.table.lock();
        table.synced = true;
        for (uid, worker) in &table.workers {
            if !listed.contains(uid) {
                worker.desired.send_modify(|desired| desired.gone = true);
            }
        }
    }

    fn want(&self, pod: Pod) {
        let pod = Arc::new(pod);
        let mut table = self.table.lock();
        if let Some(worker) = table.workers.get(pod.uid()) {
            worker.desired.send_replace(Desired { pod, gone: false });
            return;
        }
        let uid = pod.uid().to_owned();
        let (worker, handle) = Worker::new(self.shared.clone(), pod);
        table.workers.insert(uid.clone(), handle);
        let pods = self.clone();
        self.shared.tasks.spawn(async move {
            worker.run().await;
            pods.table.lock().workers.remove(&uid);
        });
    }

    fn lose(&self, pod: Pod) {
        let table = self.table.lock();
        if let Some(worker) = table.workers.get(pod.uid()) {
            worker.desired.send_replace(Desired { pod: Arc::new(pod), gone: true });
        }
    }

    /// The polling half of upstream's PLEG: who differs from the last look is nudged.
    async fn follow_runtime(self) {
        let mut known: BTreeMap<String, Vec<(String, i32)>> = BTreeMap::new();
        let mut rounds: u32 = 0;
        let mut ticks = tokio::time::interval(RELIST);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let cri = &self.shared.cri;
            let listed =
                tokio::try_join!(cri.list_pod_sandboxes(HashMap::new()), cri.list_containers(HashMap::new()));
            let Ok((sandboxes, containers)) = listed else { continue };
            let mut seen: BTreeMap<String, Vec<(String, i32)>> = BTreeMap::new();
            let uid = |labels: &HashMap<String, String>| labels.get(label::POD_UID).cloned();
            for sandbox in &sandboxes {
                let Some(uid) = uid(&sandbox.labels) else { continue };
                seen.entry(uid).or_default().push((sandbox.id.clone(), sandbox.state));
            }
            for container in &containers {
                let Some(uid) = uid(&container.labels) else { continue };
                seen.entry(uid).or_default().push((container.id.clone(), container.state));
            }
            seen.values_mut().for_each(|list| list.sort());
            let stale = {
                let table = self.table.lock();
                for (uid, worker) in &table.workers {
                    if known.get(uid) != seen.get(uid) {
                        worker.nudge.notify_one();
                    }
                }
                table.synced.then(|| {
                    seen.keys().filter(|uid| !table.workers.contains_key(*uid)).cloned().collect::<Vec<_>>()
                })
            };
            for uid in stale.unwrap_or_default() {
                self.remove_stale(&uid, &sandboxes, &containers).await;
            }
            if rounds.is_multiple_of(SWEEP_EVERY) && self.is_synced() {
                self.sweep_folders(seen.keys());
            }
            if rounds % 10 == 9 {
                self.rotate_logs().await;
            }
            rounds = rounds.wrapping_add(1);
            known = seen;
        }
    }

    /// A pod in the runtime that the cluster does not know: its document went while we were away.
    async fn remove_stale(
        &self,
        uid: &str,
        sandboxes: &[node_runtime::cri::PodSandbox],
        containers: &[node_runtime::cri::Container],
    ) {
        let is_of =
            |labels: &HashMap<String, String>| labels.get(label::POD_UID).is_some_and(|one| one == uid);
        let cri = &self.shared.cri;
        for container in containers.iter().filter(|one| is_of(&one.labels)) {
            if container.state() == ContainerState::ContainerRunning
                && self.stopping.lock().insert(container.id.clone())
            {
                let stopping = self.stopping.clone();
                let (cri, id) = (cri.clone(), container.id.clone());
                let grace = container.annotations.get(label::GRACE).and_then(|grace| grace.parse().ok());
                let grace_s: i64 = grace.unwrap_or(crate::pod::DEFAULT_GRACE_S);
                // Beside the loop, which goes on looking; the next round asks again if this one failed.
                self.shared.tasks.spawn(async move {
                    if let Err(error) = cri.stop_container(&id, grace_s).await {
                        tracing::debug!(id, %error, "stale container does not stop yet");
                    }
                    stopping.lock().remove(&id);
                });
            }
        }
        let running = containers
            .iter()
            .any(|one| is_of(&one.labels) && one.state() == ContainerState::ContainerRunning);
        if running {
            return;
        }
        tracing::info!(uid, "removing a pod that the cluster no longer knows");
        for sandbox in sandboxes.iter().filter(|one| is_of(&one.labels)) {
            let ready = sandbox.state() == PodSandboxState::SandboxReady;
            let stopped = if ready { cri.stop_pod_sandbox(&sandbox.id).await } else { Ok(()) };
            let removed = match stopped {
                Ok(()) => cri.remove_pod_sandbox(&sandbox.id).await,
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(uid, %error, "stale sandbox stays for now");
            }
        }
    }

    fn sweep_folders<'a>(&self, in_runtime: impl Iterator<Item = &'a String>) {
        let mut live: BTreeSet<String> = in_runtime.cloned().collect();
        live.extend(self.table.lock().workers.keys().cloned());
        let volumes = &self.shared.volumes;
        for uid in volumes.orphans(&live).unwrap_or_default() {
            match volumes.remove(&uid) {
                Ok(()) => tracing::info!(uid, "removed the folder of a pod that is gone"),
                Err(error) => tracing::warn!(uid, %error, "folder of a pod that is gone stays"),
            }
        }
    }

    async fn rotate_logs(&self) {
        let now = self.shared.config.clock.now();
        for (pod, view) in self.all() {
            for one in view.seen.running() {
                let folder = crate::sandbox::log_folder(&self.shared.around.logs, &pod);
                let path = folder.join(crate::container::log_path(&one.name, one.attempt));
                match crate::logs::rotate(&path, now) {
                    Ok(true) => {
                        if let Err(error) = self.shared.cri.reopen_container_log(&one.id).await {
                            tracing::warn!(path = %path.display(), %error, "log is not opened again");
                        }
                    }
                    Ok(false) => {}
                    Err(error) => tracing::warn!(path = %path.display(), %error, "log is not rotated"),
                }
            }
        }
    }
}
