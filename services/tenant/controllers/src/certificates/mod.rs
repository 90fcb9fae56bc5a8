//! CertificateSigningRequests: approves those of nodes, has approved ones signed, removes old ones.
//!
//! What may be had without asking a person is said in `policy` and nowhere else: a node its own client
//! certificate, first with a bootstrap token and later with the last certificate, and a serving certificate
//! for the names and addresses its Node object has. Who may have a client certificate is for RBAC to say, as
//! upstream: it is asked by a SubjectAccessReview on `nodeclient` and `selfnodeclient`.

mod policy;

use std::collections::HashMap;
use std::time::Duration;

use api_machinery::{Document, Gvr};
use api_reconcile::{Action, Plan, Subject};
use base_clock::{Timestamp, rfc3339};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, News, Now};
use crate::convert;
use crate::world::World;

use policy::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, Opinion, Right};

#[derive(Default)]
pub struct Certificates {
    unsignable: HashMap<Key, String>,
    /// What reviews answered since the request was last looked at: allowed or not, by subresource. Used once,
    /// since a binding made tomorrow changes the answer.
    reviewed: HashMap<Key, Vec<(&'static str, bool)>>,
}

/// How long finished requests stay to be looked at, and unanswered ones to be answered; as upstream.
const KEEP_DONE: Duration = Duration::from_secs(3600);
/// A request that nobody grants is asked about again this often: its binding may come later.
const REVIEW_AGAIN: Duration = Duration::from_secs(30);
const KEEP_PENDING: Duration = Duration::from_secs(24 * 3600);

impl Controller for Certificates {
    fn name(&self) -> &'static str {
        "certificate-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::SIGNING_REQUESTS, res::NODES]
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::SIGNING_REQUESTS {
            wake(Key::of(res::SIGNING_REQUESTS, change.object));
            return;
        }
        // A serving certificate waits for its node to have said what it is called.
        let addresses = |node: &api_machinery::Object| node.field("status.addresses");
        let news = change.old.is_none_or(|old| addresses(old) != addresses(change.object));
        if news && change.kind != ChangeKind::Gone {
            for request in world.all(res::SIGNING_REQUESTS) {
                wake(Key::of(res::SIGNING_REQUESTS, request));
            }
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else {
            self.unsignable.remove(key);
            self.reviewed.remove(key);
            return Plan::nothing();
        };
        let resource = world.catalog().get(res::SIGNING_REQUESTS);
        let Some(document) = convert::document(resource, object) else { return Plan::nothing() };
        let conditions = document.get_array("status.conditions").to_vec();
        let has = |kind: &str| convert::condition(&conditions, kind).is_some();
        let done = has("Denied")
            || has("Failed")
            || document.get_str("status.certificate").is_some_and(|c| !c.is_empty());
        let since = conditions.iter().filter_map(|one| convert::time(one.get("lastUpdateTime"))).max();
        let since = since.unwrap_or(object.header.created);
        let keep = if done || has("Approved") { KEEP_DONE } else { KEEP_PENDING };
        let age = u64::try_from(convert::seconds_between(since, now.wall)).unwrap_or(0);
        if age >= keep.as_secs() {
            return Plan::of(vec![Action::Delete(convert::deletion(world, res::SIGNING_REQUESTS, object))]);
        }
        let mut plan = Plan::nothing();
        plan.again(keep.saturating_sub(Duration::from_secs(age)));
        if done {
            return plan;
        }
        let update = |subresource: &'static str, document: Document| Action::Update {
            of: resource.gvr.clone(),
            subresource: Some(subresource),
            object: document,
        };
        if !has("Approved") {
            let node =
                |name: &str| world.get(res::NODES, "", name).and_then(|node| node.field("status.addresses"));
            let granted = match policy::judge(&document, node) {
                Opinion::None => None,
                Opinion::Approve(message) => Some(message),
                Opinion::Ask(rights) => match self.reviewed.remove(key) {
                    None => {
                        plan.actions.extend(rights.iter().map(|right| review(&document, right.subresource)));
                        return plan;
                    }
                    Some(answers) => {
                        plan.again(REVIEW_AGAIN);
                        let allowed = |right: &&Right| answers.contains(&(right.subresource, true));
                        rights.iter().find(allowed).map(|right| right.message)
                    }
                },
            };
            if let Some(message) = granted {
                plan.push(update(
                    "approval",
                    with_condition(document, "Approved", "AutoApproved", message, now.wall),
                ));
            }
            return plan;
        }
        let signer = document.get_str("spec.signerName").unwrap_or_default();
        let Some(profile) =
            [KUBELET_CLIENT, KUBELET_SERVING, CLIENT, LEGACY].into_iter().find(|one| *one == signer)
        else {
            return plan;
        };
        let refused = self.unsignable.get(key).cloned().or_else(|| policy::unfit(&document));
        plan.push(match refused {
            Some(message) => update(
                "status",
                with_condition(document, "Failed", "SignerValidationFailure", &message, now.wall),
            ),
            None => Action::Sign { object: document, profile },
        });
        plan
    }

    fn learn(&mut self, key: &Key, news: &News) {
        match news {
            News::SignFailed { message } => drop(self.unsignable.insert(key.clone(), message.clone())),
            News::Reviewed { subresource, allowed } => {
                self.reviewed.entry(key.clone()).or_default().push((subresource, *allowed));
            }
            News::Verified { .. } | News::Purged { .. } | News::Counted { .. } => {}
        }
    }
}

/// Asks whether the one who asks for the certificate may `create` the subresource.
fn review(request: &Document, subresource: &'static str) -> Action {
    let text = |path: &str| request.get_str(path).unwrap_or_default().to_owned();
    let groups = request.get_array("spec.groups").iter().filter_map(Value::as_str).map(str::to_owned);
    Action::Review {
        user: Subject {
            name: text("spec.username"),
            uid: text("spec.uid"),
            groups: groups.collect(),
            extra: request.get("spec.extra").cloned().unwrap_or_default(),
        },
        of: Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests"),
        verb: "create",
        subresource,
    }
}

fn with_condition(
    mut document: Document,
    kind: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Document {
    let mut conditions = document.get_array("status.conditions").to_vec();
    conditions.push(json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": rfc3339(now), "lastTransitionTime": rfc3339(now),
    }));
    document.set("status.conditions", Value::Array(conditions));
    document
}
