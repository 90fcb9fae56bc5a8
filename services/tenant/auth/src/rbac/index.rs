//! Roles and bindings, parsed once per process and arranged to be asked.
//!
//! Default objects have the same bytes in every cluster (the store keeps those bytes once), so a parsed
//! object is remembered by where its bytes are; and clusters whose policy is the same objects throughout
//! share one index. A fresh cluster thus costs no rules at all.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use store_mvcc::{Entry, Snapshot};
use tenant_client::UserInfo;

use super::rule::Rule;
use crate::stored;

/// A role's rules.
#[derive(Debug)]
pub(super) struct Role {
    rules: Arc<[Rule]>,
}

impl Role {
    pub(super) fn rules(&self) -> Arc<[Rule]> {
        self.rules.clone()
    }
}

#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: Box<str>,
    pub(super) role: RoleRef,
    pub(super) subjects: Vec<Subject>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct RoleRef {
    pub(super) kind: String,
    pub(super) name: String,
}

impl RoleRef {
    pub(super) fn not_found(&self) -> String {
        match self.kind.as_str() {
            "Role" => format!("role.rbac.authorization.k8s.io {:?} not found", self.name),
            "ClusterRole" => format!("clusterrole.rbac.authorization.k8s.io {:?} not found", self.name),
            other => format!("unsupported role reference kind: {other:?}"),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Subject {
    /// `within` is the binding's namespace, which a service account's defaults to.
    fn is(&self, user: &UserInfo, within: &str) -> bool {
        match self.kind.as_str() {
            "User" => self.name == user.name,
            "Group" => user.is_in(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { within } else { &self.namespace };
                !namespace.is_empty()
                    && user
                        .name
                        .strip_prefix("system:serviceaccount:")
                        .and_then(|rest| rest.split_once(':'))
                        .is_some_and(|(of, name)| of == namespace && name == self.name)
            }
            _ => false,
        }
    }

    pub(super) fn describe(&self, within: &str) -> String {
        if self.kind == "ServiceAccount" {
            let namespace = if self.namespace.is_empty() { within } else { &self.namespace };
            format!("{} {:?}", self.kind, format!("{}/{namespace}", self.name))
        } else {
            format!("{} {:?}", self.kind, self.name)
        }
    }

    /// Under which user or group a cluster-wide binding is found.
    fn index_key(&self) -> Option<(bool, String)> {
        match self.kind.as_str() {
            "User" => Some((false, self.name.clone())),
            "Group" => Some((true, self.name.clone())),
            "ServiceAccount" if !self.namespace.is_empty() => {
                Some((false, format!("system:serviceaccount:{}:{}", self.namespace, self.name)))
            }
            _ => None,
        }
    }
}

impl Binding {
    /// The first subject that means `user`.
    pub(super) fn subject_for(&self, user: &UserInfo, within: &str) -> Option<usize> {
        self.subjects.iter().position(|subject| subject.is(user, within))
    }
}

/// One of the four kinds, parsed, with the bytes it came from: their address is its identity, so they
/// must live as long as it does.
#[derive(Debug)]
struct Parsed<T> {
    body: Bytes,
    value: T,
}

/// Everything one cluster's RBAC says.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By `(namespace/)name`, in the names' own allocation.
    cluster_roles: HashMap<Arc<str>, Arc<Parsed<Role>>>,
    roles: HashMap<Arc<str>, Arc<Parsed<Role>>>,
    cluster_bindings: Vec<Arc<Parsed<Binding>>>,
    /// Positions in `cluster_bindings` by (is a group, name).
    by_subject: HashMap<(bool, String), Vec<u32>>,
    bindings: HashMap<Box<str>, Vec<Arc<Parsed<Binding>>>>,
}

/// Indexes by the hash of the identities of all their objects. Weak: the last cluster takes it along.
static INDEXES: LazyLock<Mutex<HashMap<u64, Weak<Index>>>> = LazyLock::new(Mutex::default);
static ROLES: LazyLock<Mutex<ByBody<Role>>> = LazyLock::new(Mutex::default);
static BINDINGS: LazyLock<Mutex<ByBody<Binding>>> = LazyLock::new(Mutex::default);

type ByBody<T> = HashMap<(usize, usize), Weak<Parsed<T>>>;

impl Index {
    /// The index of these four snapshots (in the order of `COLLECTIONS`): another cluster's if it is the
    /// same objects, else a new one, in which only what nobody has parsed yet is parsed. The caller keeps
    /// the index it had until this returns, so that what both share stays parsed.
    pub(super) fn shared(snapshots: &[Snapshot; 4]) -> Arc<Index> {
        let identity = identity(snapshots);
        if let Some(index) = INDEXES.lock().get(&identity).and_then(Weak::upgrade)
            && index.is_of(snapshots)
        {
            return index;
        }
        let index = Arc::new(Index::build(snapshots));
        let mut indexes = INDEXES.lock();
        if indexes.len() >= 1024 && indexes.len().is_power_of_two() {
            indexes.retain(|_, index| index.strong_count() > 0);
        }
        indexes.insert(identity, Arc::downgrade(&index));
        index
    }

    fn build(snapshots: &[Snapshot; 4]) -> Index {
        let [cluster_roles, cluster_bindings, roles, bindings] = snapshots;
        let mut index = Index::default();
        for entry in cluster_roles.entries.values() {
            if let Some(role) = parsed(&ROLES, entry, parse_role) {
                index.cluster_roles.insert(entry.key.name.clone(), role);
            }
        }
        for entry in roles.entries.values() {
            if let Some(role) = parsed(&ROLES, entry, parse_role) {
                index.roles.insert(entry.key.name.clone(), role);
            }
        }
        for entry in cluster_bindings.entries.values() {
            let Some(binding) = parsed(&BINDINGS, entry, parse_binding) else { continue };
            let at = u32::try_from(index.cluster_bindings.len()).unwrap_or(u32::MAX);
            for subject in &binding.value.subjects {
                let Some(key) = subject.index_key() else { continue };
                let places = index.by_subject.entry(key).or_default();
                if places.last() != Some(&at) {
                    places.push(at);
                }
            }
            index.cluster_bindings.push(binding);
        }
        for entry in bindings.entries.values() {
            let Some(binding) = parsed(&BINDINGS, entry, parse_binding) else { continue };
            let Some((namespace, _)) = entry.key.name.split_once('/') else { continue };
            match index.bindings.get_mut(namespace) {
                Some(list) => list.push(binding),
                None => {
                    index.bindings.insert(namespace.into(), vec![binding]);
                }
            }
        }
        index
    }

    /// Guards against two policies with one hash: every role and cluster binding must be the same bytes.
    fn is_of(&self, snapshots: &[Snapshot; 4]) -> bool {
        let [cluster_roles, cluster_bindings, roles, bindings] = snapshots;
        let same_roles = |index: &HashMap<Arc<str>, Arc<Parsed<Role>>>, of: &Snapshot| {
            index.len() == of.entries.len()
                && of.entries.values().all(|entry| {
                    index.get(&entry.key.name).is_some_and(|role| same(&role.body, &entry.value.body))
                })
        };
        let held: usize = self.bindings.values().map(Vec::len).sum();
        same_roles(&self.cluster_roles, cluster_roles)
            && same_roles(&self.roles, roles)
            && self.cluster_bindings.len() == cluster_bindings.entries.len()
            && (self.cluster_bindings.iter().zip(cluster_bindings.entries.values()))
                .all(|(binding, entry)| same(&binding.body, &entry.value.body))
            && held == bindings.entries.len()
            && bindings.entries.values().all(|entry| {
                let namespace = entry.key.name.split_once('/').map_or("", |(namespace, _)| namespace);
                self.bindings_of(namespace).iter().any(|binding| same(&binding.body, &entry.value.body))
            })
    }

    pub(super) fn rules(&self, role: &RoleRef, namespace: &str) -> Option<&Role> {
        let found = match role.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(role.name.as_str()),
            "Role" if !namespace.is_empty() => self.roles.get(format!("{namespace}/{}", role.name).as_str()),
            _ => None,
        };
        found.map(|parsed| &parsed.value)
    }

    /// Cluster-wide bindings that name `user` or one of its groups; one may come twice.
    pub(super) fn cluster_bindings<'a>(
        &'a self,
        user: &'a UserInfo,
    ) -> impl Iterator<Item = &'a Binding> + 'a {
        let names = std::iter::once((false, &user.name)).chain(user.groups.iter().map(|group| (true, group)));
        names
            .filter_map(|(is_group, name)| self.by_subject.get(&(is_group, name.clone())))
            .flatten()
            .filter_map(|&at| self.cluster_bindings.get(at as usize))
            .map(|parsed| &parsed.value)
    }

