//! One resource, listed and watched for ever.
//!
//! A cluster has a hundred of these and a cell thousands of clusters, nearly all of them idle: so a [`Source`]
//! that follows its watch is a few words, and what lists, opens and waits lives in a box only while it runs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use api_machinery::{Gvr, Object, Status};
use api_reconcile::Backoff;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{Stream, StreamExt};
use tenant_client::{ListOptions, SharedApi, WatchEvent, WatchOptions, WatchStream};
use tokio::sync::Semaphore;

use crate::catalog::{Catalog, ResourceId};

pub(crate) enum Signal {
    Listed { revision: u64, items: Vec<Arc<Object>> },
    Event(WatchEvent),
}

/// A failing list or watch is tried again this often; a resource the server doesn't serve at all is asked
/// for rarely, since that changes only with a release.
const RETRY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(30) };
const NOT_SERVED: Duration = Duration::from_secs(600);

/// A stream that does not end, unless it is retired.
pub(crate) struct Source {
    api: SharedApi,
    catalog: Arc<Catalog>,
    id: ResourceId,
    lists: Arc<Semaphore>,
    /// Set once nobody wants to hear of the resource any more; of custom resources alone.
    retired: Option<Arc<AtomicBool>>,
    state: State,
}

enum State {
    Working(BoxFuture<'static, (Option<Signal>, Next)>),
    Following { stream: WatchStream, after: u64 },
}

/// What to do after waiting `wait`.
enum Next {
    List { wait: Duration, failures: u32 },
    Watch { wait: Duration, failures: u32, after: u64 },
    Follow { stream: WatchStream, after: u64 },
}

impl Source {
    /// `lists` bounds how many lists the tenant's supervisor makes at a time.
    pub(crate) fn new(
        api: SharedApi,
        catalog: Arc<Catalog>,
        id: ResourceId,
        lists: Arc<Semaphore>,
        retired: Option<Arc<AtomicBool>>,
    ) -> Source {
        let start = Next::List { wait: Duration::ZERO, failures: 0 };
        let state = begin(&api, &catalog.get(id).gvr, &lists, start);
        Source { api, catalog, id, lists, retired, state }
    }

    fn go(&mut self, next: Next) {
        self.state = begin(&self.api, &self.catalog.get(self.id).gvr, &self.lists, next);
    }
}

impl Stream for Source {
    type Item = (ResourceId, Signal);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<(ResourceId, Signal)>> {
        let this = &mut *self;
        loop {
            if this.retired.as_ref().is_some_and(|retired| retired.load(Ordering::Relaxed)) {
                return Poll::Ready(None);
            }
            let next = match &mut this.state {
                State::Working(work) => {
                    let (signal, next) = ready!(work.poll_unpin(cx));
                    if let Some(signal) = signal {
                        this.go(next);
                        return Poll::Ready(Some((this.id, signal)));
                    }
                    next
                }
                State::Following { stream, after } => match ready!(stream.poll_next_unpin(cx)) {
                    Some(Ok(event)) => {
                        *after = match &event {
                            WatchEvent::Added(object)
                            | WatchEvent::Modified(object)
                            | WatchEvent::Deleted(object) => object.header.revision.max(*after),
                            WatchEvent::Bookmark(revision) => (*revision).max(*after),
                        };
                        return Poll::Ready(Some((this.id, Signal::Event(event))));
                    }
                    Some(Err(status)) if status.code == 410 => {
                        Next::List { wait: Duration::ZERO, failures: 0 }
                    }
                    Some(Err(status)) => {
                        let wait = pause(&this.catalog.get(this.id).gvr, "watch", &status, 1);
                        Next::Watch { wait, failures: 1, after: *after }
                    }
                    // Servers end watches now and then; a pause keeps one that ends them at once from spinning.
                    None => Next::Watch { wait: RETRY.first, failures: 0, after: *after },
                },
            };
            this.go(next);
        }
    }
}

fn begin(api: &SharedApi, of: &Gvr, lists: &Arc<Semaphore>, next: Next) -> State {
    match next {
        Next::List { wait, failures } => {
            State::Working(list(api.clone(), of.clone(), lists.clone(), wait, failures).boxed())
        }
        Next::Watch { wait, failures, after } => {
            State::Working(watch(api.clone(), of.clone(), wait, failures, after).boxed())
        }
        Next::Follow { stream, after } => State::Following { stream, after },
    }
}

async fn list(
    api: SharedApi,
    of: Gvr,
    lists: Arc<Semaphore>,
    wait: Duration,
    failures: u32,
) -> (Option<Signal>, Next) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    // The semaphore is never closed.
    let permit = lists.acquire().await.ok();
    let answer = api.list(&of, ListOptions::default()).await;
    drop(permit);
    match answer {
        Ok(list) => {
            let next = Next::Watch { wait: Duration::ZERO, failures: 0, after: list.revision };
            (Some(Signal::Listed { revision: list.revision, items: list.items }), next)
        }
        Err(status) => {
            let failures = failures + 1;
            (None, Next::List { wait: pause(&of, "list", &status, failures), failures })
        }
    }
}

async fn watch(api: SharedApi, of: Gvr, wait: Duration, failures: u32, after: u64) -> (Option<Signal>, Next) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    let next = match api.watch(&of, WatchOptions { after, ..WatchOptions::default() }).await {
        Ok(stream) => Next::Follow { stream, after },
        Err(status) if status.code == 410 => Next::List { wait: Duration::ZERO, failures },
        Err(status) => {
            let failures = failures + 1;
            Next::Watch { wait: pause(&of, "watch", &status, failures), failures, after }
        }
    };
    (None, next)
}

fn pause(of: &Gvr, verb: &str, status: &Status, failures: u32) -> Duration {
    let wait = match status.code {
        404 | 405 => NOT_SERVED,
        _ => RETRY.after(failures),
    };
    tracing::debug!(resource = %of, verb, %status, wait_ms = wait.as_millis() as u64, "will ask again");
    wait
}
