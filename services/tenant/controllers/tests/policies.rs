//! Budgets, quotas, role sums, schedules and expiry against a cluster in memory.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::*;
use tenant_client::fake::until;

#[tokio::test(start_paused = true)]
async fn a_budget_says_how_many_may_go() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&DEPLOYMENTS, deployment("web", "one", 4));
    for (name, spec) in [
        ("least", json!({"minAvailable": 3})),
        ("percent", json!({"minAvailable": "50%"})),
        ("most", json!({"maxUnavailable": 1})),
        ("none", json!({"minAvailable": "100%"})),
    ] {
        let mut spec = spec;
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        cluster.api.put(
            &BUDGETS,
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "d"}, "spec": spec}),
        );
    }
    for (name, allowed, desired) in [("least", 1, 3), ("percent", 2, 2), ("most", 1, 3), ("none", 0, 4)] {
        until(name, || {
            let status = cluster.read(&BUDGETS, name)["status"].clone();
            status["disruptionsAllowed"] == allowed
                && status["desiredHealthy"] == desired
                && status["currentHealthy"] == 4
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_quota_is_counted_up_and_down() {
    let cluster = cluster();
    let resources = |cpu: &str| json!([{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"memory": "1Gi"}}}]);
    let pod = |name: &str, containers: Value| {
        cluster.api.put(
            &PODS,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "d"},
            "spec": {"containers": containers}, "status": {"phase": "Running"}}),
        );
    };
    let quota = |name: &str, spec: Value| {
        cluster.api.put(
            &QUOTAS,
            json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": "d"}, "spec": spec}),
        );
    };
    let used = |name: &str| cluster.read(&QUOTAS, name)["status"]["used"].clone();
    pod("a", resources("500m"));
    pod("b", resources("1"));
    quota(
        "q",
        json!({"hard": {"pods": "5", "requests.cpu": "2", "limits.memory": "4Gi", "secrets": "9", "count/deployments.apps": "3"}}),
    );
    quota("best", json!({"hard": {"pods": "5"}, "scopes": ["BestEffort"]}));
    let wanted = json!({"pods": "2", "requests.cpu": "1500m", "limits.memory": "2Gi", "secrets": "0", "count/deployments.apps": "0"});
    until("counted", || used("q") == wanted).await;
    pod("c", json!([{"name": "c"}]));
    cluster.api.put(
        &SECRETS,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "d"}}),
    );
    until("more", || used("q")["pods"] == "3" && used("q")["secrets"] == "1").await;
    until("scoped", || used("best") == json!({"pods": "1"})).await;
    cluster.api.remove(&PODS, "d", "b");
    until("less", || used("q")["requests.cpu"] == "500m").await;
}

#[tokio::test(start_paused = true)]
async fn a_role_is_the_sum_of_others() {
    let cluster = cluster();
    let roles = api_machinery::Gvr::new("rbac.authorization.k8s.io", "v1", "clusterroles");
    let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
    let role = |name: &str, labels: Value, rest: Value| {
        let mut value = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": labels}});
        rest.as_object().unwrap().iter().for_each(|(key, field)| value[key] = field.clone());
        cluster.api.put(&roles, value);
    };
    role(
        "sum",
        json!({}),
        json!({"rules": [], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to-sum": "true"}}]}}),
    );
    role("a", json!({"to-sum": "true"}), json!({"rules": [rule("pods")]}));
    role("b", json!({"to-sum": "false"}), json!({"rules": [rule("nodes")]}));
    let rules = || cluster.api.read(&roles, "", "sum").unwrap()["rules"].clone();
    until("one", || rules() == json!([rule("pods")])).await;
    role("b", json!({"to-sum": "true"}), json!({"rules": [rule("nodes"), rule("pods")]}));
    until("both, once each", || rules() == json!([rule("pods"), rule("nodes")])).await;
    cluster.api.remove(&roles, "", "a");
    until("what is left", || rules() == json!([rule("nodes"), rule("pods")])).await;
}

fn cron(name: &str, policy: &str, image: &str) -> Value {
    let mut template = template(name, image);
    template["spec"]["restartPolicy"] = json!("Never");
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name, "namespace": "d"},
        "spec": {"schedule": "* * * * *", "concurrencyPolicy": policy, "successfulJobsHistoryLimit": 2,
            "jobTemplate": {"metadata": {"labels": {"cron": name}}, "spec": {"completions": 1, "parallelism": 1, "backoffLimit": 0,
                "selector": {"matchLabels": {"app": name}}, "template": template}}}})
}

#[tokio::test(start_paused = true)]
async fn a_schedule_makes_jobs_and_keeps_a_few() {
    let cluster = cluster();
    cluster.run_pods();
    let mut value = cron("tick", "Allow", "task");
    // Each Job's own selector, as the API server makes it, is what keeps their pods apart.
    value["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"] = json!("task");
    cluster.api.put(&CRON_JOBS, value);
    tokio::time::sleep(Duration::from_secs(5 * 60 + 10)).await;
    let created = cluster.api.writes().iter().filter(|write| write.starts_with("create jobs")).count();
    assert_eq!(created, 5, "one a minute: {:?}", cluster.names(&JOBS));
    assert!(cluster.count(&JOBS) <= 3, "{:?}", cluster.names(&JOBS));
    assert!(cluster.read(&CRON_JOBS, "tick")["status"]["lastScheduleTime"].is_string());
    cluster.patch(&CRON_JOBS, "tick", json!({"spec": {"suspend": true}})).await;
    cluster.api.forget_writes();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(cluster.api.writes().iter().all(|write| !write.starts_with("create jobs")));
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_forbids_waits_for_the_last_run() {
    let cluster = cluster();
    cluster.run_pods();
    cluster.api.put(&CRON_JOBS, cron("slow", "Forbid", "server"));
    tokio::time::sleep(Duration::from_secs(5 * 60 + 10)).await;
    assert_eq!(cluster.count(&JOBS), 1);
    let active = cluster.read(&CRON_JOBS, "slow")["status"]["active"].clone();
    assert_eq!(active.as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_expires_when_it_asks_to() {
    let cluster = cluster();
    let at = base_clock::rfc3339(cluster.clock.now());
    for (name, ttl) in [("goes", json!(100)), ("stays", json!(null))] {
        cluster.api.put(&JOBS, json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "d"},
            "spec": {"ttlSecondsAfterFinished": ttl, "selector": {"matchLabels": {"app": name}}, "template": template(name, "task")},
            "status": {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": at}]}}));
    }
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(cluster.count(&JOBS), 2);
    tokio::time::sleep(Duration::from_secs(20)).await;
    until("it is gone", || cluster.names(&JOBS) == ["stays"]).await;
}
