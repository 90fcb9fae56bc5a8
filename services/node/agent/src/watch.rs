//! What several parts of a node need to know, watched once.
//!
//! Services and EndpointSlices go to the proxy and the DNS, Nodes to the routes. Every watch is a list
//! first and again whenever it was cut too long, so a lost event costs time and nothing else.
//!
//! A node may not read other Nodes ([Node authorization]), so all of this is read as `system:kube-proxy`,
//! whom RBAC lets nodes impersonate; a stock cluster gives each node a kube-proxy with a token of its own.
//!
//! [Node authorization]: https://kubernetes.io/docs/reference/access-authn-authz/node/

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Resource};
use node_dns::Dns;
use node_network::Subnet;
use node_proxy::Proxy;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::warn;

/// Whose rights the network's watches need: upstream's `system:node-proxier`.
pub const KUBE_PROXY: &str = "system:kube-proxy";

/// Pause between two identities that are both refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Reads as kube-proxy; as the node itself where the cluster is from before nodes could do that.
#[derive(Clone)]
pub struct Reader {
    identities: [kube::Client; 2],
}

impl Reader {
    pub fn new(as_proxy: kube::Client, as_node: kube::Client) -> Reader {
        Reader { identities: [as_proxy, as_node] }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        WatchError(status) => status.code == 403,
        InitialListFailed(cause) | WatchFailed(cause) | WatchStartFailed(cause) => {
            matches!(cause, kube::Error::Api(status) if status.code == 403)
        }
        _ => false,
    }
}

/// Follows `K` for ever; a failing watch is said and tried again with back-off.
async fn follow<K>(reader: Reader, what: &'static str, mut event: impl FnMut(Event<K>) + Send)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let begin = |identity: usize| {
        let api = Api::<K>::all(reader.identities[identity % 2].clone());
        watch_objects(api, watcher::Config::default()).default_backoff().boxed()
    };
    let mut refused = 0;
    let mut events = begin(refused);
    loop {
        match events.try_next().await {
            Ok(Some(one)) => event(one),
            Ok(None) => return,
            Err(error) if is_forbidden(&error) => {
                // The other one is tried at once, but two refusals should not become a storm.
                if refused % 2 == 1 {
                    warn!(what, error = &error as &dyn std::error::Error, "watch is not allowed");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
                refused += 1;
                events = begin(refused);
            }
            Err(error) => {
                warn!(what, error = &error as &dyn std::error::Error, "watch was cut; trying again")
            }
        }
    }
}

/// Names seen since a list began.
type Present = HashSet<(String, String)>;

/// What [`keep`] tells.
enum Heard<'a, K> {
    Is(&'a K),
    Gone(&'a K),
    /// A list is through: nothing but these is there.
    Complete(&'a Present),
}

/// Follows a namespaced kind for somebody who keeps all objects of it.
async fn keep<K>(reader: Reader, what: &'static str, mut hear: impl FnMut(Heard<'_, K>) + Send)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut present = Present::new();
    follow::<K>(reader, what, |event| match event {
        Event::Init => present.clear(),
        Event::InitApply(object) => {
            let meta = object.meta();
            if let (Some(namespace), Some(name)) = (meta.namespace.clone(), meta.name.clone()) {
                present.insert((namespace, name));
            }
            hear(Heard::Is(&object));
        }
        Event::InitDone => hear(Heard::Complete(&std::mem::take(&mut present))),
        Event::Apply(object) => hear(Heard::Is(&object)),
        Event::Delete(object) => hear(Heard::Gone(&object)),
    })
    .await;
}

pub async fn services(reader: Reader, proxy: Proxy, dns: Dns) {
    keep::<Service>(reader, "Services", |heard| match heard {
        Heard::Is(service) => {
            proxy.service(service);
            dns.service(service);
        }
        Heard::Gone(service) => {
            if let (Some(namespace), Some(name)) = (&service.metadata.namespace, &service.metadata.name) {
                proxy.service_gone(namespace, name);
                dns.service_gone(namespace, name);
            }
        }
        Heard::Complete(present) => {
            proxy.services_complete(present);
            dns.services_complete(present);
        }
    })
    .await;
}

