//! From a token to an identity: token discovery as kubeadm does it, then TLS bootstrap by CSR.
//!
//! Discovery trusts nobody at first: `cluster-info` is read from whoever answers, must carry a signature
//! made with the token's secret, and the CA in it must have one of the hashes that were given. Then it is
//! read again over TLS that trusts this CA alone. With the CA at hand none of this is needed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base_net::pki::{self, Issued, Profile};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::client::Body;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tracing::{info, warn};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::config::{AgentError, Bootstrap, NodeConfig};
use crate::connect::{Connector, Target};

/// A clock that differs more makes fresh certificates look unborn or dead. They are backdated by five
/// minutes; half of it leaves room for the drift until somebody looks.
const SKEW_MAX_SECONDS: i64 = 150;

/// How long to wait for somebody to approve.
const APPROVAL_PATIENCE: Duration = Duration::from_secs(5 * 60);
/// A signed request usually comes back within a second; after this long a person is asked for.
const APPROVAL_HINT: Duration = Duration::from_secs(10);

/// How long the cluster may take to sign its `cluster-info` with a token that was made just now.
const SIGNING_PATIENCE: Duration = Duration::from_secs(4);
const SIGNING_PAUSE: Duration = Duration::from_millis(200);

/// A node's name in its certificates stands behind this.
const NODE_PREFIX: &str = "system:node:";

pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// `roadstead node join`'s arguments.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    pub server: String,
    pub tls_server_name: Option<String>,
    pub token: String,
    pub ca_cert_hashes: Vec<String>,
    pub ca_file: Option<PathBuf>,
    /// The machine's host name if absent.
    pub name: Option<String>,
    pub data_dir: PathBuf,
}

/// Gets this machine an identity and writes `DIR/node.yaml`; the configuration is then ready to run.
/// A machine that joined already keeps the identity it has.
pub async fn join(options: JoinOptions) -> Result<NodeConfig, AgentError> {
    let name = options.name.unwrap_or_else(host_name);
    let mut config = NodeConfig::new(name, options.data_dir, options.server);
    config.tls_server_name = options.tls_server_name;
    config.bootstrap = Some(Bootstrap {
        token: options.token,
        ca_file: options.ca_file,
        ca_cert_hashes: options.ca_cert_hashes,
    });
    let target = Target::parse(&config.server, config.tls_server_name.as_deref())?;
    // Before the cluster hears of a node that could not run.
    node_network::requirements::check()?;
    node_network::cni::check_plugins(&config.cni_bin_dir)?;
    obtain(&config, &target).await?;
    let path = config.data_dir.join("node.yaml");
    // The token has done its work; what is left on the disk should not be able to make nodes.
    config.bootstrap = None;
    config.write(&path)?;
    info!(node = %config.name, config = %path.display(), "joined");
    Ok(config)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase()
}

/// Whom to trust and who to be; kept in `DIR/pki`.
#[derive(Debug, Clone)]
pub struct Membership {
    pub ca_pem: String,
    pub client: Issued,
}

impl Membership {
    fn folder(config: &NodeConfig) -> PathBuf {
        config.data_dir.join("pki")
    }

    /// What is on the disk, unless something is missing or the certificate has expired.
    pub fn load(config: &NodeConfig) -> Result<Option<Membership>, AgentError> {
        let folder = Membership::folder(config);
        let read = |file: &str| match std::fs::read_to_string(folder.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(cause) => {
                Err(AgentError::File { what: "this node's identity", path: folder.join(file), cause })
            }
        };
        let (Some(ca_pem), Some(both)) = (read("ca.crt")?, read("client.pem")?) else { return Ok(None) };
        let Some(client) = split_pem(&both) else {
            warn!(folder = %folder.display(), "this node's identity is damaged; getting a new one");
            return Ok(None);
        };
        let found = node_of(&client.cert_pem)?;
        if found != config.name {
            return Err(AgentError::OtherNode { folder, found, name: config.name.clone() });
        }
        let pins = config.bootstrap.iter().flat_map(|bootstrap| &bootstrap.ca_cert_hashes);
        let pins: Vec<String> = pins.cloned().collect();
        if !pins.is_empty() && !is_pinned(&ca_pem, &pins)? {
            return Err(AgentError::OtherCluster { folder });
        }
        let until = validity(&client.cert_pem)?.1;
        if until <= Timestamp::now() {
            warn!(%until, "this node's certificate has expired; getting a new one");
            return Ok(None);
        }
        Ok(Some(Membership { ca_pem, client }))
    }

