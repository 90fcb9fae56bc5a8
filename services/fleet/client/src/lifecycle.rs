//! Clusters, node pools, operations, receipts.

use base_ids::{OperationId, Slug, TenantId};
use fleet_model::{
    Cluster, ClusterRef, CreateCluster, CreateJoinToken, CreateKubeconfig, CreateNodePool, JoinToken,
    JoinTokenInfo, Kubeconfig, MachineType, NodePool, NodePoolRef, Operation, OperationState, Receipt,
    UpdateCluster, UpdateNodePool, Version,
};

use crate::{Client, ClientError, segment};

type Result<T> = std::result::Result<T, ClientError>;

impl Client {
    pub async fn versions(&self) -> Result<Vec<Version>> {
        self.all_pages("/api/v1/versions").await
    }
    pub async fn machine_types(&self) -> Result<Vec<MachineType>> {
        self.all_pages("/api/v1/machine-types").await
    }

    /// It may still be `creating` when this returns; its `operation` then says how far it is.
    pub async fn create_cluster(&self, org: &Slug, request: &CreateCluster) -> Result<Cluster> {
        self.post(&format!("/api/v1/organizations/{org}/clusters"), Some(request)).await
    }
    pub async fn clusters(&self, org: &Slug) -> Result<Vec<Cluster>> {
        self.all_pages(&format!("/api/v1/organizations/{org}/clusters")).await
    }
    pub async fn cluster(&self, org: &Slug, cluster: impl Into<ClusterRef>) -> Result<Cluster> {
        self.get(&at(org, cluster)).await
    }
    pub async fn update_cluster(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        change: &UpdateCluster,
    ) -> Result<Cluster> {
        self.patch(&at(org, cluster), change).await
    }
    /// Begins the deletion; [`Client::finished`] waits for its end.
    pub async fn delete_cluster(&self, org: &Slug, cluster: impl Into<ClusterRef>) -> Result<Operation> {
        self.send(reqwest::Method::DELETE, &at(org, cluster), None::<&()>).await
    }

    pub async fn kubeconfig(&self, org: &Slug, cluster: impl Into<ClusterRef>) -> Result<Kubeconfig> {
        self.create_kubeconfig(org, cluster, &CreateKubeconfig::default()).await
    }
    pub async fn create_kubeconfig(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        request: &CreateKubeconfig,
    ) -> Result<Kubeconfig> {
        self.post(&format!("{}/kubeconfig", at(org, cluster)), Some(request)).await
    }

    pub async fn join_token(&self, org: &Slug, cluster: impl Into<ClusterRef>) -> Result<JoinToken> {
        self.create_join_token(org, cluster, &CreateJoinToken::default()).await
    }
    pub async fn create_join_token(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        request: &CreateJoinToken,
    ) -> Result<JoinToken> {
        self.post(&format!("{}/join-tokens", at(org, cluster)), Some(request)).await
    }
    pub async fn join_tokens(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
    ) -> Result<Vec<JoinTokenInfo>> {
        self.all_pages(&format!("{}/join-tokens", at(org, cluster))).await
    }
    pub async fn delete_join_token(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        id: &str,
    ) -> Result<()> {
        self.delete(&format!("{}/join-tokens/{}", at(org, cluster), segment(id))).await
    }

    pub async fn create_node_pool(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        request: &CreateNodePool,
    ) -> Result<NodePool> {
        self.post(&format!("{}/nodepools", at(org, cluster)), Some(request)).await
    }
    pub async fn node_pools(&self, org: &Slug, cluster: impl Into<ClusterRef>) -> Result<Vec<NodePool>> {
        self.all_pages(&format!("{}/nodepools", at(org, cluster))).await
    }
    pub async fn node_pool(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        pool: impl Into<NodePoolRef>,
    ) -> Result<NodePool> {
        self.get(&format!("{}/nodepools/{}", at(org, cluster), pool.into())).await
    }
    pub async fn update_node_pool(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        pool: impl Into<NodePoolRef>,
        change: &UpdateNodePool,
    ) -> Result<NodePool> {
        self.patch(&format!("{}/nodepools/{}", at(org, cluster), pool.into()), change).await
    }
    pub async fn delete_node_pool(
        &self,
        org: &Slug,
        cluster: impl Into<ClusterRef>,
        pool: impl Into<NodePoolRef>,
    ) -> Result<Operation> {
        let path = format!("{}/nodepools/{}", at(org, cluster), pool.into());
        self.send(reqwest::Method::DELETE, &path, None::<&()>).await
    }

    /// Newest first.
    pub async fn operations(&self, org: &Slug, state: Option<OperationState>) -> Result<Vec<Operation>> {
        let only = state.map(|state| format!("?state={}", state.as_str())).unwrap_or_default();
        self.all_pages(&format!("/api/v1/organizations/{org}/operations{only}")).await
    }
    pub async fn operation(&self, org: &Slug, id: OperationId) -> Result<Operation> {
        self.get(&format!("/api/v1/organizations/{org}/operations/{id}")).await
    }
    pub async fn cancel_operation(&self, org: &Slug, id: OperationId) -> Result<Operation> {
        self.post(&format!("/api/v1/organizations/{org}/operations/{id}/cancel"), None::<&()>).await
    }

    pub async fn receipts(&self, org: &Slug) -> Result<Vec<Receipt>> {
        self.all_pages(&format!("/api/v1/organizations/{org}/receipts")).await
    }
    pub async fn receipt(&self, org: &Slug, cluster: TenantId) -> Result<Receipt> {
        self.get(&format!("/api/v1/organizations/{org}/receipts/{cluster}")).await
    }
}

fn at(org: &Slug, cluster: impl Into<ClusterRef>) -> String {
    format!("/api/v1/organizations/{org}/clusters/{}", cluster.into())
}
