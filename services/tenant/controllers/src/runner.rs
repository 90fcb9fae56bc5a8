//! Applies a plan through the API.
//!
//! Thin on purpose: it decides nothing but the order of requests and when to stop. What it did comes back
//! as a value for the supervisor to take in.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Gvr, Object, Reason, Status};
use api_reconcile::{Action, Deletion, EventText, PatchKind, Regarding, Spread, Subject};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::StreamExt;
use futures::future::join_all;
use serde_json::json;
use tenant_client::{CreateOptions, DeleteOptions, ListOptions, Patch, Propagation, SharedApi};

use crate::catalog::{Catalog, ResourceId};
use crate::controller::{Key, News};

/// Signs certificates with the cluster's CA. The key stays behind this trait.
pub trait Signer: Send + Sync + 'static {
    /// A PEM chain for the PEM request. The profile is what policy has allowed, whatever the request asks.
    fn sign(&self, request_pem: &str, profile: &SignProfile) -> Result<String, SignError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignProfile {
    /// `kubernetes.io/kube-apiserver-client-kubelet` and the like.
    pub signer_name: String,
    /// `client auth`, `server auth`, `digital signature`, `key encipherment`.
    pub usages: Vec<String>,
    /// From `spec.expirationSeconds`; the signer caps it.
    pub lifetime: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// Nothing anybody does will make this request a good one.
    #[error("the certificate request cannot be signed: {0}")]
    BadRequest(String),
    /// Try again.
    #[error("signing is not possible now: {0}")]
    Unavailable(String),
}

/// Creates or deletes in flight at a time for one key: enough to hide a write's latency, few enough to leave
/// the tenant's request seats to others.
const SPREAD_MOST: usize = 32;
/// Deletes in flight when a namespace is emptied.
const PURGE_MOST: usize = 16;

pub(crate) struct Job {
    pub controller: usize,
    pub key: Key,
    pub actions: Vec<Action>,
    pub again_after: Option<Duration>,
    pub api: SharedApi,
    pub catalog: Arc<Catalog>,
    pub signer: Option<Arc<dyn Signer>>,
}

/// What became of a [`Job`].
pub(crate) struct Done {
    pub controller: usize,
    pub key: Key,
    pub again_after: Option<Duration>,
    pub result: Result<(), Status>,
    pub wrote: Vec<(ResourceId, Arc<Object>)>,
    pub deleted: Vec<(ResourceId, Deletion)>,
    pub events: Vec<(Regarding, EventText)>,
    pub news: Vec<News>,
}

impl Job {
    pub(crate) async fn run(self) -> Done {
        let Job { controller, key, actions, again_after, api, catalog, signer } = self;
        let done = Done {
            controller,
            key,
            again_after,
            result: Ok(()),
            wrote: Vec::new(),
            deleted: Vec::new(),
            events: Vec::new(),
            news: Vec::new(),
        };
        let mut hands = Hands { api, catalog, signer, done };
        for action in actions {
            if let Err(status) = hands.apply(action).await {
                hands.done.result = Err(status);
                break;
            }
        }
        hands.done
    }
}

struct Hands {
    api: SharedApi,
    catalog: Arc<Catalog>,
    signer: Option<Arc<dyn Signer>>,
    done: Done,
}

impl Hands {
    async fn apply(&mut self, action: Action) -> Result<(), Status> {
        match action {
            Action::Create { of, namespace, object } => {
                let options = CreateOptions { namespace, subresource: None };
                match self.api.create(&of, object, options).await {
                    Ok(object) => self.wrote(&of, object),
                    Err(status) if status.is_already_exists() => {}
                    Err(status) => return Err(status),
                }
            }
            Action::CreateSub { of, namespace, name, subresource, object } => {
                let options = CreateOptions { namespace, subresource: Some((name, subresource)) };
                self.api.create(&of, object, options).await?;
            }
            Action::Update { of, subresource, object } => {
                let object = self.api.update(&of, subresource, object).await?;
                self.wrote(&of, object);
            }
            Action::Patch { of, subresource, namespace, name, kind, patch } => {
                let patch = match kind {
                    PatchKind::Json => Patch::Json(patch),
                    PatchKind::Merge => Patch::Merge(patch),
                    PatchKind::Strategic => Patch::Strategic(patch),
                };
                let object = self.api.patch(&of, subresource, namespace.as_deref(), &name, patch).await?;
                self.wrote(&of, object);
            }
            Action::Delete(deletion) => {
                let deletion = delete(self.api.clone(), deletion).await?;
                self.deleted(deletion);
            }
            Action::Spread(spread) => self.spread(spread).await?,
            Action::Event(regarding, text) => self.done.events.push((regarding, text)),
            Action::Verify { of, namespace, name, uid } => {
                let found = match self.api.get(&of, namespace.as_deref(), &name).await {
                    Ok(object) => Some(object).filter(|object| object.header.uid.to_string() == uid),
                    Err(status) if status.is_not_found() => None,
                    Err(status) => return Err(status),
                };
                let waits = found.as_ref().is_some_and(|object| {
                    object.header.deleting_since.is_some()
                        && object.header.finalizers.iter().any(|one| &**one == "foregroundDeletion")
                });
                let exists = found.is_some();
                self.done.news.push(News::Verified { uid, exists, waits_for_dependents: waits });
            }
            Action::Review { user, of, verb, subresource } => {
                let allowed = self.review(user, &of, verb, subresource).await?;
                self.done.news.push(News::Reviewed { subresource, allowed });
            }
            Action::Purge { of, namespace } => {
                let news = self.purge(&of, &namespace).await;
                self.done.news.push(news);
            }
            Action::Count { of, namespace } => {
                let options = ListOptions { namespace: Some(namespace), ..ListOptions::default() };
                let count = self.api.list(&of, options).await?.items.len();
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                self.done.news.push(News::Counted { resource: of.group_resource(), count });
            }
            Action::Sign { object, profile } => self.sign(object, profile).await?,
        }
        Ok(())
    }

