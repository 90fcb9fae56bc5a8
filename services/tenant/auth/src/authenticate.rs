//! From what a request carries to who sent it.
//!
//! In order: a front proxy's word (only with a certificate of the front-proxy authority), a client
//! certificate, a bearer token, nobody. The first that succeeds decides; a bearer token that fails is a
//! 401 and never falls back to anonymous. Impersonation comes last and is authorized like any request.
//!
//! TLS has already verified that certificates chain to one of the two authorities, are in their time and
//! are meant for clients; what is left is to see which authority it was and whom they name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api_machinery::Status;
use base_clock::SharedClock;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use store_mvcc::{Key, Revision, Space};
use tenant_client::{Access, Authorizer, Target, UserInfo};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority::require;
use crate::bootstrap_token;
use crate::person_token;
use crate::pki::{ClusterPki, PkiEntryError};
use crate::revocations::{Revocation, Revocations};
use crate::stored;
use crate::token::{Claims, ISSUER, Reference, TokenError, TokenKeys};

/// What a request carries.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    /// The client's chain as TLS verified it, leaf first; empty without a client certificate.
    pub peer_certificates: &'a [CertificateDer<'a>],
    pub headers: &'a HeaderMap,
}

/// Who sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whom the request acts as.
    pub user: UserInfo,
    /// Who it really is, when it impersonates; for audit.
    pub impersonator: Option<UserInfo>,
}

/// Why a request goes no further.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// 401. The reason is for the log: a client hears `Unauthorized`.
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// An impersonation that is not allowed, or makes no sense.
    #[error("{0}")]
    Impersonation(Box<Status>),
}

impl Refusal {
    /// What the client is sent.
    pub fn to_status(&self) -> Status {
        match self {
            Refusal::Unauthorized(_) => Status::unauthorized(),
            Refusal::Impersonation(status) => status.as_ref().clone(),
        }
    }
}

/// Tokens whose signature and bindings were found good, at most. A token is checked by its pods many
/// times a minute and costs a signature verification each time; forgetting one costs only that.
const REMEMBERED_TOKENS: usize = 512;

/// What was deleted counts as gone only this much later, for clocks that differ (upstream's leeway).
const DELETION_LEEWAY_SECONDS: i64 = 60;

/// See [`base_net::pki::BACKDATE`].
const BACKDATE_SECONDS: i64 = base_net::pki::BACKDATE.as_secs().cast_signed();

/// Authenticates requests to one cluster.
pub struct Authenticator {
    space: Arc<Space>,
    clock: SharedClock,
    keys: TokenKeys,
    /// Subject of the front-proxy authority, DER.
    front_proxy_subject: Vec<u8>,
    remembered: Mutex<HashMap<[u8; 32], Remembered>>,
    revocations: Revocations,
}

