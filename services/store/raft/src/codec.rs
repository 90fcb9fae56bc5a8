//! Our own encoding of what goes into the log beside commands: entries, votes, memberships.
//!
//! openraft's types change between its releases, what is on disk must not; so nothing here derives a
//! format. Long commands are compressed: a cluster's first one carries all its default objects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::sync::Arc;

use base_ids::CellId;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use store_log::Position;
use store_mvcc::{Command, DecodeError, Reader, Writer};

use crate::types::{
    Entry, LeaderId, Membership, Payload, Proposal, Seat, StoredMembership, Vote, log_id, position,
};

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const COMMAND_DEFLATED: u8 = 2;
const MEMBERSHIP: u8 = 3;

const VOTE_FORMAT: u8 = 1;
const MEMBERSHIP_FORMAT: u8 = 1;

/// Commands shorter than this are left alone: a fsync is cheaper than what compression would save.
const COMPRESS_FROM: usize = 8 << 10;
/// What a compressed entry may claim to expand to; more is damage, or an attack on memory.
const LARGEST: usize = 256 << 20;

/// The body of a log entry that holds `command`.
pub(crate) fn encode_command(command: &Command) -> Bytes {
    let plain = command.encode();
    if plain.len() >= COMPRESS_FROM {
        let mut to = Writer::with_capacity(plain.len() / 4);
        to.byte(COMMAND_DEFLATED);
        deflate(&mut to, &plain);
        return to.finish().into();
    }
    let mut to = Writer::with_capacity(plain.len() + 1);
    to.byte(COMMAND);
    to.raw(&plain);
    to.finish().into()
}

pub(crate) fn encode_payload(payload: &Payload) -> Bytes {
    match payload {
        Payload::Blank => Bytes::from_static(&[BLANK]),
        Payload::Normal(proposal) if proposal.encoded.is_empty() => encode_command(&proposal.command),
        Payload::Normal(proposal) => proposal.encoded.clone(),
        Payload::Membership(membership) => {
            let mut to = Writer::default();
            to.byte(MEMBERSHIP);
            write_membership(&mut to, membership);
            to.finish().into()
        }
    }
}

pub(crate) fn decode_entry(at: Position, body: &[u8]) -> Result<Entry, DecodeError> {
    let mut from = Reader::new(body);
    let payload = match from.byte()? {
        BLANK => {
            from.end()?;
            Payload::Blank
        }
        COMMAND => normal(Command::decode(from.take(from.left())?)?),
        COMMAND_DEFLATED => normal(Command::decode(&inflate(&mut from)?)?),
        MEMBERSHIP => {
            let membership = read_membership(&mut from)?;
            from.end()?;
            Payload::Membership(membership)
        }
        _ => return Err(from.invalid("kind of entry")),
    };
    Ok(Entry { log_id: log_id(at), payload })
}

fn normal(command: Command) -> Payload {
    Payload::Normal(Proposal { command: Arc::new(command), encoded: Bytes::new() })
}

/// Appends the length of `plain` and its compressed form.
pub(crate) fn deflate(to: &mut Writer, plain: &[u8]) {
    to.number(plain.len() as u64);
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    // Writing to a vector cannot fail.
    let packed = encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default();
    to.raw(&packed);
}

/// The inverse of [`deflate`]; takes all that is left.
pub(crate) fn inflate(from: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let length = from.number()?;
    if length > LARGEST as u64 {
        return Err(from.invalid("an entry that would fill the memory"));
    }
    let packed = from.take(from.left())?;
    // Deflate shrinks a thousandfold at best, so a lie about the length costs little.
    let mut plain = Vec::with_capacity((length as usize).min(packed.len().saturating_mul(1032)));
    let read = DeflateDecoder::new(packed).take(length + 1).read_to_end(&mut plain);
    match read {
        Ok(read) if read as u64 == length => Ok(plain),
        _ => Err(from.invalid("a compressed entry")),
    }
}

pub(crate) fn encode_vote(vote: &Vote) -> Bytes {
    let mut to = Writer::default();
    to.byte(VOTE_FORMAT);
    to.number(vote.leader_id.term);
    to.number(vote.leader_id.voted_for);
    to.byte(u8::from(vote.committed));
    to.finish().into()
}

pub(crate) fn decode_vote(bytes: &[u8]) -> Result<Vote, DecodeError> {
    let mut from = Reader::new(bytes);
    from.version(VOTE_FORMAT)?;
    let leader_id = LeaderId { term: from.number()?, voted_for: from.number()? };
    let committed = from.byte()? != 0;
    from.end()?;
    Ok(Vote { leader_id, committed })
}

pub(crate) fn write_position(to: &mut Writer, position: Option<Position>) {
    match position {
        None => to.byte(0),
        Some(position) => {
            to.byte(1);
            to.number(position.term);
            to.number(position.index);
        }
    }
}

pub(crate) fn read_position(from: &mut Reader<'_>) -> Result<Option<Position>, DecodeError> {
    match from.byte()? {
        0 => Ok(None),
        1 => Ok(Some(Position { term: from.number()?, index: from.number()? })),
        _ => Err(from.invalid("position")),
    }
}

