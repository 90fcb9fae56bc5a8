//! What a resource and a data source are, to the rest of the provider.
//!
//! A resource says what its attributes are ([`Schema`]) and how one is made, read, changed and removed.
//! Planning needs no code of a resource's own: it follows from the schema. To add one, copy
//! `resources/node_pool.rs`, and name it in `resources/mod.rs`.

use std::future::Future;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base_ids::Slug;
use fleet_client::{Client, ClientError};
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::diagnostic::Diagnostic;
use crate::journal::Journal;
use crate::schema::Schema;
use crate::value::Object;

#[async_trait]
pub trait Resource: Send + Sync {
    /// `roadstead_…`
    fn type_name(&self) -> &'static str;
    fn schema(&self) -> Schema;
    /// How long [`create`](Resource::create), `update` and `delete` may take unless `timeouts` says otherwise.
    fn patience(&self) -> Duration {
        Duration::from_secs(5 * 60)
    }
    /// What is wrong in ways that one attribute alone doesn't show. Values may be unknown.
    fn validate(&self, _config: &Object) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// Makes what was planned; the answer has every value.
    async fn create(&self, call: &Call, planned: &Object) -> Result<Object, Failed>;
    /// The state as it is now; `None` when it is gone.
    async fn read(&self, call: &Call, state: &Object) -> Result<Option<Object>, Diagnostic>;
    /// Makes `planned` of `state` without replacing it.
    async fn update(&self, call: &Call, state: &Object, planned: &Object) -> Result<Object, Failed>;
    /// Gone when it returns; nothing to do when it is gone already.
    async fn delete(&self, call: &Call, state: &Object) -> Result<(), Diagnostic>;
    /// As much of a state as `read` needs, from what a person gave `terraform import`.
    async fn import(&self, call: &Call, id: &str) -> Result<Object, Diagnostic>;
}

#[async_trait]
pub trait DataSource: Send + Sync {
    fn type_name(&self) -> &'static str;
    fn schema(&self) -> Schema;
    async fn read(&self, call: &Call, config: &Object) -> Result<Object, Diagnostic>;
}

/// A change that did not come to its end.
#[derive(Debug)]
pub struct Failed {
    /// What is there all the same; Terraform must write it down to find it again.
    pub left: Option<Object>,
    pub why: Diagnostic,
}

impl From<Diagnostic> for Failed {
    fn from(why: Diagnostic) -> Failed {
        Failed { left: None, why }
    }
}

impl Diagnostic {
    /// The same, when `state` is there all the same.
    pub fn leaving(self, state: Object) -> Failed {
        Failed { left: Some(state), why: self }
    }
}

/// The configured provider: whom to ask, and for which organisation.
#[derive(Debug, Clone)]
pub struct Api {
    pub client: Client,
    /// For resources that name none.
    pub organization: Option<Slug>,
    pub journal: Journal,
    /// Cancelled when Terraform is interrupted.
    pub stop: CancellationToken,
}

/// One request of Terraform's, with what bounds it.
#[derive(Debug, Clone)]
pub struct Call {
    pub api: Api,
    pub until: Instant,
    /// Chosen when the creation was planned; a saved plan that is applied twice sends the same one.
    pub key: String,
}

impl Call {
    pub fn client(&self) -> &Client {
        &self.api.client
    }

    /// The organisation that an object names, else the provider's.
    pub fn organization(&self, object: &Object) -> Result<Slug, Diagnostic> {
        match object.text("organization") {
            Some(text) => text.parse().map_err(|_| {
                Diagnostic::error("Invalid organization", format!("{text:?} is no name of an organisation."))
                    .at("organization")
            }),
            None => self.api.organization.clone().ok_or_else(no_organization),
        }
    }

