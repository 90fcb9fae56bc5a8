//! DaemonSets: one pod on each node that will have it.
//!
//! Pods are pinned to their node by affinity and bound by the scheduler, so that one rule book decides.
//!
//! Not here: surge. An update with `maxSurge` replaces that many pods at a time instead of adding them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Object};
use api_placement::{NodeInfo, PodInfo, admits};
use api_reconcile::{Action, EventText, Plan, Spread};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::pods::{PodView, from_template};
use super::replicas::{claim, set_count, wake_controllers};
use super::revisions::{self, HASH};

#[derive(Default)]
pub struct DaemonSets;

impl Controller for DaemonSets {
    fn name(&self) -> &'static str {
        "daemon-set-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::DAEMON_SETS, res::PODS, res::NODES, res::REVISIONS]
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        match change.of {
            res::DAEMON_SETS => wake(Key::of(res::DAEMON_SETS, change.object)),
            res::NODES => {
                let matters = |node: &Object| {
                    (node.header.labels.clone(), node.field("spec.taints"), node.field("spec.unschedulable"))
                };
                let news = change.old.is_none_or(|old| matters(old) != matters(change.object));
                if news || change.kind == ChangeKind::Gone {
                    world.all(res::DAEMON_SETS).for_each(|set| wake(Key::of(res::DAEMON_SETS, set)));
                }
            }
            res::REVISIONS => revisions::wake_owner(change, res::DAEMON_SETS, "DaemonSet", wake),
            _ => wake_controllers(world, change, res::DAEMON_SETS, wake, |set| {
                convert::selector(set.field("spec.selector").as_ref())
            }),
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let resource = world.catalog().get(res::DAEMON_SETS);
        let Some(document) = convert::document(resource, object) else { return Plan::nothing() };
        let Some(selector) =
            convert::selector(document.get("spec.selector")).filter(|one| !one.is_everything())
        else {
            return Plan::nothing();
        };
        let mut plan = Plan::nothing();
        let pods = claim(world, res::DAEMON_SETS, object, &selector, &mut plan);
        if !plan.is_nothing() || world.is_deleting(object) {
            return plan;
        }
        let template = document.get("spec.template").cloned().unwrap_or(json!({}));
        let history = revisions::of(world, object);
        let current = match revisions::current(world, res::DAEMON_SETS, object, &template, &history) {
            Ok(current) => current.label().to_owned(),
            Err(action) => return Plan::of(vec![action]),
        };
        let mut by_node: BTreeMap<String, Vec<Daemon<'_>>> = BTreeMap::new();
        for pod in pods {
            let daemon = Daemon { pod, view: PodView::of(pod), deleting: world.is_deleting(pod) };
            by_node.entry(daemon.node()).or_default().push(daemon);
        }
        let mut round = Round {
            world,
            object,
            document,
            template,
            current,
            by_node,
            now,
            plan,
            counts: Counts::default(),
        };
        round.run();
        let limit = round.document.get_i64("spec.revisionHistoryLimit").unwrap_or(10);
        let mut used: Vec<String> = round.by_node.values().flatten().filter_map(Daemon::hash).collect();
        used.push(round.current.clone());
        let used: Vec<&str> = used.iter().map(String::as_str).collect();
        round.plan.actions.extend(revisions::surplus(world, &history, &used, limit));
        round.plan
    }
}

struct Daemon<'a> {
    pod: &'a Arc<Object>,
    view: PodView,
    deleting: bool,
}

impl Daemon<'_> {
    fn node(&self) -> String {
        if !self.view.node().is_empty() {
            return self.view.node().to_owned();
        }
        let required =
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let terms = self.pod.field(required).unwrap_or_default();
        terms[0]["matchFields"][0]["values"][0].as_str().unwrap_or_default().to_owned()
    }
    fn hash(&self) -> Option<String> {
        self.pod.header.labels.get(HASH).cloned()
    }
}

#[derive(Default)]
struct Counts {
    desired: i64,
    current: i64,
    misplaced: i64,
    ready: i64,
    updated: i64,
    available: i64,
}

