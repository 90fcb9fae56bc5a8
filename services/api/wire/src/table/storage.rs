//! Storage classes, drivers and attachments; storage versions of the API itself.

use serde_json::{Value, json};

use super::row::{NONE, UNSET, first_few, join, or, plain, str_at};
use super::{AGE, NAME, Printer, boolean, naming, number, text};

pub(super) fn printer(plural: &str) -> Option<&'static Printer> {
    Some(match plural {
        "storageclasses" => &CLASSES,
        "volumeattributesclasses" => &ATTRIBUTES,
        "volumeattachments" => &ATTACHMENTS,
        "csinodes" => &NODES,
        "csidrivers" => &DRIVERS,
        "csistoragecapacities" => &CAPACITIES,
        "storageversionmigrations" => &MIGRATIONS,
        "storageversions" => &VERSIONS,
        _ => return None,
    })
}

const CLASSES: Printer = Printer {
    columns: &[
        NAME,
        text("Provisioner", "Who makes its volumes."),
        text("ReclaimPolicy", "What becomes of a volume when its claim goes."),
        text("VolumeBindingMode", "When volumes are made."),
        text("AllowVolumeExpansion", "Whether volumes can grow."),
        AGE,
    ],
    cells: |row| {
        let mut name = row.object.header.name.to_string();
        let is_default = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|key| row.annotation(key) == Some("true"));
        if is_default {
            name.push_str(" (default)");
        }
        vec![
            name.into(),
            row.str("provisioner").into(),
            row.at("reclaimPolicy").as_str().unwrap_or("Delete").into(),
            row.at("volumeBindingMode").as_str().unwrap_or("Immediate").into(),
            row.flag("allowVolumeExpansion").into(),
            row.age(),
        ]
    },
};

const ATTRIBUTES: Printer = Printer {
    columns: &[NAME, text("DriverName", "Whose volumes it is for."), AGE],
    cells: |row| vec![row.name(), row.str("driverName").into(), row.age()],
};

const ATTACHMENTS: Printer = Printer {
    columns: &[
        NAME,
        naming("Attacher", "Who attaches it.", 0),
        text("PV", "Which volume."),
        text("Node", "To which node."),
        boolean("Attached", "Whether it is done."),
        AGE,
    ],
    cells: |row| {
        vec![
            row.name(),
            row.str("spec.attacher").into(),
            row.str("spec.source.persistentVolumeName").into(),
            row.str("spec.nodeName").into(),
            row.flag("status.attached").into(),
            row.age(),
        ]
    },
};

const NODES: Printer = Printer {
    columns: &[NAME, number("Drivers", "Drivers registered on the node."), AGE],
    cells: |row| vec![row.name(), row.list("spec.drivers").len().into(), row.age()],
};

const DRIVERS: Printer = Printer {
    columns: &[
        NAME,
        boolean("AttachRequired", "Whether volumes are attached before they are mounted."),
        boolean("PodInfoOnMount", "Whether the driver is told about the pod."),
        boolean("StorageCapacity", "Whether capacity is looked at when scheduling."),
        text("TokenRequests", "Audiences of the tokens it gets."),
        boolean("RequiresRepublish", "Whether it is called again and again."),
        text("Modes", "How long its volumes live."),
        AGE,
    ],
    cells: |row| {
        let audiences = match row.at("spec.tokenRequests") {
            Value::Array(requests) => join(requests.iter().map(|request| str_at(request, "audience"))),
            _ => UNSET.to_owned(),
        };
        let modes = join(row.list("spec.volumeLifecycleModes").iter().filter_map(Value::as_str));
        vec![
            row.name(),
            row.at("spec.attachRequired").as_bool().unwrap_or(true).into(),
            row.flag("spec.podInfoOnMount").into(),
            row.flag("spec.storageCapacity").into(),
            audiences.into(),
            row.flag("spec.requiresRepublish").into(),
            or(&modes, NONE).into(),
            row.age(),
        ]
    },
};

const CAPACITIES: Printer = Printer {
    columns: &[
        NAME,
        text("StorageClassName", "Which class it is about."),
        text("Capacity", "How much is left."),
    ],
    cells: |row| {
        let capacity = row.at("capacity");
        let capacity = if capacity.is_null() { UNSET.to_owned() } else { plain(capacity) };
        vec![row.name(), row.str("storageClassName").into(), capacity.into()]
    },
};

const MIGRATIONS: Printer = Printer {
    columns: &[
        text("Name", "Name of the migration."),
        text("Resource", "What is rewritten."),
        text("Status", "How far it is."),
    ],
    cells: |row| {
        let mut status = "Unknown";
        for condition in row.list("status.conditions").iter().filter(|one| one["status"] == "True") {
            if let typ @ ("Running" | "Failed" | "Succeeded") = str_at(condition, "type") {
                status = typ;
            }
        }
        let resource = match row.str("spec.resource.group") {
            "" => row.str("spec.resource.resource").to_owned(),
            group => format!("{}.{group}", row.str("spec.resource.resource")),
        };
        vec![row.name(), resource.into(), status.into()]
    },
};

const VERSIONS: Printer = Printer {
    columns: &[
        NAME,
        text("CommonEncodingVersion", "The version all servers agree on."),
        text("StorageVersions", "What each server writes."),
        AGE,
    ],
    cells: |row| {
        let servers: Vec<String> = row
            .list("status.storageVersions")
            .iter()
            .map(|one| format!("{}={}", str_at(one, "apiServerID"), str_at(one, "encodingVersion")))
            .collect();
        vec![
            row.name(),
            json!(row.at("status.commonEncodingVersion").as_str().unwrap_or(UNSET)),
            first_few(&servers, 3, UNSET).into(),
            row.age(),
        ]
    },
};
