//! What a request asks for, read off its method and URL.
//!
//! [`RequestInfo::parse`] is pure and is the only place that knows the shape of Kubernetes URLs:
//! authorization, routing, metrics and audit all read its result, so they cannot disagree.
//!
//! Not here: whether the resource exists (`route`), or what the body says.

use http::Method;
use tenant_client::{Access, Target};

use crate::query::{Query, decode};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a path that
    /// names no resource the lower-case HTTP method.
    pub verb: String,
    /// As sent, without the query.
    pub path: String,
    pub resource: Option<ResourcePath>,
}

/// `/api/v1/namespaces/<namespace>/<resource>/<name>/<subresource>/<rest>`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub resource: String,
    /// Empty for the object itself.
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// True when `name` was a path segment, false when a field selector pinned it down.
    pub named_in_path: bool,
    /// What follows the subresource, still encoded, with its leading slash: where a proxied request goes.
    /// `None` when not even a slash follows.
    pub rest: Option<String>,
}

/// Subresources of a namespace itself; `/namespaces/x/<anything else>` is a resource inside it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// Takes the URL's path as sent (still percent-encoded). Never fails: what is no resource is a path.
    pub fn parse(method: &Method, path: &str, query: &Query) -> RequestInfo {
        let plain = || RequestInfo {
            verb: method.as_str().to_ascii_lowercase(),
            path: path.to_owned(),
            resource: None,
        };
        let trimmed = path.trim_matches('/');
        let raw: Vec<&str> = if trimmed.is_empty() { Vec::new() } else { trimmed.split('/').collect() };
        // `/api/v1/x` at least; `/api/v1` and `/apis/apps/v1` are discovery.
        let (group, mut at) = match raw.first() {
            Some(&"api") if raw.len() >= 3 => (String::new(), 1),
            Some(&"apis") if raw.len() >= 4 => (decode(raw[1]).into_owned(), 2),
            _ => return plain(),
        };
        let version = decode(raw[at]).into_owned();
        at += 1;
        let mut verb = match *method {
            Method::POST => "create",
            Method::GET | Method::HEAD => "get",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        };
        // The old watch prefix, still answered by upstream: /api/v1/watch/namespaces/x/pods
        let mut old_watch = false;
        if raw[at] == "watch" {
            if raw.len() < at + 2 {
                return plain();
            }
            old_watch = true;
            verb = "watch";
            at += 1;
        }
        let mut namespace = String::new();
        if raw[at] == "namespaces" && raw.len() > at + 1 {
            namespace = decode(raw[at + 1]).into_owned();
            if raw.len() > at + 2 && !NAMESPACE_SUBRESOURCES.contains(&raw[at + 2]) {
                at += 2;
            }
        }
        let parts = &raw[at..];
        let segment =
            |index: usize| parts.get(index).map(|part| decode(part).into_owned()).unwrap_or_default();
        let mut resource = ResourcePath {
            group,
            version,
            resource: segment(0),
            name: segment(1),
            named_in_path: parts.len() > 1,
            subresource: segment(2),
            namespace,
            rest: None,
        };
        if parts.len() > 3 {
            // A trailing slash matters to whoever is proxied to.
            let tail = if path.ends_with('/') { "/" } else { "" };
            resource.rest = Some(format!("/{}{tail}", parts[3..].join("/")));
        } else if parts.len() == 3 && path.ends_with('/') {
            resource.rest = Some("/".to_owned());
        }
        if !resource.named_in_path {
            match verb {
                "get" => verb = if query.flag("watch") { "watch" } else { "list" },
                "delete" => verb = "deletecollection",
                _ => {}
            }
            if matches!(verb, "list" | "watch" | "deletecollection")
                && let Some(name) = query.text("fieldSelector").and_then(single_name)
            {
                resource.name = name;
            }
        } else if verb == "get" && resource.subresource.is_empty() && query.flag("watch") && !old_watch {
            // `GET …/pods/x?watch=1` is a get: upstream looks at `watch` only where no name is given.
            verb = "get";
        }
        RequestInfo { verb: verb.to_owned(), path: path.to_owned(), resource: Some(resource) }
    }

    /// The question for an authorizer.
    pub fn access(&self) -> Access {
        let target = match &self.resource {
            None => Target::Path(self.path.clone()),
            Some(at) => Target::Resource {
                group: at.group.clone(),
                version: at.version.clone(),
                resource: at.resource.clone(),
                subresource: at.subresource.clone(),
                namespace: at.namespace.clone(),
                name: at.name.clone(),
            },
        };
        Access { verb: self.verb.clone(), target, ..Access::default() }
    }

    /// Requests that hold no seat of flow control, since they last as long as the client likes.
    pub fn is_long_running(&self, query: &Query) -> bool {
        match &self.resource {
            None => false,
            Some(_) if self.verb == "watch" => true,
            Some(at) => match at.subresource.as_str() {
                "exec" | "attach" | "portforward" | "proxy" => true,
                "log" => query.flag("follow"),
                _ => false,
            },
        }
    }

    /// `resource`, `namespace` or `cluster`: the label upstream's metrics have.
    pub fn scope(&self) -> &'static str {
        match &self.resource {
            Some(at) if !at.name.is_empty() || self.verb == "create" => "resource",
            Some(at) if !at.namespace.is_empty() => "namespace",
            Some(_) => "cluster",
            None => "",
        }
    }
}

