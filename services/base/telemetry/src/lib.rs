//! Tracing to standard error and, when configured, to an OpenTelemetry collector; metrics as text.
//!
//! [`init`] is called once by `main`. Spans carry `tenant` and `request_id`; a tenant is always an id,
//! never a name somebody chose (DESIGN §9). `trace` ties a request's span to its caller's trace.
//!
//! Not here: which metrics exist. Each plane registers its own in a [`Registry`] it was given.

mod export;
mod trace;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
pub use prometheus_client::registry::Registry;
pub use trace::{Caller, answered, continue_trace};
use tracing::Subscriber;
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
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`. The SDK reads other `OTEL_`
    /// variables by itself: headers, resource attributes, sampler, batch sizes.
    pub fn from_env(service: &str) -> Options {
        let endpoint = |name: &str| std::env::var(name).ok().filter(|url| !url.is_empty());
        Options {
            service: service.to_owned(),
            // openraft tells of every group's start and end, which says nothing with thousands of groups, and of every
            // message to a cell that is away; that it is away is said once, by the cell that noticed.
            filter: std::env::var("ROADSTEAD_LOG").unwrap_or_else(|_| "info,openraft=error".to_owned()),
            json: std::env::var("ROADSTEAD_LOG_FORMAT").is_ok_and(|format| format == "json"),
            otlp_endpoint: endpoint("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
                .or_else(|| endpoint("OTEL_EXPORTER_OTLP_ENDPOINT")),
        }
    }
}

/// Sends what is buffered when dropped, waiting a few seconds at most; `main` holds it until the end.
#[must_use]
#[derive(Debug)]
pub struct Guard {
    provider: Option<SdkTracerProvider>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown_with_timeout(export::FLUSH_PATIENCE)
        {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

/// Sets up tracing for the process. Inside a tokio runtime when an OTLP endpoint is given.
pub fn init(options: &Options) -> Result<Guard, TelemetryError> {
    let (subscriber, guard) = subscriber(options, std::io::stderr)?;
    subscriber.try_init().map_err(TelemetryError::Twice)?;
    Ok(guard)
}

/// What [`init`] sets up, with the log written to `log`; for tests, which share a process.
pub fn subscriber<W>(
    options: &Options,
    log: W,
) -> Result<(impl Subscriber + Send + Sync + use<W>, Guard), TelemetryError>
where
    W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(&options.filter).map_err(TelemetryError::Filter)?;
    // The SDK complains with every batch that a collector does not take; `export` says it once.
    let filter = match "opentelemetry=off".parse() {
        Ok(quiet) if !options.filter.contains("opentelemetry") => filter.add_directive(quiet),
        _ => filter,
    };
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(log);
    let lines = if options.json { lines.json().boxed() } else { lines.with_ansi(colours).boxed() };
    let provider =
        options.otlp_endpoint.as_deref().map(|url| export::provider(&options.service, url)).transpose()?;
    let spans = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer("roadstead")));
    Ok((tracing_subscriber::registry().with(filter).with(spans).with(lines), Guard { provider }))
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
