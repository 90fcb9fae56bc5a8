//! One resource, listed and watched for ever.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Gvr, Object, Status};
use api_reconcile::Backoff;
use futures::stream::{BoxStream, Stream, StreamExt};
use tenant_client::{ListOptions, SharedApi, WatchEvent, WatchOptions, WatchStream};
use tokio::sync::Semaphore;

use crate::catalog::ResourceId;

pub(crate) enum Signal {
    Listed { revision: u64, items: Vec<Arc<Object>> },
    Event(WatchEvent),
}

enum State {
    List { failures: u32 },
    Watch { after: u64, failures: u32 },
    Follow { stream: WatchStream, after: u64 },
}

/// A failing list or watch is tried again this often; a resource the server doesn't serve at all is asked
/// for rarely, since that changes only with a release.
const RETRY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(30) };
const NOT_SERVED: Duration = Duration::from_secs(600);

/// Never ends. `lists` bounds how many lists the tenant's supervisor makes at a time.
pub(crate) fn source(
    api: SharedApi,
    id: ResourceId,
    of: Gvr,
    lists: Arc<Semaphore>,
) -> BoxStream<'static, (ResourceId, Signal)> {
    signals(api, of, lists).map(move |signal| (id, signal)).boxed()
}

fn signals(api: SharedApi, of: Gvr, lists: Arc<Semaphore>) -> impl Stream<Item = Signal> {
    let start = State::List { failures: 0 };
    futures::stream::unfold(start, move |mut state| {
        let (api, of, lists) = (api.clone(), of.clone(), lists.clone());
        async move {
            loop {
                state = match state {
                    State::List { failures } => {
                        // The semaphore is never closed.
                        let permit = lists.acquire().await.ok();
                        let answer = api.list(&of, ListOptions::default()).await;
                        drop(permit);
                        match answer {
                            Ok(list) => {
                                let next = State::Watch { after: list.revision, failures: 0 };
                                let listed = Signal::Listed { revision: list.revision, items: list.items };
                                return Some((listed, next));
                            }
                            Err(status) => {
                                pause(&of, "list", &status, failures + 1).await;
                                State::List { failures: failures + 1 }
                            }
                        }
                    }
                    State::Watch { after, failures } => {
                        match api.watch(&of, WatchOptions { after, ..WatchOptions::default() }).await {
                            Ok(stream) => State::Follow { stream, after },
                            Err(status) if status.code == 410 => State::List { failures },
                            Err(status) => {
                                pause(&of, "watch", &status, failures + 1).await;
                                State::Watch { after, failures: failures + 1 }
                            }
                        }
                    }
                    State::Follow { mut stream, after } => match stream.next().await {
                        Some(Ok(event)) => {
                            let after = match &event {
                                WatchEvent::Added(object)
                                | WatchEvent::Modified(object)
                                | WatchEvent::Deleted(object) => object.header.revision.max(after),
                                WatchEvent::Bookmark(revision) => after.max(*revision),
                            };
                            return Some((Signal::Event(event), State::Follow { stream, after }));
                        }
                        Some(Err(status)) if status.code == 410 => State::List { failures: 0 },
                        Some(Err(status)) => {
                            pause(&of, "watch", &status, 1).await;
                            State::Watch { after, failures: 1 }
                        }
                        // Servers end watches now and then; a pause keeps one that ends them at once from spinning.
                        None => {
                            tokio::time::sleep(RETRY.first).await;
                            State::Watch { after, failures: 0 }
                        }
                    },
                };
            }
        }
    })
}

async fn pause(of: &Gvr, verb: &str, status: &Status, failures: u32) {
    let wait = match status.code {
        404 | 405 => NOT_SERVED,
        _ => RETRY.after(failures),
    };
    tracing::debug!(resource = %of, verb, %status, wait_ms = wait.as_millis() as u64, "will ask again");
    tokio::time::sleep(wait).await;
}