/// The name a field selector pins down, if it may stand for a path segment.
fn single_name(selector: &str) -> Option<String> {
    let parsed = api_machinery::FieldSelector::parse(selector).ok()?;
    let name = parsed.single_name()?;
    let fine = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%']);
    fine.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_as_upstream_reads_them() {
        let rows = [
            ("GET", "/", "get path"),
            ("GET", "/healthz", "get path"),
            ("GET", "/api", "get path"),
            ("GET", "/api/v1", "get path"),
            ("GET", "/apis/apps", "get path"),
            ("GET", "/apis/apps/v1", "get path"),
            ("POST", "/foo/bar/baz", "post path"),
            ("GET", "/api/v1/nodes", "list /v1 nodes"),
            ("GET", "/api/v1/nodes/n1", "get /v1 nodes name=n1"),
            ("GET", "/api/v1/namespaces", "list /v1 namespaces"),
            ("GET", "/api/v1/namespaces/blue", "get /v1 namespaces ns=blue name=blue"),
            (
                "PUT",
                "/api/v1/namespaces/blue/finalize",
                "update /v1 namespaces ns=blue name=blue sub=finalize",
            ),
            ("GET", "/api/v1/namespaces/blue/pods", "list /v1 pods ns=blue"),
            ("GET", "/api/v1/namespaces/blue/pods?watch=true", "watch /v1 pods ns=blue"),
            ("GET", "/api/v1/namespaces/blue/pods?watch=false", "list /v1 pods ns=blue"),
            ("GET", "/api/v1/watch/namespaces/blue/pods", "watch /v1 pods ns=blue"),
            ("GET", "/api/v1/namespaces/blue/pods/a/log", "get /v1 pods ns=blue name=a sub=log"),
            ("POST", "/api/v1/namespaces/blue/pods", "create /v1 pods ns=blue"),
            ("DELETE", "/api/v1/namespaces/blue/pods", "deletecollection /v1 pods ns=blue"),
            ("DELETE", "/api/v1/namespaces/blue/pods/a", "delete /v1 pods ns=blue name=a"),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/blue/deployments/web/scale",
                "patch apps/v1 deployments ns=blue name=web sub=scale",
            ),
            ("GET", "/api/v1/nodes/a%3Ab", "get /v1 nodes name=a:b"),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1", "list /v1 nodes name=n1"),
            (
                "GET",
                "/api/v1/namespaces/b/services/http:web:80/proxy/x/",
                "get /v1 services ns=b name=http:web:80 sub=proxy rest=/x/",
            ),
            ("GET", "/api/v1/namespaces/b/services/web/proxy", "get /v1 services ns=b name=web sub=proxy"),
            (
                "GET",
                "/api/v1/namespaces/b/services/web/proxy/",
                "get /v1 services ns=b name=web sub=proxy rest=/",
            ),
        ];
        for (method, url, wanted) in rows {
            let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
            let info = RequestInfo::parse(&method.parse().unwrap(), path, &Query::parse(query));
            assert_eq!(shown(&info), wanted, "{method} {url}");
        }
    }

    fn shown(info: &RequestInfo) -> String {
        let Some(at) = &info.resource else { return format!("{} path", info.verb) };
        let mut out = format!("{} {}/{} {}", info.verb, at.group, at.version, at.resource);
        for (label, value) in [("ns", &at.namespace), ("name", &at.name), ("sub", &at.subresource)] {
            if !value.is_empty() {
                out += &format!(" {label}={value}");
            }
        }
        if let Some(rest) = &at.rest {
            out += &format!(" rest={rest}");
        }
        out
    }
}
