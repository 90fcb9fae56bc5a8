//! When a Job fails or succeeds by its own policies, and the limits of indexed jobs. Rules as in upstream's
//! `pkg/apis/batch/validation`; the rest of a Job's spec is in `kinds::batch`.

use std::collections::HashSet;

use super::at::{At, Errors};
use super::names;

const MAX_FAILURE_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;
const MAX_SUCCESS_RULES: usize = 20;
const MAX_INDEXES_BYTES: usize = 64 << 10;
const MAX_MANAGER_BYTES: usize = 63;
/// Above this an indexed job with limits per index keeps within the smaller limits below.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
const MAX_OF_MANY: i64 = 10_000;

/// `spec` is a Job's.
pub(crate) fn policies(spec: &At<'_>, errors: &mut Errors) {
    let indexed = spec.get("completionMode").text() == "Indexed";
    let most = spec.get("maxFailedIndexes");
    if most.is_set() && !spec.get("backoffLimitPerIndex").is_set() {
        errors.push(spec.get("backoffLimitPerIndex").required("when maxFailedIndexes is specified"));
    }
    let manager = spec.get("managedBy");
    if manager.is_set() {
        names::domain_prefixed_path(&manager, errors);
        if manager.text().len() > MAX_MANAGER_BYTES {
            errors.push(manager.field.too_long(MAX_MANAGER_BYTES));
        }
    }
    if indexed {
        indexes(spec, errors);
    }
    let failure = spec.get("podFailurePolicy");
    if failure.is_set() {
        failure_policy(spec, &failure, errors);
    }
    let success = spec.get("successPolicy");
    if success.is_set() {
        if indexed {
            success_policy(spec, &success, errors);
        } else {
            errors.push(success.invalid("requires indexed completion mode"));
        }
    }
    let replacement = spec.get("podReplacementPolicy");
    let allowed: &[&str] = if failure.is_set() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    replacement.one_of(errors, allowed);
}

fn indexes(spec: &At<'_>, errors: &mut Errors) {
    let (most, parallelism) = (spec.get("maxFailedIndexes"), spec.get("parallelism"));
    let Some(completions) = spec.get("completions").int() else { return };
    if most.int().is_some_and(|most| most > completions) {
        errors.push(most.invalid("must be less than or equal to completions"));
    }
    if most.int().is_some_and(|most| most > MAX_FAILED_INDEXES) {
        errors.push(most.invalid(format!("must be less than or equal to {MAX_FAILED_INDEXES}")));
    }
    if completions <= MANY_COMPLETIONS || !spec.get("backoffLimitPerIndex").is_set() {
        return;
    }
    if !most.is_set() {
        errors
            .push(most.required(&format!("must be specified when completions is above {MANY_COMPLETIONS}")));
    }
    for at in [parallelism, most] {
        if at.int().is_some_and(|count| count > MAX_OF_MANY) {
            errors.push(at.invalid(format!("must be less than or equal to {MAX_OF_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index")));
        }
    }
}

fn failure_policy(spec: &At<'_>, policy: &At<'_>, errors: &mut Errors) {
    let rules = policy.get("rules");
    if rules.len() > MAX_FAILURE_RULES {
        errors.push(rules.field.too_many(rules.len(), MAX_FAILURE_RULES));
    }
    let pod = spec.get("template").get("spec");
    let containers: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod.get(list).items())
        .map(|container| container.get("name").text())
        .collect();
    for rule in rules.items() {
        let action = rule.get("action");
        match action.text() {
            "" => {
                errors.push(action.required("valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"))
            }
            "FailIndex" if !spec.get("backoffLimitPerIndex").is_set() => {
                errors.push(action.invalid("requires the backoffLimitPerIndex to be set"));
            }
            _ => action.one_of(errors, &["Count", "FailIndex", "FailJob", "Ignore"]),
        }
        let (codes, conditions) = (rule.get("onExitCodes"), rule.get("onPodConditions"));
        if codes.is_set() {
            exit_codes(&codes, &containers, errors);
        }
        if conditions.len() > MAX_CONDITIONS {
            errors.push(conditions.field.too_many(conditions.len(), MAX_CONDITIONS));
        }
        for condition in conditions.items() {
            let kind = condition.get("type");
            kind.reasons(errors, names::qualified_name(kind.text()));
            let status = condition.get("status");
            if status.is_empty() {
                errors.push(status.required("valid values: [\"False\" \"True\" \"Unknown\"]"));
            } else {
                status.one_of(errors, &["False", "True", "Unknown"]);
            }
        }
        match (codes.is_set(), !conditions.is_empty()) {
            (true, true) => errors.push(
                rule.field
                    .invalid_unshown("specifying both OnExitCodes and OnPodConditions is not supported"),
            ),
            (false, false) => errors.push(
                rule.field.invalid_unshown("specifying one of OnExitCodes and OnPodConditions is required"),
            ),
            _ => {}
        }
    }
}

