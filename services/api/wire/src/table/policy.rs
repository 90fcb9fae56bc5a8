//! Who may do what, under which rules: disruption budgets, RBAC, certificates, leases, admission, flow control.

use serde_json::{Value, json};

use super::row::{NONE, Row, UNSET, labels, or, plain, selector, str_at};
use super::{AGE, NAME, Printer, human_duration, number, text, wide};

pub(super) fn printer(plural: &str) -> Option<&'static Printer> {
    Some(match plural {
        "poddisruptionbudgets" => &BUDGETS,
        "rolebindings" | "clusterrolebindings" => &BINDINGS,
        "certificatesigningrequests" => &REQUESTS,
        "clustertrustbundles" => &TRUST_BUNDLES,
        "podcertificaterequests" => &POD_REQUESTS,
        "leases" => &LEASES,
        "leasecandidates" => &CANDIDATES,
        "runtimeclasses" => &RUNTIME_CLASSES,
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => &WEBHOOKS,
        "validatingadmissionpolicies" => &VALIDATING,
        "mutatingadmissionpolicies" => &MUTATING,
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => &POLICY_BINDINGS,
        "apiservices" => &API_SERVICES,
        "flowschemas" => &FLOW_SCHEMAS,
        "prioritylevelconfigurations" => &PRIORITY_LEVELS,
        _ => return None,
    })
}

const BUDGETS: Printer = Printer {
    columns: &[
        NAME,
        text("Min Available", "Pods that must stay."),
        text("Max Unavailable", "Pods that may be away."),
        number("Allowed Disruptions", "Pods that may be evicted now."),
        AGE,
    ],
    cells: |row| {
        let stated = |path: &str| match row.at(path) {
            Value::Null => "N/A".to_owned(),
            value => plain(value),
        };
        vec![
            row.name(),
            stated("spec.minAvailable").into(),
            stated("spec.maxUnavailable").into(),
            row.int("status.disruptionsAllowed").into(),
            row.age(),
        ]
    },
};

const BINDINGS: Printer = Printer {
    columns: &[
        NAME,
        text("Role", "The role it grants."),
        AGE,
        wide("Users", "Users it grants that to."),
        wide("Groups", "Groups it grants that to."),
        wide("ServiceAccounts", "Service accounts it grants that to."),
    ],
    cells: |row| {
        let of = |kind: &str| -> Value {
            let subjects = row.list("subjects").iter().filter(|subject| subject["kind"] == kind);
            let names = subjects.map(|subject| match kind {
                "ServiceAccount" => format!("{}/{}", str_at(subject, "namespace"), str_at(subject, "name")),
                _ => str_at(subject, "name").to_owned(),
            });
            names.collect::<Vec<_>>().join(", ").into()
        };
        vec![
            row.name(),
            format!("{}/{}", row.str("roleRef.kind"), row.str("roleRef.name")).into(),
            row.age(),
            of("User"),
            of("Group"),
            of("ServiceAccount"),
        ]
    },
};

const REQUESTS: Printer = Printer {
    columns: &[
        NAME,
        AGE,
        text("SignerName", "Who is asked to sign."),
        text("Requestor", "Who asks."),
        text("RequestedDuration", "For how long."),
        text("Condition", "What became of it."),
    ],
    cells: |row| {
        let has = |typ: &str| row.condition(typ).is_some();
        let mut status = match () {
            _ if has("Denied") => "Denied",
            _ if has("Approved") => "Approved",
            _ => "Pending",
        }
        .to_owned();
        if has("Failed") {
            status.push_str(",Failed");
        }
        if !row.str("status.certificate").is_empty() {
            status.push_str(",Issued");
        }
        let duration = row.at("spec.expirationSeconds").as_i64().map(jiff::SignedDuration::from_secs);
        vec![
            row.name(),
            row.age(),
            row.str_or("spec.signerName", NONE).into(),
            row.str("spec.username").into(),
            duration.map_or_else(|| NONE.to_owned(), human_duration).into(),
            status.into(),
        ]
    },
};

const TRUST_BUNDLES: Printer = Printer {
    columns: &[NAME, text("SignerName", "Whose certificates it vouches for.")],
    cells: |row| vec![row.name(), row.str_or("spec.signerName", NONE).into()],
};

const POD_REQUESTS: Printer = Printer {
    columns: &[
        NAME,
        text("PodName", "The pod it is for."),
        text("ServiceAccountName", "The pod's account."),
        text("NodeName", "Where the pod runs."),
        text("SignerName", "Who is asked to sign."),
        text("State", "What became of it."),
        text("UnverifiedUserAnnotations", "What the pod says besides."),
    ],
    cells: |row| {
        let conditions = row.list("status.conditions").iter().rev();
        let mut decided = conditions.filter_map(|one| match str_at(one, "type") {
            state @ ("Issued" | "Denied" | "Failed") => Some(state),
            _ => None,
        });
        vec![
            row.name(),
            row.str("spec.podName").into(),
            row.str("spec.serviceAccountName").into(),
            row.str("spec.nodeName").into(),
            row.str("spec.signerName").into(),
            decided.next().unwrap_or("Pending").into(),
            labels(row.at("spec.unverifiedUserAnnotations")).into(),
        ]
    },
};

