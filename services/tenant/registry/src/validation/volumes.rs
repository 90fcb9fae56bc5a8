//! Volumes, and where containers mount them.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors};
use super::{containers, names};
use crate::kinds::storage::claim_spec;

const DOWNWARD_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Checks the volumes and gives their names.
pub(crate) fn validate<'a>(volumes: &At<'a>, errors: &mut Errors) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    for volume in volumes.items() {
        let name = volume.get("name");
        if name.require(errors) {
            name.reasons(errors, names::dns_label(name.text()));
            if !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
        }
        source(&volume, errors);
    }
    seen
}

fn source(volume: &At<'_>, errors: &mut Errors) {
    let members = volume.value.as_object().into_iter().flatten();
    let kinds: Vec<&str> = members
        .filter(|(name, value)| *name != "name" && !value.is_null())
        .map(|(name, _)| name.as_str())
        .collect();
    let kind = match &kinds[..] {
        [] => {
            errors.push(volume.required("must specify a volume type"));
            return;
        }
        [kind] => *kind,
        [first, rest @ ..] => {
            for kind in rest {
                errors.push(volume.get(kind).forbidden("may not specify more than 1 volume type"));
            }
            first
        }
    };
    let at = volume.get(kind);
    match kind {
        "emptyDir" => {
            containers::amount(&at.get("sizeLimit"), errors);
        }
        "hostPath" => {
            let path = at.get("path");
            if path.require(errors) {
                no_back_steps(&path, errors);
            }
            let kinds = [
                "",
                "BlockDevice",
                "CharDevice",
                "Directory",
                "DirectoryOrCreate",
                "File",
                "FileOrCreate",
                "Socket",
            ];
            at.get("type").one_of(errors, &kinds);
        }
        "secret" => {
            at.get("secretName").require(errors);
            mode(&at.get("defaultMode"), errors);
            key_paths(&at.get("items"), errors);
        }
        "configMap" => {
            at.get("name").require(errors);
            mode(&at.get("defaultMode"), errors);
            key_paths(&at.get("items"), errors);
        }
        "downwardAPI" => {
            mode(&at.get("defaultMode"), errors);
            downward_items(&at.get("items"), errors);
        }
        "projected" => projected(&at, errors),
        "persistentVolumeClaim" => {
            at.get("claimName").require(errors);
        }
        "nfs" => {
            at.get("server").require(errors);
            let path = at.get("path");
            if path.require(errors) && !path.text().starts_with('/') {
                errors.push(path.invalid("must be an absolute path"));
            }
        }
        "csi" => {
            at.get("driver").require(errors);
        }
        "ephemeral" => {
            let template = at.get("volumeClaimTemplate");
            if !template.is_set() {
                errors.push(template.required(""));
            } else {
                claim_spec(&template.get("spec"), errors);
            }
        }
        "image" => {
            at.get("reference").require(errors);
            at.get("pullPolicy").one_of(errors, &["Always", "IfNotPresent", "Never"]);
        }
        _ => {}
    }
}

fn projected(at: &At<'_>, errors: &mut Errors) {
    mode(&at.get("defaultMode"), errors);
    for source in at.get("sources").items() {
        let kinds = [
            "clusterTrustBundle",
            "configMap",
            "downwardAPI",
            "podCertificate",
            "secret",
            "serviceAccountToken",
        ];
        let set: Vec<At<'_>> = kinds.iter().map(|kind| source.get(kind)).filter(At::is_set).collect();
        if set.len() > 1 {
            errors.extend(
                set[1..]
                    .iter()
                    .map(|one| one.forbidden("may not specify more than 1 volume type per source")),
            );
        }
        for kind in ["secret", "configMap"] {
            let one = source.get(kind);
            if one.is_set() {
                one.get("name").require(errors);
                key_paths(&one.get("items"), errors);
            }
        }
        downward_items(&source.get("downwardAPI").get("items"), errors);
        let token = source.get("serviceAccountToken");
        if token.is_set() {
            let seconds = token.get("expirationSeconds");
            if seconds.int().is_some_and(|seconds| seconds < 600) {
                errors.push(seconds.invalid("may not specify a duration less than 10 minutes"));
            }
            if seconds.int().is_some_and(|seconds| seconds > 1 << 32) {
                errors.push(seconds.invalid("may not specify a duration larger than 2^32 seconds"));
            }
            let path = token.get("path");
            if path.require(errors) {
                relative_path(&path, errors);
            }
        }
    }
}

