//! Bodies of requests that were answered before they had come.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

/// What of a body that nobody wants is still read, and for how long.
const DRAIN_BYTES: usize = 1024 * 1024;
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A request's body that is read on for a moment when it is dropped unread.
///
/// A request that is refused is answered before its body has come. Over HTTP/2 the stream would be reset then, and
/// clients exist that let the reset count and not the answer before it (curl 7.88). Over HTTP/1 hyper does the same
/// by itself. What is read goes nowhere; the stream counts among its connection's until then, so this is bounded.
pub struct Drained<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    body: Option<B>,
}

impl<B> Drained<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    pub fn new(body: B) -> Drained<B> {
        Drained { body: Some(body) }
    }
}

impl<B> http_body::Body for Drained<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }
    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }
    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl<B> Drop for Drained<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let drain = async {
                let mut left = DRAIN_BYTES;
                while let Some(Ok(frame)) = body.frame().await {
                    let read = frame.data_ref().map_or(0, Bytes::len);
                    match left.checked_sub(read) {
                        Some(rest) => left = rest,
                        None => return,
                    }
                }
            };
            // In vain or not, it was only a courtesy.
            let _ = tokio::time::timeout(DRAIN_PATIENCE, drain).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::StreamExt;
    use http_body_util::StreamBody;

    use super::*;

    /// Counts how many of `frames` kilobytes were read of it.
    fn counted(
        frames: usize,
        read: &Arc<AtomicUsize>,
    ) -> impl http_body::Body<Data = Bytes, Error = std::io::Error> + Send + Unpin + use<> {
        let read = read.clone();
        StreamBody::new(futures::stream::iter(0..frames).map(move |_| {
            read.fetch_add(1, Ordering::Relaxed);
            Ok(Frame::data(Bytes::from_static(&[0; 1024])))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_body_is_read_within_reason() {
        let most = DRAIN_BYTES / 1024;
        for (frames, taken, wanted) in [
            (7, 0, 7),
            (7, 3, 7),
            (7, 7, 7),
            // One more than fits shows that it is too much.
            (most * 2, 0, most + 1),
        ] {
            let read = Arc::new(AtomicUsize::new(0));
            let mut body = Drained::new(counted(frames, &read));
            for _ in 0..taken {
                body.frame().await.unwrap().unwrap();
            }
            drop(body);
            tokio::time::sleep(DRAIN_PATIENCE).await;
            assert_eq!(read.load(Ordering::Relaxed), wanted, "{taken} of {frames} taken");
        }
    }
}
