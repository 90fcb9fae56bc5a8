//! The deeds about balancers: one Service, or one balancer nobody wants any more, per call.

use std::collections::BTreeMap;
use std::time::Duration;

use api_machinery::Status;
use api_reconcile::{EventText, Regarding};
use cloud_interface::{Balancer, BalancerSpec, BalancerState, ClientToken, SharedCloud, Target};
use serde_json::{Value, json};
use tenant_client::Patch;

use crate::ledger::{Entry, Phase, What};
use crate::model::NodeView;
use crate::pools::CALL_OVER;
use crate::runner::{Outcome, SERVICES, Shared};
use crate::services::{FINALIZER, Need, ServiceView, balancer_status, targets};

/// While a provider takes its time.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Makes a Service's balancer what the Service says, or takes it away.
pub(crate) async fn service(shared: &Shared, key: &str) -> Outcome {
    let (view, draining) = {
        let state = shared.state.lock();
        let Some(view) = state.services.get(key).cloned() else { return Outcome::fine() };
        (view, state.draining)
    };
    if draining {
        return Outcome::fine();
    }
    let mut events = Vec::new();
    let ended = match view.need() {
        Need::Nothing => Ok(None),
        Need::Cleanup => clean_up(shared, &view, &mut events).await,
        Need::Balancer => ensure(shared, &view, &mut events).await,
    };
    let regarding = regarding(&view);
    let (again, failure) = match ended {
        Ok(again) => {
            shared.state.lock().balancer_problems.remove(key);
            (again, None)
        }
        // Somebody changed the Service meanwhile; the watch shows it and wakes us.
        Err(Failure::Stale) => (Some(Duration::from_millis(100)), None),
        Err(Failure::Said(why)) => {
            shared.state.lock().balancer_problems.insert(key.to_owned(), why.clone());
            let text = format!("Error syncing load balancer: {why}");
            events.push(EventText::warning("SyncLoadBalancerFailed", text));
            (None, Some(why))
        }
        Err(Failure::Quiet(why)) => (None, Some(why)),
    };
    let events = events.into_iter().map(|text| (regarding.clone(), text)).collect();
    Outcome { again, events, failure, poke: Vec::new() }
}

enum Failure {
    /// Another write came first.
    Stale,
    /// For the Service's owner to see.
    Said(String),
    /// Ours, not the owner's: the log has it.
    Quiet(String),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        if status.is_conflict() || status.is_not_found() {
            Failure::Stale
        } else {
            Failure::Quiet(status.message)
        }
    }
}
impl From<crate::LedgerError> for Failure {
    fn from(error: crate::LedgerError) -> Failure {
        Failure::Quiet(error.to_string())
    }
}

type Ended = Result<Option<Duration>, Failure>;

