//! Bodies: of requests, read whole within a limit; of responses, whole or streamed.

use api_machinery::Status;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody};

/// Why a body ended early. A named type and no `Box<dyn Error>`: boxes of such a lifetime keep the compiler
/// from seeing that a future that holds a body is `Send`.
pub type BodyError = std::io::Error;

/// Any body, in either direction.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

pub type Request = http::Request<Body>;
pub type Response = http::Response<Body>;

/// Largest request body: upstream's limit, and so what clients have learnt to stay under.
pub const BODY_LIMIT_BYTES: usize = 3 * 1024 * 1024;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn empty() -> Body {
    full(Bytes::new())
}

/// Each item leaves as a frame of its own: what a watch needs.
pub fn stream(items: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Body {
    StreamBody::new(items.map(|item| item.map(http_body::Frame::data))).boxed_unsync()
}

/// Somebody else's body as ours.
pub fn erase<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    body.map_err(BodyError::other).boxed_unsync()
}

/// All of a request's body. 413 beyond [`BODY_LIMIT_BYTES`].
pub async fn read(body: Body) -> Result<Bytes, Status> {
    read_within(body, BODY_LIMIT_BYTES).await
}

pub async fn read_within(body: Body, limit_bytes: usize) -> Result<Bytes, Status> {
    match Limited::new(body, limit_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(err) if err.downcast_ref::<LengthLimitError>().is_some() => {
            Err(Status::too_large(format!("Request entity too large: limit is {limit_bytes}")))
        }
        Err(err) => Err(Status::bad_request(format!("unable to read the body of the request: {err}"))),
    }
}