pub(crate) fn write_stored_membership(to: &mut Writer, stored: &StoredMembership) {
    write_position(to, stored.log_id().as_ref().map(position));
    write_membership(to, stored.membership());
}

pub(crate) fn read_stored_membership(from: &mut Reader<'_>) -> Result<StoredMembership, DecodeError> {
    let at = read_position(from)?;
    Ok(StoredMembership::new(at.map(log_id), read_membership(from)?))
}

fn write_membership(to: &mut Writer, membership: &Membership) {
    to.byte(MEMBERSHIP_FORMAT);
    let configs = membership.get_joint_config();
    to.number(configs.len() as u64);
    for voters in configs {
        to.number(voters.len() as u64);
        voters.iter().for_each(|voter| to.number(*voter));
    }
    let nodes: Vec<_> = membership.nodes().collect();
    to.number(nodes.len() as u64);
    for (replica, seat) in nodes {
        to.number(*replica);
        to.raw(seat.cell.as_uuid().as_bytes());
    }
}

fn read_membership(from: &mut Reader<'_>) -> Result<Membership, DecodeError> {
    from.version(MEMBERSHIP_FORMAT)?;
    let mut configs = Vec::new();
    for _ in 0..from.count(1)? {
        let mut voters = BTreeSet::new();
        for _ in 0..from.count(1)? {
            voters.insert(from.number()?);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..from.count(17)? {
        let replica = from.number()?;
        let mut id = [0; 16];
        id.copy_from_slice(from.take(16)?);
        nodes.insert(replica, Seat { cell: CellId::from_uuid(uuid::Uuid::from_bytes(id)) });
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|_| from.invalid("membership"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use store_mvcc::{Expect, Key, Op, Value};

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::message::{Request, Response};

    fn command(bytes: usize) -> Command {
        let value = Value { body: "body ".repeat(bytes / 5).into(), stamp: "stamp".into() };
        let key = Key::new("pods", "default/web");
        let op = Op::Put { key, value, expect: Expect::Absent, expires_at_ms: Some(7), shared: true };
        Command { ops: vec![op], fence: None, at_ms: -1 }
    }

    fn membership() -> Membership {
        let seat = Seat { cell: CellId::from_uuid(uuid::Uuid::from_u128(77)) };
        let nodes = BTreeMap::from([(1, seat), (2, seat), (9, seat)]);
        Membership::new(vec![BTreeSet::from([1]), BTreeSet::from([1, 2])], nodes).expect("a membership")
    }

    #[test]
    fn entries_come_back_as_they_were() {
        let at = Position { term: 3, index: 9 };
        let payloads = [
            Payload::Blank,
            normal(Command::default()),
            normal(command(100)),
            normal(command(300_000)),
            Payload::Membership(membership()),
            Payload::Membership(Membership::default()),
        ];
        for payload in payloads {
            let body = encode_payload(&payload);
            let entry = decode_entry(at, &body).expect("what was encoded");
            assert_eq!(position(&entry.log_id), at);
            match (&entry.payload, &payload) {
                (Payload::Normal(found), Payload::Normal(given)) => {
                    assert_eq!(found.command, given.command);
                    assert!(body.len() < 40_000, "a long command is packed: {} bytes", body.len());
                }
                (Payload::Membership(found), Payload::Membership(given)) => assert_eq!(found, given),
                (Payload::Blank, Payload::Blank) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_checkpoint_is_of_its_tenant_and_whole_or_refused() {
        let tenants = [1, 2].map(|number| base_ids::TenantId::from_uuid(uuid::Uuid::from_u128(number)));
        for image in [vec![7; 100], vec![7; 2 << 20]] {
            let applied = Position { term: 2, index: 40 };
            let membership = StoredMembership::new(Some(log_id(applied)), membership());
            let checkpoint = Checkpoint { applied, membership: membership.clone(), image: image.clone() };
            let bytes = checkpoint.encode(tenants[0]);
            let found = Checkpoint::decode(tenants[0], &bytes).expect("what was encoded");
            assert_eq!((found.applied, found.membership, found.image), (applied, membership, image));
            assert!(Checkpoint::decode(tenants[1], &bytes).is_err(), "another cluster's");
            for place in [0, 9, 13, 30, bytes.len() / 2, bytes.len() - 1] {
                let mut bad = bytes.clone();
                bad[place] ^= 1;
                assert!(Checkpoint::decode(tenants[0], &bad).is_err(), "byte {place}");
                assert!(Checkpoint::decode(tenants[0], &bytes[..place]).is_err(), "cut at {place}");
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let at = Position { term: 1, index: 1 };
            for kind in 0..9u8 {
                let mut bytes = bytes.clone();
                bytes.insert(0, kind);
                let _ = decode_entry(at, &bytes);
                bytes.insert(0, 1);
                let _ = Request::decode(&bytes);
                let _ = Response::decode(&bytes);
                let _ = decode_vote(&bytes);
                let _ = read_stored_membership(&mut Reader::new(&bytes));
            }
        }
    }
}
