//! What the types of a ValidatingAdmissionPolicy's objects show to be wrong with it, in its status.

use api_reconcile::{Action, Plan};
use serde_json::json;

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

#[derive(Default)]
pub struct PolicyTypes;

impl Controller for PolicyTypes {
    fn name(&self) -> &'static str {
        "validatingadmissionpolicy-status-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::VALIDATING_POLICIES]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::VALIDATING_POLICIES {
            wake(Key::of(change.of, change.object));
        }
    }
    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(policy) = world.at(key).filter(|policy| !world.is_deleting(policy)) else {
            return Plan::nothing();
        };
        let resource = world.catalog().get(res::VALIDATING_POLICIES);
        let Some(mut document) = convert::document(resource, policy) else { return Plan::nothing() };
        if document.get_i64("status.observedGeneration").unwrap_or(0) >= document.generation() {
            return Plan::nothing();
        }
        let warnings = tenant_admission::policy::expression_warnings(&document);
        document.set("status.observedGeneration", document.generation());
        // There even if empty: that is how a client knows that the check was made.
        document.set("status.typeChecking", json!({}));
        if !warnings.is_empty() {
            document.set("status.typeChecking.expressionWarnings", warnings);
        }
        Plan::of(vec![Action::Update {
            of: resource.gvr.clone(),
            subresource: Some("status"),
            object: document,
        }])
    }
}
