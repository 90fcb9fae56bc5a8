//! The behaviour every provider must show, in memory, on this machine or in a cloud.
//!
//! A provider's tests call [`machines`] and [`balancers`] with itself behind a [`Bench`]. Everything that
//! is made is deleted again. They panic at the first promise that is not kept, as tests do.
//!
//! Not here: traffic through a balancer and what runs on a machine, which only some clouds have.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base_ids::TenantId;

use crate::CloudError;
use crate::model::*;

/// The provider under test and what it needs to be told.
pub struct Bench {
    pub cloud: SharedCloud,
    /// Of a cluster that machines can really join, where the provider needs that.
    pub join: Join,
    /// How long things may take there.
    pub patience: Duration,
    /// Addresses that targets may have.
    pub targets: Vec<Target>,
}

impl Bench {
    pub fn new(cloud: SharedCloud) -> Bench {
        Bench { cloud, join: Join::default(), patience: Duration::from_secs(10), targets: Vec::new() }
    }

    fn machine(&self, cluster: TenantId, token: &str, name: &str) -> MachineSpec {
        MachineSpec {
            cluster,
            client_token: token.parse().expect("a token of the suite"),
            name: name.to_owned(),
            machine_type: String::new(),
            join: self.join.clone(),
            tags: BTreeMap::from([("suite".to_owned(), token.to_owned())]),
        }
    }

    fn balancer(&self, cluster: TenantId, token: &str) -> BalancerSpec {
        BalancerSpec {
            cluster,
            client_token: token.parse().expect("a token of the suite"),
            name: "default/web".to_owned(),
            listeners: vec![Listener { port: 18_080, protocol: Protocol::Tcp, node_port: 30_080 }],
            targets: self.targets.clone(),
            source_ranges: Vec::new(),
            health_check: HealthCheck {
                port: 30_080,
                http_path: None,
                interval_ms: 1000,
                timeout_ms: 500,
                unhealthy_after: 2,
                healthy_after: 1,
            },
            tags: BTreeMap::from([("suite".to_owned(), token.to_owned())]),
            wanted_address: None,
        }
    }

    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
        let deadline = Instant::now() + self.patience;
        loop {
            match look().await {
                Ok(found) => return found,
                Err(why) if Instant::now() > deadline => panic!("{what}: {why}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn machine_is_gone(&self, cluster: TenantId, id: &str) {
        self.until("a deleted machine goes", async || {
            let left = self.cloud.list_machines(cluster).await.map_err(|error| error.to_string())?;
            match left.iter().find(|one| one.id == id) {
                None => Ok(()),
                Some(one) => Err(format!("{one:?} is still there")),
            }
        })
        .await;
    }
}

/// A token that no earlier run has used.
fn fresh() -> String {
    format!("suite-{}", TenantId::generate())
}

pub async fn describes_itself(bench: &Bench) {
    let it = bench.cloud.describe().await.expect("describe");
    assert!(!it.name.is_empty(), "a provider has a name");
    assert!(!it.capabilities.machines || !it.machine_types.is_empty(), "machines have types");
    for kind in &it.machine_types {
        assert!(kind.cpu_millis > 0 && kind.memory_bytes > 0, "{kind:?} is of some size");
    }
}

/// All promises about machines.
pub async fn machines(bench: &Bench) {
    describes_itself(bench).await;
    let cloud = &bench.cloud;
    let (ours, theirs) = (TenantId::generate(), TenantId::generate());
    assert_eq!(cloud.list_machines(ours).await.expect("list"), [], "a fresh cluster has none");

    // One token, one machine: asked again, and by two at once.
    let token = fresh();
    let spec = bench.machine(ours, &token, "suite-a");
    let (one, two) = tokio::join!(cloud.create_machine(&spec), cloud.create_machine(&spec));
    let (one, two) = (one.expect("create"), two.expect("create at the same time"));
    assert_eq!(one.id, two.id, "one token makes one machine");
    let again = cloud.create_machine(&spec).await.expect("create again");
    assert_eq!(again.id, one.id, "one token makes one machine");
    assert_eq!((again.cluster, again.client_token.as_str(), again.name.as_str()), (ours, &*token, "suite-a"));
    let scheme = cloud.describe().await.expect("describe").name;
    assert!(one.provider_id.starts_with(&format!("{scheme}://")), "{} begins with {scheme}", one.provider_id);

    // Found by its token and tags, by its own cluster only.
    let listed = cloud.list_machines(ours).await.expect("list");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].client_token.as_str(), token);
    assert_eq!(listed[0].provider_id, one.provider_id);
    assert_eq!(listed[0].tags.get("suite"), Some(&token));
    assert_eq!(cloud.list_machines(theirs).await.expect("list"), [], "another cluster does not see it");

