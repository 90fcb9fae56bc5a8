//! The deeds about machines: one step of one machine per call.

use std::time::Duration;

use api_machinery::{Document, FieldSelector, Gvr, Object, Status};
use api_reconcile::Backoff;
use base_ids::NodePoolId;
use cloud_interface::{ClientToken, CloudError, Join, Machine, MachineSpec, SharedCloud};
use rand::Rng;
use serde_json::json;
use tenant_client::{CreateOptions, DeleteOptions, ListOptions, Patch, SharedApi};

use crate::ledger::{Entry, LedgerError, Phase, What};
use crate::model::{NodeView, Pool};
use crate::pools::{self, Action, Farewell, Next, TAG_CLUSTER, TAG_POOL};
use crate::runner::{Key, NODES, Outcome, Shared};

const PODS: Gvr = Gvr::core("pods");

/// Before a pool whose machines fail begins another.
const HOLD: Backoff = Backoff { first: Duration::from_secs(5), most: Duration::from_secs(300) };

/// A token is used for attempts that follow one another; it lives an hour.
const JOIN_FRESH: Duration = Duration::from_secs(20 * 60);

/// Between looks at whether a node's pods have left.
const DRAIN_ROUND: Duration = Duration::from_secs(1);

/// Decides about all pools and puts it on the books.
pub(crate) async fn pools(shared: &Shared) -> Outcome {
    let actions = shared.seen(|seen, _| pools::plan(seen));
    let mut outcome = Outcome::fine();
    for action in actions {
        match act(shared, action).await {
            Ok(poke) => outcome.poke.extend(poke),
            Err(error) => return Outcome { poke: outcome.poke, ..Outcome::failed(error) },
        }
    }
    // A held pool is looked at when its time has come.
    let now = shared.clock.monotonic();
    let waits = shared.state.lock().held.values().map(|(until, _)| *until).filter(|at| *at > now).min();
    outcome.again = waits.map(|until| until - now);
    outcome
}

async fn act(shared: &Shared, action: Action) -> Result<Vec<Key>, String> {
    let said = |error: LedgerError| error.to_string();
    match action {
        Action::Begin { pool } => {
            let wanted = shared.wanted();
            let Some(pool) = wanted.pools.iter().find(|one| one.id == pool) else { return Ok(Vec::new()) };
            let (provider, _) = shared.providers.choose(&pool.provider, &wanted.provider)?;
            let entry = Entry {
                token: random(24).parse().map_err(|error: CloudError| error.to_string())?,
                provider: provider.clone(),
                what: What::Machine {
                    pool: pool.id,
                    name: format!("{}-{}", pool.name, random(5)),
                    machine_type: pool.machine_type.clone(),
                },
                phase: Phase::Intended,
                created_at: shared.now(),
            };
            let keys = vec![Key::Machine(entry.token.clone()), Key::Provider(provider.clone())];
            shared.put(entry).await.map_err(said)?;
            Ok(keys)
        }
        Action::Leave { token, failed } => {
            let entry = shared.state.lock().entries.get(&token).cloned();
            let Some(entry) = entry else { return Ok(Vec::new()) };
            if let (Some(why), What::Machine { pool, name, .. }) = (failed, &entry.what) {
                hold(shared, *pool, format!("machine {name}: {why}"), false);
            }
            let keys = vec![Key::Machine(token), Key::Provider(entry.provider.clone())];
            shared.put(entry.leaving(shared.now())).await.map_err(said)?;
            Ok(keys)
        }
        Action::Adopt { machine, provider, keep } => {
            let Machine { id, client_token, name, machine_type, created_at, .. } = *machine;
            let entry = Entry {
                token: client_token.clone(),
                provider,
                what: What::Machine {
                    // One that belongs nowhere is on the books only to be deleted.
                    pool: keep.unwrap_or(NodePoolId::generate()),
                    name,
                    machine_type,
                },
                phase: Phase::Made { id, at: created_at },
                created_at,
            };
            tracing::warn!(
                tenant = %shared.cluster, token = %client_token, kept = keep.is_some(),
                "a machine that is not in the ledger"
            );
            let entry = if keep.is_some() { entry } else { entry.leaving(shared.now()) };
            shared.put(entry).await.map_err(said)?;
            Ok(vec![Key::Machine(client_token)])
        }
        Action::DeleteNode { name } => {
            delete_node(&shared.api, &name).await.map_err(|status| status.message)?;
            Ok(Vec::new())
        }
    }
}

