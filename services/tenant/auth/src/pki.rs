//! The keys of one cluster.
//!
//! Two authorities (clients and servers; front proxies) and the key that signs service-account tokens.
//! Two and not one, since whoever holds a front-proxy certificate may name any user.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base_net::pki::{Ca, Issued, PkiError, Profile, YEAR};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::token::TokenIssuer;

/// Why stored keys can not be used.
#[derive(Debug, thiserror::Error)]
pub enum PkiEntryError {
    #[error("the cluster has no {0}")]
    Missing(&'static str),
    #[error("the cluster's {0} is not text")]
    NotText(&'static str),
    #[error("the cluster's {what} can not be used")]
    Pki {
        what: &'static str,
        #[source]
        cause: PkiError,
    },
    #[error("the cluster's service-account key can not be used")]
    Token(#[source] crate::token::TokenError),
}

/// Who signs, in one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClusterPki {
    ca: Arc<Ca>,
    front_proxy_ca: Arc<Ca>,
    issuer: Arc<TokenIssuer>,
}

const CA_CERT: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const FRONT_PROXY_CERT: &str = "front-proxy-ca.crt";
const FRONT_PROXY_KEY: &str = "front-proxy-ca.key";
const SERVICE_ACCOUNT_KEY: &str = "sa.key";

/// What every cluster's API server is called by its own pods.
const API_SERVER_NAMES: [&str; 5] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
];

/// Whether a name is the API server's in every cluster. Nobody else may be certified or trusted under it.
pub fn is_api_server_name(name: &str) -> bool {
    API_SERVER_NAMES.iter().any(|own| own.eq_ignore_ascii_case(name))
}

impl ClusterPki {
    /// kubeadm's user of `admin.conf`; its rights come from the binding `kubeadm:cluster-admins`, so that
    /// they can be taken away, unlike those of `system:masters`.
    pub const ADMIN_USER: &'static str = "kubernetes-admin";
    pub const ADMIN_GROUP: &'static str = "kubeadm:cluster-admins";

    /// Fresh keys: three of P-256, a few milliseconds.
    pub fn generate() -> Result<ClusterPki, PkiEntryError> {
        let make = |what, name| Ca::generate(name).map_err(|cause| PkiEntryError::Pki { what, cause });
        Ok(ClusterPki {
            ca: Arc::new(make("CA", "kubernetes")?),
            front_proxy_ca: Arc::new(make("front-proxy CA", "front-proxy-ca")?),
            issuer: Arc::new(TokenIssuer::generate().map_err(PkiEntryError::Token)?),
        })
    }

    /// Names and blobs for the internal collection `_keys`.
    pub fn to_entries(&self) -> Vec<(&'static str, Bytes)> {
        let text = |pem: &str| Bytes::copy_from_slice(pem.as_bytes());
        vec![
            (CA_CERT, text(self.ca.cert_pem())),
            (CA_KEY, text(self.ca.key_pem())),
            (FRONT_PROXY_CERT, text(self.front_proxy_ca.cert_pem())),
            (FRONT_PROXY_KEY, text(self.front_proxy_ca.key_pem())),
            (SERVICE_ACCOUNT_KEY, text(self.issuer.key_pem())),
        ]
    }

    /// The inverse of [`ClusterPki::to_entries`]; `entry` looks a blob up by its name.
    pub fn from_entries(entry: impl Fn(&str) -> Option<Bytes>) -> Result<ClusterPki, PkiEntryError> {
        let text = |name: &'static str| {
            let blob = entry(name).ok_or(PkiEntryError::Missing(name))?;
            String::from_utf8(blob.to_vec()).map_err(|_| PkiEntryError::NotText(name))
        };
        let ca = |cert, key| {
            let made = Ca::from_pem(&text(cert)?, &text(key)?);
            made.map(Arc::new).map_err(|cause| PkiEntryError::Pki { what: cert, cause })
        };
        let issuer = TokenIssuer::from_pem(&text(SERVICE_ACCOUNT_KEY)?).map_err(PkiEntryError::Token)?;
        Ok(ClusterPki {
            ca: ca(CA_CERT, CA_KEY)?,
            front_proxy_ca: ca(FRONT_PROXY_CERT, FRONT_PROXY_KEY)?,
            issuer: Arc::new(issuer),
        })
    }

