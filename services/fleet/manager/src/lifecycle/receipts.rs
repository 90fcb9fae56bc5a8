//! Signs the end of a cluster.
//!
//! ES256 over the receipt without its signature, as canonical JSON (RFC 8785). The key is the manager's
//! own, made at its first start and kept in the database, since every manager on it must sign alike.
//!
//! Not here: deciding that a cluster is gone.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base_clock::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use fleet_model::{Cluster, Receipt, ReceiptResource};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::db::{Db, DbError};

/// The key's name in the database.
const KEY: &str = "receipts";

#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    #[error("database")]
    Db(#[from] DbError),
    #[error("the receipt key in the database cannot be used")]
    Key,
    #[error("signing failed")]
    Sign,
}

pub(crate) struct Receipts {
    key: EcdsaKeyPair,
    key_id: String,
}

impl Receipts {
    /// With the key in the database, which is made if there is none.
    pub(crate) async fn open(db: &Db) -> Result<Receipts, ReceiptError> {
        let fresh = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| ReceiptError::Key)?;
        // Whoever comes first decides; everybody uses what is there then.
        let stored = db.key_or(KEY, &STANDARD.encode(fresh.as_ref())).await?;
        let der = STANDARD.decode(stored).map_err(|_| ReceiptError::Key)?;
        Receipts::from_pkcs8(&der)
    }

    fn from_pkcs8(der: &[u8]) -> Result<Receipts, ReceiptError> {
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der).map_err(|_| ReceiptError::Key)?;
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(key.public_key().as_ref()));
        Ok(Receipts { key, key_id })
    }

    pub(crate) fn sign(
        &self,
        cluster: &Cluster,
        resources: Vec<ReceiptResource>,
        deleted_at: Timestamp,
    ) -> Result<Receipt, ReceiptError> {
        let mut receipt = Receipt {
            cluster: cluster.id,
            name: cluster.name.clone(),
            organization: cluster.organization.clone(),
            deleted_at,
            resources,
            signature: String::new(),
        };
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed_part(&receipt).as_bytes())
            .map_err(|_| ReceiptError::Sign)?;
        receipt.signature = URL_SAFE_NO_PAD.encode(signature.as_ref());
        Ok(receipt)
    }

    /// The public key as a JWK (RFC 7517).
    pub(crate) fn public_key(&self) -> Value {
        // An uncompressed point: 0x04, then x and y of 32 bytes each.
        let point = self.key.public_key().as_ref();
        let (x, y) = (point.get(1..33).unwrap_or_default(), point.get(33..).unwrap_or_default());
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.key_id,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}

/// What is signed: everything but the signature.
fn signed_part(receipt: &Receipt) -> String {
    let mut value = serde_json::to_value(receipt).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("signature");
    }
    canonical(&value)
}

/// RFC 8785 for what receipts hold: objects, lists and texts, no numbers.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.encode_utf16().collect::<Vec<u16>>());
            let members: Vec<String> = members
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_receipt_holds_what_was_signed() {
        let der =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let receipts = Receipts::from_pkcs8(der.as_ref()).unwrap();
        let id = base_ids::TenantId::generate();
        let cluster: Cluster = serde_json::from_value(json!({
            "id": id, "organization": "acme", "name": "demo", "state": "deleting",
            "kubernetes_version": "v1.36.0", "server_name": "x", "created_at": "2026-12-01T00:00:00Z",
        }))
        .unwrap();
        let resource = ReceiptResource {
            kind: "machine".to_owned(),
            id: "i-\"1\"".to_owned(),
            name: "workers-1".to_owned(),
            provider: "aws".to_owned(),
            created_at: at("2026-12-01T00:00:00Z"),
            deleted_at: at("2026-12-01T01:00:00Z"),
        };
        let receipt = receipts.sign(&cluster, vec![resource], at("2026-12-01T01:00:01Z")).unwrap();
        let wanted = format!(
            r#"{{"cluster":"{id}","deleted_at":"2026-12-01T01:00:01Z","name":"demo","organization":"acme","resources":[{{"created_at":"2026-12-01T00:00:00Z","deleted_at":"2026-12-01T01:00:00Z","id":"i-\"1\"","kind":"machine","name":"workers-1","provider":"aws"}}]}}"#
        );
        assert_eq!(signed_part(&receipt), wanted);
        let jwk = receipts.public_key();
        let half = |name: &str| URL_SAFE_NO_PAD.decode(jwk[name].as_str().unwrap()).unwrap();
        let point = [vec![4], half("x"), half("y")].concat();
        let verify = |text: &str| {
            let signature = URL_SAFE_NO_PAD.decode(&receipt.signature).unwrap();
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).verify(text.as_bytes(), &signature)
        };
        assert!(verify(&wanted).is_ok());
        assert!(verify(&wanted.replace("demo", "other")).is_err());
    }
}
