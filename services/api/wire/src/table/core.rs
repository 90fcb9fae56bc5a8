//! Core group.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::row::{NONE, Row, UNKNOWN, UNSET, first_few, join, labels, list_at, or, plain, str_at, time_of};
use super::{AGE, CONTAINERS, IMAGES, NAME, NAME_AND_AGE, Printer, SELECTOR, naming, number, text, wide};

pub(super) fn printer(plural: &str) -> Option<&'static Printer> {
    Some(match plural {
        "pods" => &PODS,
        "nodes" => &NODES,
        "services" => &SERVICES,
        "endpoints" => &ENDPOINTS,
        "namespaces" => &NAMESPACES,
        "configmaps" => &CONFIG_MAPS,
        "secrets" => &SECRETS,
        "serviceaccounts" => &NAME_AND_AGE,
        "events" => &EVENTS,
        "persistentvolumes" => &VOLUMES,
        "persistentvolumeclaims" => &CLAIMS,
        "podtemplates" => &POD_TEMPLATES,
        "replicationcontrollers" => &CONTROLLERS,
        "resourcequotas" => &QUOTAS,
        "componentstatuses" => &COMPONENTS,
        _ => return None,
    })
}

const PODS: Printer = Printer {
    columns: &[
        NAME,
        text("Ready", "How many of the pod's containers are ready for traffic."),
        text("Status", "What the pod's containers come to, taken together."),
        text("Restarts", "How often containers were restarted, and when last."),
        AGE,
        wide("IP", "First address of the pod."),
        wide("Node", "Where it runs."),
        wide("Nominated Node", "Where it will run once pods of lower priority have left."),
        wide("Readiness Gates", "How many of the additional readiness conditions hold."),
    ],
    cells: pod,
};

/// What the containers of a pod come to.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn restarted(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or_default();
        let ended = time_of(str_at(container, "lastState.terminated.finishedAt"));
        self.last_restart = self.last_restart.max(ended);
    }
}

fn pod(row: &Row<'_>) -> Vec<Value> {
    let phase = row.str("status.phase");
    let mut reason = row.str_or("status.reason", phase).to_owned();
    if row.condition("PodScheduled").is_some_and(|condition| condition["reason"] == "SchedulingGated") {
        reason = "SchedulingGated".to_owned();
    }
    let sidecars: BTreeSet<&str> = row
        .list("spec.initContainers")
        .iter()
        .filter(|container| container["restartPolicy"] == "Always")
        .map(|container| str_at(container, "name"))
        .collect();
    let total = row.list("spec.containers").len() + sidecars.len();

    let (mut init, sidecars, initializing) = init_containers(row, &sidecars, reason);
    let initialized = row.condition("Initialized").is_some_and(|condition| condition["status"] == "True");
    if !initializing || initialized {
        init.restarts = sidecars.restarts;
        init.last_restart = sidecars.last_restart;
        app_containers(row, &mut init);
    }
    let mut summary = init;
    let finished = phase == "Succeeded" || phase == "Failed";
    if row.is_deleting() && row.str("status.reason") == "NodeLost" {
        summary.reason = "Unknown".to_owned();
    } else if row.is_deleting() && !finished {
        summary.reason = "Terminating".to_owned();
    }
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, super::duration::since(at, row.now))
        }
        _ => summary.restarts.to_string(),
    };
    let gates = row.list("spec.readinessGates");
    let open = gates.iter().filter(|gate| {
        row.condition(str_at(gate, "conditionType")).is_some_and(|condition| condition["status"] == "True")
    });
    let gates = if gates.is_empty() { NONE.to_owned() } else { format!("{}/{}", open.count(), gates.len()) };
    let ip = row.list("status.podIPs").first().map_or("", |ip| str_at(ip, "ip"));
    vec![
        row.name(),
        format!("{}/{total}", summary.ready).into(),
        summary.reason.into(),
        restarts.into(),
        row.age(),
        or(ip, NONE).into(),
        row.str_or("spec.nodeName", NONE).into(),
        row.str_or("status.nominatedNodeName", NONE).into(),
        gates.into(),
    ]
}

/// What initialization comes to, the restarts of sidecars alone, and whether it is still going on.
fn init_containers(row: &Row<'_>, sidecars: &BTreeSet<&str>, reason: String) -> (Summary, Summary, bool) {
    let mut all = Summary { reason, ..Summary::default() };
    let mut of_sidecars = Summary::default();
    for (at, container) in row.list("status.initContainerStatuses").iter().enumerate() {
        let is_sidecar = sidecars.contains(str_at(container, "name"));
        all.restarted(container);
        if is_sidecar {
            of_sidecars.restarted(container);
        }
        let ended = &container["state"]["terminated"];
        let waiting = str_at(container, "state.waiting.reason");
        if ended.is_object() && exit_code(ended) == 0 {
            continue;
        }
        if is_sidecar && container["started"] == true {
            all.ready += usize::from(container["ready"] == true);
            continue;
        }
        all.reason = if ended.is_object() {
            format!("Init:{}", end_of(ended))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{at}/{}", row.list("spec.initContainers").len())
        };
        return (all, of_sidecars, true);
    }
    (all, of_sidecars, false)
}

