//! Which headers pass between a person and a cluster.

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Of one connection, not of the request (RFC 9110, 7.6.1).
const HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// By which somebody is let in here, or says who they are: the cluster has to hear that from us alone.
const REQUEST_OWN: [&str; 8] =
    ["authorization", "cookie", "expect", "forwarded", "host", "idempotency-key", "origin", "referer"];
const REQUEST_PREFIXES: [&str; 5] = ["impersonate-", "x-remote-", "x-forwarded-", "sec-", "x-real-"];

/// What a cluster may not say under our address.
const RESPONSE_OWN: [&str; 6] = [
    "set-cookie",
    "www-authenticate",
    "strict-transport-security",
    "clear-site-data",
    "content-security-policy",
    "service-worker-allowed",
];
const RESPONSE_PREFIXES: [&str; 1] = ["access-control-"];

/// What goes on to the cluster, with `token`.
pub(crate) fn request_headers(given: &HeaderMap, token: &str) -> HeaderMap {
    let mut headers = pass(given, &REQUEST_OWN, &REQUEST_PREFIXES);
    // A token of the cell's is base64 and dots.
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    headers
}

/// What comes back to the person.
pub(crate) fn response_headers(given: &HeaderMap) -> HeaderMap {
    let mut headers = pass(given, &RESPONSE_OWN, &RESPONSE_PREFIXES);
    // A pod's page, reached through the API's own proxy, must not act for whoever looks at it.
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox"),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    headers
}

fn pass(given: &HeaderMap, own: &[&str], prefixes: &[&str]) -> HeaderMap {
    // `Connection` may name further ones.
    let named: Vec<String> = given
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut passed = HeaderMap::with_capacity(given.len());
    for (name, value) in given {
        let text = name.as_str();
        let stays = HOP.contains(&text)
            || own.contains(&text)
            || prefixes.iter().any(|prefix| text.starts_with(prefix))
            || named.iter().any(|one| one == text);
        if !stays {
            passed.append(name.clone(), value.clone());
        }
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn nothing_by_which_somebody_was_let_in_goes_on() {
        let given = headers(&[
            ("Accept", "application/json"),
            ("Authorization", "Bearer rs_1_2"),
            ("Cookie", "__Host-roadstead=rss_1_2"),
            ("Impersonate-User", "admin"),
            ("Impersonate-Extra-Scopes", "all"),
            ("X-Remote-User", "admin"),
            ("X-Remote-Group", "system:masters"),
            ("X-Forwarded-For", "10.0.0.1"),
            ("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.eA"),
            ("Connection", "keep-alive, X-Secret"),
            ("X-Secret", "1"),
            ("Upgrade", "websocket"),
            ("Transfer-Encoding", "chunked"),
            ("Idempotency-Key", "1"),
            ("Content-Type", "application/merge-patch+json"),
            ("Kubectl-Command", "get"),
        ]);
        let sent = request_headers(&given, "abc");
        let mut names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "authorization", "content-type", "kubectl-command"]);
        assert_eq!(sent["authorization"], "Bearer abc");
    }

    #[test]
    fn a_cluster_says_nothing_under_our_address_that_is_ours_to_say() {
        let given = headers(&[
            ("Content-Type", "text/html"),
            ("Set-Cookie", "__Host-roadstead=mine"),
            ("Set-Cookie", "b=2"),
            ("Access-Control-Allow-Origin", "*"),
            ("Content-Security-Policy", "script-src *"),
            ("Clear-Site-Data", "\"*\""),
            ("Audit-Id", "1"),
            ("Warning", "299 - \"one\""),
            ("Warning", "299 - \"two\""),
            ("Cache-Control", "no-cache, private"),
        ]);
        let back = response_headers(&given);
        assert_eq!(back.get_all("warning").iter().count(), 2);
        for (name, wanted) in [
            ("content-type", Some("text/html")),
            ("set-cookie", None),
            ("access-control-allow-origin", None),
            ("clear-site-data", None),
            ("audit-id", Some("1")),
            ("cache-control", Some("no-cache, private")),
            ("content-security-policy", Some("default-src 'none'; frame-ancestors 'none'; sandbox")),
        ] {
            assert_eq!(back.get(name).map(|value| value.to_str().unwrap()), wanted, "{name}");
        }
    }
}
