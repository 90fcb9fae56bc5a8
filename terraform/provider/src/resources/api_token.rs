//! `roadstead_api_token`: a token for the manager's REST API, for programs.

use async_trait::async_trait;
use base_ids::Slug;
use fleet_client::{Client, ClientError};
use fleet_model::{ApiToken, CreateToken, CreatedToken, Role};

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, Failed, Resource, client_refused};
use crate::resources::checks;
use crate::schema::{Attribute, Schema};
use crate::value::{Object, Value};

const TYPE: &str = "roadstead_api_token";

pub struct ApiTokens;

#[async_trait]
impl Resource for ApiTokens {
    fn type_name(&self) -> &'static str {
        TYPE
    }

    fn schema(&self) -> Schema {
        Schema {
            description: "An API token of an organisation. Nothing of it can be changed in place; one that has \
                          expired or was deleted is made anew by the next apply.",
            attributes: vec![
                Attribute::text("description", "What it is for.").required().replaces(),
                Attribute::text("role", "`admin`, `developer` or `viewer`.")
                    .required()
                    .replaces()
                    .checked(check_role),
                Attribute::text("organization", "Whose it is; the provider's own unless it is set.")
                    .chosen()
                    .replaces()
                    .checked(checks::name),
                Attribute::text(
                    "cluster",
                    "Id or name of the one cluster that it is for; all unless it is set.",
                )
                .replaces()
                .checked(checks::reference),
                Attribute::number("expires_in_seconds", "Never unless it is set.")
                    .replaces()
                    .checked(checks::seconds),
                Attribute::text("id", "By which it is listed.").computed(),
                Attribute::text("secret", "What `Authorization: Bearer` takes.").computed().sensitive(),
                Attribute::text("created_at", "RFC 3339.").computed(),
                Attribute::text("expires_at", "RFC 3339; null if it never does.").computed(),
            ],
        }
    }

    async fn create(&self, call: &Call, planned: &Object) -> Result<Object, Failed> {
        let org = call.organization(planned)?;
        let request = request(planned, &org)?;
        let made = call
            .create_once(
                TYPE,
                org.as_str(),
                &request,
                |client| {
                    let request = request.clone();
                    async move { client.create_token(&request).await }
                },
                |client, id| async move { Ok(listed(&client, &id).await?.is_some()) },
                |made: &CreatedToken| made.token.id.clone(),
            )
            .await
            .map_err(|error| error.told("make an API token"))?;
        Ok(state_of(&made.token, &made.secret, planned).with("organization", org.as_str()))
    }

    async fn read(&self, call: &Call, state: &Object) -> Result<Option<Object>, Diagnostic> {
        let Some(id) = state.text("id") else { return Ok(None) };
        let found = listed(call.client(), id)
            .await
            .map_err(|error| client_refused(&format!("read the API token {id}"), &error))?;
        Ok(found.map(|_| state.clone()))
    }

    async fn update(&self, _call: &Call, _state: &Object, planned: &Object) -> Result<Object, Failed> {
        // Every attribute replaces, so there is nothing to do here.
        Ok(planned.clone())
    }

    async fn delete(&self, call: &Call, state: &Object) -> Result<(), Diagnostic> {
        let Some(id) = state.text("id") else { return Ok(()) };
        match call.client().delete_token(id).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(client_refused(&format!("delete the API token {id}"), &error)),
        }
    }

    async fn import(&self, _call: &Call, id: &str) -> Result<Object, Diagnostic> {
        Err(Diagnostic::error(
            "An API token cannot be imported",
            format!(
                "Its secret was shown once, when {id:?} was made. Let Terraform make another one, and delete \
                 this one."
            ),
        ))
    }
}

/// The token, if it is there and still good.
async fn listed(client: &Client, id: &str) -> Result<Option<ApiToken>, ClientError> {
    let now = jiff::Timestamp::now();
    let tokens = client.tokens(None).await?;
    Ok(tokens.into_iter().find(|token| token.id == id && token.expires_at.is_none_or(|at| at > now)))
}

/// The provider's own role is not for sale: a state file is no place for a token that may everything.
fn check_role(value: &Value) -> Result<(), String> {
    let Value::Text(text) = value else { return Ok(()) };
    match Role::parse(text) {
        Some(role) if role != Role::Provider => Ok(()),
        _ => Err(format!("{text:?} is no role of an organisation; admin, developer and viewer are.")),
    }
}

fn request(planned: &Object, org: &Slug) -> Result<CreateToken, Diagnostic> {
    let role = planned.text("role").unwrap_or_default();
    let role = check_role(&role.into())
        .and_then(|()| Role::parse(role).ok_or_else(|| "It has no value.".to_owned()))
        .map_err(|why| Diagnostic::error("Invalid role", why).at("role"))?;
    Ok(CreateToken {
        description: planned.text("description").unwrap_or_default().to_owned(),
        role,
        organization: Some(org.clone()),
        cluster: planned.text("cluster").map(str::to_owned),
        expires_in_seconds: planned.whole("expires_in_seconds"),
    })
}

fn state_of(token: &ApiToken, secret: &str, planned: &Object) -> Object {
    let kept = |name: &str| planned.get(name).clone();
    Object::default()
        .with("description", kept("description"))
        .with("role", kept("role"))
        .with("organization", kept("organization"))
        .with("cluster", kept("cluster"))
        .with("expires_in_seconds", kept("expires_in_seconds"))
        .with("id", token.id.as_str())
        .with("secret", secret)
        .with("created_at", token.created_at.to_string())
        .with("expires_at", token.expires_at.map(|at| at.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;

    #[test]
    fn requests_say_what_is_configured() {
        let org: Slug = "acme".parse().unwrap();
        let config = |role: &str| Object::default().with("description", "ci").with("role", role);
        for (config, wanted) in [
            (config("admin"), Ok(r#"{"description":"ci","role":"admin","organization":"acme"}"#)),
            (
                config("viewer").with("expires_in_seconds", 60u32).with("cluster", "web"),
                Ok(
                    r#"{"description":"ci","role":"viewer","organization":"acme","cluster":"web","expires_in_seconds":60}"#,
                ),
            ),
            (config("provider"), Err("role")),
            (config("root"), Err("role")),
        ] {
            let planned = plan(&ApiTokens.schema(), None, &config).state;
            let said = request(&planned, &org).map(|request| serde_json::to_string(&request).unwrap());
            match (said, wanted) {
                (Ok(said), Ok(wanted)) => assert_eq!(said, wanted),
                (Err(said), Err(attribute)) => {
                    assert!(said.to_string().starts_with(attribute), "{said}");
                }
                (said, wanted) => panic!("{said:?}, not {wanted:?}"),
            }
        }
    }
}
