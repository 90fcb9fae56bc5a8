//! Bootstrap tokens: `abcdef.0123456789abcdef`, kept as Secrets in kube-system, with which nodes join.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;
use store_mvcc::Space;
use tenant_client::UserInfo;

use crate::stored;

const NAMESPACE: &str = "kube-system";
const DEFAULT_GROUP: &str = "system:bootstrappers";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// On a token's Secret: the only node that it may become. In the `extra` of who comes with such a token, and
/// from there in its certificate requests, where nobody can take it off again.
pub const NODE_OF_TOKEN: &str = "roadstead.dev/node";

/// Id and secret, if `token` has the form of one.
pub(crate) fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fine = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    (fine(id, 6) && fine(secret, 16)).then_some((id, secret))
}

/// The bootstrapper that `token` belongs to, if it is good for authentication at `now`.
///
/// Every reason not to is the same `None`: which one is nobody's business who can't read the Secret.
pub(crate) fn authenticate(space: &Space, token: &str, now: Timestamp) -> Option<UserInfo> {
    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        annotations: BTreeMap<String, String>,
    }
    #[derive(Deserialize)]
    struct Secret {
        #[serde(default)]
        metadata: Metadata,
        #[serde(default)]
        data: BTreeMap<String, String>,
        #[serde(default)]
        r#type: String,
    }
    let (id, secret) = split(token)?;
    let found = stored::find(space, &stored::key("secrets", NAMESPACE, &format!("bootstrap-token-{id}")))?;
    if found.deleting_since.is_some() {
        return None;
    }
    let stored: Secret = stored::body(&found.entry)?;
    let field = |name: &str| {
        let bytes = STANDARD.decode(stored.data.get(name)?).ok()?;
        String::from_utf8(bytes).ok()
    };
    if stored.r#type != SECRET_TYPE {
        return None;
    }
    let same = verify_slices_are_equal(field("token-secret")?.as_bytes(), secret.as_bytes()).is_ok();
    if !same || field("token-id")? != id {
        return None;
    }
    if let Some(expiration) = field("expiration").filter(|text| !text.is_empty()) {
        // A time that can't be read counts as past.
        if expiration.parse::<Timestamp>().ok().is_none_or(|until| until <= now) {
            return None;
        }
    }
    if field("usage-bootstrap-authentication")? != "true" {
        return None;
    }
    let mut groups = vec![DEFAULT_GROUP.to_owned()];
    for group in field("auth-extra-groups").unwrap_or_default().split(',').filter(|one| !one.is_empty()) {
        // One bad group spoils the token, or a typo would quietly take rights away.
        if !is_bootstrap_group(group) {
            return None;
        }
        if !groups.iter().any(|one| one == group) {
            groups.push(group.to_owned());
        }
    }
    let node = stored.metadata.annotations.get(NODE_OF_TOKEN);
    let extra = node.map(|node| (NODE_OF_TOKEN.to_owned(), vec![node.clone()])).into_iter().collect();
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, extra, ..UserInfo::default() })
}

/// `system:bootstrappers:` and letters, digits, `:`, `-`, not ending in the latter two.
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=256).contains(&rest.len())
        && rest.bytes().all(|b| word(b) || matches!(b, b':' | b'-'))
        && rest.bytes().last().is_some_and(word)
}
