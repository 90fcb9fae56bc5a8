//! Who asks, and what for: the words that authentication, authorization, admission and audit share.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_machinery::FieldSelector;
use async_trait::async_trait;

/// `authentication.k8s.io/v1` UserInfo.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub const MASTERS: &'static str = "system:masters";
    pub const AUTHENTICATED: &'static str = "system:authenticated";
    pub const UNAUTHENTICATED: &'static str = "system:unauthenticated";

    /// `system:kube-scheduler` and the like.
    pub fn component(name: &str) -> UserInfo {
        UserInfo {
            name: name.to_owned(),
            groups: vec![UserInfo::AUTHENTICATED.to_owned()],
            ..UserInfo::default()
        }
    }
    /// A ServiceAccount: how the controllers of kube-controller-manager identify themselves.
    pub fn service_account(namespace: &str, name: &str) -> UserInfo {
        UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                UserInfo::AUTHENTICATED.to_owned(),
            ],
            ..UserInfo::default()
        }
    }
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }
}

/// What is asked for, as RBAC sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the
    /// lower-case HTTP method for a path.
    pub verb: String,
    pub target: Target,
    /// The field selector of a list, watch or deletecollection: nodes may list their own pods only.
    pub fields: FieldSelector,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Resource {
        group: String,
        version: String,
        resource: String,
        /// Empty for the object itself.
        subresource: String,
        /// Empty for cluster scope or all namespaces.
        namespace: String,
        /// Empty where the request names no object.
        name: String,
    },
    /// `/healthz`, `/metrics`, …
    Path(String),
}

impl Default for Target {
    fn default() -> Target {
        Target::Path(String::new())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow {
        reason: String,
    },
    /// Nobody said yes.
    NoOpinion {
        reason: String,
    },
    /// Somebody said no.
    Deny {
        reason: String,
    },
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allow { .. })
    }
}

/// Answers from memory: it is asked once or more per request.
pub trait Authorizer: Send + Sync + 'static {
    fn decide(&self, user: &UserInfo, access: &Access) -> Decision;
}

pub type SharedAuthorizer = Arc<dyn Authorizer>;

/// A byte stream to something only a node can reach.
pub trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

/// Opens connections from the API server to or through the nodes of its cluster (DESIGN §7: one outbound
/// tunnel per node carries them).
#[async_trait]
pub trait NodeDialer: Send + Sync + 'static {
    /// To `address` (`127.0.0.1:10250`, `10.244.0.7:8080`) as seen from `node`.
    async fn dial(&self, node: &str, address: std::net::SocketAddr) -> std::io::Result<Box<dyn Stream>>;
    /// Nodes with an open tunnel, for choosing one to reach a Service through.
    fn connected(&self) -> Vec<String>;
}
