//! What replicas say to one another, in our own encoding.

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use store_log::Position;
use store_mvcc::{DecodeError, Reader, Writer};

use crate::codec;
use crate::types::{LogId, Types, Vote, log_id, position};

/// 2: snapshots travel in parts, pre-votes say what is known of the leader, clients' requests are forwarded.
const FORMAT: u8 = 2;

pub(crate) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    /// Whether a vote would be granted. `deposed`: the one who asks has it from the leader's cell itself
    /// that nobody leads there any more, so that cell's being up means nothing.
    PreVote {
        vote: VoteRequest<Types>,
        deposed: bool,
    },
    /// A part of a checkpoint, which is as it is on disk. Parts of one have the same number and come in
    /// order, each after the one before it is answered.
    Snapshot {
        vote: Vote,
        number: u64,
        offset: u64,
        total: u64,
        part: Bytes,
    },
    Transfer(TransferLeaderRequest<Types>),
    /// A client's command, as the body of a log entry. Never one with a fence.
    Write {
        entry: Bytes,
    },
    /// Up to where a linearizable read must have applied.
    ReadIndex,
}

pub(crate) enum Response {
    Append(AppendEntriesResponse<Types>),
    Vote(VoteResponse<Types>),
    Snapshot {
        vote: Vote,
    },
    /// Whether the leadership is being taken over.
    Transfer {
        accepted: bool,
    },
    /// The part has arrived, and there is more to come.
    More,
    /// The command is committed there; what came of it is the same on every replica.
    Written {
        at: Position,
    },
    ReadAt {
        at: Option<Position>,
    },
    /// Nothing happened: this replica does not lead.
    NotLeader,
    /// Nothing happened: the disk there is full.
    NoSpace,
    /// The replica could not answer.
    Failed {
        reason: String,
    },
}

