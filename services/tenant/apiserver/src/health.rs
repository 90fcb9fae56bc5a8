//! `/livez`, `/readyz`, `/healthz`: one list of checks, shown whole or one by one.
//!
//! The process is alive when it answers; what can fail is the cluster's store, so readiness asks it for a
//! linearizable read and gives it two seconds.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::body::Response;
use crate::paths::plain;
use crate::pipeline::Call;

/// A store that needs longer than this is not ready (DESIGN §5: without quorum, answers come within 2 s).
const PATIENCE: Duration = Duration::from_secs(2);

const ROOTS: [(&str, &[&str]); 3] = [
    ("/healthz", &["ping", "log", "raft"]),
    ("/livez", &["ping", "log"]),
    ("/readyz", &["ping", "log", "raft", "informer-sync", "shutdown"]),
];

pub struct Check {
    root: &'static str,
    checks: &'static [&'static str],
    /// `/readyz/raft`
    one: Option<&'static str>,
}

impl Check {
    pub fn of(path: &str) -> Option<Check> {
        ROOTS.iter().find_map(|&(root, checks)| {
            let rest = path.strip_prefix(root)?;
            let name = rest.trim_matches('/');
            if name.is_empty() {
                return Some(Check { root, checks, one: None });
            }
            let one = checks.iter().find(|one| **one == name && rest.starts_with('/'))?;
            Some(Check { root, checks, one: Some(one) })
        })
    }
}

/// For the list of paths at `/`.
pub fn paths() -> impl Iterator<Item = String> {
    ROOTS.iter().flat_map(|&(root, checks)| checks.iter().map(move |one| format!("{root}/{one}")))
}

pub async fn answer(call: &Call, check: &Check) -> Response {
    let excluded: Vec<&str> = call.query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = Vec::new();
    for &name in check.checks {
        if check.one.is_some_and(|one| one != name) {
            continue;
        }
        if excluded.contains(&name) {
            lines += &format!("[+]{name} excluded: ok\n");
            continue;
        }
        match run(call, name).await {
            Ok(()) => lines += &format!("[+]{name} ok\n"),
            Err(why) => {
                tracing::info!(tenant = %call.plane.tenant, check = name, why, "health check failed");
                // As upstream: the reason is the operator's, the name is everybody's.
                lines += &format!("[-]{name} failed: reason withheld\n");
                failed.push(name);
            }
        }
    }
    for unknown in excluded.iter().filter(|one| !check.checks.contains(one)) {
        lines += &format!("warn: some health checks cannot be excluded: no matches for {unknown:?}\n");
    }
    let name = check.root.trim_start_matches('/');
    let (code, body) = match (failed.is_empty(), call.query.get("verbose")) {
        (true, None) => (200, "ok".to_owned()),
        (true, Some(_)) => (200, format!("{lines}{name} check passed\n")),
        (false, _) => (500, format!("{lines}{name} check failed\n")),
    };
    let mut response = plain(code, "text/plain; charset=utf-8", body);
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

async fn run(call: &Call, name: &str) -> Result<(), String> {
    match name {
        "raft" => match tokio::time::timeout(PATIENCE, call.plane.registry().group().read_index()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(cause)) => Err(cause.to_string()),
            Err(_) => Err(format!("no answer in {} s", PATIENCE.as_secs())),
        },
        "shutdown" if call.plane.tasks.stopping().is_cancelled() => {
            Err("process is shutting down".to_owned())
        }
        // Answering at all is the proof for the others: there is no informer that could lag behind, since
        // the store itself is what is read.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_have_paths_of_their_own() {
        for (path, wanted) in [
            ("/readyz", Some(None)),
            ("/readyz/", Some(None)),
            ("/readyz/raft", Some(Some("raft"))),
            ("/livez/raft", None),
            ("/readyzraft", None),
            ("/ready", None),
        ] {
            assert_eq!(Check::of(path).map(|check| check.one), wanted, "{path}");
        }
    }
}
