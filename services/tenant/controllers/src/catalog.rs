//! The resources that are watched, and how much of each is kept.
//!
//! Resources that a controller names have fixed places at the front ([`res`]); whatever else the cluster
//! serves follows and is watched for the garbage collector only, which keeps just the objects that have
//! owners or finalizers: the hundreds of default objects of a fresh cluster cost nothing here.

use std::sync::{Arc, LazyLock};

use api_machinery::{Gvk, Gvr, Object};

/// A resource's place in the [`Catalog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub(crate) u16);

#[derive(Debug, Clone)]
pub struct Resource {
    pub gvr: Gvr,
    pub gvk: Gvk,
    pub namespaced: bool,
    /// Can be listed, watched and deleted: the garbage collector and namespace deletion take part.
    pub collectable: bool,
    keep: fn(&Object) -> bool,
    /// Of a definition that is gone: its place is kept, since keys may still name it, and is taken again by a
    /// namesake.
    gone: bool,
    custom: bool,
}

/// Clusters that serve the same share one list.
#[derive(Debug, Clone)]
pub struct Catalog {
    resources: Arc<Vec<Resource>>,
}

macro_rules! known {
    ($($id:ident $group:literal $version:literal $resource:literal $kind:literal $namespaced:literal $keep:ident;)*) => {
        /// The resources that controllers name.
        pub mod res {
            use super::ResourceId;
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            #[derive(Clone, Copy)]
            enum Place { $($id),* }
            $(pub const $id: ResourceId = ResourceId(Place::$id as u16);)*
        }
        fn known() -> Vec<Resource> {
            vec![$(Resource {
                gvr: Gvr::new($group, $version, $resource),
                gvk: Gvk::new($group, $version, $kind),
                namespaced: $namespaced,
                collectable: true,
                keep: $keep,
                gone: false,
                custom: false,
            }),*]
        }
    };
}

known! {
    PODS "" "v1" "pods" "Pod" true all;
    NODES "" "v1" "nodes" "Node" false all;
    NAMESPACES "" "v1" "namespaces" "Namespace" false all;
    SERVICES "" "v1" "services" "Service" true all;
    ENDPOINTS "" "v1" "endpoints" "Endpoints" true all;
    SLICES "discovery.k8s.io" "v1" "endpointslices" "EndpointSlice" true all;
    SERVICE_ACCOUNTS "" "v1" "serviceaccounts" "ServiceAccount" true default_account;
    CONFIG_MAPS "" "v1" "configmaps" "ConfigMap" true published;
    SECRETS "" "v1" "secrets" "Secret" true bootstrap_token;
    REPLICATION_CONTROLLERS "" "v1" "replicationcontrollers" "ReplicationController" true all;
    QUOTAS "" "v1" "resourcequotas" "ResourceQuota" true all;
    CLAIMS "" "v1" "persistentvolumeclaims" "PersistentVolumeClaim" true all;
    VOLUMES "" "v1" "persistentvolumes" "PersistentVolume" false all;
    ATTRIBUTES_CLASSES "storage.k8s.io" "v1" "volumeattributesclasses" "VolumeAttributesClass" false all;
    DEPLOYMENTS "apps" "v1" "deployments" "Deployment" true all;
    REPLICA_SETS "apps" "v1" "replicasets" "ReplicaSet" true all;
    STATEFUL_SETS "apps" "v1" "statefulsets" "StatefulSet" true all;
    DAEMON_SETS "apps" "v1" "daemonsets" "DaemonSet" true all;
    REVISIONS "apps" "v1" "controllerrevisions" "ControllerRevision" true all;
    JOBS "batch" "v1" "jobs" "Job" true all;
    CRON_JOBS "batch" "v1" "cronjobs" "CronJob" true all;
    LEASES "coordination.k8s.io" "v1" "leases" "Lease" true node_lease;
    SIGNING_REQUESTS "certificates.k8s.io" "v1" "certificatesigningrequests" "CertificateSigningRequest" false all;
    BUDGETS "policy" "v1" "poddisruptionbudgets" "PodDisruptionBudget" true all;
    DEFINITIONS "apiextensions.k8s.io" "v1" "customresourcedefinitions" "CustomResourceDefinition" false all;
    VALIDATING_POLICIES "admissionregistration.k8s.io" "v1" "validatingadmissionpolicies" "ValidatingAdmissionPolicy" false all;
    CLUSTER_ROLES "rbac.authorization.k8s.io" "v1" "clusterroles" "ClusterRole" false aggregated;
}