async fn ensure(shared: &Shared, view: &ServiceView, events: &mut Vec<EventText>) -> Ended {
    let token = view.token().ok_or_else(|| Failure::Quiet("a uid that is no token".to_owned()))?;
    let entry = shared.state.lock().entries.get(&token).cloned();
    if entry.as_ref().is_some_and(Entry::is_deleting) {
        // It had one until a moment ago, which is on its way out under the same token.
        return Ok(Some(LOOK_AGAIN));
    }
    let wanted = shared.wanted();
    let provider = match &entry {
        Some(entry) => entry.provider.clone(),
        None => shared.providers.choose("", &wanted.provider).map_err(Failure::Said)?.0.clone(),
    };
    let cloud = shared.cloud(&provider).map_err(Failure::Said)?;
    let targets = current_targets(shared);
    let spec = view.spec(shared.cluster, token.clone(), targets).map_err(Failure::Said)?;
    let (applied, known) = {
        let state = shared.state.lock();
        (state.applied.get(&view.key()).cloned(), state.balancers.get(&token).cloned())
    };
    let is_settled = known.as_ref().is_some_and(|one| one.state == BalancerState::Active);
    if applied.as_ref() == Some(&spec) && is_settled {
        // Nothing new about the balancer; the Service may say otherwise.
        if let Some(balancer) = known {
            publish(shared, view, &balancer).await?;
        }
        return Ok(None);
    }
    let only_targets = applied
        .as_ref()
        .is_some_and(|one| BalancerSpec { targets: spec.targets.clone(), ..one.clone() } == spec);
    if !only_targets {
        events.push(EventText::normal("EnsuringLoadBalancer", "Ensuring load balancer"));
    }
    if !view.has_finalizer() {
        // Before anything is made: a Service must not go while its balancer may be there.
        let mut finalizers = view.finalizers.clone();
        finalizers.push(FINALIZER.to_owned());
        patch(shared, view, json!({"finalizers": finalizers}), None).await?;
    }
    let entry = match entry {
        Some(entry) => entry,
        None => {
            let what = What::Balancer { uid: view.uid.clone(), service: view.key() };
            let created_at = shared.now();
            let entry = Entry { token, provider, what, phase: Phase::Intended, created_at };
            shared.put(entry.clone()).await?;
            entry
        }
    };
    if spec.targets.is_empty() {
        let text = "There are no available nodes for LoadBalancer";
        events.push(EventText::warning("UnAvailableLoadBalancer", text));
    }
    let balancer = call(&cloud, &spec)
        .await
        .map_err(|why| Failure::Said(format!("failed to ensure load balancer: {why}")))?;
    if entry.id() != Some(&balancer.id) {
        shared.put(entry.made(&balancer.id, shared.now())).await?;
    }
    {
        let mut state = shared.state.lock();
        state.applied.insert(view.key(), spec);
        state.balancers.insert(balancer.client_token.clone(), balancer.clone());
    }
    if balancer.state != BalancerState::Active {
        // The next round asks again, which also shows when it has come up.
        shared.state.lock().applied.remove(&view.key());
        return Ok(Some(LOOK_AGAIN));
    }
    let fresh = shared.state.lock().services.get(&view.key()).cloned();
    publish(shared, fresh.as_ref().unwrap_or(view), &balancer).await?;
    events.push(match only_targets {
        true => EventText::normal("UpdatedLoadBalancer", "Updated load balancer with new hosts"),
        false => EventText::normal("EnsuredLoadBalancer", "Ensured load balancer"),
    });
    Ok(None)
}

async fn call(cloud: &SharedCloud, spec: &BalancerSpec) -> Result<Balancer, String> {
    let balancer = cloud.ensure_balancer(spec).await.map_err(|error| error.to_string())?;
    match balancer.client_token == spec.client_token && balancer.cluster == spec.cluster {
        true => Ok(balancer),
        false => Err("the provider answered with another balancer".to_owned()),
    }
}

fn current_targets(shared: &Shared) -> Vec<Target> {
    let state = shared.state.lock();
    let leaving =
        |name: &str| state.entries.values().any(|entry| entry.is_deleting() && entry.name() == name);
    let ids: BTreeMap<&str, &str> = state
        .listings
        .values()
        .flat_map(|listing| &listing.machines)
        .map(|machine| (machine.provider_id.as_str(), machine.id.as_str()))
        .collect();
    let machine_of = |node: &NodeView| Some((*ids.get(node.provider_id.as_deref()?)?).to_owned());
    targets(&state.nodes, &leaving, &machine_of)
}

/// Writes the balancer's addresses into the Service's status, unless they are there.
async fn publish(shared: &Shared, view: &ServiceView, balancer: &Balancer) -> Result<(), Failure> {
    let status = balancer_status(balancer);
    let says = |status: &Value| status["ingress"].as_array().cloned().unwrap_or_default();
    if says(&view.balancer_status) == says(&status) {
        return Ok(());
    }
    patch(shared, view, Value::Null, Some(status)).await
}

/// Through the status subresource, as upstream does, which may also change finalizers: a service controller
/// needs no right to the Services themselves.
async fn patch(
    shared: &Shared,
    view: &ServiceView,
    metadata: Value,
    balancer: Option<Value>,
) -> Result<(), Failure> {
    let mut change = json!({"metadata": {"uid": view.uid}});
    if let Value::Object(fields) = metadata {
        for (field, value) in fields {
            change["metadata"][field] = value;
        }
        // A list is replaced whole: it must be the one that was read.
        change["metadata"]["resourceVersion"] = json!(view.revision.to_string());
    }
    if let Some(balancer) = balancer {
        // A merge would keep what the new status lacks.
        let ingress = balancer.get("ingress").cloned().unwrap_or(Value::Null);
        change["status"] = json!({"loadBalancer": {"ingress": ingress}});
    }
    let namespace = Some(view.namespace.as_str());
    let patch = Patch::Merge(change);
    let written = shared.service_api.patch(&SERVICES, Some("status"), namespace, &view.name, patch).await?;
    // Later steps of this round build on what was just written.
    let mut state = shared.state.lock();
    if let Some(known) = state.services.get_mut(&view.key())
        && known.uid == view.uid
        && known.revision < written.header.revision
    {
        *known = ServiceView::of(&written);
    }
    Ok(())
}

