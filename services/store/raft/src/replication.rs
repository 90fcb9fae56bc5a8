//! A group of one that grows, with three hosts in one process.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base_ids::{CellId, TenantId};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use store_log::memory::MemoryFiles;
use store_mvcc::{Command, Expect, Key, Op, Revision, Value};

use crate::types::Seat;
use crate::{Group, Host, HostConfig, Standing, Transport, TransportError};

/// Cells that reach one another by calling.
#[derive(Debug, Default)]
struct Calls {
    hosts: Mutex<HashMap<CellId, Weak<Host>>>,
}

#[derive(Debug)]
struct End {
    from: CellId,
    calls: Arc<Calls>,
}

impl Transport for End {
    fn call(
        &self,
        to: CellId,
        tenant: TenantId,
        message: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let host = self.calls.hosts.lock().get(&to).and_then(Weak::upgrade);
        let from = self.from;
        async move {
            let gone = TransportError::Unreachable { cell: to, reason: "it is gone".into() };
            let host = host.ok_or(gone)?;
            Ok(host.receive(tenant, from, &message).await)
        }
        .boxed()
    }

    fn standing(&self, cell: CellId) -> Standing {
        match self.calls.hosts.lock().get(&cell).and_then(Weak::upgrade) {
            Some(_) => Standing::Up { boot: 1 },
            None => Standing::Down,
        }
    }
}

fn put(name: &str) -> Command {
    let value = Value { body: name.to_owned().into(), stamp: "s".into() };
    let key = Key::new("things", name);
    let op = Op::Put { key, value, expect: Expect::Absent, expires_at_ms: None, shared: false };
    Command { ops: vec![op], fence: None, at_ms: 0 }
}

async fn reaches(group: &Group, revision: u64) {
    let mut watch = group.space().watch("things", Revision(0)).expect("a watch");
    let reached = tokio::time::timeout(Duration::from_secs(10), async {
        while group.space().revision() < Revision(revision) {
            watch.next().await.expect("events");
        }
    });
    reached.await.unwrap_or_else(|_| panic!("{group:?} never reached {revision}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_grows_to_three_cells_by_entries_and_by_snapshot() {
    let calls = Arc::new(Calls::default());
    let mut hosts = Vec::new();
    for _ in 0..3 {
        let mut config = HostConfig::new(CellId::generate());
        config.log.segment_bytes = 1 << 20;
        let cell = config.cell;
        config.transport = Some(Arc::new(End { from: cell, calls: calls.clone() }));
        let files = || Arc::new(MemoryFiles::new());
        let host = Host::open_on(files(), files(), config).await.expect("open");
        calls.hosts.lock().insert(cell, Arc::downgrade(&host));
        hosts.push((cell, host));
    }
    let tenant = TenantId::generate();
    let leader = hosts[0].1.create(tenant, put("first")).await.expect("create");
    leader.write(put("second")).await.expect("a write");
    let raft = hosts[0].1.raft(tenant).await.expect("the leader's Raft");

    hosts[1].1.make_room(tenant, 2).await.expect("a place for the second replica");
    raft.add_learner(2, Seat { cell: hosts[1].0 }, true).await.expect("the second replica follows");
    // The third one finds the beginning of the log gone.
    hosts[0].1.checkpoint(tenant).await.expect("a checkpoint");
    hosts[2].1.make_room(tenant, 3).await.expect("a place for the third replica");
    raft.add_learner(3, Seat { cell: hosts[2].0 }, true).await.expect("the third replica follows");
    raft.change_membership(BTreeSet::from([1, 2, 3]), false).await.expect("all three vote");

    leader.write(put("third")).await.expect("a write by majority");
    leader.write(put("fourth")).await.expect("a write by majority");
    assert_eq!(leader.read_index().await.expect("a barrier"), Revision(4));
    for (_, host) in &hosts {
        let group = host.open_group(tenant).await.expect("the group");
        reaches(&group, 4).await;
        assert!(group.space().get(&Key::new("things", "second")).is_some());
    }
    // One replica less is no harm.
    hosts[2].1.close().await;
    leader.write(put("fifth")).await.expect("a write by majority");
    let follower = hosts[1].1.open_group(tenant).await.expect("the group");
    follower.write(put("elsewhere")).await.expect("sent on to the leader");
    reaches(&follower, 6).await;
}
