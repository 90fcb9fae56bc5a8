//! Where content comes from: the cluster, through whoever holds its client.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A token that a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenWanted {
    pub namespace: String,
    pub service_account: String,
    pub pod_name: String,
    pub pod_uid: String,
    /// `None`: the API server's own.
    pub audience: Option<String>,
    pub lifetime_s: i64,
}

/// A token, and when it ends.
#[derive(Debug, Clone)]
pub struct Token {
    pub token: String,
    pub issued: Timestamp,
    pub expires: Timestamp,
}

impl Token {
    /// Old enough to be replaced: four fifths of its life, or a day, are over.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        let life_s = self.expires.as_second() - self.issued.as_second();
        let age_s = now.as_second() - self.issued.as_second();
        age_s * 5 > life_s * 4 || age_s > 24 * 3600
    }
}

/// The cluster as volumes see it. Errors are sentences for an event.
#[async_trait]
pub trait Sources: Send + Sync {
    /// `None`: there is no such object.
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, String>;
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, String>;
    async fn token(&self, wanted: &TokenWanted) -> Result<Token, String>;
    /// What the node can give: the limit of a container that set none.
    fn allocatable(&self) -> BTreeMap<String, Quantity>;
}
