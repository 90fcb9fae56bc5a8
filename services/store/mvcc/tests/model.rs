//! The key space against a naive model, and its codecs against garbage.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use store_mvcc::{
    Command, EventKind, Expect, Key, Limits, Op, Outcome, Rejected, Revision, Space, Term, Value,
};

const COLLECTIONS: [&str; 3] = ["pods", "leases", "_keys"];

#[derive(Clone, Debug)]
struct Change {
    collection: usize,
    name: u8,
    /// `None` deletes.
    body: Option<Vec<u8>>,
    expect: u8,
    shared: bool,
}

fn change() -> impl Strategy<Value = Change> {
    let body = prop::option::weighted(0.75, prop::collection::vec(any::<u8>(), 0..60));
    (0..COLLECTIONS.len(), 0..6u8, body, 0..4u8, any::<bool>()).prop_map(
        |(collection, name, body, expect, shared)| Change { collection, name, body, expect, shared },
    )
}

/// Ops of one command name distinct keys.
fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 1..5).prop_map(|mut changes| {
        let mut seen = std::collections::HashSet::new();
        changes.retain(|change| seen.insert((change.collection, change.name)));
        changes
    })
}

/// What lives under a key: body, created, modified.
type Held = (Vec<u8>, u64, u64);

#[derive(Clone, Default)]
struct Model {
    revision: u64,
    held: BTreeMap<(usize, String), Held>,
    /// The whole state at every revision.
    history: Vec<BTreeMap<(usize, String), Held>>,
}

impl Model {
    fn expectation(&self, change: &Change) -> Expect {
        let found = self.held.get(&(change.collection, change.name.to_string()));
        match change.expect {
            0 => Expect::Any,
            1 => Expect::Absent,
            2 => Expect::At(Revision(found.map_or(1, |(_, _, modified)| *modified))),
            _ => Expect::At(Revision(self.revision)),
        }
    }

    fn apply(&mut self, command: &[Change], expects: &[Expect]) -> bool {
        for (change, expect) in command.iter().zip(expects) {
            let found = self.held.get(&(change.collection, change.name.to_string()));
            let fine = match expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::At(revision) => found.is_some_and(|(_, _, modified)| *modified == revision.0),
            };
            if !fine {
                return false;
            }
        }
        for change in command {
            let key = (change.collection, change.name.to_string());
            match &change.body {
                Some(body) => {
                    self.revision += 1;
                    let created = self.held.get(&key).map_or(self.revision, |(_, created, _)| *created);
                    self.held.insert(key, (body.clone(), created, self.revision));
                }
                None => {
                    if self.held.remove(&key).is_none() {
                        continue;
                    }
                    self.revision += 1;
                }
            }
            self.history.push(self.held.clone());
        }
        true
    }
}

fn command(changes: &[Change], expects: &[Expect]) -> Command {
    let ops = changes.iter().zip(expects).map(|(change, expect)| {
        let key = Key::new(COLLECTIONS[change.collection], change.name.to_string());
        match &change.body {
            Some(body) => Op::Put {
                key,
                value: Value { body: body.clone().into(), stamp: vec![change.name].into() },
                expect: *expect,
                expires_at_ms: (change.name == 1).then_some(-5),
                shared: change.shared,
            },
            None => Op::Delete { key, expect: *expect },
        }
    });
    Command { ops: ops.collect(), fence: None, at_ms: 7 }
}

fn content(space: &Space, collection: usize, at: Option<u64>) -> Option<BTreeMap<(usize, String), Held>> {
    let snapshot = match at {
        None => space.snapshot(COLLECTIONS[collection]),
        Some(at) => space.snapshot_at(COLLECTIONS[collection], Revision(at)).ok()?,
    };
    let held = snapshot.entries.values().map(|entry| {
        let held = (entry.value.body.to_vec(), entry.created.0, entry.modified.0);
        ((collection, entry.key.name.to_string()), held)
    });
    Some(held.collect())
}