/// A token that was good, and what that rested on.
#[derive(Debug, Clone)]
struct Remembered {
    claims: Arc<Claims>,
    /// Entries that were looked at, as they were.
    seen: Vec<(Key, Revision)>,
    /// When one of them, being deleted, counts as gone.
    until: Option<Timestamp>,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Over the cluster's key space, in which accounts, pods and bootstrap tokens are looked up.
    pub fn new(
        pki: &ClusterPki,
        space: Arc<Space>,
        clock: SharedClock,
    ) -> Result<Authenticator, PkiEntryError> {
        let what = "front-proxy CA";
        let der = pki.front_proxy_ca().cert_der().map_err(|cause| PkiEntryError::Pki { what, cause })?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| PkiEntryError::NotText(what))?;
        Ok(Authenticator {
            space,
            clock,
            keys: pki.issuer().keys().clone(),
            front_proxy_subject: certificate.subject().as_raw().to_vec(),
            remembered: Mutex::default(),
            revocations: Revocations::default(),
        })
    }

    /// Refuses these from now on, and what was refused before no more.
    pub fn revoke(&self, all: impl IntoIterator<Item = Revocation>) {
        self.revocations.replace(all);
    }

    /// Who sent the request, impersonation included; `authorizer` is asked whether it may impersonate.
    pub fn authenticate(
        &self,
        credentials: &Credentials<'_>,
        authorizer: &dyn Authorizer,
    ) -> Result<Identity, Refusal> {
        let user = self.sender(credentials)?;
        match impersonated(credentials.headers, &user, authorizer) {
            Ok(None) => Ok(Identity { user, impersonator: None }),
            Ok(Some(other)) => Ok(Identity { user: other, impersonator: Some(user) }),
            Err(status) => Err(Refusal::Impersonation(Box::new(status))),
        }
    }

    /// Who a bearer token belongs to, and the audiences it shares with `audiences` (empty: the API
    /// server's own). This is TokenReview's question too.
    pub fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(UserInfo, Vec<String>), TokenError> {
        let own = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() { &own } else { audiences };
        let now = self.clock.now();
        if bootstrap_token::split(token).is_some() {
            // Bootstrap tokens speak to the API server alone.
            if !wanted.contains(&own[0]) {
                return Err(TokenError::Foreign);
            }
            let mut user =
                bootstrap_token::authenticate(&self.space, token, now).ok_or(TokenError::Foreign)?;
            user.groups.push(UserInfo::AUTHENTICATED.to_owned());
            return Ok((user, own.to_vec()));
        }
        // People's tokens speak to the API server alone, too.
        if wanted.contains(&own[0]) {
            match person_token::authenticate(&self.keys, token, now) {
                Err(TokenError::Foreign) => {}
                Ok((user, issued)) if self.revocations.refuses(&user.name, issued) => {
                    return Err(TokenError::Invalid(format!("what {} was issued is revoked", user.name)));
                }
                decided => return decided.map(|(user, _)| (user, own.to_vec())),
            }
        }
        let claims = self.verified(token, now)?;
        let shared = claims.check(now, wanted)?;
        Ok((service_account(&claims), shared))
    }

    fn sender(&self, credentials: &Credentials<'_>) -> Result<UserInfo, Refusal> {
        let unauthorized = |why: &str| Refusal::Unauthorized(why.to_owned());
        if let Some(leaf) = credentials.peer_certificates.first() {
            let (_, certificate) = X509Certificate::from_der(leaf)
                .map_err(|_| unauthorized("client certificate can not be read"))?;
            if certificate.issuer().as_raw() == self.front_proxy_subject {
                if let Some(user) = front_proxied(credentials.headers) {
                    return Ok(authenticated(user));
                }
            } else if let Some(user) = certified(&certificate, leaf) {
                let issued = certificate.validity().not_before.timestamp() + BACKDATE_SECONDS;
                if self.revocations.refuses(&user.name, issued) {
                    return Err(Refusal::Unauthorized(format!(
                        "the certificate of {} is revoked",
                        user.name
                    )));
                }
                return Ok(authenticated(user));
            }
        }
        match bearer(credentials.headers) {
            Some(token) => match self.authenticate_token(&token, &[]) {
                Ok((user, _)) => Ok(user),
                Err(TokenError::Foreign) => Err(unauthorized("invalid bearer token")),
                Err(other) => Err(Refusal::Unauthorized(other.to_string())),
            },
            None => Ok(UserInfo {
                name: "system:anonymous".to_owned(),
                groups: vec![UserInfo::UNAUTHENTICATED.to_owned()],
                ..UserInfo::default()
            }),
        }
    }

    /// Claims of a token that is signed by us and whose bindings still hold.
    fn verified(&self, token: &str, now: Timestamp) -> Result<Arc<Claims>, TokenError> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let known = self.remembered.lock().get(&hash).cloned();
        if let Some(known) = &known {
            let unchanged = |(key, revision): &(Key, Revision)| {
                self.space.get(key).is_some_and(|entry| entry.modified == *revision)
            };
            if known.until.is_none_or(|until| now < until) && known.seen.iter().all(unchanged) {
                return Ok(known.claims.clone());
            }
        }
        // The signature of a known token needn't be verified again, only what it is bound to.
        let claims = match known {
            Some(known) => known.claims,
            None => Arc::new(self.keys.verify(token)?),
        };
        let (seen, until) = self.check_bindings(&claims, now)?;
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_TOKENS {
            remembered.clear();
        }
        remembered.insert(hash, Remembered { claims: claims.clone(), seen, until });
        Ok(claims)
    }

    /// The account and what the token is bound to exist, with the uids the token names.
    #[allow(clippy::type_complexity)]
    fn check_bindings(
        &self,
        claims: &Claims,
        now: Timestamp,
    ) -> Result<(Vec<(Key, Revision)>, Option<Timestamp>), TokenError> {
        let mut seen = Vec::new();
        let mut until: Option<Timestamp> = None;
        let mut check = |what: &str, key: Key, wanted: &Reference| {
            let invalidated = || TokenError::Invalid("service account token has been invalidated".to_owned());
            let found = stored::find(&self.space, &key).ok_or_else(invalidated)?;
            if found.uid != wanted.uid {
                return Err(TokenError::Invalid(format!(
                    "{what} UID ({}) does not match claim ({})",
                    found.uid, wanted.uid
                )));
            }
            if let Some(since) = found.deleting_since {
                let gone = since
                    .checked_add(jiff::SignedDuration::from_secs(DELETION_LEEWAY_SECONDS))
                    .unwrap_or(Timestamp::MAX);
                if gone <= now {
                    return Err(invalidated());
                }
                until = Some(until.map_or(gone, |other| other.min(gone)));
            }
            seen.push((key, found.entry.modified));
            Ok(())
        };
        let about = &claims.kubernetes;
        let account = &about.serviceaccount;
        check("service account", stored::key("serviceaccounts", &about.namespace, &account.name), account)?;
        if let Some(secret) = &about.secret {
            check("secret", stored::key("secrets", &about.namespace, &secret.name), secret)?;
        }
        if let Some(pod) = &about.pod {
            check("pod", stored::key("pods", &about.namespace, &pod.name), pod)?;
        } else if let Some(node) = &about.node {
            // With a pod the node is a mere remark; without one the token is bound to it.
            check("node", stored::key("nodes", "", &node.name), node)?;
        }
        Ok((seen, until))
    }
}

