//! CronJobs: a Job at each time of a schedule.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Object};
use api_reconcile::{Action, EventText, Plan};
use base_clock::{Timestamp, rfc3339};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::schedule::Schedule;

/// Missed times that are looked through for the last one; a CronJob that slept longer starts anew.
const MISSED_MOST: usize = 10_000;

#[derive(Default)]
pub struct CronJobs;

impl Controller for CronJobs {
    fn name(&self) -> &'static str {
        "cronjob-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::CRON_JOBS, res::JOBS]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::CRON_JOBS {
            wake(Key::of(res::CRON_JOBS, change.object));
        } else if let Some(owner) = change.object.controller().filter(|owner| owner.kind == "CronJob") {
            let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
            wake(Key::new(res::CRON_JOBS, namespace, &owner.name));
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let resource = world.catalog().get(res::CRON_JOBS);
        let Some(mut document) = convert::document(resource, object) else { return Plan::nothing() };
        if world.is_deleting(object) {
            return Plan::nothing();
        }
        let about = convert::regarding(&resource.gvk, object);
        let jobs: Vec<&Arc<Object>> = world.controlled_by(res::JOBS, &object.header.uid);
        let (active, done): (Vec<&Arc<Object>>, Vec<&Arc<Object>>) =
            jobs.into_iter().partition(|job| ended(job).is_none());
        let mut plan = Plan::nothing();
        tidy(world, &document, &done, &mut plan);
        let mut status = document.get("status").cloned().unwrap_or(json!({}));
        let before = status.clone();
        let succeeded = done.iter().filter_map(|job| {
            let (kind, at) = ended(job)?;
            (kind == "Complete").then_some(at)?
        });
        if let Some(last) = succeeded.max() {
            let known = convert::time(status.get("lastSuccessfulTime"));
            if known.is_none_or(|known| known < last) {
                status["lastSuccessfulTime"] = json!(rfc3339(last));
            }
        }
        let mut references: Vec<Value> = active.iter().map(|job| reference(job)).collect();
        let suspended = document.get("spec.suspend") == Some(&Value::Bool(true));
        if !suspended {
            let schedule = document.get_str("spec.schedule").and_then(Schedule::parse);
            let zone = match document.get_str("spec.timeZone") {
                Some(name) => TimeZone::get(name).ok(),
                None => Some(TimeZone::UTC),
            };
            let (Some(schedule), Some(zone)) = (schedule, zone) else {
                let text =
                    EventText::warning("UnparseableSchedule", "the schedule or its time zone cannot be read");
                plan.push(Action::Event(about, text));
                return plan;
            };
            let since = convert::time(status.get("lastScheduleTime")).unwrap_or(object.header.created);
            let due = last_due(&schedule, &zone, since, now.wall);
            if let Some(next) = schedule.next(now.wall, &zone) {
                let wait = next.as_millisecond() - now.wall.as_millisecond();
                plan.again(Duration::from_millis(u64::try_from(wait.max(1)).unwrap_or(1)));
            }
            let deadline = document.get_i64("spec.startingDeadlineSeconds");
            let in_time = |due: &Timestamp| {
                deadline.is_none_or(|seconds| convert::seconds_between(*due, now.wall) <= seconds)
            };
            if let Some(due) = due.filter(in_time) {
                let name = format!("{}-{}", key.name, due.as_second() / 60);
                let policy = document.get_str("spec.concurrencyPolicy").unwrap_or("Allow");
                if world.get(res::JOBS, &key.namespace, &name).is_some() {
                    status["lastScheduleTime"] = json!(rfc3339(due));
                } else if policy == "Forbid" && !active.is_empty() {
                    let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
                    plan.push(Action::Event(about, EventText::normal("JobAlreadyActive", message)));
                } else {
                    if policy == "Replace" {
                        for job in &active {
                            let mut deletion = convert::deletion(world, res::JOBS, job);
                            deletion.propagation = Some("Background");
                            plan.push(Action::Delete(deletion));
                            let text = format!("Deleted job {}", job.header.name);
                            plan.push(Action::Event(
                                about.clone(),
                                EventText::normal("SuccessfulDelete", text),
                            ));
                        }
                        references.clear();
                    }
                    let job = make_job(world, object, &document, &name, due);
                    let of = world.catalog().get(res::JOBS).gvr.clone();
                    plan.push(Action::Create { of, namespace: Some(key.namespace.to_string()), object: job });
                    let text = EventText::normal("SuccessfulCreate", format!("Created job {name}"));
                    plan.push(Action::Event(about, text));
                    status["lastScheduleTime"] = json!(rfc3339(due));
                }
            }
        }
        match status.as_object_mut() {
            Some(map) if references.is_empty() => drop(map.remove("active")),
            _ => status["active"] = Value::Array(references),
        }
        if status != before {
            document.set("status", status);
            plan.push(Action::Update {
                of: resource.gvr.clone(),
                subresource: Some("status"),
                object: document,
            });
        }
        plan
    }
}