    /// A SubjectAccessReview, so that RBAC and whatever else authorizes has its say.
    async fn review(&self, user: Subject, of: &Gvr, verb: &str, subresource: &str) -> Result<bool, Status> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
                "resourceAttributes": {
                    "group": of.group, "version": "*", "resource": of.resource,
                    "subresource": subresource, "verb": verb,
                },
            },
        });
        let reviews = Gvr::new("authorization.k8s.io", "v1", "subjectaccessreviews");
        let review = Document::from_value(review).unwrap_or_default();
        let answer = self.api.create(&reviews, review, CreateOptions::default()).await?;
        Ok(answer.field("status.allowed").is_some_and(|allowed| allowed == true))
    }

    fn wrote(&mut self, of: &Gvr, object: Arc<Object>) {
        if let Some(id) = self.catalog.by_gvr(of) {
            self.done.wrote.push((id, object));
        }
    }
    fn deleted(&mut self, deletion: Deletion) {
        if let Some(id) = self.catalog.by_gvr(&deletion.of) {
            self.done.deleted.push((id, deletion));
        }
    }

    /// Creates, then deletes, in batches of 1, 2, 4, …; stops behind the first batch with a failure.
    async fn spread(&mut self, spread: Spread) -> Result<(), Status> {
        let Spread { regarding, creates, deletes, created, create_failed, deleted, delete_failed } = spread;
        let mut say = |warning: bool, (reason, words): (&'static str, &'static str), rest: &str| {
            if let Some(regarding) = &regarding
                && !reason.is_empty()
            {
                let text = EventText { warning, reason, message: format!("{words}{rest}"), action: "" };
                self.done.events.push((regarding.clone(), text));
            }
        };
        let (mut wrote, mut gone) = (Vec::new(), Vec::new());
        let mut failure = None;
        let mut creates = creates.into_iter().peekable();
        let mut size = 1;
        while creates.peek().is_some() && failure.is_none() {
            let mut batch = Vec::new();
            for (of, namespace, object) in creates.by_ref().take(size) {
                batch.push(create_one(self.api.clone(), of, namespace, object));
            }
            for (of, answer) in join_all(batch).await {
                match answer {
                    Ok(object) => {
                        say(false, created, &object.header.name);
                        wrote.push((of, object));
                    }
                    Err(status) if status.is_already_exists() => {}
                    Err(status) => {
                        // Nothing can be made in a namespace that is going away, and everybody knows.
                        if !is_namespace_terminating(&status) {
                            say(true, create_failed, &status.message);
                        }
                        failure = Some(status);
                    }
                }
            }
            size = (size * 2).min(SPREAD_MOST);
        }
        let mut deletes = deletes.into_iter().peekable();
        size = 1;
        while deletes.peek().is_some() && failure.is_none() {
            let mut batch = Vec::new();
            for deletion in deletes.by_ref().take(size) {
                batch.push(delete(self.api.clone(), deletion));
            }
            for answer in join_all(batch).await {
                match answer {
                    Ok(deletion) => {
                        say(false, deleted, &deletion.name);
                        gone.push(deletion);
                    }
                    Err(status) => {
                        say(true, delete_failed, &status.message);
                        failure = Some(status);
                    }
                }
            }
            size = (size * 2).min(SPREAD_MOST);
        }
        for (of, object) in wrote {
            self.wrote(&of, object);
        }
        for deletion in gone {
            self.deleted(deletion);
        }
        failure.map_or(Ok(()), Err)
    }

    async fn purge(&mut self, of: &Gvr, namespace: &str) -> News {
        let resource = of.group_resource();
        // No namespace: all of the cluster.
        let within = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        let options = ListOptions { namespace: within, ..ListOptions::default() };
        let mut failed = None;
        let found = match self.api.list(of, options.clone()).await {
            Ok(list) => list.items,
            // Not served: nothing of it can be there.
            Err(status) if matches!(status.code, 404 | 405) => Vec::new(),
            Err(status) => {
                let error = Some(status.message);
                return News::Purged { resource, left: 0, finalizers: Vec::new(), error };
            }
        };
        if found.is_empty() {
            return News::Purged { resource, left: 0, finalizers: Vec::new(), error: None };
        }
        let mut deletes = Vec::new();
        for object in &found {
            if object.header.deleting_since.is_none() {
                deletes.push(purge_one(self.api.clone(), of.clone(), object.clone()));
            }
        }
        let mut answers = futures::stream::iter(deletes).buffer_unordered(PURGE_MOST);
        while let Some(answer) = answers.next().await {
            match answer {
                Err(status) if !status.is_not_found() && !status.is_conflict() => {
                    failed = Some(status.message)
                }
                _ => {}
            }
        }
        drop(answers);
        let left = match self.api.list(of, options).await {
            Ok(list) => list.items,
            Err(status) => {
                failed = Some(status.message);
                found
            }
        };
        let mut finalizers: Vec<String> =
            left.iter().flat_map(|object| &object.header.finalizers).map(ToString::to_string).collect();
        finalizers.sort();
        News::Purged { resource, left: left.len(), finalizers, error: failed }
    }

    async fn sign(&mut self, mut object: Document, profile: &'static str) -> Result<(), Status> {
        let Some(signer) = &self.signer else { return Ok(()) };
        let request = object.get_str("spec.request").and_then(|text| BASE64.decode(text).ok());
        let request = request.and_then(|bytes| String::from_utf8(bytes).ok());
        let usages = object.get_array("spec.usages").iter().filter_map(|one| one.as_str().map(str::to_owned));
        let lifetime =
            object.get_i64("spec.expirationSeconds").and_then(|seconds| u64::try_from(seconds).ok());
        let profile = SignProfile {
            signer_name: profile.to_owned(),
            usages: usages.collect(),
            lifetime: lifetime.map(Duration::from_secs),
        };
        let signed = match request {
            Some(request) => signer.sign(&request, &profile),
            None => Err(SignError::BadRequest("spec.request is not a PEM block in base64".to_owned())),
        };
        match signed {
            Ok(chain) => {
                object.set("status.certificate", BASE64.encode(chain));
                let of = Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests");
                let object = self.api.update(&of, Some("status"), object).await?;
                self.wrote(&of, object);
            }
            Err(SignError::BadRequest(message)) => self.done.news.push(News::SignFailed { message }),
            Err(err @ SignError::Unavailable(_)) => {
                tracing::warn!(request = object.name(), error = %err, "certificate not signed");
                return Err(Status::unavailable("the signer is not available"));
            }
        }
        Ok(())
    }
}