    pub fn ca(&self) -> &Arc<Ca> {
        &self.ca
    }
    pub fn front_proxy_ca(&self) -> &Arc<Ca> {
        &self.front_proxy_ca
    }
    pub fn issuer(&self) -> &Arc<TokenIssuer> {
        &self.issuer
    }
    /// What clients trust: `kube-root-ca.crt`, `certificate-authority-data`.
    pub fn ca_pem(&self) -> &str {
        self.ca.cert_pem()
    }
    /// What the API server's TLS accepts client certificates from: both authorities. Which of the two
    /// signed decides what the certificate means; [`crate::Authenticator`] looks.
    pub fn client_ca_bundle(&self) -> String {
        format!("{}{}", self.ca.cert_pem(), self.front_proxy_ca.cert_pem())
    }

    /// The API server's certificate: `names` and `addresses`, and what pods call it by.
    pub fn server_identity(&self, names: &[String], addresses: &[IpAddr]) -> Result<Issued, PkiError> {
        let mut dns_names: Vec<String> = names.to_vec();
        for name in API_SERVER_NAMES {
            if !dns_names.iter().any(|one| one == name) {
                dns_names.push(name.to_owned());
            }
        }
        self.ca.issue(&Profile {
            common_name: "kube-apiserver".to_owned(),
            dns_names,
            ip_addresses: addresses.to_vec(),
            server: true,
            lifetime: YEAR,
            ..Profile::default()
        })
    }

    /// A client certificate for `user` in `groups`.
    pub fn issue_client(&self, user: &str, groups: &[&str], lifetime: Duration) -> Result<Issued, PkiError> {
        self.issue_client_at(user, groups, SystemTime::now(), lifetime)
    }

    /// The same, made at `now` as far as it says: what a revocation goes by.
    pub fn issue_client_at(
        &self,
        user: &str,
        groups: &[&str],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Issued, PkiError> {
        let profile = Profile {
            common_name: user.to_owned(),
            organizations: groups.iter().map(|&group| group.to_owned()).collect(),
            client: true,
            lifetime,
            ..Profile::default()
        };
        self.ca.issue_at(&profile, now)
    }

    /// What an admin kubeconfig carries.
    pub fn admin_kubeconfig_cert(&self) -> Result<Issued, PkiError> {
        self.issue_client(ClusterPki::ADMIN_USER, &[ClusterPki::ADMIN_GROUP], YEAR)
    }

    /// The certificate with which the API server shows itself to kubelets and aggregated API servers.
    pub fn front_proxy_client(&self) -> Result<Issued, PkiError> {
        self.front_proxy_ca.issue(&Profile {
            common_name: "front-proxy-client".to_owned(),
            client: true,
            lifetime: YEAR,
            ..Profile::default()
        })
    }
}

/// A kubeconfig with one cluster, user and context. `server` is a URL; `tls_server_name` is the name in
/// the certificate where the URL's host is another.
pub fn kubeconfig(
    name: &str,
    server: &str,
    tls_server_name: Option<&str>,
    ca_pem: &str,
    user: &str,
    identity: &Issued,
) -> String {
    // JSON strings are YAML strings, so quoting is JSON's.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let sni =
        tls_server_name.map(|name| format!("    tls-server-name: {}\n", quote(name))).unwrap_or_default();
    let context = quote(&format!("{user}@{name}"));
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: {cluster}\n  cluster:\n    server: {server}\n{sni}    certificate-authority-data: {ca}\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {cert}\n    client-key-data: {key}\ncontexts:\n- name: {context}\n  context:\n    cluster: {cluster}\n    user: {user}\ncurrent-context: {context}\n",
        cluster = quote(name),
        server = quote(server),
        user = quote(user),
        ca = STANDARD.encode(ca_pem),
        cert = STANDARD.encode(&identity.cert_pem),
        key = STANDARD.encode(&identity.key_pem),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_being_stored() {
        let pki = ClusterPki::generate().unwrap();
        let entries = pki.to_entries();
        let find = |name: &str| entries.iter().find(|(one, _)| *one == name).map(|(_, blob)| blob.clone());
        let again = ClusterPki::from_entries(find).unwrap();
        assert_eq!(again.ca_pem(), pki.ca_pem());
        assert_eq!(again.issuer().key_id(), pki.issuer().key_id());
        for missing in entries.iter().map(|(name, _)| *name) {
            let without = |name: &str| if name == missing { None } else { find(name) };
            assert!(ClusterPki::from_entries(without).is_err(), "{missing} is needed");
            let spoilt =
                |name: &str| if name == missing { Some(Bytes::from_static(b"no")) } else { find(name) };
            assert!(ClusterPki::from_entries(spoilt).is_err(), "{missing} is checked");
        }
    }
}
