//! Bootstrap tokens of a hosted cluster, for the manager: made, listed, deleted.
//!
//! They are Secrets as kubeadm makes them, so kubectl and `kubeadm token` see the same ones:
//! <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>. Everything goes through the
//! cluster's API under the manager's own name.
//!
//! Not here: checking a token (`tenant-auth`), removing expired ones (the token cleaner does).

use std::time::Duration;

use api_machinery::{Document, FieldSelector, Gvr, Object};
use base_clock::Timestamp;
use base64::Engine;
use fleet_rpc::{CreateJoinTokenResponse, JoinTokenInfo};
use rand::Rng;
use serde_json::json;
use tenant_client::{CreateOptions, DeleteOptions, ListOptions, SharedApi, UserInfo};
use tonic::Status;

use crate::hosted::Hosted;

const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const NAME_PREFIX: &str = "bootstrap-token-";

/// No token that lets a machine in lives longer.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// A fresh token and what a machine needs beside it.
pub(crate) async fn create(
    hosted: &Hosted,
    now: Timestamp,
    lifetime: Duration,
    description: &str,
) -> Result<CreateJoinTokenResponse, Status> {
    let (id, secret) = (random_token(6), random_token(16));
    let expires = now + lifetime.min(LONGEST);
    let description =
        if description.is_empty() { "made by the manager for a node to join" } else { description };
    let document = Document::from_value(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("{NAME_PREFIX}{id}"), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "stringData": {
            "token-id": id,
            "token-secret": secret,
            "expiration": base_clock::rfc3339(expires),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            "description": description,
        },
    }))
    .unwrap_or_default();
    let options = CreateOptions { namespace: Some(NAMESPACE.to_owned()), ..CreateOptions::default() };
    as_manager(hosted)
        .create(&Gvr::core("secrets"), document, options)
        .await
        .map_err(|status| Status::unavailable(status.message))?;
    let ca_pem = hosted.plane().pki().ca_pem().to_owned();
    Ok(CreateJoinTokenResponse {
        token: format!("{id}.{secret}"),
        ca_cert_hash: base_net::pki::public_key_hash(&ca_pem)
            .map_err(|error| Status::internal(error.to_string()))?,
        ca_pem,
    })
}

/// By id. A Secret that is no bootstrap token after all is left out.
pub(crate) async fn list(hosted: &Hosted) -> Result<Vec<JoinTokenInfo>, Status> {
    let fields = FieldSelector::parse(&format!("type={SECRET_TYPE}"))
        .map_err(|error| Status::internal(error.to_string()))?;
    let options = ListOptions { namespace: Some(NAMESPACE.to_owned()), fields, ..ListOptions::default() };
    let found = as_manager(hosted)
        .list(&Gvr::core("secrets"), options)
        .await
        .map_err(|status| Status::unavailable(status.message))?;
    let mut tokens: Vec<JoinTokenInfo> = found.items.iter().filter_map(|object| info(object)).collect();
    tokens.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(tokens)
}

/// True when it was there.
pub(crate) async fn delete(hosted: &Hosted, id: &str) -> Result<bool, Status> {
    // The id becomes part of a name: nothing but a token's id may.
    if id.len() != 6 || !id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
        return Ok(false);
    }
    let name = format!("{NAME_PREFIX}{id}");
    let gone = as_manager(hosted)
        .delete(&Gvr::core("secrets"), Some(NAMESPACE), &name, DeleteOptions::default())
        .await;
    match gone {
        Ok(_) => Ok(true),
        Err(status) if status.is_not_found() => Ok(false),
        Err(status) => Err(Status::unavailable(status.message)),
    }
}

fn info(object: &Object) -> Option<JoinTokenInfo> {
    let data = object.field("data")?;
    let text = |name: &str| {
        let encoded = data.get(name)?.as_str()?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
        String::from_utf8(bytes).ok()
    };
    let expires = text("expiration").and_then(|text| text.parse::<Timestamp>().ok());
    Some(JoinTokenInfo {
        id: text("token-id")?,
        description: text("description").unwrap_or_default(),
        expires_at_seconds: expires.map_or(0, |at| at.as_second()),
    })
}

/// The cluster's API, as the manager: its name is what audit shows.
fn as_manager(hosted: &Hosted) -> SharedApi {
    let manager = UserInfo {
        name: "roadstead:manager".to_owned(),
        groups: vec![UserInfo::MASTERS.to_owned(), UserInfo::AUTHENTICATED.to_owned()],
        ..UserInfo::default()
    };
    hosted.plane().client(manager, None)
}

/// Lower-case letters and digits, as bootstrap tokens want them.
fn random_token(length: usize) -> String {
    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // The thread's generator is a CSPRNG seeded by the operating system.
    let mut random = rand::rng();
    (0..length).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}