    pub(super) fn bindings_in(&self, namespace: &str) -> impl Iterator<Item = &Binding> {
        self.bindings_of(namespace).iter().map(|parsed| &parsed.value)
    }

    fn bindings_of(&self, namespace: &str) -> &[Arc<Parsed<Binding>>] {
        self.bindings.get(namespace).map_or(&[], Vec::as_slice)
    }
}

fn place(body: &Bytes) -> (usize, usize) {
    (body.as_ptr() as usize, body.len())
}

fn same(one: &Bytes, other: &Bytes) -> bool {
    place(one) == place(other)
}

fn identity(snapshots: &[Snapshot; 4]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for snapshot in snapshots {
        snapshot.entries.len().hash(&mut hasher);
        for entry in snapshot.entries.values() {
            entry.key.name.hash(&mut hasher);
            place(&entry.value.body).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The entry parsed, by anybody in this process. What can't be parsed grants nothing.
fn parsed<T>(
    known: &Mutex<ByBody<T>>,
    entry: &Entry,
    parse: impl FnOnce(&Entry) -> Option<T>,
) -> Option<Arc<Parsed<T>>> {
    let place = place(&entry.value.body);
    if let Some(found) = known.lock().get(&place).and_then(Weak::upgrade) {
        return Some(found);
    }
    let made = Arc::new(Parsed { body: entry.value.body.clone(), value: parse(entry)? });
    let mut known = known.lock();
    if known.len() >= 1024 && known.len().is_power_of_two() {
        known.retain(|_, one| one.strong_count() > 0);
    }
    known.insert(place, Arc::downgrade(&made));
    Some(made)
}

fn parse_role(entry: &Entry) -> Option<Role> {
    #[derive(Deserialize)]
    struct Stored {
        #[serde(default)]
        rules: Option<Vec<Rule>>,
    }
    let Stored { rules } = stored::body(entry)?;
    Some(Role { rules: rules.unwrap_or_default().into() })
}

fn parse_binding(entry: &Entry) -> Option<Binding> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stored {
        #[serde(default)]
        role_ref: RoleRef,
        #[serde(default)]
        subjects: Option<Vec<Subject>>,
    }
    let Stored { role_ref, subjects } = stored::body(entry)?;
    let name = entry.key.name.rsplit('/').next().unwrap_or_default();
    Some(Binding { name: name.into(), role: role_ref, subjects: subjects.unwrap_or_default() })
}