    pub fn store(&self, config: &NodeConfig) -> Result<(), AgentError> {
        let folder = Membership::folder(config);
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            crate::config::write_private(&path, text).map_err(|cause| AgentError::File {
                what: "this node's identity",
                path,
                cause,
            })
        };
        write("ca.crt", &self.ca_pem)?;
        // Certificate and key in one file, so that a crash cannot leave one without the other.
        write("client.pem", &join_pem(&self.client))
    }
}

pub fn join_pem(issued: &Issued) -> String {
    format!("{}\n{}", issued.cert_pem.trim_end(), issued.key_pem)
}

pub fn split_pem(both: &str) -> Option<Issued> {
    let at = both.find("-----BEGIN PRIVATE KEY-----")?;
    let (cert_pem, key_pem) = both.split_at(at);
    let issued = Issued { cert_pem: cert_pem.to_owned(), key_pem: key_pem.to_owned() };
    let usable = pki::certs_from_pem(&issued.cert_pem).is_ok_and(|certs| !certs.is_empty())
        && pki::key_from_pem(&issued.key_pem).is_ok();
    usable.then_some(issued)
}

/// What `look` finds in the first certificate of a PEM text.
pub fn with_certificate<T>(
    cert_pem: &str,
    look: impl FnOnce(&X509Certificate<'_>) -> Result<T, String>,
) -> Result<T, AgentError> {
    let unusable = |why: String| AgentError::Certificate { what: "a certificate", why };
    let certs = pki::certs_from_pem(cert_pem)?;
    let first = certs.first().ok_or_else(|| unusable("none in the file".to_owned()))?;
    let (_, parsed) = X509Certificate::from_der(first).map_err(|error| unusable(error.to_string()))?;
    look(&parsed).map_err(unusable)
}

/// From when until when a certificate is valid.
pub fn validity(cert_pem: &str) -> Result<(Timestamp, Timestamp), AgentError> {
    with_certificate(cert_pem, |certificate| {
        let moment = |at: x509_parser::time::ASN1Time| {
            Timestamp::from_second(at.timestamp()).map_err(|error| error.to_string())
        };
        Ok((moment(certificate.validity().not_before)?, moment(certificate.validity().not_after)?))
    })
}

/// The node that a client certificate is for: `system:node:` and this.
fn node_of(cert_pem: &str) -> Result<String, AgentError> {
    with_certificate(cert_pem, |certificate| {
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let node = name.and_then(|name| name.strip_prefix(NODE_PREFIX));
        node.map(str::to_owned).ok_or_else(|| format!("it is for {}, no node", certificate.subject()))
    })
}

/// The identity on disk, or a new one by the token of the configuration.
pub async fn obtain(config: &NodeConfig, target: &Target) -> Result<Membership, AgentError> {
    if let Some(membership) = Membership::load(config)? {
        return Ok(membership);
    }
    let bootstrap = config
        .bootstrap
        .as_ref()
        .ok_or_else(|| AgentError::NoIdentity { folder: Membership::folder(config) })?;
    let token = Token::parse(&bootstrap.token)?;
    let ca_pem = match &bootstrap.ca_file {
        Some(path) => std::fs::read_to_string(path).map_err(|cause| AgentError::File {
            what: "the cluster's CA",
            path: path.clone(),
            cause,
        })?,
        None if bootstrap.ca_cert_hashes.is_empty() => return Err(AgentError::NoTrust),
        None => discover(target, &token, &bootstrap.ca_cert_hashes).await?,
    };
    let client = Connector::trusting(target.clone(), &ca_pem, None)?.client(Some(&bootstrap.token))?;
    check_clock(&client, target).await?;
    refuse_taken_name(&client, &token, &config.name).await?;
    let profile = Profile { client: true, ..profile(&config.name) };
    let issued =
        request(&client, &profile, CLIENT_SIGNER, "client auth").await.map_err(|error| match error {
            AgentError::Api { cause, .. } if code_of(&cause) == Some(401) => {
                AgentError::TokenUnknown { id: token.id.clone() }
            }
            other => other,
        })?;
    let membership = Membership { ca_pem, client: issued };
    membership.store(config)?;
    info!(node = %config.name, "this node has an identity");
    Ok(membership)
}

/// Whom a certificate of the node `name` names.
pub fn profile(name: &str) -> Profile {
    Profile {
        common_name: format!("{NODE_PREFIX}{name}"),
        organizations: vec!["system:nodes".to_owned()],
        ..Profile::default()
    }
}

/// Sends a CSR and waits for its certificate.
pub async fn request(
    client: &kube::Client,
    profile: &Profile,
    signer: &str,
    usage: &str,
) -> Result<Issued, AgentError> {
    let (csr_pem, key_pem) = pki::request(profile)?;
    let prefix = if signer == CLIENT_SIGNER { "node-csr" } else { "csr" };
    let name = format!("{prefix}-{}", hex::encode(&Sha256::digest(&csr_pem)[..16]));
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(csr_pem.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), usage.to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let failed = |what| move |cause| AgentError::Api { what, cause };
    requests
        .create(&PostParams::default(), &object)
        .await
        .map_err(failed("sending a certificate request"))?;
    let started = tokio::time::Instant::now();
    let mut pause = Duration::from_millis(50);
    let mut hinted = false;
    while started.elapsed() < APPROVAL_PATIENCE {
        let now = requests.get(&name).await.map_err(failed("reading a certificate request"))?;
        if let Some(status) = now.status {
            if let Some(certificate) = status.certificate {
                let cert_pem = String::from_utf8(certificate.0).map_err(|error| AgentError::Certificate {
                    what: "the certificate that was issued",
                    why: error.to_string(),
                })?;
                return Ok(Issued { cert_pem, key_pem });
            }
            let refused = |kind: &str| kind == "Denied" || kind == "Failed";
            if let Some(condition) = status.conditions.iter().flatten().find(|one| refused(&one.type_)) {
                let why = condition.message.clone().or(condition.reason.clone()).unwrap_or_default();
                return Err(AgentError::Denied { name, why });
            }
        }
        if !hinted && started.elapsed() > APPROVAL_HINT {
            hinted = true;
            info!(%name, signer, "waiting for the certificate request to be approved");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(3));
    }
    Err(AgentError::NotApproved { name, minutes: APPROVAL_PATIENCE.as_secs() / 60 })
}

fn code_of(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// A bootstrap token's two halves.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    id: String,
    secret: String,
}

impl Token {
    fn parse(given: &str) -> Result<Token, AgentError> {
        let fine = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        match given.split_once('.') {
            Some((id, secret)) if fine(id, 6) && fine(secret, 16) => {
                Ok(Token { id: id.to_owned(), secret: secret.to_owned() })
            }
            // Not the whole of it: the secret may be in there.
            _ => Err(AgentError::TokenForm { given: given.chars().take(6).collect::<String>() + "…" }),
        }
    }
}

/// The cluster's CA as its `cluster-info` says, once that is proven.
async fn discover(target: &Target, token: &Token, hashes: &[String]) -> Result<String, AgentError> {
    let anybody = Connector::trusting_anybody(target.clone())?.client(None)?;
    check_clock(&anybody, target).await?;
    let asked = tokio::time::Instant::now();
    let ca_pem = loop {
        match proven_ca(&read_cluster_info(&anybody, target).await?, token) {
            // The cluster may not have seen the token yet.
            Err(AgentError::TokenUnknown { .. }) if asked.elapsed() < SIGNING_PATIENCE => {
                tokio::time::sleep(SIGNING_PAUSE).await;
            }
            proven => break proven?,
        }
    };
    check_pins(&ca_pem, hashes)?;
    // Whoever could relay the signed document cannot also hold a certificate of this CA.
    let trusted = Connector::trusting(target.clone(), &ca_pem, None)?.client(None)?;
    let again = proven_ca(&read_cluster_info(&trusted, target).await?, token)?;
    if again != ca_pem {
        return Err(AgentError::ClusterInfo { why: "its CA changed between two reads".to_owned() });
    }
    Ok(ca_pem)
}

async fn read_cluster_info(
    client: &kube::Client,
    target: &Target,
) -> Result<BTreeMap<String, String>, AgentError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    match maps.get("cluster-info").await {
        Ok(map) => Ok(map.data.unwrap_or_default()),
        Err(kube::Error::Api(status)) => Err(AgentError::ClusterInfo { why: status.message.clone() }),
        Err(error) => Err(unreachable_or_untrusted(target, error)),
    }
}

