//! Aggregated API servers: groups that something else serves, behind this server's address.
//!
//! An APIService names a group, a version and the Service behind it. Requests for it were authenticated and
//! authorized here; they go on with the user's name in headers, which the server behind believes because of the
//! certificate that this one shows (the cluster's front proxy). Nothing here is asked for groups that are built
//! in, and a server that does not answer is left out of discovery.
//!
//! Not here: whether it is available, which `availability` finds out; how it is reached (`tenant-outbound`).
//! Facts: upstream's `kube-aggregator/pkg/apiserver/handler_proxy.go`, `handler_discovery.go`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api_kinds::{ResourceInfo, Subresource, kinds};
use api_machinery::{Gvk, Gvr, Object, Status};
use base64::Engine;
use bytes::Bytes;
use http::header::{ACCEPT, HOST, LOCATION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use store_mvcc::Key;
use tenant_client::UserInfo;
use tenant_outbound::{Destination, Limits, Place, Trust};
use tenant_registry::object;

use crate::body::{Response, empty, erase};
use crate::pipeline::{Call, Inbound};
use crate::plane::ControlPlane;
use crate::{kubelet, proxy, streams};

pub const COLLECTION: &str = "apiservices";
/// Reaching a server, TLS included.
const CONNECT: Duration = Duration::from_secs(20);
/// Discovery asks all servers behind this one, and must not wait long for one that is dead.
const DISCOVERY: Limits = Limits { timeout: Duration::from_secs(5), response_bytes: 8 << 20 };
/// What servers said of themselves is asked again after this.
const FRESH: Duration = Duration::from_secs(15);

/// A group and version that is served elsewhere.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    pub name: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub service: String,
    pub port: u16,
    trust: Trust,
    /// `Available` is not false.
    pub available: bool,
}

/// What aggregated servers said they serve, and when.
#[derive(Default)]
pub struct Remembered(Mutex<Option<Said>>);

/// The moment, the revision of the APIServices that were asked, and their answers together.
type Said = (Duration, u64, Arc<Vec<ResourceInfo>>);

impl Elsewhere {
    /// `None` for what is served here.
    pub fn of(object: &Object) -> Option<Elsewhere> {
        let spec = object.field("spec")?;
        let service = spec.get("service").filter(|service| service.is_object())?;
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let trust = if spec["insecureSkipTLSVerify"] == true {
            Trust::Anyone
        } else {
            let pem = base64::engine::general_purpose::STANDARD.decode(text(&spec, "caBundle")).ok();
            match pem.and_then(|pem| String::from_utf8(pem).ok()).filter(|pem| !pem.is_empty()) {
                Some(pem) => Trust::Ca(pem.into()),
                None => Trust::System,
            }
        };
        let conditions = object.field("status.conditions").unwrap_or_default();
        let conditions = conditions.as_array().map_or(&[][..], Vec::as_slice);
        let available = conditions.iter().any(|one| one["type"] == "Available" && one["status"] == "True");
        Some(Elsewhere {
            name: object.header.name.to_string(),
            group: text(&spec, "group"),
            version: text(&spec, "version"),
            namespace: text(service, "namespace"),
            service: text(service, "name"),
            port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            trust,
            available,
        })
    }

    pub fn destination(&self, plane: &ControlPlane) -> Result<Destination, String> {
        let place = Place::Service {
            namespace: self.namespace.clone(),
            name: self.service.clone(),
            port: self.port,
            path: "/".to_owned(),
        };
        let identity = match plane.front_proxy.get() {
            Some(identity) => identity.clone(),
            None => {
                let made = plane.pki().front_proxy_client().map_err(|cause| cause.to_string())?;
                plane.front_proxy.get_or_init(|| Arc::new(made)).clone()
            }
        };
        Ok(Destination { place, trust: self.trust.clone(), identity: Some(identity) })
    }

    /// `/apis/<group>/<version>`
    pub fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }
}

/// All that is served elsewhere.
pub fn all(plane: &ControlPlane) -> Vec<Elsewhere> {
    let snapshot = plane.registry().group().space().snapshot(COLLECTION);
    let objects = snapshot.range("", None).filter_map(|entry| object(entry).ok());
    objects.filter_map(|object| Elsewhere::of(&object)).collect()
}

