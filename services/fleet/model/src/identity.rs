//! Who people are and what they may: users, sessions, members.
//!
//! Not here: API tokens' secrets and password hashes, which only the manager sees.

use std::fmt;
use std::str::FromStr;

use base_ids::{Slug, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ApiToken, Role};

/// Where mail reaches a person, in lower case; also the name they sign in with.
///
/// Plain ASCII: two addresses that look alike must not be two people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Email(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an email address: at most 254 characters of plain ASCII, like ann@example.com")]
pub struct ParseEmailError(String);

/// RFC 5321, 4.5.3.1. Its limit on what is before the `@` is left to mail servers: the schema of the API cannot say
/// both.
const MAX_EMAIL_BYTES: usize = 254;

impl Email {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Email {
    type Err = ParseEmailError;
    fn from_str(given: &str) -> Result<Email, ParseEmailError> {
        // Much of what is not an address is long; the message stays short.
        let wrong = || ParseEmailError(given.chars().take(60).collect());
        let (local, domain) = given.rsplit_once('@').ok_or_else(wrong)?;
        let is_local = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&byte);
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            (1..=63).contains(&bytes.len())
                && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
                && bytes[0] != b'-'
                && bytes[bytes.len() - 1] != b'-'
        };
        let fine = given.len() <= MAX_EMAIL_BYTES
            && !local.is_empty()
            && local.bytes().all(is_local)
            && !local.starts_with('.')
            && !local.ends_with('.')
            && !local.contains("..")
            && domain.split('.').all(is_label);
        if fine { Ok(Email(given.to_ascii_lowercase())) } else { Err(wrong()) }
    }
}
impl TryFrom<String> for Email {
    type Error = ParseEmailError;
    fn try_from(given: String) -> Result<Email, ParseEmailError> {
        given.parse()
    }
}
impl From<Email> for String {
    fn from(email: Email) -> String {
        email.0
    }
}
impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl Hidden {
    pub fn new(text: impl Into<String>) -> Hidden {
        Hidden(text.into())
    }
    pub fn expose(&self) -> &str {
        &self.0
    }
}
impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A person who signs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"id": "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d10", "email": "ann@example.com", "name": "Ann"}))]
pub struct User {
    #[schema(value_type = String, format = "uuid")]
    pub id: UserId,
    #[schema(value_type = String, max_length = 254)]
    pub email: Email,
    /// Empty until they have accepted an invitation.
    pub name: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"email": "ann@example.com", "password": "correct horse battery"}))]
pub struct CreateSession {
    /// Any text: an impossible address is answered like an unknown one.
    pub email: String,
    #[schema(value_type = String, format = "password")]
    pub password: Hidden,
}

/// A sign-in. The same secret is in the cookie that comes with it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub id: String,
    /// `rss_…`, for `Authorization: Bearer`. Shown this once.
    pub secret: String,
    /// When it ends if it is not used; each use moves it on, up to a week after the sign-in.
    #[schema(value_type = String, format = "date-time")]
    pub expires_at: Timestamp,
    pub user: User,
}

/// What somebody is in an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Membership {
    #[schema(value_type = String, pattern = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
    pub organization: Slug,
    pub role: Role,
}

/// Who is asking, and what they may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Identity {
    /// The person, if a person signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// The token, if a token asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<ApiToken>,
    /// Whether they are the provider, who may everything.
    pub provider: bool,
    pub memberships: Vec<Membership>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangePassword {
    #[schema(value_type = String, format = "password")]
    pub current: Hidden,
    #[schema(value_type = String, format = "password", min_length = 12, max_length = 128)]
    pub new: Hidden,
}

/// How a person takes an invitation up.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptInvitation {
    /// `rsi_…`, as the admin was shown it.
    #[schema(value_type = String)]
    pub invitation: Hidden,
    /// What to call them; somebody who has an account keeps their name.
    #[serde(default)]
    #[schema(
        max_length = 100,
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]*$"
    )]
    pub name: String,
    /// Their new password; somebody who has an account gives the one they have.
    #[schema(value_type = String, format = "password", min_length = 12, max_length = 128)]
    pub password: Hidden,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"email": "ann@example.com", "role": "developer"}))]
pub struct CreateMember {
    #[schema(value_type = String, max_length = 254, pattern = "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$")]
    pub email: Email,
    /// admin, developer or viewer.
    #[schema(value_type = String, pattern = "^(admin|developer|viewer)$")]
    pub role: Role,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateMember {
    /// admin, developer or viewer.
    #[schema(value_type = String, pattern = "^(admin|developer|viewer)$")]
    pub role: Role,
}

/// A person in an organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    pub user: User,
    pub role: Role,
    /// They have not accepted their invitation, and may nothing until they do.
    #[serde(default)]
    pub invited: bool,
    #[schema(value_type = String, format = "date-time")]
    pub created_at: Timestamp,
    /// `rsi_…`, to be handed to the person; shown this once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invitation: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_mail_could_have_and_nobody_can_imitate() {
        let long_local = format!("{}@example.com", "a".repeat(65));
        let long = format!("a@{}", ["b".repeat(60).as_str(); 5].join("."));
        for (given, wanted) in [
            ("ann@example.com", Some("ann@example.com")),
            ("Ann@Example.COM", Some("ann@example.com")),
            ("admin@roadstead.local", Some("admin@roadstead.local")),
            ("a.b+c@d", Some("a.b+c@d")),
            ("", None),
            ("ann", None),
            ("@example.com", None),
            ("ann@", None),
            ("ann@@example.com", None),
            ("ann @example.com", None),
            ("ann@example..com", None),
            ("ann@-example.com", None),
            (".ann@example.com", None),
            ("a..b@example.com", None),
            ("ann@exa\u{301}mple.com", None),
            ("\u{430}nn@example.com", None),
            ("ann@example.com\n", None),
            ("ann\0@example.com", None),
            ("ann@example.com, bob@example.com", None),
            (&long_local, Some(&long_local)),
            (&long, None),
        ] {
            let got = given.parse::<Email>().ok();
            assert_eq!(got.as_ref().map(Email::as_str), wanted, "{given:?}");
        }
    }

    #[test]
    fn a_password_is_in_no_log() {
        let request = CreateSession { email: "a@b".to_owned(), password: Hidden::new("hunter2") };
        assert!(!format!("{request:?}").contains("hunter2"));
        assert!(serde_json::to_string(&request).unwrap_or_default().contains("hunter2"));
    }
}
