//! The chain of authorizers, and how a refusal is worded.

use std::sync::Arc;

use api_machinery::{Details, Gvr, Reason, Status};
use store_mvcc::Space;
use tenant_client::{Access, Authorizer, Decision, Target, UserInfo};

use crate::node::NodeAuthorizer;
use crate::rbac::Rbac;

/// Decides for one cluster: `system:masters` may do everything, then the node authorizer is asked, then
/// RBAC. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Authority {
    node: Arc<NodeAuthorizer>,
    rbac: Arc<Rbac>,
}

impl Authority {
    /// Over the cluster's key space, whose writes it follows.
    pub fn new(space: Arc<Space>) -> Authority {
        Authority { node: Arc::new(NodeAuthorizer::new(space.clone())), rbac: Arc::new(Rbac::new(space)) }
    }
    pub fn rbac(&self) -> &Arc<Rbac> {
        &self.rbac
    }

    /// `Err` with the 403 a client gets when `access` isn't allowed.
    pub fn require(&self, user: &UserInfo, access: &Access) -> Result<(), Status> {
        require(self, user, access)
    }
}

impl Authorizer for Authority {
    fn decide(&self, user: &UserInfo, access: &Access) -> Decision {
        if user.is_in(UserInfo::MASTERS) {
            return Decision::Allow { reason: String::new() };
        }
        // Reasons of those without an opinion are joined by lines, as upstream's union does.
        let node = match self.node.decide(user, access) {
            Decision::NoOpinion { reason } => reason,
            decided => return decided,
        };
        match self.rbac.decide(user, access) {
            Decision::NoOpinion { reason } if !node.is_empty() && !reason.is_empty() => {
                Decision::NoOpinion { reason: format!("{node}\n{reason}") }
            }
            Decision::NoOpinion { reason } if reason.is_empty() => Decision::NoOpinion { reason: node },
            decided => decided,
        }
    }
}

/// `Err` with the 403 a client gets when `authorizer` doesn't allow `access`.
pub(crate) fn require(authorizer: &dyn Authorizer, user: &UserInfo, access: &Access) -> Result<(), Status> {
    match authorizer.decide(user, access) {
        Decision::Allow { .. } => Ok(()),
        Decision::NoOpinion { reason } | Decision::Deny { reason } => Err(forbidden(user, access, &reason)),
    }
}

/// The 403 for `access`, with upstream's words.
pub fn forbidden(user: &UserInfo, access: &Access, reason: &str) -> Status {
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match &access.target {
        Target::Path(path) => {
            let message =
                format!("forbidden: User {:?} cannot {} path {path:?}{because}", user.name, access.verb);
            let mut status = Status::failure(403, Reason::Forbidden, message);
            status.details = Some(Details::default());
            status
        }
        Target::Resource { group, version, resource, subresource, namespace, name } => {
            let full =
                if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
            let scope = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            let of = Gvr {
                group: group.clone().into(),
                version: version.clone().into(),
                resource: resource.clone().into(),
            };
            let why = format!(
                "User {:?} cannot {} resource {full:?} in API group {group:?} {scope}{because}",
                user.name, access.verb
            );
            Status::forbidden(&of, name, &why)
        }
    }
}
