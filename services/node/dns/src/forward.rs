//! Questions that are not the cluster's, asked of the machine's resolvers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

/// Questions on their way at a time. Each holds a socket; a node full of pods with a dead resolver would
/// otherwise run out of descriptors.
const IN_FLIGHT: usize = 256;

/// For one resolver; clients give up after five seconds by default.
const PATIENCE: Duration = Duration::from_secs(2);

/// Largest answer taken over UDP.
const UDP_BYTES: usize = 4096;

const HEADER_BYTES: usize = 12;

pub struct Forwarder {
    resolvers: Vec<SocketAddr>,
    slots: Semaphore,
}

impl Forwarder {
    pub fn new(resolvers: Vec<SocketAddr>) -> Forwarder {
        Forwarder { resolvers, slots: Semaphore::new(IN_FLIGHT) }
    }

    /// The answer to `query` (a whole message), with its id restored; `None` if nobody answers.
    pub async fn ask(&self, query: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        if query.len() < HEADER_BYTES {
            return None;
        }
        let _slot = self.slots.try_acquire().ok()?;
        let mut question = query.to_vec();
        // An id of our own: the client's is known to whoever sits beside it.
        question[..2].copy_from_slice(&rand::random::<u16>().to_be_bytes());
        for resolver in &self.resolvers {
            let asked = async {
                match over_tcp {
                    true => ask_tcp(*resolver, &question).await,
                    false => ask_udp(*resolver, &question).await,
                }
            };
            if let Ok(Ok(mut answer)) = tokio::time::timeout(PATIENCE, asked).await {
                answer[..2].copy_from_slice(&query[..2]);
                return Some(answer);
            }
        }
        None
    }
}

async fn ask_udp(resolver: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; UDP_BYTES];
    loop {
        let len = socket.recv(&mut buffer).await?;
        if belongs(&buffer[..len], question) {
            buffer.truncate(len);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(resolver: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(resolver).await?;
    let len = u16::try_from(question.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&len.to_be_bytes(), question].concat()).await?;
    let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut buffer).await?;
    if belongs(&buffer, question) { Ok(buffer) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Same id, a response, and the question repeated (compared up to letter case, which some resolvers change).
fn belongs(answer: &[u8], question: &[u8]) -> bool {
    let end = question_end(question);
    answer.len() >= HEADER_BYTES
        && answer[..2] == question[..2]
        && answer[2] & 0x80 != 0
        // A refusal may come without the question.
        && (answer[4..6] == [0, 0]
            || end.is_some_and(|end| {
                answer.len() >= end && answer[HEADER_BYTES..end].eq_ignore_ascii_case(&question[HEADER_BYTES..end])
            }))
}

/// Where the first question of a message ends.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = HEADER_BYTES;
    loop {
        let len = usize::from(*message.get(at)?);
        match len {
            0 => break,
            1..=63 => at += 1 + len,
            _ => return None, // no compression in a question
        }
    }
    (message.len() >= at + 5).then_some(at + 5)
}
