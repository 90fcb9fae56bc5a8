//! Admission of requests that end in a connection: `exec`, `attach`, `portforward`, `proxy`.
//!
//! Their options come as query parameters; webhooks and policies see them as an object of the kind that
//! upstream decodes them into.

use api_kinds::{ResourceInfo, Subresource};
use api_machinery::{Document, Status};
use serde_json::Value;

use crate::options::WriteOptions;
use crate::pipeline::Call;
use crate::query::Query;
use crate::request::ResourcePath;

pub fn is_connect(subresource: &str) -> bool {
    matches!(subresource, "exec" | "attach" | "portforward" | "proxy")
}

pub async fn admit(
    call: &Call,
    at: &ResourcePath,
    resource: &ResourceInfo,
    subresource: &Subresource,
) -> Result<(), Status> {
    let mut object = options(&at.subresource, &call.query, at.rest.as_deref());
    object.set("apiVersion", subresource.gvk.api_version());
    object.set("kind", subresource.gvk.kind.to_string());
    let ctx = call.context(&WriteOptions::default());
    call.plane
        .registry()
        .admit_connect(
            &ctx,
            resource,
            &subresource.gvk,
            &at.namespace,
            &at.name,
            &at.subresource,
            &mut object,
        )
        .await
}

fn options(subresource: &str, query: &Query, rest: Option<&str>) -> Document {
    let mut options = Document::default();
    match subresource {
        "proxy" => {
            if let Some(path) = rest.filter(|path| !path.is_empty()) {
                options.set("path", path);
            }
        }
        "portforward" => {
            let ports = query.all("ports").flat_map(|ports| ports.split(','));
            let ports: Vec<Value> =
                ports.filter_map(|port| port.parse::<i32>().ok()).map(Value::from).collect();
            if !ports.is_empty() {
                options.set("ports", ports);
            }
        }
        _ => {
            for name in ["stdin", "stdout", "stderr", "tty"] {
                if query.flag(name) {
                    options.set(name, true);
                }
            }
            if let Some(container) = query.text("container") {
                options.set("container", container);
            }
            let command: Vec<&str> = query.all("command").collect();
            if subresource == "exec" && !command.is_empty() {
                options.set("command", command);
            }
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_an_object() {
        for (subresource, query, rest, wanted) in [
            (
                "exec",
                "container=c&stdin=true&stdout=1&tty=false&command=sh&command=-c",
                None,
                json!({"container": "c", "stdin": true, "stdout": true, "command": ["sh", "-c"]}),
            ),
            ("attach", "stderr=true&command=x", None, json!({"stderr": true})),
            ("portforward", "ports=80,443&ports=x", None, json!({"ports": [80, 443]})),
            ("proxy", "a=b", Some("/metrics"), json!({"path": "/metrics"})),
            ("proxy", "", None, json!({})),
        ] {
            let got = options(subresource, &Query::parse(Some(query)), rest);
            assert_eq!(got.into_value(), wanted, "{subresource}?{query}");
        }
    }
}
