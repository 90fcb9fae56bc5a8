//! Secrets that people and programs show us: `<prefix><id>_<secret>`, of which only a hash is kept.
//!
//! A secret has 256 bits of entropy, so SHA-256 is enough; passwords are the business of `password`.

use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};

/// API tokens, session secrets, invitations. A scanner for leaked secrets finds them by it.
pub(crate) const TOKEN: &str = "rs_";
pub(crate) const SESSION: &str = "rss_";
pub(crate) const INVITATION: &str = "rsi_";

/// A new secret.
pub(crate) struct Fresh {
    pub(crate) id: String,
    /// What is shown, once.
    pub(crate) shown: String,
    /// What is kept.
    pub(crate) hash: String,
}

/// One with a random id.
pub(crate) fn fresh(prefix: &str) -> Fresh {
    with_id(prefix, random_hex::<8>())
}

/// One whose id is known already; `id` has no `_`.
pub(crate) fn with_id(prefix: &str, id: String) -> Fresh {
    let secret = random_hex::<32>();
    Fresh { shown: format!("{prefix}{id}_{secret}"), hash: hash(&secret), id }
}

/// Id and secret of what was shown.
pub(crate) fn split<'a>(prefix: &str, shown: &'a str) -> Option<(&'a str, &'a str)> {
    let (id, secret) = shown.trim().strip_prefix(prefix)?.split_once('_')?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(id) && is_hex(secret) && id.len() <= 64 && secret.len() == 64).then_some((id, secret))
}

/// Comparing these leaks nothing useful: what differs early is the hash of a guess.
pub(crate) fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

pub(crate) fn random_hex<const BYTES: usize>() -> String {
    hex::encode(random::<BYTES>())
}

pub(crate) fn random<const BYTES: usize>() -> [u8; BYTES] {
    use rand::RngCore;
    let mut bytes = [0u8; BYTES];
    OsRng.unwrap_err().fill_bytes(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_found_again_and_nothing_else_is() {
        let one = fresh(TOKEN);
        let (id, secret) = split(TOKEN, &one.shown).unwrap();
        assert_eq!((id, hash(secret)), (one.id.as_str(), one.hash.clone()));
        let secret = "0".repeat(64);
        for other in [
            String::new(),
            "rs_".to_owned(),
            "rs__".to_owned(),
            format!("rs__{secret}"),
            format!("rss_ab_{secret}"),
            format!("rs_ab_{secret}0"),
            format!("rs_a\0b_{secret}"),
            format!("rs_' or 1=1 --_{secret}"),
        ] {
            assert_eq!(split(TOKEN, &other), None, "{other:?}");
        }
    }
}
