//! The cluster as this node reads it: services by watch, ConfigMaps, Secrets and tokens when a pod needs them.
//!
//! A node may read only what its pods refer to, one object at a time, so there is no list to watch. What was
//! read is kept for a few seconds, which spares the API server the second and third container of a pod.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base_clock::SharedClock;
use base_net::tasks::Tasks;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client};
use node_volumes::{Sources, Token, TokenWanted};
use parking_lot::Mutex;

/// How long an answer is taken for current.
const FRESH: Duration = Duration::from_secs(3);

/// Answers kept at most; beyond that they are simply read again.
const KEPT: usize = 1000;

pub struct Cluster {
    client: Client,
    clock: SharedClock,
    allocatable: BTreeMap<String, Quantity>,
    config_maps: Recent<ConfigMap>,
    secrets: Recent<Secret>,
    tokens: Mutex<HashMap<TokenWanted, Token>>,
    services: reflector::Store<Service>,
}

/// The last answers of one kind, by namespace and name, with when they were given.
type Recent<K> = Mutex<HashMap<(String, String), (Duration, Option<Arc<K>>)>>;

impl Cluster {
    /// Starts to watch the services.
    pub fn start(
        client: Client,
        clock: SharedClock,
        allocatable: BTreeMap<String, Quantity>,
        tasks: &Tasks,
    ) -> Arc<Cluster> {
        let (services, writer) = reflector::store();
        let watch = watcher(Api::<Service>::all(client.clone()), watcher::Config::default());
        let watch = watch.default_backoff().reflect(writer);
        tasks.spawn(async move {
            let mut watch = std::pin::pin!(watch);
            while let Some(event) = watch.next().await {
                if let Err(error) = event {
                    tracing::debug!(error = %error, "watch of services starts again");
                }
            }
        });
        Arc::new(Cluster {
            client,
            clock,
            allocatable,
            config_maps: Mutex::default(),
            secrets: Mutex::default(),
            tokens: Mutex::default(),
            services,
        })
    }

    /// The services of the cluster. Waits a moment for the first list, so that no container misses them.
    pub async fn services(&self) -> Vec<Arc<Service>> {
        if tokio::time::timeout(Duration::from_secs(5), self.services.wait_until_ready()).await.is_err() {
            tracing::warn!("services are not known yet: containers start without their variables");
        }
        self.services.state()
    }

    pub async fn config_map_now(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, String> {
        self.read(&self.config_maps, namespace, name).await
    }

    pub async fn secret_now(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, String> {
        self.read(&self.secrets, namespace, name).await
    }

    /// Forgets the tokens of a pod that is gone.
    pub fn forget_pod(&self, uid: &str) {
        self.tokens.lock().retain(|wanted, _| wanted.pod_uid != uid);
    }

    async fn read<K>(&self, recent: &Recent<K>, namespace: &str, name: &str) -> Result<Option<Arc<K>>, String>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let key = (namespace.to_owned(), name.to_owned());
        let now = self.clock.monotonic();
        if let Some((at, known)) = recent.lock().get(&key) {
            // That something is missing is asked again: its owner may be making it right now.
            if now.saturating_sub(*at) < FRESH && known.is_some() {
                return Ok(known.clone());
            }
        }
        let found = Api::<K>::namespaced(self.client.clone(), namespace).get_opt(name).await;
        let found = found.map_err(|error| crate::container::chain(&error))?.map(Arc::new);
        let mut recent = recent.lock();
        if recent.len() >= KEPT {
            recent.clear();
        }
        recent.insert(key, (now, found.clone()));
        Ok(found)
    }
}

#[async_trait]
impl Sources for Cluster {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, String> {
        Ok(self.config_map_now(namespace, name).await?.map(|found| (*found).clone()))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, String> {
        Ok(self.secret_now(namespace, name).await?.map(|found| (*found).clone()))
    }

    async fn token(&self, wanted: &TokenWanted) -> Result<Token, String> {
        let now = self.clock.now();
        let known = self.tokens.lock().get(wanted).cloned();
        if let Some(token) = known.as_ref().filter(|token| !token.is_stale(now)) {
            return Ok(token.clone());
        }
        match self.request_token(wanted, now).await {
            Ok(token) => {
                self.tokens.lock().insert(wanted.clone(), token.clone());
                Ok(token)
            }
            // An old token that still holds is better than a pod that fails.
            Err(_) if known.as_ref().is_some_and(|token| now < token.expires) => {
                known.ok_or_else(String::new)
            }
            Err(reason) => Err(reason),
        }
    }

    fn allocatable(&self) -> BTreeMap<String, Quantity> {
        self.allocatable.clone()
    }
}

impl Cluster {
    async fn request_token(&self, wanted: &TokenWanted, now: Timestamp) -> Result<Token, String> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(wanted.audience.iter().cloned().collect()),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(wanted.pod_name.clone()),
                    uid: Some(wanted.pod_uid.clone()),
                }),
                expiration_seconds: Some(wanted.lifetime_s),
            }),
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &wanted.namespace);
        let answer =
            accounts.create_token_request(&wanted.service_account, &PostParams::default(), &request).await;
        let answer =
            answer.map_err(|error| format!("failed to fetch token: {}", crate::container::chain(&error)))?;
        let status = answer.status.ok_or("failed to fetch token: the answer has no status")?;
        let token = status.token.filter(|token| !token.is_empty());
        let (Some(token), Some(expires)) = (token, status.expiration_timestamp) else {
            return Err("failed to fetch token: the answer has no token".to_owned());
        };
        Ok(Token { token, issued: now, expires: expires.0 })
    }
}
