//! A real OTLP receiver, and what arrives there.

mod support;

use base_telemetry::{Caller, Options, answered, continue_trace};
use support::{Collector, text};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// One request's span, with something inside it, as a server makes it.
fn serve(traceparent: Option<&str>, caller: Caller, code: u16) {
    let span = tracing::info_span!("request", tenant = "t1", id = "r1", otel.kind = "server");
    continue_trace(&span, |name| traceparent.filter(|_| name == "traceparent"), caller);
    span.in_scope(|| tracing::info_span!("store").in_scope(|| tracing::info!("written")));
    answered(&span, code, || "GET /api/v1/pods".to_owned());
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_arrive_and_belong_to_their_callers_trace() {
    let collector = Collector::start().await;
    let options = Options {
        service: "roadstead-test".to_owned(),
        filter: "info".to_owned(),
        json: false,
        otlp_endpoint: Some(collector.endpoint()),
    };
    let given = format!("00-{TRACE}-{SPAN}-01");
    // What the caller sent, how far it is trusted, the answer; then: in the caller's trace? linked to it?
    let rows = [
        (Some(&*given), Caller::Trusted, 200, true, false),
        (Some(&*given), Caller::Stranger, 200, false, true),
        (None, Caller::Trusted, 503, false, false),
        (Some("00-not-a-trace"), Caller::Trusted, 200, false, false),
    ];
    for (traceparent, caller, code, joined, linked) in rows {
        let (subscriber, guard) = base_telemetry::subscriber(&options, std::io::sink).unwrap();
        tracing::subscriber::with_default(subscriber, || serve(traceparent, caller, code));
        tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();

        let spans = collector.take();
        let what = format!("{traceparent:?} {caller:?} {code}");
        let request = &spans.iter().find(|one| one.span.name == "GET /api/v1/pods").expect(&what).span;
        let store = &spans.iter().find(|one| one.span.name == "store").expect(&what).span;
        assert_eq!(spans.len(), 2, "{what}");
        for one in &spans {
            assert_eq!(text(&one.resource, "service.name").as_deref(), Some("roadstead-test"), "{what}");
        }
        assert_eq!(text(&request.attributes, "tenant").as_deref(), Some("t1"), "{what}");
        assert_eq!(request.kind, opentelemetry_proto::tonic::trace::v1::span::SpanKind::Server as i32);
        assert_eq!(text(&request.attributes, "http.response.status_code"), Some(code.to_string()), "{what}");
        assert_eq!(request.status.as_ref().is_some_and(|status| status.code == 2), code >= 500, "{what}");
        assert_eq!((&store.trace_id, &store.parent_span_id), (&request.trace_id, &request.span_id), "{what}");
        assert_eq!(hex(&request.trace_id) == TRACE, joined, "{what}");
        assert_eq!(hex(&request.parent_span_id) == SPAN, joined, "{what}");
        let links: Vec<String> = request.links.iter().map(|link| hex(&link.trace_id)).collect();
        assert_eq!(links == [TRACE], linked, "{what}: {links:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
