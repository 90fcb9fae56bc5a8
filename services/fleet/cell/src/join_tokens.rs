//! Bootstrap tokens of a hosted cluster, for the manager: made, listed, deleted.
//!
//! They are Secrets as kubeadm makes them, so kubectl and `kubeadm token` see the same ones:
//! <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>. Everything goes through the
//! cluster's API under the manager's own name.
//!
//! Not here: checking a token (`tenant-auth`), removing expired ones (the token cleaner does).

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, FieldSelector, Gvr, Object};
use base_clock::Timestamp;
use base64::Engine;
use fleet_rpc::{CreateJoinTokenResponse, JoinTokenInfo};
use rand::Rng;
use serde_json::json;
use tenant_auth::NODE_OF_TOKEN;
use tenant_client::{CreateOptions, DeleteOptions, ListOptions, SharedApi, UserInfo};
use tonic::Status;

use crate::hosted::Hosted;

const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const NAME_PREFIX: &str = "bootstrap-token-";

/// The two halves of a token, around its dot.
const ID_CHARS: usize = 6;
const SECRET_CHARS: usize = 16;

/// On a token that was made for a request: which one.
const REQUEST: &str = "roadstead.dev/request-id";

/// No token that lets a machine in lives longer.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// A fresh token and what a machine needs beside it.
pub(crate) async fn create(
    hosted: &Hosted,
    now: Timestamp,
    lifetime: Duration,
    description: &str,
) -> Result<CreateJoinTokenResponse, Status> {
    let token = Token::fresh();
    put(hosted, &token, now + lifetime.min(LONGEST), description).await.map_err(unavailable)?;
    answer(hosted, &token)
}

/// A fresh token with which a machine can become the node `node` and no other.
pub(crate) async fn create_for_node(
    hosted: &Hosted,
    now: Timestamp,
    lifetime: Duration,
    node: &str,
    description: &str,
) -> Result<CreateJoinTokenResponse, Status> {
    let token = Token { node, ..Token::fresh() };
    put(hosted, &token, now + lifetime.min(LONGEST), description).await.map_err(unavailable)?;
    answer(hosted, &token)
}

/// The token of one request: with the same `request` (a UUID) again, it is that token with another secret. So
/// a request whose answer was lost leaves no second one behind.
pub(crate) async fn create_for(
    hosted: &Hosted,
    now: Timestamp,
    lifetime: Duration,
    description: &str,
    request: &str,
) -> Result<CreateJoinTokenResponse, Status> {
    let Some(id) = id_of(request) else { return create(hosted, now, lifetime, description).await };
    let token = Token { id, request, ..Token::fresh() };
    let expires = now + lifetime.min(LONGEST);
    match put(hosted, &token, expires, description).await {
        Ok(()) => return answer(hosted, &token),
        Err(status) if status.is_already_exists() => {}
        Err(status) => return Err(unavailable(status)),
    }
    if !is_of(hosted, &token.id, request).await? {
        // Six characters are few: somebody else's token happens to have them.
        return create(hosted, now, lifetime, description).await;
    }
    delete(hosted, &token.id).await?;
    put(hosted, &token, expires, description).await.map_err(unavailable)?;
    answer(hosted, &token)
}

struct Token<'a> {
    id: String,
    secret: String,
    /// The request that it was made for; empty when nobody will ask again.
    request: &'a str,
    /// The only node that it may become; empty when any.
    node: &'a str,
}

impl Token<'_> {
    fn fresh() -> Token<'static> {
        Token { id: random_token(ID_CHARS), secret: random_token(SECRET_CHARS), request: "", node: "" }
    }
}

/// Writes the Secret of a token.
async fn put(
    hosted: &Hosted,
    token: &Token<'_>,
    expires: Timestamp,
    description: &str,
) -> Result<(), api_machinery::Status> {
    let description =
        if description.is_empty() { "made by the manager for a node to join" } else { description };
    let mut value = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("{NAME_PREFIX}{}", token.id), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "expiration": base_clock::rfc3339(expires),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            "description": description,
        },
    });
    for (name, text) in [(REQUEST, token.request), (NODE_OF_TOKEN, token.node)] {
        if !text.is_empty() {
            value["metadata"]["annotations"][name] = text.into();
        }
    }
    let document = Document::from_value(value).unwrap_or_default();
    let options = CreateOptions { namespace: Some(NAMESPACE.to_owned()), ..CreateOptions::default() };
    as_manager(hosted).create(&Gvr::core("secrets"), document, options).await.map(drop)
}

