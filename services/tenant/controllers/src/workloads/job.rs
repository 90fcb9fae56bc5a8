//! Jobs: pods that run to an end, once or many times.
//!
//! A finished pod is counted exactly once, though pods may be deleted by anybody at any time: its uid is
//! written into the status, then its finalizer is taken off, then it is counted. Each step survives a crash
//! behind it.
//!
//! Where a pod's failure means something else, `failure_policy` says what.
//!
//! Not here: success policies and back-off per index; Jobs managed by others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Object};
use api_reconcile::{Action, Backoff, EventText, PatchKind, Plan, Spread};
use base_clock::rfc3339;
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::failure_policy::{Verdict, verdict};
use super::pods::{PodView, from_template};
use super::replicas::{claim, set_count, wake_controllers};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Between a pod's failure and its successor, doubling; as upstream.
const PATIENCE: Backoff = Backoff { first: Duration::from_secs(10), most: Duration::from_secs(600) };
/// Pods made or counted in one round.
const BURST: usize = 500;

#[derive(Default)]
pub struct Jobs {
    /// Failures in a row and when this leader saw the last.
    failures: HashMap<Key, (u32, Duration)>,
}

impl Controller for Jobs {
    fn name(&self) -> &'static str {
        "job-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::JOBS, res::PODS]
    }
    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::JOBS {
            wake(Key::of(res::JOBS, change.object));
        } else {
            wake_controllers(world, change, res::JOBS, wake, |job| {
                convert::selector(job.field("spec.selector").as_ref())
            });
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else {
            self.failures.remove(key);
            return orphans(world, key);
        };
        let resource = world.catalog().get(res::JOBS);
        let Some(document) = convert::document(resource, object) else { return Plan::nothing() };
        let ours = document.get_str("spec.managedBy").is_none_or(|by| by == "kubernetes.io/job-controller");
        let Some(selector) = convert::selector(document.get("spec.selector")).filter(|_| ours) else {
            return Plan::nothing();
        };
        let mut plan = Plan::nothing();
        // How a pod failed is known when it has ended, not when it is told to.
        let waits = document.get("spec.podFailurePolicy").is_some()
            || document.get_str("spec.podReplacementPolicy") == Some("Failed");
        let pods: Vec<Pod<'_>> = claim(world, res::JOBS, object, &selector, &mut plan)
            .into_iter()
            .map(|pod| Pod::read(world, pod, waits))
            .collect();
        let status = document.get("status").cloned().unwrap_or(json!({}));
        let mut round = Round { world, object, document, pods, status, now, plan };
        round.run(self.failures.entry(key.clone()).or_default());
        round.plan
    }
}

/// Pods of a Job that is gone keep its finalizer, and nobody else would take it off.
fn orphans(world: &World, key: &Key) -> Plan {
    let left = world.within(res::PODS, &key.namespace).filter(|pod| {
        let controller = pod.controller();
        pod.header.deleting_since.is_some()
            && pod.header.finalizers.iter().any(|one| &**one == FINALIZER)
            && controller.is_some_and(|owner| owner.kind == "Job" && *owner.name == *key.name)
    });
    Plan::of(left.map(|pod| untrack(world, pod)).collect())
}

struct Pod<'a> {
    object: &'a Arc<Object>,
    view: PodView,
    uid: String,
    tracked: bool,
    deleting: bool,
    /// Whether it is neither failed nor replaced before it has ended.
    waits: bool,
    index: Option<i64>,
}

impl<'a> Pod<'a> {
    fn read(world: &World, object: &'a Arc<Object>, waits: bool) -> Pod<'a> {
        let view = PodView::of(object);
        let index = view.metadata.annotations.as_ref().and_then(|all| all.get(INDEX)?.parse().ok());
        Pod {
            uid: object.header.uid.to_string(),
            tracked: object.header.finalizers.iter().any(|one| &**one == FINALIZER),
            deleting: world.is_deleting(object),
            waits,
            object,
            view,
            index,
        }
    }
    fn succeeded(&self) -> bool {
        self.view.phase() == "Succeeded"
    }
    /// One that is being deleted will not succeed any more, and is replaced at once unless the Job waits.
    fn failed(&self) -> bool {
        self.view.phase() == "Failed" || (self.deleting && !self.waits && !self.succeeded())
    }
    fn is_ending(&self) -> bool {
        self.deleting && self.waits && !self.view.is_over()
    }
    fn is_active(&self) -> bool {
        !self.succeeded() && !self.failed() && !self.is_ending()
    }
}

struct Round<'a> {
    world: &'a World,
    object: &'a Arc<Object>,
    document: Document,
    pods: Vec<Pod<'a>>,
    status: Value,
    now: Now,
    plan: Plan,
}

