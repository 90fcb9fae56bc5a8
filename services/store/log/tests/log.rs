//! The log against disks that fail in every way a disk does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use store_log::memory::{Crash, Faults, MemoryFiles};
use store_log::{Change, Files, GroupId, Log, LogConfig, LogError, OsFiles, Position, Record, Urgency};

const CONFIG: LogConfig = LogConfig { segment_bytes: 4096 };

fn open(files: &MemoryFiles) -> Log {
    Log::open(Arc::new(files.clone()), CONFIG).expect("the log opens")
}

fn group(number: u8) -> GroupId {
    GroupId([number; 16])
}

fn entry(term: u64, index: u64, body: &[u8]) -> Change {
    Change::Append(Record { position: Position { term, index }, body: Bytes::copy_from_slice(body) })
}

/// Submits and waits.
fn commit(log: &Log, group: GroupId, changes: Vec<Change>) -> Result<(), LogError> {
    let (sender, receiver) = mpsc::channel();
    log.submit(group, changes, Urgency::Now, move |result| sender.send(result).expect("somebody waits"))?;
    receiver.recv_timeout(Duration::from_secs(10)).expect("an answer")
}

/// What a group holds, as text: `purged|term.index=body ...|notes`.
fn show(log: &Log, group: GroupId) -> String {
    let state = log.state(group).expect("a sound group").unwrap_or_default();
    let entries = log.read(group, 0..u64::MAX).expect("readable");
    let entries: Vec<String> = entries
        .iter()
        .map(|record| {
            let body = String::from_utf8_lossy(&record.body);
            let shown = if body.len() > 8 { format!("{}B", body.len()) } else { body.into_owned() };
            format!("{}.{}={shown}", record.position.term, record.position.index)
        })
        .collect();
    let purged = state.purged.map_or(String::new(), |at| format!("{}.{}", at.term, at.index));
    let note = log.note(group, 0).map_or(String::new(), |value| String::from_utf8_lossy(&value).into_owned());
    format!("{purged}|{}|{note}", entries.join(" "))
}

#[test]
fn changes_do_what_they_say_and_survive_a_restart() {
    let files = MemoryFiles::new();
    let note = |value: &'static str| Change::Note { slot: 0, value: Bytes::from_static(value.as_bytes()) };
    let purge = |term, index| Change::PurgeTo(Position { term, index });
    let rows: Vec<(Vec<Change>, &str)> = vec![
        (vec![note("v1"), entry(0, 0, b"a"), entry(1, 1, b"b")], "|0.0=a 1.1=b|v1"),
        (vec![entry(1, 2, b"c"), entry(1, 3, b"d")], "|0.0=a 1.1=b 1.2=c 1.3=d|v1"),
        (vec![Change::TruncateFrom(2), entry(2, 2, b"x")], "|0.0=a 1.1=b 2.2=x|v1"),
        (vec![note("v2")], "|0.0=a 1.1=b 2.2=x|v2"),
        (vec![purge(1, 1)], "1.1|2.2=x|v2"),
        (vec![entry(2, 3, b"y"), Change::TruncateFrom(3)], "1.1|2.2=x|v2"),
        (vec![purge(3, 9), entry(3, 10, b"z")], "3.9|3.10=z|v2"),
        (vec![Change::TruncateFrom(0)], "3.9||v2"),
        (vec![entry(4, 10, b"w")], "3.9|4.10=w|v2"),
        (vec![Change::Remove], "||"),
        (vec![entry(0, 0, b"n")], "|0.0=n|"),
    ];
    for (place, (changes, expected)) in rows.into_iter().enumerate() {
        let log = open(&files);
        commit(&log, group(1), changes).expect("durable");
        assert_eq!(show(&log, group(1)), expected, "row {place}");
        log.close();
        assert_eq!(show(&open(&files), group(1)), expected, "row {place}, reopened");
    }
}