impl Request {
    pub(crate) fn encode(&self) -> Bytes {
        let mut to = Writer::default();
        to.byte(FORMAT);
        match self {
            Request::Append(append) => {
                to.byte(1);
                write_vote(&mut to, &append.vote);
                write_log_id(&mut to, append.prev_log_id.as_ref());
                write_log_id(&mut to, append.leader_commit.as_ref());
                to.number(append.entries.len() as u64);
                for entry in &append.entries {
                    write_log_id(&mut to, Some(&entry.log_id));
                    to.bytes(&codec::encode_payload(&entry.payload));
                }
            }
            Request::Vote(vote) => {
                to.byte(2);
                write_vote_request(&mut to, vote);
            }
            Request::PreVote { vote, deposed } => {
                to.byte(3);
                write_vote_request(&mut to, vote);
                to.byte(u8::from(*deposed));
            }
            Request::Snapshot { vote, number, offset, total, part } => {
                to.byte(4);
                write_vote(&mut to, vote);
                to.number(*number);
                to.number(*offset);
                to.number(*total);
                to.bytes(part);
            }
            Request::Write { entry } => {
                to.byte(6);
                to.bytes(entry);
            }
            Request::ReadIndex => to.byte(7),
            Request::Transfer(transfer) => {
                to.byte(5);
                write_vote(&mut to, transfer.from_leader());
                to.number(*transfer.to_node_id());
                write_log_id(&mut to, transfer.last_log_id());
            }
        }
        to.finish().into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Request, DecodeError> {
        let mut from = Reader::new(bytes);
        from.version(FORMAT)?;
        let request = match from.byte()? {
            1 => {
                let vote = read_vote(&mut from)?;
                let prev_log_id = read_log_id(&mut from)?;
                let leader_commit = read_log_id(&mut from)?;
                let mut entries = Vec::new();
                for _ in 0..from.count(4)? {
                    let at =
                        codec::read_position(&mut from)?.ok_or_else(|| from.invalid("entry of no place"))?;
                    entries.push(codec::decode_entry(at, from.slice()?)?);
                }
                Request::Append(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
            }
            2 => Request::Vote(read_vote_request(&mut from)?),
            3 => Request::PreVote { vote: read_vote_request(&mut from)?, deposed: from.byte()? != 0 },
            4 => Request::Snapshot {
                vote: read_vote(&mut from)?,
                number: from.number()?,
                offset: from.number()?,
                total: from.number()?,
                part: from.bytes()?,
            },
            6 => Request::Write { entry: from.bytes()? },
            7 => Request::ReadIndex,
            5 => {
                let (vote, to) = (read_vote(&mut from)?, from.number()?);
                Request::Transfer(TransferLeaderRequest::new(vote, to, read_log_id(&mut from)?))
            }
            _ => return Err(from.invalid("kind of request")),
        };
        from.end()?;
        Ok(request)
    }
}

impl Response {
    pub(crate) fn encode(&self) -> Bytes {
        let mut to = Writer::default();
        to.byte(FORMAT);
        match self {
            Response::Append(AppendEntriesResponse::Success) => to.byte(1),
            Response::Append(AppendEntriesResponse::PartialSuccess(at)) => {
                to.byte(2);
                write_log_id(&mut to, at.as_ref());
            }
            Response::Append(AppendEntriesResponse::Conflict) => to.byte(3),
            Response::Append(AppendEntriesResponse::HigherVote(vote)) => {
                to.byte(4);
                write_vote(&mut to, vote);
            }
            Response::Vote(response) => {
                to.byte(5);
                write_vote(&mut to, &response.vote);
                to.byte(u8::from(response.vote_granted));
                write_log_id(&mut to, response.last_log_id.as_ref());
            }
            Response::Snapshot { vote } => {
                to.byte(6);
                write_vote(&mut to, vote);
            }
            Response::Transfer { accepted } => {
                to.byte(7);
                to.byte(u8::from(*accepted));
            }
            Response::Failed { reason } => {
                to.byte(8);
                to.bytes(reason.as_bytes());
            }
            Response::More => to.byte(9),
            Response::Written { at } => {
                to.byte(10);
                codec::write_position(&mut to, Some(*at));
            }
            Response::ReadAt { at } => {
                to.byte(11);
                codec::write_position(&mut to, *at);
            }
            Response::NotLeader => to.byte(12),
            Response::NoSpace => to.byte(13),
        }
        to.finish().into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Response, DecodeError> {
        let mut from = Reader::new(bytes);
        from.version(FORMAT)?;
        let response = match from.byte()? {
            1 => Response::Append(AppendEntriesResponse::Success),
            2 => Response::Append(AppendEntriesResponse::PartialSuccess(read_log_id(&mut from)?)),
            3 => Response::Append(AppendEntriesResponse::Conflict),
            4 => Response::Append(AppendEntriesResponse::HigherVote(read_vote(&mut from)?)),
            5 => Response::Vote(VoteResponse {
                vote: read_vote(&mut from)?,
                vote_granted: from.byte()? != 0,
                last_log_id: read_log_id(&mut from)?,
            }),
            6 => Response::Snapshot { vote: read_vote(&mut from)? },
            7 => Response::Transfer { accepted: from.byte()? != 0 },
            8 => Response::Failed { reason: from.text()?.to_owned() },
            9 => Response::More,
            10 => match codec::read_position(&mut from)? {
                Some(at) => Response::Written { at },
                None => return Err(from.invalid("a write at no position")),
            },
            11 => Response::ReadAt { at: codec::read_position(&mut from)? },
            12 => Response::NotLeader,
            13 => Response::NoSpace,
            _ => return Err(from.invalid("kind of response")),
        };
        from.end()?;
        Ok(response)
    }
}

fn write_vote(to: &mut Writer, vote: &Vote) {
    to.bytes(&codec::encode_vote(vote));
}

fn read_vote(from: &mut Reader<'_>) -> Result<Vote, DecodeError> {
    codec::decode_vote(from.slice()?)
}

fn write_log_id(to: &mut Writer, at: Option<&LogId>) {
    codec::write_position(to, at.map(position));
}

fn read_log_id(from: &mut Reader<'_>) -> Result<Option<LogId>, DecodeError> {
    Ok(codec::read_position(from)?.map(log_id))
}

fn write_vote_request(to: &mut Writer, request: &VoteRequest<Types>) {
    write_vote(to, &request.vote);
    write_log_id(to, request.last_log_id.as_ref());
    to.byte(u8::from(request.leadership_transfer));
}

fn read_vote_request(from: &mut Reader<'_>) -> Result<VoteRequest<Types>, DecodeError> {
    let mut request = VoteRequest::new(read_vote(from)?, read_log_id(from)?);
    request.leadership_transfer = from.byte()? != 0;
    Ok(request)
}