fn authenticated(mut user: UserInfo) -> UserInfo {
    if user.name != "system:anonymous" && !user.is_in(UserInfo::AUTHENTICATED) {
        user.groups.push(UserInfo::AUTHENTICATED.to_owned());
    }
    user
}

fn service_account(claims: &Claims) -> UserInfo {
    let about = &claims.kubernetes;
    let mut user = UserInfo::service_account(&about.namespace, &about.serviceaccount.name);
    user.uid = about.serviceaccount.uid.clone();
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = &about.pod {
        extra("pod-name", &pod.name);
        extra("pod-uid", &pod.uid);
    }
    if let Some(node) = &about.node {
        extra("node-name", &node.name);
        extra("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        extra("credential-id", &format!("JTI={}", claims.jti));
    }
    user
}

/// CN is the user, each O a group. A certificate without a CN names nobody.
fn certified(certificate: &X509Certificate<'_>, der: &[u8]) -> Option<UserInfo> {
    if let Ok(Some(usage)) = certificate.extended_key_usage()
        && !usage.value.client_auth
        && !usage.value.any
    {
        return None;
    }
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok().filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|one| one.as_str().ok()).map(str::to_owned).collect();
    let id = format!("X509SHA256={}", hex::encode(Sha256::digest(der)));
    let extra = BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![id])]);
    Some(UserInfo { name: name.to_owned(), uid: String::new(), groups, extra })
}