/// The pool begins no machine for a while, longer each time.
fn hold(shared: &Shared, pool: NodePoolId, why: String, refused: bool) {
    let now = shared.clock.monotonic();
    let mut state = shared.state.lock();
    let failures = state.held.get(&pool).map_or(0, |(_, failures)| *failures) + 1;
    state.held.insert(pool, (now + HOLD.after(failures), failures));
    state.problems.insert(pool, (why, refused));
}

/// One step of one machine.
pub(crate) async fn machine(shared: &Shared, token: &ClientToken) -> Outcome {
    let next = shared.seen(|seen, state| {
        let entry = state.entries.get(token)?.clone();
        let next = pools::next(seen, &entry, state.farewells.get(token).copied().unwrap_or_default());
        Some((entry, next))
    });
    let Some((entry, next)) = next else { return Outcome::fine() };
    let itself = || Outcome::poke(Key::Machine(token.clone()));
    let look = || Outcome::poke(Key::Provider(entry.provider.clone()));
    let api = &shared.api;
    let name = entry.name();
    let outcome = match next {
        Next::Create => return create(shared, &entry).await,
        Next::Rest => {
            settle(shared, &entry);
            return arrive(shared, &entry).await;
        }
        Next::Wait => Ok(Outcome::fine()),
        Next::Mark { change, uid } => {
            let mut change = change;
            // Another machine's Node of the same name must not be marked as this one.
            change["metadata"]["uid"] = json!(uid);
            api.patch(&NODES, None, None, name, Patch::Merge(change)).await.map(|node| {
                wrote(shared, &node);
                itself()
            })
        }
        Next::Cordon => {
            let change = Patch::Merge(json!({"spec": {"unschedulable": true}}));
            api.patch(&NODES, None, None, name, change).await.map(|node| {
                wrote(shared, &node);
                itself()
            })
        }
        Next::Drain => drain(api, name).await.map(|found| {
            let mut state = shared.state.lock();
            match found.stays {
                Some(why) => drop(state.stays.insert(token.clone(), why)),
                None => drop(state.stays.remove(token)),
            }
            if found.left > 0 {
                return Outcome::again(DRAIN_ROUND);
            }
            state.farewells.insert(token.clone(), Farewell::Drained);
            itself()
        }),
        Next::DeleteNode => delete_node(api, name).await.map(|()| {
            // The watch will say so as well; the next step need not wait for it.
            let mut state = shared.state.lock();
            state.nodes.remove(name);
            state.farewells.insert(token.clone(), Farewell::NodeDeleted);
            itself()
        }),
        Next::Delete { id } => match shared.cloud(&entry.provider) {
            Err(why) => return Outcome::failed(why),
            Ok(cloud) if entry.id().is_none() => {
                // It was made after all: from here on its absence proves that it is gone.
                drop(cloud);
                return match shared.put(entry.leaving_as(&id)).await {
                    Ok(()) => itself(),
                    Err(error) => error.into(),
                };
            }
            Ok(cloud) => match cloud.delete_machine(shared.cluster, &id).await {
                Ok(()) => Ok(look()),
                Err(error) => return Outcome::failed(error),
            },
        },
        Next::Close => {
            // Whoever kept what the machine was told must not join with it.
            if let Err(why) = shared.joining.withdraw(name).await {
                return Outcome::failed(why);
            }
            match shared.close(&entry).await {
                Ok(()) => Ok(Outcome::poke(Key::Pools)),
                Err(error) => return error.into(),
            }
        }
    };
    match outcome {
        Ok(outcome) => outcome,
        // Gone meanwhile: the watch says so and wakes us.
        Err(status) if status.is_not_found() => Outcome::again(DRAIN_ROUND),
        Err(status) => Outcome::failed(status.message),
    }
}

