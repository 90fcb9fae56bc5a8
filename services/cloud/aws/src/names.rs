//! How things are called in the account, and how they are found again.

use std::collections::BTreeMap;

use base_ids::TenantId;
use cloud_interface::{ClientToken, CloudError, Tags};
use sha2::{Digest, Sha256};

/// Tags of ours; a request cannot set them.
pub(crate) const CLUSTER: &str = "roadstead:cluster";
pub(crate) const TOKEN: &str = "roadstead:client-token";
pub(crate) const NAME: &str = "roadstead:name";
pub(crate) const CREATED: &str = "roadstead:created-ms";
/// What the EC2 console shows first.
const SHOWN: &str = "Name";

/// EC2's limits: 50 tags, keys of 128 and values of 256 characters, none that begin with `aws:`.
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html>
const MAX_TAGS: usize = 50;

/// The tags of something of ours: the caller's, and those it is found by.
pub(crate) fn tags(
    cluster: TenantId,
    token: &ClientToken,
    name: &str,
    shown: &str,
    given: &Tags,
) -> Result<Tags, CloudError> {
    let mut tags = BTreeMap::new();
    for (key, value) in given {
        let reserved =
            ["aws:", "roadstead:"].iter().any(|prefix| key.to_ascii_lowercase().starts_with(prefix));
        if reserved || key == SHOWN || key.is_empty() {
            return Err(CloudError::Invalid(format!("the tag {key:?} is reserved")));
        }
        if key.chars().count() > 128 || value.chars().count() > 256 {
            return Err(CloudError::Invalid(format!("the tag {key:?} is longer than AWS takes")));
        }
        tags.insert(key.clone(), value.clone());
    }
    tags.insert(CLUSTER.to_owned(), cluster.to_string());
    tags.insert(TOKEN.to_owned(), token.to_string());
    tags.insert(NAME.to_owned(), name.to_owned());
    tags.insert(SHOWN.to_owned(), shown.to_owned());
    match tags.len() > MAX_TAGS {
        true => {
            Err(CloudError::Invalid(format!("{} tags are more than the {MAX_TAGS} AWS takes", tags.len())))
        }
        false => Ok(tags),
    }
}

/// The caller's own tags among those found in the account.
pub(crate) fn given(found: &Tags) -> Tags {
    let ours = |key: &str| key.starts_with("roadstead:") || key == SHOWN;
    found.iter().filter(|(key, _)| !ours(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// EC2's own client token: 64 ASCII characters, the same for the same thing. The subnet is part of it, as
/// EC2 refuses one token with two different requests.
pub(crate) fn run_token(cluster: TenantId, token: &ClientToken, subnet: &str) -> String {
    hex::encode(Sha256::digest(format!("{cluster}/{token}/{subnet}")))
}

/// Names of balancers begin so for one cluster; ELBv2 has no list by tag.
pub(crate) fn balancer_prefix(cluster: TenantId) -> String {
    format!("rs-{}-", &hex::encode(Sha256::digest(cluster.to_string()))[..10])
}

/// The name of a balancer and of its security group: 24 characters of the 32 that ELBv2 takes. The rest is
/// for [`target_group`].
pub(crate) fn balancer(cluster: TenantId, token: &ClientToken) -> String {
    format!("{}{}", balancer_prefix(cluster), &hex::encode(Sha256::digest(token.as_str()))[..10])
}

/// The target group behind one listener: `…-t443`, `…-u53`, `…-b53` for both protocols on one port.
pub(crate) fn target_group(balancer: &str, protocol: char, port: u16) -> String {
    format!("{balancer}-{protocol}{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let (one, two) = (TenantId::generate(), TenantId::generate());
        let (a, b): (ClientToken, ClientToken) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert!(target_group(&balancer(one, &a), 'b', u16::MAX).len() <= 32);
        assert_ne!(balancer(one, &a), balancer(one, &b));
        assert_ne!(balancer(one, &a), balancer(two, &a));
        assert!(balancer(one, &a).starts_with(&balancer_prefix(one)));
        assert_eq!(run_token(one, &a, "s").len(), 64);
        assert_ne!(run_token(one, &a, "s"), run_token(one, &a, "t"));
    }

    #[test]
    fn tags_that_aws_or_we_keep_are_refused() {
        let cluster = TenantId::generate();
        let token: ClientToken = "t".parse().unwrap();
        let long = "x".repeat(257);
        for (key, value, is_fine) in [
            ("team", "blue", true),
            ("aws:x", "", false),
            ("AWS:x", "", false),
            ("roadstead:cluster", "another", false),
            ("Name", "mine", false),
            ("", "x", false),
            ("team", long.as_str(), false),
        ] {
            let given = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            assert_eq!(tags(cluster, &token, "n", "n", &given).is_ok(), is_fine, "{key}={value}");
        }
        let many: Tags = (0..50).map(|n| (format!("k{n}"), String::new())).collect();
        assert!(tags(cluster, &token, "n", "n", &many).is_err());
        let few = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
        assert_eq!(given(&tags(cluster, &token, "n", "n", &few).unwrap()), few);
    }
}