const LEASES: Printer = Printer {
    columns: &[NAME, text("Holder", "Who holds it."), AGE],
    cells: |row| vec![row.name(), row.str("spec.holderIdentity").into(), row.age()],
};

const CANDIDATES: Printer = Printer {
    columns: &[
        NAME,
        text("LeaseName", "Which lease it stands for."),
        text("BinaryVersion", "Version it was built as."),
        text("EmulationVersion", "Version it behaves as."),
        AGE,
    ],
    cells: |row| {
        vec![
            row.name(),
            row.str("spec.leaseName").into(),
            row.str("spec.binaryVersion").into(),
            row.str("spec.emulationVersion").into(),
            row.age(),
        ]
    },
};

const RUNTIME_CLASSES: Printer = Printer {
    columns: &[NAME, text("Handler", "What the runtime calls it."), AGE],
    cells: |row| vec![row.name(), row.str("handler").into(), row.age()],
};

const WEBHOOKS: Printer = Printer {
    columns: &[NAME, number("Webhooks", "Number of webhooks in it."), AGE],
    cells: |row| vec![row.name(), row.list("webhooks").len().into(), row.age()],
};

fn param_kind(row: &Row<'_>) -> Value {
    match row.at("spec.paramKind") {
        Value::Object(_) => {
            format!("{}/{}", row.str("spec.paramKind.apiVersion"), row.str("spec.paramKind.kind")).into()
        }
        _ => UNSET.into(),
    }
}

const VALIDATING: Printer = Printer {
    columns: &[
        NAME,
        number("Validations", "Number of rules in it."),
        text("ParamKind", "Kind of its parameters."),
        AGE,
    ],
    cells: |row| vec![row.name(), row.list("spec.validations").len().into(), param_kind(row), row.age()],
};

const MUTATING: Printer = Printer {
    columns: &[
        NAME,
        number("Mutations", "Number of changes in it."),
        text("ParamKind", "Kind of its parameters."),
        AGE,
    ],
    cells: |row| vec![row.name(), row.list("spec.mutations").len().into(), param_kind(row), row.age()],
};

const POLICY_BINDINGS: Printer = Printer {
    columns: &[
        NAME,
        text("PolicyName", "The policy it puts in force."),
        text("ParamRef", "Parameters the policy gets."),
        AGE,
    ],
    cells: |row| {
        let of = |key: &str| str_at(row.at("spec.paramRef"), key).to_owned();
        let param = match (of("name"), of("namespace")) {
            (name, namespace) if !name.is_empty() => format!("{}/{name}", or(&namespace, "*")),
            _ if row.at("spec.paramRef.selector").is_object() => selector(row.at("spec.paramRef.selector")),
            _ => UNSET.to_owned(),
        };
        vec![row.name(), row.str("spec.policyName").into(), param.into(), row.age()]
    },
};

const API_SERVICES: Printer = Printer {
    columns: &[
        NAME,
        text("Service", "Who serves the group and version."),
        text("Available", "Whether it can be reached."),
        AGE,
    ],
    cells: |row| {
        let service = match row.at("spec.service") {
            Value::Object(_) => {
                format!("{}/{}", row.str("spec.service.namespace"), row.str("spec.service.name"))
            }
            _ => "Local".to_owned(),
        };
        let available = match row.condition("Available") {
            None => "Unknown".to_owned(),
            Some(condition) => match (str_at(condition, "status"), str_at(condition, "reason")) {
                (status, reason) if status == "True" || reason.is_empty() => status.to_owned(),
                (status, reason) => format!("{status} ({reason})"),
            },
        };
        vec![row.name(), service.into(), available.into(), row.age()]
    },
};

const FLOW_SCHEMAS: Printer = Printer {
    columns: &[
        NAME,
        text("PriorityLevel", "The level its requests get."),
        text("MatchingPrecedence", "Lower ones are looked at first."),
        text("DistinguisherMethod", "How flows are told apart."),
        AGE,
        text("MissingPL", "Whether that level is missing."),
    ],
    cells: |row| {
        let method = match row.at("spec.distinguisherMethod") {
            Value::Object(_) => row.str("spec.distinguisherMethod.type"),
            _ => NONE,
        };
        vec![
            row.name(),
            row.str("spec.priorityLevelConfiguration.name").into(),
            row.int("spec.matchingPrecedence").into(),
            method.into(),
            row.age(),
            row.condition("Dangling").map_or("?", |condition| str_at(condition, "status")).into(),
        ]
    },
};

const PRIORITY_LEVELS: Printer = Printer {
    columns: &[
        NAME,
        text("Type", "Whether requests are limited."),
        text("NominalConcurrencyShares", "Its share of the seats."),
        text("Queues", "Number of queues."),
        text("HandSize", "Queues a flow may use."),
        text("QueueLengthLimit", "Requests a queue holds."),
        AGE,
    ],
    cells: |row| {
        let limited = row.at("spec.limited");
        let queuing = row.at("spec.limited.limitResponse.queuing");
        let shown = |parent: &Value, key: &str| match parent {
            Value::Object(_) => json!(parent[key].as_i64().unwrap_or_default()),
            _ => NONE.into(),
        };
        vec![
            row.name(),
            row.str("spec.type").into(),
            shown(limited, "nominalConcurrencyShares"),
            shown(queuing, "queues"),
            shown(queuing, "handSize"),
            shown(queuing, "queueLengthLimit"),
            row.age(),
        ]
    },
};
