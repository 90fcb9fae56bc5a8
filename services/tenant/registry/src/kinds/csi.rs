//! What CSI drivers and the attach/detach machinery keep in the API: CSIDriver, CSINode, CSIStorageCapacity,
//! VolumeAttachment, and VolumeAttributesClass. Rules as in upstream's `pkg/apis/storage/validation`.
//!
//! Volumes, claims and storage classes are in `storage`.

use std::collections::HashSet;

use api_machinery::{Document, Field, Quantity};
use serde_json::{Value, json};

use crate::strategy::Strategy;
use crate::validation::at::{At, Errors};
use crate::validation::{meta, names, selector};

const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 << 10;
const MAX_ATTACHMENT_BYTES: usize = 256 << 10;
const MAX_MESSAGE_BYTES: usize = 1024;
const MAX_NODE_ID_BYTES: usize = 256;
const MAX_DRIVER_NAME_BYTES: usize = 63;

/// The name of a CSI driver where something refers to one.
pub(crate) fn driver_name(at: &At<'_>, errors: &mut Errors) {
    if !at.require(errors) {
        return;
    }
    if at.text().len() > MAX_DRIVER_NAME_BYTES {
        errors.push(at.field.too_long(MAX_DRIVER_NAME_BYTES));
    }
    at.reasons(errors, names::dns_subdomain(&at.text().to_lowercase()));
}

/// Parameters for a provisioner: few and small.
pub(crate) fn parameters(at: &At<'_>, errors: &mut Errors) {
    if at.members().count() > MAX_PARAMETERS {
        errors.push(at.field.too_long(MAX_PARAMETERS));
        return;
    }
    let mut bytes = 0;
    for (key, value) in at.members() {
        if key.is_empty() {
            errors.push(at.field.invalid("", "field can not be empty."));
        }
        bytes += key.len() + value.text().len();
    }
    if bytes > MAX_PARAMETER_BYTES {
        errors.push(at.field.too_long(MAX_PARAMETER_BYTES));
    }
}

/// A provisioner's or driver's name in a class.
pub(crate) fn provisioner(at: &At<'_>, errors: &mut Errors) {
    if at.require(errors) {
        at.reasons(errors, names::qualified_name(&at.text().to_lowercase()));
    }
}

pub(crate) struct Drivers;

