//! What a deployment reports of itself.

use api_machinery::Document;
use base_clock::Timestamp;
use serde_json::{Value, json};

use crate::convert::{condition, seconds_between, set_condition, time};
use crate::workloads::replicas::set_count;

use super::rollout::Limits;
use super::sets::Set;

#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// By the sets' specs.
    wanted: i64,
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
    terminating: i64,
    failure: Option<Value>,
}

impl Counts {
    pub fn of(sets: &[Set], new: Option<&Set>) -> Counts {
        let sum = |of: fn(&Set) -> i64| sets.iter().map(of).sum();
        Counts {
            wanted: sum(|set| set.replicas),
            replicas: sum(|set| set.status_replicas),
            updated: new.map_or(0, |new| new.status_replicas),
            ready: sum(|set| set.ready),
            available: sum(|set| set.available),
            terminating: sum(|set| set.terminating),
            failure: new.and_then(Set::failure).or_else(|| sets.iter().find_map(Set::failure)).cloned(),
        }
    }
}

/// A missing deadline, or the greatest, means none.
pub(super) fn has_deadline(deployment: &Document) -> bool {
    deployment.get_i64("spec.progressDeadlineSeconds").is_some_and(|seconds| seconds != i64::from(i32::MAX))
}

/// Everything is new, and available.
pub(super) fn is_complete(deployment: &Document, counts: &Counts) -> bool {
    let wanted = deployment.get_i64("spec.replicas").unwrap_or(1);
    counts.updated == wanted && counts.replicas == wanted && counts.available == wanted
}