#[test]
fn an_entry_that_leaves_a_gap_is_refused_before_anything_is_queued() {
    let log = open(&MemoryFiles::new());
    commit(&log, group(1), vec![entry(1, 0, b"a")]).expect("durable");
    let gap = log.submit(group(1), vec![entry(1, 1, b"b"), entry(1, 3, b"d")], Urgency::Now, |_| {});
    assert!(matches!(gap, Err(LogError::Gap { expected: 2, given: 3, .. })), "{gap:?}");
    assert_eq!(show(&log, group(1)), "|1.0=a|");
    let huge = log.submit(group(1), vec![entry(1, 1, &[0; 3000])], Urgency::Now, |_| {});
    assert!(matches!(huge, Err(LogError::TooLarge { .. })), "{huge:?}");
}

/// Two synced batches, then one that is written and lost in some way: the acknowledged ones stay.
#[test]
fn a_torn_tail_is_cut_off_and_written_over() {
    let crashes = [
        Crash::Lost,
        Crash::Torn { bytes: 1 },
        Crash::Torn { bytes: 60 },
        Crash::Torn { bytes: 130 },
        Crash::Reordered { bytes: 1 },
        Crash::Reordered { bytes: 64 },
        Crash::Reordered { bytes: 128 },
    ];
    for crash in crashes {
        let files = MemoryFiles::new();
        let log = open(&files);
        commit(&log, group(1), vec![entry(1, 0, b"a")]).expect("durable");
        commit(&log, group(2), vec![entry(1, 0, b"b")]).expect("durable");
        files.set_faults(Faults { sync_fails: true, ..Faults::default() });
        let lost =
            commit(&log, group(1), vec![entry(1, 1, b"lost"), entry(1, 2, b"lost"), entry(1, 3, b"lost")]);
        assert!(matches!(lost, Err(LogError::Failed(_))), "{crash:?}: {lost:?}");
        let mut after = files.crash(crash);
        // What is written over the torn place must not be continued by what is left behind it.
        for round in 0..3 {
            let log = open(&after);
            let held = show(&log, group(1));
            assert!(held.starts_with("|1.0=a"), "{crash:?}, round {round}: {held}");
            assert_eq!(show(&log, group(2)), "|1.0=b|", "{crash:?}");
            commit(&log, group(1), vec![Change::TruncateFrom(1), entry(2, 1, b"new")]).expect("durable");
            assert_eq!(show(&log, group(1)), "|1.0=a 2.1=new|", "{crash:?}");
            log.close();
            after = after.crash(Crash::Lost);
            assert_eq!(show(&open(&after), group(1)), "|1.0=a 2.1=new|", "{crash:?}, round {round}");
        }
    }
}

#[test]
fn a_failed_sync_is_final_and_acknowledges_nothing() {
    for faults in [
        Faults { sync_fails: true, ..Faults::default() },
        Faults { short_writes: Some(10), ..Faults::default() },
    ] {
        let files = MemoryFiles::new();
        let log = open(&files);
        let failure = log.failure();
        commit(&log, group(1), vec![entry(1, 0, b"a")]).expect("durable");
        files.set_faults(faults);
        let failed = commit(&log, group(1), vec![entry(1, 1, b"b")]);
        assert!(matches!(failed, Err(LogError::Failed(_))), "{failed:?}");
        files.set_faults(Faults::default());
        // The disk may be well again; the log is not.
        let later = commit(&log, group(1), vec![entry(1, 2, b"c")]);
        assert!(matches!(later, Err(LogError::Failed(_))), "{later:?}");
        let told = failure.borrow().clone().expect("the owner is told");
        assert!(told.path.ends_with("0000000001.segment"), "{told:?}");
        assert!(told.offset > 64, "{told:?}");
        assert_eq!(show(&open(&files.crash(Crash::Lost)), group(1)), "|1.0=a|");
    }
}

