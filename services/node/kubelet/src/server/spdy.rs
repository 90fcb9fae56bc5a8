//! A SPDY/3.1 client, as much of it as Kubernetes' streaming servers need.
//!
//! containerd's streaming server speaks WebSocket too, but only `v4.channel.k8s.io`, which cannot say that stdin
//! has ended. SPDY can, so the kubelet talks SPDY to containerd whatever its own client speaks.
//!
//! Headers must be zlib-compressed against SPDY's dictionary. We send them in stored blocks, which refer to no
//! dictionary and need none; we read no headers, since the replies' carry nothing. Flow control is left out on
//! both sides, as Kubernetes' SPDY library ignores it: TCP's holds.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A zlib header that announces a preset dictionary, and the checksum of SPDY/3's.
const ZLIB_START: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];

const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const FLAG_FIN: u8 = 1;

/// The head of an HTTP answer is shorter than this.
const HEAD_BYTES: usize = 8 << 10;

/// Data goes out in frames of this size at most; the length field would allow 16 MiB.
const FRAME_BYTES: usize = 32 << 10;

/// A frame that is longer than this is not from a streaming server.
const MAX_FRAME_BYTES: usize = 4 << 20;

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// What arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Data {
        stream: u32,
        data: Bytes,
        last: bool,
    },
    /// The stream is refused or torn down.
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
}

/// An upgraded connection, before anything was sent on it.
pub struct Upgraded {
    pub stream: TcpStream,
    /// What the server sent behind the head of its answer.
    pub early: Bytes,
    /// The protocol it chose of those offered.
    pub protocol: Option<String>,
}

/// Asks the streaming server at `url` (`http://127.0.0.1:PORT/PATH`) for SPDY, offering `protocols`.
pub async fn upgrade(url: &str, protocols: &[String]) -> io::Result<Upgraded> {
    let refused = |what: String| io::Error::other(format!("streaming server: {what}"));
    let uri: http::Uri = url.parse().map_err(|error| refused(format!("{url:?} is no URL: {error}")))?;
    let authority = uri.authority().ok_or_else(|| refused(format!("{url:?} has no host")))?.to_string();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n"
    );
    for protocol in protocols {
        request += &format!("X-Stream-Protocol-Version: {protocol}\r\n");
    }
    request += "\r\n";
    let exchange = async {
        let mut stream = TcpStream::connect(&authority).await?;
        stream.set_nodelay(true)?;
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = BytesMut::with_capacity(1024);
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if buffer.len() > HEAD_BYTES {
                return Err(refused("its answer has no end".to_owned()));
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err(refused("it hung up".to_owned()));
            }
        };
        let head = String::from_utf8_lossy(&buffer.split_to(end)).into_owned();
        let mut lines = head.lines();
        let status = lines.next().unwrap_or_default().to_owned();
        if status.split(' ').nth(1) != Some("101") {
            return Err(refused(format!("no upgrade: {status}")));
        }
        let protocol = lines.filter_map(|line| line.split_once(':'));
        let protocol = protocol.filter(|(name, _)| name.eq_ignore_ascii_case("x-stream-protocol-version"));
        let protocol = protocol.map(|(_, value)| value.trim().to_owned()).next();
        Ok(Upgraded { stream, early: buffer.freeze(), protocol })
    };
    match tokio::time::timeout(DIAL_TIMEOUT, exchange).await {
        Ok(result) => result,
        Err(_) => Err(refused("no answer".to_owned())),
    }
}

/// The sending half.
pub struct Sender {
    to: OwnedWriteHalf,
    opened: u32,
}

/// The receiving half.
pub struct Receiver {
    from: Box<dyn AsyncRead + Send + Unpin>,
}

impl Upgraded {
    pub fn into_spdy(self) -> (Sender, Receiver) {
        let (from, to): (OwnedReadHalf, OwnedWriteHalf) = self.stream.into_split();
        let from = AsyncReadExt::chain(io::Cursor::new(self.early), from);
        (Sender { to, opened: 0 }, Receiver { from: Box::new(from) })
    }
}

impl Sender {
    /// Opens a stream with these headers; gives its id.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> io::Result<u32> {
        let id = self.opened * 2 + 1;
        let block = header_block(headers, self.opened == 0);
        self.opened += 1;
        let mut frame = BytesMut::with_capacity(block.len() + 18);
        frame.put_u16(VERSION);
        frame.put_u16(SYN_STREAM);
        put_flags_and_length(&mut frame, 0, block.len() + 10);
        frame.put_u32(id);
        frame.put_u32(0);
        frame.put_u16(0);
        frame.put_slice(&block);
        self.to.write_all(&frame).await?;
        Ok(id)
    }

    pub async fn data(&mut self, stream: u32, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(FRAME_BYTES) {
            let mut frame = BytesMut::with_capacity(piece.len() + 8);
            frame.put_u32(stream);
            put_flags_and_length(&mut frame, 0, piece.len());
            frame.put_slice(piece);
            self.to.write_all(&frame).await?;
        }
        Ok(())
    }

    /// Says that no more data comes on a stream.
    pub async fn end(&mut self, stream: u32) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(8);
        frame.put_u32(stream);
        put_flags_and_length(&mut frame, FLAG_FIN, 0);
        self.to.write_all(&frame).await
    }

    pub async fn pong(&mut self, id: u32) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(12);
        frame.put_u16(VERSION);
        frame.put_u16(PING);
        put_flags_and_length(&mut frame, 0, 4);
        frame.put_u32(id);
        self.to.write_all(&frame).await
    }
}

