//! RBAC: rules that bindings grant to users, groups and service accounts.
//!
//! [`Rbac`] follows the four RBAC collections of a cluster's key space. It compares persistent maps by
//! pointer, so an unchanged policy costs a few loads however busy the cluster is; a changed one is
//! indexed anew from rules that were parsed once per process (`index`). What a rule says is in `rule`,
//! who may write rules in `escalation`.

mod escalation;
mod index;
mod rule;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use store_mvcc::{Revision, Snapshot, Space};
use tenant_client::{Access, Authorizer, Decision, Target, UserInfo};

pub use escalation::NoEscalation;
use index::{Binding, Index, RoleRef};
pub use rule::{Rule, covers};

/// The collections in the order in which [`Policy::snapshots`] holds them.
const COLLECTIONS: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Decides by the roles and bindings in one cluster's key space.
pub struct Rbac {
    space: Arc<Space>,
    policy: ArcSwapOption<Policy>,
    /// Held while a changed policy is indexed, so that it happens once and not in every request.
    indexing: Mutex<()>,
}

/// An index and what it was made from.
struct Policy {
    /// The newest revision at which `snapshots` were found to be still true.
    checked: Revision,
    snapshots: [Snapshot; 4],
    index: Arc<Index>,
}

/// A rule somebody holds, and the binding that gives it.
#[derive(Debug, Clone)]
pub struct Grant {
    pub rule: Rule,
    /// `ClusterRoleBinding "x" of ClusterRole "y" to Group "z"`
    pub source: String,
}

impl std::fmt::Debug for Rbac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rbac").finish_non_exhaustive()
    }
}

impl Rbac {
    pub fn new(space: Arc<Space>) -> Rbac {
        Rbac { space, policy: ArcSwapOption::empty(), indexing: Mutex::new(()) }
    }

    /// Everything `user` holds in `namespace` (empty: cluster-wide bindings alone). The second part tells
    /// of bindings whose role is missing, as `kubectl auth can-i --list` shows them.
    pub fn grants(&self, user: &UserInfo, namespace: &str) -> (Vec<Grant>, Vec<String>) {
        let mut grants = Vec::new();
        let missing = self.visit(user, namespace, |source, rule| {
            grants.push(Grant { rule: rule.clone(), source: source.to_string() });
            true
        });
        (grants, missing)
    }

    /// Rules of a role that a binding in `namespace` may refer to; `None` when there is no such role.
    pub fn rules_of(&self, kind: &str, namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
        let reference = RoleRef { kind: kind.to_owned(), name: name.to_owned() };
        self.index().rules(&reference, namespace).map(|role| role.rules())
    }

    /// Calls `visitor` with each rule and its source until it says stop; gives what couldn't be resolved.
    fn visit(
        &self,
        user: &UserInfo,
        namespace: &str,
        mut visitor: impl FnMut(&Source<'_>, &Rule) -> bool,
    ) -> Vec<String> {
        let index = self.index();
        let mut missing = Vec::new();
        let mut one = |binding: &Binding, within: &str| {
            let Some(subject) = binding.subject_for(user, within) else { return true };
            let Some(role) = index.rules(&binding.role, within) else {
                missing.push(binding.role.not_found());
                return true;
            };
            let source = Source { binding, subject, within };
            role.rules().iter().all(|rule| visitor(&source, rule))
        };
        let mut going = true;
        for binding in index.cluster_bindings(user) {
            going = one(binding, "");
            if !going {
                break;
            }
        }
        if going && !namespace.is_empty() {
            for binding in index.bindings_in(namespace) {
                if !one(binding, namespace) {
                    break;
                }
            }
        }
        missing
    }

    /// The index of the policy as it is now.
    fn index(&self) -> Arc<Index> {
        if let Some(index) = self.current() {
            return index;
        }
        let _indexing = self.indexing.lock();
        // Somebody else may have finished while this one waited.
        if let Some(index) = self.current() {
            return index;
        }
        let snapshots = COLLECTIONS.map(|name| self.space.snapshot(name));
        let _before = self.policy.load_full();
        let index = Index::shared(&snapshots);
        self.keep(snapshots, index.clone());
        index
    }

    /// The index at hand, if what it was made from is unchanged.
    fn current(&self) -> Option<Arc<Index>> {
        let policy = self.policy.load();
        let policy = policy.as_ref()?;
        let revision = self.space.revision();
        if revision == policy.checked {
            return Some(policy.index.clone());
        }
        let now = COLLECTIONS.map(|name| self.space.snapshot(name));
        let same = now.iter().zip(&policy.snapshots).all(|(now, then)| {
            // Two empty maps needn't share a root.
            now.entries.ptr_eq(&then.entries) || (now.entries.is_empty() && then.entries.is_empty())
        });
        if !same {
            return None;
        }
        let index = policy.index.clone();
        self.keep(now, index.clone());
        Some(index)
    }

    fn keep(&self, snapshots: [Snapshot; 4], index: Arc<Index>) {
        // The oldest of the four moments is the one up to which all are known.
        let checked = snapshots.iter().map(|snapshot| snapshot.revision).min().unwrap_or_default();
        self.policy.store(Some(Arc::new(Policy { checked, snapshots, index })));
    }
}

impl Authorizer for Rbac {
    fn decide(&self, user: &UserInfo, access: &Access) -> Decision {
        let namespace = match &access.target {
            Target::Resource { namespace, .. } => namespace.as_str(),
            Target::Path(_) => "",
        };
        let mut allowed = None;
        let missing = self.visit(user, namespace, |source, rule| {
            if rule.allows(access) {
                allowed = Some(format!("RBAC: allowed by {source}"));
            }
            allowed.is_none()
        });
        match allowed {
            Some(reason) => Decision::Allow { reason },
            None if missing.is_empty() => Decision::NoOpinion { reason: String::new() },
            None if missing.len() == 1 => Decision::NoOpinion { reason: format!("RBAC: {}", missing[0]) },
            None => Decision::NoOpinion { reason: format!("RBAC: [{}]", missing.join(", ")) },
        }
    }
}

/// Where a rule came from, worded as upstream words it.
struct Source<'a> {
    binding: &'a Binding,
    subject: usize,
    within: &'a str,
}

impl std::fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Source { binding, within, .. } = self;
        if within.is_empty() {
            write!(f, "ClusterRoleBinding {:?}", &*binding.name)?;
        } else {
            write!(f, "RoleBinding {:?}", format!("{}/{within}", binding.name))?;
        }
        let subject = &binding.subjects[self.subject];
        write!(f, " of {} {:?} to {}", binding.role.kind, binding.role.name, subject.describe(within))
    }
}

#[cfg(test)]
pub(crate) mod tests;
