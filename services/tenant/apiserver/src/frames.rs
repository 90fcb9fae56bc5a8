//! Keeps a WebSocket's frames apart on their way to a client.
//!
//! [`Apart`] reads what a backend sends and gives out no more than the rest of one frame at a time, so that each
//! one leaves in a write, and thus in a TLS record, of its own. Upstream's server does so by the way it copies,
//! and clients have come to depend on it: the Python client polls its socket before it reads one frame, and never
//! looks again at a second one that its TLS library has decrypted along with the first.
//!
//! Not here: what frames say; a stream that is none passes through all the same, cut at other places.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// As much as is carried at once.
const BYTES: usize = 32 * 1024;

/// Where frames end, told from their headers as they pass (RFC 6455, 5.2).
#[derive(Debug, Default)]
struct Ends {
    header: [u8; 10],
    header_len: usize,
    /// Of the mask and the payload.
    left: u64,
}

impl Ends {
    /// How many of `bytes`, which come next, belong to the frame that is passing.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while passed < bytes.len() {
            if self.left == 0 {
                self.header[self.header_len] = bytes[passed];
                self.header_len += 1;
                passed += 1;
                let Some(left) = self.after_header() else { continue };
                (self.header_len, self.left) = (0, left);
            } else {
                let rest = u64::try_from(bytes.len() - passed).unwrap_or(u64::MAX).min(self.left);
                self.left -= rest;
                passed += usize::try_from(rest).unwrap_or(usize::MAX);
            }
            if self.left == 0 {
                break;
            }
        }
        passed
    }

    /// What follows the header, once it is complete.
    fn after_header(&self) -> Option<u64> {
        let header = self.header.get(..self.header_len)?;
        let (second, long) = header.get(1..)?.split_first()?;
        let payload = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes(long.try_into().ok()?)),
            127 => u64::from_be_bytes(long.try_into().ok()?),
            short => u64::from(short),
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        Some(payload.saturating_add(mask))
    }
}

/// A backend whose frames come one by one.
#[derive(Debug)]
pub struct Apart<S> {
    inner: S,
    ends: Ends,
    buffer: Box<[u8]>,
    /// Of the buffer, what has been read and not yet given out.
    unread: std::ops::Range<usize>,
}

impl<S> Apart<S> {
    pub fn new(inner: S) -> Apart<S> {
        Apart { inner, ends: Ends::default(), buffer: vec![0; BYTES].into(), unread: 0..0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Apart<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            let mut fresh = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut fresh))?;
            this.unread = 0..fresh.filled().len();
        }
        let room = this.unread.len().min(to.remaining());
        let bytes = &this.buffer[this.unread.start..this.unread.start + room];
        let len = this.ends.pass(bytes);
        to.put_slice(&bytes[..len]);
        this.unread.start += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Apart<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(payload_len: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut frame = vec![0x82];
        match (u8::try_from(payload_len), u16::try_from(payload_len)) {
            (Ok(short @ ..126), _) => frame.push(mask | short),
            (_, Ok(len)) => {
                frame.push(mask | 126);
                frame.extend(len.to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend(u64::try_from(payload_len).unwrap().to_be_bytes());
            }
        }
        frame.resize(frame.len() + payload_len + if masked { 4 } else { 0 }, 0xff);
        frame
    }

    /// However the bytes arrive, no read has parts of two frames, and nothing is lost.
    #[tokio::test]
    async fn frames_come_one_by_one() {
        let frames: Vec<Vec<u8>> = [0, 1, 125, 126, 127, 65_535, 65_536, 100_000, 0, 3]
            .into_iter()
            .flat_map(|len| [frame(len, false), frame(len, true)])
            .collect();
        let all = frames.concat();
        for piece_len in [1, 2, 7, 1000, 32 * 1024, all.len()] {
            let pieces =
                all.chunks(piece_len).map(|piece| Ok::<_, io::Error>(bytes::Bytes::copy_from_slice(piece)));
            let source = tokio_util::io::StreamReader::new(futures::stream::iter(pieces));
            let mut apart = Apart::new(source);
            let mut buffer = vec![0; 4000];
            for (number, frame) in frames.iter().enumerate() {
                let mut got = Vec::new();
                while got.len() < frame.len() {
                    let len = apart.read(&mut buffer).await.unwrap();
                    assert_ne!(len, 0, "frame {number} ends early");
                    got.extend_from_slice(&buffer[..len]);
                }
                assert!(got == *frame, "frame {number} in pieces of {piece_len}");
            }
            assert_eq!(apart.read(&mut buffer).await.unwrap(), 0);
        }
    }

    /// Lengths that no frame has are no reason to panic.
    #[tokio::test]
    async fn what_is_no_frame_passes() {
        let rubbish = [[0xff; 10].as_slice(), &[0x7f; 40_000]].concat();
        let mut heard = Vec::new();
        Apart::new(rubbish.as_slice()).read_to_end(&mut heard).await.unwrap();
        assert!(heard == rubbish);
    }
}
