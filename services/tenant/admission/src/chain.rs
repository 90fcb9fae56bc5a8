//! The chain and its order.

use std::sync::{Arc, LazyLock};

use api_machinery::{Document, Status};
use async_trait::async_trait;
use tenant_outbound::Outbound;

use crate::attributes::{Attributes, SideWrite};
use crate::policy::{MutatingPolicies, ValidatingPolicies};
use crate::webhook::{MutatingWebhooks, ValidatingWebhooks};
use crate::{
    certificates, limits, namespace, network, node, owners, pod, pod_security, quota, resize,
    service_account, storage,
};

/// One plugin, or a chain of them.
///
/// `object` is the object as it would be stored, or the subresource's body (a Binding); `None` for deletes
/// and connects without one. `old` is what is stored now; `None` for creates.
#[async_trait]
pub trait Admission: Send + Sync + 'static {
    /// May change `object`. Defaults are applied before and again after the chain.
    async fn admit(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// May only refuse, or ask for writes that belong to this one.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Document>,
        _old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        Ok(Vec::new())
    }
}

/// Plugins in order; the first refusal ends the request. Those that change objects run a second time when a
/// webhook or a policy changed one.
#[derive(Clone, Default)]
pub struct Chain(Vec<Arc<dyn Admission>>);

impl Chain {
    pub fn new(plugins: Vec<Arc<dyn Admission>>) -> Chain {
        Chain(plugins)
    }
    /// With one more plugin before those that count what was decided (ResourceQuota is always last).
    pub fn with(mut self, plugin: Arc<dyn Admission>) -> Chain {
        let before_quota = self.0.len().saturating_sub(1);
        self.0.insert(before_quota, plugin);
        self
    }
}

#[async_trait]
impl Admission for Chain {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Document>,
        old: Option<&Document>,
    ) -> Result<(), Status> {
        loop {
            for plugin in &self.0 {
                plugin.admit(attributes, object.as_deref_mut(), old).await?;
            }
            // Somebody outside changed the object: the others see it once more as it is now.
            if !attributes.reinvocation.begin_second() {
                return Ok(());
            }
        }
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let mut writes = Vec::new();
        for plugin in &self.0 {
            writes.append(&mut plugin.validate(attributes, object, old).await?);
        }
        Ok(writes)
    }
}

/// The in-tree plugins in upstream's order, one chain for all clusters of the process.
pub fn default_chain() -> Chain {
    static CHAIN: LazyLock<Chain> = LazyLock::new(|| {
        Chain::new(vec![
            Arc::new(namespace::NamespaceLifecycle),
            Arc::new(limits::LimitRanger),
            Arc::new(service_account::ServiceAccount),
            Arc::new(node::NodeRestriction),
            Arc::new(node::TaintNewNodes),
            Arc::new(node::PodTopologyLabels),
            Arc::new(pod_security::PodSecurity),
            Arc::new(pod::Priority),
            Arc::new(pod::DefaultTolerationSeconds),
            Arc::new(pod::RuntimeClass),
            Arc::new(storage::InUseProtection),
            Arc::new(storage::DefaultStorageClass),
            Arc::new(storage::VolumeResize),
            Arc::new(network::DefaultIngressClass),
            Arc::new(certificates::Certificates),
            Arc::new(owners::OwnerReferences),
            Arc::new(resize::PodResizeValidator),
            Arc::new(quota::ResourceQuota),
        ])
    });
    CHAIN.clone()
}

/// The in-tree plugins and, where upstream has them, those that ask what the cluster's owner configured.
pub fn extended_chain(outbound: Arc<dyn Outbound>) -> Chain {
    default_chain()
        .with(Arc::new(MutatingPolicies::default()))
        .with(Arc::new(MutatingWebhooks::new(outbound.clone())))
        .with(Arc::new(ValidatingPolicies::default()))
        .with(Arc::new(ValidatingWebhooks::new(outbound)))
}
