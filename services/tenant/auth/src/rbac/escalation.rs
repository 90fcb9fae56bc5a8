//! Nobody grants what they don't hold.
//!
//! A role may be written by who holds all its rules, or the verb `escalate` on it; a binding by who holds
//! all rules of the role it refers to, or the verb `bind` on that role. Masters may do either.

use std::sync::Arc;

use api_machinery::{Document, Gvr, Status};
use async_trait::async_trait;
use tenant_admission::{Admission, Attributes, Operation, SideWrite};
use tenant_client::{Access, Authorizer, Target, UserInfo};

use super::Rbac;
use super::rule::{Rule, covers};
use crate::Authority;

/// Combinations compared for one role: `admin` of a stock cluster, the largest that is granted piecemeal, has
/// about 1,000.
const MAX_PIECES: usize = 8192;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The check as a step of a cluster's admission chain, where every write of roles and bindings passes
/// with its old and new object.
#[derive(Debug, Clone)]
pub struct NoEscalation {
    authority: Arc<Authority>,
}

impl NoEscalation {
    pub fn new(authority: Arc<Authority>) -> NoEscalation {
        NoEscalation { authority }
    }
}

#[async_trait]
impl Admission for NoEscalation {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
        let Some(new) = object.filter(|_| writes && attributes.subresource.is_empty()) else {
            return Ok(Vec::new());
        };
        let (rbac, user, of) = (self.authority.rbac(), attributes.user, attributes.gvr);
        match (&*of.group, &*of.resource) {
            (GROUP, "roles" | "clusterroles") => {
                rbac.check_role_write(&*self.authority, user, of, old, new)?
            }
            (GROUP, "rolebindings" | "clusterrolebindings") => {
                rbac.check_binding_write(&*self.authority, user, of, old, new)?;
            }
            _ => {}
        }
        Ok(Vec::new())
    }
}

impl Rbac {
    /// Whether `user` may write `new` (a Role or ClusterRole) in place of `old`. `authorizer` is the whole
    /// chain. Call it for create and update, after RBAC has allowed the write as such.
    pub fn check_role_write(
        &self,
        authorizer: &dyn Authorizer,
        user: &UserInfo,
        of: &Gvr,
        old: Option<&Document>,
        new: &Document,
    ) -> Result<(), Status> {
        let name = new.name();
        if user.is_in(UserInfo::MASTERS)
            || may(authorizer, user, "escalate", &of.resource, new.namespace(), name)
        {
            return Ok(());
        }
        if old.is_some_and(|old| only_garbage_collection_differs(old, new)) {
            return Ok(());
        }
        let forbidden = |why: String| Status::forbidden(of, name, &why);
        let wanted = rules(new);
        self.confirm_held(user, new.namespace(), &wanted).map_err(forbidden)?;
        let aggregates = |role: &Document| role.get("aggregationRule").is_some_and(|rule| !rule.is_null());
        if aggregates(new) || old.is_some_and(aggregates) {
            // It gathers whatever roles come to carry its labels, so only who holds everything may set it.
            self.confirm_held(user, "", &Rule::full_authority()).map_err(|_| {
                forbidden("must have cluster-admin privileges to use the aggregationRule".to_owned())
            })?;
        }
        Ok(())
    }

    /// Whether `user` may write `new` (a RoleBinding or ClusterRoleBinding) in place of `old`.
    pub fn check_binding_write(
        &self,
        authorizer: &dyn Authorizer,
        user: &UserInfo,
        of: &Gvr,
        old: Option<&Document>,
        new: &Document,
    ) -> Result<(), Status> {
        if user.is_in(UserInfo::MASTERS) || old.is_some_and(|old| only_garbage_collection_differs(old, new)) {
            return Ok(());
        }
        let namespace = new.namespace();
        let kind = new.get_str("roleRef.kind").unwrap_or_default();
        let role = new.get_str("roleRef.name").unwrap_or_default();
        let resource = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
        if may(authorizer, user, "bind", resource, namespace, role) {
            return Ok(());
        }
        let Some(wanted) = self.rules_of(kind, namespace, role) else {
            let of = Gvr { group: GROUP.into(), version: "v1".into(), resource: resource.into() };
            return Err(Status::not_found(&of, role));
        };
        self.confirm_held(user, namespace, &wanted).map_err(|why| Status::forbidden(of, new.name(), &why))
    }

    fn confirm_held(&self, user: &UserInfo, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
        let (grants, unresolved) = self.grants(user, namespace);
        // Rules are compared piece by piece, and a process that hosts many clusters must not take a body apart
        // into more pieces than it can hold.
        let whole = |rule: &&Rule| !grants.iter().any(|grant| grant.rule.covers_piece(rule));
        let pieces = wanted.iter().filter(whole).map(Rule::size).fold(0usize, usize::saturating_add);
        if pieces > MAX_PIECES {
            return Err(format!(
                "rules of {pieces} combinations of verbs, groups, resources and names can not be compared with \
                 those held; {MAX_PIECES} can"
            ));
        }
        let missing = covers(grants.iter().map(|grant| &grant.rule), wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<String> = missing.iter().map(Rule::compact).collect();
        lines.sort();
        let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
        let mut message = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            groups.join(" "),
            lines.join("\n")
        );
        if !unresolved.is_empty() {
            message += &format!("; resolution errors: [{}]", unresolved.join(", "));
        }
        Err(message)
    }
}

fn rules(role: &Document) -> Vec<Rule> {
    // The document was decoded by its field table already, so what isn't a rule can't be here; were it, it
    // would grant nothing when stored either.
    role.get_array("rules").iter().filter_map(|rule| serde_json::from_value(rule.clone()).ok()).collect()
}

fn may(
    authorizer: &dyn Authorizer,
    user: &UserInfo,
    verb: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> bool {
    let target = Target::Resource {
        group: GROUP.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    authorizer.decide(user, &Access { verb: verb.to_owned(), target, ..Access::default() }).is_allowed()
}

/// The garbage collector must be able to finish a deletion whoever wrote the rules.
fn only_garbage_collection_differs(old: &Document, new: &Document) -> bool {
    let bare = |document: &Document| {
        let mut document = document.clone();
        let metadata = document.metadata_mut();
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
            metadata.remove(field);
        }
        document
    };
    bare(old) == bare(new)
}