pub async fn slices(reader: Reader, proxy: Proxy, dns: Dns) {
    keep::<EndpointSlice>(reader, "EndpointSlices", |heard| match heard {
        Heard::Is(slice) => {
            proxy.slice(slice);
            dns.slice(slice);
        }
        Heard::Gone(slice) => {
            proxy.slice_gone(slice);
            dns.slice_gone(slice);
        }
        Heard::Complete(present) => {
            proxy.slices_complete(present);
            dns.slices_complete(present);
        }
    })
    .await;
}

/// What of a Node matters to the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    pub pod_cidrs: Vec<Subnet>,
    pub addresses: Vec<IpAddr>,
}

/// Nodes by name.
pub type Peers = BTreeMap<String, Peer>;

/// Keeps `peers` what the cluster says. Heartbeats change Nodes all the time; only what matters is told.
pub async fn nodes(reader: Reader, peers: watch::Sender<Option<Peers>>) {
    let mut now = Peers::new();
    let mut listed = Peers::new();
    let tell = |next: &Peers| {
        peers.send_if_modified(|told| {
            let changed = told.as_ref() != Some(next);
            if changed {
                *told = Some(next.clone());
            }
            changed
        });
    };
    follow::<Node>(reader, "Nodes", |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(node) => {
            listed.insert(node.metadata.name.clone().unwrap_or_default(), Peer::of(&node));
        }
        Event::InitDone => {
            now = std::mem::take(&mut listed);
            tell(&now);
        }
        Event::Apply(node) => {
            now.insert(node.metadata.name.clone().unwrap_or_default(), Peer::of(&node));
            tell(&now);
        }
        Event::Delete(node) => {
            now.remove(node.metadata.name.as_deref().unwrap_or_default());
            tell(&now);
        }
    })
    .await;
}

impl Peer {
    fn of(node: &Node) -> Peer {
        let spec = node.spec.as_ref();
        let listed = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
        let mut pod_cidrs: Vec<Subnet> = listed.filter_map(|cidr| cidr.parse().ok()).collect();
        if pod_cidrs.is_empty() {
            pod_cidrs.extend(spec.and_then(|spec| spec.pod_cidr.as_ref()?.parse::<Subnet>().ok()));
        }
        let addresses =
            node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        Peer { pod_cidrs, addresses: internal.filter_map(|address| address.address.parse().ok()).collect() }
    }
}

/// Where each other node's pods are reached.
pub fn routes(peers: &Peers, own: &str) -> node_network::routes::Wanted {
    let others = peers.iter().filter(|(name, _)| *name != own);
    let pairs = others.flat_map(|(_, peer)| {
        peer.pod_cidrs.iter().filter_map(|cidr| {
            let via = peer.addresses.iter().find(|address| address.is_ipv4() == cidr.is_ipv4())?;
            Some((*cidr, *via))
        })
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_lead_to_other_nodes_in_the_same_family() {
        let peer = |cidrs: &[&str], addresses: &[&str]| Peer {
            pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        let peers: Peers = [
            ("own".to_owned(), peer(&["10.244.0.0/24"], &["192.0.2.1"])),
            ("v4".to_owned(), peer(&["10.244.1.0/24"], &["192.0.2.2"])),
            ("dual".to_owned(), peer(&["10.244.2.0/24", "fd00:2::/64"], &["fd00::3", "192.0.2.3"])),
            ("new".to_owned(), peer(&[], &["192.0.2.4"])),
            ("mute".to_owned(), peer(&["10.244.4.0/24"], &[])),
        ]
        .into();
        let found: Vec<String> =
            routes(&peers, "own").iter().map(|(to, via)| format!("{to} {via}")).collect();
        assert_eq!(found, ["10.244.1.0/24 192.0.2.2", "10.244.2.0/24 192.0.2.3", "fd00:2::/64 fd00::3"]);
    }
}
