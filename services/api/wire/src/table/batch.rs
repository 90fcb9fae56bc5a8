//! Jobs, autoscalers, scheduling and dynamic resource allocation.

use serde_json::{Value, json};

use super::row::{NONE, Row, UNKNOWN, UNSET, at, plain, selector_or_none, shown_flag, str_at, time_of};
use super::{
    AGE, CONTAINERS, IMAGES, NAME, NAME_AND_AGE, Printer, SELECTOR, boolean, human_duration, number, text,
};

pub(super) fn printer(plural: &str) -> Option<&'static Printer> {
    Some(match plural {
        "jobs" => &JOBS,
        "cronjobs" => &CRON_JOBS,
        "horizontalpodautoscalers" => &AUTOSCALERS,
        "priorityclasses" => &PRIORITY_CLASSES,
        "podgroups" => &POD_GROUPS,
        "workloads" | "deviceclasses" | "resourceclaimtemplates" => &NAME_AND_AGE,
        "resourceclaims" => &CLAIMS,
        "resourceslices" => &SLICES,
        "devicetaintrules" => &TAINT_RULES,
        "resourcepoolstatusrequests" => &POOL_REQUESTS,
        _ => return None,
    })
}

const JOBS: Printer = Printer {
    columns: &[
        NAME,
        text("Status", "How the job is doing."),
        text("Completions", "Pods that succeeded of those that must."),
        text("Duration", "How long it took, or has been running."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: job,
};

fn job(row: &Row<'_>) -> Vec<Value> {
    let succeeded = row.int("status.succeeded");
    let completions = match (row.at("spec.completions").as_i64(), row.int("spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let started = time_of(row.str("status.startTime"));
    let ended = time_of(row.str("status.completionTime")).unwrap_or(row.now);
    let duration = started.map(|started| human_duration(ended.duration_since(started))).unwrap_or_default();
    let holds = |typ: &str| row.condition(typ).is_some_and(|condition| condition["status"] == "True");
    let status = match () {
        _ if holds("Complete") => "Complete",
        _ if holds("Failed") => "Failed",
        _ if row.is_deleting() => "Terminating",
        _ if holds("Suspended") => "Suspended",
        _ if holds("FailureTarget") => "FailureTarget",
        _ if holds("SuccessCriteriaMet") => "SuccessCriteriaMet",
        _ => "Running",
    };
    let (names, images) = row.containers("spec.template.spec.containers");
    vec![
        row.name(),
        status.into(),
        completions.into(),
        duration.into(),
        row.age(),
        names,
        images,
        selector_or_none(row.at("spec.selector")).into(),
    ]
}

const CRON_JOBS: Printer = Printer {
    columns: &[
        NAME,
        text("Schedule", "When it runs."),
        text("Timezone", "Whose clock that is."),
        boolean("Suspend", "Whether it is paused."),
        number("Active", "Jobs running now."),
        text("Last Schedule", "How long ago it ran last."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |row| {
        let last = row.at("status.lastScheduleTime");
        let last = if last.is_null() { NONE.to_owned() } else { row.since(last) };
        let (names, images) = row.containers("spec.jobTemplate.spec.template.spec.containers");
        vec![
            row.name(),
            row.str("spec.schedule").into(),
            row.at("spec.timeZone").as_str().unwrap_or(NONE).into(),
            shown_flag(row.at("spec.suspend")).into(),
            row.list("status.active").len().into(),
            last.into(),
            row.age(),
            names,
            images,
            selector_or_none(row.at("spec.jobTemplate.spec.selector")).into(),
        ]
    },
};

const AUTOSCALERS: Printer = Printer {
    columns: &[
        NAME,
        text("Reference", "What it scales."),
        text("Targets", "Measured and wanted."),
        text("MinPods", "Fewest pods."),
        text("MaxPods", "Most pods."),
        text("Replicas", "Pods there are."),
        AGE,
    ],
    cells: |row| {
        let of = |key: &str| str_at(row.at("spec.scaleTargetRef"), key).to_owned();
        let min = row.at("spec.minReplicas").as_i64().map_or_else(|| UNSET.to_owned(), |min| min.to_string());
        vec![
            row.name(),
            format!("{}/{}", of("kind"), of("name")).into(),
            metrics(row).into(),
            min.into(),
            row.int("spec.maxReplicas").into(),
            row.int("status.currentReplicas").into(),
            row.age(),
        ]
    },
};

/// The first two metrics as `measured/wanted`.
fn metrics(row: &Row<'_>) -> String {
    let specs = row.list("spec.metrics");
    let statuses = row.list("status.currentMetrics");
    if specs.is_empty() {
        return NONE.to_owned();
    }
    let shown: Vec<String> =
        specs.iter().enumerate().map(|(at, spec)| metric(spec, statuses.get(at))).collect();
    match shown.len() {
        count if count > 2 => format!("{} + {} more...", shown[..2].join(", "), count - 2),
        _ => shown.join(", "),
    }
}

fn metric(spec: &Value, status: Option<&Value>) -> String {
    let member = match str_at(spec, "type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = &spec[member]["target"];
    let current = status.map(|status| at(status, member)).filter(|one| one.is_object());
    let measured = |key: &str, must_be_there: bool| match current.map(|one| &one["current"][key]) {
        None => UNKNOWN.to_owned(),
        Some(Value::Null) if must_be_there => UNKNOWN.to_owned(),
        Some(value) => plain(value),
    };
    let averaged = !target["averageValue"].is_null();
    let wanted = |key: &str| plain(&target[key]);
    match member {
        "pods" => format!("{}/{}", measured("averageValue", false), wanted("averageValue")),
        "external" | "object" if averaged => {
            format!("{}/{} (avg)", measured("averageValue", true), wanted("averageValue"))
        }
        "external" | "object" => format!("{}/{}", measured("value", false), wanted("value")),
        _ => {
            let name = str_at(&spec[member], "name");
            if averaged {
                return format!("{name}: {}/{}", measured("averageValue", false), wanted("averageValue"));
            }
            let percent = |value: &Value, otherwise: &str| {
                value.as_i64().map_or_else(|| otherwise.to_owned(), |percent| format!("{percent}%"))
            };
            let used = current.map_or(&Value::Null, |one| &one["current"]["averageUtilization"]);
            let wanted = percent(&target["averageUtilization"], "<auto>");
            format!("{name}: {}/{wanted}", percent(used, UNKNOWN))
        }
    }
}

const PRIORITY_CLASSES: Printer = Printer {
    columns: &[
        NAME,
        number("Value", "The priority."),
        boolean("Global-Default", "Whether pods without a class get it."),
        AGE,
        text("PreemptionPolicy", "Whether its pods push others out."),
    ],
    cells: |row| {
        vec![
            row.name(),
            row.int("value").into(),
            row.flag("globalDefault").into(),
            row.age(),
            row.str("preemptionPolicy").into(),
        ]
    },
};

const POD_GROUPS: Printer = Printer {
    columns: &[
        NAME,
        text("Policy", "How its pods are scheduled."),
        text("Workload", "Which workload it belongs to."),
        text("Status", "Whether it is scheduled."),
        AGE,
    ],
    cells: |row| {
        let policy = if row.at("spec.schedulingPolicy.gang").is_object() { "Gang" } else { "Basic" };
        let scheduled = match row.condition("PodGroupScheduled") {
            Some(condition) if condition["status"] == "True" => "Scheduled",
            Some(_) => "Unschedulable",
            None => "Pending",
        };
        let status = row.condition("DisruptionTarget").map_or(scheduled, |one| str_at(one, "reason"));
        let workload = match row.at("spec.podGroupTemplateRef") {
            Value::Object(_) => row.str("spec.podGroupTemplateRef.workload.workloadName"),
            _ => NONE,
        };
        vec![row.name(), policy.into(), workload.into(), status.into(), row.age()]
    },
};

const CLAIMS: Printer = Printer {
    columns: &[NAME, text("State", "Whether devices are allocated and reserved."), AGE],
    cells: |row| {
        let mut states = Vec::new();
        if row.is_deleting() {
            states.push("deleted");
        }
        if row.at("status.allocation").is_object() {
            states.push("allocated");
            if !row.list("status.reservedFor").is_empty() {
                states.push("reserved");
            }
        } else if !row.is_deleting() {
            states.push("pending");
        }
        vec![row.name(), states.join(",").into(), row.age()]
    },
};

const SLICES: Printer = Printer {
    columns: &[
        NAME,
        text("Node", "Where the devices are."),
        text("Driver", "Whose devices they are."),
        text("Pool", "Which pool they belong to."),
        AGE,
    ],
    cells: |row| {
        vec![
            row.name(),
            row.str("spec.nodeName").into(),
            row.str("spec.driver").into(),
            row.str("spec.pool.name").into(),
            row.age(),
        ]
    },
};

const TAINT_RULES: Printer = Printer {
    columns: &[
        NAME,
        text("Key", "Key of the taint."),
        text("Value", "Value of the taint."),
        text("Effect", "What it does to pods."),
        text("TimeAdded", "How long the taint has been there."),
        AGE,
    ],
    cells: |row| {
        let added = row.at("spec.taint.timeAdded");
        let added = if added.is_null() { json!("") } else { row.since(added).into() };
        vec![
            row.name(),
            row.str("spec.taint.key").into(),
            row.str("spec.taint.value").into(),
            row.str("spec.taint.effect").into(),
            added,
            row.age(),
        ]
    },
};

const POOL_REQUESTS: Printer = Printer {
    columns: &[
        NAME,
        text("Driver", "Whose pools it asks about."),
        text("Total", "Devices in all pools."),
        text("Available", "Devices nobody has."),
        text("Allocated", "Devices that are taken."),
        text("Unavailable", "Devices nobody can have."),
        text("Errors", "Pools that make no sense."),
        number("Pools", "Pools that match."),
        text("Status", "How far the answer is."),
        text("Completed", "How long ago it was complete."),
    ],
    cells: pool_request,
};

fn pool_request(row: &Row<'_>) -> Vec<Value> {
    let holds = |typ: &str| row.condition(typ).filter(|condition| condition["status"] == "True");
    let (complete, failed) = (holds("Complete"), holds("Failed"));
    let pools = row.list("status.pools");
    let count = row.int("status.poolCount");
    let status = match (complete, failed) {
        (Some(_), _) if count > pools.len() as i64 => format!("Complete ({}/{count} pools)", pools.len()),
        (Some(_), _) => "Complete".to_owned(),
        (None, Some(_)) => "Failed".to_owned(),
        (None, None) => "Pending".to_owned(),
    };
    let known = row.at("status").is_object() && (complete.is_some() || failed.is_none());
    let shown = |sum: i64| if known { sum.to_string() } else { "-".to_owned() };
    let sum = |key: &str| shown(pools.iter().filter_map(|pool| pool[key].as_i64()).sum());
    let errors = pools.iter().filter(|pool| pool["validationError"].is_string()).count();
    vec![
        row.name(),
        row.str("spec.driver").into(),
        sum("totalDevices").into(),
        sum("availableDevices").into(),
        sum("allocatedDevices").into(),
        sum("unavailableDevices").into(),
        shown(errors as i64).into(),
        count.into(),
        status.into(),
        complete.map_or_else(|| NONE.to_owned(), |one| row.since(&one["lastTransitionTime"])).into(),
    ]
}
