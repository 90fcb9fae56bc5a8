//! Whether an image is there, and getting it when it isn't.

use std::collections::BTreeMap;

use base64::Engine;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Container, Pod, Secret};
use node_runtime::cri::{AuthConfig, Image};
use node_runtime::{Cri, CriError};
use serde::Deserialize;

use crate::cluster::Cluster;
use crate::pod::PodExt;

/// What is to be done about a container's image.
#[derive(Debug)]
pub enum Presence {
    Here(Box<Image>),
    MustPull,
    /// The reason of the container's waiting, and a message.
    Refused(&'static str, String),
}

/// Looks whether the node has the image, and whether the policy lets it be pulled.
pub async fn presence(cri: &Cri, container: &Container, just_pulled: bool) -> Result<Presence, CriError> {
    let name = container.image.as_deref().unwrap_or_default();
    if !is_reference(name) {
        let message = format!("Failed to apply default image tag \"{name}\": couldn't parse image name");
        return Ok(Presence::Refused("InvalidImageName", message));
    }
    let policy = container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
    if policy == "Always" && !just_pulled {
        return Ok(Presence::MustPull);
    }
    Ok(match cri.image_status(name).await? {
        Some(image) => Presence::Here(Box::new(image)),
        None if policy == "Never" => {
            let message = format!("Container image \"{name}\" is not present with pull policy of Never");
            Presence::Refused("ErrImageNeverPull", message)
        }
        None => Presence::MustPull,
    })
}

/// Fetches an image, with the pod's credentials for its registry if it has some, else with none.
pub async fn pull(cri: &Cri, cluster: &Cluster, pod: &Pod, image: &str) -> Result<String, String> {
    let registry = registry_of(image);
    let mut credentials = Vec::new();
    for secret in pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten()) {
        // A secret that is missing is passed over, as upstream does: the image may be public.
        if let Ok(Some(secret)) = cluster.secret_now(pod.namespace(), &secret.name).await {
            credentials.extend(credentials_for(&secret, &registry));
        }
    }
    let mut failure = String::new();
    let tries: Vec<Option<AuthConfig>> =
        if credentials.is_empty() { vec![None] } else { credentials.into_iter().map(Some).collect() };
    for auth in tries {
        match cri.pull_image(image, auth).await {
            Ok(reference) => return Ok(reference),
            Err(error) => failure = error.message,
        }
    }
    Err(failure)
}

/// Something that could be an image's name: containerd has the last word.
fn is_reference(name: &str) -> bool {
    let path = name.split('@').next().unwrap_or_default();
    let allowed = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/' | b':' | b'[' | b']')
    };
    let repository =
        path.rsplit_once(':').map_or(path, |(left, right)| if right.contains('/') { path } else { left });
    let after_host = repository
        .split_once('/')
        .map_or(repository, |(host, rest)| if host.contains(['.', ':']) { rest } else { repository });
    !path.is_empty()
        && path.bytes().all(allowed)
        && !after_host.bytes().any(|byte| byte.is_ascii_uppercase())
        && !path.starts_with(['-', '/', ':'])
        && !path.ends_with(['/', ':'])
}

/// The host that an image comes from; Docker Hub unless the first part names one.
fn registry_of(image: &str) -> String {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host.to_owned(),
        _ => "docker.io".to_owned(),
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
}

/// The entries of a pull secret that are for this registry.
fn credentials_for(secret: &Secret, registry: &str) -> Vec<AuthConfig> {
    let data = secret.data.as_ref();
    let parsed = match (
        data.and_then(|data| data.get(".dockerconfigjson")),
        data.and_then(|data| data.get(".dockercfg")),
    ) {
        (Some(ByteString(bytes)), _) => {
            serde_json::from_slice::<DockerConfig>(bytes).map(|config| config.auths)
        }
        (None, Some(ByteString(bytes))) => serde_json::from_slice::<BTreeMap<String, DockerAuth>>(bytes),
        (None, None) => return Vec::new(),
    };
    let Ok(auths) = parsed else { return Vec::new() };
    let is_for = |server: &str| {
        let host = server
            .trim_start_matches("https://")
            .trim_start_matches("http://")
            .split('/')
            .next()
            .unwrap_or_default();
        host == registry
            || (registry == "docker.io" && matches!(host, "index.docker.io" | "registry-1.docker.io"))
    };
    auths
        .into_iter()
        .filter(|(server, _)| is_for(server))
        .map(|(server, entry)| {
            let decoded = base64::engine::general_purpose::STANDARD.decode(&entry.auth).unwrap_or_default();
            let decoded = String::from_utf8_lossy(&decoded).into_owned();
            let (user, password) = decoded.split_once(':').unwrap_or(("", ""));
            let or = |own: String, other: &str| if own.is_empty() { other.to_owned() } else { own };
            AuthConfig {
                username: or(entry.username, user),
                password: or(entry.password, password),
                server_address: server,
                ..AuthConfig::default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_registries() {
        for (image, fine, registry) in [
            ("busybox", true, "docker.io"),
            ("library/busybox:1", true, "docker.io"),
            ("roadstead.local/demo:1", true, "roadstead.local"),
            ("localhost:5000/a/b@sha256:00", true, "localhost:5000"),
            ("Registry.Example.org/a", true, "Registry.Example.org"),
            ("Busybox", false, "docker.io"),
            ("", false, "docker.io"),
            ("a b", false, "docker.io"),
            ("demo:", false, "docker.io"),
        ] {
            assert_eq!(is_reference(image), fine, "{image:?}");
            assert_eq!(registry_of(image), registry, "{image:?}");
        }
    }

    #[test]
    fn credentials_are_those_of_the_registry() {
        let config = json!({ "auths": {
            "https://index.docker.io/v1/": { "auth": base64::engine::general_purpose::STANDARD.encode("hub:p1") },
            "registry.example.org": { "username": "u", "password": "p2" },
        } });
        let data =
            BTreeMap::from([(".dockerconfigjson".to_owned(), ByteString(config.to_string().into_bytes()))]);
        let secret = Secret { data: Some(data), ..Secret::default() };
        for (registry, expected) in [
            ("docker.io", vec![("hub", "p1")]),
            ("registry.example.org", vec![("u", "p2")]),
            ("other.example.org", vec![]),
        ] {
            let found = credentials_for(&secret, registry);
            let pairs: Vec<_> =
                found.iter().map(|one| (one.username.as_str(), one.password.as_str())).collect();
            assert_eq!(pairs, expected, "{registry}");
        }
    }
}