fn last_due(schedule: &Schedule, zone: &TimeZone, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let (mut at, mut due) = (since, None);
    for _ in 0..MISSED_MOST {
        match schedule.next(at, zone) {
            Some(next) if next <= now => {
                at = next;
                due = Some(next);
            }
            _ => return due,
        }
    }
    // Too many to walk through: what is due now is all that matters.
    let nearly_now = now.checked_sub(jiff::SignedDuration::from_hours(1)).ok()?;
    let next = schedule.next(nearly_now, zone)?;
    if next <= now { Some(next) } else { due }
}

/// How and when a Job ended.
fn ended(job: &Object) -> Option<(String, Option<Timestamp>)> {
    let conditions = job.field("status.conditions")?;
    let ended = conditions
        .as_array()?
        .iter()
        .find(|one| (one["type"] == "Complete" || one["type"] == "Failed") && one["status"] == "True")?;
    let at = job.field("status.completionTime");
    let at = convert::time(at.as_ref()).or_else(|| convert::time(ended.get("lastTransitionTime")));
    Some((ended["type"].as_str()?.to_owned(), at))
}

/// Finished Jobs beyond the history limits go, the oldest first.
fn tidy(world: &World, cron: &Document, done: &[&Arc<Object>], plan: &mut Plan) {
    for (kind, field, usual) in
        [("Complete", "successfulJobsHistoryLimit", 3), ("Failed", "failedJobsHistoryLimit", 1)]
    {
        let limit = cron.get_i64(&format!("spec.{field}")).unwrap_or(usual);
        let mut jobs: Vec<&&Arc<Object>> = done
            .iter()
            .filter(|job| ended(job).is_some_and(|(how, _)| how == kind) && !world.is_deleting(job))
            .collect();
        jobs.sort_by_key(|job| (job.header.created, job.header.name.clone()));
        let surplus = jobs.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        for job in &jobs[..surplus] {
            let mut deletion = convert::deletion(world, res::JOBS, job);
            deletion.propagation = Some("Background");
            plan.push(Action::Delete(deletion));
        }
    }
}

fn reference(job: &Object) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "name": job.header.name,
        "namespace": job.header.namespace, "uid": job.header.uid.to_string(),
        "resourceVersion": job.header.revision.to_string()})
}

fn make_job(world: &World, cron: &Object, document: &Document, name: &str, due: Timestamp) -> Document {
    let template = document.get("spec.jobTemplate").cloned().unwrap_or(json!({}));
    let gvk = &world.catalog().get(res::CRON_JOBS).gvk;
    let mut annotations = template["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.insert("batch.kubernetes.io/cronjob-scheduled-timestamp".to_owned(), json!(rfc3339(due)));
    let value = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name, "namespace": cron.header.namespace, "annotations": annotations,
            "labels": template["metadata"].get("labels").cloned().unwrap_or(json!({})),
            "ownerReferences": [convert::controller_reference(gvk, cron)],
        },
        "spec": template.get("spec").cloned().unwrap_or(json!({})),
    });
    Document::from_value(value).unwrap_or_default()
}