fn check(space: &Arc<Space>, model: &Model) {
    assert_eq!(space.revision().0, model.revision);
    assert_eq!(space.usage().keys, model.held.len() as u64);
    for (collection, collection_name) in COLLECTIONS.iter().enumerate() {
        let of = |all: &BTreeMap<(usize, String), Held>| -> BTreeMap<(usize, String), Held> {
            all.iter().filter(|((c, _), _)| *c == collection).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        assert_eq!(content(space, collection, None), Some(of(&model.held)));
        for (place, state) in model.history.iter().enumerate() {
            // What is compacted is refused, never wrong.
            if let Some(content) = content(space, collection, Some(place as u64 + 1)) {
                assert_eq!(content, of(state), "{collection_name} at {}", place + 1);
            }
        }
        follow(space, collection, model);
    }
}

/// A watch from the oldest possible revision retells the history.
fn follow(space: &Arc<Space>, collection: usize, model: &Model) {
    let mut from = 0;
    let mut watch = loop {
        match space.watch(COLLECTIONS[collection], Revision(from)) {
            Ok(watch) => break watch,
            Err(_) => from += 1,
        }
    };
    let before = |at: u64| if at == 0 { BTreeMap::new() } else { model.history[at as usize - 1].clone() };
    let mut last = from;
    for event in watch.poll().expect("a batch").events {
        let key = (collection, event.entry.key.name.to_string());
        let (was, is) = (before(event.revision.0 - 1), before(event.revision.0));
        assert!(event.revision.0 > last);
        last = event.revision.0;
        match event.kind {
            EventKind::Put => {
                assert_eq!(is.get(&key).map(|held| held.2), Some(event.revision.0));
                assert_eq!(was.get(&key).map(|held| held.2), event.previous.as_ref().map(|e| e.modified.0));
            }
            EventKind::Delete => {
                assert_eq!(is.get(&key), None);
                assert_eq!(was.get(&key).map(|held| held.2), Some(event.entry.modified.0));
            }
        }
    }
    assert_eq!(watch.cursor().0, model.revision);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_space_agrees_with_a_naive_model(
        commands in prop::collection::vec(changes(), 1..40),
        ring_bytes in prop_oneof![Just(usize::MAX), Just(1500usize)],
        restart_every in 1..10usize,
    ) {
        let limits = Limits { ring_bytes, ..Limits::default() };
        let mut space = Arc::new(Space::new(limits));
        let mut model = Model::default();
        for (place, changes) in commands.iter().enumerate() {
            let expects: Vec<Expect> = changes.iter().map(|change| model.expectation(change)).collect();
            let command = command(changes, &expects);
            let decoded = Command::decode(&command.encode()).expect("what was encoded");
            prop_assert_eq!(&decoded, &command);
            let outcome: Outcome = space.apply(Term(1), &decoded);
            let agreed = model.apply(changes, &expects);
            prop_assert_eq!(outcome.is_ok(), agreed);
            if let Err(rejected) = &outcome {
                let is_conflict = matches!(rejected, Rejected::Conflict { .. });
                prop_assert!(is_conflict);
            }
            if place % restart_every == 0 {
                let image = space.image().encode();
                let restored = Space::restore(limits, &image).expect("what was encoded");
                prop_assert_eq!(restored.image().encode(), image, "an image is one thing only");
                prop_assert_eq!(restored.usage(), space.usage());
                space = Arc::new(restored);
            }
        }
        check(&space, &model);
    }

    #[test]
    fn garbage_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = bytes;
        for _ in 0..2 {
            let _ = Command::decode(&bytes);
            let _ = Space::restore(Limits::default(), &bytes);
            // Once more with a format number that passes.
            bytes.insert(0, 1);
        }
    }

    #[test]
    fn a_flipped_byte_is_an_error_or_another_image_but_no_panic(
        commands in prop::collection::vec(changes(), 1..6),
        place in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let space = Space::new(Limits::default());
        for changes in &commands {
            let expects = vec![Expect::Any; changes.len()];
            space.apply(Term(1), &command(changes, &expects)).expect("nothing is expected");
        }
        let mut image = space.image().encode();
        let at = place.index(image.len());
        image[at] ^= flip;
        if let Ok(restored) = Space::restore(Limits::default(), &image) {
            let again = Arc::new(restored);
            again.image().encode();
            again.snapshot("pods");
        }
        let mut bytes = command(&commands[0], &vec![Expect::Any; commands[0].len()]).encode();
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        let _ = Command::decode(&bytes);
        for cut in 0..bytes.len() {
            let _ = Command::decode(&bytes[..cut]);
        }
    }
}