fn app_containers(row: &Row<'_>, summary: &mut Summary) {
    let mut running = false;
    let mut failure = String::new();
    // Backwards, so that the first container with something to say has the last word.
    for container in row.list("status.containerStatuses").iter().rev() {
        summary.restarted(container);
        let ended = &container["state"]["terminated"];
        let waiting = str_at(container, "state.waiting.reason");
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if ended.is_object() {
            summary.reason = end_of(ended);
            if exit_code(ended) != 0 {
                failure.clone_from(&summary.reason);
            }
        } else if container["ready"] == true && container["state"]["running"].is_object() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        let ready = row.condition("Ready").is_some_and(|condition| condition["status"] == "True");
        if running && ready {
            summary.reason = "Running".to_owned();
        } else if !failure.is_empty() {
            summary.reason = failure;
        } else if running {
            summary.reason = "NotReady".to_owned();
        }
    }
}

fn exit_code(ended: &Value) -> i64 {
    ended["exitCode"].as_i64().unwrap_or_default()
}

fn end_of(ended: &Value) -> String {
    let reason = str_at(ended, "reason");
    let signal = ended["signal"].as_i64().unwrap_or_default();
    match (reason, signal) {
        ("", 0) => format!("ExitCode:{}", exit_code(ended)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

const NODES: Printer = Printer {
    columns: &[
        NAME,
        text("Status", "Whether pods can run there."),
        text("Roles", "What the node is for, by its labels."),
        AGE,
        text("Version", "Version of its kubelet."),
        wide("Internal-IP", "Its address inside the cluster."),
        wide("External-IP", "Its address outside."),
        wide("OS-Image", "What it runs on."),
        wide("Kernel-Version", "Its kernel and architecture."),
        wide("Container-Runtime", "What runs its containers."),
    ],
    cells: node,
};

fn node(row: &Row<'_>) -> Vec<Value> {
    let mut status = match row.condition("Ready") {
        Some(ready) if ready["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if row.flag("spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let roles: BTreeSet<&str> = row
        .object
        .header
        .labels
        .iter()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then_some(value.as_str()),
        })
        .filter(|role| !role.is_empty())
        .collect();
    let address = |typ: &str| {
        let found = row.list("status.addresses").iter().find(|address| address["type"] == typ);
        found.map_or(NONE, |address| str_at(address, "address")).to_owned()
    };
    let mut kernel = row.str_or("status.nodeInfo.kernelVersion", UNKNOWN).to_owned();
    match row.str("status.nodeInfo.architecture") {
        "" => {}
        architecture => kernel.push_str(&format!(" ({architecture})")),
    }
    vec![
        row.name(),
        status.into(),
        or(&join(roles), NONE).into(),
        row.age(),
        row.str("status.nodeInfo.kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        row.str_or("status.nodeInfo.osImage", UNKNOWN).into(),
        kernel.into(),
        row.str_or("status.nodeInfo.containerRuntimeVersion", UNKNOWN).into(),
    ]
}

const SERVICES: Printer = Printer {
    columns: &[
        NAME,
        text("Type", "How the service is reached."),
        text("Cluster-IP", "Its address inside the cluster."),
        text("External-IP", "Its addresses outside."),
        text("Port(s)", "Its ports, with the nodes' port behind a colon."),
        AGE,
        SELECTOR,
    ],
    cells: service,
};

fn service(row: &Row<'_>) -> Vec<Value> {
    let ports = row.list("spec.ports").iter().map(|port| {
        let number = |key: &str| port[key].as_i64().unwrap_or_default();
        match number("nodePort") {
            node if node > 0 => format!("{}:{node}/{}", number("port"), str_at(port, "protocol")),
            _ => format!("{}/{}", number("port"), str_at(port, "protocol")),
        }
    });
    let ports: Vec<String> = ports.collect();
    let cluster_ip = row.list("spec.clusterIPs").first().and_then(Value::as_str).unwrap_or(NONE);
    vec![
        row.name(),
        row.str("spec.type").into(),
        cluster_ip.into(),
        external_ip(row).into(),
        or(&ports.join(","), NONE).into(),
        row.age(),
        labels(row.at("spec.selector")).into(),
    ]
}

fn external_ip(row: &Row<'_>) -> String {
    let stated = row.list("spec.externalIPs").iter().filter_map(Value::as_str).map(str::to_owned);
    match row.str("spec.type") {
        "ClusterIP" | "NodePort" => or(&stated.collect::<Vec<_>>().join(","), NONE).to_owned(),
        "LoadBalancer" => {
            let all: Vec<String> = balancer_addresses(row).into_iter().chain(stated).collect();
            or(&all.join(","), "<pending>").to_owned()
        }
        "ExternalName" => row.str("spec.externalName").to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

/// Addresses or names of `status.loadBalancer`, sorted.
pub(super) fn balancer_addresses(row: &Row<'_>) -> BTreeSet<String> {
    let ingress = row.list("status.loadBalancer.ingress").iter();
    let addresses = ingress.map(|one| or(str_at(one, "ip"), str_at(one, "hostname")).to_owned());
    addresses.filter(|address| !address.is_empty()).collect()
}

const ENDPOINTS: Printer = Printer {
    columns: &[NAME, text("Endpoints", "Addresses and ports behind the service."), AGE],
    cells: |row| {
        let mut all: Vec<String> = Vec::new();
        for subset in row.list("subsets") {
            let ips = || list_at(subset, "addresses").iter().map(|address| str_at(address, "ip"));
            match list_at(subset, "ports") {
                // A headless service may have no ports.
                [] => all.extend(ips().map(str::to_owned)),
                ports => {
                    for port in ports {
                        let port = port["port"].as_i64().unwrap_or_default();
                        all.extend(ips().map(|ip| match ip.contains(':') {
                            true => format!("[{ip}]:{port}"),
                            false => format!("{ip}:{port}"),
                        }));
                    }
                }
            }
        }
        let empty = if row.list("subsets").is_empty() { NONE } else { "" };
        vec![row.name(), first_few(&all, 3, empty).into(), row.age()]
    },
};

const NAMESPACES: Printer = Printer {
    columns: &[NAME, text("Status", "Whether it is in use or being deleted."), AGE],
    cells: |row| vec![row.name(), row.str("status.phase").into(), row.age()],
};

fn count(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

const CONFIG_MAPS: Printer = Printer {
    columns: &[NAME, text("Data", "Number of entries."), AGE],
    cells: |row| vec![row.name(), (count(row.at("data")) + count(row.at("binaryData"))).into(), row.age()],
};

const SECRETS: Printer = Printer {
    columns: &[NAME, text("Type", "What it is used for."), text("Data", "Number of entries."), AGE],
    cells: |row| vec![row.name(), row.str("type").into(), count(row.at("data")).into(), row.age()],
};

const EVENTS: Printer = Printer {
    columns: &[
        text("Last Seen", "How long ago it happened last."),
        text("Type", "Whether it is normal or a warning."),
        text("Reason", "Why, in one word."),
        text("Object", "What it is about."),
        wide("Subobject", "Which part of the object."),
        wide("Source", "Who says so."),
        text("Message", "What happened."),
        wide("First Seen", "How long ago it happened first."),
        wide("Count", "How often it happened."),
        naming("Name", "Name of the event.", 1),
    ],
    cells: event,
};

fn event(row: &Row<'_>) -> Vec<Value> {
    let given = |path: &str| row.at(path).is_string();
    let first = if given("firstTimestamp") { "firstTimestamp" } else { "eventTime" };
    let first = row.since(row.at(first));
    let (last, count) = if row.at("series").is_object() {
        (row.since(row.at("series.lastObservedTime")), row.int("series.count"))
    } else {
        let last = if given("lastTimestamp") { row.since(row.at("lastTimestamp")) } else { first.clone() };
        // Events of the newer API that happened once carry no count.
        (last, row.int("count").max(1))
    };
    let kind = row.str("involvedObject.kind").to_lowercase();
    let about = match row.str("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = row.str_or("source.component", row.str("reportingComponent"));
    let source = match row.str_or("source.host", row.str("reportingInstance")) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    vec![
        last.into(),
        row.str("type").into(),
        row.str("reason").into(),
        about.into(),
        row.str("involvedObject.fieldPath").into(),
        source.into(),
        row.str("message").trim().into(),
        first.into(),
        count.into(),
        row.name(),
    ]
}

fn access_modes(modes: &[Value]) -> String {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    join(short.iter().filter(|(long, _)| modes.iter().any(|mode| mode == long)).map(|(_, short)| *short))
}

/// An old annotation wins over the field.
fn storage_class<'a>(row: &'a Row<'_>) -> &'a str {
    row.annotation("volume.beta.kubernetes.io/storage-class").unwrap_or(row.str("spec.storageClassName"))
}

fn phase<'a>(row: &'a Row<'_>) -> &'a str {
    if row.is_deleting() { "Terminating" } else { row.str("status.phase") }
}

const VOLUMES: Printer = Printer {
    columns: &[
        NAME,
        text("Capacity", "Its size."),
        text("Access Modes", "Who may mount it at once."),
        text("Reclaim Policy", "What becomes of it when its claim goes."),
        text("Status", "Whether it is claimed."),
        text("Claim", "Which claim has it."),
        text("StorageClass", "Class it belongs to."),
        text("VolumeAttributesClass", "Class its attributes come from."),
        text("Reason", "Why it is in that state."),
        AGE,
        wide("VolumeMode", "File system or block device."),
    ],
    cells: |row| {
        let claim = match row.at("spec.claimRef") {
            Value::Object(_) => {
                format!("{}/{}", row.str("spec.claimRef.namespace"), row.str("spec.claimRef.name"))
            }
            _ => String::new(),
        };
        vec![
            row.name(),
            plain(row.at("spec.capacity.storage")).into(),
            access_modes(row.list("spec.accessModes")).into(),
            row.str("spec.persistentVolumeReclaimPolicy").into(),
            phase(row).into(),
            claim.into(),
            storage_class(row).into(),
            row.at("spec.volumeAttributesClassName").as_str().unwrap_or(UNSET).into(),
            row.str("status.reason").into(),
            row.age(),
            row.at("spec.volumeMode").as_str().unwrap_or(UNSET).into(),
        ]
    },
};

const CLAIMS: Printer = Printer {
    columns: &[
        NAME,
        text("Status", "Whether it has a volume."),
        text("Volume", "Which one."),
        text("Capacity", "Size of the volume."),
        text("Access Modes", "Who may mount it at once."),
        text("StorageClass", "Class it asks for."),
        text("VolumeAttributesClass", "Class its attributes come from."),
        AGE,
        wide("VolumeMode", "File system or block device."),
    ],
    cells: |row| {
        let volume = row.str("spec.volumeName");
        let (capacity, modes) = match volume {
            "" => (String::new(), String::new()),
            _ => (plain(row.at("status.capacity.storage")), access_modes(row.list("status.accessModes"))),
        };
        vec![
            row.name(),
            phase(row).into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            storage_class(row).into(),
            row.at("spec.volumeAttributesClassName").as_str().unwrap_or(UNSET).into(),
            row.age(),
            row.at("spec.volumeMode").as_str().unwrap_or(UNSET).into(),
        ]
    },
};

const POD_TEMPLATES: Printer = Printer {
    columns: &[
        NAME,
        text("Containers", "Names of the template's containers."),
        text("Images", "Images of the template's containers."),
        text("Pod Labels", "Labels of pods made from it."),
    ],
    cells: |row| {
        let (names, images) = row.containers("template.spec.containers");
        vec![row.name(), names, images, labels(row.at("template.metadata.labels")).into()]
    },
};

const CONTROLLERS: Printer = Printer {
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
        let (names, images) = row.containers("spec.template.spec.containers");
        vec![
            row.name(),
            row.int("spec.replicas").into(),
            row.int("status.replicas").into(),
            row.int("status.readyReplicas").into(),
            row.age(),
            names,
            images,
            labels(row.at("spec.selector")).into(),
        ]
    },
};

const QUOTAS: Printer = Printer {
    columns: &[
        NAME,
        text("Request", "Used and allowed, for what is requested."),
        text("Limit", "Used and allowed, for what is limited."),
        AGE,
    ],
    cells: |row| {
        // Not `at`: names of resources have dots in them.
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        let hard = row.at("status.hard").as_object();
        let mut names: Vec<&String> = hard.into_iter().flat_map(|hard| hard.keys()).collect();
        names.sort();
        for name in names {
            let amount = |of: &str| plain(&row.at("status")[of][name.as_str()]);
            let list = if name.starts_with("limits.") { &mut limits } else { &mut requests };
            list.push(format!("{name}: {}/{}", amount("used"), amount("hard")));
        }
        vec![row.name(), requests.join(", ").into(), limits.join(", ").into(), row.age()]
    },
};

const COMPONENTS: Printer = Printer {
    columns: &[
        NAME,
        text("Status", "Whether the component is healthy."),
        text("Message", "What it says about itself."),
        text("Error", "What went wrong when it was asked."),
    ],
    cells: |row| {
        let healthy = row.list("conditions").iter().find(|condition| condition["type"] == "Healthy");
        let status = match healthy {
            Some(condition) if condition["status"] == "True" => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        let said = |key: &str| json!(healthy.map_or("", |condition| str_at(condition, key)));
        vec![row.name(), status.into(), said("message"), said("error")]
    },
};
