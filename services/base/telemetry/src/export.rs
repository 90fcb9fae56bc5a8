//! Spans to an OpenTelemetry collector, over gRPC.
//!
//! A collector is a convenience of the operator's: its absence must not be felt. Spans wait in the SDK's queue
//! of 2,048 and are dropped when it is full; a thread of its own sends them, so nothing that serves ever waits.
//! [`Reporting`] says once that a collector is away, and once that it is back.
//!
//! Not here: metrics, which are scraped as text ([`crate::encode`]), and logs, which go to standard error.

use std::sync::Mutex;
use std::time::Duration;

use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};

use crate::TelemetryError;

/// How long one batch may take to be sent. Shorter than [`FLUSH_PATIENCE`], so that a collector which accepts
/// connections and answers nothing does not hold up the end of the process either.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the end of the process waits for what is buffered.
pub(crate) const FLUSH_PATIENCE: Duration = Duration::from_secs(3);

/// Call it inside a tokio runtime: the connection's tasks live there.
pub(crate) fn provider(service: &str, endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(SEND_TIMEOUT)
        .build()
        .map_err(|cause| TelemetryError::Otlp { endpoint: endpoint.to_owned(), cause })?;
    let exporter = Reporting { exporter, endpoint: endpoint.to_owned(), health: Mutex::new(Health::Unknown) };
    let resource = Resource::builder().with_service_name(service.to_owned()).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Unknown,
    Answers,
    Away,
}

/// Says when a collector goes away and when it comes back, instead of complaining with every batch.
#[derive(Debug)]
struct Reporting {
    exporter: SpanExporter,
    endpoint: String,
    health: Mutex<Health>,
}

impl Reporting {
    fn learn(&self, result: &OTelSdkResult) {
        let now = if result.is_ok() { Health::Answers } else { Health::Away };
        let before = {
            let mut health = self.health.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            std::mem::replace(&mut *health, now)
        };
        let endpoint = &self.endpoint;
        match (before, result) {
            (Health::Unknown | Health::Answers, Err(error)) => tracing::warn!(
                endpoint,
                %error,
                "the OpenTelemetry collector does not take spans; they are dropped until it does"
            ),
            (Health::Away, Ok(())) => {
                tracing::info!(endpoint, "the OpenTelemetry collector takes spans again");
            }
            (Health::Away, Err(_)) | (Health::Unknown | Health::Answers, Ok(())) => {}
        }
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Reporting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        self.learn(&result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
