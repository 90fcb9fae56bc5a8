//! Discovery documents, made from [`ResourceInfo`]s: built-in ones and those of custom resources alike.
//!
//! Every function takes the resources a cluster serves, built-in ones first (`kinds().resources()`), in the
//! order their groups should appear. Versions of a group are sorted here, the preferred one first.

use std::cmp::Reverse;

use api_machinery::Gvk;
use base64::Engine;
use serde_json::{Value, json};
use sha2::Digest;

use crate::{ResourceInfo, Subresource, kinds};

/// base64 of the first eight bytes of the SHA-256 of `group/version/kind`.
pub fn storage_version_hash(kind: &Gvk) -> String {
    let digest = sha2::Sha256::digest(format!("{}/{}/{}", kind.group, kind.version, kind.kind));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// Groups and their versions, preferred version first; the core group is `""`.
pub fn groups<'a>(resources: &[&'a ResourceInfo]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for resource in resources {
        let (group, version) = (&*resource.gvr.group, &*resource.gvr.version);
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((group, vec![version])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by_cached_key(|version| Reverse(version_priority(version)));
    }
    groups
}

/// Orders versions as clients prefer them: `v2`, `v1`, `v1beta2`, `v1alpha1`, then everything that does not
/// look like one, backwards by name.
pub fn version_priority(version: &str) -> (u8, u64, u64, Reverse<String>) {
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, rest) = rest.split_at(digits);
        let major = major.parse().ok()?;
        if rest.is_empty() {
            return Some((3, major, 0));
        }
        let (stage, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => (2, minor),
            (_, Some(minor)) => (1, minor),
            _ => return None,
        };
        Some((stage, major, minor.parse().ok()?))
    });
    let (stage, major, minor) = parsed.unwrap_or((0, 0, 0));
    (stage, major, minor, Reverse(version.to_owned()))
}

