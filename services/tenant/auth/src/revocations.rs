//! Whose certificates and tokens are refused although nothing is wrong with them: their person left, or may less.
//!
//! Given whole by whoever hosts the cluster, which keeps them on disk; so they hold while the manager is away.
//!
//! Not here: who is removed and when (the manager), and what the cluster itself let in, such as accounts of its own.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

/// What was issued to `user` until `before_ms` (since 1970) is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// Empty: everybody whom the manager names.
    pub user: String,
    pub before_ms: i64,
}

/// Those of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Revocations(RwLock<Arc<HashMap<String, i64>>>);

impl Revocations {
    /// In the place of all that were known.
    pub(crate) fn replace(&self, all: impl IntoIterator<Item = Revocation>) {
        let mut known = HashMap::new();
        for Revocation { user, before_ms } in all {
            let before: &mut i64 = known.entry(user).or_insert(before_ms);
            *before = (*before).max(before_ms);
        }
        *self.0.write() = Arc::new(known);
    }

    /// Whether what `user` got in second `issued_seconds` is refused. That second's beginning counts, since no
    /// certificate says more: rather one too many than one too few.
    pub(crate) fn refuses(&self, user: &str, issued_seconds: i64) -> bool {
        let known = self.0.read();
        // Nearly always there are none, and every request asks.
        if known.is_empty() {
            return false;
        }
        let issued_ms = issued_seconds.saturating_mul(1000);
        let after = |name: &str| known.get(name).is_none_or(|before_ms| issued_ms > *before_ms);
        !after(user) || is_person(user) && !after("")
    }
}

/// Whom the manager names: a mail address, or a token of its API. Nodes, accounts and components are none of these.
fn is_person(user: &str) -> bool {
    !user.starts_with("system:") && (user.contains('@') || user.starts_with("token:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_issued_until_then_is_refused() {
        let revocations = Revocations::default();
        assert!(!revocations.refuses("ann@example.com", 0), "none are known");
        let one = |user: &str, before_ms| Revocation { user: user.to_owned(), before_ms };
        revocations.replace([one("ann@example.com", 10_500), one("ann@example.com", 5_000), one("", 3_000)]);
        for (user, issued, refused) in [
            ("ann@example.com", 9, true),
            ("ann@example.com", 10, true),
            ("ann@example.com", 11, false),
            ("bob@example.com", 9, false),
            ("bob@example.com", 3, true),
            ("token:abc", 3, true),
            ("token:abc", 4, false),
            ("system:node:n1", 1, false),
            ("system:node:n1@example.com", 1, false),
            ("kubernetes-admin", 1, false),
        ] {
            assert_eq!(revocations.refuses(user, issued), refused, "{user} {issued}");
        }
        revocations.replace([]);
        assert!(!revocations.refuses("ann@example.com", 1), "they are given whole");
    }
}
