//! The manager's REST API from the outside: what CLI and tests use.
//!
//! Not here: reaching a cluster itself; that is what its kubeconfig is for.

use std::time::Duration;

use base_ids::Slug;
use fleet_model::{
    ApiToken, CellInfo, Cluster, CreateCluster, CreateOrganization, CreateToken, CreatedToken, JoinToken,
    Kubeconfig, Organization, Page, Problem,
};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager said no, and why.
    #[error("{0}")]
    Problem(Problem),
    #[error("the manager at {server} does not answer; is `roadstead up` running?")]
    Unreachable {
        server: String,
        #[source]
        cause: reqwest::Error,
    },
    #[error("the manager at {server} answered something that is not its API")]
    Answer {
        server: String,
        #[source]
        cause: reqwest::Error,
    },
    #[error("the CA certificate is not usable")]
    Ca(#[source] reqwest::Error),
}

#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    server: String,
    token: String,
}

impl Client {
    /// `server` is `https://host:port`; `ca_pem` is the only CA that is trusted.
    pub fn new(server: &str, ca_pem: &str, token: &str) -> Result<Client, ClientError> {
        let ca = reqwest::Certificate::from_pem(ca_pem.as_bytes()).map_err(ClientError::Ca)?;
        let http = reqwest::Client::builder()
            .tls_certs_only([ca])
            .timeout(Duration::from_secs(30))
            .build()
            .map_err(ClientError::Ca)?;
        Ok(Client { http, server: server.trim_end_matches('/').to_owned(), token: token.trim().to_owned() })
    }

    pub async fn create_organization(&self, name: &Slug) -> Result<Organization, ClientError> {
        self.send(Method::POST, "/api/v1/organizations", Some(&CreateOrganization { name: name.clone() }))
            .await
    }
    pub async fn organizations(&self) -> Result<Vec<Organization>, ClientError> {
        self.all_pages("/api/v1/organizations").await
    }
    pub async fn organization(&self, name: &Slug) -> Result<Organization, ClientError> {
        self.get(&format!("/api/v1/organizations/{name}")).await
    }
    pub async fn delete_organization(&self, name: &Slug) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/organizations/{name}")).await
    }

    pub async fn create_cluster(&self, org: &Slug, request: &CreateCluster) -> Result<Cluster, ClientError> {
        self.send(Method::POST, &format!("/api/v1/organizations/{org}/clusters"), Some(request)).await
    }
    pub async fn clusters(&self, org: &Slug) -> Result<Vec<Cluster>, ClientError> {
        self.all_pages(&format!("/api/v1/organizations/{org}/clusters")).await
    }
    pub async fn cluster(&self, org: &Slug, name: &Slug) -> Result<Cluster, ClientError> {
        self.get(&format!("/api/v1/organizations/{org}/clusters/{name}")).await
    }
    pub async fn delete_cluster(&self, org: &Slug, name: &Slug) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/organizations/{org}/clusters/{name}")).await
    }
    pub async fn kubeconfig(&self, org: &Slug, name: &Slug) -> Result<Kubeconfig, ClientError> {
        let path = format!("/api/v1/organizations/{org}/clusters/{name}/kubeconfig");
        self.send(Method::POST, &path, None::<&()>).await
    }
    pub async fn join_token(&self, org: &Slug, name: &Slug) -> Result<JoinToken, ClientError> {
        let path = format!("/api/v1/organizations/{org}/clusters/{name}/join-tokens");
        self.send(Method::POST, &path, None::<&()>).await
    }

    pub async fn create_token(&self, request: &CreateToken) -> Result<CreatedToken, ClientError> {
        self.send(Method::POST, "/api/v1/tokens", Some(request)).await
    }
    pub async fn tokens(&self) -> Result<Vec<ApiToken>, ClientError> {
        self.all_pages("/api/v1/tokens").await
    }
    pub async fn delete_token(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/tokens/{id}")).await
    }
    pub async fn cells(&self) -> Result<Vec<CellInfo>, ClientError> {
        self.all_pages("/api/v1/cells").await
    }

    async fn all_pages<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut page: Page<T> = self.get(path).await?;
        let mut items = std::mem::take(&mut page.items);
        while let Some(next) = page.next.take() {
            page = self.get(&format!("{path}?continue={next}")).await?;
            items.append(&mut page.items);
        }
        Ok(items)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.request(Method::DELETE, path, None::<&()>).await.map(drop)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let response = self.request(method, path, body).await?;
        response.json().await.map_err(|cause| ClientError::Answer { server: self.server.clone(), cause })
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<reqwest::Response, ClientError> {
        let mut request =
            self.http.request(method, format!("{}{path}", self.server)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request
            .send()
            .await
            .map_err(|cause| ClientError::Unreachable { server: self.server.clone(), cause })?;
        if response.status().is_success() {
            return Ok(response);
        }
        match response.json::<Problem>().await {
            Ok(problem) => Err(ClientError::Problem(problem)),
            Err(cause) => Err(ClientError::Answer { server: self.server.clone(), cause }),
        }
    }
}
