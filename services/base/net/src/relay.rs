//! Joins two connections into one.
//!
//! [`relay`] differs from tokio's `copy_bidirectional` in how it ends. A side that takes no more does not end
//! what comes from it: a server that has answered hangs up while its client may still be writing; the write
//! fails at once, and the answer, still on its way, must arrive all the same. And a write that nobody takes
//! for hours ends the whole: behind it the end of its reader could hide for ever.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// Carried per direction before it is written on.
const BYTES: usize = 32 * 1024;

/// How long what a side said last may take to arrive, once that side takes no more.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// How long one write may wait for its taker: as long as Kubernetes keeps an idle stream.
const STUCK: Duration = Duration::from_secs(4 * 60 * 60);

/// How a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its source has ended, and its sink was told.
    Told,
    /// Its sink takes no more.
    NotTaken,
}

/// Carries bytes both ways until both directions have ended, each handing on its end to the other side.
///
/// An error is that of a side that could not be read, or that of nobody reading: what the other side got may
/// be incomplete, and it is not shut down, so that whoever can tell a cut from an end does.
pub async fn relay<A, B>(a: A, b: B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Send + Unpin,
    B: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (a_from, mut a_to) = tokio::io::split(a);
    let (b_from, mut b_to) = tokio::io::split(b);
    let (mut forth, mut back) = (pin!(carry(a_from, &mut b_to)), pin!(carry(b_from, &mut a_to)));
    tokio::select! {
        ended = &mut forth => rest(ended?, back).await,
        ended = &mut back => rest(ended?, forth).await,
    }
}

/// The other direction, after one has ended.
async fn rest(first: End, other: impl Future<Output = io::Result<End>>) -> io::Result<()> {
    match first {
        End::Told => other.await.map(drop),
        End::NotTaken => tokio::time::timeout(LAST_WORDS, other).await.map_err(|_| stuck())?.map(drop),
    }
}

async fn carry<A: AsyncRead, B: AsyncWrite>(mut from: ReadHalf<A>, to: &mut WriteHalf<B>) -> io::Result<End> {
    let mut buffer = vec![0; BYTES];
    loop {
        let len = from.read(&mut buffer).await?;
        let written = async {
            if len == 0 {
                return to.shutdown().await;
            }
            to.write_all(&buffer[..len]).await?;
            // A writer that gathers bytes, as TLS does, may keep the last of them until it is told.
            to.flush().await
        };
        match tokio::time::timeout(STUCK, written).await {
            Err(_) => return Err(stuck()),
            Ok(Err(_)) => return Ok(End::NotTaken),
            Ok(Ok(())) if len == 0 => return Ok(End::Told),
            Ok(Ok(())) => {}
        }
    }
}

fn stuck() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nobody took what was sent")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (dialed, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (dialed.unwrap(), accepted.unwrap().0)
    }

    /// client ↔ relay ↔ server
    async fn relayed() -> (TcpStream, TcpStream, tokio::task::JoinHandle<io::Result<()>>) {
        let ((client, left), (right, server)) = (pair().await, pair().await);
        (client, server, tokio::spawn(relay(left, right)))
    }

    #[tokio::test]
    async fn directions_end_one_by_one() {
        let (mut client, mut server, relay) = relayed().await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"question");
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"answer");
        relay.await.unwrap().unwrap();
    }

    /// The server answers and hangs up without having read all that the client wrote.
    #[tokio::test]
    async fn an_answer_arrives_though_the_question_was_cut_short() {
        let (client, mut server, relay) = relayed().await;
        let (mut from, mut to) = client.into_split();
        let writing = tokio::spawn(async move {
            let piece = vec![7; 64 * 1024];
            while to.write_all(&piece).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let mut few = [0; 10];
        server.read_exact(&mut few).await.unwrap();
        let answer = vec![42; 3 << 20];
        let answering = async {
            server.write_all(&answer).await.unwrap();
            server.shutdown().await.unwrap();
            // Its last bytes are out; what the client still sends is not read.
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(server);
        };
        let mut heard = Vec::new();
        let reading = async {
            let mut buffer = vec![0; 4096];
            loop {
                match from.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(len) => heard.extend_from_slice(&buffer[..len]),
                }
                // Slower than the server, so that the failed write comes first.
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(answering, reading);
        assert_eq!(heard.len(), answer.len());
        drop(from);
        writing.abort();
        let _ = tokio::time::timeout(Duration::from_secs(5), relay).await.expect("the relay ends");
    }

    /// The client has gone, and what it sent before is stuck: nobody would ever read as far as its end.
    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_ends_with_its_writer() {
        let (mut client, left) = tokio::io::duplex(1024);
        let (right, mut server) = tokio::io::duplex(1024);
        let relay = tokio::spawn(relay(left, right));
        client.write_all(&[7; 900]).await.unwrap();
        client.write_all(&[7; 900]).await.unwrap();
        drop(client);
        // What the server says finds nobody; what it does not read is in the way of everything else.
        server.write_all(&[1; 10]).await.unwrap();
        let ended = tokio::time::timeout(2 * LAST_WORDS, relay).await.expect("the relay ends");
        assert_eq!(ended.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Nothing lingers behind a side that broke.
    #[tokio::test]
    async fn a_broken_side_ends_the_other() {
        let (client, mut server, relay) = relayed().await;
        client.set_zero_linger().unwrap();
        drop(client);
        let ended = tokio::time::timeout(Duration::from_secs(5), relay).await.expect("the relay ends");
        assert!(ended.unwrap().is_err(), "a reset is no end");
        let mut heard = Vec::new();
        let _ = server.read_to_end(&mut heard).await;
        assert!(heard.is_empty());
    }
}
