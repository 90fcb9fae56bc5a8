//! Short tokens for people, with which the provider's proxy speaks for whoever is signed in to it.
//!
//! JWTs signed with the cluster's service-account key, since every replica has that one, but under an
//! issuer and an audience of their own: nobody who verifies service-account tokens, in the cluster or
//! outside with its published key set, takes one for an account, and a service-account token is never
//! taken for a person. They rest on nothing that is stored, and are short; whoever is removed is
//! refused by what the manager tells the cluster (`revocations.rs`).
//!
//! Not here: deciding who may have one (the manager), sessions.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenant_client::UserInfo;

use crate::token::{LEEWAY_SECONDS, TokenError, TokenIssuer, TokenKeys};

/// Who issues them; no cluster's service-account issuer is called that.
const PERSON_ISSUER: &str = "https://people.roadstead.local";

/// Whom they are for: one cluster's API server, and only ever that.
const PERSON_AUDIENCE: &str = "roadstead:apiserver";

/// The longest that one may live.
pub const LONGEST_PERSON_TOKEN_SECONDS: i64 = 3600;

#[derive(Debug, Serialize, Deserialize)]
struct PersonClaims {
    aud: String,
    exp: i64,
    iat: i64,
    iss: String,
    jti: String,
    groups: Vec<String>,
    sub: String,
}

/// A token for `user` in `groups`, and when it ends. Names that Kubernetes keeps for its own are refused,
/// except for the group of masters, which is what an administrator's role means.
pub fn issue_person_token(
    issuer: &TokenIssuer,
    user: &str,
    groups: &[String],
    now: Timestamp,
    seconds: i64,
) -> Result<(String, Timestamp), TokenError> {
    let reserved = |name: &str| name.is_empty() || name.starts_with("system:") && name != UserInfo::MASTERS;
    if reserved(user) || user == UserInfo::MASTERS {
        return Err(TokenError::Invalid(format!("{user:?} is not a person")));
    }
    if let Some(group) = groups.iter().find(|group| reserved(group)) {
        return Err(TokenError::Invalid(format!("{group:?} is not a group for people")));
    }
    let ends = now.as_second().saturating_add(seconds.clamp(1, LONGEST_PERSON_TOKEN_SECONDS));
    let claims = PersonClaims {
        aud: PERSON_AUDIENCE.to_owned(),
        exp: ends,
        iat: now.as_second(),
        iss: PERSON_ISSUER.to_owned(),
        jti: uuid::Uuid::new_v4().to_string(),
        groups: groups.to_vec(),
        sub: user.to_owned(),
    };
    let token = issuer.sign_claims(&claims)?;
    Ok((token, Timestamp::from_second(ends).unwrap_or(Timestamp::MAX)))
}

/// The person behind `token`, and in which second it was issued; [`TokenError::Foreign`] when it is of another issuer.
pub(crate) fn authenticate(
    keys: &TokenKeys,
    token: &str,
    now: Timestamp,
) -> Result<(UserInfo, i64), TokenError> {
    let payload = keys.signed(token, PERSON_ISSUER)?;
    let invalid = |why: &str| TokenError::Invalid(why.to_owned());
    let claims: PersonClaims =
        serde_json::from_slice(&payload).map_err(|_| invalid("the token has unreadable claims"))?;
    if claims.aud != PERSON_AUDIENCE {
        return Err(invalid("the token is for another audience"));
    }
    if now.as_second() >= claims.exp {
        return Err(invalid("the token has expired"));
    }
    if now.as_second() < claims.iat.saturating_sub(LEEWAY_SECONDS) {
        return Err(invalid("the token is issued in the future"));
    }
    let mut user = UserInfo { name: claims.sub, groups: claims.groups, ..UserInfo::default() };
    user.groups.push(UserInfo::AUTHENTICATED.to_owned());
    user.extra
        .insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={}", claims.jti)]);
    Ok((user, claims.iat))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{BoundTo, Claims, ISSUER, Reference};

    fn at(seconds: i64) -> Timestamp {
        let start: Timestamp = "2026-11-30T21:00:00Z".parse().unwrap();
        start + jiff::SignedDuration::from_secs(seconds)
    }

    #[test]
    fn a_person_is_let_in_for_a_while_by_the_cluster_that_signed() {
        let (issuer, other) = (TokenIssuer::generate().unwrap(), TokenIssuer::generate().unwrap());
        let groups = [UserInfo::MASTERS.to_owned()];
        let (token, ends) = issue_person_token(&issuer, "ada@example.com", &groups, at(0), 600).unwrap();
        assert_eq!(ends, at(600));
        let (user, issued) = authenticate(issuer.keys(), &token, at(1)).unwrap();
        assert_eq!(issued, at(0).as_second());
        assert_eq!((user.name.as_str(), user.is_in(UserInfo::MASTERS)), ("ada@example.com", true));
        assert!(user.is_in(UserInfo::AUTHENTICATED));
        for (row, keys, when) in [
            ("expired", issuer.keys(), 600),
            ("issued in the future", issuer.keys(), -120),
            ("another cluster", other.keys(), 1),
        ] {
            assert!(matches!(authenticate(keys, &token, at(when)), Err(TokenError::Invalid(_))), "{row}");
        }
        let (long, ends) = issue_person_token(&issuer, "ada", &[], at(0), i64::MAX).unwrap();
        assert_eq!(ends, at(LONGEST_PERSON_TOKEN_SECONDS));
        assert!(authenticate(issuer.keys(), &long, at(LONGEST_PERSON_TOKEN_SECONDS)).is_err());
    }

    #[test]
    fn accounts_and_people_are_never_taken_for_one_another() {
        let issuer = TokenIssuer::generate().unwrap();
        let (person, _) = issue_person_token(&issuer, "ada", &[], at(0), 600).unwrap();
        assert_eq!(issuer.keys().verify(&person), Err(TokenError::Foreign));
        let account = Reference { name: "web".to_owned(), uid: "u".to_owned() };
        let claims = Claims::new("blue", account, BoundTo::Nothing, vec![ISSUER.to_owned()], at(0), 600);
        let account = issuer.sign(&claims).unwrap();
        assert_eq!(authenticate(issuer.keys(), &account, at(1)), Err(TokenError::Foreign));
    }

    #[test]
    fn names_of_kubernetes_own_are_refused() {
        let issuer = TokenIssuer::generate().unwrap();
        for (user, group, fine) in [
            ("ada", "roadstead:viewers", true),
            ("token:abc", UserInfo::MASTERS, true),
            ("", "x", false),
            ("system:admin", "x", false),
            (UserInfo::MASTERS, "x", false),
            ("ada", "system:nodes", false),
            ("ada", "", false),
        ] {
            let made = issue_person_token(&issuer, user, &[group.to_owned()], at(0), 60);
            assert_eq!(made.is_ok(), fine, "{user} {group}");
        }
    }
}