#[test]
fn damage_before_the_tail_is_an_error_that_names_the_place() {
    let files = MemoryFiles::new();
    let log = open(&files);
    for index in 0..60 {
        commit(&log, group(1), vec![entry(1, index, &[b'x'; 100])]).expect("durable");
    }
    log.close();
    let names: Vec<String> =
        files.list().expect("a list").into_iter().filter(|n| n.ends_with("segment")).collect();
    assert!(names.len() > 2, "{names:?}");
    let cases = [(0, 64 + 8), (0, 10), (0, 500), (1, 64), (names.len() - 1, 70)];
    for (file, offset) in cases {
        let damaged = files.crash(Crash::Kept);
        damaged.corrupt(&names[file], |bytes| bytes[offset] ^= 4);
        let opened = Log::open(Arc::new(damaged), CONFIG);
        match opened {
            Err(LogError::Corrupt { path, .. }) => assert!(path.ends_with(&names[file]), "{path:?}"),
            other => panic!("byte {offset} of {}: {:?}", names[file], other.err()),
        }
    }
    let missing = files.crash(Crash::Kept);
    missing.remove(&names[1]).expect("removed");
    assert!(matches!(Log::open(Arc::new(missing), CONFIG), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_full_disk_refuses_in_time_and_recovers_by_itself() {
    let files = MemoryFiles::new();
    let log = open(&files);
    assert!(log.accepting());
    files.set_faults(Faults { full: true, ..Faults::default() });
    // The spare segment is used up by these; they are acknowledged all the same.
    let mut index = 0;
    while log.accepting() {
        commit(&log, group(1), vec![entry(1, index, &[b'x'; 200])]).expect("durable");
        index += 1;
        assert!(index < 100, "it never noticed");
    }
    // The rest of the segment is the reserve.
    commit(&log, group(1), vec![entry(1, index, b"a delete")]).expect("durable");
    files.set_faults(Faults::default());
    for _ in 0..100 {
        if log.accepting() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(log.accepting(), "there is room again");
    for _ in 0..50 {
        index += 1;
        commit(&log, group(1), vec![entry(1, index, &[b'x'; 200])]).expect("durable");
    }
    log.close();
    let state = open(&files).state(group(1)).expect("sound").expect("known");
    assert_eq!(state.entries, index + 1);
}

#[test]
fn old_segments_are_freed_and_quiet_groups_are_carried_along() {
    let files = MemoryFiles::new();
    let log = open(&files);
    let vote = Change::Note { slot: 0, value: Bytes::from_static(b"vote") };
    commit(&log, group(9), vec![vote, entry(1, 0, b"quiet"), entry(1, 1, b"one")]).expect("durable");
    commit(&log, group(8), vec![Change::PurgeTo(Position { term: 2, index: 5 })]).expect("durable");
    for index in 0..2000u64 {
        let purge = Change::PurgeTo(Position { term: 1, index: index.saturating_sub(5) });
        commit(&log, group(1), vec![entry(1, index, &[b'x'; 100]), purge]).expect("durable");
    }
    let stats = log.stats();
    assert!(stats.segments <= 7, "{stats:?}");
    assert!(stats.copied_bytes > 0 && stats.copied_bytes < stats.bytes / 4, "{stats:?}");
    for log in [log.clone(), {
        log.close();
        drop(log);
        open(&files)
    }] {
        assert_eq!(show(&log, group(9)), "|1.0=quiet 1.1=one|vote");
        assert_eq!(show(&log, group(8)), "2.5||");
        assert_eq!(log.read(group(1), 0..u64::MAX).expect("readable").len(), 5);
    }
}

#[test]
fn one_sync_serves_all_groups() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = Arc::new(OsFiles::open(directory.path()).expect("open"));
    let log = Log::open(files, LogConfig { segment_bytes: 8 << 20 }).expect("open");
    let (sender, receiver) = mpsc::channel();
    for number in 0..200u8 {
        for index in 0..10 {
            let sender = sender.clone();
            let done =
                move |result: Result<(), LogError>| sender.send(result.is_ok()).expect("somebody waits");
            log.submit(group(number), vec![entry(1, index, &[number; 256])], Urgency::Now, done)
                .expect("queued");
        }
    }
    for _ in 0..2000 {
        assert!(receiver.recv_timeout(Duration::from_secs(10)).expect("an answer"));
    }
    let stats = log.stats();
    assert!(stats.syncs < 200, "{stats:?}");
    let second = OsFiles::open(directory.path()).map(drop);
    assert!(matches!(second, Err(LogError::Locked { .. })), "{second:?}");
    log.close();
    drop(log);
    OsFiles::open(directory.path()).expect("it was let go");
}

/// A naive model of one group.
#[derive(Clone, Default, Debug, PartialEq)]
struct Model {
    purged: Option<(u64, u64)>,
    entries: BTreeMap<u64, (u64, Vec<u8>)>,
    note: Option<u8>,
}

impl Model {
    fn next(&self) -> u64 {
        self.entries
            .last_key_value()
            .map(|(index, _)| index + 1)
            .or(self.purged.map(|(_, i)| i + 1))
            .unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { group: u8, term: u64, length: usize },
    Truncate { group: u8, back: u64 },
    Purge { group: u8, back: u64, term: u64 },
    Note { group: u8, value: u8 },
    Remove { group: u8 },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let group = 0..4u8;
    prop_oneof![
        12 => (group.clone(), 0..5u64, 0..600usize).prop_map(|(group, term, length)| Step::Append { group, term, length }),
        2 => (group.clone(), 0..6u64).prop_map(|(group, back)| Step::Truncate { group, back }),
        3 => (group.clone(), 0..6u64, 0..5u64).prop_map(|(group, back, term)| Step::Purge { group, back, term }),
        2 => (group.clone(), any::<u8>()).prop_map(|(group, value)| Step::Note { group, value }),
        1 => group.prop_map(|group| Step::Remove { group }),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_log_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 1..120)) {
        let files = MemoryFiles::new();
        let mut log = open(&files);
        let mut models: BTreeMap<u8, Model> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Append { group: number, term, length } => {
                    let model = models.entry(number).or_default();
                    let (index, body) = (model.next(), vec![number; length]);
                    commit(&log, group(number), vec![entry(term, index, &body)]).expect("durable");
                    model.entries.insert(index, (term, body));
                }
                Step::Truncate { group: number, back } => {
                    let model = models.entry(number).or_default();
                    let from = model.next().saturating_sub(back);
                    commit(&log, group(number), vec![Change::TruncateFrom(from)]).expect("durable");
                    model.entries.split_off(&from);
                }
                Step::Purge { group: number, back, term } => {
                    let model = models.entry(number).or_default();
                    let index = model.next().saturating_sub(back).max(model.purged.map_or(0, |(_, i)| i));
                    commit(&log, group(number), vec![Change::PurgeTo(Position { term, index })]).expect("durable");
                    model.entries = model.entries.split_off(&(index + 1));
                    model.purged = Some((term, index));
                }
                Step::Note { group: number, value } => {
                    let change = Change::Note { slot: 0, value: Bytes::copy_from_slice(&[value]) };
                    commit(&log, group(number), vec![change]).expect("durable");
                    models.entry(number).or_default().note = Some(value);
                }
                Step::Remove { group: number } => {
                    commit(&log, group(number), vec![Change::Remove]).expect("durable");
                    models.remove(&number);
                }
                Step::Restart => {
                    log.close();
                    log = open(&files.crash(Crash::Lost));
                    // From here on the crashed disk is the disk.
                    log.close();
                    log = open(&files);
                }
            }
            for number in 0..4 {
                let model = models.get(&number).cloned().unwrap_or_default();
                let state = log.state(group(number)).expect("sound").unwrap_or_default();
                prop_assert_eq!(state.purged.map(|at| (at.term, at.index)), model.purged);
                let entries: BTreeMap<u64, (u64, Vec<u8>)> = log
                    .read(group(number), 0..u64::MAX)
                    .expect("readable")
                    .into_iter()
                    .map(|record| (record.position.index, (record.position.term, record.body.to_vec())))
                    .collect();
                prop_assert_eq!(entries, model.entries);
                prop_assert_eq!(log.note(group(number), 0).map(|value| value[0]), model.note);
            }
        }
    }
}