/// What an aggregating proxy says about the user it has authenticated.
fn front_proxied(headers: &HeaderMap) -> Option<UserInfo> {
    let name = first(headers, "x-remote-user").filter(|name| !name.is_empty())?;
    Some(UserInfo {
        name,
        uid: first(headers, "x-remote-uid").unwrap_or_default(),
        groups: all(headers, "x-remote-group"),
        extra: extras(headers, "x-remote-extra-"),
    })
}

/// The token of `Authorization: Bearer`, or of a WebSocket subprotocol, since browsers can't set headers
/// on those. An empty one counts as none, as it does upstream.
fn bearer(headers: &HeaderMap) -> Option<String> {
    if let Some(text) = first(headers, "authorization") {
        let mut words = text.trim().splitn(3, ' ');
        if words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer")) {
            return words.next().filter(|token| !token.is_empty()).map(str::to_owned);
        }
    }
    let protocols = all(headers, "sec-websocket-protocol");
    let token = protocols
        .iter()
        .flat_map(|line| line.split(','))
        .find_map(|one| one.trim().strip_prefix("base64url.bearer.authorization.k8s.io."))?;
    // A token that doesn't decode is refused further on rather than ignored here.
    let decoded = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).unwrap_or_default();
    Some(String::from_utf8(decoded).unwrap_or_default())
}

/// Whom the headers ask to act as, once `user` was found to be allowed to.
fn impersonated(
    headers: &HeaderMap,
    user: &UserInfo,
    authorizer: &dyn Authorizer,
) -> Result<Option<UserInfo>, Status> {
    let name = first(headers, "impersonate-user").filter(|name| !name.is_empty());
    let groups = all(headers, "impersonate-group");
    let uid = first(headers, "impersonate-uid").unwrap_or_default();
    let extra = extras(headers, "impersonate-extra-");
    let Some(name) = name else {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        return Err(Status::internal(
            "requested impersonation of groups, uid or extra without impersonating a user",
        ));
    };

    let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let target = Target::Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let access = Access { verb: "impersonate".to_owned(), target, ..Access::default() };
        require(authorizer, user, &access)
    };
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, account)) => ask("", "serviceaccounts", "", namespace, account)?,
        None => ask("", "users", "", "", &name)?,
    }
    for group in &groups {
        ask("", "groups", "", "", group)?;
    }
    for (key, values) in &extra {
        for value in values {
            ask("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    if !uid.is_empty() {
        ask("authentication.k8s.io", "uids", "", "", &uid)?;
    }

    let mut other = UserInfo { name, uid, groups, extra };
    if other.groups.is_empty()
        && let Some((namespace, account)) =
            other.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    {
        other.groups = UserInfo::service_account(namespace, account).groups;
    }
    if other.name == "system:anonymous" {
        if !other.is_in(UserInfo::UNAUTHENTICATED) {
            other.groups.push(UserInfo::UNAUTHENTICATED.to_owned());
        }
    } else if !other.is_in(UserInfo::AUTHENTICATED) && !other.is_in(UserInfo::UNAUTHENTICATED) {
        other.groups.push(UserInfo::AUTHENTICATED.to_owned());
    }
    Ok(Some(other))
}

fn first(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn all(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

/// Headers that begin with `prefix`; the rest of the name, percent-decoded, is the key.
fn extras(headers: &HeaderMap, prefix: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(prefix) {
            let values = found.entry(percent_decoded(key)).or_default();
            values.push(String::from_utf8_lossy(value.as_bytes()).into_owned());
        }
    }
    found
}

/// What can't be decoded stays as it is.
fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = (bytes[at] == b'%').then(|| bytes.get(at + 1..at + 3)).flatten();
        match pair.and_then(|pair| hex::decode(pair).ok()) {
            Some(byte) => {
                out.extend(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests;
