//! One strategy per kind or small family; [`strategy`] finds the one of a resource.
//!
//! A kind that is not named here is served all the same: metadata rules and the field table's defaults are
//! the generic path's.

use api_kinds::ResourceInfo;

use crate::strategy::{Generation, Generic, Strategy};

pub(crate) mod apps;
pub(crate) mod autoscaling;
pub(crate) mod batch;
pub(crate) mod certificates;
pub(crate) mod config;
pub(crate) mod csi;
pub(crate) mod definitions;
pub(crate) mod devices;
pub(crate) mod endpoints;
pub(crate) mod event;
pub(crate) mod flowcontrol;
pub(crate) mod lease;
pub(crate) mod namespace;
pub(crate) mod networking;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod pod_defaults;
pub(crate) mod policies;
pub(crate) mod policy;
pub(crate) mod rbac;
pub(crate) mod scheduling;
pub(crate) mod service;
pub(crate) mod service_allocation;
pub(crate) mod storage;
pub(crate) mod webhooks;

/// By the stored form, so that all versions of a resource behave alike.
pub(crate) fn strategy(resource: &ResourceInfo) -> &'static dyn Strategy {
    match (&*resource.storage.group, &*resource.storage.resource) {
        ("", "namespaces") => &namespace::Namespaces,
        ("", "pods") => &pod::Pods,
        ("", "podtemplates") => &pod::PodTemplates,
        ("", "nodes") => &node::Nodes,
        ("", "services") => &service::Services,
        ("", "endpoints") => &endpoints::Endpoints,
        ("discovery.k8s.io", "endpointslices") => &endpoints::EndpointSlices,
        ("", "configmaps") => &config::ConfigMaps,
        ("", "secrets") => &config::Secrets,
        ("", "serviceaccounts") => &config::ServiceAccounts,
        ("", "limitranges") => &policy::LimitRanges,
        ("", "resourcequotas") => &policy::ResourceQuotas,
        ("policy", "poddisruptionbudgets") => &policy::DisruptionBudgets,
        ("", "events") | ("events.k8s.io", "events") => &event::Events,
        ("coordination.k8s.io", "leases") => &lease::Leases,
        ("apps", "deployments") => &apps::Deployments,
        ("apps", "replicasets") => &apps::Replicas::Set,
        ("apps", "statefulsets") => &apps::StatefulSets,
        ("apps", "daemonsets") => &apps::DaemonSets,
        ("apps", "controllerrevisions") => &apps::ControllerRevisions,
        ("", "replicationcontrollers") => &apps::Replicas::Controller,
        ("batch", "jobs") => &batch::Jobs,
        ("batch", "cronjobs") => &batch::CronJobs,
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => &rbac::Roles,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => &rbac::Bindings,
        ("certificates.k8s.io", "certificatesigningrequests") => &certificates::SigningRequests,
        ("scheduling.k8s.io", "priorityclasses") => &scheduling::PriorityClasses,
        ("", "persistentvolumes") => &storage::Volumes,
        ("", "persistentvolumeclaims") => &storage::Claims,
        ("storage.k8s.io", "storageclasses") => &storage::Classes,
        ("storage.k8s.io", "csidrivers") => &csi::Drivers,
        ("storage.k8s.io", "csinodes") => &csi::Nodes,
        ("storage.k8s.io", "csistoragecapacities") => &csi::Capacities,
        ("storage.k8s.io", "volumeattachments") => &csi::Attachments,
        ("storage.k8s.io", "volumeattributesclasses") => &csi::AttributesClasses,
        ("node.k8s.io", "runtimeclasses") => &node::RuntimeClasses,
        ("networking.k8s.io", "ingressclasses") => &networking::IngressClasses,
        ("networking.k8s.io", "ingresses") => &networking::Ingresses,
        ("networking.k8s.io", "networkpolicies") => &networking::NetworkPolicies,
        ("networking.k8s.io", "ipaddresses") => &networking::IpAddresses,
        ("networking.k8s.io", "servicecidrs") => &networking::ServiceCidrs,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => &flowcontrol::FlowSchemas,
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => &flowcontrol::PriorityLevels,
        ("resource.k8s.io", "resourceclaims") => &devices::Claims,
        ("resource.k8s.io", "resourceclaimtemplates") => &devices::Templates,
        ("resource.k8s.io", "deviceclasses") => &devices::Classes,
        ("resource.k8s.io", "resourceslices") => &devices::Slices,
        ("autoscaling", "horizontalpodautoscalers") => &autoscaling::Autoscalers,
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => {
            &webhooks::Webhooks { mutating: false }
        }
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations") => {
            &webhooks::Webhooks { mutating: true }
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            &policies::Policies { mutating: false }
        }
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => {
            &policies::Policies { mutating: true }
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            &policies::PolicyBindings { mutating: false }
        }
        ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings") => {
            &policies::PolicyBindings { mutating: true }
        }
        // Everything of these groups counts generations over all it holds.
        ("admissionregistration.k8s.io", _) | ("resource.k8s.io", _) => &Generic(Generation::OnContent),
        ("apiextensions.k8s.io", "customresourcedefinitions") => &definitions::Definitions,
        _ => &Generic(Generation::Never),
    }
}