impl Round<'_> {
    fn run(&mut self, failures: &mut (u32, Duration)) {
        let before = self.status.clone();
        let finished = self.has("Complete") || self.has("Failed");
        if self.status["startTime"].is_null() && !self.is_suspended() {
            self.status["startTime"] = json!(rfc3339(self.now.wall));
        }
        let (new_failures, new_successes) = self.count();
        if new_successes > 0 {
            *failures = (0, Duration::ZERO);
        } else if new_failures > 0 {
            *failures = (failures.0.saturating_add(new_failures), self.now.mono);
        }
        if !finished && !self.world.is_deleting(self.object) {
            self.judge();
            self.resize(failures);
        }
        self.report();
        if self.status != before {
            let mut written = self.document.clone();
            written.set("status", self.status.clone());
            let of = self.world.catalog().get(res::JOBS).gvr.clone();
            // The status comes first: it is what makes counting safe.
            self.plan.actions.insert(0, Action::Update { of, subresource: Some("status"), object: written });
        }
    }

    // ---- counting ----

    /// Moves finished pods one step on. Returns how many failures and successes are new.
    fn count(&mut self) -> (u32, u32) {
        let list = |status: &Value, field: &str| -> BTreeSet<String> {
            let uids = status["uncountedTerminatedPods"][field].as_array().cloned().unwrap_or_default();
            uids.into_iter().filter_map(|uid| uid.as_str().map(str::to_owned)).collect()
        };
        let mut waiting = [list(&self.status, "succeeded"), list(&self.status, "failed")];
        let mut counts = [self.number("succeeded"), self.number("failed")];
        let mut indexes = Indexes::parse(self.status["completedIndexes"].as_str().unwrap_or_default());
        let tracked: BTreeSet<&str> =
            self.pods.iter().filter(|pod| pod.tracked).map(|pod| pod.uid.as_str()).collect();
        // Written before, finalizer off: these count now.
        for (uids, count) in waiting.iter_mut().zip(&mut counts) {
            let settled: Vec<String> =
                uids.iter().filter(|uid| !tracked.contains(uid.as_str())).cloned().collect();
            for uid in settled {
                uids.remove(&uid);
                *count += 1;
            }
        }
        let mut news = [0u32, 0u32];
        let mut verdict_of_policy: Option<String> = None;
        for pod in &self.pods {
            let which = match (pod.succeeded(), pod.failed()) {
                (true, _) => 0,
                (_, true) => 1,
                _ => continue,
            };
            if !pod.tracked {
                continue;
            }
            if which == 1
                && !waiting[1].contains(&pod.uid)
                && let Some(policy) = self.document.get("spec.podFailurePolicy")
            {
                let name = format!("{}/{}", self.document.namespace(), pod.object.header.name);
                match verdict(policy, &name, &pod.object.field("status").unwrap_or_default()) {
                    Verdict::Count => {}
                    Verdict::Ignore => {
                        self.plan.actions.push(untrack(self.world, pod.object));
                        continue;
                    }
                    Verdict::FailJob { message } => {
                        verdict_of_policy.get_or_insert(message);
                    }
                }
            }
            if waiting[which].contains(&pod.uid) {
                self.plan.actions.push(untrack(self.world, pod.object));
            } else if waiting[0].len() + waiting[1].len() < BURST {
                waiting[which].insert(pod.uid.clone());
                news[which] += 1;
            }
            if which == 0
                && let Some(index) = pod.index
            {
                indexes.insert(index);
            }
        }
        if let Some(message) = verdict_of_policy.filter(|_| !self.has("SuccessCriteriaMet")) {
            self.say("FailureTarget", "True", "PodFailurePolicy", &message);
        }
        let indexed = self.is_indexed();
        if indexed {
            // An index may be done twice by a race; it is one completion.
            counts[0] = indexes.len();
            set_text(&mut self.status, "completedIndexes", &indexes.to_string());
        }
        set_count(&mut self.status, "succeeded", counts[0], false);
        set_count(&mut self.status, "failed", counts[1], false);
        let mut uncounted = json!({});
        for (field, uids) in ["succeeded", "failed"].iter().zip(&waiting) {
            if !uids.is_empty() {
                uncounted[*field] = json!(uids);
            }
        }
        self.status["uncountedTerminatedPods"] = uncounted;
        (news[1], news[0])
    }

    fn number(&self, field: &str) -> i64 {
        self.status[field].as_i64().unwrap_or(0)
    }
    fn uncounted(&self, field: &str) -> i64 {
        let uids = self.status["uncountedTerminatedPods"][field].as_array().map_or(0, Vec::len);
        i64::try_from(uids).unwrap_or(i64::MAX)
    }
    fn succeeded(&self) -> i64 {
        // Indexes are counted when seen; others once they are safe.
        if self.is_indexed() {
            self.number("succeeded")
        } else {
            self.number("succeeded") + self.uncounted("succeeded")
        }
    }
    fn failed(&self) -> i64 {
        self.number("failed") + self.uncounted("failed")
    }
    fn active(&self) -> usize {
        self.pods.iter().filter(|pod| pod.is_active()).count()
    }

    // ---- deciding ----

    fn completions(&self) -> Option<i64> {
        self.document.get_i64("spec.completions")
    }
    fn parallelism(&self) -> i64 {
        self.document.get_i64("spec.parallelism").unwrap_or(1)
    }
    fn is_suspended(&self) -> bool {
        self.document.get("spec.suspend") == Some(&Value::Bool(true))
    }
    fn is_indexed(&self) -> bool {
        self.document.get_str("spec.completionMode") == Some("Indexed")
    }
    fn conditions(&self) -> Vec<Value> {
        self.status["conditions"].as_array().cloned().unwrap_or_default()
    }
    fn has(&self, kind: &str) -> bool {
        convert::condition(&self.conditions(), kind).is_some_and(|one| one["status"] == "True")
    }
    fn say(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let mut conditions = self.conditions();
        let known = conditions.iter().position(|one| one["type"] == kind);
        let at = rfc3339(self.now.wall);
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastProbeTime": at, "lastTransitionTime": at});
        match known {
            Some(at) if conditions[at]["status"] == status => return,
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
        self.status["conditions"] = Value::Array(conditions);
    }
    fn event(&mut self, text: EventText) {
        let gvk = &self.world.catalog().get(res::JOBS).gvk;
        let about = convert::regarding(gvk, self.object);
        self.plan.push(Action::Event(about, text));
    }

    /// Whether the Job has come to an end, one way or the other.
    fn judge(&mut self) {
        let limit = self.document.get_i64("spec.backoffLimit").unwrap_or(6);
        let on_failure = self.document.get_str("spec.template.spec.restartPolicy") == Some("OnFailure");
        let restarts: i64 =
            self.pods.iter().filter(|pod| pod.is_active()).map(|pod| pod.view.restarts()).sum();
        let restarted_too_often = on_failure && if limit == 0 { restarts > 0 } else { restarts >= limit };
        let late = self.seconds_left().is_some_and(|left| left <= 0);
        if !self.has("FailureTarget") && !self.has("SuccessCriteriaMet") {
            let succeeded = self.succeeded();
            let enough = match self.completions() {
                Some(completions) => succeeded >= completions,
                None => succeeded > 0 && self.active() == 0,
            };
            if enough {
                self.say(
                    "SuccessCriteriaMet",
                    "True",
                    "CompletionsReached",
                    "Reached expected number of succeeded pods",
                );
            } else if self.failed() > limit || restarted_too_often {
                self.say(
                    "FailureTarget",
                    "True",
                    "BackoffLimitExceeded",
                    "Job has reached the specified backoff limit",
                );
            } else if late {
                self.say(
                    "FailureTarget",
                    "True",
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                );
            }
        }
        // The end is told when nothing runs any more and everything is counted.
        let settled = self.uncounted("succeeded") + self.uncounted("failed") == 0
            && self.pods.iter().all(|pod| pod.view.is_over() && !pod.tracked);
        if !settled {
            return;
        }
        if self.has("SuccessCriteriaMet") {
            self.status["completionTime"] = json!(rfc3339(self.now.wall));
            self.say("Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods");
            self.event(EventText::normal("Completed", "Job completed"));
        } else if let Some(target) = convert::condition(&self.conditions(), "FailureTarget").cloned() {
            let message = target["message"].as_str().unwrap_or_default().to_owned();
            let (reason, name) = match target["reason"].as_str() {
                Some("DeadlineExceeded") => ("DeadlineExceeded", "DeadlineExceeded"),
                Some("PodFailurePolicy") => ("PodFailurePolicy", "PodFailurePolicy"),
                _ => ("BackoffLimitExceeded", "BackoffLimitExceeded"),
            };
            self.say("Failed", "True", reason, &message);
            self.event(EventText::warning(name, message));
        }
    }

    fn seconds_left(&self) -> Option<i64> {
        let limit = self.document.get_i64("spec.activeDeadlineSeconds")?;
        let started = convert::time(self.status.get("startTime"))?;
        if self.is_suspended() {
            return None;
        }
        Some(limit - convert::seconds_between(started, self.now.wall))
    }

    fn resize(&mut self, failures: &(u32, Duration)) {
        let over = self.has("FailureTarget") || self.has("SuccessCriteriaMet");
        let suspended = self.is_suspended();
        if suspended && !over {
            if !self.has("Suspended") {
                self.say("Suspended", "True", "JobSuspended", "Job suspended");
                self.event(EventText::normal("Suspended", "Job suspended"));
            }
            if let Some(status) = self.status.as_object_mut() {
                status.remove("startTime");
            }
        } else if self.has("Suspended") {
            self.say("Suspended", "False", "JobResumed", "Job resumed");
            self.status["startTime"] = json!(rfc3339(self.now.wall));
            self.event(EventText::normal("Resumed", "Job resumed"));
        }
        let wanted = if over || suspended {
            0
        } else {
            match self.completions() {
                Some(completions) => self.parallelism().min((completions - self.succeeded()).max(0)),
                None if self.succeeded() > 0 => i64::try_from(self.active()).unwrap_or(0),
                None => self.parallelism(),
            }
        };
        if let Some(left) = self.seconds_left().filter(|left| *left > 0 && !over) {
            self.plan.again(Duration::from_secs(left.unsigned_abs()));
        }
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let active = self.active();
        let ending = self.pods.iter().filter(|pod| pod.is_ending()).count();
        let mut spread = self.spread();
        if active > wanted {
            let mut goners: Vec<&Pod<'_>> = self.pods.iter().filter(|pod| pod.is_active()).collect();
            goners.sort_by_key(|pod| {
                (
                    !pod.view.node().is_empty(),
                    pod.view.is_ready(),
                    std::cmp::Reverse(pod.object.header.created),
                )
            });
            let goners = goners.into_iter().take(active - wanted);
            spread.deletes = goners.map(|pod| convert::deletion(self.world, res::PODS, pod.object)).collect();
        } else if active + ending < wanted {
            let wait = PATIENCE.after(failures.0);
            let since = self.now.mono.saturating_sub(failures.1);
            if since < wait {
                self.plan.again(wait - since);
                return;
            }
            let missing = (wanted - active - ending).min(BURST);
            let indexes = self.missing_indexes(missing);
            let of = self.world.catalog().get(res::PODS).gvr.clone();
            for at in 0..missing {
                let index = indexes.as_ref().map(|all| all.get(at).copied());
                if index == Some(None) {
                    break;
                }
                let pod = self.make_pod(index.flatten());
                spread.creates.push((of.clone(), Some(self.document.namespace().to_owned()), pod));
            }
        }
        if !spread.creates.is_empty() || !spread.deletes.is_empty() {
            self.plan.push(Action::Spread(spread));
        }
    }

    fn spread(&self) -> Spread {
        Spread {
            regarding: Some(convert::regarding(&self.world.catalog().get(res::JOBS).gvk, self.object)),
            creates: Vec::new(),
            deletes: Vec::new(),
            created: ("SuccessfulCreate", "Created pod: "),
            create_failed: ("FailedCreate", "Error creating: "),
            deleted: ("SuccessfulDelete", "Deleted pod: "),
            delete_failed: ("FailedDelete", "Error deleting: "),
        }
    }

    /// The lowest indexes that are neither done nor running; `None` when pods have no index.
    fn missing_indexes(&self, count: usize) -> Option<Vec<i64>> {
        if !self.is_indexed() {
            return None;
        }
        let done = Indexes::parse(self.status["completedIndexes"].as_str().unwrap_or_default());
        let running: BTreeSet<i64> = self
            .pods
            .iter()
            .filter(|pod| pod.is_active() || pod.is_ending())
            .filter_map(|pod| pod.index)
            .collect();
        let all = 0..self.completions().unwrap_or(0);
        Some(all.filter(|index| !done.contains(*index) && !running.contains(index)).take(count).collect())
    }

    fn make_pod(&self, index: Option<i64>) -> Document {
        let gvk = &self.world.catalog().get(res::JOBS).gvk;
        let mut pod = from_template(self.document.get("spec.template"), gvk, self.object);
        let mut finalizers = pod.get_array("metadata.finalizers").to_vec();
        finalizers.push(json!(FINALIZER));
        pod.set("metadata.finalizers", finalizers);
        let Some(index) = index else { return pod };
        let (name, text) = (self.document.name().to_owned(), index.to_string());
        pod.set("metadata.generateName", format!("{name}-{index}-"));
        pod.object_mut("metadata.annotations").insert(INDEX.to_owned(), json!(text));
        pod.object_mut("metadata.labels").insert(INDEX.to_owned(), json!(text));
        pod.set("spec.hostname", format!("{name}-{index}"));
        let variable = json!({"name": "JOB_COMPLETION_INDEX",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": format!("metadata.labels['{INDEX}']")}}});
        for list in ["spec.containers", "spec.initContainers"] {
            let containers = pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for container in containers {
                let mut env = container["env"].as_array().cloned().unwrap_or_default();
                if !env.iter().any(|one| one["name"] == "JOB_COMPLETION_INDEX") {
                    env.push(variable.clone());
                    container["env"] = Value::Array(env);
                }
            }
        }
        pod
    }

    fn report(&mut self) {
        let finished = self.has("Complete") || self.has("Failed");
        let count = |of: fn(&Pod<'_>) -> bool| self.pods.iter().filter(|pod| of(pod)).count() as i64;
        let active = if finished { 0 } else { count(|pod| pod.is_active()) };
        let ready = if finished { 0 } else { count(|pod| pod.is_active() && pod.view.is_ready()) };
        let terminating = count(|pod| pod.deleting && !pod.view.is_over());
        set_count(&mut self.status, "active", active, false);
        set_count(&mut self.status, "ready", ready, true);
        set_count(&mut self.status, "terminating", terminating, true);
    }
}

fn set_text(status: &mut Value, field: &str, text: &str) {
    let Some(map) = status.as_object_mut() else { return };
    if text.is_empty() {
        map.remove(field);
    } else {
        map.insert(field.to_owned(), json!(text));
    }
}

fn untrack(world: &World, pod: &Object) -> Action {
    let kept: Vec<Value> =
        pod.header.finalizers.iter().filter(|one| &***one != FINALIZER).map(|one| json!(one)).collect();
    Action::Patch {
        of: world.catalog().get(res::PODS).gvr.clone(),
        subresource: None,
        namespace: pod.header.namespace.as_deref().map(str::to_owned),
        name: pod.header.name.to_string(),
        kind: PatchKind::Merge,
        patch: json!({"metadata": {"uid": pod.header.uid.to_string(), "resourceVersion": pod.header.revision.to_string(),
            "finalizers": if kept.is_empty() { Value::Null } else { Value::Array(kept) }}}),
    }
}

/// `0-2,5`: the form of `completedIndexes`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Indexes(BTreeMap<i64, i64>);

impl Indexes {
    /// What cannot be read is left out: that index is run again.
    fn parse(text: &str) -> Indexes {
        let mut ranges: Vec<(i64, i64)> = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>())
                && first <= last
            {
                ranges.push((first, last));
            }
        }
        ranges.sort_unstable();
        // Neighbours are one range here, though the written form keeps two of them apart.
        let mut indexes = Indexes::default();
        let mut open: Option<(i64, i64)> = None;
        for (first, last) in ranges {
            open = match open {
                Some((start, end)) if first <= end.saturating_add(1) => Some((start, end.max(last))),
                Some((start, end)) => {
                    indexes.0.insert(start, end);
                    Some((first, last))
                }
                None => Some((first, last)),
            };
        }
        indexes.0.extend(open);
        indexes
    }
    fn contains(&self, index: i64) -> bool {
        self.0.range(..=index).next_back().is_some_and(|(_, last)| *last >= index)
    }
    fn insert(&mut self, index: i64) {
        if self.contains(index) {
            return;
        }
        let mut last = index;
        if let Some(after) = self.0.remove(&(index + 1)) {
            last = after;
        }
        let before =
            self.0.range(..index).next_back().filter(|(_, end)| **end == index - 1).map(|(start, _)| *start);
        self.0.insert(before.unwrap_or(index), last);
    }
    fn len(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }
}

impl std::fmt::Display for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        for (first, last) in &self.0 {
            match last - first {
                0 => parts.push(first.to_string()),
                1 => parts.push(format!("{first},{last}")),
                _ => parts.push(format!("{first}-{last}")),
            }
        }
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_in_ranges() {
        for (start, add, wanted, len) in [
            ("", &[0][..], "0", 1),
            ("0-2,5", &[4], "0-2,4,5", 5),
            ("0-2,4,5", &[3], "0-5", 6),
            ("1", &[0, 1, 0], "0,1", 2),
            ("x,3-1,7", &[], "7", 1),
        ] {
            let mut indexes = Indexes::parse(start);
            add.iter().for_each(|index| indexes.insert(*index));
            assert_eq!((indexes.to_string().as_str(), indexes.len()), (wanted, len), "{start:?} + {add:?}");
        }
    }
}