/// The status, and in how many seconds the deadline is to be looked at again.
pub(super) fn report(
    deployment: &Document,
    counts: &Counts,
    new: Option<&str>,
    progress: bool,
    now: Timestamp,
) -> (Value, Option<u64>) {
    let old = deployment.get("status").cloned().unwrap_or(json!({}));
    let mut status = json!({});
    set_count(&mut status, "observedGeneration", deployment.generation(), false);
    set_count(&mut status, "replicas", counts.replicas, false);
    set_count(&mut status, "updatedReplicas", counts.updated, false);
    set_count(&mut status, "readyReplicas", counts.ready, false);
    set_count(&mut status, "availableReplicas", counts.available, false);
    set_count(&mut status, "unavailableReplicas", (counts.wanted - counts.available).max(0), false);
    set_count(&mut status, "terminatingReplicas", counts.terminating, true);
    if let Some(collisions) = old.get("collisionCount").filter(|count| !count.is_null()) {
        status["collisionCount"] = collisions.clone();
    }
    let mut conditions = old["conditions"].as_array().cloned().unwrap_or_default();
    let limits = Limits::of(deployment);
    let (available, reason, message) = if counts.available >= limits.replicas - limits.unavailable {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set_condition(&mut conditions, "Available", available, reason, message, now, true);
    let mut again = None;
    if !has_deadline(deployment) {
        conditions.retain(|condition| condition["type"] != "Progressing");
    } else if progress {
        again = judge_progress(deployment, &old, counts, new, &mut conditions, now);
    }
    match &counts.failure {
        Some(failure) => {
            let text = |field: &str| failure[field].as_str().unwrap_or_default().to_owned();
            let (state, reason, message) = (text("status"), text("reason"), text("message"));
            set_condition(&mut conditions, "ReplicaFailure", &state, &reason, &message, now, true);
        }
        None => conditions.retain(|condition| condition["type"] != "ReplicaFailure"),
    }
    status["conditions"] = Value::Array(conditions);
    (status, again)
}

fn judge_progress(
    deployment: &Document,
    old: &Value,
    counts: &Counts,
    new: Option<&str>,
    conditions: &mut Vec<Value>,
    now: Timestamp,
) -> Option<u64> {
    let deadline = deployment.get_i64("spec.progressDeadlineSeconds").unwrap_or(i64::from(i32::MAX));
    let known = condition(conditions, "Progressing").cloned();
    let reason = known.as_ref().and_then(|known| known["reason"].as_str()).unwrap_or_default().to_owned();
    if counts.replicas == counts.updated && reason == "NewReplicaSetAvailable" {
        return None;
    }
    let who = match new {
        Some(set) => format!("ReplicaSet {set:?}"),
        None => format!("Deployment {:?}", deployment.name()),
    };
    let before = |field: &str| old[field].as_i64().unwrap_or(0);
    let moved = counts.updated > before("updatedReplicas")
        || counts.replicas - counts.updated < before("replicas") - before("updatedReplicas")
        || counts.ready > before("readyReplicas")
        || counts.available > before("availableReplicas");
    let since = known.as_ref().and_then(|known| time(known.get("lastUpdateTime")));
    let late = since.is_some_and(|since| seconds_between(since, now) >= deadline);
    if is_complete(deployment, counts) {
        let message = format!("{who} has successfully progressed.");
        set_condition(conditions, "Progressing", "True", "NewReplicaSetAvailable", &message, now, true);
        return None;
    }
    if moved {
        let message = format!("{who} is progressing.");
        // The deadline starts anew with each step, whether or not the words change.
        let kept =
            known.filter(|known| known["status"] == "True").map(|known| known["lastTransitionTime"].clone());
        conditions.retain(|condition| condition["type"] != "Progressing");
        set_condition(conditions, "Progressing", "True", "ReplicaSetUpdated", &message, now, true);
        if let (Some(kept), Some(last)) = (kept, conditions.last_mut()) {
            last["lastTransitionTime"] = kept;
        }
    } else if reason == "ProgressDeadlineExceeded" || (late && reason != "NewReplicaSetAvailable") {
        let message = format!("{who} has timed out progressing.");
        set_condition(conditions, "Progressing", "False", "ProgressDeadlineExceeded", &message, now, true);
        return None;
    }
    let since = condition(conditions, "Progressing").and_then(|known| time(known.get("lastUpdateTime")))?;
    let left = deadline - seconds_between(since, now) + 1;
    u64::try_from(left.max(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: Value, counts: Counts, at: i64) -> (String, Option<u64>) {
        let value = json!({"metadata": {"name": "d", "generation": 2},
            "spec": {"replicas": 3, "progressDeadlineSeconds": 60, "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}, "status": status});
        let now = Timestamp::from_second(at).unwrap();
        let deployment = Document::from_value(value).unwrap();
        let (status, again) = report(&deployment, &counts, Some("d-1"), true, now);
        let conditions = status["conditions"].as_array().unwrap();
        let text = |kind: &str| {
            let one = condition(conditions, kind);
            one.map(|one| format!("{}/{}", one["status"].as_str().unwrap(), one["reason"].as_str().unwrap()))
        };
        (format!("{} {}", text("Available").unwrap(), text("Progressing").unwrap_or_default()), again)
    }
    fn progressing(at: i64) -> Value {
        let at = base_clock::rfc3339(Timestamp::from_second(at).unwrap());
        json!({"replicas": 3, "updatedReplicas": 1, "conditions": [{"type": "Progressing", "status": "True",
            "reason": "ReplicaSetUpdated", "lastUpdateTime": at, "lastTransitionTime": at}]})
    }

    #[test]
    fn progress_is_made_or_missed() {
        let counts = |replicas: i64, updated: i64, available: i64| Counts {
            wanted: replicas,
            replicas,
            updated,
            ready: available,
            available,
            ..Counts::default()
        };
        let up = "True/MinimumReplicasAvailable";
        let down = "False/MinimumReplicasUnavailable";
        for (status, counts, at, wanted, again) in [
            (progressing(0), counts(3, 3, 3), 5, format!("{up} True/NewReplicaSetAvailable"), None),
            (progressing(0), counts(3, 2, 0), 30, format!("{down} True/ReplicaSetUpdated"), Some(61)),
            (progressing(0), counts(3, 1, 0), 30, format!("{down} True/ReplicaSetUpdated"), Some(31)),
            (progressing(0), counts(3, 1, 0), 61, format!("{down} False/ProgressDeadlineExceeded"), None),
        ] {
            assert_eq!(judged(status, counts, at), (wanted, again), "at {at}");
        }
    }
}