/// What was just written is seen at once: the next step need not wait for the watch, nor repeat this one.
fn wrote(shared: &Shared, node: &Object) {
    let view = NodeView::of(node);
    shared.state.lock().nodes.insert(view.name.clone(), view);
}

/// The machine is a Ready node: whatever was wrong with its pool is over, once nothing else of it is.
fn settle(shared: &Shared, entry: &Entry) {
    let What::Machine { pool, .. } = &entry.what else { return };
    let mut state = shared.state.lock();
    state.joins.remove(&entry.token);
    let now = shared.clock.monotonic();
    if state.held.get(pool).is_none_or(|(until, _)| *until <= now) {
        state.held.remove(pool);
        state.problems.remove(pool);
    }
}

/// A machine that has joined needs no token any more. Once in a leadership: it may be another's that joined.
async fn arrive(shared: &Shared, entry: &Entry) -> Outcome {
    if shared.state.lock().arrived.contains(&entry.token) {
        return Outcome::fine();
    }
    match shared.joining.withdraw(entry.name()).await {
        Ok(()) => {
            shared.state.lock().arrived.insert(entry.token.clone());
            Outcome::fine()
        }
        Err(why) => Outcome::failed(why),
    }
}

async fn create(shared: &Shared, entry: &Entry) -> Outcome {
    let What::Machine { pool: id, name, machine_type } = &entry.what else { return Outcome::fine() };
    let wanted = shared.wanted();
    // The pool was deleted meanwhile: the next plan says what happens.
    let Some(pool) = wanted.pools.iter().find(|one| one.id == *id) else { return Outcome::poke(Key::Pools) };
    let cloud = match shared.cloud(&entry.provider) {
        Ok(cloud) => cloud,
        Err(why) => return pool_problem(shared, pool.id, why),
    };
    let join = match join(shared, entry, pool).await {
        Ok(join) => join,
        Err(why) => return pool_problem(shared, pool.id, why),
    };
    let spec = MachineSpec {
        cluster: shared.cluster,
        client_token: entry.token.clone(),
        name: name.clone(),
        machine_type: machine_type.clone(),
        join,
        // Its name is no tag of ours: each cloud has its own place for that.
        tags: [
            (TAG_CLUSTER.to_owned(), shared.cluster.to_string()),
            (TAG_POOL.to_owned(), pool.id.to_string()),
        ]
        .into(),
    };
    match ask(&cloud, &spec).await {
        Ok(machine) => {
            let made = entry.made(&machine.id, shared.now());
            if let Err(error) = shared.put(made).await {
                return error.into();
            }
            let mut state = shared.state.lock();
            // What made the pool wait stays said until the wait is over: it may happen again.
            if !state.held.contains_key(&pool.id) {
                state.problems.remove(&pool.id);
            }
            if let Some(listing) = state.listings.get_mut(&entry.provider) {
                listing.machines.retain(|one| one.client_token != machine.client_token);
                listing.machines.push(machine);
            }
            Outcome::poke(Key::Provider(entry.provider.clone()))
        }
        Err(error) if !error.may_pass() => {
            // Certainly not made. Its token has served: the next attempt is a new machine.
            let refused = !matches!(error, CloudError::TokenUsed(_));
            hold(shared, pool.id, error.to_string(), refused);
            // It ends by itself within the hour, should this fail.
            if let Err(why) = shared.joining.withdraw(name).await {
                tracing::warn!(tenant = %shared.cluster, machine = %name, why, "a join token was left behind");
            }
            match shared.strike(&entry.token).await {
                Ok(()) => Outcome::poke(Key::Pools),
                Err(error) => error.into(),
            }
        }
        Err(error) => pool_problem(shared, pool.id, error.to_string()),
    }
}

async fn ask(cloud: &SharedCloud, spec: &MachineSpec) -> Result<Machine, CloudError> {
    let machine = cloud.create_machine(spec).await?;
    // A provider that answers with another machine is broken; what it did is found by its list.
    match machine.client_token == spec.client_token && machine.cluster == spec.cluster {
        true => Ok(machine),
        false => Err(CloudError::Unavailable("it answered with another machine".to_owned())),
    }
}

