//! One request's trace from the client's header to the operator's collector, through the real processes.

#[path = "../../services/base/telemetry/tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dev_testkit::{ApiClient, Fleet, Options};
use reqwest::Method;
use support::{Collector, Received, text};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_request_is_seen_by_the_collector() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let collector = runtime.block_on(Collector::start());
    let env = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY", "200".to_owned()),
    ];
    let mut fleet = Fleet::start(Options { env, ..Options::default() })?;

    // The owner's certificate is not in system:masters: the request begins a trace and links to the caller's.
    let api = ApiClient::new(&fleet.kubeconfig()?)?;
    let sent = api
        .request(Method::GET, "/api/v1/namespaces/default/configmaps")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    ensure!(runtime.block_on(async { sent.send().await })?.status() == 200);
    let mut seen = Vec::new();
    let deadline = Instant::now() + SOON;
    let request = loop {
        seen.extend(collector.take());
        if let Some(found) = seen.iter().find(|one| is_linked(one)) {
            break found;
        }
        ensure!(Instant::now() < deadline, "no span is linked to the request's trace");
        std::thread::sleep(Duration::from_millis(50));
    };
    ensure!(request.span.name == "LIST v1/configmaps", "{}", request.span.name);
    ensure!(text(&request.resource, "service.name").as_deref() == Some("roadstead-cell"));
    ensure!(text(&request.span.attributes, "http.response.status_code").as_deref() == Some("200"));
    ensure!(text(&request.span.attributes, "tenant").is_some_and(|tenant| tenant.len() == 36));
    ensure!(hex(&request.span.trace_id) != TRACE, "a stranger wrote into a trace of ours");

    // What is in the buffer goes out with the process.
    ensure!(runtime.block_on(api.call(Method::GET, "/api/v1/namespaces/last", None))?.0 == 404);
    fleet.stop()?;
    let last = "/api/v1/namespaces/last";
    let left = collector.take();
    ensure!(
        left.iter().any(|one| text(&one.span.attributes, "path").as_deref() == Some(last)),
        "not flushed"
    );
    Ok(())
}

#[test]
fn a_fleet_without_its_collector_serves_and_stops() -> Result<()> {
    // Listens and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let env = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", silent.local_addr()?)),
        ("OTEL_BSP_SCHEDULE_DELAY", "200".to_owned()),
    ];
    let mut fleet = Fleet::start(Options { env, ..Options::default() })?;
    let api = ApiClient::new(&fleet.kubeconfig()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let started = Instant::now();
        ensure!(runtime.block_on(api.call(Method::GET, "/api/v1/namespaces", None))?.0 == 200);
        ensure!(started.elapsed() < Duration::from_secs(2), "a request waited {:?}", started.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    let started = Instant::now();
    fleet.stop()?;
    ensure!(started.elapsed() < Duration::from_secs(15), "stopping took {:?}", started.elapsed());
    let warning = "does not take spans";
    for file in std::fs::read_dir(fleet.data().join("logs"))? {
        let path = file?.path();
        let log = std::fs::read_to_string(&path)?;
        let warnings = log.lines().filter(|line| line.contains(warning)).count();
        let of_cell = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cell"));
        ensure!(warnings == usize::from(of_cell), "{warnings} warnings in {}:\n{log}", path.display());
    }
    Ok(())
}

fn is_linked(received: &Received) -> bool {
    received.span.links.iter().any(|link| hex(&link.trace_id) == TRACE)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
