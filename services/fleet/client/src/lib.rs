//! The manager's REST API from the outside: what CLI, terraform and tests use.
//!
//! Start at [`Client`]. Every POST carries an `Idempotency-Key`, so a request whose answer was lost on the
//! way is sent again and changes nothing twice. Waiting for operations is in [`Client::finished`], the
//! stream of changes in [`events`].
//!
//! Not here: reaching a cluster itself; that is what its kubeconfig is for.

pub mod events;
mod identity;
mod lifecycle;
mod wait;

use std::time::{Duration, Instant};

use base_ids::{OperationId, Slug};
use fleet_model::{
    ApiToken, CellInfo, CreateOrganization, CreateToken, CreatedToken, FieldProblem, Operation, Organization,
    Page, Problem,
};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest that a request may take; the manager answers within 10 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Tries of one request whose answer got lost, and the pause between two.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// How long an earlier try of the same request is waited for. A manager that died in the middle of it and is back
/// knows only after ten seconds that nobody is at it any more.
const EARLIER_TRY: Duration = Duration::from_secs(20);

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
    /// An earlier try of the same request has not come to its end; what comes of it is not known. Sent again
    /// under the same key it changes nothing twice.
    #[error("the manager at {server} has not come to an end with this request; ask again in a while")]
    Undecided { server: String },
    #[error("the manager at {server} answered something that is not its API")]
    Answer {
        server: String,
        #[source]
        cause: reqwest::Error,
    },
    #[error("the CA certificate is not usable")]
    Ca(#[source] reqwest::Error),
    #[error("there is no certificate in it; a CA certificate begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// Somebody answers, but not the manager of this CA.
    #[error("{}", untrusted(server, ca, cause))]
    Untrusted { server: String, ca: String, cause: rustls::CertificateError },
    /// The change was accepted and ended otherwise than well.
    #[error("{} of {} {}: {}", .0.kind.as_str(), .0.target, .0.state.as_str(), .0.message)]
    Ended(Operation),
    /// It goes on; only the waiting ended.
    #[error("{} of {} is still running after {waited_ms} ms ({}%: {})", .operation.kind.as_str(), .operation.target, .operation.progress, .operation.message)]
    StillRunning { operation: Operation, waited_ms: u128 },
    #[error("{given:?} is no idempotency key: 1 to 128 printable ASCII characters")]
    Key { given: String },
}

fn untrusted(server: &str, ca: &str, cause: &rustls::CertificateError) -> String {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    match cause {
        UnknownIssuer | BadSignature => format!(
            "the certificate of the manager at {server} is not from the CA in {ca}; give the CA certificate of that \
             fleet"
        ),
        other => format!("the certificate of the manager at {server} is not accepted: {other}"),
    }
}

/// What is wrong with the server's certificate, when that is why a request failed.
fn refused_certificate(error: &reqwest::Error) -> Option<rustls::CertificateError> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        // An I/O error hides what it was made of behind its own source.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = match inner {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => error.downcast_ref::<rustls::Error>(),
        };
        if let Some(rustls::Error::InvalidCertificate(why)) = found {
            return Some(why.clone());
        }
        cause = match inner {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Whether `pem` has at least one certificate in it, and nothing that is broken.
pub fn check_ca(pem: &str) -> Result<(), ClientError> {
    let found = reqwest::Certificate::from_pem_bundle(pem.as_bytes()).map_err(ClientError::Ca)?;
    if found.is_empty() { Err(ClientError::NoCertificate) } else { Ok(()) }
}

impl ClientError {
    /// The status of the manager's answer, if it was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            ClientError::Problem(problem) => Some(problem.status),
            _ => None,
        }
    }
    /// The fields of the request's body that the manager did not take; empty when it was not about those.
    pub fn fields(&self) -> &[FieldProblem] {
        match self {
            ClientError::Problem(problem) => &problem.errors,
            _ => &[],
        }
    }
    /// It is not there, or not for this caller.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }
}

#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    server: String,
    token: String,
    /// Where the CA certificate is from, for messages.
    ca: String,
    /// For the next POST; a fresh one each time when `None`.
    key: Option<String>,
}

impl Client {
    /// `server` is `https://host:port`; `ca_pem` is the only CA that is trusted. `token` is an API token or
    /// a session's secret; empty for what needs neither.
    pub fn new(server: &str, ca_pem: &str, token: &str) -> Result<Client, ClientError> {
        check_ca(ca_pem)?;
        let ca = reqwest::Certificate::from_pem(ca_pem.as_bytes()).map_err(ClientError::Ca)?;
        let http = reqwest::Client::builder()
            .tls_certs_only([ca])
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(ClientError::Ca)?;
        let (server, token) = (server.trim_end_matches('/').to_owned(), token.trim().to_owned());
        Ok(Client { http, server, token, ca: "what was given".to_owned(), key: None })
    }

