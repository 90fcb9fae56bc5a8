//! What replicas say to one another, in our own encoding.

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use store_mvcc::{DecodeError, Reader, Writer};

use crate::codec;
use crate::types::{LogId, Types, Vote, log_id, position};

const FORMAT: u8 = 1;

pub(crate) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    /// Whether a vote would be granted.
    PreVote(VoteRequest<Types>),
    /// A whole checkpoint, as it is on disk.
    Snapshot {
        vote: Vote,
        checkpoint: Bytes,
    },
    Transfer(TransferLeaderRequest<Types>),
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
            Request::PreVote(vote) => {
                to.byte(3);
                write_vote_request(&mut to, vote);
            }
            Request::Snapshot { vote, checkpoint } => {
                to.byte(4);
                write_vote(&mut to, vote);
                to.bytes(checkpoint);
            }
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
            3 => Request::PreVote(read_vote_request(&mut from)?),
            4 => Request::Snapshot { vote: read_vote(&mut from)?, checkpoint: from.bytes()? },
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
