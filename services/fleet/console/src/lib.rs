//! Serves the web console: a page of static files, embedded in the binary, that talks to the REST API of
//! the host it came from.
//!
//! Start at [`respond`]. The page itself is in `web/` (React, TypeScript); `cargo xtask console` builds it
//! into `web/dist`, and `build.rs` makes the table of files from there.
//!
//! Not here: any data. Whoever has not signed in gets the same bytes as everybody else, and everything
//! shown comes over the REST API with its own checks.

use axum::Router;
use axum::body::Body;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};

/// A file of the console as it was built.
#[derive(Debug, Clone, Copy)]
struct File {
    /// Below the root, without a leading slash.
    path: &'static str,
    content_type: &'static str,
    /// With its quotes.
    etag: &'static str,
    plain: &'static [u8],
    gzip: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
}

/// Sorted by path.
static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// What a browser may load and do for a page of ours. Nothing inline, nothing from elsewhere; DOM sinks
/// that turn strings into script are closed altogether (Trusted Types without a policy).
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// On every answer. No HSTS: on `localhost` it would force TLS on everything else a developer runs there.
const SECURITY_HEADERS: &[(&str, &str)] = &[
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
];

/// Files below it have a hash of their content in their name.
const HASHED: &str = "assets/";

/// Said in the console's place by a binary that was built without it.
const NOT_BUILT: &str = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Roadstead</title>\n\
     <h1>This binary was built without the console</h1>\n\
     <p>Build it with <code>cargo xtask console</code>, then build and start Roadstead again. \
     <code>cargo xtask up</code> does all of it. The REST API and the command line work without it.</p>\n</html>\n";

/// Whether the console is in this binary.
pub fn is_built() -> bool {
    !FILES.is_empty()
}

/// The console alone, as a service of its own.
pub fn router() -> Router {
    Router::new().fallback(|request: Request<Body>| async move {
        respond(request.method(), request.uri().path(), request.headers())
    })
}

/// The answer to a request for `path`: a file, or the page for every path that is not one, since the page
/// finds its own way from the address. 404 for a hashed file of another build, 405 for what is no reading.
pub fn respond(method: &Method, path: &str, headers: &HeaderMap) -> Response<Body> {
    let mut response = match choose(FILES, method, path) {
        Choice::File(file) => serve(file, method, headers),
        Choice::NotBuilt => plain(StatusCode::SERVICE_UNAVAILABLE, "text/html; charset=utf-8", NOT_BUILT),
        Choice::Missing => plain(StatusCode::NOT_FOUND, "text/plain", "no such file; reload the page\n"),
        Choice::NoReading => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD\n");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    };
    for &(name, value) in SECURITY_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[derive(Debug)]
enum Choice<'a> {
    File(&'a File),
    NotBuilt,
    Missing,
    NoReading,
}

fn choose<'a>(files: &'a [File], method: &Method, path: &str) -> Choice<'a> {
    if method != Method::GET && method != Method::HEAD {
        return Choice::NoReading;
    }
    let path = path.trim_start_matches('/');
    let find = |path: &str| files.iter().find(|file| file.path == path);
    match find(path) {
        Some(file) => Choice::File(file),
        None if path.starts_with(HASHED) => Choice::Missing,
        None => find("index.html").map_or(Choice::NotBuilt, Choice::File),
    }
}

fn serve(file: &'static File, method: &Method, headers: &HeaderMap) -> Response<Body> {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    // Weak comparison, as RFC 9110 asks for this header.
    let is_known = known
        .flat_map(|value| value.split(','))
        .any(|tag| tag.trim().trim_start_matches("W/") == file.etag || tag.trim() == "*");
    let cache = if file.path.starts_with(HASHED) {
        "public, max-age=31536000, immutable"
    } else {
        // Asked for each time, mostly answered with 304: it names the hashed files of this build.
        "no-cache"
    };
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let (encoding, body) = encode(file, accepted.unwrap_or_default());
    let mut response = Response::new(Body::empty());
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
        fields.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        if let Some(encoding) = encoding {
            fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        if method == Method::GET {
            *response.body_mut() = Body::from(body);
        }
    }
    let fields = response.headers_mut();
    fields.insert(header::ETAG, HeaderValue::from_static(file.etag));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    fields.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// The smallest form that `accepted` (an `Accept-Encoding`) allows.
fn encode(file: &File, accepted: &str) -> (Option<&'static str>, &'static [u8]) {
    let may = |coding: &str| {
        accepted.split(',').any(|item| {
            let mut parts = item.split(';').map(str::trim);
            let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(coding));
            named && !parts.any(|one| one.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)))
        })
    };
    match (file.brotli, file.gzip) {
        (Some(brotli), _) if may("br") => (Some("br"), brotli),
        (_, Some(gzip)) if may("gzip") => (Some("gzip"), gzip),
        _ => (None, file.plain),
    }
}

