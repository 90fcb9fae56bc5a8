//! Prometheus metrics, with upstream's names where upstream has one.
//!
//! A family is empty until its first request, so an idle cluster's metrics cost next to nothing. Labels hold
//! only what was found in the table of resources: a client cannot make up series.
//!
//! Not here: the cell's own metrics (`base-telemetry`).

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upstream's buckets of `apiserver_request_duration_seconds`.
const DURATION_BUCKETS: [f64; 24] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0, 120.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: &'static str,
    pub dry_run: &'static str,
    pub component: &'static str,
}

impl RequestLabels {
    /// What the request's span is called: `LIST apps/v1/deployments`. As few names as there are series.
    pub fn span_name(&self) -> String {
        let path = [&self.group, &self.version, &self.resource, &self.subresource];
        let path: Vec<&str> = path.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        if path.is_empty() { self.verb.to_owned() } else { format!("{} {}", self.verb, path.join("/")) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    dry_run: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    request_kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LongLabels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    group: String,
    version: String,
    kind: String,
}

/// One cluster's metrics.
#[derive(Debug)]
pub struct Metrics {
    requests: Family<CodeLabels, Counter>,
    durations: Family<RequestLabels, Histogram, fn() -> Histogram>,
    inflight: Family<KindLabel, Gauge>,
    long_running: Family<LongLabels, Gauge>,
    watch_events: Family<WatchLabels, Counter>,
    rejected: Counter,
    panics: Counter,
    /// Custom resources that have labels.
    custom: Mutex<HashSet<(String, String, String)>>,
}

/// Definitions come and go, series stay: this many custom resources are told apart.
const CUSTOM_RESOURCES: usize = 512;

impl Metrics {
    pub fn new() -> Metrics {
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS);
        Metrics {
            requests: Family::default(),
            durations: Family::new_with_constructor(histogram),
            inflight: Family::default(),
            long_running: Family::default(),
            watch_events: Family::default(),
            rejected: Counter::default(),
            panics: Counter::default(),
            custom: Mutex::default(),
        }
    }

    /// Whether a custom resource that is served may be a label.
    pub fn takes_custom(&self, group: &str, version: &str, resource: &str) -> bool {
        let mut custom = self.custom.lock();
        let key = (group.to_owned(), version.to_owned(), resource.to_owned());
        custom.contains(&key) || (custom.len() < CUSTOM_RESOURCES && custom.insert(key))
    }

    /// One request was answered with `code`.
    pub fn answered(&self, labels: RequestLabels, code: u16, took: Duration, long_running: bool) {
        if !long_running {
            self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        }
        let RequestLabels { verb, group, version, resource, subresource, scope, dry_run, component } = labels;
        let labels =
            CodeLabels { verb, group, version, resource, subresource, scope, dry_run, component, code };
        self.requests.get_or_create(&labels).inc();
    }
    /// Counts a request while the guard lives.
    pub fn in_flight(&self, mutating: bool) -> GaugeGuard {
        let request_kind = if mutating { "mutating" } else { "readOnly" };
        GaugeGuard::up(self.inflight.get_or_create(&KindLabel { request_kind }).clone())
    }
    pub fn long_running(&self, verb: &'static str, group: &str, version: &str, resource: &str) -> GaugeGuard {
        let labels = LongLabels {
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
        };
        GaugeGuard::up(self.long_running.get_or_create(&labels).clone())
    }
    pub fn watch_events(&self, group: &str, version: &str, kind: &str) -> Counter {
        let labels =
            WatchLabels { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() };
        self.watch_events.get_or_create(&labels).clone()
    }
    pub fn rejected(&self) {
        self.rejected.inc();
    }
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// The exposition, with `store_bytes` and `store_keys` as they are now.
    pub fn expose(&self, store_bytes: u64, store_keys: u64) -> String {
        // Made per scrape from handles: a registry kept per idle cluster would cost more than it saves.
        let mut registry = Registry::default();
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and response code",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Response latency in seconds by verb and resource",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests being worked on by kind",
            self.inflight.clone(),
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Watches and other requests that last",
            self.long_running.clone(),
        );
        registry.register("apiserver_watch_events", "Events sent in watches", self.watch_events.clone());
        registry.register(
            "apiserver_flowcontrol_rejected_requests",
            "Requests refused by flow control",
            self.rejected.clone(),
        );
        registry.register("apiserver_request_panics", "Requests that ended in a panic", self.panics.clone());
        let bytes: Gauge<u64, AtomicU64> = Gauge::default();
        bytes.set(store_bytes);
        registry.register("apiserver_storage_size_bytes", "Bytes of the cluster's key space", bytes);
        let keys: Gauge<u64, AtomicU64> = Gauge::default();
        keys.set(store_keys);
        registry.register("apiserver_storage_keys", "Entries of the cluster's key space", keys);
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut out, &registry);
        out
    }
}

/// The verb as upstream's metrics spell it.
pub fn verb_label(verb: &str) -> &'static str {
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        _ => "other",
    }
}

/// Down when dropped.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    fn up(gauge: Gauge) -> GaugeGuard {
        gauge.inc();
        GaugeGuard(gauge)
    }
}
impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