fn unreachable_or_untrusted(target: &Target, error: kube::Error) -> AgentError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut text = String::new();
    while let Some(one) = cause {
        text += &one.to_string();
        text += "; ";
        cause = one.source();
    }
    if text.contains("UnknownIssuer") || text.contains("BadSignature") {
        return AgentError::WrongCa { server: target.server() };
    }
    AgentError::Unreachable { server: target.server(), cause: Box::new(error) }
}

/// The CA in a `cluster-info` whose signature by the token holds.
fn proven_ca(data: &BTreeMap<String, String>, token: &Token) -> Result<String, AgentError> {
    let missing = |what: &str| AgentError::ClusterInfo { why: format!("there is no {what} in it") };
    let kubeconfig = data.get("kubeconfig").ok_or_else(|| missing("kubeconfig"))?;
    let signature = data
        .get(&format!("jws-kubeconfig-{}", token.id))
        .ok_or_else(|| AgentError::TokenUnknown { id: token.id.clone() })?;
    if !is_signed(kubeconfig, signature, token) {
        return Err(AgentError::TokenSignature { id: token.id.clone() });
    }
    #[derive(Deserialize)]
    struct Kubeconfig {
        clusters: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        cluster: Cluster,
    }
    #[derive(Deserialize)]
    struct Cluster {
        #[serde(rename = "certificate-authority-data")]
        ca: String,
    }
    let parsed: Kubeconfig = serde_yaml::from_str(kubeconfig).map_err(|_| missing("readable kubeconfig"))?;
    let encoded = parsed.clusters.first().map(|named| named.cluster.ca.trim().to_owned());
    let decoded = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
    decoded.and_then(|pem| String::from_utf8(pem).ok()).ok_or_else(|| missing("CA"))
}

