//! What kubeadm adds to a fresh cluster so that nodes can join and the admin's kubeconfig works, and what
//! our node agent needs beyond a kubelet's rights.
//!
//! Named as kubeadm names them, since `kubeadm join` and documentation refer to them.

use super::{BindingRow, READ, RoleRow, Table, bind, named, on, role};

pub(super) const CLUSTER: Table = Table { namespace: "", roles: ROLES, bindings: BINDINGS, upstream: false };
pub(super) const SYSTEM: Table =
    Table { namespace: "kube-system", roles: SYSTEM_ROLES, bindings: SYSTEM_BINDINGS, upstream: false };
pub(super) const PUBLIC: Table =
    Table { namespace: "kube-public", roles: PUBLIC_ROLES, bindings: PUBLIC_BINDINGS, upstream: false };

const ROLES: &[RoleRow] = &[
    role("kubeadm:get-nodes", &[on("get", "core", "nodes")]),
    // `view` is about namespaces; who looks at a cluster also wants to know what it runs on.
    role("roadstead:viewers", &[on(READ, "core", "nodes")]),
    // The agent proxies Services, answers DNS and routes between nodes itself, where a stock cluster runs a
    // kube-proxy with a token of its own on every node. As itself, a node reads no Node but its own.
    role("roadstead:node-agent", &[named("impersonate", "core", "users", "system:kube-proxy")]),
];

const BINDINGS: &[BindingRow] = &[
    // People with the role viewer, who come through the manager's proxy (`person_token`).
    bind("roadstead:viewers", "ClusterRole/view", "Group:roadstead:viewers"),
    bind("roadstead:viewers-of-nodes", "ClusterRole/roadstead:viewers", "Group:roadstead:viewers"),
    bind("kubeadm:cluster-admins", "ClusterRole/cluster-admin", "Group:kubeadm:cluster-admins"),
    bind(
        "kubeadm:get-nodes",
        "ClusterRole/kubeadm:get-nodes",
        "Group:system:bootstrappers:kubeadm:default-node-token",
    ),
    bind(
        "kubeadm:kubelet-bootstrap",
        "ClusterRole/system:node-bootstrapper",
        "Group:system:bootstrappers:kubeadm:default-node-token",
    ),
    bind(
        "kubeadm:node-autoapprove-bootstrap",
        "ClusterRole/system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        "Group:system:bootstrappers:kubeadm:default-node-token",
    ),
    bind(
        "kubeadm:node-autoapprove-certificate-rotation",
        "ClusterRole/system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "Group:system:nodes",
    ),
    // The API server's own certificate for kubelets, for those that ask what it may do; kubeadm makes it a
    // cluster admin.
    bind(
        "roadstead:kubelet-api-admin",
        "ClusterRole/system:kubelet-api-admin",
        "User:kube-apiserver-kubelet-client",
    ),
    bind("roadstead:node-agent", "ClusterRole/roadstead:node-agent", "Group:system:nodes"),
    // A stock cluster leaves kubelet serving certificates to people; ours approves a node's own names.
    bind(
        "roadstead:kubelet-serving-approver",
        "ClusterRole/system:certificates.k8s.io:kubelet-serving-approver",
        "ServiceAccount:kube-system:certificate-controller",
    ),
];

const SYSTEM_ROLES: &[RoleRow] = &[
    role("kubeadm:nodes-kubeadm-config", &[named("get", "core", "configmaps", "kubeadm-config")]),
    role("kubeadm:kubelet-config", &[named("get", "core", "configmaps", "kubelet-config")]),
];

const SYSTEM_BINDINGS: &[BindingRow] = &[
    bind(
        "kubeadm:nodes-kubeadm-config",
        "Role/kubeadm:nodes-kubeadm-config",
        "Group:system:bootstrappers:kubeadm:default-node-token Group:system:nodes",
    ),
    bind(
        "kubeadm:kubelet-config",
        "Role/kubeadm:kubelet-config",
        "Group:system:nodes Group:system:bootstrappers:kubeadm:default-node-token",
    ),
];

const PUBLIC_ROLES: &[RoleRow] = &[
    role("kubeadm:bootstrap-signer-clusterinfo", &[named("get", "core", "configmaps", "cluster-info")]),
    // kubeadm makes the ConfigMap by hand; here its signer does.
    role("roadstead:cluster-info", &[on("create", "core", "configmaps")]),
];

const PUBLIC_BINDINGS: &[BindingRow] = &[
    bind(
        "kubeadm:bootstrap-signer-clusterinfo",
        "Role/kubeadm:bootstrap-signer-clusterinfo",
        "User:system:anonymous",
    ),
    bind(
        "roadstead:cluster-info",
        "Role/roadstead:cluster-info",
        "ServiceAccount:kube-system:bootstrap-signer",
    ),
];
