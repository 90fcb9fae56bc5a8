//! StatefulSets: pods with names that last, in order.
//!
//! Not here: claim retention (claims stay), `maxUnavailable` (one pod at a time).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Object};
use api_reconcile::{Action, Plan, Spread};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::pods::{PodView, from_template};
use super::replicas::{claim, set_count, wake_controllers};
use super::revisions::{self, HASH, Revision};

#[derive(Default)]
pub struct StatefulSets;

impl Controller for StatefulSets {
    fn name(&self) -> &'static str {
        "statefulset-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::STATEFUL_SETS, res::PODS, res::REVISIONS, res::CLAIMS]
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        match change.of {
            res::STATEFUL_SETS => wake(Key::of(res::STATEFUL_SETS, change.object)),
            res::PODS => wake_controllers(world, change, res::STATEFUL_SETS, wake, |set| {
                convert::selector(set.field("spec.selector").as_ref())
            }),
            res::REVISIONS => revisions::wake_owner(change, res::STATEFUL_SETS, "StatefulSet", wake),
            _ => {}
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let resource = world.catalog().get(res::STATEFUL_SETS);
        let Some(document) = convert::document(resource, object) else { return Plan::nothing() };
        let Some(selector) =
            convert::selector(document.get("spec.selector")).filter(|one| !one.is_everything())
        else {
            return Plan::nothing();
        };
        let mut plan = Plan::nothing();
        let pods = claim(world, res::STATEFUL_SETS, object, &selector, &mut plan);
        if !plan.is_nothing() || world.is_deleting(object) {
            return plan;
        }
        let template = document.get("spec.template").cloned().unwrap_or(json!({}));
        let history = revisions::of(world, object);
        let update = match revisions::current(world, res::STATEFUL_SETS, object, &template, &history) {
            Ok(update) => update,
            Err(action) => return Plan::of(vec![action]),
        };
        let named = document.get_str("status.currentRevision").unwrap_or_default();
        let current = history.iter().find(|revision| revision.name == named).unwrap_or(update);
        let min_ready = document.get_i64("spec.minReadySeconds").unwrap_or(0);
        let mut members = BTreeMap::new();
        for pod in pods {
            let Some(ordinal) = ordinal(&object.header.name, &pod.header.name) else { continue };
            let view = PodView::of(pod);
            let available = view.available(min_ready, now.wall);
            if let Err(Some(left)) = available {
                plan.again(Duration::from_secs(left.max(1).unsigned_abs()));
            }
            let deleting = world.is_deleting(pod);
            members.insert(ordinal, Member { pod, view, deleting, available: available.is_ok() });
        }
        let mut round = Round { world, object, document, members, current, update, plan };
        round.run();
        let mut used: Vec<String> = round.members.values().filter_map(Member::revision).collect();
        used.extend([current.name.clone(), update.name.clone()]);
        let used: Vec<&str> = used.iter().map(String::as_str).collect();
        let limit = round.document.get_i64("spec.revisionHistoryLimit").unwrap_or(10);
        round.plan.actions.extend(revisions::surplus(world, &history, &used, limit));
        round.plan
    }
}

fn ordinal(set: &str, pod: &str) -> Option<i64> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

struct Member<'a> {
    pod: &'a Arc<Object>,
    view: PodView,
    deleting: bool,
    available: bool,
}

impl Member<'_> {
    fn is_healthy(&self) -> bool {
        self.view.phase() == "Running" && self.available && !self.deleting
    }
    fn revision(&self) -> Option<String> {
        self.pod.header.labels.get(HASH).cloned()
    }
}

struct Round<'a> {
    world: &'a World,
    object: &'a Arc<Object>,
    document: Document,
    members: BTreeMap<i64, Member<'a>>,
    current: &'a Revision,
    update: &'a Revision,
    plan: Plan,
}