fn mode(at: &At<'_>, errors: &mut Errors) {
    if at.int().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        errors.push(at.invalid("must be a number between 0 and 0777 (octal), both inclusive"));
    }
}

fn key_paths(items: &At<'_>, errors: &mut Errors) {
    for item in items.items() {
        item.get("key").require(errors);
        let path = item.get("path");
        if path.require(errors) {
            relative_path(&path, errors);
        }
        mode(&item.get("mode"), errors);
    }
}

fn downward_items(items: &At<'_>, errors: &mut Errors) {
    for item in items.items() {
        let path = item.get("path");
        if path.require(errors) {
            relative_path(&path, errors);
        }
        let (field, resource) = (item.get("fieldRef"), item.get("resourceFieldRef"));
        match (field.is_set(), resource.is_set()) {
            (true, true) => {
                errors.push(item.invalid("fieldRef and resourceFieldRef can not be specified simultaneously"))
            }
            (false, false) => errors.push(item.required("one of fieldRef and resourceFieldRef is required")),
            (true, false) => containers::field_ref(&field, errors, &DOWNWARD_FIELDS),
            (false, true) => containers::resource_field(&resource, true, errors),
        }
        mode(&item.get("mode"), errors);
    }
}

fn no_back_steps(path: &At<'_>, errors: &mut Errors) {
    if path.text().split('/').any(|part| part == "..") {
        errors.push(path.invalid("must not contain '..'"));
    }
}

pub(crate) fn relative_path(path: &At<'_>, errors: &mut Errors) {
    if path.text().starts_with('/') {
        errors.push(path.invalid("must be a relative path"));
    }
    no_back_steps(path, errors);
}

pub(crate) fn mounts(container: &At<'_>, known: &HashSet<&str>, errors: &mut Errors) {
    let mut paths = HashSet::new();
    for mount in container.get("volumeMounts").items() {
        let name = mount.get("name");
        if name.require(errors) && !known.contains(name.text()) {
            errors.push(name.field.not_found(name.text()));
        }
        let path = mount.get("mountPath");
        if path.require(errors) && !paths.insert(path.text()) {
            errors.push(path.invalid("must be unique"));
        }
        let (sub, expression) = (mount.get("subPath"), mount.get("subPathExpr"));
        if !sub.is_empty() {
            relative_path(&sub, errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                errors.push(expression.invalid("subPathExpr and subPath are mutually exclusive"));
            }
            relative_path(&expression, errors);
        }
        let propagation = mount.get("mountPropagation");
        propagation.one_of(errors, &["Bidirectional", "HostToContainer", "None"]);
        let privileged = container.get("securityContext").get("privileged").value == &Value::Bool(true);
        if propagation.text() == "Bidirectional" && !privileged {
            errors.push(
                propagation
                    .forbidden("Bidirectional mount propagation is available only to privileged containers"),
            );
        }
        mount.get("recursiveReadOnly").one_of(errors, &["Disabled", "Enabled", "IfPossible"]);
    }
    for device in container.get("volumeDevices").items() {
        let name = device.get("name");
        if name.require(errors) && !known.contains(name.text()) {
            errors.push(name.field.not_found(name.text()));
        }
        let path = device.get("devicePath");
        if path.require(errors) {
            no_back_steps(&path, errors);
        }
    }
}
