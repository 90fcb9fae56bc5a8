//! The `authorizer` of policies and match conditions: asking whether somebody may do something.
//!
//! Whoever evaluates gives an [`Authorize`]; the chain of calls in the expression gathers the [`Question`].

use std::sync::Arc;

/// Answers questions about permissions. Must not block: it is called in the middle of an evaluation.
pub trait Authorize: Send + Sync {
    fn check(&self, question: &Question) -> Decision;
}

/// Who wants to do what. Fields that the expression left open are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    pub verb: String,
    /// Asked on behalf of this service account (namespace, name), and not of the one who made the request.
    pub service_account: Option<(String, String)>,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A path that is no resource's: `/healthz`.
    Path(String),
    Resource(ResourceQuestion),
}

impl Default for What {
    fn default() -> What {
        What::Path(String::new())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceQuestion {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// As written; one that cannot be read counts as none.
    pub field_selector: String,
    pub label_selector: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// An authorizer, or a question on its way.
#[derive(Clone)]
pub struct AuthorizerValue {
    pub(crate) by: Arc<dyn Authorize>,
    pub(crate) service_account: Option<(String, String)>,
    pub(crate) stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Authorizer,
    Path(String),
    Group(String),
    Resource(ResourceQuestion),
    Decision(Decision),
}

impl std::fmt::Debug for AuthorizerValue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("AuthorizerValue").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl AuthorizerValue {
    /// What the variable `authorizer` stands for.
    pub fn new(by: Arc<dyn Authorize>) -> AuthorizerValue {
        AuthorizerValue { by, service_account: None, stage: Stage::Authorizer }
    }
    /// What the variable `authorizer.requestResource` stands for.
    pub fn of_resource(by: Arc<dyn Authorize>, resource: ResourceQuestion) -> AuthorizerValue {
        AuthorizerValue { by, service_account: None, stage: Stage::Resource(resource) }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path(_) => "kubernetes.authorization.PathCheck",
            Stage::Group(_) => "kubernetes.authorization.GroupCheck",
            Stage::Resource(_) => "kubernetes.authorization.ResourceCheck",
            Stage::Decision(_) => "kubernetes.authorization.Decision",
        }
    }
    pub(crate) fn same(&self, other: &AuthorizerValue) -> bool {
        Arc::ptr_eq(&self.by, &other.by)
            && self.stage == other.stage
            && self.service_account == other.service_account
    }
}