impl Round<'_> {
    fn run(&mut self) {
        let first = self.document.get_i64("spec.ordinals.start").unwrap_or(0);
        let wanted = first..first + self.document.get_i64("spec.replicas").unwrap_or(1).max(0);
        let ordered = self.document.get_str("spec.podManagementPolicy") != Some("Parallel");
        let mut spread = self.spread();
        let mut claims = Vec::new();
        let mut settled = true;
        for at in wanted.clone() {
            match self.members.get(&at) {
                Some(member) if member.view.is_over() && !member.deleting => {
                    // Its name can be used again only once it is gone.
                    spread.deletes.push(convert::deletion(self.world, res::PODS, member.pod));
                    settled = false;
                }
                Some(member) => settled &= member.is_healthy(),
                None => {
                    let pod = self.make_pod(at, first);
                    claims.extend(self.claims(&pod));
                    let of = self.world.catalog().get(res::PODS).gvr.clone();
                    spread.creates.push((of, Some(self.document.namespace().to_owned()), pod));
                    settled = false;
                }
            }
            if ordered && !settled {
                break;
            }
        }
        if spread.creates.is_empty() && spread.deletes.is_empty() {
            self.shrink(&wanted, ordered, settled, &mut spread);
        }
        if spread.creates.is_empty() && spread.deletes.is_empty() {
            self.roll(&wanted, &mut spread);
        }
        self.plan.actions.extend(claims);
        self.report(&wanted);
        if !spread.creates.is_empty() || !spread.deletes.is_empty() {
            self.plan.push(Action::Spread(spread));
        }
    }

    /// Pods beyond the wanted ones go, the highest first.
    fn shrink(&self, wanted: &std::ops::Range<i64>, ordered: bool, settled: bool, spread: &mut Spread) {
        let condemned: Vec<&Member<'_>> =
            self.members.iter().filter(|(at, _)| !wanted.contains(at)).map(|(_, member)| member).collect();
        if !ordered {
            let living = condemned.iter().filter(|member| !member.deleting);
            spread.deletes.extend(living.map(|member| convert::deletion(self.world, res::PODS, member.pod)));
            return;
        }
        if condemned.iter().any(|member| member.deleting) {
            return;
        }
        // While one that stays is unwell, a healthy one that could go waits; a sick one may go at any time.
        if let Some(last) = condemned.last().filter(|last| settled || !last.is_healthy()) {
            spread.deletes.push(convert::deletion(self.world, res::PODS, last.pod));
        }
    }

    /// The highest pod with an old template goes, if all above it are well.
    fn roll(&self, wanted: &std::ops::Range<i64>, spread: &mut Spread) {
        if self.document.get_str("spec.updateStrategy.type") == Some("OnDelete") {
            return;
        }
        let partition = self.document.get_i64("spec.updateStrategy.rollingUpdate.partition").unwrap_or(0);
        let from = wanted.start.max(wanted.start + partition);
        for at in (from..wanted.end).rev() {
            let Some(member) = self.members.get(&at) else { return };
            if member.revision().as_deref() != Some(self.update.label()) {
                if !member.deleting {
                    spread.deletes.push(convert::deletion(self.world, res::PODS, member.pod));
                }
                return;
            }
            if !member.is_healthy() {
                return;
            }
        }
    }

    fn spread(&self) -> Spread {
        Spread {
            regarding: Some(convert::regarding(
                &self.world.catalog().get(res::STATEFUL_SETS).gvk,
                self.object,
            )),
            creates: Vec::new(),
            deletes: Vec::new(),
            created: ("SuccessfulCreate", "create Pod "),
            create_failed: ("FailedCreate", "create Pod failed error: "),
            deleted: ("SuccessfulDelete", "delete Pod "),
            delete_failed: ("FailedDelete", "delete Pod failed error: "),
        }
    }

    fn make_pod(&self, at: i64, first: i64) -> Document {
        let partition = self.document.get_i64("spec.updateStrategy.rollingUpdate.partition").unwrap_or(0);
        // Below the partition the old template lives on.
        let revision = if at < first + partition { self.current } else { self.update };
        let mut template = revision.template().clone();
        if let Some(template) = template.as_object_mut() {
            template.remove("$patch");
        }
        let gvk = &self.world.catalog().get(res::STATEFUL_SETS).gvk;
        let mut pod = from_template(Some(&template), gvk, self.object);
        let name = format!("{}-{at}", self.object.header.name);
        pod.remove("metadata.generateName");
        pod.set("metadata.name", name.clone());
        let labels = pod.object_mut("metadata.labels");
        labels.insert(HASH.to_owned(), json!(revision.label()));
        labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), json!(name));
        labels.insert("apps.kubernetes.io/pod-index".to_owned(), json!(at.to_string()));
        pod.set("spec.hostname", name.clone());
        if let Some(service) = self.document.get_str("spec.serviceName") {
            pod.set("spec.subdomain", service);
        }
        let mut volumes = pod.get_array("spec.volumes").to_vec();
        for claim in self.document.get_array("spec.volumeClaimTemplates") {
            let volume = claim["metadata"]["name"].as_str().unwrap_or_default();
            volumes.retain(|one| one["name"] != volume);
            volumes.push(
                json!({"name": volume, "persistentVolumeClaim": {"claimName": format!("{volume}-{name}")}}),
            );
        }
        if !volumes.is_empty() {
            pod.set("spec.volumes", volumes);
        }
        pod
    }

    /// Claims the pod needs and that aren't there.
    fn claims(&self, pod: &Document) -> Vec<Action> {
        let namespace = self.document.namespace();
        let mut claims = Vec::new();
        for template in self.document.get_array("spec.volumeClaimTemplates") {
            let volume = template["metadata"]["name"].as_str().unwrap_or_default();
            let name = format!("{volume}-{}", pod.name());
            if self.world.get(res::CLAIMS, namespace, &name).is_some() {
                continue;
            }
            let mut claim = Document::from_value(template.clone()).unwrap_or_default();
            claim.clear_status();
            claim.set("apiVersion", "v1");
            claim.set("kind", "PersistentVolumeClaim");
            claim.set("metadata.name", name);
            claim.set("metadata.namespace", namespace.to_owned());
            let selector = self.document.get("spec.selector.matchLabels").and_then(Value::as_object).cloned();
            for (key, value) in selector.into_iter().flatten() {
                claim.object_mut("metadata.labels").insert(key, value);
            }
            let of = self.world.catalog().get(res::CLAIMS).gvr.clone();
            claims.push(Action::Create { of, namespace: Some(namespace.to_owned()), object: claim });
        }
        claims
    }

    fn report(&mut self, wanted: &std::ops::Range<i64>) {
        let mut status = self.document.get("status").cloned().unwrap_or(json!({}));
        let before = status.clone();
        let living = || self.members.values().filter(|member| !member.deleting && !member.view.is_over());
        let count = |of: &dyn Fn(&Member<'_>) -> bool| living().filter(|member| of(member)).count() as i64;
        let replicas = count(&|_| true);
        let ready = count(&|member| member.view.is_ready());
        let updated = count(&|member| member.revision().as_deref() == Some(self.update.label()));
        let on_current = count(&|member| member.revision().as_deref() == Some(self.current.label()));
        let complete = updated == replicas && ready == replicas && replicas == wanted.end - wanted.start;
        let current = if complete { self.update } else { self.current };
        set_count(&mut status, "replicas", replicas, true);
        set_count(&mut status, "readyReplicas", ready, false);
        set_count(&mut status, "availableReplicas", count(&|member| member.available), true);
        set_count(&mut status, "updatedReplicas", updated, false);
        set_count(&mut status, "currentReplicas", if complete { updated } else { on_current }, false);
        set_count(&mut status, "observedGeneration", self.object.header.generation, false);
        status["currentRevision"] = json!(current.name);
        status["updateRevision"] = json!(self.update.name);
        if status["collisionCount"].is_null() {
            status["collisionCount"] = json!(0);
        }
        if status != before {
            let mut written = self.document.clone();
            written.set("status", status);
            let of = self.world.catalog().get(res::STATEFUL_SETS).gvr.clone();
            self.plan.push(Action::Update { of, subresource: Some("status"), object: written });
        }
    }
}
