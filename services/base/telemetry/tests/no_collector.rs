//! A collector that is away, or that says nothing, is heard of once and never waited for.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base_telemetry::Options;
use tracing_subscriber::util::SubscriberInitExt;

/// Several of the SDK's batches of 512.
const SPANS: usize = 3000;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One test, since the SDK's thread logs to the process's subscriber and there can be one of those.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_heard_of_once() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let log = Log::default();
    let writer = log.clone();
    let options = Options {
        service: "roadstead-test".to_owned(),
        filter: "info".to_owned(),
        json: true,
        // Accepts connections, since the kernel does, and never answers: the worst of the ways to be away.
        otlp_endpoint: Some(format!("http://{}", silent.local_addr().unwrap())),
    };
    let (subscriber, guard) = base_telemetry::subscriber(&options, move || writer.clone()).unwrap();
    subscriber.init();

    let started = Instant::now();
    for number in 0..SPANS {
        tracing::info_span!("request", number).in_scope(|| ());
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "spans waited for the collector: {took:?}");

    // From now on connections are refused: another way to be away, and no further news.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    drop(silent);
    for number in 0..SPANS {
        tracing::info_span!("request", number).in_scope(|| ());
    }
    let started = Instant::now();
    tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "the end waited for the collector: {took:?}");

    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("WARN") && lines[0].contains("does not take spans"), "{said}");
}
