//! What a group promises, once, for every kind of group: in memory, on disk, on disk and reopened, on three
//! cells and asked at any of them, on three cells of which one is away.

mod cells;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base_ids::{CellId, TenantId};
use store_mvcc::{
    Command, EventKind, Expect, Key, Limits, Op, ReadError, Rejected, Revision, Space, Term, Value,
};
use store_raft::{Group, Host, HostConfig, HostError, WriteError};

const LIMITS: Limits = Limits { quota_bytes: 100 << 10, ring_bytes: 8 << 10, history_ms: 60_000 };

/// One kind of group, and how to let it go through what a restart is to it.
struct World {
    group: Group,
    disk: Option<(tempfile::TempDir, Arc<Host>, TenantId)>,
    reopens: bool,
    replicated: Option<Replicated>,
}

struct Replicated {
    cells: cells::Cells,
    /// Those that are there.
    places: Vec<usize>,
    asked: usize,
}

impl World {
    /// The group after whatever happens between two requests in this world.
    async fn next(&mut self) -> Group {
        if let Some(replicated) = &mut self.replicated {
            replicated.asked += 1;
            let place = replicated.places[replicated.asked % replicated.places.len()];
            self.group = replicated.cells.group(place).await;
            self.group.read_index().await.expect("a barrier");
        }
        if self.reopens
            && let Some((directory, host, tenant)) = &mut self.disk
        {
            host.close().await;
            let config = config();
            // The old host's handle goes before the directory is taken again.
            *host = {
                let path = directory.path().to_owned();
                let old = std::mem::replace(host, placeholder().await);
                drop(old);
                self.group = Group::in_memory(LIMITS);
                Host::open(path, config).await.expect("reopen")
            };
            self.group = host.open_group(*tenant).await.expect("open the group again");
        }
        self.group.clone()
    }

    /// The group where it is led.
    async fn next_leading(&mut self) -> Group {
        self.next().await;
        if let Some(replicated) = &self.replicated {
            let leader = replicated.cells.leader(&replicated.places).await;
            self.group = replicated.cells.group(leader).await;
            self.group.read_index().await.expect("a barrier");
        }
        self.group.clone()
    }
}

async fn on_three_cells(one_away: bool) -> World {
    let cells = cells::Cells::start(|config| config.limits = LIMITS).await;
    let mut places = vec![0, 1, 2];
    let leader = cells.leader(&places).await;
    if one_away {
        let away = (leader + 1) % 3;
        cells.net.cut_off(cells.ids[away], &cells.ids);
        places.retain(|place| *place != away);
    }
    let group = cells.group(leader).await;
    World { group, disk: None, reopens: false, replicated: Some(Replicated { cells, places, asked: leader }) }
}

async fn placeholder() -> Arc<Host> {
    let files = || Arc::new(store_log::memory::MemoryFiles::new());
    Host::open_on(files(), files(), config()).await.expect("a host in memory")
}

fn config() -> HostConfig {
    let mut config = HostConfig::new(CellId::from_uuid(uuid::Uuid::nil()));
    config.limits = LIMITS;
    config.log.segment_bytes = 1 << 20;
    config.rest_after = Duration::from_millis(50);
    config
}

async fn on_disk(reopens: bool) -> World {
    let directory = tempfile::tempdir().expect("a directory");
    let host = Host::open(directory.path(), config()).await.expect("open");
    let tenant = TenantId::generate();
    let group = host.create(tenant, Command::default()).await.expect("create");
    World { group, disk: Some((directory, host, tenant)), reopens, replicated: None }
}

/// Runs one behaviour in every world.
fn everywhere<F: Future<Output = ()>>(behaviour: impl Fn(World) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let memory = World { group: Group::in_memory(LIMITS), disk: None, reopens: false, replicated: None };
        behaviour(memory).await;
        behaviour(on_disk(false).await).await;
        behaviour(on_disk(true).await).await;
        behaviour(on_three_cells(false).await).await;
        behaviour(on_three_cells(true).await).await;
    });
}

fn key(name: &str) -> Key {
    Key::new("things", name)
}

fn put(name: &str, body: &str, expect: Expect) -> Op {
    let value = Value { body: body.to_owned().into(), stamp: "s".into() };
    Op::Put { key: key(name), value, expect, expires_at_ms: None, shared: false }
}