fn all(_: &Object) -> bool {
    true
}
/// What the garbage collector must know about an object it only might have to act on.
fn owned(object: &Object) -> bool {
    let header = &object.header;
    !header.owners.is_empty() || !header.finalizers.is_empty() || header.deleting_since.is_some()
}
fn default_account(object: &Object) -> bool {
    &*object.header.name == "default" || owned(object)
}
fn published(object: &Object) -> bool {
    matches!(&*object.header.name, "kube-root-ca.crt" | "cluster-info") || owned(object)
}
fn bootstrap_token(object: &Object) -> bool {
    let header = &object.header;
    (header.namespace.as_deref() == Some("kube-system") && header.name.starts_with("bootstrap-token-"))
        || owned(object)
}
fn node_lease(object: &Object) -> bool {
    object.header.namespace.as_deref() == Some("kube-node-lease") || owned(object)
}
fn aggregated(object: &Object) -> bool {
    let labelled = object.header.labels.keys().any(|key| key != "kubernetes.io/bootstrapping");
    labelled || owned(object) || contains(object.body(), b"\"aggregationRule\"")
}
fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

impl Catalog {
    /// The resources that controllers name, and nothing else.
    pub fn known() -> Catalog {
        Catalog { resources: Arc::new(known()) }
    }

    /// Everything the built-in groups serve that can be listed, watched and deleted, in its stored version.
    pub fn built_in() -> Catalog {
        static BUILT_IN: LazyLock<Catalog> = LazyLock::new(Catalog::make_built_in);
        BUILT_IN.clone()
    }

    fn make_built_in() -> Catalog {
        let wanted = ["list", "watch", "delete"];
        api_kinds::kinds().resources().iter().fold(Catalog::known(), |catalog, info| {
            let collectable = wanted.iter().all(|verb| info.allows(verb));
            if !collectable || info.storage != info.gvr {
                return catalog;
            }
            catalog.with(info.gvr.clone(), info.gvk.clone(), info.namespaced)
        })
    }

    /// Adds a resource the cluster serves besides; one that is known already (in whatever version) stays.
    pub fn with(mut self, gvr: Gvr, gvk: Gvk, namespaced: bool) -> Catalog {
        let same = |known: &Resource| known.gvr.group == gvr.group && known.gvr.resource == gvr.resource;
        // Events are the one resource upstream's collector leaves alone; they expire by themselves.
        let is_event = gvr.resource == "events" && matches!(&*gvr.group, "" | "events.k8s.io");
        if !is_event && !self.resources.iter().any(same) {
            Arc::make_mut(&mut self.resources).push(Resource {
                gvr,
                gvk,
                namespaced,
                collectable: true,
                keep: owned,
                gone: false,
                custom: false,
            });
        }
        self
    }

    /// A custom resource the cluster serves from now on, or in another version than before. `None` when that is
    /// no news, or when a built-in resource has its place.
    pub(crate) fn serve(&mut self, gvr: Gvr, gvk: Gvk, namespaced: bool) -> Option<ResourceId> {
        let same = |known: &Resource| known.gvr.group == gvr.group && known.gvr.resource == gvr.resource;
        let wanted = Resource {
            gvr: gvr.clone(),
            gvk,
            namespaced,
            collectable: true,
            keep: owned,
            gone: false,
            custom: true,
        };
        let Some(at) = self.resources.iter().position(same) else {
            // The last place there is a number for stays empty.
            let id = ResourceId(u16::try_from(self.resources.len()).ok()?);
            Arc::make_mut(&mut self.resources).push(wanted);
            return Some(id);
        };
        let known = &self.resources[at];
        if !known.custom || (!known.gone && known.gvr == gvr && known.gvk == wanted.gvk) {
            return None;
        }
        Arc::make_mut(&mut self.resources)[at] = wanted;
        u16::try_from(at).ok().map(ResourceId)
    }

    /// A custom resource that is served no longer.
    pub(crate) fn retire(&mut self, plural: &str, group: &str) -> Option<ResourceId> {
        let at = self.resources.iter().position(|known| {
            known.custom && !known.gone && known.gvr.resource == plural && known.gvr.group == group
        })?;
        Arc::make_mut(&mut self.resources)[at].gone = true;
        u16::try_from(at).ok().map(ResourceId)
    }

    pub fn get(&self, id: ResourceId) -> &Resource {
        &self.resources[usize::from(id.0)]
    }
    /// All that is served.
    pub fn ids(&self) -> impl Iterator<Item = ResourceId> + use<'_> {
        let served = self.resources.iter().enumerate().filter(|(_, known)| !known.gone);
        served.filter_map(|(at, _)| u16::try_from(at).ok()).map(ResourceId)
    }
    pub fn len(&self) -> usize {
        self.resources.len()
    }
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }
    pub fn by_gvr(&self, gvr: &Gvr) -> Option<ResourceId> {
        self.ids().find(|id| {
            let known = &self.get(*id).gvr;
            known.group == gvr.group && known.resource == gvr.resource
        })
    }
    /// By group and kind, whatever the version: owner references outlive versions.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<ResourceId> {
        let wanted = Gvk::parse(api_version, kind)?;
        self.ids().find(|id| {
            let known = &self.get(*id).gvk;
            known.group == wanted.group && known.kind == wanted.kind
        })
    }
    pub(crate) fn keeps(&self, id: ResourceId, object: &Object) -> bool {
        (self.get(id).keep)(object)
    }
}