/// Takes the balancer away, then the finalizer, so that the Service may go or be something else.
async fn clean_up(shared: &Shared, view: &ServiceView, events: &mut Vec<EventText>) -> Ended {
    let token = view.token().ok_or_else(|| Failure::Quiet("a uid that is no token".to_owned()))?;
    let entry = shared.state.lock().entries.get(&token).cloned();
    if let Some(entry) = entry {
        if !entry.is_deleting() {
            events.push(EventText::normal("DeletingLoadBalancer", "Deleting load balancer"));
        }
        let gone = remove(shared, &entry)
            .await
            .map_err(|why| Failure::Said(format!("failed to delete load balancer: {why}")))?;
        if !gone {
            return Ok(Some(LOOK_AGAIN));
        }
        events.push(EventText::normal("DeletedLoadBalancer", "Deleted load balancer"));
    }
    shared.state.lock().applied.remove(&view.key());
    let finalizers: Vec<&String> = view.finalizers.iter().filter(|one| *one != FINALIZER).collect();
    patch(shared, view, json!({"finalizers": finalizers}), Some(json!({}))).await?;
    Ok(None)
}

/// A balancer without a Service that wants it.
pub(crate) async fn stray(shared: &Shared, token: &ClientToken) -> Outcome {
    let (entry, is_wanted) = {
        let state = shared.state.lock();
        let Some(entry) = state.entries.get(token).cloned() else { return Outcome::fine() };
        let wanted = state.services.values().any(|view| view.token().as_ref() == Some(token));
        (entry, wanted && !state.draining)
    };
    if is_wanted {
        return Outcome::fine();
    }
    match remove(shared, &entry).await {
        Ok(true) => Outcome::fine(),
        Ok(false) => Outcome::again(LOOK_AGAIN),
        Err(why) => Outcome::failed(why),
    }
}

/// One step towards nothing; true when the books are closed.
async fn remove(shared: &Shared, entry: &Entry) -> Result<bool, String> {
    let cloud = shared.cloud(&entry.provider)?;
    let mut leaving = entry.leaving(shared.now());
    if !entry.is_deleting() {
        shared.put(leaving.clone()).await.map_err(|error| error.to_string())?;
    }
    let find = async || {
        let at = shared.now();
        let listed = cloud.list_balancers(shared.cluster).await.map_err(|error| error.to_string())?;
        Ok::<_, String>((at, listed.into_iter().find(|one| one.client_token == entry.token)))
    };
    let (mut at, mut found) = find().await?;
    if let Some(balancer) = &found {
        if leaving.id().is_none() {
            // It was made after all: from here on its absence proves that it is gone.
            leaving = leaving.leaving_as(&balancer.id);
            shared.put(leaving.clone()).await.map_err(|error| error.to_string())?;
        }
        if balancer.state != BalancerState::Deleting {
            cloud.delete_balancer(shared.cluster, &balancer.id).await.map_err(|error| error.to_string())?;
        }
        (at, found) = find().await?;
    }
    let settled = match &leaving.phase {
        Phase::Deleting { id: None, since } => *since + CALL_OVER,
        Phase::Deleting { since, .. } => *since,
        Phase::Intended | Phase::Made { .. } => return Ok(false),
    };
    if found.is_some() || at < settled {
        return Ok(false);
    }
    shared.close(&leaving).await.map_err(|error| error.to_string())?;
    Ok(true)
}

fn regarding(view: &ServiceView) -> Regarding {
    Regarding {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        namespace: Some(view.namespace.clone()),
        name: view.name.clone(),
        uid: view.uid.clone(),
        resource_version: view.revision.to_string(),
    }
}