fn delete(name: &str, expect: Expect) -> Op {
    Op::Delete { key: key(name), expect }
}

fn command(ops: Vec<Op>) -> Command {
    Command { ops, fence: None, at_ms: 1_000 }
}

fn body(space: &Space, name: &str) -> Option<String> {
    space.get(&key(name)).map(|entry| String::from_utf8_lossy(&entry.value.body).into_owned())
}

fn outcome(result: Result<Vec<store_mvcc::Applied>, WriteError>) -> String {
    match result {
        Ok(applied) => {
            let revisions: Vec<String> = applied.iter().map(|one| one.revision.to_string()).collect();
            format!("at {}", revisions.join(","))
        }
        Err(WriteError::Rejected(Rejected::Conflict { op, found, .. })) => {
            format!(
                "conflict in op {op}, found {}",
                found.map_or("nothing".into(), |e| e.modified.to_string())
            )
        }
        Err(WriteError::Rejected(Rejected::Fenced { .. })) => "fenced".into(),
        Err(WriteError::Rejected(Rejected::OverQuota { .. })) => "over quota".into(),
        Err(other) => other.to_string(),
    }
}

#[test]
fn expectations_hold_or_nothing_happens() {
    everywhere(|mut world| async move {
        let at = |revision| Expect::At(Revision(revision));
        let rows: Vec<(Vec<Op>, &str)> = vec![
            (vec![put("a", "1", Expect::Absent)], "at 1"),
            (vec![put("a", "2", Expect::Absent)], "conflict in op 0, found 1"),
            (vec![put("a", "2", at(1))], "at 2"),
            (vec![put("a", "3", at(1))], "conflict in op 0, found 2"),
            (vec![put("b", "1", at(2))], "conflict in op 0, found nothing"),
            (vec![put("b", "1", Expect::Any), put("c", "1", Expect::Absent)], "at 3,4"),
            (vec![put("d", "1", Expect::Any), put("c", "1", Expect::Absent)], "conflict in op 1, found 4"),
            (vec![delete("d", Expect::Any)], "at 4"),
            (vec![delete("d", Expect::Absent)], "at 4"),
            (vec![delete("a", at(1))], "conflict in op 0, found 2"),
            (vec![delete("a", at(2))], "at 5"),
            (vec![delete("a", at(2))], "conflict in op 0, found nothing"),
            (vec![put("a", "9", Expect::Absent)], "at 6"),
        ];
        for (place, (ops, expected)) in rows.into_iter().enumerate() {
            let group = world.next().await;
            assert_eq!(outcome(group.write(command(ops)).await), expected, "row {place}");
        }
        let group = world.next().await;
        assert_eq!(group.read_index().await.expect("a barrier"), Revision(6));
        let held: Vec<_> = ["a", "b", "c", "d"].map(|name| body(group.space(), name)).into();
        assert_eq!(held, [Some("9".into()), Some("1".into()), Some("1".into()), None]);
    });
}

#[test]
fn over_quota_only_what_shrinks_goes_through() {
    everywhere(|mut world| async move {
        let big = "x".repeat(60 << 10);
        let bigger = "x".repeat(61 << 10);
        let rows = [
            (put("a", &big, Expect::Any), "at 1"),
            (put("b", &big, Expect::Any), "over quota"),
            (put("a", &bigger, Expect::Any), "at 2"),
            (put("c", &"x".repeat(50 << 10), Expect::Any), "over quota"),
            (put("a", "x", Expect::Any), "at 3"),
            (put("b", &big, Expect::Any), "at 4"),
            (delete("b", Expect::Any), "at 5"),
        ];
        for (place, (op, expected)) in rows.into_iter().enumerate() {
            let group = world.next().await;
            assert_eq!(outcome(group.write(command(vec![op])).await), expected, "row {place}");
        }
    });
}

#[test]
fn a_loop_that_outlived_its_term_writes_nothing() {
    everywhere(|mut world| async move {
        let group = world.next_leading().await;
        let term = group.leadership().borrow().expect("somebody leads");
        for (fence, expected) in [
            (None, "at 1"),
            (Some(term), "at 2"),
            (Some(Term(term.0 + 1)), "fenced"),
            (Some(Term(0)), "fenced"),
        ] {
            let group = world.next_leading().await;
            let ops = vec![put("a", "1", Expect::Any)];
            let written = group.write(Command { ops, fence, at_ms: 0 }).await;
            assert_eq!(outcome(written), expected, "{fence:?}");
        }
    });
}

