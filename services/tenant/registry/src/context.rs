//! What comes with a request, and what goes back.

use std::sync::Arc;

use api_machinery::{Document, FieldSelector, LabelSelector, Object, Status};
use store_mvcc::Term;
use tenant_admission::{Annotations, Options, Warnings};
use tenant_client::{DeleteOptions, UserInfo};

/// Everything about a request that is not what it asks for.
#[derive(Debug, Clone, Default)]
pub struct Context {
    pub user: UserInfo,
    /// Decide everything, store nothing.
    pub dry_run: bool,
    /// Who owns the fields that this request sets; from `fieldManager` or else the user agent's first word.
    pub field_manager: String,
    pub field_validation: FieldValidation,
    /// Of loops that run on the leader: a write is refused in any other term.
    pub fence: Option<Term>,
    pub request_id: Arc<str>,
    /// For `Warning` headers.
    pub warnings: Warnings,
    /// For the audit event.
    pub annotations: Annotations,
    /// Part of a request that was admitted as a whole: what a binding or an eviction does to its pod.
    pub admitted: bool,
}

impl Context {
    /// A loop of this process asks. Of custom resources loops read metadata alone, which no conversion changes: they
    /// must not stand still because a webhook of the cluster's does.
    pub(crate) fn is_loop(&self) -> bool {
        self.fence.is_some()
    }
    pub fn of(user: UserInfo) -> Context {
        Context { field_manager: user.name.clone(), user, ..Context::default() }
    }
    /// As admission is told them.
    pub(crate) fn options<'a>(&'a self, delete: Option<&'a DeleteOptions>) -> Options<'a> {
        let field_validation = match self.field_validation {
            FieldValidation::Ignore => "Ignore",
            // What the server does unless it is told.
            FieldValidation::Warn => "",
            FieldValidation::Strict => "Strict",
        };
        Options { field_manager: &self.field_manager, field_validation, delete }
    }
}

/// What to do about unknown and duplicate fields. Bodies are checked where they are decoded; here it
/// matters for patches, whose result is known only after they were applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// `resourceVersion` as the client sent it; empty when it did not.
#[derive(Debug, Clone, Default)]
pub struct GetOptions {
    pub resource_version: String,
}

#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// 0 for no limit.
    pub limit: u64,
    pub continue_token: String,
    pub resource_version: String,
    /// Empty, `Exact` or `NotOlderThan`.
    pub resource_version_match: String,
}

#[derive(Debug, Clone, Default)]
pub struct WatchOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    pub resource_version: String,
    pub resource_version_match: String,
    pub send_initial_events: Option<bool>,
    pub allow_bookmarks: bool,
}

#[derive(Debug, Clone, Default)]
pub struct List {
    pub revision: u64,
    pub items: Vec<Arc<Object>>,
    /// Where the next page begins; `None` on the last one.
    pub continue_token: Option<String>,
    /// Known only for lists without selectors.
    pub remaining: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Written {
    pub object: Arc<Object>,
    /// An update or apply that created: 201.
    pub created: bool,
}

#[derive(Debug, Clone)]
pub enum Deleted {
    /// Gone; the body to answer with is a `Status`, or for some kinds the object as it was last.
    Gone(Output),
    /// Finalizers or a grace period hold it back: the object as it is now.
    Pending(Arc<Object>),
}

/// What a subresource answers with.
#[derive(Debug, Clone)]
pub enum Output {
    Object(Arc<Object>),
    /// Of a kind that is not stored (`Scale`), with its apiVersion and kind.
    Document(Document),
    Status(Box<Status>),
}