/// A detached JWS (`header..signature`) by HMAC-SHA256 with the token's secret as key.
fn is_signed(content: &str, signature: &str, token: &Token) -> bool {
    #[derive(Deserialize)]
    struct Header {
        alg: String,
        kid: String,
    }
    let Some((header, mac)) = signature.trim().split_once("..") else { return false };
    let parsed =
        URL_SAFE_NO_PAD.decode(header).ok().and_then(|json| serde_json::from_slice::<Header>(&json).ok());
    if !parsed.is_some_and(|parsed| parsed.alg == "HS256" && parsed.kid == token.id) {
        return false;
    }
    let Ok(mac) = URL_SAFE_NO_PAD.decode(mac) else { return false };
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, token.secret.as_bytes());
    aws_lc_rs::hmac::verify(&key, signed.as_bytes(), &mac).is_ok()
}

/// One of the CAs has one of the hashes (of its public key, as kubeadm prints it).
fn check_pins(ca_pem: &str, hashes: &[String]) -> Result<(), AgentError> {
    if is_pinned(ca_pem, hashes)? {
        return Ok(());
    }
    let found = key_hashes(ca_pem)?.iter().map(hex::encode).collect::<Vec<_>>().join(", sha256:");
    Err(AgentError::WrongCaHash { found })
}

