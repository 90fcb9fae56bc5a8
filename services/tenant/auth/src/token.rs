//! Service-account tokens: JWTs signed with ES256.
//!
//! [`TokenIssuer`] signs and publishes its key ([`TokenIssuer::jwks`]); [`TokenKeys`] verifies. Whether
//! the account, pod, secret or node a token names still exists is the [`crate::Authenticator`]'s to ask.
//!
//! Not here: other issuers (OIDC), other algorithms. A header that names one is refused before anything
//! is computed from it.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

/// The issuer of every cluster's service-account tokens, and their default audience.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Where the key set is published, below the API server's address.
const JWKS_PATH: &str = "/openid/v1/jwks";

/// Longer tokens are refused unread: ours are under 2 KiB, and this one comes from strangers.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Clocks of issuer and verifier may differ by this much.
pub(crate) const LEEWAY_SECONDS: i64 = 60;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the signing key can not be used")]
    Key,
    #[error("signing failed")]
    Sign,
    /// Not a token of this issuer at all: others may try.
    #[error("not a service account token of this cluster")]
    Foreign,
    #[error("{0}")]
    Invalid(String),
}

/// Signs tokens.
pub struct TokenIssuer {
    key: EcdsaKeyPair,
    key_pem: String,
    keys: TokenKeys,
}

impl std::fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenIssuer").field("key_id", &self.keys.key_id).finish_non_exhaustive()
    }
}

impl TokenIssuer {
    pub fn generate() -> Result<TokenIssuer, TokenError> {
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| TokenError::Key)?;
        let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
        let body = STANDARD.encode(der.as_ref());
        for line in body.as_bytes().chunks(64) {
            // Base64 is ASCII, so every chunk is text.
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        TokenIssuer::from_pem(&pem)
    }

    /// From a PKCS#8 key, PEM.
    pub fn from_pem(key_pem: &str) -> Result<TokenIssuer, TokenError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|_| TokenError::Key)?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der())
            .map_err(|_| TokenError::Key)?;
        let keys = TokenKeys::new(key.public_key().as_ref().to_vec());
        Ok(TokenIssuer { key, key_pem: key_pem.to_owned(), keys })
    }

    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }
    pub fn key_id(&self) -> &str {
        &self.keys.key_id
    }
    /// What verifies this issuer's tokens.
    pub fn keys(&self) -> &TokenKeys {
        &self.keys
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, TokenError> {
        self.sign_claims(claims)
    }

    pub(crate) fn sign_claims(&self, claims: &impl Serialize) -> Result<String, TokenError> {
        let header = json!({"alg": "ES256", "kid": self.keys.key_id});
        let payload = serde_json::to_vec(claims).map_err(|_| TokenError::Sign)?;
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(payload, &mut token);
        let signature =
            self.key.sign(&SystemRandom::new(), token.as_bytes()).map_err(|_| TokenError::Sign)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature.as_ref(), &mut token);
        Ok(token)
    }

    /// `/.well-known/openid-configuration`
    pub fn discovery(&self) -> serde_json::Value {
        json!({
            "issuer": ISSUER,
            "jwks_uri": format!("{ISSUER}{JWKS_PATH}"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// `/openid/v1/jwks`, to be sent as `application/jwk-set+json`.
    pub fn jwks(&self) -> serde_json::Value {
        // An uncompressed point: 0x04, then x and y of 32 bytes each.
        let (x, y) = self.keys.point[1..].split_at(32);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.keys.key_id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }]})
    }
}

/// Verifies tokens: the public half.
#[derive(Debug, Clone)]
pub struct TokenKeys {
    key_id: String,
    point: Vec<u8>,
}

impl TokenKeys {
    fn new(point: Vec<u8>) -> TokenKeys {
        // SubjectPublicKeyInfo of a P-256 key up to its point. The key id is the hash of the whole, as
        // upstream derives it, so that keys moved from elsewhere keep their ids.
        const SPKI: [u8; 26] = [
            0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
            0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
        ];
        let mut hash = Sha256::new();
        hash.update(SPKI);
        hash.update(&point);
        TokenKeys { key_id: URL_SAFE_NO_PAD.encode(hash.finalize()), point }
    }

