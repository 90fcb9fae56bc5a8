//! What a group costs: `cargo run -p store-raft --example measure [DIRECTORY]`.
//!
//! Prints a table: creating a cluster, writing to one, waking its Raft, memory of idle ones, restart.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base_ids::{CellId, TenantId};
use store_mvcc::{Command, Expect, Key, Op, Value};
use store_raft::{Group, Host, HostConfig};

const CLUSTERS: usize = 500;
const WRITES: usize = 20_000;

fn main() {
    let directory =
        std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("store-measure"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&directory);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(measure(directory.clone()));
    let _ = std::fs::remove_dir_all(&directory);
}

async fn measure(directory: PathBuf) {
    let config = HostConfig::new(CellId::generate());
    let host = Host::open(&directory, config.clone()).await.expect("open");
    let before = resident_kib();
    let mut took = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    for _ in 0..CLUSTERS {
        let command = bootstrap();
        let began = Instant::now();
        groups.push(host.create(TenantId::generate(), command).await.expect("create"));
        took.push(began.elapsed());
    }
    row("create a cluster of 200 objects", &mut took);
    println!("{:<44} {:>9} KiB", "resident per cluster, fresh", (resident_kib() - before) / CLUSTERS as u64);

    let mut took = Vec::new();
    for group in &groups {
        let began = Instant::now();
        group.write(create("first", 1024)).await.expect("a write");
        took.push(began.elapsed());
    }
    row("first write (opens Raft)", &mut took);
    println!(
        "{:<44} {:>9} KiB",
        "resident per cluster, Raft open",
        (resident_kib() - before) / CLUSTERS as u64
    );
    let mut took = Vec::new();
    for number in 0..300 {
        let began = Instant::now();
        groups[0].write(create(&format!("single-{number}"), 1024)).await.expect("a write");
        took.push(began.elapsed());
    }
    row("write of 1 KiB, one at a time", &mut took);
    let began = Instant::now();
    while host.awake() > 0 && began.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{:<44} {:>9}", "groups still awake after a while", host.awake());
    println!(
        "{:<44} {:>9} KiB",
        "resident per cluster, at rest again",
        (resident_kib() - before) / CLUSTERS as u64
    );

    for (name, spread) in [("one group", 1), ("64 groups", 64), ("500 groups", CLUSTERS)] {
        let syncs = host.log_stats().syncs;
        let began = Instant::now();
        let groups = Arc::new(groups.clone());
        let writers: Vec<_> = (0..64)
            .map(|writer| {
                let groups = groups.clone();
                tokio::spawn(async move {
                    for number in 0..WRITES / 64 {
                        let group = &groups[(writer * 7919 + number) % spread];
                        group
                            .write(create(&format!("{spread}-{writer}-{number}"), 1024))
                            .await
                            .expect("a write");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.expect("a writer");
        }
        let per_second = WRITES as f64 / began.elapsed().as_secs_f64();
        let syncs = host.log_stats().syncs - syncs;
        println!(
            "{:<44} {per_second:>9.0} /s   {syncs} syncs",
            format!("writes of 1 KiB, 64 in flight, {name}")
        );
    }
    println!("{:<44} {:?}", "log", host.log_stats());
    drop(groups);
    host.close().await;
    drop(host);
    let began = Instant::now();
    let host = Host::open(&directory, config).await.expect("reopen");
    println!("{:<44} {:>9.1} ms", "restart: read the log", began.elapsed().as_secs_f64() * 1e3);
    let mut took = Vec::new();
    let mut groups = Vec::new();
    for tenant in host.tenants() {
        let began = Instant::now();
        groups.push(host.open_group(tenant).await.expect("open the group"));
        took.push(began.elapsed());
    }
    row("restart: open a cluster", &mut took);
    host.close().await;
}

fn row(name: &str, took: &mut [Duration]) {
    took.sort();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    println!("{name:<44} {:>9.3} ms p50 {:>9.3} ms p99", at(0.5), at(0.99));
}

/// As many objects as a cluster begins with, of bodies that all clusters share.
fn bootstrap() -> Command {
    let ops = (0..200).map(|number| Op::Put {
        key: Key::new(format!("kind{}", number % 20), format!("default-{number}")),
        value: Value {
            body: format!(
                "{{\"metadata\":{{\"name\":\"default-{number}\"}},\"rules\":\"{}\"}}",
                "rule ".repeat(140)
            )
            .into(),
            stamp: TenantId::generate().to_string().into(),
        },
        expect: Expect::Absent,
        expires_at_ms: None,
        shared: true,
    });
    Command { ops: ops.collect(), fence: None, at_ms: 0 }
}

fn create(name: &str, bytes: usize) -> Command {
    let value = Value { body: "x".repeat(bytes).into(), stamp: "s".into() };
    let op = Op::Put {
        key: Key::new("configmaps", name),
        value,
        expect: Expect::Absent,
        expires_at_ms: None,
        shared: false,
    };
    Command { ops: vec![op], fence: None, at_ms: 0 }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
