//! `roadstead_cluster`: a control plane.

use async_trait::async_trait;
use base_ids::{Slug, TenantId};
use fleet_client::{Client, ClientError};
use fleet_model::labels::{Labels, LabelsPatch};
use fleet_model::{Cluster, ClusterRef, ClusterState, CreateCluster, OperationState, UpdateCluster};

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, Failed, Looked, Resource, client_refused, create_when_free};
use crate::resources::{checks, timeouts};
use crate::schema::{Attribute, Schema};
use crate::value::{Object, Value};

const TYPE: &str = "roadstead_cluster";

pub struct Clusters;

#[async_trait]
impl Resource for Clusters {
    fn type_name(&self) -> &'static str {
        TYPE
    }

    fn schema(&self) -> Schema {
        Schema {
            description: "A Kubernetes cluster: its control plane. Import it by `ORGANIZATION/CLUSTER`.",
            attributes: vec![
                Attribute::text("name", "Unique in the organisation; may be changed in place.")
                    .required()
                    .checked(checks::name),
                Attribute::text("organization", "The provider's own unless it is set. A change replaces it.")
                    .chosen()
                    .replaces()
                    .checked(checks::name),
                Attribute::text(
                    "kubernetes_version",
                    "Like `v1.36.0`; the manager's default unless it is set.",
                )
                .chosen()
                .refuses(
                    "A cluster keeps the version it was made with, and replacing it would lose what is in \
                         it. Set the old version again, or make a new cluster beside it. To lose this one, \
                         `terraform taint` it.",
                ),
                Attribute::number("replicas", "Cells that hold a copy of it: 1 or 3. A change replaces it.")
                    .default(1u32)
                    .replaces()
                    .checked(checks::replicas),
                Attribute::text(
                    "cloud_provider",
                    "Who makes its load balancers, and its node pools that name none; the fleet's first unless it \
                     is set. A change replaces it.",
                )
                .chosen()
                .replaces(),
                Attribute::text_map("labels", "In Kubernetes' syntax, at most 64.").checked(checks::labels),
                Attribute::text("id", "What it is called whatever its name; use this in other resources.")
                    .computed(),
                Attribute::text("server_name", "Its TLS server name at the gateway.").computed(),
                Attribute::text("created_at", "RFC 3339.").computed(),
                Attribute::text("state", "`creating` or `ready`.").reported(),
                timeouts::attribute(),
            ],
        }
    }

    async fn create(&self, call: &Call, planned: &Object) -> Result<Object, Failed> {
        let org = call.organization(planned)?;
        let request = request(planned)?;
        let create = |call: Call| {
            let (org, request) = (org.clone(), request.clone());
            async move {
                let (place, send_org, look_org) = (org.to_string(), org.clone(), org.clone());
                call.create_once(
                    TYPE,
                    &place,
                    &request,
                    |client| {
                        let (org, request) = (send_org.clone(), request.clone());
                        async move { client.create_cluster(&org, &request).await }
                    },
                    |client, id| {
                        let org = look_org.clone();
                        async move { Ok(named(&client, &org, &id).await?.is_some()) }
                    },
                    |cluster: &Cluster| cluster.id.to_string(),
                )
                .await
            }
        };
        let is_leaving = |client: Client| {
            let (org, name) = (org.clone(), request.name.clone());
            async move {
                let found = named(&client, &org, name.as_str()).await?;
                Ok(found.is_some_and(|cluster| cluster.state == ClusterState::Deleting))
            }
        };
        let what = format!("create the cluster {}", request.name);
        let made = create_when_free(call, create, is_leaving).await.map_err(|error| error.told(&what))?;
        match ready(call, &org, made.id).await {
            Ok(cluster) => Ok(state_of(&cluster, planned)),
            Err(why) => Err(why.leaving(state_of(&made, planned))),
        }
    }

    async fn read(&self, call: &Call, state: &Object) -> Result<Option<Object>, Diagnostic> {
        let org = call.organization(state)?;
        // After an import there is no id yet.
        let Some(reference) = state.text("id").or_else(|| state.text("name")) else { return Ok(None) };
        let found = named(call.client(), &org, reference)
            .await
            .map_err(|error| client_refused(&format!("read the cluster {reference}"), &error))?;
        // One that is on its way out is as good as gone; making another one waits for its end.
        Ok(found.filter(|one| one.state != ClusterState::Deleting).map(|cluster| state_of(&cluster, state)))
    }

    async fn update(&self, call: &Call, state: &Object, planned: &Object) -> Result<Object, Failed> {
        let org = call.organization(state)?;
        let id = id_of(state)?;
        let change = change(state, planned)?;
        let doing = format!("change the cluster {}", state.text("name").unwrap_or_default());
        let changed = if change == UpdateCluster::default() {
            call.client().cluster(&org, id).await
        } else {
            call.client().update_cluster(&org, id, &change).await
        };
        changed.map_err(|error| client_refused(&doing, &error))?;
        let cluster = ready(call, &org, id).await?;
        Ok(state_of(&cluster, planned))
    }

    async fn delete(&self, call: &Call, state: &Object) -> Result<(), Diagnostic> {
        let (org, id) = (call.organization(state)?, id_of(state)?);
        let doing = format!("delete the cluster {}", state.text("name").unwrap_or_default());
        let operation = match call.client().delete_cluster(&org, id).await {
            Ok(operation) => operation,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(client_refused(&doing, &error)),
        };
        finished(call, &org, operation.id).await.map_err(|why| why.told(&doing))
    }

    async fn import(&self, call: &Call, id: &str) -> Result<Object, Diagnostic> {
        let form = || {
            Diagnostic::error(
                "Cannot import a cluster by this",
                format!("{id:?} is not ORGANIZATION/CLUSTER, where CLUSTER is a name or an id."),
            )
        };
        let (org, name) = id.split_once('/').ok_or_else(form)?;
        let org: Slug = org.parse().map_err(|_| form())?;
        let reference: ClusterRef = name.parse().map_err(|_| form())?;
        let cluster = call
            .client()
            .cluster(&org, reference)
            .await
            .map_err(|error| client_refused(&format!("import the cluster {id}"), &error))?;
        Ok(state_of(&cluster, &Object::default()))
    }
}

