//! One webhook of a configuration.

use std::collections::HashMap;
use std::time::Duration;

use api_machinery::Object;
use serde_json::Value;
use tenant_outbound::{Destination, DestinationError};

use super::breaker::Breaker;
use crate::conditions::Conditions;
use crate::expression::Variables;
use crate::matching::Matcher;

/// Default and bounds of `timeoutSeconds`.
const TIMEOUT_SECONDS: u64 = 10;

/// A webhook, ready to be matched and called.
pub(crate) struct Hook {
    /// Unique in the cluster, also where a configuration has two of one name.
    pub(crate) id: String,
    pub(crate) configuration: String,
    pub(crate) name: String,
    pub(crate) matcher: Matcher,
    pub(crate) conditions: Conditions,
    pub(crate) destination: Result<Destination, DestinationError>,
    /// `failurePolicy: Ignore`.
    pub(crate) fails_open: bool,
    pub(crate) timeout: Duration,
    /// May be called although nothing will be stored.
    pub(crate) dry_runs: bool,
    /// `v1` or `v1beta1`, what it prefers of what we speak.
    pub(crate) version: Option<&'static str>,
    /// `reinvocationPolicy: IfNeeded`.
    pub(crate) repeats: bool,
    pub(crate) breaker: Breaker,
}

/// All webhooks of one configuration, in its order.
pub(crate) fn parse_all(configuration: &Object) -> Vec<Hook> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let hooks = configuration.field("webhooks").unwrap_or_default();
    let hooks = hooks.as_array().map_or(&[][..], Vec::as_slice);
    let parse = |hook: &Value| {
        let text = |name: &str| hook.get(name).and_then(Value::as_str).unwrap_or_default();
        let name = text("name").to_owned();
        let count = seen.entry(name.clone()).or_default();
        let id = format!("{}/{name}/{count}", configuration.header.name);
        *count += 1;
        let versions = hook.get("admissionReviewVersions").and_then(Value::as_array).into_iter().flatten();
        let spoken = |version: &Value| ["v1", "v1beta1"].into_iter().find(|known| version == known);
        let seconds = hook.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(TIMEOUT_SECONDS);
        let fails_open = text("failurePolicy") == "Ignore";
        Hook {
            id,
            configuration: configuration.header.name.to_string(),
            name,
            matcher: Matcher::parse(hook, "rules", None),
            conditions: Conditions::parse(
                hook.get("matchConditions"),
                !fails_open,
                false,
                &Variables::default(),
            ),
            destination: Destination::from_client_config(hook.get("clientConfig").unwrap_or(&Value::Null)),
            fails_open,
            timeout: Duration::from_secs(seconds.clamp(1, 30)),
            dry_runs: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            version: versions.into_iter().find_map(spoken),
            repeats: text("reinvocationPolicy") == "IfNeeded",
            breaker: Breaker::default(),
        }
    };
    hooks.iter().map(parse).collect()
}