fn is_pinned(ca_pem: &str, hashes: &[String]) -> Result<bool, AgentError> {
    let mut wanted = Vec::new();
    for hash in hashes {
        let bytes = hash.trim().strip_prefix("sha256:").and_then(|hex| hex::decode(hex).ok());
        let bytes = bytes.filter(|bytes| bytes.len() == 32);
        wanted.push(bytes.ok_or_else(|| AgentError::CaHashForm { given: hash.clone() })?);
    }
    let found = key_hashes(ca_pem)?;
    Ok(found.iter().any(|found| wanted.iter().any(|wanted| wanted == found)))
}

/// SHA-256 of each certificate's public key.
fn key_hashes(ca_pem: &str) -> Result<Vec<Vec<u8>>, AgentError> {
    let hash = |der: &[u8]| match X509Certificate::from_der(der) {
        Ok((_, parsed)) => Ok(Sha256::digest(parsed.public_key().raw).to_vec()),
        Err(error) => Err(AgentError::Certificate { what: "the cluster's CA", why: error.to_string() }),
    };
    pki::certs_from_pem(ca_pem)?.iter().map(|der| hash(der)).collect()
}

/// Compares this machine's clock with the server's, which every HTTP answer tells.
pub async fn check_clock(client: &kube::Client, target: &Target) -> Result<(), AgentError> {
    let request = http::Request::get("/livez").body(Body::empty());
    let Ok(request) = request else { return Ok(()) };
    let response = client.send(request).await.map_err(|error| unreachable_or_untrusted(target, error))?;
    let date = response.headers().get(http::header::DATE).and_then(|value| value.to_str().ok());
    let Some(theirs) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) else { return Ok(()) };
    match skew(Timestamp::now(), theirs.timestamp()) {
        None => Ok(()),
        Some((seconds, direction)) => Err(AgentError::Skew { seconds, direction }),
    }
}

fn skew(ours: Timestamp, theirs: Timestamp) -> Option<(i64, &'static str)> {
    let ahead = ours.as_second() - theirs.as_second();
    (ahead.abs() > SKEW_MAX_SECONDS).then_some((ahead.abs(), if ahead > 0 { "ahead of" } else { "behind" }))
}