    /// Makes something once, however often Terraform or we are killed on the way (see `journal`).
    ///
    /// `request` is everything that is asked for, and `place` where. `send` sends it with the client it is
    /// given. `is_there` looks whether an answer that was given before still holds: what was made then may
    /// have been deleted since. `id` is the made thing's.
    pub async fn create_once<T, S, SF, L, LF>(
        &self,
        type_name: &str,
        place: &str,
        request: &impl Serialize,
        send: S,
        is_there: L,
        id: impl Fn(&T) -> String,
    ) -> Result<T, CreateError>
    where
        S: Fn(Client) -> SF,
        SF: Future<Output = Result<T, ClientError>>,
        L: Fn(Client, String) -> LF,
        LF: Future<Output = Result<bool, ClientError>>,
    {
        let journal = &self.api.journal;
        let body = serde_json::to_string(request).map_err(CreateError::Request)?;
        let digest = Journal::digest(&[self.client().server(), type_name, place, &body]);
        let mut fresh = self.key.clone();
        loop {
            let ticket = journal.begin(&digest, &fresh, Timestamp::now()).map_err(CreateError::Journal)?;
            let keyed = self.client().with_key(&ticket.key)?;
            match send(keyed).await {
                Ok(made) => {
                    let id = id(&made);
                    if ticket.repeated && !is_there(self.client().clone(), id.clone()).await? {
                        journal.forget(&ticket.key).map_err(CreateError::Journal)?;
                        fresh = new_key();
                        continue;
                    }
                    journal.made(&ticket.key, &id).map_err(CreateError::Journal)?;
                    return Ok(made);
                }
                Err(error) => {
                    // A refusal made nothing. Without an answer nobody knows, and whoever is not let in hears
                    // nothing of an earlier try; the note stays then.
                    if error.status().is_some_and(is_judgement) {
                        journal.forget(&ticket.key).map_err(CreateError::Journal)?;
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Asks again, with growing pauses, until `look` has an answer. A manager that is away for a moment is
    /// waited for as well.
    pub async fn wait_for<T, F: Future<Output = Result<Looked<T>, ClientError>>>(
        &self,
        mut look: impl FnMut() -> F,
    ) -> Result<T, WaitError> {
        let mut pause = Duration::from_millis(100);
        loop {
            let last = match look().await {
                Ok(Looked::Done(value)) => return Ok(value),
                Ok(Looked::Failed(why)) => return Err(WaitError::Failed(why)),
                Ok(Looked::NotYet(state)) => state,
                Err(error) if is_passing(&error) => error.to_string(),
                Err(error) => return Err(WaitError::Client(error)),
            };
            if Instant::now() + pause > self.until {
                return Err(WaitError::Late(last));
            }
            tokio::select! {
                () = self.api.stop.cancelled() => return Err(WaitError::Stopped(last)),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}

pub fn new_key() -> String {
    format!("terraform-{}", uuid::Uuid::new_v4())
}

/// Whether a status says that the request itself was looked at, and nothing made of it.
fn is_judgement(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 403 | 408 | 429)
}

fn is_passing(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || error.status().is_some_and(|status| status >= 500)
}

/// What a look at something showed.
#[derive(Debug)]
pub enum Looked<T> {
    Done(T),
    /// In words, for the message when time is over.
    NotYet(String),
    Failed(String),
}

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(
        "the note that would make a repeated creation harmless cannot be written to Terraform's data folder"
    )]
    Journal(#[source] std::io::Error),
    #[error("the request cannot be written down")]
    Request(#[source] serde_json::Error),
}

impl CreateError {
    pub fn status(&self) -> Option<u16> {
        match self {
            CreateError::Client(error) => error.status(),
            _ => None,
        }
    }

    /// In a person's words: what was tried, why not, what to do.
    pub fn told(&self, doing: &str) -> Diagnostic {
        match self {
            CreateError::Client(error) => client_refused(doing, error),
            CreateError::Journal(_) | CreateError::Request(_) => refused(doing, self, None),
        }
    }
}

#[derive(Debug)]
pub enum WaitError {
    Late(String),
    Stopped(String),
    Failed(String),
    Client(ClientError),
}

pub fn no_organization() -> Diagnostic {
    Diagnostic::error(
        "No organization",
        "Neither this resource nor the provider names one. Set `organization` here or in the provider \
         block, or ROADSTEAD_ORG in the environment.",
    )
    .at("organization")
}

/// The manager's refusal in a person's words: what was tried, why not, what to do.
fn refused(doing: &str, error: &(dyn std::error::Error + 'static), status: Option<u16>) -> Diagnostic {
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !why.contains(&text) {
            why += &format!(": {text}");
        }
        cause = inner.source();
    }
    let hint = match status {
        Some(401) => {
            " The token is wrong or has expired: give another one (`token_file`, ROADSTEAD_TOKEN_FILE)."
        }
        Some(403) => {
            " The token's role does not allow it: use one of an admin or developer of the organisation."
        }
        Some(404) => {
            " Either it does not exist, or this token does not see it: check the names and the token."
        }
        Some(409) => " Bring what exists under Terraform with `terraform import`, or choose another name.",
        Some(429) => " Wait a little and apply again.",
        Some(400 | 422) => " Correct the configuration.",
        Some(_) => " The manager's log says more; apply again once it is well.",
        None => " Check that the manager runs and that `server` and `ca_cert_file` are its own.",
    };
    let stop = if why.ends_with('.') { "" } else { "." };
    Diagnostic::error(format!("Cannot {doing}"), format!("{why}{stop}{hint}"))
}

/// [`refused`] for the client's own error, at the attribute that the manager names.
pub fn client_refused(doing: &str, error: &ClientError) -> Diagnostic {
    let told = refused(doing, error, error.status());
    match error.fields() {
        [field, ..] => match field.member() {
            Some(attribute) => told.at(attribute),
            None => told,
        },
        [] => told,
    }
}

impl WaitError {
    /// For something that was accepted and has not come to its end.
    pub fn told(self, doing: &str) -> Diagnostic {
        match self {
            WaitError::Late(last) => Diagnostic::error(
                format!("Gave up waiting to {doing}"),
                format!("It is still going on: {last}. Set a longer time in `timeouts`."),
            ),
            WaitError::Stopped(last) => Diagnostic::error(
                format!("Interrupted while waiting to {doing}"),
                format!("It goes on without Terraform: {last}. Apply again to see how it ended."),
            ),
            WaitError::Failed(why) => Diagnostic::error(
                format!("Failed to {doing}"),
                format!("{why}. Correct the cause and apply again."),
            ),
            WaitError::Client(error) => client_refused(doing, &error),
        }
    }
}

/// Creates; where a thing of the same name is still being deleted, waits for its end first.
pub async fn create_when_free<T, C, CF, L, LF>(
    call: &Call,
    create: C,
    is_leaving: L,
) -> Result<T, CreateError>
where
    C: Fn(Call) -> CF,
    CF: Future<Output = Result<T, CreateError>>,
    L: Fn(Client) -> LF,
    LF: Future<Output = Result<bool, ClientError>>,
{
    let mut call = call.clone();
    loop {
        let refused = match create(call.clone()).await {
            Err(error) if error.status() == Some(409) => error,
            other => return other,
        };
        if !is_leaving(call.client().clone()).await? || call.api.stop.is_cancelled() {
            return Err(refused);
        }
        if Instant::now() >= call.until {
            return Err(refused);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The manager keeps its answer to the old key, and that was no.
        call.key = new_key();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_model::{FieldProblem, Problem};

    #[test]
    fn a_refusal_is_shown_at_the_attribute_it_is_about() {
        for (fields, wanted) in [
            (&["/size"][..], Some("size")),
            (&["/labels/example.com~1team", "/size"][..], Some("labels")),
            (&[""][..], None),
            (&[][..], None),
        ] {
            let problem = Problem {
                kind: "about:blank".to_owned(),
                title: "Invalid request".to_owned(),
                status: 400,
                detail: "no".to_owned(),
                errors: fields.iter().map(|field| FieldProblem::new(*field, "no")).collect(),
            };
            let told = CreateError::Client(ClientError::Problem(problem)).told("make it");
            assert_eq!(told.attribute.as_deref(), wanted, "{fields:?}");
            assert!(told.detail.ends_with("Correct the configuration."), "{told}");
        }
    }
}
