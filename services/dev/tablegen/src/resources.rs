//! Resources, from discovery documents.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::messages::Joined;

/// Where bodies are stored, for what is served in several versions: the version upstream's discovery hash
/// names, or a newer one with the same shape. Everything else is stored as the first version discovery lists.
const STORAGE: [(&str, &str, &str); 2] =
    [("events.k8s.io", "events", "/v1"), ("autoscaling", "horizontalpodautoscalers", "autoscaling/v2")];

/// What upstream hashes where that is not the version bodies are stored in here.
const HASHED: [(&str, &str); 6] = [
    ("mutatingadmissionpolicies", "admissionregistration.k8s.io/v1beta1"),
    ("mutatingadmissionpolicybindings", "admissionregistration.k8s.io/v1beta1"),
    ("customresourcedefinitions", "apiextensions.k8s.io/v1beta1"),
    ("devicetaintrules", "resource.k8s.io/v1alpha3"),
    ("clustertrustbundles", "certificates.k8s.io/v1beta1"),
    ("leasecandidates", "coordination.k8s.io/v1beta1"),
];

pub fn text(dir: &Path, joined: &Joined) -> Result<String> {
    let mut out = String::from(
        "# Written by services/dev/tablegen. PLURAL KIND GROUP/VERSION MESSAGE n|c key=value..., then subresources: NAME KIND GROUP/VERSION VERBS.\n",
    );
    let groups = read(&dir.join("apis.json"))?;
    let mut versions: Vec<(String, String)> = vec![(String::new(), "v1".to_owned())];
    for group in groups["groups"].as_array().context("apis.json has no groups")? {
        for version in group["versions"].as_array().context("a group has no versions")? {
            versions.push((str_of(group, "name")?, str_of(version, "version")?));
        }
    }
    let mut stored: Vec<(String, String, String)> = Vec::new();
    for (group, version) in &versions {
        let file = match group.as_str() {
            "" => "api__v1.json".to_owned(),
            group => format!("apis__{group}__{version}.json"),
        };
        let list = read(&dir.join(file))?;
        let resources = list["resources"].as_array().context("no resources")?;
        for resource in resources.iter().filter(|one| !one["name"].as_str().unwrap_or_default().contains('/'))
        {
            let name = str_of(resource, "name")?;
            let kind = str_of(resource, "kind")?;
            let gvk = format!("{group}/{version}/{kind}");
            let Some(message) = joined.of_kind(&gvk) else { bail!("no message for {gvk}") };
            let scope = if resource["namespaced"] == true { "n" } else { "c" };
            out.push_str(&format!("{name} {kind} {group}/{version} {message} {scope}"));
            let mut say = |key: &str, value: &str| {
                if !value.is_empty() {
                    out.push_str(&format!(" {key}={value}"));
                }
            };
            say("singular", &str_of(resource, "singularName")?);
            say("verbs", &words(&resource["verbs"]));
            say("short", &words(&resource["shortNames"]));
            say("categories", &words(&resource["categories"]));
            let named = STORAGE.iter().find(|(g, r, _)| g == group && *r == name);
            let first = stored.iter().find(|(g, r, _)| g == group && *r == name);
            let at = named
                .map(|(_, _, at)| (*at).to_owned())
                .or_else(|| first.map(|(_, _, at)| at.clone()))
                .unwrap_or_else(|| format!("{group}/{version}"));
            stored.push((group.clone(), name.clone(), at.clone()));
            if at != format!("{group}/{version}") {
                say("storage", &at);
            }
            if resource["storageVersionHash"].is_string() {
                let other = HASHED.iter().find(|(hashed, _)| *hashed == name).map(|(_, at)| *at);
                say("hash", other.unwrap_or(&at));
            }
            out.push('\n');
            for sub in resources {
                let full = str_of(sub, "name")?;
                let Some((_, short)) = full.split_once('/').filter(|(parent, _)| *parent == name) else {
                    continue;
                };
                let own = |key: &str, other: &str| sub[key].as_str().unwrap_or(other).to_owned();
                // A version of its own says that the group is its own too, be it the core one.
                let at = match sub["version"].as_str() {
                    Some(version) => format!("{}/{version}", own("group", "")),
                    None => format!("{group}/{version}"),
                };
                out.push_str(&format!(" {short} {} {at} {}\n", str_of(sub, "kind")?, words(&sub["verbs"])));
            }
        }
    }
    Ok(out)
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

fn str_of(value: &Value, key: &str) -> Result<String> {
    value[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {value}"))
}

fn words(list: &Value) -> String {
    let words: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    words.join(",")
}