    /// Whose it is and what it says, if the signature holds. Time and audience are checked by
    /// [`Claims::check`].
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let payload = self.signed(token, ISSUER)?;
        serde_json::from_slice(&payload)
            .map_err(|_| TokenError::Invalid("service account token has unreadable claims".to_owned()))
    }

    /// The payload of a token that `issuer` signed with this key.
    pub(crate) fn signed(&self, token: &str, issuer: &str) -> Result<Vec<u8>, TokenError> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            #[serde(default)]
            kid: Option<String>,
        }
        #[derive(Deserialize)]
        struct Issuer {
            iss: String,
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Foreign);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Foreign)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Foreign)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Foreign);
        let payload = decode(payload)?;
        // The issuer is read unverified, only to tell a stranger's token from a bad one of ours.
        let Issuer { iss } = serde_json::from_slice(&payload).map_err(|_| TokenError::Foreign)?;
        if iss != issuer {
            return Err(TokenError::Foreign);
        }
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Foreign)?;
        let invalid = |why: &str| TokenError::Invalid(why.to_owned());
        if header.alg != "ES256" {
            return Err(invalid("invalid bearer token: unexpected signature algorithm"));
        }
        if header.kid.is_some_and(|kid| kid != self.key_id) {
            return Err(invalid("invalid bearer token: unknown key"));
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.point)
            .verify(signed.as_bytes(), &decode(signature)?)
            .map_err(|_| invalid("invalid signature"))?;
        Ok(payload)
    }
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(default, deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    /// Seconds since 1970, like `iat` and `nbf`.
    pub exp: i64,
    #[serde(default)]
    pub iat: i64,
    pub iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    #[serde(default)]
    pub nbf: i64,
    pub sub: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// A name and the uid that the name must still have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub uid: String,
}

/// The object whose deletion ends a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum BoundTo {
    #[default]
    Nothing,
    /// And the node it runs on, as a fact for whoever inspects the token.
    Pod(Reference, Option<Reference>),
    Secret(Reference),
    Node(Reference),
}

impl Claims {
    /// Claims of a fresh token, valid from `now` for `seconds`.
    pub fn new(
        namespace: &str,
        account: Reference,
        bound: BoundTo,
        audiences: Vec<String>,
        now: Timestamp,
        seconds: i64,
    ) -> Claims {
        let now = now.as_second();
        let (mut pod, mut node, mut secret) = (None, None, None);
        match bound {
            BoundTo::Nothing => {}
            BoundTo::Pod(to, on) => (pod, node) = (Some(to), on),
            BoundTo::Secret(to) => secret = Some(to),
            BoundTo::Node(to) => node = Some(to),
        }
        Claims {
            aud: audiences,
            exp: now.saturating_add(seconds),
            iat: now,
            iss: ISSUER.to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            sub: format!("system:serviceaccount:{namespace}:{}", account.name),
            kubernetes: KubernetesClaims {
                namespace: namespace.to_owned(),
                node,
                pod,
                secret,
                serviceaccount: account,
                warnafter: None,
            },
            nbf: now,
        }
    }

    /// Time, and that the subject is the account the private claims name. Gives the audiences that
    /// `wanted` and the token share; none shared is an error.
    pub fn check(&self, now: Timestamp, wanted: &[String]) -> Result<Vec<String>, TokenError> {
        let now = now.as_second();
        let invalid = |why: &str| Err(TokenError::Invalid(why.to_owned()));
        if now > self.exp.saturating_add(LEEWAY_SECONDS) {
            return invalid("service account token has expired");
        }
        if now < self.nbf.saturating_sub(LEEWAY_SECONDS) {
            return invalid("service account token is not valid yet");
        }
        if now < self.iat.saturating_sub(LEEWAY_SECONDS) {
            return invalid("service account token is issued in the future");
        }
        let KubernetesClaims { namespace, serviceaccount, .. } = &self.kubernetes;
        if self.sub != format!("system:serviceaccount:{namespace}:{}", serviceaccount.name) {
            return invalid("service account token's subject does not match its claims");
        }
        let shared: Vec<String> = self.aud.iter().filter(|one| wanted.contains(one)).cloned().collect();
        if shared.is_empty() {
            return Err(TokenError::Invalid(format!(
                "token audiences {:?} is invalid for the target audiences {wanted:?}",
                self.aud
            )));
        }
        Ok(shared)
    }
}