fn pool_problem(shared: &Shared, pool: NodePoolId, why: String) -> Outcome {
    shared.state.lock().problems.insert(pool, (why.clone(), false));
    Outcome::failed(why)
}

/// Parameters to join with; attempts for one machine share a token.
async fn join(shared: &Shared, entry: &Entry, pool: &Pool) -> Result<Join, String> {
    let now = shared.clock.monotonic();
    let known = shared.state.lock().joins.get(&entry.token).cloned();
    if let Some((join, since)) = known
        && now < since + JOIN_FRESH
    {
        return Ok(join);
    }
    let description = format!("node pool {}, machine {}", pool.name, entry.name());
    let mut join = shared.joining.join(entry.name(), &description).await?;
    join.labels = pool.labels.clone();
    join.taints = pool.taints.clone();
    shared.state.lock().joins.insert(entry.token.clone(), (join.clone(), now));
    Ok(join)
}

/// How far a node's pods have left it.
struct Draining {
    /// How many are still there.
    left: usize,
    /// Which one does not leave, and why: a disruption budget keeps it.
    stays: Option<String>,
}

/// Asks every pod that would be missed to leave the node.
async fn drain(api: &SharedApi, node: &str) -> Result<Draining, Status> {
    let fields = FieldSelector::parse(&format!("spec.nodeName={node}"))
        .map_err(|_| Status::internal("a node's name is no field selector"))?;
    let pods = api.list(&PODS, ListOptions { fields, ..ListOptions::default() }).await?.items;
    let mut found = Draining { left: 0, stays: None };
    for pod in pods.iter().filter(|pod| is_missed(pod)) {
        found.left += 1;
        if pod.header.deleting_since.is_some() {
            continue;
        }
        let (namespace, name) = (pod.header.namespace.as_deref().unwrap_or_default(), &*pod.header.name);
        let eviction = Document::from_value(json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }))
        .unwrap_or_default();
        let options = CreateOptions {
            namespace: Some(namespace.to_owned()),
            subresource: Some((name.to_owned(), "eviction")),
        };
        match api.create(&PODS, eviction, options).await {
            Ok(_) => {}
            Err(status) if status.is_not_found() => found.left -= 1,
            // A disruption budget says: not now. Asked again until the node's time is up.
            Err(status) if status.code == 429 => {
                let causes = status.details.as_ref().map(|details| details.causes.as_slice());
                let why = causes.and_then(<[_]>::first).map_or(&*status.message, |cause| &*cause.message);
                found.stays.get_or_insert_with(|| format!("pod {namespace}/{name} stays: {why}"));
            }
            Err(status) => {
                tracing::debug!(node, pod = name, %status, "not evicted yet");
            }
        }
    }
    Ok(found)
}

/// Pods of DaemonSets stay with their node, static pods are its own, finished ones miss nothing: as
/// `kubectl drain --ignore-daemonsets` has it.
fn is_missed(pod: &Object) -> bool {
    let of_daemon_set = pod.controller().is_some_and(|owner| owner.kind == "DaemonSet");
    let annotations = pod.field("metadata.annotations").unwrap_or_default();
    let phase = pod.field("status.phase").unwrap_or_default();
    !of_daemon_set
        && annotations["kubernetes.io/config.mirror"].is_null()
        && phase != "Succeeded"
        && phase != "Failed"
}

async fn delete_node(api: &SharedApi, name: &str) -> Result<(), Status> {
    match api.delete(&NODES, None, name, DeleteOptions::default()).await {
        Err(status) if !status.is_not_found() => Err(status),
        _ => Ok(()),
    }
}

/// Letters and digits that start with a letter: fit for tokens and for the end of a DNS label.
fn random(length: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz";
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..length)
        .map(|at| {
            let from = if at == 0 { LETTERS } else { ALPHABET };
            char::from(from[random.random_range(0..from.len())])
        })
        .collect()
}