fn answer(hosted: &Hosted, token: &Token<'_>) -> Result<CreateJoinTokenResponse, Status> {
    let ca_pem = hosted.plane().pki().ca_pem().to_owned();
    Ok(CreateJoinTokenResponse {
        token: format!("{}.{}", token.id, token.secret),
        ca_cert_hash: base_net::pki::public_key_hash(&ca_pem)
            .map_err(|error| Status::internal(error.to_string()))?,
        ca_pem,
    })
}

/// Whether the token was made for `request`.
async fn is_of(hosted: &Hosted, id: &str, request: &str) -> Result<bool, Status> {
    let name = format!("{NAME_PREFIX}{id}");
    match as_manager(hosted).get(&Gvr::core("secrets"), Some(NAMESPACE), &name).await {
        Ok(object) => {
            let metadata = object.field("metadata").unwrap_or_default();
            Ok(metadata["annotations"][REQUEST] == request)
        }
        // It expired just now.
        Err(status) if status.is_not_found() => Ok(true),
        Err(status) => Err(unavailable(status)),
    }
}

fn unavailable(status: api_machinery::Status) -> Status {
    Status::unavailable(status.message)
}

/// By id. A Secret that is no bootstrap token after all is left out.
pub(crate) async fn list(hosted: &Hosted) -> Result<Vec<JoinTokenInfo>, Status> {
    let mut tokens: Vec<JoinTokenInfo> =
        secrets(hosted).await?.iter().filter_map(|object| info(object)).collect();
    tokens.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(tokens)
}

/// Secrets that say of themselves that they are tokens.
async fn secrets(hosted: &Hosted) -> Result<Vec<Arc<Object>>, Status> {
    let fields = FieldSelector::parse(&format!("type={SECRET_TYPE}"))
        .map_err(|error| Status::internal(error.to_string()))?;
    let options = ListOptions { namespace: Some(NAMESPACE.to_owned()), fields, ..ListOptions::default() };
    Ok(as_manager(hosted).list(&Gvr::core("secrets"), options).await.map_err(unavailable)?.items)
}

/// Every token of [`create_for_node`] that was made for `node`.
pub(crate) async fn delete_of_node(hosted: &Hosted, node: &str) -> Result<(), Status> {
    for secret in secrets(hosted).await? {
        let metadata = secret.field("metadata").unwrap_or_default();
        if metadata["annotations"][NODE_OF_TOKEN] == node
            && let Some(id) = secret.header.name.strip_prefix(NAME_PREFIX)
        {
            delete(hosted, id).await?;
        }
    }
    Ok(())
}

/// True when it was there.
pub(crate) async fn delete(hosted: &Hosted, id: &str) -> Result<bool, Status> {
    // The id becomes part of a name: nothing but a token's id may.
    if id.len() != ID_CHARS || !id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
        return Ok(false);
    }
    let name = format!("{NAME_PREFIX}{id}");
    let gone = as_manager(hosted)
        .delete(&Gvr::core("secrets"), Some(NAMESPACE), &name, DeleteOptions::default())
        .await;
    match gone {
        Ok(_) => Ok(true),
        Err(status) if status.is_not_found() => Ok(false),
        Err(status) => Err(unavailable(status)),
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

/// What bootstrap tokens are made of.
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// The id of the token that a request (a UUID) makes: always the same one.
fn id_of(request: &str) -> Option<String> {
    // The low half of a UUIDv7 is random; the high half is a clock.
    let (_, mut rest) = request.parse::<uuid::Uuid>().ok()?.as_u64_pair();
    let mut id = String::with_capacity(ID_CHARS);
    for _ in 0..ID_CHARS {
        let letter = usize::try_from(rest % ALPHABET.len() as u64).ok()?;
        id.push(char::from(ALPHABET[letter]));
        rest /= ALPHABET.len() as u64;
    }
    Some(id)
}

/// Lower-case letters and digits, as bootstrap tokens want them.
fn random_token(length: usize) -> String {
    // The thread's generator is a CSPRNG seeded by the operating system.
    let mut random = rand::rng();
    (0..length).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_always_makes_the_same_token() {
        let one = "0190163d-8694-739b-aea5-966c26f8ad91";
        let id = id_of(one).unwrap_or_default();
        assert_eq!(Some(id.clone()), id_of(one));
        assert!(id.len() == ID_CHARS && id.bytes().all(|byte| ALPHABET.contains(&byte)), "{id}");
        assert_ne!(Some(id), id_of("0190163d-8694-739b-aea5-966c26f8ad92"));
        assert_eq!((id_of(""), id_of("x")), (None, None));
    }
}