struct Round<'a> {
    world: &'a World,
    object: &'a Arc<Object>,
    document: Document,
    template: Value,
    current: String,
    by_node: BTreeMap<String, Vec<Daemon<'a>>>,
    now: Now,
    plan: Plan,
    counts: Counts,
}

impl Round<'_> {
    fn run(&mut self) {
        let gvk = &self.world.catalog().get(res::DAEMON_SETS).gvk;
        let asks = daemon_info(&from_template(Some(&self.template), gvk, self.object));
        let min_ready = self.document.get_i64("spec.minReadySeconds").unwrap_or(0);
        let (mut creates, mut deletes) = (Vec::new(), Vec::new());
        let mut events = Vec::new();
        let mut old: Vec<(&Arc<Object>, bool)> = Vec::new();
        let pods = &self.world.catalog().get(res::PODS).gvr;
        for node in self.world.all(res::NODES) {
            let name = node.header.name.to_string();
            let (should_run, may_stay) = allowed(&asks, node);
            let empty = Vec::new();
            let here = self.by_node.get(&name).unwrap_or(&empty);
            let mut living: Vec<&Daemon<'_>> = Vec::new();
            for daemon in here.iter().filter(|daemon| !daemon.deleting) {
                if daemon.view.is_over() {
                    deletes.push(convert::deletion(self.world, res::PODS, daemon.pod));
                    if daemon.view.phase() == "Failed" {
                        let message = format!(
                            "Found failed daemon pod {}/{} on node {name}, will try to kill it",
                            self.document.namespace(),
                            daemon.pod.header.name
                        );
                        events.push(EventText::warning("FailedDaemonPod", message));
                    }
                } else {
                    living.push(daemon);
                }
            }
            // The oldest stays, and one that serves before one that doesn't.
            living.sort_by_key(|daemon| {
                (!daemon.view.is_ready(), daemon.pod.header.created, daemon.pod.header.uid)
            });
            if !should_run {
                self.counts.misplaced += i64::from(!living.is_empty());
                if !may_stay {
                    deletes
                        .extend(living.iter().map(|one| convert::deletion(self.world, res::PODS, one.pod)));
                }
                continue;
            }
            self.counts.desired += 1;
            let surplus = living.iter().skip(1);
            deletes.extend(surplus.map(|one| convert::deletion(self.world, res::PODS, one.pod)));
            let Some(daemon) = living.first() else {
                // Its predecessor may still hold ports and files of the node.
                if here.iter().all(|daemon| !daemon.deleting) {
                    let namespace = Some(self.document.namespace().to_owned());
                    creates.push((pods.clone(), namespace, self.make_pod(&name)));
                }
                continue;
            };
            self.counts.current += 1;
            self.counts.ready += i64::from(daemon.view.is_ready());
            let available = match daemon.view.available(min_ready, self.now.wall) {
                Ok(()) => true,
                Err(left) => {
                    if let Some(left) = left {
                        self.plan.again(Duration::from_secs(left.max(1).unsigned_abs()));
                    }
                    false
                }
            };
            self.counts.available += i64::from(available);
            if daemon.hash().as_deref() == Some(&*self.current) {
                self.counts.updated += 1;
            } else {
                old.push((daemon.pod, available));
            }
        }
        for (name, daemons) in &self.by_node {
            if self.world.get(res::NODES, "", name).is_none() {
                let living =
                    daemons.iter().filter(|daemon| !daemon.deleting && daemon.view.node().is_empty());
                // Bound ones are the pod collector's, once the node has been away for long enough.
                deletes.extend(living.map(|daemon| convert::deletion(self.world, res::PODS, daemon.pod)));
            }
        }
        let about = convert::regarding(gvk, self.object);
        if creates.is_empty() && deletes.is_empty() {
            deletes = self.replace(old);
        }
        self.plan.actions.extend(events.into_iter().map(|text| Action::Event(about.clone(), text)));
        if !creates.is_empty() || !deletes.is_empty() {
            self.plan.push(Action::Spread(Spread {
                regarding: Some(about),
                creates,
                deletes,
                created: ("SuccessfulCreate", "Created pod: "),
                create_failed: ("FailedCreate", "Error creating: "),
                deleted: ("SuccessfulDelete", "Deleted pod: "),
                delete_failed: ("FailedDelete", "Error deleting: "),
            }));
        }
        self.report();
    }

    /// Old pods that may go now: those that serve nobody, then as many others as may be missing.
    fn replace(&self, old: Vec<(&Arc<Object>, bool)>) -> Vec<api_reconcile::Deletion> {
        if self.document.get_str("spec.updateStrategy.type") == Some("OnDelete") {
            return Vec::new();
        }
        let of = |field: &str| {
            let value = self.document.get(&format!("spec.updateStrategy.rollingUpdate.{field}"));
            convert::int_or_percent(value, self.counts.desired, true)
        };
        let most = of("maxUnavailable").unwrap_or(1).max(of("maxSurge").unwrap_or(0)).max(1);
        let missing = self.counts.desired - self.counts.available;
        let mut budget = (most - missing).max(0);
        let mut goners = Vec::new();
        for (pod, available) in old {
            if available {
                if budget == 0 {
                    continue;
                }
                budget -= 1;
            }
            goners.push(convert::deletion(self.world, res::PODS, pod));
        }
        goners
    }

    fn make_pod(&self, node: &str) -> Document {
        let gvk = &self.world.catalog().get(res::DAEMON_SETS).gvk;
        let mut pod = from_template(Some(&self.template), gvk, self.object);
        let labels = pod.object_mut("metadata.labels");
        labels.insert(HASH.to_owned(), json!(self.current));
        labels.insert("pod-template-generation".to_owned(), json!(self.object.header.generation.to_string()));
        let terms = json!({"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]});
        pod.set("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", terms);
        let tolerations = tolerations(&pod);
        pod.set("spec.tolerations", tolerations);
        pod
    }

    fn report(&mut self) {
        let mut status = self.document.get("status").cloned().unwrap_or(json!({}));
        let before = status.clone();
        let counts = &self.counts;
        set_count(&mut status, "desiredNumberScheduled", counts.desired, true);
        set_count(&mut status, "currentNumberScheduled", counts.current, true);
        set_count(&mut status, "numberMisscheduled", counts.misplaced, true);
        set_count(&mut status, "numberReady", counts.ready, true);
        set_count(&mut status, "updatedNumberScheduled", counts.updated, false);
        set_count(&mut status, "numberAvailable", counts.available, false);
        set_count(&mut status, "numberUnavailable", counts.desired - counts.available, false);
        set_count(&mut status, "observedGeneration", self.object.header.generation, false);
        if status != before {
            let mut written = self.document.clone();
            written.set("status", status);
            let of = self.world.catalog().get(res::DAEMON_SETS).gvr.clone();
            self.plan.push(Action::Update { of, subresource: Some("status"), object: written });
        }
    }
}

/// What a daemon bears beyond what its template says: it is there to look after ailing nodes.
fn tolerations(pod: &Document) -> Vec<Value> {
    let mut tolerations = pod.get_array("spec.tolerations").to_vec();
    let mut bear = |key: &str, effect: &str| {
        let one = json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect});
        if !tolerations.contains(&one) {
            tolerations.push(one);
        }
    };
    bear("not-ready", "NoExecute");
    bear("unreachable", "NoExecute");
    for key in ["disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"] {
        bear(key, "NoSchedule");
    }
    if pod.get("spec.hostNetwork") == Some(&Value::Bool(true)) {
        bear("network-unavailable", "NoSchedule");
    }
    tolerations
}

fn daemon_info(pod: &Document) -> PodInfo {
    let mut pod = pod.clone();
    let tolerations = tolerations(&pod);
    pod.set("spec.tolerations", tolerations);
    pod.view().map(|pod| PodInfo::of(&pod)).unwrap_or_default()
}

/// Whether a daemon should run on the node, and whether one that is there may stay.
fn allowed(asks: &PodInfo, node: &Arc<Object>) -> (bool, bool) {
    let Ok(document) = node.to_document() else { return (false, true) };
    let Ok(node) = document.view() else { return (false, true) };
    let admission = admits(asks, &NodeInfo::of(&node));
    let wanted = admission.selected && (asks.node.is_empty() || asks.node == document.name());
    (wanted && admission.may_start, wanted && admission.may_stay)
}
