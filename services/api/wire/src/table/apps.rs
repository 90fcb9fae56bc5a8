//! Workloads of the apps group.

use serde_json::Value;

use super::row::{NONE, Row, labels, selector, selector_or_none};
use super::{AGE, CONTAINERS, IMAGES, NAME, Printer, SELECTOR, number, text};

pub(super) fn printer(plural: &str) -> Option<&'static Printer> {
    Some(match plural {
        "deployments" => &DEPLOYMENTS,
        "replicasets" => &REPLICA_SETS,
        "statefulsets" => &STATEFUL_SETS,
        "daemonsets" => &DAEMON_SETS,
        "controllerrevisions" => &REVISIONS,
        _ => return None,
    })
}

const TEMPLATE: &str = "spec.template.spec.containers";

fn ready_of_wanted(row: &Row<'_>) -> Value {
    format!("{}/{}", row.int("status.readyReplicas"), row.int("spec.replicas")).into()
}

const DEPLOYMENTS: Printer = Printer {
    columns: &[
        NAME,
        text("Ready", "Ready pods of those wanted."),
        text("Up-to-date", "Pods of the newest template."),
        text("Available", "Pods that have been ready long enough."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |row| {
        let (names, images) = row.containers(TEMPLATE);
        vec![
            row.name(),
            ready_of_wanted(row),
            row.int("status.updatedReplicas").into(),
            row.int("status.availableReplicas").into(),
            row.age(),
            names,
            images,
            selector(row.at("spec.selector")).into(),
        ]
    },
};

const REPLICA_SETS: Printer = Printer {
    columns: &[
        NAME,
        number("Desired", "Pods wanted."),
        number("Current", "Pods there are."),
        number("Ready", "Pods that are ready."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |row| {
        let (names, images) = row.containers(TEMPLATE);
        vec![
            row.name(),
            row.int("spec.replicas").into(),
            row.int("status.replicas").into(),
            row.int("status.readyReplicas").into(),
            row.age(),
            names,
            images,
            selector_or_none(row.at("spec.selector")).into(),
        ]
    },
};

const STATEFUL_SETS: Printer = Printer {
    columns: &[NAME, text("Ready", "Ready pods of those wanted."), AGE, CONTAINERS, IMAGES],
    cells: |row| {
        let (names, images) = row.containers(TEMPLATE);
        vec![row.name(), ready_of_wanted(row), row.age(), names, images]
    },
};

const DAEMON_SETS: Printer = Printer {
    columns: &[
        NAME,
        number("Desired", "Nodes that should run it."),
        number("Current", "Nodes that run it."),
        number("Ready", "Nodes where it is ready."),
        number("Up-to-date", "Nodes with the newest template."),
        number("Available", "Nodes where it has been ready long enough."),
        text("Node Selector", "Labels a node needs."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |row| {
        let (names, images) = row.containers(TEMPLATE);
        vec![
            row.name(),
            row.int("status.desiredNumberScheduled").into(),
            row.int("status.currentNumberScheduled").into(),
            row.int("status.numberReady").into(),
            row.int("status.updatedNumberScheduled").into(),
            row.int("status.numberAvailable").into(),
            labels(row.at("spec.template.spec.nodeSelector")).into(),
            row.age(),
            names,
            images,
            selector_or_none(row.at("spec.selector")).into(),
        ]
    },
};

const REVISIONS: Printer = Printer {
    columns: &[
        NAME,
        text("Controller", "Whose history it belongs to."),
        text("Revision", "Its number in that history."),
        AGE,
    ],
    cells: |row| {
        let controller = row.object.controller().map_or_else(
            || NONE.to_owned(),
            |owner| {
                let kind = owner.kind.to_lowercase();
                match owner.api_version.split_once('/') {
                    Some((group, _)) => format!("{kind}.{}/{}", group.to_lowercase(), owner.name),
                    None => format!("{kind}/{}", owner.name),
                }
            },
        );
        vec![row.name(), controller.into(), row.int("revision").into(), row.age()]
    },
};