async fn create_one(
    api: SharedApi,
    of: Gvr,
    namespace: Option<String>,
    object: Document,
) -> (Gvr, Result<Arc<Object>, Status>) {
    let answer = api.create(&of, object, CreateOptions { namespace, subresource: None }).await;
    (of, answer)
}

async fn purge_one(api: SharedApi, of: Gvr, object: Arc<Object>) -> Result<(), Status> {
    let options = DeleteOptions {
        propagation: Some(Propagation::Background),
        uid: Some(object.header.uid.to_string()),
        ..DeleteOptions::default()
    };
    api.delete(&of, object.header.namespace.as_deref(), &object.header.name, options).await
}

/// Gone already, or another object by now, is as good as deleted.
async fn delete(api: SharedApi, deletion: Deletion) -> Result<Deletion, Status> {
    let options = DeleteOptions {
        propagation: match deletion.propagation {
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(_) => Some(Propagation::Background),
            None => None,
        },
        grace_period_seconds: deletion.grace_period_seconds,
        uid: Some(deletion.uid.clone()).filter(|uid| !uid.is_empty()),
        resource_version: deletion.resource_version.clone(),
    };
    match api.delete(&deletion.of, deletion.namespace.as_deref(), &deletion.name, options).await {
        Ok(()) => Ok(deletion),
        Err(status) if status.is_not_found() => Ok(deletion),
        Err(status) if status.is_conflict() && deletion.resource_version.is_none() => Ok(deletion),
        Err(status) => Err(status),
    }
}

pub(crate) fn is_namespace_terminating(status: &Status) -> bool {
    status.is(Reason::Forbidden)
        && status
            .details
            .as_ref()
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
}
