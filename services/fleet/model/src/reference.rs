//! How a path names a cluster or a node pool: by its name or by its id.
//!
//! A UUID that begins with a letter is also a well-formed name. Ids win, and [`looks_like_id`] lets the
//! manager refuse such names.

use std::fmt;
use std::str::FromStr;

use base_ids::{NodePoolId, ParseIdError, Slug, TenantId};

macro_rules! reference {
    ($(#[$doc:meta])* $name:ident, $id:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            Id($id),
            Name(Slug),
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $name::Id(id) => id.fmt(f),
                    $name::Name(name) => name.fmt(f),
                }
            }
        }
        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<$name, ParseIdError> {
                match text.parse() {
                    Ok(id) if looks_like_id(text) => Ok($name::Id(id)),
                    _ => text.parse().map($name::Name),
                }
            }
        }
        impl From<$id> for $name {
            fn from(id: $id) -> $name {
                $name::Id(id)
            }
        }
        impl From<Slug> for $name {
            fn from(name: Slug) -> $name {
                $name::Name(name)
            }
        }
        impl From<&Slug> for $name {
            fn from(name: &Slug) -> $name {
                $name::Name(name.clone())
            }
        }
        impl From<&$name> for $name {
            fn from(given: &$name) -> $name {
                given.clone()
            }
        }
    };
}

reference!(
    /// A cluster, within an organisation.
    ClusterRef,
    TenantId
);
reference!(
    /// A node pool, within a cluster.
    NodePoolRef,
    NodePoolId
);

/// Whether `text` has the one form in which ids are written: lower case, with dashes.
pub fn looks_like_id(text: &str) -> bool {
    text.len() == 36 && text.parse::<TenantId>().is_ok_and(|id| id.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_win_over_names_and_nothing_else_passes() {
        let id = "a1b2c3d4-0000-7000-8000-000000000001";
        for (text, wanted) in [
            (id, Some(ClusterRef::Id(id.parse().unwrap()))),
            ("demo", Some(ClusterRef::Name("demo".parse().unwrap()))),
            // Without dashes it is a name.
            (
                "a1b2c3d4000070008000000000000001",
                Some(ClusterRef::Name("a1b2c3d4000070008000000000000001".parse().unwrap())),
            ),
            ("A1B2C3D4-0000-7000-8000-000000000001", None),
            ("..", None),
            ("", None),
            ("a/b", None),
        ] {
            assert_eq!(text.parse::<ClusterRef>().ok(), wanted, "{text:?}");
        }
    }
}
