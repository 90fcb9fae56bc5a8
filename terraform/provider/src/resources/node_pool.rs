//! `roadstead_node_pool`: like machines that a cluster's controllers make and remove.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use base_ids::{NodePoolId, Slug};
use fleet_client::{Client, ClientError};
use fleet_model::{
    ClusterRef, CreateNodePool, NodePool, NodePoolRef, NodePoolState, Taint, TaintEffect, UpdateNodePool,
    check_taints,
};

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, Failed, Looked, Resource, client_refused, create_when_free};
use crate::resources::cluster::{finished, labels_change, labels_of, name_of};
use crate::resources::{checks, timeouts};
use crate::schema::{Attribute, Schema};
use crate::value::{Object, Value};

const TYPE: &str = "roadstead_node_pool";

/// A provider that fails for so long will not recover by being waited for.
const FAILED_FOR: Duration = Duration::from_secs(60);

pub struct NodePools;

#[async_trait]
impl Resource for NodePools {
    fn type_name(&self) -> &'static str {
        TYPE
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20 * 60)
    }

    fn schema(&self) -> Schema {
        let taint = vec![
            Attribute::text("key", "In Kubernetes' syntax.").required(),
            Attribute::text("value", "May be left out."),
            Attribute::text("effect", "`NoSchedule`, `PreferNoSchedule` or `NoExecute`.").required(),
        ];
        Schema {
            description: "Machines of one kind that join a cluster. Import it by `ORGANIZATION/CLUSTER/POOL`.",
            attributes: vec![
                Attribute::text("name", "Unique in the cluster; may be changed in place.")
                    .required()
                    .checked(checks::name),
                Attribute::text("cluster", "Id of the cluster (or its name). Another cluster replaces it.")
                    .required()
                    .replaces()
                    .same_as(&["cluster_id", "cluster_name"])
                    .checked(checks::reference),
                Attribute::text("organization", "The cluster's; the provider's own unless it is set.")
                    .chosen()
                    .replaces()
                    .checked(checks::name),
                Attribute::number("size", "Machines wanted, 0 to 1000; changed in place.")
                    .required()
                    .checked(checks::size),
                Attribute::text("machine_type", "The cloud provider's default unless it is set.")
                    .chosen()
                    .replaces(),
                Attribute::text(
                    "cloud_provider",
                    "Who makes the machines; the cluster's own unless it is set.",
                )
                .chosen()
                .replaces(),
                Attribute::text_map("labels", "Of its nodes; changed in place.").checked(checks::labels),
                Attribute::set("taints", "Of its nodes. A change replaces it.", taint)
                    .replaces()
                    .checked(check_all_taints),
                Attribute::bool("wait_for_ready", "Whether to wait until all of its nodes are Ready.")
                    .default(true),
                Attribute::text("id", "What it is called whatever its name.").computed(),
                Attribute::text("cluster_id", "Id of its cluster.").computed(),
                Attribute::text("cluster_name", "Name of its cluster.").reported(),
                Attribute::text("created_at", "RFC 3339.").computed(),
                Attribute::text("state", "`provisioning`, `ready`, `resizing` or `failed`.").reported(),
                Attribute::number("ready", "Nodes that are Ready.").reported(),
                timeouts::attribute(),
            ],
        }
    }

    async fn create(&self, call: &Call, planned: &Object) -> Result<Object, Failed> {
        let org = call.organization(planned)?;
        let given = cluster_of(planned)?;
        let request = request(planned)?;
        let what = format!("create the node pool {} of {given}", request.name);
        // Before anything is made: a pool whose state lacks the cluster's id is lost when the cluster is renamed.
        let found = call.client().cluster(&org, given).await;
        let id = found.map_err(|error| client_refused(&what, &error).at("cluster"))?.id;
        let cluster = ClusterRef::Id(id);
        let create = |call: Call| {
            let (org, cluster, request) = (org.clone(), cluster.clone(), request.clone());
            async move {
                let place = format!("{org}/{cluster}");
                let at = (org, cluster);
                call.create_once(
                    TYPE,
                    &place,
                    &request,
                    |client| {
                        let ((org, cluster), request) = (at.clone(), request.clone());
                        async move { client.create_node_pool(&org, cluster, &request).await }
                    },
                    |client, id| {
                        let (org, cluster) = at.clone();
                        async move { Ok(pool_of(&client, &org, &cluster, &id).await?.is_some()) }
                    },
                    |pool: &NodePool| pool.id.to_string(),
                )
                .await
            }
        };
        let is_leaving = |client: Client| {
            let (org, cluster, name) = (org.clone(), cluster.clone(), request.name.clone());
            async move {
                let found = pool_of(&client, &org, &cluster, name.as_str()).await?;
                Ok(found.is_some_and(|pool| pool.state == NodePoolState::Deleting))
            }
        };
        let made = create_when_free(call, create, is_leaving).await.map_err(|error| error.told(&what))?;
        let mut begun = state_of(&made, planned);
        begun.set("organization", org.as_str());
        begun.set("cluster_id", id.to_string());
        match settled(call, &org, &begun, made).await {
            Ok(pool) => Ok(state_of(&pool, &begun)),
            Err(why) => Err(why.leaving(begun)),
        }
    }

    async fn read(&self, call: &Call, state: &Object) -> Result<Option<Object>, Diagnostic> {
        let org = call.organization(state)?;
        let cluster = cluster_of(state)?;
        let Some(reference) = state.text("id").or_else(|| state.text("name")) else { return Ok(None) };
        let found = pool_of(call.client(), &org, &cluster, reference)
            .await
            .map_err(|error| client_refused(&format!("read the node pool {reference}"), &error))?;
        Ok(found.filter(|one| one.state != NodePoolState::Deleting).map(|pool| state_of(&pool, state)))
    }

    async fn update(&self, call: &Call, state: &Object, planned: &Object) -> Result<Object, Failed> {
        let org = call.organization(state)?;
        let (cluster, id) = (cluster_of(state)?, id_of(state)?);
        let change = change(state, planned)?;
        let doing = format!("change the node pool {}", state.text("name").unwrap_or_default());
        let changed = if change == UpdateNodePool::default() {
            call.client().node_pool(&org, cluster, id).await
        } else {
            call.client().update_node_pool(&org, cluster, id, &change).await
        };
        let pool = changed.map_err(|error| client_refused(&doing, &error))?;
        let mut begun = state_of(&pool, planned);
        begun.set("organization", org.as_str());
        begun.set("cluster_id", state.get("cluster_id").clone());
        match settled(call, &org, &begun, pool).await {
            Ok(pool) => Ok(state_of(&pool, &begun)),
            // The new size is wanted and known to the manager; only the waiting failed.
            Err(why) => Err(why.leaving(begun)),
        }
    }

    async fn delete(&self, call: &Call, state: &Object) -> Result<(), Diagnostic> {
        let org = call.organization(state)?;
        let (cluster, id) = (cluster_of(state)?, id_of(state)?);
        let doing = format!("delete the node pool {}", state.text("name").unwrap_or_default());
        let operation = match call.client().delete_node_pool(&org, cluster, id).await {
            Ok(operation) => operation,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(client_refused(&doing, &error)),
        };
        finished(call, &org, operation.id).await.map_err(|why| why.told(&doing))
    }

    async fn import(&self, call: &Call, id: &str) -> Result<Object, Diagnostic> {
        let form = || {
            Diagnostic::error(
                "Cannot import a node pool by this",
                format!("{id:?} is not ORGANIZATION/CLUSTER/POOL, the last two names or ids."),
            )
        };
        let parts: Vec<&str> = id.split('/').collect();
        let [org, cluster, pool] = parts[..] else { return Err(form()) };
        let org: Slug = org.parse().map_err(|_| form())?;
        let cluster: ClusterRef = cluster.parse().map_err(|_| form())?;
        let pool: NodePoolRef = pool.parse().map_err(|_| form())?;
        let failed = |error: ClientError| client_refused(&format!("import the node pool {id}"), &error);
        let found = call.client().cluster(&org, cluster).await.map_err(failed)?;
        let pool = call.client().node_pool(&org, found.id, pool).await.map_err(failed)?;
        // A configuration that follows the documentation names the cluster by its id.
        let before = Object::default()
            .with("cluster", found.id.to_string())
            .with("cluster_id", found.id.to_string())
            .with("organization", org.as_str());
        Ok(state_of(&pool, &before))
    }
}

