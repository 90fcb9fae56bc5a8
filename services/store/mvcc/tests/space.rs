//! What a key space promises, as rows.

use std::sync::Arc;
use std::time::Duration;

use store_mvcc::{Command, Expect, Key, Limits, Op, ReadError, Revision, Space, Term, Value};

fn put(space: &Space, collection: &str, name: &str, body: &str, at_ms: i64) -> Revision {
    let value = Value { body: body.to_owned().into(), stamp: "".into() };
    let op = Op::Put {
        key: Key::new(collection, name),
        value,
        expect: Expect::Any,
        expires_at_ms: None,
        shared: false,
    };
    let command = Command { ops: vec![op], fence: None, at_ms };
    space.apply(Term(1), &command).expect("nothing is expected")[0].revision
}

fn space(limits: Limits) -> Arc<Space> {
    Arc::new(Space::new(limits))
}

#[test]
fn a_range_is_a_prefix_and_a_place_to_go_on_from() {
    let space = space(Limits::default());
    for name in ["a/1", "a/2", "a/3", "ab/1", "b/1", "b", "\u{10ffff}/1"] {
        put(&space, "pods", name, "x", 0);
    }
    let snapshot = space.snapshot("pods");
    let rows: [(&str, Option<&str>, &[&str]); 9] = [
        ("", None, &["a/1", "a/2", "a/3", "ab/1", "b", "b/1", "\u{10ffff}/1"]),
        ("a/", None, &["a/1", "a/2", "a/3"]),
        ("a/", Some("a/1"), &["a/2", "a/3"]),
        ("a/", Some("a/3"), &[]),
        ("b/", Some("a/1"), &["b/1"]),
        ("", Some("ab/1"), &["b", "b/1", "\u{10ffff}/1"]),
        ("a/", Some("b"), &[]),
        ("\u{10ffff}", None, &["\u{10ffff}/1"]),
        ("c", None, &[]),
    ];
    for (prefix, after, expected) in rows {
        let names: Vec<&str> = snapshot.range(prefix, after).map(|entry| &*entry.key.name).collect();
        assert_eq!(names, expected, "{prefix:?} after {after:?}");
    }
}

#[test]
fn a_busy_collection_pushes_nobody_else_out_of_history() {
    let space = space(Limits { ring_bytes: 2000, ..Limits::default() });
    put(&space, "pods", "quiet", "x", 0);
    for beat in 0..100 {
        put(&space, "leases", "node", &format!("{beat}{}", "x".repeat(100)), 0);
    }
    assert!(matches!(space.watch("leases", Revision(1)), Err(ReadError::Compacted { .. })));
    let mut watch = space.watch("pods", Revision(0)).expect("its own ring");
    assert_eq!(watch.poll().expect("a batch").events.len(), 1);
    assert_eq!(watch.cursor(), Revision(101));
    assert_eq!(space.snapshot_at("pods", Revision(1)).expect("its own ring").entries.len(), 1);
}

#[test]
fn history_ends_by_age_when_something_new_happens() {
    let space = space(Limits { history_ms: 1000, ..Limits::default() });
    for (at_ms, oldest_watch) in [(0, 0), (500, 0), (1000, 0), (1400, 1), (1600, 2), (9000, 5)] {
        put(&space, "pods", "a", "x", at_ms);
        let first = (0..).find(|from| space.watch("pods", Revision(*from)).is_ok());
        assert_eq!(first, Some(oldest_watch), "at {at_ms}");
    }
}

#[tokio::test]
async fn a_slow_watch_ends_as_compacted_and_harms_nobody() {
    let space = space(Limits { ring_bytes: 3000, ..Limits::default() });
    let mut slow = space.watch("pods", Revision(0)).expect("a watch");
    let mut quick = space.watch("pods", Revision(0)).expect("a watch");
    for round in 0..50u64 {
        put(&space, "pods", "a", &"x".repeat(100), 0);
        let batch = quick.next().await.expect("it keeps up");
        assert_eq!(batch.revision, Revision(round + 1));
    }
    assert!(matches!(slow.next().await, Err(ReadError::Compacted { asked: Revision(0), .. })));
}

#[tokio::test]
async fn a_watch_wakes_for_its_collection_and_for_the_end() {
    let space = space(Limits::default());
    let mut watch = space.watch("pods", Revision(0)).expect("a watch");
    let waiting = tokio::spawn(async move {
        let batch = watch.next().await.expect("an event");
        (batch.revision, watch.next().await.map(|batch| batch.revision))
    });
    put(&space, "leases", "a", "x", 0);
    tokio::time::sleep(Duration::from_millis(5)).await;
    put(&space, "pods", "a", "x", 0);
    tokio::time::sleep(Duration::from_millis(20)).await;
    space.close();
    assert_eq!(waiting.await.expect("it ends"), (Revision(2), Err(ReadError::Closed)));
    assert!(matches!(space.watch("pods", Revision(0)), Err(ReadError::Closed)));
}

#[tokio::test]
async fn a_watch_goes_on_through_an_installed_image() {
    let (ahead, behind) = (space(Limits::default()), space(Limits::default()));
    for space in [&ahead, &behind] {
        put(space, "pods", "a", "1", 0);
    }
    let mut pods = behind.watch("pods", Revision(1)).expect("a watch");
    let mut never = behind.watch("nothing", Revision(1)).expect("a watch of what is empty");
    let waiting = tokio::spawn(async move { pods.next().await.map(|batch| batch.events.len()) });
    tokio::time::sleep(Duration::from_millis(5)).await;
    put(&ahead, "pods", "a", "2", 0);
    put(&ahead, "pods", "b", "1", 0);
    behind.install(&ahead.image().encode()).expect("what was encoded");
    assert_eq!(waiting.await.expect("it ends"), Ok(2));
    assert_eq!(never.poll().expect("nothing is no compaction").events.len(), 0);
    assert_eq!(never.cursor(), Revision(3));
    put(&behind, "nothing", "a", "1", 0);
    assert_eq!(never.next().await.expect("an event").events.len(), 1);
}

#[test]
fn shared_bodies_are_held_once_and_stay_so_through_an_image() {
    let body = "b".repeat(5000);
    let spaces: Vec<Space> = (0..3)
        .map(|tenant| {
            let space = Space::new(Limits::default());
            let value = Value { body: body.clone().into(), stamp: format!("uid {tenant}").into() };
            let key = Key::new("clusterroles", "admin");
            let op = Op::Put { key, value, expect: Expect::Absent, expires_at_ms: None, shared: true };
            space.apply(Term(1), &Command { ops: vec![op], fence: None, at_ms: 0 }).expect("it is absent");
            space
        })
        .collect();
    let restored = Space::restore(Limits::default(), &spaces[0].image().encode()).expect("what was encoded");
    let key = Key::new("clusterroles", "admin");
    let held = |space: &Space| space.get(&key).expect("it was put").value.body.as_ptr();
    let first = held(&spaces[0]);
    assert!(spaces.iter().chain([&restored]).all(|space| held(space) == first));
}
