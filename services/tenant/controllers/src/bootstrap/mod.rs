//! Bootstrap tokens: `kube-public/cluster-info` signed by each, and the end of those that have expired.
//!
//! A joining node knows a token and nothing else. The ConfigMap tells it the cluster's address and CA, and
//! the signature under its token that this is the cluster the token is for.

use std::time::Duration;

use api_machinery::{Document, Object};
use api_reconcile::{Action, Plan};
use aws_lc_rs::hmac;
use base_clock::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

const CLUSTER_INFO: &str = "cluster-info";
const PUBLIC: &str = "kube-public";
const SIGNATURE: &str = "jws-kubeconfig-";
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";

struct Token {
    id: String,
    secret: String,
    signs: bool,
    expires: Option<Timestamp>,
}

/// `None` for a Secret that is no bootstrap token, or one whose name doesn't fit its id.
fn read(secret: &Object) -> Option<Token> {
    if secret.field("type")? != TOKEN_TYPE {
        return None;
    }
    let data = secret.field("data")?;
    let text = |field: &str| {
        let bytes = BASE64.decode(data[field].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let id = text("token-id")?;
    if *secret.header.name != *format!("bootstrap-token-{id}") {
        return None;
    }
    // A time nobody can read has passed: better a token too few than one too many.
    let expires = text("expiration").map(|at| at.parse().unwrap_or(Timestamp::UNIX_EPOCH));
    Some(Token {
        id,
        secret: text("token-secret")?,
        signs: text("usage-bootstrap-signing")? == "true",
        expires,
    })
}

fn left(token: &Token, now: Timestamp) -> Option<Duration> {
    let seconds = convert::seconds_between(now, token.expires?) + 1;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}
fn is_expired(token: &Token, now: Timestamp) -> bool {
    token.expires.is_some_and(|at| at <= now)
}

pub struct ClusterInfoSigner {
    kubeconfig: Option<String>,
}

impl ClusterInfoSigner {
    /// `kubeconfig` is put into the ConfigMap if nobody has made it.
    pub fn new(kubeconfig: Option<String>) -> ClusterInfoSigner {
        ClusterInfoSigner { kubeconfig }
    }
}

impl Controller for ClusterInfoSigner {
    fn name(&self) -> &'static str {
        "bootstrap-signer"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::CONFIG_MAPS, res::SECRETS, res::NAMESPACES]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let header = &change.object.header;
        let concerned = match change.of {
            res::NAMESPACES => &*header.name == PUBLIC && change.old.is_none(),
            res::CONFIG_MAPS => &*header.name == CLUSTER_INFO && header.namespace.as_deref() == Some(PUBLIC),
            _ => header.name.starts_with("bootstrap-token-"),
        };
        if concerned {
            wake(Key::new(res::CONFIG_MAPS, PUBLIC, CLUSTER_INFO));
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let resource = world.catalog().get(res::CONFIG_MAPS);
        let known = world.at(key);
        let mut document = match known.map(|known| convert::document(resource, known)) {
            Some(Some(document)) => document,
            Some(None) => return Plan::nothing(),
            None => {
                let Some(kubeconfig) = &self.kubeconfig else { return Plan::nothing() };
                if world.get(res::NAMESPACES, "", PUBLIC).is_none() {
                    return Plan::nothing();
                }
                let value = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": CLUSTER_INFO, "namespace": PUBLIC},
                    "data": {"kubeconfig": kubeconfig},
                });
                Document::from_value(value).unwrap_or_default()
            }
        };
        let Some(kubeconfig) = document.get_str("data.kubeconfig").map(str::to_owned) else {
            return Plan::nothing();
        };
        let mut plan = Plan::nothing();
        let before = document.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
        let mut data: Map<String, Value> = before
            .iter()
            .filter(|(name, _)| !name.starts_with(SIGNATURE))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        for secret in world.within(res::SECRETS, "kube-system") {
            let Some(token) = read(secret).filter(|token| token.signs) else { continue };
            if is_expired(&token, now.wall) {
                continue;
            }
            if let Some(left) = left(&token, now.wall) {
                plan.again(left);
            }
            data.insert(
                format!("{SIGNATURE}{}", token.id),
                json!(sign(&kubeconfig, &token.id, &token.secret)),
            );
        }
        let of = resource.gvr.clone();
        if known.is_none() {
            document.set("data", data);
            plan.push(Action::Create { of, namespace: Some(PUBLIC.to_owned()), object: document });
        } else if data != before {
            document.set("data", data);
            plan.push(Action::Update { of, subresource: None, object: document });
        }
        plan
    }
}

/// A JWS without its payload, which is the kubeconfig beside it.
fn sign(payload: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

#[derive(Default)]
pub struct TokenCleaner;

impl Controller for TokenCleaner {
    fn name(&self) -> &'static str {
        "token-cleaner"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::SECRETS]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.object.header.name.starts_with("bootstrap-token-") {
            wake(Key::of(res::SECRETS, change.object));
        }
    }
    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(secret) = world.at(key) else { return Plan::nothing() };
        if &*key.namespace != "kube-system" || world.is_deleting(secret) {
            return Plan::nothing();
        }
        let Some(token) = read(secret) else { return Plan::nothing() };
        if is_expired(&token, now.wall) {
            return Plan::of(vec![Action::Delete(convert::deletion(world, res::SECRETS, secret))]);
        }
        let mut plan = Plan::nothing();
        if let Some(left) = left(&token, now.wall) {
            plan.again(left);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_a_detached_jws() {
        let signature = sign("hello", "abcdef", "0123456789abcdef");
        let (header, tag) = signature.split_once("..").unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(header).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode("hello"));
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
        hmac::verify(&key, signed.as_bytes(), &URL_SAFE_NO_PAD.decode(tag).unwrap()).unwrap();
    }
}