/// The pool of this name or id; `None` if there is none, or no such cluster.
async fn pool_of(
    client: &Client,
    org: &Slug,
    cluster: &ClusterRef,
    reference: &str,
) -> Result<Option<NodePool>, ClientError> {
    let Ok(reference) = reference.parse::<NodePoolRef>() else { return Ok(None) };
    match client.node_pool(org, cluster, reference).await {
        Ok(pool) => Ok(Some(pool)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until all of its nodes are Ready, if that is wanted.
async fn settled(call: &Call, org: &Slug, state: &Object, pool: NodePool) -> Result<NodePool, Diagnostic> {
    if state.bool("wait_for_ready") == Some(false) {
        return Ok(pool);
    }
    let cluster = cluster_of(state)?;
    let failing: std::sync::Mutex<Option<Instant>> = std::sync::Mutex::default();
    let looked = call.wait_for(|| async {
        let found = call.client().node_pool(org, &cluster, pool.id).await?;
        let mut failing = failing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let since = match found.state {
            NodePoolState::Failed => *failing.get_or_insert_with(Instant::now),
            _ => {
                *failing = None;
                Instant::now()
            }
        };
        Ok(look(found, since.elapsed()))
    });
    looked.await.map_err(|why| why.told("have the node pool's nodes Ready"))
}

fn look(pool: NodePool, failing_for: Duration) -> Looked<NodePool> {
    let message = pool.message.clone().unwrap_or_default();
    let progress = format!("{} of {} nodes are Ready {message}", pool.ready, pool.size).trim_end().to_owned();
    match pool.state {
        NodePoolState::Ready => Looked::Done(pool),
        NodePoolState::Deleting => Looked::Failed("it is being deleted".to_owned()),
        NodePoolState::Failed if failing_for >= FAILED_FOR => Looked::Failed(progress),
        NodePoolState::Failed | NodePoolState::Provisioning | NodePoolState::Resizing => {
            Looked::NotYet(progress)
        }
    }
}

fn check_all_taints(value: &Value) -> Result<(), String> {
    taints(&Object::default().with("taints", value.clone())).map(drop)
}

fn taints(object: &Object) -> Result<Vec<Taint>, String> {
    let taint = |one: &Object| {
        let effect = one.text("effect").unwrap_or_default();
        Ok(Taint {
            key: one.text("key").unwrap_or_default().to_owned(),
            value: one.text("value").unwrap_or_default().to_owned(),
            effect: TaintEffect::parse(effect).ok_or_else(|| {
                format!("{effect:?} is no effect; NoSchedule, PreferNoSchedule and NoExecute are.")
            })?,
        })
    };
    let taints: Vec<Taint> = object.objects("taints").iter().map(taint).collect::<Result<_, String>>()?;
    checks::first(check_taints(&taints))?;
    Ok(taints)
}

/// As a state has them: a taint without a value may be written with `""` or without, and the choice stays.
fn taints_of(taints: &[Taint], before: &Object) -> Value {
    if taints.is_empty() && !matches!(before.get("taints"), Value::List(_)) {
        return Value::Null;
    }
    let spelt_out: Vec<String> = before
        .objects("taints")
        .iter()
        .filter(|one| one.text("value") == Some(""))
        .filter_map(|one| Some(format!("{}:{}", one.text("key")?, one.text("effect")?)))
        .collect();
    let object = |taint: &Taint| {
        let empty = taint.value.is_empty()
            && !spelt_out.contains(&format!("{}:{}", taint.key, taint.effect.as_str()));
        let value = if empty { Value::Null } else { taint.value.as_str().into() };
        Value::from(
            Object::default()
                .with("key", taint.key.as_str())
                .with("value", value)
                .with("effect", taint.effect.as_str()),
        )
    };
    Value::List(taints.iter().map(object).collect())
}

fn request(planned: &Object) -> Result<CreateNodePool, Diagnostic> {
    Ok(CreateNodePool {
        name: name_of(planned)?,
        size: size_of(planned)?,
        machine_type: planned.text("machine_type").map(str::to_owned),
        labels: planned.text_map("labels"),
        taints: taints(planned).map_err(|why| Diagnostic::error("Invalid taints", why).at("taints"))?,
        provider: planned.text("cloud_provider").map(str::to_owned),
    })
}

fn change(state: &Object, planned: &Object) -> Result<UpdateNodePool, Diagnostic> {
    let (name, size) = (name_of(planned)?, size_of(planned)?);
    Ok(UpdateNodePool {
        name: (state.text("name") != Some(name.as_str())).then_some(name),
        size: (state.whole("size") != Some(size)).then_some(size),
        labels: labels_change(state, planned),
    })
}

fn size_of(planned: &Object) -> Result<u32, Diagnostic> {
    planned.whole("size").ok_or_else(|| {
        let why = checks::size(planned.get("size")).err().unwrap_or_else(|| "It has no value.".to_owned());
        Diagnostic::error("Invalid size", why).at("size")
    })
}

/// The cluster's id once it is known: names change.
fn cluster_of(object: &Object) -> Result<ClusterRef, Diagnostic> {
    let text = object.text("cluster_id").or_else(|| object.text("cluster")).unwrap_or_default();
    text.parse().map_err(|_| {
        Diagnostic::error("Invalid cluster", format!("{text:?} is neither the name nor the id of a cluster."))
            .at("cluster")
    })
}

fn id_of(state: &Object) -> Result<NodePoolId, Diagnostic> {
    super::id_of(state, "node pool")
}

/// The pool as a state; `before` is the plan or the state that it follows, and has what the pool does not
/// say of itself.
fn state_of(pool: &NodePool, before: &Object) -> Object {
    let kept = |name: &str| before.get(name).clone();
    let wait = before.bool("wait_for_ready").unwrap_or(true);
    Object::default()
        .with("name", pool.name.as_str())
        .with("cluster", kept("cluster"))
        .with("organization", kept("organization"))
        .with("size", pool.size)
        .with("machine_type", pool.machine_type.as_str())
        .with("cloud_provider", pool.provider.as_str())
        .with("labels", labels_of(&pool.labels, before))
        .with("taints", taints_of(&pool.taints, before))
        .with("wait_for_ready", wait)
        .with("id", pool.id.to_string())
        .with("cluster_id", kept("cluster_id"))
        .with("cluster_name", pool.cluster.as_str())
        .with("created_at", pool.created_at.to_string())
        .with("state", pool.state.as_str())
        .with("ready", pool.ready)
        .with("timeouts", kept("timeouts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;

    const CLUSTER: &str = "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d10";

    fn pool() -> NodePool {
        serde_json::from_value(serde_json::json!({
            "id": "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d11",
            "cluster": "web",
            "name": "workers",
            "size": 2,
            "provider": "local",
            "machine_type": "small",
            "labels": {},
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            "state": "ready",
            "machines": [],
            "ready": 2,
            "created_at": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    fn taint(value: Value) -> Value {
        let one = Object::default().with("key", "gpu").with("value", value).with("effect", "NoSchedule");
        Value::List(vec![one.into()])
    }

    fn config() -> Object {
        Object::default()
            .with("name", "workers")
            .with("cluster", CLUSTER)
            .with("size", 2u32)
            .with("taints", taint(Value::Null))
    }

    fn made(config: &Object) -> Object {
        let mut planned = plan(&NodePools.schema(), None, config).state;
        planned.set("organization", "acme");
        planned.set("cluster_id", CLUSTER);
        state_of(&pool(), &planned)
    }

    #[test]
    fn what_is_configured_is_what_is_asked_for() {
        for (config, wanted) in [
            (
                config(),
                r#"{"name":"workers","size":2,"taints":[{"key":"gpu","value":"","effect":"NoSchedule"}]}"#,
            ),
            (
                config().with("taints", Value::Null).with("cloud_provider", "aws").with("machine_type", "m7"),
                r#"{"name":"workers","size":2,"machine_type":"m7","provider":"aws"}"#,
            ),
        ] {
            let planned = plan(&NodePools.schema(), None, &config).state;
            assert_eq!(serde_json::to_string(&request(&planned).unwrap()).unwrap(), wanted);
        }
    }

    #[test]
    fn changes_are_in_place_or_replacing() {
        let state = made(&config());
        for (config, wanted) in [
            (config(), "{}"),
            (config().with("size", 0u32), r#"{"size":0}"#),
            (config().with("name", "w2").with("size", 3u32), r#"{"name":"w2","size":3}"#),
            // The same cluster by its name: another spelling, nothing to do.
            (config().with("cluster", "web"), "{}"),
            (config().with("cluster", "shop"), "replaced by cluster"),
            (config().with("cluster", Value::Unknown), "replaced by cluster"),
            (config().with("taints", Value::Null), "replaced by taints"),
            (config().with("machine_type", "large"), "replaced by machine_type"),
            (config().with("cloud_provider", "aws"), "replaced by cloud_provider"),
        ] {
            let planned = plan(&NodePools.schema(), Some(&state), &config);
            let said = if planned.replaced_by.is_empty() {
                serde_json::to_string(&change(&state, &planned.state).unwrap()).unwrap()
            } else {
                format!("replaced by {}", planned.replaced_by.join(", "))
            };
            assert_eq!(said, wanted);
        }
    }

    #[test]
    fn a_second_plan_is_empty_however_it_is_written() {
        for config in [
            config(),
            config().with("taints", taint("".into())),
            config().with("cluster", "web"),
            config().with("wait_for_ready", false),
        ] {
            let state = made(&config);
            let read = state_of(&pool(), &state);
            assert_eq!(plan(&NodePools.schema(), Some(&read), &config).state, read, "{config:?}");
        }
    }

    #[test]
    fn waiting_ends_when_it_should() {
        for (state, seconds, wanted) in [
            (NodePoolState::Ready, 0, "done"),
            (NodePoolState::Provisioning, 0, "wait"),
            (NodePoolState::Resizing, 9999, "wait"),
            (NodePoolState::Failed, 5, "wait"),
            (NodePoolState::Failed, 60, "failed"),
            (NodePoolState::Deleting, 0, "failed"),
        ] {
            let said = match look(NodePool { state, ..pool() }, Duration::from_secs(seconds)) {
                Looked::Done(_) => "done",
                Looked::NotYet(_) => "wait",
                Looked::Failed(_) => "failed",
            };
            assert_eq!(said, wanted, "{state:?} for {seconds} s");
        }
    }

    #[test]
    fn taints_are_judged_while_planning() {
        for (key, effect, wanted) in [
            ("gpu", "NoSchedule", "fine"),
            ("gpu", "Never", "\"Never\" is no effect"),
            ("g pu", "NoExecute", "Taint: key \"g pu\""),
        ] {
            let one = Object::default().with("key", key).with("effect", effect);
            let said = check_all_taints(&Value::List(vec![one.into()]));
            let said = said.err().unwrap_or_else(|| "fine".to_owned());
            assert!(said.starts_with(wanted), "{said}");
        }
    }
}