fn plain(status: StatusCode, content_type: &'static str, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    const SCRIPT: File = File {
        path: "assets/index-abc.js",
        content_type: "text/javascript; charset=utf-8",
        etag: "\"1\"",
        plain: b"plain",
        gzip: Some(b"gz"),
        brotli: Some(b"br"),
    };
    const PAGE: File = File { path: "index.html", content_type: "text/html", etag: "\"2\"", ..SCRIPT };

    #[test]
    fn a_path_is_a_file_or_the_page() {
        for (built, method, path, wanted) in [
            (true, Method::GET, "/", "index.html"),
            (true, Method::HEAD, "/index.html", "index.html"),
            (true, Method::GET, "/o/demo/clusters/blue", "index.html"),
            (true, Method::GET, "/o/demo/clusters/a.b", "index.html"),
            (true, Method::GET, "/assets/index-abc.js", "assets/index-abc.js"),
            (true, Method::GET, "/assets/index-old.js", "missing"),
            (true, Method::GET, "/assets/../index.html", "missing"),
            (true, Method::POST, "/", "no reading"),
            (false, Method::GET, "/", "not built"),
        ] {
            let files: &[File] = if built { &[SCRIPT, PAGE] } else { &[] };
            let got = match choose(files, &method, path) {
                Choice::File(file) => file.path,
                Choice::NotBuilt => "not built",
                Choice::Missing => "missing",
                Choice::NoReading => "no reading",
            };
            assert_eq!(got, wanted, "{method} {path}");
        }
    }

    #[test]
    fn the_smallest_form_the_browser_takes() {
        for (accepted, wanted) in [
            ("", None),
            ("gzip", Some("gzip")),
            ("gzip, deflate, br, zstd", Some("br")),
            ("br;q=0, gzip;q=0.5", Some("gzip")),
            ("BR; q=1.0", Some("br")),
            ("identity", None),
        ] {
            assert_eq!(encode(&SCRIPT, accepted).0, wanted, "{accepted}");
        }
        let bare = File { gzip: None, brotli: None, ..SCRIPT };
        assert_eq!(encode(&bare, "br, gzip"), (None, &b"plain"[..]));
    }

    #[tokio::test]
    async fn answers_are_cached_by_what_their_name_promises() {
        static ROWS: &[File] = &[SCRIPT, PAGE];
        for (file, sent, status, cache, body) in [
            (0, None, 200, "public, max-age=31536000, immutable", "plain"),
            (1, None, 200, "no-cache", "plain"),
            (1, Some("\"2\""), 304, "no-cache", ""),
            (1, Some("\"9\", W/\"2\""), 304, "no-cache", ""),
            (1, Some("\"9\""), 200, "no-cache", "plain"),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(sent) = sent {
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static(sent));
            }
            let response = serve(&ROWS[file], &Method::GET, &headers);
            assert_eq!(response.status(), status, "{sent:?}");
            assert_eq!(response.headers()[header::CACHE_CONTROL], cache);
            let got = response.into_body().collect().await.expect("bytes in memory").to_bytes();
            assert_eq!(got, body, "{sent:?}");
        }
    }

    #[tokio::test]
    async fn every_answer_is_guarded() {
        for (method, path) in [(Method::GET, "/"), (Method::GET, "/assets/none.js"), (Method::PUT, "/x")] {
            let request = Request::builder().method(&method).uri(path).body(Body::empty());
            let response = router().oneshot(request.expect("a request")).await.expect("it never fails");
            let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("ASCII");
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
            assert!(!policy.contains("unsafe"), "{path}: {policy}");
            assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
