//! Tracing to standard error and, when configured, to an OpenTelemetry collector; metrics as text.
//!
//! [`init`] is called once by `main`. Spans carry `tenant` and `request_id`; a tenant is always an id,
//! never a name somebody chose (DESIGN §9).
//!
//! Not here: which metrics exist. Each plane registers its own in a [`Registry`] it was given.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
pub use prometheus_client::registry::Registry;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("ROADSTEAD_LOG is not a filter such as `info,store_raft=debug`")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("OTLP export to {endpoint} cannot be set up")]
    Otlp {
        endpoint: String,
        #[source]
        cause: opentelemetry_otlp::ExporterBuildError,
    },
    #[error("tracing was set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Where telemetry goes.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `roadstead-cell`: the service's name in traces.
    pub service: String,
    /// `info,store_raft=debug`
    pub filter: String,
    /// JSON lines instead of text for people.
    pub json: bool,
    /// `http://127.0.0.1:4317`; `None` exports nothing.
    pub otlp_endpoint: Option<String>,
}

impl Options {
    /// From `ROADSTEAD_LOG`, `ROADSTEAD_LOG_FORMAT` (`text` or `json`) and the standard
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn from_env(service: &str) -> Options {
        Options {
            service: service.to_owned(),
            // openraft tells of every group's start and end, which says nothing with thousands of groups, and of every
            // message to a cell that is away; that it is away is said once, by the cell that noticed.
            filter: std::env::var("ROADSTEAD_LOG").unwrap_or_else(|_| "info,openraft=error".to_owned()),
            json: std::env::var("ROADSTEAD_LOG_FORMAT").is_ok_and(|format| format == "json"),
            otlp_endpoint: std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok().filter(|url| !url.is_empty()),
        }
    }
}

/// Sends what is buffered when dropped; `main` holds it until the end.
#[must_use]
#[derive(Debug)]
pub struct Guard {
    provider: Option<SdkTracerProvider>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider {
            // A collector that is away must not keep the process from ending; the SDK bounds this.
            let _ = provider.shutdown();
        }
    }
}

/// Sets up tracing for the process. Inside a tokio runtime when an OTLP endpoint is given.
pub fn init(options: &Options) -> Result<Guard, TelemetryError> {
    let filter = EnvFilter::try_new(&options.filter).map_err(TelemetryError::Filter)?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let text = (!options.json)
        .then(|| tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours).boxed());
    let json =
        options.json.then(|| tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed());
    let provider = options.otlp_endpoint.as_deref().map(|url| exporter(&options.service, url)).transpose()?;
    let export = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer("roadstead")));
    tracing_subscriber::registry()
        .with(filter)
        .with(export)
        .with(text)
        .with(json)
        .try_init()
        .map_err(TelemetryError::Twice)?;
    Ok(Guard { provider })
}

fn exporter(service: &str, endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|cause| TelemetryError::Otlp { endpoint: endpoint.to_owned(), cause })?;
    let resource = Resource::builder().with_service_name(service.to_owned()).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// A registry's metrics in the text format that Prometheus scrapes.
pub fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a String fails only if a metric's own Display does.
    if prometheus_client::encoding::text::encode(&mut text, registry).is_err() {
        tracing::error!("a metric could not be encoded");
    }
    text
}

/// The content type that goes with [`encode`].
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
