//! A cluster's API under the manager's address, for whoever is signed in.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, Uri, Version};
use axum::response::Response;
use fleet_model::{Cluster, ClusterState, Problem};
use fleet_rpc::IssueTokenRequest;
use futures::StreamExt;

use super::access::InCluster;
use super::joining::serves;
use super::{Answer, Shared};
use crate::problem::Failure;
use crate::proxy::{Granted, LIFETIME_SECONDS, LinkError, Person, Target, request_headers, response_headers};
use crate::{State, auth, replicas};

/// How long a full manager has to be left alone.
const RETRY: Duration = Duration::from_secs(1);

#[utoipa::path(get, path = "/api/v1/organizations/{organization}/clusters/{cluster}/proxy/{path}", operation_id = "proxy",
    description = "The cluster's Kubernetes API as the signed-in person, in every method: developers and above as masters, viewers with the ClusterRole `view`. Bodies stream both ways, so watches and followed logs work; upgrades do not.",
    params(("organization" = String, Path), ("cluster" = String, Path), ("path" = String, Path, description = "Path and query below the API server's address")),
    responses((status = 200, description = "What the cluster answers, with its own status.", content_type = "application/json", body = Object),
        (status = "default", description = "What the cluster answers.", content_type = "application/json", body = Object),
        (status = 401, body = Problem), (status = 404, body = Problem), (status = 429, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn forward(state: Shared, at: InCluster, request: Request) -> Answer<Response> {
    let permit = state.proxied.clone().try_acquire_owned().map_err(|_| Failure::TooMany(RETRY))?;
    let person = Person::new(at.cluster.id, at.caller.name(), at.role);
    let granted = grant(&state, &at.cluster, person.clone()).await?;
    let target = Target {
        cluster: at.cluster.id,
        addresses: state.routes.addresses(&at.cluster.server_name),
        server_name: at.cluster.server_name.clone(),
        ca_pem: granted.ca_pem,
    };
    let uri = below(request.uri(), &at.cluster.server_name).ok_or(Failure::NotFound("path"))?;
    let (mut parts, body) = request.into_parts();
    parts.headers = request_headers(&parts.headers, &granted.token);
    parts.uri = uri;
    parts.version = Version::HTTP_2;
    parts.extensions.clear();
    let answer = state.links.send(&target, Request::from_parts(parts, body)).await.map_err(unreachable)?;
    let (mut parts, body) = answer.into_parts();
    if parts.status == StatusCode::UNAUTHORIZED {
        state.tokens.forget(&person);
    }
    parts.headers = response_headers(&parts.headers);
    parts.extensions.clear();
    // A watch lasts as long as the cluster lets it; whoever was let in has to stay who they are.
    let body = Body::new(body).into_data_stream().take_until(ended(state.0.clone(), at));
    let body = body.map(move |piece| {
        let _held = &permit;
        piece
    });
    Ok(Response::from_parts(parts, Body::from_stream(body)))
}

/// A token for `person`, of this cluster's cell.
async fn grant(state: &State, cluster: &Cluster, person: Person) -> Answer<Granted> {
    if cluster.state == ClusterState::Deleting {
        return Err(Failure::Unavailable("the cluster is being deleted".to_owned()));
    }
    if let Some(granted) = state.tokens.find(&person, state.now()) {
        return Ok(granted);
    }
    serves(cluster)?;
    let request = IssueTokenRequest {
        cluster_id: cluster.id.to_string(),
        user: person.user.clone(),
        groups: vec![person.group.to_owned()],
        lifetime_seconds: LIFETIME_SECONDS,
    };
    let issued = replicas::ask(state, cluster, |mut cell| {
        let request = request.clone();
        async move { cell.issue_token(request).await }
    })
    .await?;
    let granted =
        Granted { token: issued.token, ca_pem: issued.ca_pem, expires_at_seconds: issued.expires_at_seconds };
    state.tokens.keep(person, granted.clone());
    Ok(granted)
}

/// The part of the path below `…/proxy/`, byte for byte, under the cluster's own name.
fn below(uri: &Uri, server_name: &str) -> Option<Uri> {
    // "" api v1 organizations {organization} clusters {cluster} proxy {path}
    let rest = uri.path().splitn(9, '/').nth(8)?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("https://{server_name}/{rest}{query}").parse().ok()
}

/// Resolves when the caller may not see the cluster any more.
async fn ended(state: Arc<State>, at: InCluster) {
    loop {
        tokio::time::sleep(auth::RECHECK_INTERVAL).await;
        // What cannot be asked just now stays as it was.
        let Ok(role) = auth::role_now(&state, &at.caller, &at.organization.name).await else { continue };
        if role.is_none_or(|role| role < at.role) {
            return;
        }
    }
}

fn unreachable(error: LinkError) -> Failure {
    tracing::warn!(error = &error as &dyn std::error::Error, "cluster not reached");
    Failure::Unavailable("the cluster does not answer; try again".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_on_byte_for_byte() {
        let front = "https://manager/api/v1/organizations/acme/clusters/demo/proxy";
        for (path, wanted) in [
            ("/api/v1/pods?watch=true&x=%2F", Some("https://c/api/v1/pods?watch=true&x=%2F")),
            ("/api/v1/namespaces/a%2Fb", Some("https://c/api/v1/namespaces/a%2Fb")),
            ("/a/../b", Some("https://c/a/../b")),
            ("//evil.example/x", Some("https://c//evil.example/x")),
            ("/", Some("https://c/")),
            ("", None),
        ] {
            let uri: Uri = format!("{front}{path}").parse().unwrap();
            let found = below(&uri, "c").map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), wanted, "{path}");
        }
    }
}
