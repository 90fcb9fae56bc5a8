//! Room for a service of the host's on a cluster's own port.
//!
//! Nodes open their tunnel on the connection they already trust: same certificate, same name, same address.
//! The API server authenticates such a request and then hands it over.
//!
//! Not here: the tunnel itself (`base-tunnel`).

use async_trait::async_trait;
use tenant_client::UserInfo;

use crate::body::{Request, Response};

#[async_trait]
pub trait Mount: Send + Sync + 'static {
    /// Whether a path is this service's. Asked for every request that names no resource.
    fn claims(&self, path: &str) -> bool;
    /// Answers; whether `user` may is the service's to decide. No flow control, no time limit.
    async fn serve(&self, user: UserInfo, request: Request) -> Response;
}