/// The cluster of this name or id; `None` if there is none.
pub(crate) async fn named(
    client: &Client,
    org: &Slug,
    reference: &str,
) -> Result<Option<Cluster>, ClientError> {
    let Ok(reference) = reference.parse::<ClusterRef>() else { return Ok(None) };
    match client.cluster(org, reference).await {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits for the operation's good end.
pub(crate) async fn finished(
    call: &Call,
    org: &Slug,
    id: base_ids::OperationId,
) -> Result<(), crate::resource::WaitError> {
    call.wait_for(|| async {
        let operation = call.client().operation(org, id).await?;
        Ok(match operation.state {
            OperationState::Succeeded => Looked::Done(()),
            OperationState::Failed | OperationState::Cancelled => Looked::Failed(operation.message),
            OperationState::Running => {
                Looked::NotYet(format!("{}% ({})", operation.progress, operation.message))
            }
        })
    })
    .await
}

/// Waits until it serves.
async fn ready(call: &Call, org: &Slug, id: TenantId) -> Result<Cluster, Diagnostic> {
    let looked = call.wait_for(|| async {
        let cluster = call.client().cluster(org, id).await?;
        Ok(match cluster.state {
            ClusterState::Ready => Looked::Done(cluster),
            ClusterState::Deleting => Looked::Failed("it is being deleted".to_owned()),
            ClusterState::Creating => match cluster.operation {
                // It says how far it is, and why it goes no further.
                Some(operation) => match call.client().operation(org, operation).await {
                    Ok(operation) if operation.state == OperationState::Failed => {
                        Looked::Failed(operation.message)
                    }
                    Ok(operation) => {
                        Looked::NotYet(format!("{}% ({})", operation.progress, operation.message))
                    }
                    Err(_) => Looked::NotYet("creating".to_owned()),
                },
                None => Looked::NotYet("creating".to_owned()),
            },
        })
    });
    looked.await.map_err(|why| why.told("bring the cluster up"))
}

fn request(planned: &Object) -> Result<CreateCluster, Diagnostic> {
    Ok(CreateCluster {
        kubernetes_version: planned.text("kubernetes_version").map(str::to_owned),
        replicas: planned.whole("replicas").and_then(|count| u8::try_from(count).ok()),
        provider: planned.text("cloud_provider").map(str::to_owned),
        labels: planned.text_map("labels"),
        ..CreateCluster::named(name_of(planned)?)
    })
}

fn change(state: &Object, planned: &Object) -> Result<UpdateCluster, Diagnostic> {
    let name = name_of(planned)?;
    Ok(UpdateCluster {
        name: (state.text("name") != Some(name.as_str())).then_some(name),
        labels: labels_change(state, planned),
    })
}

/// What turns the labels of a state into the planned ones.
pub(crate) fn labels_change(state: &Object, planned: &Object) -> LabelsPatch {
    LabelsPatch::between(&state.text_map("labels"), &planned.text_map("labels"))
}

/// Labels as a state has them: no labels may be written as null or as `{}`, and the person's choice stays.
pub(crate) fn labels_of(labels: &Labels, before: &Object) -> Value {
    if labels.is_empty() && !matches!(before.get("labels"), Value::Map(_)) {
        Value::Null
    } else {
        labels.into()
    }
}

pub(crate) fn name_of(object: &Object) -> Result<Slug, Diagnostic> {
    let text = object.text("name").unwrap_or_default();
    text.parse().map_err(|_| {
        let why = checks::name(&text.into()).err().unwrap_or_default();
        Diagnostic::error("Invalid name", why).at("name")
    })
}

fn id_of(state: &Object) -> Result<TenantId, Diagnostic> {
    super::id_of(state, "cluster")
}

/// The cluster as a state; `before` is the plan or the state that it follows.
fn state_of(cluster: &Cluster, before: &Object) -> Object {
    Object::default()
        .with("name", cluster.name.as_str())
        .with("organization", cluster.organization.as_str())
        .with("kubernetes_version", cluster.kubernetes_version.as_str())
        .with("replicas", u32::from(cluster.replicas))
        .with("cloud_provider", cluster.provider.as_str())
        .with("labels", labels_of(&cluster.labels, before))
        .with("id", cluster.id.to_string())
        .with("server_name", cluster.server_name.as_str())
        .with("created_at", cluster.created_at.to_string())
        .with("state", cluster.state.as_str())
        .with("timeouts", before.get("timeouts").clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::plan;

    fn labels(text: &str) -> Value {
        let pair = |word: &str| {
            let (key, value) = word.split_once('=').unwrap();
            (key.to_owned(), Value::from(value))
        };
        Value::Map(text.split_whitespace().map(pair).collect())
    }

    fn web() -> Cluster {
        serde_json::from_value(serde_json::json!({
            "id": "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d10",
            "organization": "acme",
            "name": "web",
            "state": "ready",
            "kubernetes_version": "v1.36.0",
            "replicas": 1,
            "provider": "local",
            "labels": {"team": "red"},
            "server_name": "c01938f5e.roadstead.local",
            "created_at": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    fn config(name: &str) -> Object {
        Object::default().with("name", name).with("labels", labels("team=red"))
    }

    #[test]
    fn what_is_configured_is_what_is_asked_for() {
        for (config, wanted) in [
            (Object::default().with("name", "web"), r#"{"name":"web","replicas":1}"#),
            (config("web"), r#"{"name":"web","replicas":1,"labels":{"team":"red"}}"#),
            (
                config("web").with("replicas", 3u32).with("kubernetes_version", "v1.36.0"),
                r#"{"name":"web","kubernetes_version":"v1.36.0","replicas":3,"labels":{"team":"red"}}"#,
            ),
            (
                Object::default().with("name", "web").with("cloud_provider", "aws"),
                r#"{"name":"web","replicas":1,"provider":"aws"}"#,
            ),
        ] {
            let planned = plan(&Clusters.schema(), None, &config).state;
            assert_eq!(serde_json::to_string(&request(&planned).unwrap()).unwrap(), wanted);
        }
        assert!(request(&Object::default().with("name", "No")).is_err());
    }

    #[test]
    fn changes_are_in_place_replacing_or_refused() {
        let state = state_of(&web(), &config("web"));
        for (config, wanted) in [
            (config("web"), "{}"),
            (config("web").with("organization", "acme").with("replicas", 1u32), "{}"),
            (config("shop"), r#"{"name":"shop"}"#),
            (config("web").with("labels", labels("team=blue x=1")), r#"{"labels":{"team":"blue","x":"1"}}"#),
            (Object::default().with("name", "web"), r#"{"labels":{"team":null}}"#),
            (config("web").with("labels", labels("")), r#"{"labels":{"team":null}}"#),
            (config("web").with("organization", "blue"), "replaced by organization"),
            (config("web").with("replicas", 3u32), "replaced by replicas"),
            (config("web").with("cloud_provider", "local"), "{}"),
            (config("web").with("cloud_provider", "aws"), "replaced by cloud_provider"),
            (config("web").with("kubernetes_version", "v1.35.0"), "refused"),
        ] {
            let planned = plan(&Clusters.schema(), Some(&state), &config);
            let said = if !planned.refused.is_empty() {
                "refused".to_owned()
            } else if !planned.replaced_by.is_empty() {
                format!("replaced by {}", planned.replaced_by.join(", "))
            } else {
                serde_json::to_string(&change(&state, &planned.state).unwrap()).unwrap()
            };
            assert_eq!(said, wanted);
        }
    }

    #[test]
    fn a_second_plan_is_empty_and_drift_is_planned_back() {
        let schema = Clusters.schema();
        for config in [
            config("web"),
            config("web").with("timeouts", Object::default().with("create", "1m")),
            Object::default().with("name", "web"),
            Object::default().with("name", "web").with("labels", labels("")),
        ] {
            let mut cluster = web();
            cluster.labels = config.text_map("labels");
            let made = state_of(&cluster, &plan(&schema, None, &config).state);
            let read = state_of(&cluster, &made);
            assert_eq!(plan(&schema, Some(&read), &config).state, read, "{config:?}");

            cluster.labels = BTreeMap::from([("hand".to_owned(), "made".to_owned())]);
            let drifted = state_of(&cluster, &read);
            let planned = plan(&schema, Some(&drifted), &config).state;
            assert_eq!(planned.get("labels"), config.get("labels"));
            assert_ne!(change(&drifted, &planned).unwrap(), UpdateCluster::default());
        }
    }
}
