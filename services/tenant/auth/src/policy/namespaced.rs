//! Roles and bindings in kube-system and kube-public.

use super::{BindingRow, EVENTS, READ, RoleRow, Table, bind, named, on, role};

pub(super) const SYSTEM: Table =
    Table { namespace: "kube-system", roles: SYSTEM_ROLES, bindings: SYSTEM_BINDINGS, upstream: true };
pub(super) const PUBLIC: Table =
    Table { namespace: "kube-public", roles: PUBLIC_ROLES, bindings: PUBLIC_BINDINGS, upstream: true };

const LOCK: &str = "create get list update watch";

const SYSTEM_ROLES: &[RoleRow] = &[
    role(
        "extension-apiserver-authentication-reader",
        &[named(READ, "core", "configmaps", "extension-apiserver-authentication")],
    ),
    role(
        "system::leader-locking-kube-controller-manager",
        &[on(LOCK, "coordination.k8s.io", "leases"), on(LOCK, "coordination.k8s.io", "leasecandidates")],
    ),
    role(
        "system::leader-locking-kube-scheduler",
        &[on(LOCK, "coordination.k8s.io", "leases"), on(LOCK, "coordination.k8s.io", "leasecandidates")],
    ),
    role("system:controller:bootstrap-signer", &[on(READ, "core", "secrets")]),
    role("system:controller:cloud-provider", &[on("create get list watch", "core", "configmaps")]),
    role("system:controller:token-cleaner", &[on("delete get list watch", "core", "secrets"), EVENTS]),
];

const SYSTEM_BINDINGS: &[BindingRow] = &[
    bind(
        "system::extension-apiserver-authentication-reader",
        "Role/extension-apiserver-authentication-reader",
        "User:system:kube-controller-manager User:system:kube-scheduler",
    ),
    bind(
        "system::leader-locking-kube-controller-manager",
        "Role/system::leader-locking-kube-controller-manager",
        "User:system:kube-controller-manager ServiceAccount:kube-system:kube-controller-manager",
    ),
    bind(
        "system::leader-locking-kube-scheduler",
        "Role/system::leader-locking-kube-scheduler",
        "User:system:kube-scheduler ServiceAccount:kube-system:kube-scheduler",
    ),
    bind(
        "system:controller:bootstrap-signer",
        "Role/system:controller:bootstrap-signer",
        "ServiceAccount:kube-system:bootstrap-signer",
    ),
    bind(
        "system:controller:cloud-provider",
        "Role/system:controller:cloud-provider",
        "ServiceAccount:kube-system:cloud-provider",
    ),
    bind(
        "system:controller:token-cleaner",
        "Role/system:controller:token-cleaner",
        "ServiceAccount:kube-system:token-cleaner",
    ),
];

const PUBLIC_ROLES: &[RoleRow] = &[role(
    "system:controller:bootstrap-signer",
    &[on(READ, "core", "configmaps"), named("update", "core", "configmaps", "cluster-info"), EVENTS],
)];

const PUBLIC_BINDINGS: &[BindingRow] = &[bind(
    "system:controller:bootstrap-signer",
    "Role/system:controller:bootstrap-signer",
    "ServiceAccount:kube-system:bootstrap-signer",
)];