/// RFC 7519 lets `aud` be one string.
fn one_or_many<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Either::deserialize(from)? {
        Either::One(one) => vec![one],
        Either::Many(many) => many,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(now: Timestamp) -> Claims {
        let account = Reference { name: "default".to_owned(), uid: "u1".to_owned() };
        Claims::new("blue", account, BoundTo::Nothing, vec![ISSUER.to_owned()], now, 3600)
    }

    #[test]
    fn a_token_says_what_was_signed_and_no_more() {
        let now: Timestamp = "2026-11-30T21:00:00Z".parse().unwrap();
        let issuer = TokenIssuer::generate().unwrap();
        let other = TokenIssuer::generate().unwrap();
        let token = issuer.sign(&claims(now)).unwrap();
        assert_eq!(issuer.keys().verify(&token), Ok(claims_with_jti(&token, &issuer)));
        assert!(matches!(other.keys().verify(&token), Err(TokenError::Invalid(_))));

        let parts: Vec<&str> = token.split('.').collect();
        let header = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for (row, forged) in [
            ("no signature", format!("{}.{}.", parts[0], parts[1])),
            ("algorithm none", format!("{}.{}.", header(r#"{"alg":"none"}"#), parts[1])),
            ("another algorithm", format!("{}.{}.{}", header(r#"{"alg":"HS256"}"#), parts[1], parts[2])),
            (
                "other claims",
                format!(
                    "{}.{}.{}",
                    parts[0],
                    header(&format!(r#"{{"iss":"{ISSUER}","sub":"x"}}"#)),
                    parts[2]
                ),
            ),
            ("cut short", token[..token.len() - 2].to_owned()),
        ] {
            assert!(
                matches!(issuer.keys().verify(&forged), Err(TokenError::Invalid(_) | TokenError::Foreign)),
                "{row}"
            );
        }
        for foreign in
            ["", "a", "a.b", "a.b.c", &format!("{}.{}.x", parts[0], header(r#"{"iss":"https://x"}"#))]
        {
            assert_eq!(issuer.keys().verify(foreign), Err(TokenError::Foreign), "{foreign:?}");
        }
    }

    fn claims_with_jti(token: &str, issuer: &TokenIssuer) -> Claims {
        let jti = issuer.keys().verify(token).unwrap().jti;
        Claims { jti, ..claims("2026-11-30T21:00:00Z".parse().unwrap()) }
    }

    #[test]
    fn time_and_audience_are_checked() {
        let now: Timestamp = "2026-11-30T21:00:00Z".parse().unwrap();
        let later = |seconds| now + jiff::SignedDuration::from_secs(seconds);
        let own = vec![ISSUER.to_owned()];
        let vault = vec!["vault".to_owned()];
        for (row, at, wanted, fine) in [
            ("fresh", now, &own, true),
            ("a lagging clock", later(-30), &own, true),
            ("not valid yet", later(-300), &own, false),
            ("about to expire", later(3599), &own, true),
            ("expired", later(3700), &own, false),
            ("another audience", now, &vault, false),
        ] {
            assert_eq!(claims(now).check(at, wanted).is_ok(), fine, "{row}");
        }
        let stolen = Claims { sub: "system:serviceaccount:red:admin".to_owned(), ..claims(now) };
        assert!(stolen.check(now, &own).is_err());
    }

    #[test]
    fn the_key_set_has_both_coordinates() {
        let set = TokenIssuer::generate().unwrap().jwks();
        for coordinate in ["x", "y"] {
            let text = set["keys"][0][coordinate].as_str().unwrap();
            assert_eq!(URL_SAFE_NO_PAD.decode(text).unwrap().len(), 32);
        }
    }
}
