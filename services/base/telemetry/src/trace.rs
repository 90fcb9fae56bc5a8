//! The span of one served request, and how it belongs to its caller's trace.
//!
//! Without an exporter every function here looks for one, finds none and returns.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// How far a caller's word about its trace is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The span becomes part of the caller's trace, and the caller decides whether it is sampled.
    Trusted,
    /// The span begins a trace of its own and links to the caller's: nobody outside gets to write into, or to
    /// switch on and off, what the operator records.
    Stranger,
}

/// Ties `span` to the trace that a request's `traceparent` and `tracestate` headers name (W3C Trace Context).
/// `header` gives a header's value. Call it before the span is entered: later it cannot change its trace.
pub fn continue_trace<'a>(span: &Span, header: impl Fn(&str) -> Option<&'a str>, caller: Caller) {
    let Some(traceparent) = header("traceparent").filter(|_| !span.is_disabled()) else { return };
    let carrier = Headers { traceparent, tracestate: header("tracestate") };
    let remote = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    let context = remote.span().span_context().clone();
    if !context.is_valid() {
        return;
    }
    match caller {
        // Fails without an exporter, or for a span that is not recorded: there is no trace to be part of then.
        Caller::Trusted => drop(span.set_parent(remote)),
        Caller::Stranger => span.add_link(context),
    }
}

/// What became of an HTTP request: its status code; a 5xx makes the span an error. `name` says what was asked
/// in words that are the same for every object (`GET /api/v1/nodes/{:name}`); it is made only if somebody
/// records the span.
pub fn answered(span: &Span, code: u16, name: impl FnOnce() -> String) {
    let context = span.context();
    let recorded = context.span();
    if !recorded.is_recording() {
        return;
    }
    recorded.update_name(name());
    recorded.set_attribute(opentelemetry::KeyValue::new("http.response.status_code", i64::from(code)));
    if code >= 500 {
        recorded.set_status(Status::error(""));
    }
}

struct Headers<'a> {
    traceparent: &'a str,
    tracestate: Option<&'a str>,
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(self.traceparent),
            "tracestate" => self.tracestate,
            _ => None,
        }
    }
    /// The propagator asks for names it knows and never for all there are.
    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}
