//! Query and path parameters, each with its type and a sentence.

/// `(type, in, description)`; `None` for a name no operation has.
pub(crate) fn describe(name: &str) -> Option<(&'static str, &'static str, &'static str)> {
    Some(match name {
        "name" => ("string", "path", "Name of the object."),
        "namespace" => ("string", "path", "Namespace of the object."),
        "path-segment" => ("string", "path", "Path behind the proxy."),
        "allowWatchBookmarks" => (
            "boolean",
            "query",
            "Whether a watch may carry BOOKMARK events, which only say how far it has come.",
        ),
        "command" => {
            ("string", "query", "The command to run and its arguments, one parameter each; no shell.")
        }
        "container" => ("string", "query", "Which container; may be left out where a pod has only one."),
        "continue" => (
            "string",
            "query",
            "Token of the previous page of a list; the other parameters must be the same as there. A token that has expired is answered with 410 and one to go on from.",
        ),
        "dryRun" => ("string", "query", "`All` goes through every stage but stores nothing."),
        "fieldManager" => (
            "string",
            "query",
            "Who makes this change, at most 128 printable characters. Apply patches must say it.",
        ),
        "fieldSelector" => {
            ("string", "query", "Only objects whose fields match, for the fields a kind can select by.")
        }
        "fieldValidation" => (
            "string",
            "query",
            "What to do about unknown and duplicate fields: Ignore drops them, Warn says so in a header (the default), Strict refuses the request.",
        ),
        "follow" => ("boolean", "query", "Go on with what is logged from now on."),
        "force" => ("boolean", "query", "Take over fields that other managers own. For apply patches only."),
        "gracePeriodSeconds" => (
            "integer",
            "query",
            "How long the object may take to end; 0 is at once. A default per kind applies without it.",
        ),
        "ignoreStoreReadErrorWithClusterBreakingPotential" => (
            "boolean",
            "query",
            "Delete an object that cannot be read from the store any more. Its finalizers are not waited for.",
        ),
        "insecureSkipTLSVerifyBackend" => {
            ("boolean", "query", "Do not check the certificate of the kubelet the log comes from.")
        }
        "labelSelector" => ("string", "query", "Only objects whose labels match."),
        "limit" => (
            "integer",
            "query",
            "At most so many objects; `continue` in the answer leads to the next ones, from the same snapshot.",
        ),
        "limitBytes" => ("integer", "query", "End the log after so many bytes."),
        "orphanDependents" => ("boolean", "query", "Deprecated, use propagationPolicy."),
        "path" => ("string", "query", "The URL path behind the proxy."),
        "ports" => ("integer", "query", "Ports to forward."),
        "pretty" => ("string", "query", "`true` for JSON with line breaks."),
        "previous" => ("boolean", "query", "The log of the container's previous run."),
        "propagationPolicy" => {
            ("string", "query", "What becomes of dependents: Orphan, Background or Foreground.")
        }
        "resourceVersion" => (
            "string",
            "query",
            "How new the answer must be: unset for the newest, 0 for any, else at least or exactly this version.",
        ),
        "resourceVersionMatch" => {
            ("string", "query", "How a list takes resourceVersion: Exact or NotOlderThan.")
        }
        "sendInitialEvents" => (
            "boolean",
            "query",
            "Begin a watch with events for what there is, followed by a bookmark that says so.",
        ),
        "sinceSeconds" => ("integer", "query", "Only what was logged in the last so many seconds."),
        "stderr" => ("boolean", "query", "Connect standard error."),
        "stdin" => ("boolean", "query", "Connect standard input."),
        "stdout" => ("boolean", "query", "Connect standard output."),
        "stream" => ("string", "query", "Which stream of the log: All, Stdout or Stderr."),
        "tailLines" => ("integer", "query", "Only so many lines from the end."),
        "timeoutSeconds" => ("integer", "query", "How long a list or watch may take."),
        "timestamps" => ("boolean", "query", "Begin each line of the log with its time."),
        "tty" => ("boolean", "query", "Use a terminal."),
        "watch" => ("boolean", "query", "Send changes as they happen."),
        _ => return None,
    })
}

pub(crate) const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
pub(crate) const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];
pub(crate) const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
pub(crate) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
pub(crate) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
pub(crate) const LOG: &[&str] = &[
    "container",
    "follow",
    "insecureSkipTLSVerifyBackend",
    "limitBytes",
    "previous",
    "sinceSeconds",
    "stream",
    "tailLines",
    "timestamps",
];

/// Parameters of a connecting subresource.
pub(crate) fn connect(subresource: &str) -> &'static [&'static str] {
    match subresource {
        "attach" => &["container", "stderr", "stdin", "stdout", "tty"],
        "exec" => &["command", "container", "stderr", "stdin", "stdout", "tty"],
        "portforward" => &["ports"],
        _ => &["path"],
    }
}