/// Who serves this path, if it is not this server.
pub fn responsible(plane: &ControlPlane, path: &str) -> Option<Elsewhere> {
    let mut parts = path.strip_prefix("/apis/")?.split('/');
    let (group, version) = (parts.next()?, parts.next().filter(|version| !version.is_empty())?);
    // Nearly all requests end here.
    if is_built_in(group) {
        return None;
    }
    let key = Key::new(COLLECTION, format!("{version}.{group}"));
    let entry = plane.registry().group().space().get(&key)?;
    Elsewhere::of(&*object(&entry).ok()?)
}

fn is_built_in(group: &str) -> bool {
    static GROUPS: LazyLock<HashSet<&str>> =
        LazyLock::new(|| kinds().resources().iter().map(|one| &*one.gvr.group).collect());
    GROUPS.contains(group)
}

/// Passes a request on and the answer back.
pub async fn answer(call: &Call, to: &Elsewhere, inbound: Inbound) -> Result<Response, Status> {
    if !to.available {
        return Err(Status::unavailable("service unavailable"));
    }
    let unreachable = |cause: String| Status::unavailable(format!("error trying to reach service: {cause}"));
    let destination = to.destination(&call.plane).map_err(unreachable)?;
    let connection = call
        .plane
        .outbound()
        .connect(&destination, CONNECT)
        .await
        .map_err(|cause| unreachable(cause.to_string()))?;
    let authority = connection.authority.clone();
    let mut sender = kubelet::handshake(&call.plane, connection.stream).await.map_err(unreachable)?;
    let upgrading = call.headers.contains_key(UPGRADE);
    let mut headers = call.headers.clone();
    streams::strip_credentials(&mut headers);
    if !upgrading {
        proxy::strip_hop_by_hop(&mut headers);
    }
    headers.remove(http::header::CONTENT_LENGTH);
    identify(&mut headers, &call.user);
    if let Ok(host) = HeaderValue::from_str(&authority) {
        headers.insert(HOST, host);
    }
    let target = match call.uri.query() {
        Some(query) => format!("{}?{query}", call.uri.path()),
        None => call.uri.path().to_owned(),
    };
    let body = if upgrading { empty() } else { inbound.body };
    let request = streams::build(call.method.clone(), &target, headers, body)?;
    let response = sender.send_request(request).await.map_err(|cause| unreachable(cause.to_string()))?;
    let response = response.map(erase);
    if upgrading && response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return streams::join(call, inbound.upgrade, response);
    }
    let (mut parts, body) = response.into_parts();
    proxy::strip_hop_by_hop(&mut parts.headers);
    // Whatever the server calls itself, clients know it under this address.
    let foreign = parts.headers.get(LOCATION).is_some_and(|to| !to.as_bytes().starts_with(b"/"));
    if foreign {
        parts.headers.remove(LOCATION);
    }
    Ok(http::Response::from_parts(parts, body))
}

/// Who asks, in the headers that servers behind a front proxy read.
fn identify(headers: &mut HeaderMap, user: &UserInfo) {
    let mut add = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    for group in &user.groups {
        add("x-remote-group", group);
    }
    for (key, values) in &user.extra {
        let name = format!(
            "x-remote-extra-{}",
            crate::query::encode(&key.to_ascii_lowercase()).to_ascii_lowercase()
        );
        for value in values {
            add(&name, value);
        }
    }
}