impl Strategy for Drivers {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn defaults(&self, new: &mut Document) {
        new.set_default("spec.attachRequired", true);
        new.set_default("spec.podInfoOnMount", false);
        new.set_default("spec.storageCapacity", false);
        new.set_default("spec.fsGroupPolicy", "ReadWriteOnceWithFSType");
        new.set_default("spec.requiresRepublish", false);
        new.set_default("spec.seLinuxMount", false);
        if new.get_array("spec.volumeLifecycleModes").is_empty() {
            new.set("spec.volumeLifecycleModes", json!(["Persistent"]));
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        spec.get("fsGroupPolicy").one_of(&mut errors, &["File", "None", "ReadWriteOnceWithFSType"]);
        let tokens = spec.get("tokenRequests");
        let mut audiences = HashSet::new();
        for token in tokens.items() {
            let audience = token.get("audience");
            if !audiences.insert(audience.text()) {
                errors.push(audience.field.duplicate(audience.text()));
                continue;
            }
            let seconds = token.get("expirationSeconds");
            match seconds.int() {
                Some(given) if given < 600 => {
                    errors.push(seconds.invalid("may not specify a duration less than 10 minutes"));
                }
                Some(given) if given > 1 << 32 => {
                    errors.push(seconds.invalid("may not specify a duration larger than 2^32 seconds"));
                }
                _ => {}
            }
        }
        for mode in spec.get("volumeLifecycleModes").items() {
            mode.one_of(&mut errors, &["Persistent", "Ephemeral"]);
        }
        let period = spec.get("nodeAllocatableUpdatePeriodSeconds");
        if period.int().is_some_and(|seconds| seconds < 10) {
            errors.push(period.invalid("must be greater than or equal to 10 seconds"));
        }
        let secrets = spec.get("serviceAccountTokenInSecrets");
        if secrets.is_set() && tokens.is_empty() {
            errors.push(
                secrets.invalid("serviceAccountTokenInSecrets is set but no tokenRequests are specified"),
            );
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        // Upstream's path of the first misspells the field, and clients see it so.
        for (path, shown) in [
            ("spec.attachRequired", "spec.attachedRequired"),
            ("spec.volumeLifecycleModes", "spec.volumeLifecycleModes"),
        ] {
            errors.extend(meta::immutable(new.get(path), old.get(path), &Field::new(shown)));
        }
        errors
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

pub(crate) struct Nodes;

impl Strategy for Nodes {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let mut seen = HashSet::new();
        for driver in At::top(new, "spec").get("drivers").items() {
            let name = driver.get("name");
            driver_name(&name, &mut errors);
            let id = driver.get("nodeID");
            id.require(&mut errors);
            if id.text().len() > MAX_NODE_ID_BYTES {
                errors.push(id.invalid(format!("must be {MAX_NODE_ID_BYTES} characters or less")));
            }
            driver.get("allocatable").get("count").not_negative(&mut errors);
            if !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
            let mut keys = HashSet::new();
            for key in driver.get("topologyKeys").items() {
                // Upstream names the driver here, not the key's place.
                let field = &driver.field;
                if key.text().is_empty() {
                    errors.push(field.required(""));
                }
                if !keys.insert(key.text()) {
                    errors.push(field.duplicate(key.text()));
                }
                let reasons = names::qualified_name(key.text());
                errors.extend(reasons.into_iter().map(|why| field.invalid(key.text(), why)));
            }
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        // A driver registers once; only how many volumes it can still take changes.
        let fixed = |driver: &Value| {
            let mut driver = driver.clone();
            if let Value::Object(members) = &mut driver {
                members.remove("allocatable");
            }
            driver
        };
        for before in old.get_array("spec.drivers") {
            let same = |one: &&Value| one.get("name") == before.get("name");
            if let Some(now) = new.get_array("spec.drivers").iter().find(same)
                && fixed(now) != fixed(before)
            {
                errors.push(Field::new("spec.drivers").invalid(fixed(now), meta::IMMUTABLE));
            }
        }
        errors
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

pub(crate) struct Capacities;

impl Strategy for Capacities {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let topology = At::top(new, "nodeTopology");
        if topology.is_set() {
            errors.extend(selector::validate(Some(topology.value), &topology.field));
        }
        let class = At::top(new, "storageClassName");
        class.reasons(&mut errors, names::dns_subdomain(class.text()));
        let capacity = At::top(new, "capacity");
        if Quantity::from_json(capacity.value).is_ok_and(|amount| amount.is_negative()) {
            errors.push(capacity.invalid("must be greater than or equal to 0"));
        }
        errors
    }
    /// Only what the driver measured changes, not what it was asked.
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let names = ["nodeTopology", "storageClassName"];
        names
            .iter()
            .filter_map(|name| meta::immutable(new.0.get(*name), old.0.get(*name), &Field::new(name)))
            .collect()
    }
}

pub(crate) struct Attachments;

impl Attachments {
    fn status(new: &Document, errors: &mut Errors) {
        let status = At::top(new, "status");
        let metadata = status.get("attachmentMetadata");
        let bytes: usize = metadata.members().map(|(key, value)| key.len() + value.text().len()).sum();
        if bytes > MAX_ATTACHMENT_BYTES {
            errors.push(metadata.field.too_long(MAX_ATTACHMENT_BYTES));
        }
        for name in ["attachError", "detachError"] {
            let error = status.get(name);
            let message = error.get("message");
            if message.text().len() > MAX_MESSAGE_BYTES {
                // The limit that upstream names is not the one it checks.
                errors.push(message.field.too_long(MAX_ATTACHMENT_BYTES));
            }
            let code = error.get("errorCode");
            if code.int().is_some_and(|code| code < 0) {
                errors.push(code.invalid("must be between 0 and 2147483647, inclusive"));
            }
        }
    }
}

impl Strategy for Attachments {
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        driver_name(&spec.get("attacher"), &mut errors);
        let source = spec.get("source");
        let (inline, volume) = (source.get("inlineVolumeSpec"), source.get("persistentVolumeName"));
        const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        match (inline.is_set(), volume.is_set()) {
            (false, false) => errors.push(source.required(ONE)),
            (true, true) => errors.push(source.forbidden(ONE)),
            (false, true) if volume.is_empty() => {
                errors.push(volume.required("must specify non empty persistentVolumeName"));
            }
            _ => {}
        }
        let node = spec.get("nodeName");
        node.reasons(&mut errors, names::dns_subdomain(node.text()));
        Attachments::status(new, &mut errors);
        if volume.is_set() {
            volume.reasons(&mut errors, names::dns_subdomain(volume.text()));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        errors.extend(meta::immutable(new.get("spec"), old.get("spec"), &Field::new("spec")));
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let mut errors = Vec::new();
        Attachments::status(new, &mut errors);
        errors
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

pub(crate) struct AttributesClasses;

impl Strategy for AttributesClasses {
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        provisioner(&At::top(new, "driverName"), &mut errors);
        let given = At::top(new, "parameters");
        parameters(&given, &mut errors);
        if given.is_empty() {
            errors.push(given.required("must contain at least one key/value pair"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = Vec::new();
        for name in ["driverName", "parameters"] {
            if new.0.get(name) != old.0.get(name) {
                errors.push(Field::new(name).forbidden(format!("updates to {name} are forbidden.")));
            }
        }
        errors.extend(self.validate(new));
        errors
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}
