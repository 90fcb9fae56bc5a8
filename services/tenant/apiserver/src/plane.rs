//! One cluster's API server.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base_clock::SharedClock;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use base_net::tls::{self, ClientAuth, TlsError};
use store_mvcc::Term;
use store_raft::Group;
use tenant_auth::{Authenticator, Authority, ClusterPki, NoEscalation, Revocation};
use tenant_client::{NodeDialer, SharedApi, SharedAuthorizer, UserInfo};
use tenant_outbound::{ClusterOutbound, Egress, Outbound};
use tenant_registry::Registry;
use tokio::sync::Semaphore;

use crate::aggregate::Remembered;
use crate::flow::FlowControl;
use crate::local::LocalClient;
use crate::metrics::Metrics;
use crate::mount::Mount;
use crate::services::Services;

/// The Service `kubernetes`: pods dial it, so the certificate must name it.
const SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// What large request bodies of one cluster may add up to while they are worked on: eight of the largest. Taken
/// apart, a body is up to a hundred times its size, and other clusters live in the same process.
const LARGE_BODIES_KIB: usize = 8 * 3 * 1024;

/// What a control plane is made of.
pub struct Config {
    pub tenant: TenantId,
    /// Bootstrapped already (`tenant_registry::bootstrap`).
    pub group: Group,
    pub pki: ClusterPki,
    pub clock: SharedClock,
    /// How to reach nodes; without it logs, exec and proxies answer that no node is connected.
    pub dialer: Option<Arc<dyn NodeDialer>>,
    /// The process's way to addresses on the internet that tenants name.
    pub egress: Arc<Egress>,
    /// A service of the host's on the same port (node tunnels).
    pub mount: Option<Arc<dyn Mount>>,
    /// What the serving certificate names, beside what every cluster's does.
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<IpAddr>,
    /// Connections end when these do.
    pub tasks: Tasks,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("making the cluster's serving certificate failed")]
    Identity(#[source] base_net::pki::PkiError),
    #[error("the cluster's keys are not usable")]
    Keys(#[source] tenant_auth::PkiEntryError),
    #[error("the cluster's TLS configuration is not usable")]
    Tls(#[source] TlsError),
}

/// One cluster's API server. Share it; it needs no task of its own.
pub struct ControlPlane {
    pub(crate) tenant: TenantId,
    /// For spans and logs; formatting a UUID per request would show in profiles.
    pub(crate) tenant_text: Arc<str>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) authenticator: Authenticator,
    pub(crate) authority: Arc<Authority>,
    pub(crate) pki: ClusterPki,
    pub(crate) clock: SharedClock,
    pub(crate) dialer: Option<Arc<dyn NodeDialer>>,
    pub(crate) egress: Arc<Egress>,
    /// The way to webhooks and the like.
    pub(crate) outbound: Arc<dyn Outbound>,
    pub(crate) mount: Option<Arc<dyn Mount>>,
    pub(crate) flow: FlowControl,
    /// See [`crate::pipeline::Call::read`].
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Tasks,
    /// Made with the first request that needs a kubelet.
    /// What is shown to aggregated API servers, made with the first request for one.
    pub(crate) front_proxy: OnceLock<Arc<base_net::pki::Issued>>,
    pub(crate) aggregated: Remembered,
    pub(crate) kubelet_tls: OnceLock<Arc<rustls::ClientConfig>>,
    tls: Arc<rustls::ServerConfig>,
}

impl ControlPlane {
    /// Ready to serve when it returns. Starts nothing that runs.
    pub fn start(config: Config) -> Result<Arc<ControlPlane>, StartError> {
        let Config { tenant, group, pki, clock, dialer, egress, mount, dns_names, ip_addresses, tasks } =
            config;
        let tasks = tasks.child();
        let mut ip_addresses = ip_addresses;
        for own in [SERVICE_IP, IpAddr::V4(Ipv4Addr::LOCALHOST)] {
            if !ip_addresses.contains(&own) {
                ip_addresses.push(own);
            }
        }
        let identity = pki.server_identity(&dns_names, &ip_addresses).map_err(StartError::Identity)?;
        let bundle = pki.client_ca_bundle();
        let tls = tls::server(&identity, Some((&bundle, ClientAuth::Optional)), &["h2", "http/1.1"])
            .map_err(StartError::Tls)?;
        // A session cache of its own per cluster would be most of what an idle one costs, and a shared one
        // would let a session of one cluster be resumed in another.
        let mut tls = Arc::unwrap_or_clone(tls);
        tls.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        let tls = Arc::new(tls);
        let authority = Arc::new(Authority::new(group.space().clone()));
        let authorizer: SharedAuthorizer = authority.clone();
        let services = Arc::new(Services(group.space().clone()));
        let outbound: Arc<dyn Outbound> =
            ClusterOutbound::new(services, dialer.clone(), egress.clone(), tasks.clone());
        let registry = Registry::new(
            group.clone(),
            Arc::new(
                tenant_admission::extended_chain(outbound.clone())
                    .with(Arc::new(NoEscalation::new(authority.clone()))),
            ),
            authorizer,
            clock.clone(),
        );
        registry.call_through(outbound.clone());
        let authenticator =
            Authenticator::new(&pki, group.space().clone(), clock.clone()).map_err(StartError::Keys)?;
        Ok(Arc::new(ControlPlane {
            tenant,
            tenant_text: tenant.to_string().into(),
            registry,
            authenticator,
            authority,
            pki,
            clock,
            dialer,
            egress,
            outbound,
            mount,
            flow: FlowControl::default(),
            bodies: Arc::new(Semaphore::new(LARGE_BODIES_KIB)),
            metrics: Metrics::new(),
            tasks,
            front_proxy: OnceLock::new(),
            aggregated: Remembered::default(),
            kubelet_tls: OnceLock::new(),
            tls,
        }))
    }

    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// For whoever accepts connections and tells clusters apart by SNI.
    pub fn tls_config(&self) -> Arc<rustls::ServerConfig> {
        self.tls.clone()
    }

    pub fn pki(&self) -> &ClusterPki {
        &self.pki
    }

    /// Whose certificates and tokens are refused from now on; whole.
    pub fn revoke(&self, all: impl IntoIterator<Item = Revocation>) {
        self.authenticator.revoke(all);
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The way to what the cluster's owner configured elsewhere.
    pub fn outbound(&self) -> &Arc<dyn Outbound> {
        &self.outbound
    }

    /// The API under an identity of this process. Writes carry `fence`: refused in any other Raft term.
    pub fn client(self: &Arc<ControlPlane>, user: UserInfo, fence: Option<Term>) -> SharedApi {
        Arc::new(LocalClient::new(self.clone(), user, fence))
    }

    /// Ends connections and watches; waits `patience` at most. True when all ended.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.tasks.stop(patience).await
    }
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}