    /// The same client, which names the place of its CA certificate where it matters.
    pub fn with_ca_named(self, place: &str) -> Client {
        Client { ca: place.to_owned(), ..self }
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    /// The same client with an `Idempotency-Key` of the caller's, which outlives the caller: a program that
    /// was killed sends the same request with the same key again and is given the first answer. For one
    /// request; another body under the same key is refused (422).
    pub fn with_key(&self, key: &str) -> Result<Client, ClientError> {
        check_key(key)?;
        Ok(Client { key: Some(key.to_owned()), ..self.clone() })
    }

    pub async fn create_organization(&self, name: &Slug) -> Result<Organization, ClientError> {
        self.post("/api/v1/organizations", Some(&CreateOrganization { name: name.clone() })).await
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

    pub async fn create_token(&self, request: &CreateToken) -> Result<CreatedToken, ClientError> {
        self.post("/api/v1/tokens", Some(request)).await
    }
    /// All that the caller may see, or those of one organisation.
    pub async fn tokens(&self, organization: Option<&Slug>) -> Result<Vec<ApiToken>, ClientError> {
        match organization {
            None => self.all_pages("/api/v1/tokens").await,
            Some(name) => self.all_pages(&format!("/api/v1/tokens?organization={name}")).await,
        }
    }
    pub async fn token(&self, id: &str) -> Result<ApiToken, ClientError> {
        self.get(&format!("/api/v1/tokens/{}", segment(id))).await
    }
    pub async fn delete_token(&self, id: &str) -> Result<(), ClientError> {
        self.delete(&format!("/api/v1/tokens/{}", segment(id))).await
    }
    pub async fn cells(&self) -> Result<Vec<CellInfo>, ClientError> {
        self.all_pages("/api/v1/cells").await
    }

    async fn all_pages<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut page: Page<T> = self.get(path).await?;
        let mut items = std::mem::take(&mut page.items);
        let separator = if path.contains('?') { '&' } else { '?' };
        while let Some(next) = page.next.take() {
            page = self.get(&format!("{path}{separator}continue={}", segment(&next))).await?;
            items.append(&mut page.items);
        }
        Ok(items)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        self.send(Method::POST, path, body).await
    }

    async fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.send(Method::PATCH, path, Some(body)).await
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
        self.json(response).await
    }

    async fn json<T: DeserializeOwned>(&self, response: reqwest::Response) -> Result<T, ClientError> {
        response.json().await.map_err(|cause| ClientError::Answer { server: self.server.clone(), cause })
    }

    /// Sends it, again if the connection broke: everything but POST may be repeated by nature, and POST by
    /// its key. A manager that is not there at all is reported at once.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<reqwest::Response, ClientError> {
        let key = (method == Method::POST)
            .then(|| self.key.clone().unwrap_or_else(|| OperationId::generate().to_string()));
        let (mut tries, began) = (1, Instant::now());
        loop {
            let mut request =
                self.http.request(method.clone(), format!("{}{path}", self.server)).timeout(REQUEST_TIMEOUT);
            if !self.token.is_empty() {
                request = request.bearer_auth(&self.token);
            }
            if let Some(key) = &key {
                request = request.header("Idempotency-Key", key);
            }
            if let Some(body) = body {
                request = request.json(body);
            }
            match request.send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                // An earlier try of the same request is still being carried out. It is no refusal, and must not look
                // like one: whoever takes it for one forgets what the request may have made.
                Ok(response)
                    if key.is_some()
                        && response.status() == StatusCode::CONFLICT
                        && response.headers().contains_key("retry-after") =>
                {
                    if began.elapsed() > EARLIER_TRY {
                        return Err(ClientError::Undecided { server: self.server.clone() });
                    }
                }
                Ok(response) => return Err(self.problem(response).await),
                Err(cause) if tries < TRIES && !cause.is_connect() && !cause.is_timeout() => tries += 1,
                Err(cause) => return Err(self.unreachable(cause)),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn unreachable(&self, cause: reqwest::Error) -> ClientError {
        let server = self.server.clone();
        match refused_certificate(&cause) {
            Some(why) => ClientError::Untrusted { server, ca: self.ca.clone(), cause: why },
            None => ClientError::Unreachable { server, cause },
        }
    }

    async fn problem(&self, response: reqwest::Response) -> ClientError {
        match response.json::<Problem>().await {
            Ok(problem) => ClientError::Problem(problem),
            Err(cause) => ClientError::Answer { server: self.server.clone(), cause },
        }
    }
}

fn check_key(key: &str) -> Result<(), ClientError> {
    if key.is_empty() || key.len() > 128 || !key.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(ClientError::Key { given: key.to_owned() });
    }
    Ok(())
}

/// Percent-encodes what is not parsed into a type of ours, so that it stays one segment or value.
fn segment(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_segment() {
        for (given, wanted) in [("a1_-~", "a1_-~"), ("../x?y", "%2E%2E%2Fx%3Fy"), ("ä", "%C3%A4")] {
            assert_eq!(segment(given), wanted);
        }
    }

    #[test]
    fn a_ca_is_a_certificate() {
        for (pem, wanted) in [
            ("rubbish", "there is no certificate in it"),
            ("", "there is no certificate in it"),
            ("-----BEGIN CERTIFICATE-----\nAA", "the CA certificate is not usable"),
        ] {
            let said = check_ca(pem).unwrap_err().to_string();
            assert!(said.starts_with(wanted), "{pem:?}: {said}");
            assert!(Client::new("https://127.0.0.1:1", pem, "").is_err(), "{pem:?}");
        }
    }

    #[test]
    fn keys_are_printable() {
        for (key, fine) in [("tf-1", true), ("", false), ("a\nb", false), (&*"k".repeat(129), false)] {
            assert_eq!(check_key(key).is_ok(), fine, "{key:?}");
        }
    }
}
