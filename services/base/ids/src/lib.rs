//! Ids that know what they name.
//!
//! Every id is a UUID in a type of its own, so that a mix-up is a compile error. [`Slug`] is the one
//! kind of name people choose (organisations, clusters, cells): a DNS label, parsed before use, because
//! a key, path, label or metric must never contain an unparsed string of a tenant's (DESIGN §9).
//!
//! Not here: names of Kubernetes objects, which are the API's business.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a string is no id or name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseIdError {
    #[error("{given:?} is not a {kind} id (a UUID)")]
    NotUuid { kind: &'static str, given: String },
    #[error(
        "{given:?} is not a name: 1 to 40 lowercase letters, digits and '-', starting with a letter, not ending in '-'"
    )]
    NotSlug { given: String },
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh id; version 7, so that ids sort by the time they were made.
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($kind, ":{}"), self.0)
            }
        }
        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(given: &str) -> Result<Self, ParseIdError> {
                Uuid::parse_str(given)
                    .map(Self)
                    .map_err(|_| ParseIdError::NotUuid { kind: $kind, given: given.to_owned() })
            }
        }
    };
}

uuid_id!(
    /// One fleet: a database, and the folders that belong to it.
    FleetId,
    "fleet"
);
uuid_id!(
    /// One customer.
    OrgId,
    "organisation"
);
uuid_id!(
    /// One cluster: a control plane, a Raft group, a CA, a data key.
    TenantId,
    "cluster"
);
uuid_id!(
    /// One process that hosts replicas of many clusters.
    CellId,
    "cell"
);
uuid_id!(
    /// One long-running change.
    OperationId,
    "operation"
);
uuid_id!(
    /// One person who signs in.
    UserId,
    "user"
);
uuid_id!(
    /// A set of like machines of one cluster.
    NodePoolId,
    "node pool"
);

impl TenantId {
    /// The first DNS label of the cluster's address, which is also its TLS server name's first label.
    ///
    /// The UUID without dashes, behind a letter, since a DNS label that starts with a digit upsets
    /// some resolvers: 33 characters, well under the limit of 63.
    pub fn dns_label(&self) -> String {
        format!("c{}", self.0.simple())
    }

    /// The inverse of [`TenantId::dns_label`].
    pub fn from_dns_label(label: &str) -> Option<TenantId> {
        let hex = label.strip_prefix('c')?;
        (hex.len() == 32).then(|| Uuid::try_parse(hex).ok().map(TenantId)).flatten()
    }
}

/// A name that a person chose and that is safe in paths, DNS names, labels and metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slug(String);

impl Slug {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for Slug {
    type Err = ParseIdError;
    fn from_str(given: &str) -> Result<Self, ParseIdError> {
        let bytes = given.as_bytes();
        let fine = (1..=40).contains(&bytes.len())
            && bytes[0].is_ascii_lowercase()
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
            && bytes[bytes.len() - 1] != b'-';
        if fine { Ok(Slug(given.to_owned())) } else { Err(ParseIdError::NotSlug { given: given.to_owned() }) }
    }
}
impl TryFrom<String> for Slug {
    type Error = ParseIdError;
    fn try_from(given: String) -> Result<Self, ParseIdError> {
        given.parse()
    }
}
impl From<Slug> for String {
    fn from(slug: Slug) -> String {
        slug.0
    }
}
impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_dns_labels_that_start_with_a_letter() {
        let longest = "a".repeat(40);
        let too_long = "a".repeat(41);
        for (given, fine) in [
            ("demo", true),
            ("a", true),
            ("blue-2", true),
            (longest.as_str(), true),
            ("", false),
            ("2blue", false),
            ("Blue", false),
            ("blue-", false),
            ("../etc", false),
            ("b lue", false),
            ("blü", false),
            (too_long.as_str(), false),
        ] {
            assert_eq!(given.parse::<Slug>().is_ok(), fine, "{given:?}");
        }
    }

    #[test]
    fn a_dns_label_names_its_cluster() {
        let id = TenantId::generate();
        assert_eq!(TenantId::from_dns_label(&id.dns_label()), Some(id));
        for label in ["", "c", "www", "c123", &id.to_string()] {
            assert_eq!(TenantId::from_dns_label(label), None, "{label:?}");
        }
    }
}
