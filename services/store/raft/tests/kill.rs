//! kill -9 in the middle of a thousand concurrent creates: everything acknowledged is there afterwards.
//!
//! The test starts itself as a child process that writes and prints each name once it is acknowledged, kills
//! it after a random number of them, opens its directory and looks. Several rounds on the same directory, so
//! that recovery from recovery is met too.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base_ids::{CellId, TenantId};
use rand::Rng;
use store_mvcc::{Command, Expect, Key, Op, Value};
use store_raft::{Group, Host, HostConfig};

const DIRECTORY: &str = "STORE_RAFT_KILL_DIRECTORY";
const ROUND: &str = "STORE_RAFT_KILL_ROUND";
const TENANTS: u128 = 8;
const WRITERS: usize = 1000;
const ROUNDS: usize = 8;
/// No new round begins after this.
const BUDGET: Duration = Duration::from_secs(20);

fn config() -> HostConfig {
    let mut config = HostConfig::new(CellId::from_uuid(uuid::Uuid::nil()));
    // Small, so that segments are freed and groups go to rest while it lasts.
    config.log.segment_bytes = 1 << 20;
    config.rest_after = Duration::from_millis(20);
    config
}

fn tenants() -> impl Iterator<Item = TenantId> {
    (1..=TENANTS).map(|number| TenantId::from_uuid(uuid::Uuid::from_u128(number)))
}

#[test]
fn acknowledged_writes_survive_kill_nine() {
    if let (Ok(directory), Ok(round)) = (std::env::var(DIRECTORY), std::env::var(ROUND)) {
        write_until_killed(&directory, &round);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut acknowledged: BTreeSet<(usize, String)> = BTreeSet::new();
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS && began.elapsed() < BUDGET {
        kill_after_some(directory.path(), rounds, &mut acknowledged);
        verify(directory.path(), &acknowledged);
        rounds += 1;
    }
    assert!(rounds >= 2, "only {rounds} rounds fitted into the budget");
    assert!(acknowledged.len() > rounds * 500);
}

fn kill_after_some(directory: &std::path::Path, round: usize, acknowledged: &mut BTreeSet<(usize, String)>) {
    let mut child = Process::new(std::env::current_exe().expect("this binary"))
        .args(["acknowledged_writes_survive_kill_nine", "--exact", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let kill_after = rand::rng().random_range(600..4000);
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut taken = 0;
    let mut killed = false;
    // Read on after the kill: what is in the pipe was acknowledged before.
    for line in lines {
        let line = line.expect("a line");
        let Some((tenant, name)) = line.strip_prefix("ack ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        // The last line may be cut.
        if let (Ok(tenant), Some(name)) = (tenant.parse(), name.strip_suffix('.')) {
            acknowledged.insert((tenant, name.to_owned()));
            taken += 1;
        }
        if taken == kill_after && !killed {
            child.kill().expect("SIGKILL");
            killed = true;
        }
    }
    child.wait().expect("the child is gone");
    assert!(killed, "the child ended by itself after {taken} writes");
}

fn verify(directory: &std::path::Path, acknowledged: &BTreeSet<(usize, String)>) {
    runtime().block_on(async {
        let host = Host::open(directory, config()).await.expect("the directory opens");
        let mut groups = Vec::new();
        for tenant in tenants() {
            groups.push(host.open_group(tenant).await.expect("the group opens"));
        }
        for (tenant, name) in acknowledged {
            let found = groups[*tenant].space().get(&Key::new("configmaps", name.as_str()));
            assert!(found.is_some(), "tenant {tenant}: {name} was acknowledged and is lost");
        }
        for group in &groups {
            // Every write created one key: no revision without its key, none twice.
            assert_eq!(group.space().revision().0, group.space().usage().keys);
            let probe = format!("probe-{}", group.space().revision());
            group.write(create(&probe)).await.expect("it is writable");
        }
        host.close().await;
    });
}

fn create(name: &str) -> Command {
    let value = Value { body: format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}").into(), stamp: "s".into() };
    let key = Key::new("configmaps", name);
    let op = Op::Put { key, value, expect: Expect::Absent, expires_at_ms: None, shared: false };
    Command { ops: vec![op], fence: None, at_ms: 0 }
}

fn write_until_killed(directory: &str, round: &str) -> ! {
    runtime().block_on(async {
        let host = Host::open(directory, config()).await.expect("the directory opens");
        let mut groups: Vec<Group> = Vec::new();
        for tenant in tenants() {
            let group = match host.open_group(tenant).await {
                Ok(group) => group,
                Err(_) => host.create(tenant, Command::default()).await.expect("create"),
            };
            groups.push(group);
        }
        let groups = Arc::new(groups);
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let (groups, round) = (groups.clone(), round.to_owned());
            writers.push(tokio::spawn(async move {
                for write in 0.. {
                    let tenant = (writer + write) % groups.len();
                    let name = format!("{round}-{writer}-{write}");
                    groups[tenant].write(create(&name)).await.expect("a write");
                    // One write call a line, so that a line is whole or absent.
                    let line = format!("ack {tenant} {name}.\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).expect("a reader");
                }
            }));
        }
        for writer in writers {
            writer.await.expect("a writer never ends");
        }
    });
    unreachable!("writers never end")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
