//! `spec.podFailurePolicy`: what one pod's failure means for its Job.
//!
//! Not here: `FailIndex`, which goes with back-off per index; such a failure counts.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Count,
    /// As if the pod had never been.
    Ignore,
    FailJob {
        message: String,
    },
}

/// The first rule that matches decides. `pod` is `<namespace>/<name>`, `status` the pod's.
pub(crate) fn verdict(policy: &Value, pod: &str, status: &Value) -> Verdict {
    let rules = policy["rules"].as_array().into_iter().flatten();
    for (at, rule) in rules.enumerate() {
        let action = rule["action"].as_str().unwrap_or_default();
        let codes = &rule["onExitCodes"];
        let why = if codes.is_object() {
            exited_with(codes, status).map(|(container, code)| {
                format!("Container {container} for pod {pod} failed with exit code {code} matching {action} rule at index {at}")
            })
        } else {
            condition_of(&rule["onPodConditions"], status)
                .map(|kind| format!("Pod {pod} has condition {kind} matching {action} rule at index {at}"))
        };
        let Some(message) = why else { continue };
        match action {
            "Ignore" => return Verdict::Ignore,
            "FailJob" => return Verdict::FailJob { message },
            "Count" => return Verdict::Count,
            _ => {}
        }
    }
    Verdict::Count
}

/// The container whose end the rule is about, and its exit code.
fn exited_with<'a>(rule: &Value, status: &'a Value) -> Option<(&'a str, i64)> {
    let values: Vec<i64> =
        rule["values"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
    let within = rule["operator"] == "In";
    let containers = ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten());
    for container in containers {
        let name = container["name"].as_str().unwrap_or_default();
        if rule["containerName"].as_str().is_some_and(|wanted| wanted != name) {
            continue;
        }
        match container["state"]["terminated"]["exitCode"].as_i64() {
            Some(code) if code != 0 && values.contains(&code) == within => return Some((name, code)),
            _ => {}
        }
    }
    None
}

fn condition_of<'a>(patterns: &Value, status: &'a Value) -> Option<&'a str> {
    let patterns = patterns.as_array()?;
    status["conditions"].as_array()?.iter().find_map(|condition| {
        let fits = |pattern: &Value| {
            pattern["type"] == condition["type"]
                && condition["status"] == pattern["status"].as_str().unwrap_or("True")
        };
        patterns.iter().any(fits).then(|| condition["type"].as_str())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_matching_rule_decides() {
        let exit = |operator: &str, values: Value, container: Value| json!({"onExitCodes": {"operator": operator, "values": values, "containerName": container}});
        let condition = json!({"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let ended = |code: i64| json!({"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": code}}}]});
        let disrupted = json!({"conditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let told = |text: &str| Verdict::FailJob { message: text.to_owned() };
        for (rule, action, status, wanted) in [
            (
                exit("In", json!([1, 42]), Value::Null),
                "FailJob",
                ended(42),
                told("Container c for pod d/p failed with exit code 42 matching FailJob rule at index 1"),
            ),
            (exit("In", json!([1]), Value::Null), "Ignore", ended(1), Verdict::Ignore),
            (exit("In", json!([1]), Value::Null), "Ignore", ended(2), Verdict::Count),
            (exit("NotIn", json!([1]), Value::Null), "Ignore", ended(2), Verdict::Ignore),
            (exit("NotIn", json!([1]), Value::Null), "Ignore", ended(0), Verdict::Count),
            (exit("In", json!([1]), json!("other")), "Ignore", ended(1), Verdict::Count),
            (
                condition.clone(),
                "FailJob",
                disrupted.clone(),
                told("Pod d/p has condition DisruptionTarget matching FailJob rule at index 1"),
            ),
            (condition.clone(), "Ignore", ended(1), Verdict::Count),
            (condition, "Count", disrupted, Verdict::Count),
        ] {
            let mut rule = rule;
            rule["action"] = json!(action);
            // A rule that matches nothing comes first.
            let policy = json!({"rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [99]}}, rule]});
            assert_eq!(verdict(&policy, "d/p", &status), wanted, "{policy}");
        }
    }
}
