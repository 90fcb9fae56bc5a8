//! The server name of a ClientHello, and the bytes it came in.

use std::io::Cursor;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt};

/// A ClientHello with all its extensions (post-quantum key shares included) is 2 KiB at most in practice;
/// what has not made sense by then never will.
const MAX_HELLO_BYTES: usize = 16 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error("the connection ended in the middle of it")]
    Ended(#[source] std::io::Error),
    #[error("more than {MAX_HELLO_BYTES} bytes")]
    TooLong,
    #[error("no server name (SNI)")]
    NoName,
    #[error("{0}")]
    Invalid(rustls::Error),
}

#[derive(Debug)]
pub struct Hello {
    pub server_name: String,
    /// Everything read so far; the cell gets it first.
    pub bytes: Vec<u8>,
}

/// Reads until the ClientHello is complete. Never answers anything.
pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Hello, HelloError> {
    let mut bytes = Vec::with_capacity(2048);
    let mut acceptor = Acceptor::default();
    loop {
        let seen = bytes.len();
        if seen >= MAX_HELLO_BYTES {
            return Err(HelloError::TooLong);
        }
        let read = from.read_buf(&mut bytes).await.map_err(HelloError::Ended)?;
        if read == 0 {
            return Err(HelloError::Ended(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let mut fresh = Cursor::new(&bytes[seen..]);
        while fresh.position() < read as u64 {
            acceptor.read_tls(&mut fresh).map_err(HelloError::Ended)?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                return Ok(Hello { server_name: name.ok_or(HelloError::NoName)?, bytes });
            }
            Ok(None) => {}
            Err((error, _alert)) => return Err(HelloError::Invalid(error)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn client_hello(name: &str) -> Vec<u8> {
        let ca = base_net::pki::Ca::generate("test").unwrap();
        let config = base_net::tls::client(ca.cert_pem(), None, &["h2"]).unwrap();
        let name = name.to_owned().try_into().unwrap();
        let mut connection = rustls::ClientConnection::new(config, name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn the_name_is_read_and_no_byte_is_lost() {
        let sent = client_hello("C1.roadstead.local");
        for chunk in [1, 7, sent.len()] {
            let mut reader = tokio_test_reader(&sent, chunk);
            let hello = read(&mut reader).await.unwrap();
            assert_eq!(hello.server_name, "c1.roadstead.local");
            assert_eq!(hello.bytes, sent, "in chunks of {chunk}");
        }
    }

    #[tokio::test]
    async fn what_is_not_tls_is_refused() {
        for (sent, wanted) in [
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "Invalid"),
            (Vec::new(), "Ended"),
            (client_hello("10.0.0.1"), "NoName"),
            (client_hello("c1.roadstead.local")[..40].to_vec(), "Ended"),
        ] {
            let got = read(&mut sent.as_slice()).await.map(|hello| hello.server_name);
            let shown = format!("{got:?}");
            assert!(shown.contains(wanted), "{shown} should be {wanted}");
        }
    }

    /// Hands out `chunk` bytes at a time.
    fn tokio_test_reader(bytes: &[u8], chunk: usize) -> impl AsyncRead + Unpin {
        let (mut tx, rx) = tokio::io::duplex(chunk);
        let bytes = bytes.to_vec();
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let _ = tx.write_all(&bytes).await;
        });
        rx
    }
}