/// A Ready node of this name is another machine, since this one has no identity yet.
async fn refuse_taken_name(client: &kube::Client, token: &Token, name: &str) -> Result<(), AgentError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = match nodes.get_opt(name).await {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(()),
        Err(error) if code_of(&error) == Some(401) => {
            return Err(AgentError::TokenUnknown { id: token.id.clone() });
        }
        Err(error) => {
            // Tokens of some clusters may not look; the tunnel finds out later then.
            info!(%error, "cannot look whether the node's name is free");
            return Ok(());
        }
    };
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    if ready { Err(AgentError::NameTaken { name: name.to_owned() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn sign(content: &str, header: &str, secret: &str) -> String {
        let header = URL_SAFE_NO_PAD.encode(header);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(aws_lc_rs::hmac::sign(&key, signed.as_bytes())))
    }

    #[test]
    fn cluster_info_is_believed_only_when_signed() {
        let token = Token::parse(TOKEN).unwrap();
        let good = r#"{"alg":"HS256","kid":"abcdef"}"#;
        let ca = STANDARD.encode("-----the CA-----");
        let content = format!("clusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: x\n");
        for (key, signature, content, outcome) in [
            ("abcdef", sign(&content, good, &token.secret), content.as_str(), "-----the CA-----"),
            ("abcdef", sign("other", good, &token.secret), &content, "signature"),
            ("abcdef", sign(&content, good, "another-secret"), &content, "signature"),
            (
                "abcdef",
                sign(&content, r#"{"alg":"none","kid":"abcdef"}"#, &token.secret),
                &content,
                "signature",
            ),
            (
                "abcdef",
                sign(&content, r#"{"alg":"HS256","kid":"other1"}"#, &token.secret),
                &content,
                "signature",
            ),
            ("abcdef", "rubbish".to_owned(), &content, "signature"),
            ("other1", sign(&content, good, &token.secret), &content, "unknown"),
            ("abcdef", sign("clusters: []", good, &token.secret), "clusters: []", "there is no CA in it"),
        ] {
            let mut data = BTreeMap::new();
            data.insert("kubeconfig".to_owned(), content.to_owned());
            data.insert(format!("jws-kubeconfig-{key}"), signature);
            let said = match proven_ca(&data, &token) {
                Ok(ca) => ca,
                Err(AgentError::TokenSignature { .. }) => "signature".to_owned(),
                Err(AgentError::TokenUnknown { .. }) => "unknown".to_owned(),
                Err(AgentError::ClusterInfo { why }) => why,
                Err(other) => panic!("{other}"),
            };
            assert_eq!(said, outcome);
        }
    }

    #[test]
    fn pins_are_hashes_of_public_keys() {
        let ca = pki::Ca::generate("kubernetes").unwrap();
        let der = ca.cert_der().unwrap();
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&der).unwrap();
        let right = format!("sha256:{}", hex::encode(Sha256::digest(parsed.public_key().raw)));
        let wrong = format!("sha256:{}", "0".repeat(64));
        for (pins, fine) in [
            (vec![right.clone()], true),
            (vec![wrong.clone(), right], true),
            (vec![wrong], false),
            (vec!["sha256:12".to_owned()], false),
            (vec!["md5:00".to_owned()], false),
        ] {
            assert_eq!(check_pins(ca.cert_pem(), &pins).is_ok(), fine, "{pins:?}");
        }
    }

    #[test]
    fn tokens_and_clocks() {
        for (given, fine) in [
            (TOKEN, true),
            ("abcdef", false),
            ("ABCDEF.0123456789abcdef", false),
            ("abcdef.0123456789abcde", false),
            ("abcdef.0123456789abcdef.x", false),
        ] {
            assert_eq!(Token::parse(given).is_ok(), fine, "{given}");
        }
        let at = |second| Timestamp::from_second(second).unwrap();
        for (ours, theirs, said) in [
            (1000, 1000, None),
            (1000, 1100, None),
            (1000, 2000, Some((1000, "behind"))),
            (2000, 1000, Some((1000, "ahead of"))),
        ] {
            assert_eq!(skew(at(ours), at(theirs)), said);
        }
    }

    #[test]
    fn an_identity_is_one_file() {
        let ca = pki::Ca::generate("kubernetes").unwrap();
        let profile =
            Profile { common_name: "system:node:n".to_owned(), lifetime: pki::YEAR, ..Profile::default() };
        let issued = ca.issue(&profile).unwrap();
        let back = split_pem(&join_pem(&issued)).unwrap();
        assert_eq!((back.cert_pem.trim(), back.key_pem), (issued.cert_pem.trim(), issued.key_pem));
        assert!(split_pem("-----BEGIN PRIVATE KEY-----\nrubbish").is_none());
        let (from, until) = validity(&back.cert_pem).unwrap();
        assert!(from < Timestamp::now() && until > Timestamp::now());
    }
}
