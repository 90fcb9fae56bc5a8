//! `roadstead_join_token`: what a machine of one's own needs to join. Short-lived by nature: once it has
//! expired, the next apply makes another one.

use async_trait::async_trait;
use base_ids::Slug;
use fleet_client::{Client, ClientError};
use fleet_model::{ClusterRef, CreateJoinToken, JoinToken};

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, Failed, Resource, client_refused};
use crate::resources::checks;
use crate::resources::cluster::named;
use crate::schema::{Attribute, Schema};
use crate::value::Object;

const TYPE: &str = "roadstead_join_token";

pub struct JoinTokens;

#[async_trait]
impl Resource for JoinTokens {
    fn type_name(&self) -> &'static str {
        TYPE
    }

    fn schema(&self) -> Schema {
        Schema {
            description: "A token with which machines join a cluster. One that has expired is made anew by the \
                          next apply; nothing of it can be changed in place.",
            attributes: vec![
                Attribute::text("cluster", "Id of the cluster (or its name).")
                    .required()
                    .replaces()
                    .same_as(&["cluster_id"])
                    .checked(checks::reference),
                Attribute::text("organization", "The cluster's; the provider's own unless it is set.")
                    .chosen()
                    .replaces()
                    .checked(checks::name),
                Attribute::text("description", "What it is for.").replaces(),
                Attribute::number("expires_in_seconds", "A day unless it is set, 30 days at most.")
                    .replaces()
                    .checked(checks::join_token_seconds),
                Attribute::text("id", "The six characters by which the cluster lists it.").computed(),
                Attribute::text("cluster_id", "Id of its cluster.").computed(),
                Attribute::text("token", "The secret.").computed().sensitive(),
                Attribute::text("command", "What to run on the machine, token and all.")
                    .computed()
                    .sensitive(),
                Attribute::text("server", "Where the machine dials, `https://IP:PORT`.").computed(),
                Attribute::text("tls_server_name", "Its cluster's name at that server.").computed(),
                Attribute::text("ca_cert_hash", "`sha256:…` of the cluster CA's public key.").computed(),
                Attribute::text("expires_at", "RFC 3339.").computed(),
            ],
        }
    }

    async fn create(&self, call: &Call, planned: &Object) -> Result<Object, Failed> {
        let org = call.organization(planned)?;
        let cluster = cluster_of(planned)?;
        let request = request(planned);
        let doing = format!("make a join token of {cluster}");
        let found = call
            .client()
            .cluster(&org, &cluster)
            .await
            .map_err(|error| client_refused(&doing, &error).at("cluster"))?;
        let made = call
            .create_once(
                TYPE,
                &format!("{org}/{}", found.id),
                &request,
                |client| {
                    let (org, request) = (org.clone(), request.clone());
                    async move { client.create_join_token(&org, found.id, &request).await }
                },
                |client, id| {
                    let org = org.clone();
                    async move { is_listed(&client, &org, &ClusterRef::Id(found.id), &id).await }
                },
                |token: &JoinToken| token.id.clone(),
            )
            .await
            .map_err(|error| error.told(&doing))?;
        Ok(state_of(&made, planned)
            .with("organization", org.as_str())
            .with("cluster_id", found.id.to_string()))
    }

    async fn read(&self, call: &Call, state: &Object) -> Result<Option<Object>, Diagnostic> {
        let org = call.organization(state)?;
        let cluster = cluster_of(state)?;
        let Some(id) = state.text("id") else { return Ok(None) };
        let there = is_listed(call.client(), &org, &cluster, id)
            .await
            .map_err(|error| client_refused(&format!("read the join tokens of {cluster}"), &error))?;
        Ok(there.then(|| state.clone()))
    }

    async fn update(&self, _call: &Call, _state: &Object, planned: &Object) -> Result<Object, Failed> {
        // The cluster in other words; what can change replaces.
        Ok(planned.clone())
    }

    async fn delete(&self, call: &Call, state: &Object) -> Result<(), Diagnostic> {
        let org = call.organization(state)?;
        let cluster = cluster_of(state)?;
        let Some(id) = state.text("id") else { return Ok(()) };
        match call.client().delete_join_token(&org, cluster, id).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(client_refused(&format!("delete the join token {id}"), &error)),
        }
    }

    async fn import(&self, _call: &Call, id: &str) -> Result<Object, Diagnostic> {
        Err(Diagnostic::error(
            "A join token cannot be imported",
            format!(
                "Its secret was shown once, when {id:?} was made. Let Terraform make another one, and delete \
                 this one."
            ),
        ))
    }
}

/// Whether the cluster is there and lists it. Expired ones are removed by the cluster itself.
async fn is_listed(client: &Client, org: &Slug, cluster: &ClusterRef, id: &str) -> Result<bool, ClientError> {
    if named(client, org, &cluster.to_string()).await?.is_none() {
        return Ok(false);
    }
    let now = jiff::Timestamp::now();
    let listed = client.join_tokens(org, cluster).await?;
    Ok(listed.iter().any(|token| token.id == id && token.expires_at.is_none_or(|at| at > now)))
}

fn request(planned: &Object) -> CreateJoinToken {
    CreateJoinToken {
        expires_in_seconds: planned.whole("expires_in_seconds"),
        description: planned.text("description").map(str::to_owned),
    }
}

fn cluster_of(object: &Object) -> Result<ClusterRef, Diagnostic> {
    let text = object.text("cluster_id").or_else(|| object.text("cluster")).unwrap_or_default();
    text.parse().map_err(|_| {
        Diagnostic::error("Invalid cluster", format!("{text:?} is neither the name nor the id of a cluster."))
            .at("cluster")
    })
}

fn state_of(token: &JoinToken, planned: &Object) -> Object {
    let kept = |name: &str| planned.get(name).clone();
    Object::default()
        .with("cluster", kept("cluster"))
        .with("description", kept("description"))
        .with("expires_in_seconds", kept("expires_in_seconds"))
        .with("id", token.id.as_str())
        .with("token", token.token.as_str())
        .with("command", token.command.as_str())
        .with("server", token.server.as_str())
        .with("tls_server_name", token.tls_server_name.as_str())
        .with("ca_cert_hash", token.ca_cert_hash.as_str())
        .with("expires_at", token.expires_at.map(|at| at.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;

    #[test]
    fn requests_say_what_is_configured_and_a_second_plan_is_empty() {
        let config = Object::default().with("cluster", "web");
        for (config, wanted) in [
            (config.clone(), "{}"),
            (
                config.with("expires_in_seconds", 60u32).with("description", "rack 7"),
                r#"{"expires_in_seconds":60,"description":"rack 7"}"#,
            ),
        ] {
            let planned = plan(&JoinTokens.schema(), None, &config).state;
            assert_eq!(serde_json::to_string(&request(&planned)).unwrap(), wanted);
            let token: JoinToken = serde_json::from_value(serde_json::json!({
                "id": "abcdef", "token": "abcdef.0123456789abcdef", "ca_cert_hash": "sha256:00",
                "server": "https://127.0.0.1:6443", "tls_server_name": "c1.roadstead.local", "command": "x",
                "expires_at": "2026-01-02T00:00:00Z",
            }))
            .unwrap();
            let state = state_of(&token, &planned).with("organization", "acme").with("cluster_id", "9");
            assert_eq!(plan(&JoinTokens.schema(), Some(&state), &config).state, state);
        }
    }
}
