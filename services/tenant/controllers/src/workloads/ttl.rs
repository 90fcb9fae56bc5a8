//! Removes finished Jobs that ask for it.

use std::time::Duration;

use api_reconcile::{Action, Plan};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::world::World;

#[derive(Default)]
pub struct FinishedJobs;

impl Controller for FinishedJobs {
    fn name(&self) -> &'static str {
        "ttl-after-finished-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::JOBS]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.kind != ChangeKind::Gone {
            wake(Key::of(res::JOBS, change.object));
        }
    }
    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(job) = world.at(key).filter(|job| !world.is_deleting(job)) else { return Plan::nothing() };
        let Some(seconds) = job.field("spec.ttlSecondsAfterFinished").and_then(|seconds| seconds.as_i64())
        else {
            return Plan::nothing();
        };
        let conditions = job.field("status.conditions").unwrap_or_default();
        let mut finished =
            conditions.as_array().into_iter().flatten().filter(|one| {
                (one["type"] == "Complete" || one["type"] == "Failed") && one["status"] == "True"
            });
        let Some(at) = finished.next().and_then(|one| convert::time(one.get("lastTransitionTime"))) else {
            return Plan::nothing();
        };
        let left = seconds - convert::seconds_between(at, now.wall);
        if left > 0 {
            return Plan { actions: Vec::new(), again_after: Some(Duration::from_secs(left.unsigned_abs())) };
        }
        let mut deletion = convert::deletion(world, res::JOBS, job);
        deletion.propagation = Some("Foreground");
        deletion.resource_version = Some(job.header.revision.to_string());
        Plan::of(vec![Action::Delete(deletion)])
    }
}