#[test]
fn watches_see_every_event_once_and_in_order() {
    everywhere(|mut world| async move {
        let mut seen = Vec::new();
        let mut cursor = Revision(0);
        for round in 0..5 {
            let group = world.next().await;
            let mut watch = group.space().watch("things", cursor).expect("history is kept");
            let ops = vec![put("a", &round.to_string(), Expect::Any), put("b", "x", Expect::Any)];
            group.write(command(ops)).await.expect("a write");
            group.write(command(vec![delete("b", Expect::Any)])).await.expect("a delete");
            let mut fresh = 0;
            while fresh < 3 {
                let batch = watch.next().await.expect("events");
                fresh += batch.events.len();
                for event in batch.events {
                    let before = event.previous.as_ref().map(|entry| entry.modified.0);
                    seen.push((event.revision.0, event.kind, event.entry.key.name.to_string(), before));
                }
            }
            cursor = watch.cursor();
        }
        let mut expected = Vec::new();
        for round in 0..5u64 {
            let first = round * 3 + 1;
            expected.push((first, EventKind::Put, "a".to_owned(), (round > 0).then(|| first - 3)));
            expected.push((first + 1, EventKind::Put, "b".to_owned(), None));
            expected.push((first + 2, EventKind::Delete, "b".to_owned(), None));
        }
        assert_eq!(seen, expected);
    });
}

#[test]
fn history_reaches_back_as_far_as_it_says() {
    everywhere(|mut world| async move {
        for round in 1..=40 {
            let group = world.next().await;
            let filler = format!("{round}{}", "x".repeat(500));
            group.write(command(vec![put("a", &filler, Expect::Any)])).await.expect("a write");
        }
        let group = world.next().await;
        let space = group.space();
        let old = space.snapshot_at("things", Revision(38)).expect("recent enough");
        let entry = old.entries.get("a").expect("it was there");
        assert_eq!(entry.modified, Revision(38));
        assert!(matches!(space.snapshot_at("things", Revision(2)), Err(ReadError::Compacted { .. })));
        assert!(matches!(space.watch("things", Revision(2)), Err(ReadError::Compacted { .. })));
        assert!(matches!(space.watch("things", Revision(41)), Err(ReadError::Future { .. })));
        assert_eq!(space.snapshot_at("others", Revision(2)).expect("nothing ever").entries.len(), 0);
    });
}

#[test]
fn expired_entries_are_deleted_when_told_the_time() {
    everywhere(|mut world| async move {
        let group = world.next_leading().await;
        for (name, expires_at_ms) in [("soon", Some(10)), ("later", Some(20)), ("never", None)] {
            let value = Value { body: "x".into(), stamp: "".into() };
            let op = Op::Put { key: key(name), value, expect: Expect::Any, expires_at_ms, shared: false };
            group.write(command(vec![op])).await.expect("a write");
        }
        for (now_ms, gone, left) in [(9, 0, 3), (10, 1, 2), (10, 0, 2), (25, 1, 1), (99, 0, 1)] {
            let group = world.next_leading().await;
            assert_eq!(group.delete_expired(now_ms).await.expect("a sweep"), gone, "at {now_ms}");
            assert_eq!(group.space().usage().keys, left, "at {now_ms}");
        }
    });
}

#[test]
fn a_closed_group_says_so() {
    everywhere(|mut world| async move {
        let group = world.next().await;
        let mut watch = group.space().watch("things", Revision(0)).expect("a watch");
        group.close().await;
        group.close().await;
        let written = group.write(command(vec![put("a", "1", Expect::Any)])).await;
        assert!(matches!(written, Err(WriteError::Closed)), "{written:?}");
        assert!(matches!(group.read_index().await, Err(WriteError::Closed)));
        assert!(matches!(watch.next().await, Err(ReadError::Closed)));
        assert_eq!(*group.leadership().borrow(), None);
    });
}

