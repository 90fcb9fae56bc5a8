//! Jobs and CronJobs.

use api_machinery::{Document, Field};
use serde_json::Value;

use super::pod_defaults::{self, items, text};
use crate::strategy::{GarbagePolicy, Generation, Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{job, meta, names, pod, selector};

pub(crate) struct Jobs;

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The same without a domain, from before labels had one; still promised.
const OLD_CONTROLLER_UID: &str = "controller-uid";
const OLD_JOB_NAME: &str = "job-name";

impl Strategy for Jobs {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn garbage_policy(&self) -> GarbagePolicy {
        GarbagePolicy::Orphan
    }
    fn defaults(&self, new: &mut Document) {
        spec_defaults(new, "spec");
        if let Some(labels) = new.get("spec.template.metadata.labels").cloned() {
            new.set_default("metadata.labels", labels);
        }
        pod_defaults::template(new, "spec.template");
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        if new.get("spec.manualSelector") != Some(&Value::Bool(true)) {
            let (uid, name) = (new.uid().to_owned(), new.name().to_owned());
            new.object_mut("spec.selector.matchLabels").insert(CONTROLLER_UID.to_owned(), uid.clone().into());
            let labels = new.object_mut("spec.template.metadata.labels");
            for (key, value) in
                [(CONTROLLER_UID, &uid), (OLD_CONTROLLER_UID, &uid), (JOB_NAME, &name), (OLD_JOB_NAME, &name)]
            {
                labels.entry(key).or_insert_with(|| value.as_str().into());
            }
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        job_spec(&spec, &mut errors);
        let completions = spec.get("completions").int().unwrap_or(0);
        if spec.get("completionMode").text() == "Indexed" && completions > 0 {
            // Pods are hosts, called after the job and their index.
            let longest = format!("{}-{}", new.name(), completions - 1);
            if !names::dns_label(&longest).is_empty() {
                let why = format!("will not able to create pod with invalid DNS label: {longest}");
                errors.push(Field::new("metadata.name").invalid(new.name(), why));
            }
        }
        let chosen = spec.get("selector");
        if !chosen.is_set() {
            errors.push(chosen.required(""));
        } else {
            errors.extend(selector::validate(Some(chosen.value), &chosen.field));
        }
        let labels = spec.get("template").get("metadata").get("labels");
        let have = labels.value.as_object().into_iter().flatten();
        let have = have.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        if !selector::matches(chosen.value, &have) {
            errors.push(labels.invalid("`selector` does not match template `labels`"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        for path in [
            "spec.selector",
            "spec.completionMode",
            "spec.podFailurePolicy",
            "spec.backoffLimitPerIndex",
            "spec.managedBy",
            "spec.successPolicy",
        ] {
            errors.extend(meta::immutable(new.get(path), old.get(path), &Field::new(path)));
        }
        // The count of an elastic indexed job moves together with its parallelism.
        let completions = At::top(new, "spec").get("completions");
        let before = At::top(old, "spec").get("completions");
        if new.get_str("spec.completionMode") != Some("Indexed") {
            completions.same_as(&mut errors, &before);
        } else if completions.is_set()
            && completions.value != before.value
            && new.get("spec.completions") != new.get("spec.parallelism")
        {
            errors.push(completions.invalid("can only be modified in tandem with spec.parallelism"));
        }
        let (now, before) = (new.get("spec.template"), old.get("spec.template"));
        let allowed = now.zip(before).is_some_and(|(now, before)| {
            now == before || (rests(old) && same_but_for_scheduling(now, before))
        });
        if !allowed {
            let shown = now.cloned().unwrap_or_default();
            errors.push(Field::new("spec.template").invalid(shown, meta::IMMUTABLE));
        }
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let status = At::top(new, "status");
        let mut errors = Vec::new();
        for name in ["active", "succeeded", "failed", "ready", "terminating"] {
            status.get(name).not_negative(&mut errors);
        }
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["status.successful"]
    }
    fn select(&self, object: &api_machinery::Object, _path: &str) -> String {
        let count = crate::strategy::field_text(object, "status.succeeded");
        if count.is_empty() { "0".to_owned() } else { count }
    }
    fn warning_on_default_deletion(&self) -> Option<&'static str> {
        Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        )
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        warnings(new, old, "spec")
    }
}

/// Suspended, and without pods: never begun, or all of them gone.
fn rests(job: &Document) -> bool {
    let marked = |one: &Value| one["type"] == "Suspended" && one["status"] == "True";
    let settled =
        job.get_str("status.startTime").is_none() || job.get_array("status.conditions").iter().any(marked);
    job.get("spec.suspend") == Some(&Value::Bool(true))
        && settled
        && job.get_i64("status.active").unwrap_or(0) == 0
}

/// Whether two pod templates differ only in what steers scheduling (of affinities, that to nodes) and in what
/// their containers ask for: a queue decides both while the job waits in it.
fn same_but_for_scheduling(now: &Value, before: &Value) -> bool {
    fn fixed(template: &Value) -> Value {
        let mut template = template.clone();
        if let Some(Value::Object(metadata)) = template.get_mut("metadata") {
            metadata.remove("labels");
            metadata.remove("annotations");
        }
        // No metadata and none that counts are alike.
        let bare = template.get("metadata").and_then(Value::as_object).is_some_and(|all| all.is_empty());
        if let Value::Object(members) = &mut template
            && bare
        {
            members.remove("metadata");
        }
        let Some(Value::Object(spec)) = template.get_mut("spec") else { return template };
        for part in ["nodeSelector", "tolerations", "schedulingGates"] {
            spec.remove(part);
        }
        if let Some(Value::Object(affinity)) = spec.get_mut("affinity") {
            affinity.remove("nodeAffinity");
            if affinity.is_empty() {
                spec.remove("affinity");
            }
        }
        for list in ["containers", "initContainers"] {
            for container in items(spec.get_mut(list)) {
                container.remove("resources");
            }
        }
        template
    }
    fixed(now) == fixed(before)
}

/// Pods are named after their job, and their hosts after them; and a job can be too large to be counted.
/// `path` leads to the job's spec.
fn warnings(new: &Document, old: Option<&Document>, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    let reasons = names::dns_label(new.name());
    if old.is_none() && !reasons.is_empty() {
        all.push(format!("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{}]", reasons.join(" ")));
    }
    let count = |name: &str| new.get_i64(&format!("{path}.{name}")).unwrap_or(0);
    let indexed = new.get_str(&format!("{path}.completionMode")) == Some("Indexed");
    if indexed && count("completions") > 100_000 && count("parallelism") > 10_000 {
        all.push(format!("{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    all.extend(pod::template_warnings(new, old, &format!("{path}.template")));
    all
}

fn spec_defaults(new: &mut Document, path: &str) {
    let at = |name: &str| format!("{path}.{name}");
    let unset = |new: &Document, name: &str| new.get(&at(name)).is_none_or(Value::is_null);
    if unset(new, "completions") && unset(new, "parallelism") {
        new.set(&at("completions"), 1);
    }
    new.set_default(&at("parallelism"), 1);
    let per_index = !unset(new, "backoffLimitPerIndex");
    new.set_default(&at("backoffLimit"), if per_index { i32::MAX } else { 6 });
    new.set_default(&at("completionMode"), "NonIndexed");
    new.set_default(&at("suspend"), false);
    let policy = if unset(new, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
    new.set_default(&at("podReplacementPolicy"), policy);
    for rule in items(new.get_mut(&at("podFailurePolicy.rules"))) {
        for condition in items(rule.get_mut("onPodConditions")) {
            text(condition, "status", "True");
        }
    }
}

fn job_spec(spec: &At<'_>, errors: &mut Errors) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
        "ttlSecondsAfterFinished",
    ] {
        spec.get(name).not_negative(errors);
    }
    let mode = spec.get("completionMode");
    mode.one_of(errors, &["NonIndexed", "Indexed"]);
    if mode.text() == "Indexed" {
        if !spec.get("completions").is_set() {
            errors.push(spec.get("completions").required("when completion mode is Indexed"));
        }
        let parallelism = spec.get("parallelism");
        if parallelism.int().is_some_and(|count| count > 100_000) {
            errors.push(
                parallelism.invalid("must be less than or equal to 100000 when completion mode is Indexed"),
            );
        }
    } else {
        let per_index = spec.get("backoffLimitPerIndex");
        if per_index.is_set() {
            errors.push(per_index.invalid("requires indexed completion mode"));
        }
        let most = spec.get("maxFailedIndexes");
        if most.is_set() {
            errors.push(most.invalid("requires indexed completion mode"));
        }
    }
    let failure = spec.get("podFailurePolicy");
    job::policies(spec, errors);
    let template = spec.get("template");
    pod::template(&template, errors);
    let policy = template.get("spec").get("restartPolicy");
    if !matches!(policy.text(), "OnFailure" | "Never") {
        if policy.is_empty() || policy.text() == "Always" {
            errors.push(policy.required("valid values: \"OnFailure\", \"Never\""));
        } else {
            errors.push(policy.unsupported(&["OnFailure", "Never"]));
        }
    } else if failure.is_set() && policy.text() != "Never" {
        errors.push(policy.invalid("only \"Never\" is supported when podFailurePolicy is specified"));
    }
}

pub(crate) struct CronJobs;

impl Strategy for CronJobs {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        let spec = new.object_mut("spec");
        text(spec, "concurrencyPolicy", "Allow");
        new.set_default("spec.suspend", false);
        new.set_default("spec.successfulJobsHistoryLimit", 3);
        new.set_default("spec.failedJobsHistoryLimit", 1);
        pod_defaults::template(new, "spec.jobTemplate.spec.template");
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        // Its jobs are named after it with eleven characters behind.
        if new.name().len() > 52 {
            errors
                .push(Field::new("metadata.name").invalid(new.name(), "must be no more than 52 characters"));
        }
        let schedule = spec.get("schedule");
        if schedule.require(&mut errors)
            && let Err(why) = check_schedule(schedule.text())
        {
            errors.push(schedule.invalid(why));
        }
        let zone = spec.get("timeZone");
        if zone.is_set() {
            let name = zone.text();
            if name.is_empty() {
                errors.push(zone.invalid("timeZone must be nil or non-empty string"));
            } else if name.eq_ignore_ascii_case("local") {
                errors.push(zone.invalid(
                    "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
                ));
            } else if jiff::tz::TimeZone::get(name).is_err() {
                errors.push(zone.invalid(format!("unknown time zone {name}")));
            }
        }
        spec.get("startingDeadlineSeconds").not_negative(&mut errors);
        spec.get("concurrencyPolicy").must_be_one_of(&mut errors, &["Allow", "Forbid", "Replace"]);
        spec.get("successfulJobsHistoryLimit").not_negative(&mut errors);
        spec.get("failedJobsHistoryLimit").not_negative(&mut errors);
        job_spec(&spec.get("jobTemplate").get("spec"), &mut errors);
        errors
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        let mut all = warnings(new, old, "spec.jobTemplate.spec");
        if old.is_some() && new.get_str("spec.schedule").is_some_and(|text| text.contains("TZ")) {
            all.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
        }
        all
    }
}

/// Standard cron, five fields or a `@` word; enough to refuse what no controller could run.
fn check_schedule(text: &str) -> Result<(), String> {
    if text.contains("TZ=") {
        return Err("cannot use TZ or CRON_TZ in schedule, use timeZone field instead".to_owned());
    }
    if let Some(word) = text.strip_prefix('@') {
        let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"];
        return if known.contains(&word) || word.starts_with("every ") {
            Ok(())
        } else {
            Err(format!("unrecognized descriptor: {text}"))
        };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    let bounds: [(u32, u32, &[&str]); 5] = [
        (0, 59, &[]),
        (0, 23, &[]),
        (1, 31, &[]),
        (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
        (0, 7, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
    ];
    for (field, (least, most, names)) in fields.iter().zip(bounds) {
        for part in field.split(',') {
            let (range, step) =
                part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
            if let Some(step) = step
                && !step.parse::<u32>().is_ok_and(|step| step > 0)
            {
                return Err(format!("failed to parse int from {step}: {field}"));
            }
            if range == "*" || range == "?" {
                continue;
            }
            let number = |text: &str| -> Result<u32, String> {
                if let Some(at) = names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
                    return Ok(least + u32::try_from(at).unwrap_or(0));
                }
                text.parse().map_err(|_| format!("failed to parse int from {text}: {field}"))
            };
            let (from, to) = match range.split_once('-') {
                Some((from, to)) => (number(from)?, number(to)?),
                None => (number(range)?, number(range)?),
            };
            if from < least {
                return Err(format!("beginning of range ({from}) below minimum ({least}): {field}"));
            }
            if to > most {
                return Err(format!("end of range ({to}) above maximum ({most}): {field}"));
            }
            if from > to {
                return Err(format!("beginning of range ({from}) beyond end of range ({to}): {field}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schedules() {
        for (text, fine) in [
            ("*/5 * * * *", true),
            ("0 0 1 jan sun", true),
            ("@hourly", true),
            ("1,2,5-9 * * * mon-fri", true),
            ("60 * * * *", false),
            ("* * * *", false),
            ("*/0 * * * *", false),
            ("@never", false),
            ("TZ=UTC * * * * *", false),
        ] {
            assert_eq!(check_schedule(text).is_ok(), fine, "{text:?}");
        }
    }

    #[test]
    fn a_job_selects_its_own_pods() {
        let mut job =
            Document::from_value(json!({"metadata": {"name": "once", "uid": "u"}})).unwrap_or_default();
        let resource = api_kinds::kinds().resource(&api_machinery::Gvr::new("batch", "v1", "jobs"));
        assert!(resource.is_some(), "the table knows jobs");
        spec_defaults(&mut job, "spec");
        assert_eq!(job.get_i64("spec.backoffLimit"), Some(6));
        assert_eq!(job.get_i64("spec.parallelism"), Some(1));
    }
}