fn exit_codes(codes: &At<'_>, containers: &HashSet<&str>, errors: &mut Errors) {
    let operator = codes.get("operator");
    if operator.is_empty() {
        errors.push(operator.required("valid values: [\"In\" \"NotIn\"]"));
    } else {
        operator.one_of(errors, &["In", "NotIn"]);
    }
    let container = codes.get("containerName");
    if container.is_set() && !containers.contains(container.text()) {
        errors.push(
            container.invalid("must be one of the container or initContainer names in the pod template"),
        );
    }
    let values = codes.get("values");
    if values.is_empty() {
        errors.push(values.invalid("at least one value is required"));
    } else if values.len() > MAX_EXIT_CODES {
        errors.push(values.field.too_many(values.len(), MAX_EXIT_CODES));
    }
    let (mut seen, mut ordered, mut last) = (HashSet::new(), true, i64::MIN);
    for value in values.items() {
        let code = value.int().unwrap_or(0);
        if operator.text() == "In" && code == 0 {
            errors.push(value.invalid("must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            errors.push(value.duplicate());
        }
        ordered &= last <= code;
        last = code;
    }
    if !ordered {
        errors.push(values.invalid("must be ordered"));
    }
}

fn success_policy(spec: &At<'_>, policy: &At<'_>, errors: &mut Errors) {
    let completions = spec.get("completions").int().unwrap_or(0);
    let rules = policy.get("rules");
    if rules.is_empty() {
        errors
            .push(rules.required("at least one rules must be specified when the successPolicy is specified"));
    }
    if rules.len() > MAX_SUCCESS_RULES {
        errors.push(rules.field.too_many(rules.len(), MAX_SUCCESS_RULES));
    }
    for rule in rules.items() {
        let (count, indexes) = (rule.get("succeededCount"), rule.get("succeededIndexes"));
        if !count.is_set() && !indexes.is_set() {
            errors
                .push(rule.required("at least one of succeededCount or succeededIndexes must be specified"));
        }
        let mut total = 0;
        if indexes.is_set() {
            if indexes.text().len() > MAX_INDEXES_BYTES {
                errors.push(indexes.field.too_long(MAX_INDEXES_BYTES));
            }
            match count_indexes(indexes.text(), completions) {
                Ok(counted) => total = counted,
                Err(why) => {
                    errors.push(indexes.invalid(format!("error parsing succeededIndexes: {why}")));
                }
            }
        }
        count.not_negative(errors);
        let Some(given) = count.int() else { continue };
        if given > completions {
            errors.push(count.invalid(format!(
                "must be less than or equal to {completions} (the number of specified completions)"
            )));
        }
        if indexes.is_set() && given > total {
            errors.push(count.invalid(format!("must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)")));
        }
    }
}

/// How many indexes a list like `1,3-5` names: rising, and each below `completions`.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let mut last: Option<i64> = None;
    let mut total = 0;
    for part in text.split(',') {
        let limits: Vec<&str> = part.split('-').collect();
        if limits.len() > 2 {
            return Err(format!(
                "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let number = |text: &str| {
            let number = text
                .parse::<i64>()
                .map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
            if number >= completions {
                return Err(format!("too large index: {text:?}"));
            }
            Ok(number)
        };
        let first = number(limits.first().copied().unwrap_or_default())?;
        if let Some(before) = last
            && before >= first
        {
            return Err(format!("non-increasing order, previous: {before}, current: {first}"));
        }
        let end = match limits.get(1) {
            None => first,
            Some(text) => {
                let end = number(text)?;
                if first >= end {
                    return Err(format!("non-increasing order, previous: {first}, current: {end}"));
                }
                end
            }
        };
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}
