//! Tokens of people for clusters, kept while they are good.

use std::collections::HashMap;

use base_clock::Timestamp;
use base_ids::TenantId;
use fleet_model::Role;
use parking_lot::Mutex;

/// What the contract with cells says: long enough for a page, short enough to be no credential to steal.
pub(crate) const LIFETIME_SECONDS: u64 = 600;

/// One with less than this left is not used for a new request any more.
const SPARE_SECONDS: i64 = 120;

/// Tokens kept at most; when it is full all are asked for again, which costs a call each.
const MOST: usize = 4096;

/// A token and the CA of the cluster that it is for.
#[derive(Debug, Clone)]
pub(crate) struct Granted {
    pub(crate) token: String,
    pub(crate) ca_pem: String,
    pub(crate) expires_at_seconds: i64,
}

/// What somebody is in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Person {
    pub(crate) cluster: TenantId,
    pub(crate) user: String,
    pub(crate) group: &'static str,
}

impl Person {
    pub(crate) fn new(cluster: TenantId, user: String, role: Role) -> Person {
        Person { cluster, user, group: group(role) }
    }
}

/// The group that a role in an organisation is in its clusters.
fn group(role: Role) -> &'static str {
    match role {
        Role::Viewer => "roadstead:viewers",
        Role::Developer | Role::Admin | Role::Provider => "system:masters",
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<HashMap<Person, Granted>>);

impl Tokens {
    pub(crate) fn find(&self, person: &Person, now: Timestamp) -> Option<Granted> {
        let known = self.0.lock();
        let granted = known.get(person)?;
        (granted.expires_at_seconds - SPARE_SECONDS > now.as_second()).then(|| granted.clone())
    }

    /// The cluster took it no more: its person may have been removed and have come back since.
    pub(crate) fn forget(&self, person: &Person) {
        self.0.lock().remove(person);
    }

    pub(crate) fn keep(&self, person: Person, granted: Granted) {
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(person, granted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_used_while_it_is_good_and_for_one_person_only() {
        let tokens = Tokens::default();
        let cluster = TenantId::generate();
        let ann = Person::new(cluster, "ann@example.com".to_owned(), Role::Admin);
        let granted = Granted { token: "t".to_owned(), ca_pem: String::new(), expires_at_seconds: 1000 };
        tokens.keep(ann.clone(), granted);
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        for (row, person, now, found) in [
            ("fresh", ann.clone(), 400, true),
            ("about to end", ann.clone(), 880, false),
            ("the same person with less", Person::new(cluster, ann.user.clone(), Role::Viewer), 400, false),
            ("another person", Person::new(cluster, "bob@example.com".to_owned(), Role::Admin), 400, false),
            ("another cluster", Person::new(TenantId::generate(), ann.user.clone(), Role::Admin), 400, false),
        ] {
            assert_eq!(tokens.find(&person, at(now)).is_some(), found, "{row}");
        }
    }
}