/// `/api`. `server_address` is `host:port` as clients reach this server.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `/apis`
pub fn group_list(resources: &[&ResourceInfo]) -> Value {
    let groups = groups(resources);
    let named = groups.iter().filter(|(name, _)| !name.is_empty());
    let groups: Vec<Value> = named.map(|(name, versions)| group_body(name, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`; `None` for a group nobody serves (the core one has no such document).
pub fn group(resources: &[&ResourceInfo], group: &str) -> Option<Value> {
    let groups = groups(resources);
    let (name, versions) = groups.iter().find(|(name, _)| *name == group && !name.is_empty())?;
    let mut body = group_body(name, versions);
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    Some(body)
}

fn group_body(name: &str, versions: &[&str]) -> Value {
    let all: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "preferredVersion": all.first(), "versions": all})
}

/// `/api/v1` and `/apis/GROUP/VERSION`; `None` for one nobody serves.
pub fn resource_list(resources: &[&ResourceInfo], group: &str, version: &str) -> Option<Value> {
    let mut list: Vec<Value> = Vec::new();
    for info in resources.iter().filter(|info| info.gvr.group == group && info.gvr.version == version) {
        list.push(plain(info));
        list.extend(info.subresources.iter().map(|sub| plain_subresource(info, sub)));
    }
    let group_version = match resources.iter().find(|i| i.gvr.group == group && i.gvr.version == version) {
        Some(info) => info.gvr.api_version(),
        None => return None,
    };
    let mut body = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
    if !group.is_empty() {
        // Upstream's core list is older than the field.
        body["apiVersion"] = "v1".into();
    }
    Some(body)
}

fn plain(info: &ResourceInfo) -> Value {
    let mut body = json!({
        "name": info.gvr.resource,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.gvk.kind,
        "verbs": info.verbs,
    });
    if !info.short_names.is_empty() {
        body["shortNames"] = json!(info.short_names);
    }
    if !info.categories.is_empty() {
        body["categories"] = json!(info.categories);
    }
    if let Some(hash) = info.storage_version_hash() {
        body["storageVersionHash"] = hash.into();
    }
    body
}

fn plain_subresource(info: &ResourceInfo, sub: &Subresource) -> Value {
    let mut body = json!({
        "name": format!("{}/{}", info.gvr.resource, sub.name),
        "singularName": "",
        "namespaced": info.namespaced,
        "kind": sub.gvk.kind,
        "verbs": sub.verbs,
    });
    if is_foreign(info, sub) {
        body["group"] = json!(sub.gvk.group);
        body["version"] = json!(sub.gvk.version);
    }
    body
}

fn is_foreign(info: &ResourceInfo, sub: &Subresource) -> bool {
    sub.gvk.group != info.gvk.group || sub.gvk.version != info.gvk.version
}

/// Which of the two aggregated documents: `/api` shows the core group, `/apis` all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Api,
    Apis,
}

/// The aggregated document; `version` is `v2` or `v2beta1`, whose shapes are the same.
pub fn aggregated(resources: &[&ResourceInfo], root: Root, version: &str) -> Value {
    let groups = groups(resources);
    let shown = groups.iter().filter(|(name, _)| name.is_empty() == (root == Root::Api));
    let items: Vec<Value> = shown
        .map(|(name, versions)| {
            let versions: Vec<Value> =
                versions.iter().map(|version| aggregated_version(resources, name, version)).collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_version(resources: &[&ResourceInfo], group: &str, version: &str) -> Value {
    let here = resources.iter().filter(|info| info.gvr.group == group && info.gvr.version == version);
    let resources: Vec<Value> = here.map(|info| aggregated_resource(info)).collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn aggregated_resource(info: &ResourceInfo) -> Value {
    // Built-in resources leave group and version out where they follow from the place; custom ones do not.
    let says_all = info.message == kinds().custom();
    let response_kind = |gvk: &Gvk, says_all: bool| {
        let (group, version) = if says_all { (&*gvk.group, &*gvk.version) } else { ("", "") };
        json!({"group": group, "version": version, "kind": gvk.kind})
    };
    let mut body = json!({
        "resource": info.gvr.resource,
        "responseKind": response_kind(&info.gvk, says_all),
        "scope": if info.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": info.singular,
        "verbs": info.verbs,
    });
    if !info.short_names.is_empty() {
        body["shortNames"] = json!(info.short_names);
    }
    if !info.categories.is_empty() {
        body["categories"] = json!(info.categories);
    }
    if !info.subresources.is_empty() {
        let subresources = info.subresources.iter().map(|sub| {
            json!({
                "subresource": sub.name,
                "responseKind": response_kind(&sub.gvk, says_all || is_foreign(info, sub)),
                "verbs": sub.verbs,
            })
        });
        body["subresources"] = subresources.collect();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_machinery::Gvr;

    fn built_in() -> Vec<&'static ResourceInfo> {
        kinds().resources().iter().collect()
    }

    fn custom() -> ResourceInfo {
        ResourceInfo {
            gvr: Gvr::new("example.com", "v1beta1", "widgets"),
            gvk: Gvk::new("example.com", "v1beta1", "Widget"),
            list_kind: "".into(),
            singular: "widget".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: vec!["get".into()],
            subresources: Vec::new(),
            collection: "example.com/widgets".into(),
            storage: Gvr::new("example.com", "v1beta1", "widgets"),
            hashed: Some(Gvk::new("example.com", "v1beta1", "Widget")),
            message: kinds().custom(),
        }
    }

    #[test]
    fn documents_say_what_upstreams_do() {
        let all = built_in();
        let core = resource_list(&all, "", "v1").expect("the core group");
        let apps = resource_list(&all, "apps", "v1").expect("apps");
        let autoscaling = group(&all, "autoscaling").expect("autoscaling");
        let aggregated = aggregated(&all, Root::Apis, "v2");
        for (document, pointer, wanted) in [
            (&core, "/groupVersion", json!("v1")),
            (&core, "/apiVersion", Value::Null),
            (&core, "/resources/0/name", json!("bindings")),
            (&core, "/resources/2/storageVersionHash", json!("qFsyl6wFWjQ=")),
            (&apps, "/apiVersion", json!("v1")),
            (&autoscaling, "/preferredVersion/version", json!("v2")),
            (&autoscaling, "/versions/1/groupVersion", json!("autoscaling/v1")),
            (&aggregated, "/items/1/metadata/name", json!("apps")),
            (&aggregated, "/items/1/versions/0/resources/1/responseKind/kind", json!("DaemonSet")),
            (
                &aggregated,
                "/items/1/versions/0/resources/2/subresources/0/responseKind/group",
                json!("autoscaling"),
            ),
        ] {
            assert_eq!(document.pointer(pointer).cloned().unwrap_or_default(), wanted, "{pointer}");
        }
        assert_eq!(group(&all, "nobody"), None);
        assert_eq!(resource_list(&all, "apps", "v2"), None);
    }

    #[test]
    fn custom_resources_come_last_and_say_their_group() {
        let custom = custom();
        let mut all = built_in();
        all.push(&custom);
        let aggregated = aggregated(&all, Root::Apis, "v2");
        let last = aggregated["items"].as_array().and_then(|items| items.last()).expect("groups");
        assert_eq!(last["metadata"]["name"], "example.com");
        let resource = &last["versions"][0]["resources"][0];
        assert_eq!(
            resource["responseKind"],
            json!({"group": "example.com", "version": "v1beta1", "kind": "Widget"})
        );
    }

    #[test]
    fn versions_are_preferred_as_clients_expect() {
        let mut versions =
            vec!["v1alpha1", "foo10", "v1beta2", "v2", "v11", "v1", "v10beta3", "foo1", "v1beta10"];
        versions.sort_by_cached_key(|version| Reverse(version_priority(version)));
        assert_eq!(
            versions,
            ["v11", "v2", "v1", "v10beta3", "v1beta10", "v1beta2", "v1alpha1", "foo1", "foo10"]
        );
    }
}
