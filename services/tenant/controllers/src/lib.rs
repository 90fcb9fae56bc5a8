//! The loops of kube-controller-manager.
//!
//! One supervisor task per tenant watches every resource once ([`World`] is what it has seen), tells the
//! controllers which keys to look at, and applies the plans they answer with. A controller is a pure
//! function of the world, a key and a moment; see `controller` for the trait, any folder beside it for an
//! instance, and `supervisor` for the loop. [`Controllers::run`] is where a cell starts.
//!
//! Idle tenants are idle: no timers run, no task waits but the one, a controller whose kinds have no objects
//! holds nothing.
//!
//! Not here: who may write (the API decides), what is durable (the store does), leadership (the caller
//! starts and stops [`Controllers::run`] with it).

mod catalog;
mod controller;
mod convert;
mod runner;
mod source;
mod supervisor;
mod world;

mod bootstrap;
mod certificates;
mod cluster;
mod endpoints;
mod nodes;
mod policies;
mod volumes;
mod workloads;

pub use catalog::{Catalog, Resource, ResourceId};
pub use controller::{Change, ChangeKind, Controller, Key, News, Now};
pub use runner::{SignError, SignProfile, Signer};
pub use supervisor::{Config, Controllers, identity};
pub use world::World;

/// Every controller of a cluster.
fn all_controllers(config: &Config) -> Vec<Box<dyn Controller>> {
    vec![
        Box::new(workloads::deployment::Deployments::default()),
        Box::new(workloads::replicas::ReplicaSets::new()),
        Box::new(workloads::replicas::ReplicaSets::old()),
        Box::new(workloads::daemon::DaemonSets),
        Box::new(workloads::stateful::StatefulSets),
        Box::new(workloads::job::Jobs::default()),
        Box::new(workloads::cron::CronJobs),
        Box::new(workloads::ttl::FinishedJobs),
        Box::new(policies::budgets::Budgets),
        Box::new(policies::quotas::Quotas::default()),
        Box::new(policies::roles::AggregatedRoles),
        Box::new(policies::types::PolicyTypes),
        Box::new(endpoints::slices::Slices::default()),
        Box::new(endpoints::legacy::LegacyEndpoints::default()),
        Box::new(endpoints::mirror::Mirror),
        Box::new(cluster::namespaces::Namespaces::default()),
        Box::new(cluster::accounts::DefaultAccounts),
        Box::new(cluster::accounts::RootCertificates::new(&config.root_ca_pem)),
        Box::new(cluster::endpoint::ApiService::new(config.api_service, config.api_end)),
        Box::new(cluster::definitions::Names),
        Box::new(cluster::definitions::Cleanup::default()),
        Box::new(cluster::garbage::GarbageCollector::default()),
        Box::new(nodes::lifecycle::NodeLifecycle::default()),
        Box::new(nodes::ranges::PodRanges::new(config.pod_cidr, config.node_block_bits)),
        Box::new(nodes::pod_gc::PodCollector::default()),
        Box::new(volumes::protection::Protection::of_claims()),
        Box::new(volumes::protection::Protection::of_volumes()),
        Box::new(volumes::protection::Protection::of_attributes_classes()),
        Box::new(certificates::Certificates::default()),
        Box::new(bootstrap::ClusterInfoSigner::new(config.cluster_info.clone())),
        Box::new(bootstrap::TokenCleaner),
    ]
}