/// Resources of servers that are available, as discovery shows them. Empty, and free, without any.
pub async fn resources(plane: &Arc<ControlPlane>) -> Arc<Vec<ResourceInfo>> {
    let services: Vec<Elsewhere> =
        all(plane).into_iter().filter(|one| one.available && !is_built_in(&one.group)).collect();
    if services.is_empty() {
        return Arc::default();
    }
    let now = plane.clock.monotonic();
    let which = services.iter().fold(0u64, |sum, one| {
        one.name
            .bytes()
            .fold(sum.rotate_left(5) ^ 0x9e37, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    });
    if let Some((at, of, found)) = &*plane.aggregated.0.lock()
        && *of == which
        && now.saturating_sub(*at) < FRESH
    {
        return found.clone();
    }
    let asked = services.iter().map(|service| async move {
        match discover(plane, service).await {
            Ok(found) => found,
            Err(why) => {
                tracing::info!(service = %service.name, why, "an aggregated API is left out of discovery");
                Vec::new()
            }
        }
    });
    let found = Arc::new(futures::future::join_all(asked).await.concat());
    *plane.aggregated.0.lock() = Some((now, which, found.clone()));
    found
}

/// Asks one server for a path of its own, as the API server itself.
pub async fn get(plane: &ControlPlane, service: &Elsewhere, path: &str) -> Result<Bytes, String> {
    let destination = service.destination(plane)?;
    let mut request = http::Request::get(path)
        .header(ACCEPT, "application/json")
        .body(Bytes::new())
        .map_err(|cause| cause.to_string())?;
    let own = UserInfo {
        name: "system:kube-aggregator".to_owned(),
        groups: vec![UserInfo::MASTERS.to_owned()],
        ..UserInfo::default()
    };
    identify(request.headers_mut(), &own);
    let answer = plane.outbound().call(&destination, request, DISCOVERY).await;
    let answer =
        answer.map_err(|cause| format!("Get {:?}: {cause}", format!("{}{path}", destination.base())))?;
    if !answer.status().is_success() {
        return Err(format!("bad status from {}{path}: {}", destination.base(), answer.status().as_u16()));
    }
    Ok(answer.into_body())
}

async fn discover(plane: &ControlPlane, service: &Elsewhere) -> Result<Vec<ResourceInfo>, String> {
    let body = get(plane, service, &service.path()).await?;
    let list: Value = serde_json::from_slice(&body).map_err(|cause| cause.to_string())?;
    Ok(read(&list, &service.group, &service.version))
}

/// An `APIResourceList` as resources. What is not understood is left out.
fn read(list: &Value, group: &str, version: &str) -> Vec<ResourceInfo> {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value, name: &str| -> Vec<Cow<'static, str>> {
        let all = value[name].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(|text| Cow::Owned(text.to_owned())).collect()
    };
    let gvk = |one: &Value| Gvk {
        group: one["group"].as_str().filter(|own| !own.is_empty()).unwrap_or(group).to_owned().into(),
        version: one["version"].as_str().filter(|own| !own.is_empty()).unwrap_or(version).to_owned().into(),
        kind: text(one, "kind").into(),
    };
    let mut found: Vec<ResourceInfo> = Vec::new();
    for one in list["resources"].as_array().into_iter().flatten() {
        let name = text(one, "name");
        if let Some((of, part)) = name.split_once('/') {
            if let Some(parent) = found.iter_mut().find(|parent| parent.gvr.resource == of) {
                let subresource =
                    Subresource { name: part.to_owned().into(), gvk: gvk(one), verbs: texts(one, "verbs") };
                parent.subresources.push(subresource);
            }
            continue;
        }
        let gvr = Gvr {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            resource: name.clone().into(),
        };
        found.push(ResourceInfo {
            singular: text(one, "singularName").into(),
            short_names: texts(one, "shortNames"),
            categories: texts(one, "categories"),
            list_kind: format!("{}List", text(one, "kind")).into(),
            namespaced: one["namespaced"] == true,
            verbs: texts(one, "verbs"),
            subresources: Vec::new(),
            collection: format!("{group}/{name}").into(),
            storage: gvr.clone(),
            hashed: None,
            message: kinds().custom(),
            gvk: gvk(one),
            gvr,
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_tells_what_it_has() {
        let list = json!({"resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get", "list"], "shortNames": ["fl"]},
            {"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "lost/status", "namespaced": true, "kind": "Lost", "verbs": ["get"]},
            {"name": "scales", "namespaced": false, "kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": []},
        ]});
        let shown: Vec<String> = read(&list, "wardle.example.com", "v1alpha1")
            .iter()
            .map(|one| {
                format!(
                    "{} {} {} {} {:?}",
                    one.gvr,
                    one.gvk,
                    one.namespaced,
                    one.subresources.len(),
                    one.short_names
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "wardle.example.com/v1alpha1/flunders wardle.example.com/v1alpha1, Kind=Flunder true 1 [\"fl\"]",
                "wardle.example.com/v1alpha1/scales autoscaling/v1, Kind=Scale false 0 []",
            ]
        );
    }

    #[test]
    fn the_user_travels_in_headers_and_nobody_elses_does() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("root"));
        headers.insert("authorization", HeaderValue::from_static("Bearer x"));
        streams::strip_credentials(&mut headers);
        let mut user = UserInfo::component("ann");
        user.uid = "7".to_owned();
        user.extra.insert("Example.com/Scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()]);
        identify(&mut headers, &user);
        let mut shown: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        shown.sort();
        assert_eq!(
            shown,
            [
                "x-remote-extra-example.com%2fscopes: a",
                "x-remote-extra-example.com%2fscopes: b",
                "x-remote-group: system:authenticated",
                "x-remote-uid: 7",
                "x-remote-user: ann",
            ]
        );
    }
}