#[test]
fn many_writers_each_get_their_own_revision() {
    everywhere(|mut world| async move {
        let group = world.next().await;
        let writes = (0..64).map(|writer| {
            let group = group.clone();
            tokio::spawn(async move {
                let mut revisions = Vec::new();
                for round in 0..5 {
                    let op = put(&format!("{writer}-{round}"), "x", Expect::Absent);
                    revisions.push(group.write(command(vec![op])).await.expect("a write")[0].revision.0);
                }
                assert!(revisions.is_sorted());
                revisions
            })
        });
        let mut all: Vec<u64> = Vec::new();
        for write in writes.collect::<Vec<_>>() {
            all.extend(write.await.expect("a writer"));
        }
        all.sort_unstable();
        assert_eq!(all, (1..=320).collect::<Vec<u64>>());
        let group = world.next().await;
        assert_eq!(group.space().usage().keys, 320);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_come_stay_and_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let bootstrap = || command(vec![put("first", "1", Expect::Absent)]);
    let [kept, gone, never] = [(); 3].map(|()| TenantId::generate());
    {
        let host = Host::open(directory.path(), config()).await.expect("open");
        for tenant in [kept, gone] {
            let group = host.create(tenant, bootstrap()).await.expect("create");
            assert_eq!(group.read_index().await.expect("a barrier"), Revision(1));
        }
        assert!(matches!(host.create(kept, bootstrap()).await, Err(HostError::Exists(_))));
        let twice = command(vec![put("x", "1", Expect::At(Revision(7)))]);
        assert!(matches!(host.create(never, twice).await, Err(HostError::Bootstrap { .. })));
        assert!(matches!(host.open_group(never).await, Err(HostError::Unknown(_))));
        assert!(matches!(host.delete(never).await, Err(HostError::Unknown(_))));
        let second = Host::open(directory.path(), config()).await;
        let message = second.err().map(|error| std::error::Error::source(&error).map(ToString::to_string));
        let message = message.flatten().expect("the directory is taken");
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        host.checkpoint(gone).await.expect("a checkpoint");
        host.delete(gone).await.expect("delete");
        assert_eq!(host.tenants(), [kept]);
        host.close().await;
    }
    let host = Host::open(directory.path(), config()).await.expect("reopen");
    assert_eq!(host.tenants(), [kept]);
    assert!(matches!(host.open_group(gone).await, Err(HostError::Unknown(_))));
    let group = host.open_group(kept).await.expect("open the group");
    assert_eq!(body(group.space(), "first"), Some("1".into()));
    // The same group for everybody, and a fresh one after it was closed.
    let again = host.open_group(kept).await.expect("open the group");
    assert!(Arc::ptr_eq(group.space(), again.space()));
    group.close().await;
    let fresh = host.open_group(kept).await.expect("open the group");
    fresh.write(command(vec![put("b", "1", Expect::Absent)])).await.expect("a write");
    // An id that is gone may be used again, and knows nothing of before.
    let group = host.create(gone, Command::default()).await.expect("create");
    assert_eq!(group.space().usage().keys, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_shortens_the_log_and_keeps_the_history() {
    let directory = tempfile::tempdir().expect("a directory");
    let tenant = TenantId::generate();
    let mut host = Host::open(directory.path(), config()).await.expect("open");
    host.create(tenant, Command::default()).await.expect("create");
    for round in 0..4u64 {
        let group = host.open_group(tenant).await.expect("open the group");
        for write in 0..10 {
            let op = put("a", &format!("{round}-{write}"), Expect::Any);
            group.write(command(vec![op])).await.expect("a write");
        }
        host.checkpoint(tenant).await.expect("a checkpoint");
        let op = put("b", &round.to_string(), Expect::Any);
        group.write(command(vec![op])).await.expect("a write behind the checkpoint");
        let live = host.log_stats().live_bytes;
        assert!(live < 1000, "round {round}: {live} bytes of log are left");
        host.close().await;
        drop(group);
        drop(host);
        host = Host::open(directory.path(), config()).await.expect("reopen");
        let group = host.open_group(tenant).await.expect("open the group");
        let revision = (round + 1) * 11;
        assert_eq!(group.space().revision(), Revision(revision));
        assert_eq!(body(group.space(), "b"), Some(round.to_string()));
        let mut watch = group.space().watch("things", Revision(revision - 5)).expect("history is kept");
        assert_eq!(watch.poll().expect("events").events.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raft_rests_and_wakes_without_anybody_noticing() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config();
    config.rest_after = Duration::ZERO;
    config.limits = Limits::default();
    let host = Host::open(directory.path(), config).await.expect("open");
    let group = host.create(TenantId::generate(), Command::default()).await.expect("create");
    let term = *group.leadership().borrow();
    let mut watch = group.space().watch("things", Revision(0)).expect("a watch");
    let writer = {
        let group = group.clone();
        tokio::spawn(async move {
            for write in 0..60 {
                let op = put(&format!("k{write}"), "x", Expect::Absent);
                group.write(command(vec![op])).await.expect("a write");
                tokio::time::sleep(Duration::from_millis(if write % 10 == 0 { 120 } else { 1 })).await;
            }
        })
    };
    let mut seen = 0;
    while seen < 60 {
        for event in watch.next().await.expect("events").events {
            seen += 1;
            assert_eq!(event.revision, Revision(seen));
        }
    }
    writer.await.expect("the writer");
    assert_eq!(*group.leadership().borrow(), term);
    let rested = tokio::time::timeout(Duration::from_secs(10), async {
        while host.awake() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    rested.await.expect("it goes to rest");
    group.write(command(vec![put("last", "x", Expect::Absent)])).await.expect("it wakes");
    assert_eq!(host.awake(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_log_entry_can_hold_is_refused_and_harms_nobody() {
    let world = on_disk(false).await;
    // Random, or packing would make it fit.
    let noise: String = (0..2 << 20).map(|_| char::from(rand::random_range(b'!'..b'~'))).collect();
    let written = world.group.write(command(vec![put("a", &noise, Expect::Any)])).await;
    assert!(matches!(written, Err(WriteError::TooLarge { .. })), "{written:?}");
    assert_eq!(outcome(world.group.write(command(vec![put("a", "x", Expect::Any)])).await), "at 1");
}

/// Power is lost at any moment: what was acknowledged is there, whatever the disk did with the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_power_loss() {
    use store_log::memory::{Crash, MemoryFiles};
    let crashes =
        [Crash::Lost, Crash::Kept, Crash::Torn { bytes: 100 }, Crash::Reordered { bytes: 100 }, Crash::Lost];
    let tenant = TenantId::generate();
    let (mut log, mut checkpoints) = (MemoryFiles::new(), MemoryFiles::new());
    let mut host = open_on(&log, &checkpoints).await;
    host.create(tenant, Command::default()).await.expect("create");
    let mut acknowledged = Vec::new();
    for (round, crash) in crashes.into_iter().enumerate() {
        let group = host.open_group(tenant).await.expect("open the group");
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1000);
        let writers: Vec<_> = (0..20)
            .map(|writer| {
                let (group, sender) = (group.clone(), sender.clone());
                tokio::spawn(async move {
                    for write in 0.. {
                        let name = format!("{round}-{writer}-{write}");
                        let written = group.write(command(vec![put(&name, "x", Expect::Absent)])).await;
                        if written.is_err() || sender.send(name).await.is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        for number in 0..60 {
            acknowledged.push(receiver.recv().await.expect("a write"));
            if number == 30 && round % 2 == 0 {
                host.checkpoint(tenant).await.expect("a checkpoint");
            }
        }
        // The disks as they are now; the old process never learns.
        let after = (log.crash(crash), checkpoints.crash(crash));
        writers.iter().for_each(|writer| writer.abort());
        host.close().await;
        (log, checkpoints) = after;
        host = open_on(&log, &checkpoints).await;
        let group = host.open_group(tenant).await.expect("open the group");
        for name in &acknowledged {
            assert!(group.space().get(&key(name)).is_some(), "round {round}, {crash:?}: {name} is lost");
        }
        assert_eq!(group.space().usage().keys, group.space().revision().0, "each write created one key");
    }
}

async fn open_on(
    log: &store_log::memory::MemoryFiles,
    checkpoints: &store_log::memory::MemoryFiles,
) -> Arc<Host> {
    let mut config = config();
    config.limits = Limits::default();
    Host::open_on(Arc::new(log.clone()), Arc::new(checkpoints.clone()), config).await.expect("open")
}