    // The same token in another cluster is another machine.
    let other = cloud.create_machine(&bench.machine(theirs, &token, "suite-a")).await.expect("create");
    assert_ne!(other.id, one.id, "tokens are a cluster's own");

    // A token is not used for two things.
    let changed = cloud.create_machine(&bench.machine(ours, &token, "suite-b")).await;
    assert!(matches!(changed, Err(CloudError::TokenUsed(_))), "{changed:?}");

    // What does not exist is refused for good, and nothing is made.
    let mut wrong = bench.machine(ours, &fresh(), "suite-c");
    wrong.machine_type = "no-such-type".to_owned();
    let refused = cloud.create_machine(&wrong).await;
    assert!(matches!(refused, Err(CloudError::Invalid(_))), "{refused:?}");
    assert_eq!(cloud.list_machines(ours).await.expect("list").len(), 1, "nothing was made");

    // A machine gets somewhere, with an address.
    bench
        .until("a machine runs", async || {
            let machines = cloud.list_machines(ours).await.map_err(|error| error.to_string())?;
            let found = machines.iter().find(|one| one.client_token.as_str() == token);
            match found {
                Some(one) if one.state == MachineState::Running && !one.addresses.is_empty() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;

    // Nobody deletes another's; deleting twice, or what never was, is fine.
    cloud.delete_machine(theirs, &one.id).await.expect("deleting another's is nothing");
    assert_eq!(cloud.list_machines(ours).await.expect("list").len(), 1, "still there");
    cloud.delete_machine(ours, &one.id).await.expect("delete");
    cloud.delete_machine(ours, &one.id).await.expect("delete again");
    bench.machine_is_gone(ours, &one.id).await;
    cloud.delete_machine(ours, &one.id).await.expect("delete what is gone");
    cloud.delete_machine(theirs, &other.id).await.expect("delete");
    bench.machine_is_gone(theirs, &other.id).await;
}

/// All promises about load balancers.
pub async fn balancers(bench: &Bench) {
    let cloud = &bench.cloud;
    let (ours, theirs) = (TenantId::generate(), TenantId::generate());
    assert_eq!(cloud.list_balancers(ours).await.expect("list"), [], "a fresh cluster has none");

    let token = fresh();
    let mut spec = bench.balancer(ours, &token);
    let (one, two) = tokio::join!(cloud.ensure_balancer(&spec), cloud.ensure_balancer(&spec));
    let (one, two) = (one.expect("ensure"), two.expect("ensure at the same time"));
    assert_eq!(one.id, two.id, "one token makes one balancer");

    let ready = bench
        .until("a balancer is active and has an address or a name", async || {
            let found = cloud.list_balancers(ours).await.map_err(|error| error.to_string())?;
            let [found] = &found[..] else { return Err(format!("{found:?}")) };
            let reachable = !found.addresses.is_empty() || found.hostname.is_some();
            match found.state == BalancerState::Active && reachable {
                true => Ok(found.clone()),
                false => Err(format!("{found:?}")),
            }
        })
        .await;
    assert_eq!(ready.id, one.id);
    assert_eq!(ready.client_token.as_str(), token);
    assert_eq!(ready.tags.get("suite"), Some(&token));
    assert_eq!(cloud.list_balancers(theirs).await.expect("list"), [], "another cluster does not see it");

    // Through changes it keeps who it is and where it is.
    spec.listeners = vec![
        Listener { port: 18_081, protocol: Protocol::Tcp, node_port: 30_081 },
        Listener { port: 18_080, protocol: Protocol::Tcp, node_port: 30_090 },
    ];
    spec.targets.clear();
    spec.health_check.port = 30_090;
    let changed = cloud.ensure_balancer(&spec).await.expect("change");
    assert_eq!(changed.id, one.id, "a change makes no new one");
    let same_place = |one: &Balancer| (one.addresses.clone(), one.hostname.clone());
    let after = cloud.list_balancers(ours).await.expect("list");
    assert_eq!(
        after.iter().map(same_place).collect::<Vec<_>>(),
        [same_place(&ready)],
        "it stays where it is"
    );

    let other = cloud.ensure_balancer(&bench.balancer(theirs, &token)).await.expect("ensure");
    assert_ne!(other.id, one.id, "tokens are a cluster's own");

    cloud.delete_balancer(theirs, &one.id).await.expect("deleting another's is nothing");
    assert_eq!(cloud.list_balancers(ours).await.expect("list").len(), 1, "still there");
    for (cluster, id) in [(ours, &one.id), (ours, &one.id), (theirs, &other.id)] {
        cloud.delete_balancer(cluster, id).await.expect("delete, or delete again");
    }
    for cluster in [ours, theirs] {
        bench
            .until("a deleted balancer goes", async || {
                match cloud.list_balancers(cluster).await.map_err(|error| error.to_string())?.as_slice() {
                    [] => Ok(()),
                    left => Err(format!("{left:?}")),
                }
            })
            .await;
    }
}
