//! A plain HTTPS client for a cluster, from its kubeconfig.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use reqwest::Method;
use serde_json::Value;

/// What a kubeconfig of ours says.
#[derive(Debug, Clone)]
pub struct Kubeconfig {
    pub address: SocketAddr,
    pub server_name: String,
    pub ca_pem: String,
    pub cert_pem: String,
    pub key_pem: String,
}

impl Kubeconfig {
    pub fn read(path: &Path) -> Result<Kubeconfig> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Kubeconfig::parse(&text)
    }

    pub fn parse(text: &str) -> Result<Kubeconfig> {
        let yaml: Value = serde_yaml::from_str(text)?;
        let field = |pointer: &str| {
            yaml.pointer(pointer)
                .and_then(Value::as_str)
                .ok_or_else(|| anyhow!("no {pointer} in the kubeconfig"))
        };
        let pem = |pointer: &str| -> Result<String> {
            Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(field(pointer)?)?)?)
        };
        let server = field("/clusters/0/cluster/server")?;
        Ok(Kubeconfig {
            address: server.trim_start_matches("https://").parse()?,
            server_name: field("/clusters/0/cluster/tls-server-name")?.to_owned(),
            ca_pem: pem("/clusters/0/cluster/certificate-authority-data")?,
            cert_pem: pem("/users/0/user/client-certificate-data")?,
            key_pem: pem("/users/0/user/client-key-data")?,
        })
    }
}

/// Requests to one cluster. Clones share connections.
#[derive(Debug, Clone)]
pub struct ApiClient {
    http: reqwest::Client,
    base: String,
}

impl ApiClient {
    pub fn new(config: &Kubeconfig) -> Result<ApiClient> {
        ApiClient::with(config, true)
    }

    /// Without the client certificate: a stranger, unless a request carries a token.
    pub fn anonymous(config: &Kubeconfig) -> Result<ApiClient> {
        ApiClient::with(config, false)
    }

    fn with(config: &Kubeconfig, certificate: bool) -> Result<ApiClient> {
        base_net::tls::install_crypto_provider();
        let mut builder = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(config.ca_pem.as_bytes())?])
            // The name goes into TLS, the address is the gateway's.
            .resolve(&config.server_name, config.address)
            .timeout(Duration::from_secs(60));
        if certificate {
            let both = format!("{}{}", config.cert_pem, config.key_pem);
            builder = builder.identity(reqwest::Identity::from_pem(both.as_bytes())?);
        }
        let base = format!("https://{}:{}", config.server_name, config.address.port());
        Ok(ApiClient { http: builder.build()?, base })
    }

    /// A request to be finished by the caller.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// Status code and JSON body (null when it is none).
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await?;
        let code = response.status().as_u16();
        Ok((code, serde_json::from_slice(&response.bytes().await?).unwrap_or_default()))
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        match self.call(Method::GET, path, None).await? {
            (200, body) => Ok(body),
            (code, body) => bail!("GET {path}: {code} {body}"),
        }
    }

    pub async fn create(&self, path: &str, body: &Value) -> Result<Value> {
        match self.call(Method::POST, path, Some(body)).await? {
            (200..=202, body) => Ok(body),
            (code, body) => bail!("POST {path}: {code} {body}"),
        }
    }
}
