//! Three replicas through what networks and machines do to them: nothing acknowledged is lost, nothing happens
//! twice, every replica ends up the same, and clients hear within two seconds where nothing can be said.

mod cells;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cells::{Cells, create, put};
use parking_lot::Mutex;
use store_log::memory::Crash;
use store_mvcc::{Command, Expect, Key, Op, Revision};
use store_raft::{Group, HostConfig, HostError, WriteError};

fn plain(_: &mut HostConfig) {}

fn key(name: &str) -> Key {
    Key::new("things", name)
}

async fn reaches(group: &Group, revision: Revision) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while group.space().revision() < revision {
        assert!(Instant::now() < deadline, "{group:?} never reached {revision}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// All that a replica holds, with where it stands in history.
fn contents(group: &Group) -> Vec<(String, u64, bytes::Bytes)> {
    let entries = group.space().snapshot("things").entries;
    let line = |name: &Arc<str>, entry: &Arc<store_mvcc::Entry>| {
        (name.to_string(), entry.modified.0, entry.value.body.clone())
    };
    entries.iter().map(|(name, entry)| line(name, entry)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_replica_takes_writes_and_reads_its_own_and_others() {
    let cells = Cells::start(plain).await;
    let mut revision = 0;
    for round in 0..10 {
        for place in 0..3 {
            let group = cells.group(place).await;
            let name = format!("{round}-{place}");
            let applied = group.write(create(&name)).await.expect("a write");
            revision += 1;
            assert_eq!(applied[0].revision, Revision(revision), "one counter for all");
            assert!(group.space().get(&key(&name)).is_some(), "visible where it was acknowledged");
            let other = cells.group((place + 1) % 3).await;
            assert!(other.read_index().await.expect("a barrier") >= Revision(revision));
            assert!(other.space().get(&key(&name)).is_some(), "visible elsewhere to who asks");
            // A refusal is the same wherever it is asked for.
            let again = other.write(create(&name)).await;
            match again {
                Err(WriteError::Rejected(store_mvcc::Rejected::Conflict { found, .. })) => {
                    assert_eq!(found.expect("what is there").modified, Revision(revision));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    for place in 0..3 {
        let group = cells.group(place).await;
        assert_eq!(group.leader().map(|(cell, _)| cell), Some(cells.ids[0]));
    }
    cells.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_the_leader_s_loop_is_never_sent_on() {
    let cells = Cells::start(plain).await;
    let leader = cells.leader(&[0, 1, 2]).await;
    let term = *cells.group(leader).await.leadership().borrow();
    let fenced = |name: &str| Command { fence: term, ..create(name) };
    let began = Instant::now();
    let elsewhere = cells.group((leader + 1) % 3).await.write(fenced("elsewhere")).await;
    assert!(matches!(elsewhere, Err(WriteError::NoLeader)), "{elsewhere:?}");
    assert!(began.elapsed() < Duration::from_millis(500), "it is not tried again either");
    cells.group(leader).await.write(fenced("here")).await.expect("the leader's own");
    // A group that was quiet has no lease; its leader's loops must not notice.
    tokio::time::sleep(Duration::from_millis(700)).await;
    cells.group(leader).await.write(fenced("later")).await.expect("the leader's own");
    cells.close().await;
}

/// Its peers go on asking while it is deleted. What they ask must not bring it back: it would lead a life in
/// memory with nothing on disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_replica_does_not_come_back() {
    let cells = Cells::start(plain).await;
    cells.group(cells.leader(&[0, 1, 2]).await).await.write(create("kept")).await.expect("a write");
    // How far a read has to see, in the store's own encoding: any message would do.
    const QUESTION: &[u8] = &[2, 7];
    for place in [1, 2, 0] {
        let host = cells.host(place);
        let asking = (0..4).map(|_| {
            let (host, tenant, from) = (host.clone(), cells.tenant, cells.ids[(place + 1) % 3]);
            tokio::spawn(async move {
                loop {
                    host.receive(tenant, from, QUESTION).await;
                    tokio::task::yield_now().await;
                }
            })
        });
        let asking: Vec<_> = asking.collect();
        host.delete(cells.tenant).await.expect("delete");
        tokio::time::sleep(Duration::from_millis(100)).await;
        asking.iter().for_each(tokio::task::JoinHandle::abort);
        assert_eq!(host.awake(), 0, "replica {place} runs on");
        let again = host.open_group(cells.tenant).await;
        assert!(matches!(again, Err(HostError::Unknown(_))), "{again:?}");
        assert!(matches!(host.delete(cells.tenant).await, Err(HostError::Unknown(_))));
    }
    cells.close().await;
}

/// The leader's cell dies, again and again: another leads within two seconds, in a later term, and watches
/// go on elsewhere where they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_is_followed_by_another() {
    let mut cells = Cells::start(plain).await;
    let mut leader = cells.leader(&[0, 1, 2]).await;
    let mut term = *cells.group(leader).await.leadership().borrow();
    let mut slowest = Duration::ZERO;
    for round in 0..6 {
        let before = format!("{round}-before");
        let at = cells.group(leader).await.write(create(&before)).await.expect("a write")[0].revision;
        cells.kill(leader, Crash::Lost).await;
        let began = Instant::now();
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        let group = cells.group(others[round % 2]).await;
        group.write(create(&format!("{round}-after"))).await.expect("a write without the dead one");
        slowest = slowest.max(began.elapsed());
        assert!(group.space().get(&key(&before)).is_some(), "round {round}: acknowledged and lost");
        let mut watch = group.space().watch("things", at).expect("it resumes where it was");
        let batch = watch.next().await.expect("events");
        assert_eq!(batch.events[0].entry.key.name.as_ref(), format!("{round}-after"));
        let dead = leader;
        leader = cells.leader(&others).await;
        let new_term = *cells.group(leader).await.leadership().borrow();
        assert!(new_term > term, "round {round}: {new_term:?} after {term:?}");
        term = new_term;
        cells.boot(dead).await;
        reaches(&cells.group(dead).await, group.space().revision()).await;
    }
    assert!(slowest < Duration::from_secs(2), "the slowest election took {slowest:?}");
    cells.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_that_stops_hands_its_leadership_over() {
    let mut cells = Cells::start(plain).await;
    let leader = cells.leader(&[0, 1, 2]).await;
    cells.group(leader).await.write(create("before")).await.expect("a write");
    cells.stop(leader).await;
    let began = Instant::now();
    cells.group((leader + 1) % 3).await.write(create("after")).await.expect("a write");
    assert!(began.elapsed() < Duration::from_millis(400), "nobody had to miss it: {:?}", began.elapsed());
    cells.close().await;
}

/// All cells are started at the same time: nobody leads, everybody has a vote of the last life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_was_off_finds_a_leader() {
    let mut cells = Cells::start(plain).await;
    for number in 0..20 {
        cells.group(number % 3).await.write(create(&number.to_string())).await.expect("a write");
    }
    for place in 0..3 {
        cells.kill(place, Crash::Lost).await;
    }
    for place in 0..3 {
        cells.boot(place).await;
    }
    for place in 0..3 {
        let group = cells.group(place).await;
        group.write(create(&format!("again-{place}"))).await.expect("a write");
        assert_eq!(group.space().usage().keys, 21 + place as u64);
    }
    cells.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_clients_hear_so_within_two_seconds_and_old_reads_go_on() {
    let cells = Cells::start(plain).await;
    let leader = cells.leader(&[0, 1, 2]).await;
    cells.group(leader).await.write(create("a")).await.expect("a write");
    for cell in &cells.ids {
        cells.net.cut_off(*cell, &cells.ids);
    }
    for place in 0..3 {
        let group = cells.group(place).await;
        let began = Instant::now();
        let (written, read) = tokio::join!(group.write(create("b")), group.read_index());
        assert!(written.is_err() && read.is_err(), "{written:?} {read:?}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(group.space().snapshot("things").entries.len() <= 1);
    }
    cells.net.heal();
    let group = cells.group((leader + 1) % 3).await;
    // The write that was cut off may or may not have happened, but it is one or the other everywhere.
    group.write(create("c")).await.expect("a write after all");
    for place in 0..3 {
        let group = cells.group(place).await;
        group.read_index().await.expect("a barrier");
        assert!(group.space().get(&key("c")).is_some());
    }
    cells.close().await;
}

/// A follower that cannot hear the leader does not unseat it while others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_broken_line_does_not_unseat_a_leader() {
    let cells = Cells::start(plain).await;
    let leader = cells.leader(&[0, 1, 2]).await;
    let (deaf, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let term = *cells.group(leader).await.leadership().borrow();
    cells.net.cut_one_way(cells.ids[leader], cells.ids[deaf]);
    cells.net.cut_one_way(cells.ids[deaf], cells.ids[leader]);
    let until = Instant::now() + Duration::from_secs(2);
    let mut number = 0;
    while Instant::now() < until {
        number += 1;
        cells.group(other).await.write(create(&number.to_string())).await.expect("a write");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(*cells.group(leader).await.leadership().borrow(), term);
    cells.net.heal();
    reaches(&cells.group(deaf).await, cells.group(leader).await.space().revision()).await;
    cells.close().await;
}

/// One replica is so late that its log is gone elsewhere: it gets the state instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_away_for_long_is_sent_a_snapshot() {
    let mut cells = Cells::start(plain).await;
    let leader = cells.leader(&[0, 1, 2]).await;
    let away = (leader + 1) % 3;
    cells.kill(away, Crash::Lost).await;
    let group = cells.group(leader).await;
    let body = "x".repeat(2_000);
    for batch in 0..60 {
        let writes = (0..100).map(|n| {
            let (group, name, body) = (group.clone(), format!("{}", (batch * 100 + n) % 2_000), body.clone());
            async move { group.write(put(&name, &body, Expect::Any)).await.expect("a write") }
        });
        futures::future::join_all(writes).await;
    }
    // More than is kept for those who lag a little.
    cells.host(leader).checkpoint(cells.tenant).await.expect("a checkpoint");
    cells.boot(away).await;
    let late = cells.group(away).await;
    reaches(&late, group.space().revision()).await;
    assert_eq!(contents(&late), contents(&group));
    // Its history came along: a watch resumes there too.
    let recent = Revision(group.space().revision().0 - 5);
    let mut watch = late.space().watch("things", recent).expect("history travels");
    assert_eq!(watch.next().await.expect("events").events[0].revision, Revision(recent.0 + 1));
    late.write(create("from the late one")).await.expect("a write");
    cells.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_replica_slows_nobody() {
    let cells = Cells::start(plain).await;
    let leader = cells.leader(&[0, 1, 2]).await;
    let slow = (leader + 1) % 3;
    cells.net.slow_down(cells.ids[slow], Duration::from_millis(400));
    let group = cells.group((leader + 2) % 3).await;
    let began = Instant::now();
    for number in 0..50 {
        group.write(create(&number.to_string())).await.expect("a write");
        group.read_index().await.expect("a barrier");
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    cells.net.heal();
    reaches(&cells.group(slow).await, Revision(50)).await;
    cells.close().await;
}

/// Everything at once, for some seconds: lost and doubled messages, partitions, killed cells with torn disks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_everything() {
    let mut cells = Cells::start(plain).await;
    let acknowledged: Arc<Mutex<Vec<(String, Revision)>>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let names = Arc::new(AtomicU64::new(0));
    let groups: Arc<Mutex<Vec<Option<Group>>>> = Arc::default();
    for place in 0..3 {
        let group = cells.group(place).await;
        groups.lock().push(Some(group));
    }
    let writers: Vec<_> = (0..9)
        .map(|writer| {
            let (acknowledged, stop, names) = (acknowledged.clone(), stop.clone(), names.clone());
            let groups = groups.clone();
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("{writer}-{}", names.fetch_add(1, Ordering::Relaxed));
                    let group = groups.lock()[writer % 3].clone();
                    let written = match group {
                        Some(group) => group.write(create(&name)).await.ok().map(|applied| (group, applied)),
                        None => None,
                    };
                    match written {
                        Some((group, applied)) => {
                            assert!(group.space().get(&key(&name)).is_some(), "{name} is not there");
                            acknowledged.lock().push((name, applied[0].revision));
                        }
                        None => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            })
        })
        .collect();
    cells.net.double_and_lose(7, 31);
    let crashes = [Crash::Lost, Crash::Torn { bytes: 300 }, Crash::Kept, Crash::Reordered { bytes: 500 }];
    for (round, crash) in crashes.into_iter().enumerate() {
        let victim = round % 3;
        tokio::time::sleep(Duration::from_millis(600)).await;
        cells.net.cut_off(cells.ids[victim], &cells.ids);
        tokio::time::sleep(Duration::from_millis(900)).await;
        cells.net.heal();
        cells.net.double_and_lose(5, 23);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let next = (round + 1) % 3;
        groups.lock()[next] = None;
        cells.kill(next, crash).await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        cells.boot(next).await;
        groups.lock()[next] = Some(cells.group(next).await);
    }
    cells.net.heal();
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("a writer");
    }
    let last = cells.group(0).await;
    last.write(create("the last one")).await.expect("a write when all is well");
    let reference = contents(&last);
    for place in 0..3 {
        let group = cells.group(place).await;
        group.read_index().await.expect("a barrier");
        assert_eq!(contents(&group), reference, "replica {place} differs");
    }
    let acknowledged = std::mem::take(&mut *acknowledged.lock());
    assert!(acknowledged.len() > 200, "only {} writes went through", acknowledged.len());
    for (name, revision) in &acknowledged {
        let entry = last.space().get(&key(name));
        let found = entry.unwrap_or_else(|| panic!("{name} was acknowledged and is lost"));
        assert_eq!(found.modified, *revision, "{name} moved in history");
    }
    // Every write creates one key once: none happened twice.
    assert_eq!(last.space().revision().0, last.space().usage().keys);
    cells.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_not_answered_in_a_group() {
    let cells = Cells::start(plain).await;
    let host = cells.host(cells.leader(&[0]).await);
    let stranger = base_ids::CellId::generate();
    // A forwarded write, as a member would send it: format, kind, entry.
    let command = Command { ops: vec![Op::Delete { key: key("a"), expect: Expect::Any }], ..create("a") };
    let mut entry = vec![1];
    entry.extend(command.encode());
    let mut message = vec![2, 6, u8::try_from(entry.len()).expect("short")];
    message.extend(&entry);
    let answer = host.receive(cells.tenant, stranger, &message).await;
    assert!(String::from_utf8_lossy(&answer).contains("has no replica"), "{answer:?}");
    // Entries of a leader in term 99: vote, nothing before, nothing committed, none.
    let takeover = [2, 1, 4, 1, 99, 2, 1, 0, 0, 0];
    let answer = host.receive(cells.tenant, stranger, &takeover).await;
    assert!(String::from_utf8_lossy(&answer).contains("has no replica"), "{answer:?}");
    let answer = host.receive(cells.tenant, cells.ids[1], &message).await;
    assert_eq!(answer[..2], [2, 10], "a member's is taken: {answer:?}");
    let answer = host.receive(cells.tenant, cells.ids[1], b"nonsense").await;
    assert!(String::from_utf8_lossy(&answer).contains("none"), "{answer:?}");
    cells.close().await;
}
