//! Where to, trusting whom, within which limits, and why it failed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base_net::pki::Issued;
use base64::Engine;
use http::Uri;
use serde_json::Value;

/// Where a call goes and how the other side proves who it is.
#[derive(Debug, Clone)]
pub struct Destination {
    pub place: Place,
    pub trust: Trust,
    /// Shown to the other side when it asks for a certificate: a front proxy's.
    pub identity: Option<Arc<Issued>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// `https`, on the internet.
    Url(Uri),
    /// In the cluster.
    Service { namespace: String, name: String, port: u16, path: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The authorities this machine trusts.
    System,
    /// PEM; these and no others.
    Ca(Arc<str>),
    /// Whoever answers. Only where upstream has a setting for it (`insecureSkipTLSVerify`).
    Anyone,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    #[error("webhook configuration must have either service or URL")]
    Nowhere,
    #[error("Unparsable URL: {0}")]
    Url(String),
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    Ca,
}

/// What a Service's port is where nobody said.
const DEFAULT_PORT: u16 = 443;

impl Destination {
    /// From a `clientConfig` as admission webhooks and conversions of custom resources have it: `url` or
    /// `service`, and `caBundle` in base64.
    pub fn from_client_config(config: &Value) -> Result<Destination, DestinationError> {
        let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let place = if config.get("service").is_some_and(Value::is_object) {
            let port = config.pointer("/service/port").and_then(Value::as_u64);
            let path = text("/service/path");
            Place::Service {
                namespace: text("/service/namespace").to_owned(),
                name: text("/service/name").to_owned(),
                port: port
                    .and_then(|port| u16::try_from(port).ok())
                    .filter(|port| *port != 0)
                    .unwrap_or(DEFAULT_PORT),
                path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            }
        } else {
            let url = text("/url");
            if url.is_empty() {
                return Err(DestinationError::Nowhere);
            }
            Place::Url(parse_url(url)?)
        };
        let trust = match text("/caBundle") {
            "" => Trust::System,
            encoded => {
                let pem = base64::engine::general_purpose::STANDARD
                    .decode(encoded)
                    .ok()
                    .and_then(|bytes| String::from_utf8(bytes).ok())
                    .ok_or(DestinationError::Ca)?;
                Trust::Ca(pem.into())
            }
        };
        Ok(Destination { place, trust, identity: None })
    }

    /// `https://web.default.svc:443`: what errors call it, and what its certificate must name.
    pub fn base(&self) -> String {
        match &self.place {
            Place::Url(url) => {
                let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
                format!("https://{}{port}", url.host().unwrap_or_default())
            }
            Place::Service { namespace, name, port, .. } => format!("https://{name}.{namespace}.svc:{port}"),
        }
    }

    /// Path and query of a request.
    pub fn target(&self, query: &str) -> String {
        let path = match &self.place {
            Place::Url(url) => url.path(),
            Place::Service { path, .. } => path,
        };
        let path = if path.is_empty() { "/" } else { path };
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }

    /// For the `Host` header.
    pub(crate) fn authority(&self) -> String {
        self.base().trim_start_matches("https://").to_owned()
    }
}

fn parse_url(text: &str) -> Result<Uri, DestinationError> {
    let wrong = || DestinationError::Url(text.to_owned());
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    // Credentials in a URL would be sent to nobody, but read by whoever may read the configuration.
    if uri.scheme_str() != Some("https") || authority.host().is_empty() || authority.as_str().contains('@') {
        return Err(wrong());
    }
    Ok(uri)
}

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For everything: waiting for the cluster's budget, resolving, connecting, TLS, the answer's last byte.
    pub timeout: Duration,
    pub response_bytes: usize,
}

/// Why there is no answer. Texts are those of Go's HTTP client where it has one, since that is what people
/// search for.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    #[error("dial tcp {0}: address not allowed")]
    Refused(SocketAddr),
    /// Does not say whether the name exists: the provider's own names would be read off it.
    #[error("dial tcp: lookup {0}: no such host")]
    NoHost(String),
    #[error("{0}")]
    NoEndpoint(String),
    #[error("dial tcp {address}: {cause}")]
    Connect { address: SocketAddr, cause: io::Error },
    #[error("{0}")]
    Tls(String),
    #[error("unable to load root certificates: {0}")]
    Trust(String),
    #[error("{0}")]
    Http(String),
    #[error("the response is longer than {0} bytes")]
    TooLarge(usize),
    #[error("context deadline exceeded")]
    Timeout,
    #[error("too many calls of this cluster are waiting for an answer")]
    Busy,
}

impl OutboundError {
    /// Whether the other side kept us waiting, rather than saying no.
    pub fn is_timeout(&self) -> bool {
        matches!(self, OutboundError::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_client_config_is_a_destination() {
        for (config, wanted) in [
            (
                json!({"url": "https://hooks.example.com/a/b"}),
                Ok(("https://hooks.example.com", "/a/b?timeout=10s")),
            ),
            (
                json!({"url": "https://hooks.example.com:8443"}),
                Ok(("https://hooks.example.com:8443", "/?timeout=10s")),
            ),
            (
                json!({"service": {"namespace": "ns", "name": "web", "path": "check", "port": 8443}}),
                Ok(("https://web.ns.svc:8443", "/check?timeout=10s")),
            ),
            (
                json!({"service": {"namespace": "ns", "name": "web"}}),
                Ok(("https://web.ns.svc:443", "/?timeout=10s")),
            ),
            (json!({"url": "http://hooks.example.com"}), Err("Unparsable URL: http://hooks.example.com")),
            (json!({"url": "https://u:p@h"}), Err("Unparsable URL: https://u:p@h")),
            (json!({"url": "nonsense"}), Err("Unparsable URL: nonsense")),
            (json!({}), Err("webhook configuration must have either service or URL")),
            (
                json!({"url": "https://h", "caBundle": "!"}),
                Err("unable to load root certificates: unable to parse bytes as PEM block"),
            ),
        ] {
            let got = Destination::from_client_config(&config)
                .map(|to| (to.base(), to.target("timeout=10s")))
                .map_err(|cause| cause.to_string());
            let wanted =
                wanted.map(|(base, target)| (base.to_owned(), target.to_owned())).map_err(str::to_owned);
            assert_eq!(got, wanted, "{config}");
        }
    }
}