impl Receiver {
    /// The next frame that means something; `None` when the connection has ended.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let mut head = [0; 8];
            match self.from.read_exact(&mut head).await {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
            let mut fields = &head[..];
            let first = fields.get_u32();
            let flags = fields.get_u8();
            let length = usize::try_from(fields.get_uint(3)).unwrap_or(usize::MAX);
            if length > MAX_FRAME_BYTES {
                return Err(io::Error::other(format!("a frame of {length} bytes is not SPDY")));
            }
            let mut body = vec![0; length];
            self.from.read_exact(&mut body).await?;
            if let Some(frame) = frame(first, flags, body) {
                return Ok(Some(frame));
            }
        }
    }
}

fn frame(first: u32, flags: u8, body: Vec<u8>) -> Option<Frame> {
    let is_control = first & 0x8000_0000 != 0;
    if !is_control {
        return Some(Frame::Data { stream: first, data: body.into(), last: flags & FLAG_FIN != 0 });
    }
    let kind = u16::try_from(first & 0xffff).unwrap_or(0);
    let mut fields = body.as_slice();
    match kind {
        GO_AWAY => Some(Frame::GoAway),
        RST_STREAM if fields.len() >= 4 => Some(Frame::Reset { stream: fields.get_u32() }),
        PING if fields.len() >= 4 => Some(Frame::Ping { id: fields.get_u32() }),
        // SYN_REPLY, SETTINGS, HEADERS, WINDOW_UPDATE: nothing we act on.
        _ => None,
    }
}

fn put_flags_and_length(frame: &mut BytesMut, flags: u8, length: usize) {
    frame.put_u8(flags);
    frame.put_uint(length as u64, 3);
}

/// Names and values, as a piece of the connection's one zlib stream.
fn header_block(headers: &[(&str, &str)], first: bool) -> Vec<u8> {
    let mut plain = Vec::new();
    plain.put_u32(u32::try_from(headers.len()).unwrap_or(u32::MAX));
    for part in headers.iter().flat_map(|(name, value)| [name, value]) {
        plain.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
        plain.put_slice(part.as_bytes());
    }
    // Our headers are a few dozen bytes; a stored block holds 65,535.
    let length = u16::try_from(plain.len()).unwrap_or(u16::MAX);
    let mut block = if first { ZLIB_START.to_vec() } else { Vec::new() };
    block.push(0);
    block.put_u16_le(length);
    block.put_u16_le(!length);
    block.extend_from_slice(&plain[..usize::from(length)]);
    // An empty block is zlib's flush: without it Go's reader asks for more before it gives out what it has.
    block.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart() {
        for (first, flags, body, expected) in [
            (3, 1, vec![], Some(Frame::Data { stream: 3, data: Bytes::new(), last: true })),
            (5, 0, vec![7], Some(Frame::Data { stream: 5, data: Bytes::from_static(&[7]), last: false })),
            (0x8003_0003, 0, vec![0, 0, 0, 9, 0, 0, 0, 1], Some(Frame::Reset { stream: 9 })),
            (0x8003_0003, 0, vec![0], None),
            (0x8003_0006, 0, vec![0, 0, 0, 2], Some(Frame::Ping { id: 2 })),
            (0x8003_0007, 0, vec![0; 8], Some(Frame::GoAway)),
            (0x8003_0002, 0, vec![0; 20], None),
        ] {
            assert_eq!(frame(first, flags, body), expected, "{first:x}");
        }
    }

    #[test]
    fn headers_are_one_zlib_stream_of_stored_blocks() {
        let first = header_block(&[("a", "bc")], true);
        let second = header_block(&[("a", "bc")], false);
        assert_eq!(first[..6], ZLIB_START);
        assert_eq!(first[6..], second);
        let plain = [0, 0, 0, 1, 0, 0, 0, 1, b'a', 0, 0, 0, 2, b'b', b'c'];
        assert_eq!(second[..5], [0, 15, 0, 0xf0, 0xff]);
        assert_eq!(second[5..20], plain);
        assert_eq!(second[20..], [0, 0, 0, 0xff, 0xff]);
    }
}
