//! Tasks that end together.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks with one stop signal. Clones are handles on the same group.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    pub fn new() -> Tasks {
        Tasks::default()
    }
    /// A group that stops when this one does, and can be stopped alone.
    pub fn child(&self) -> Tasks {
        Tasks { tracker: TaskTracker::new(), stop: self.stop.child_token() }
    }
    /// Runs `task` until it ends or the group is stopped, whichever is first.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }
    /// Runs `task` until it ends by itself: it watches [`Tasks::stopping`] and cleans up before it returns.
    pub fn spawn_to_end(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task);
    }
    /// Resolves when the group is being stopped; for tasks that clean up.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }
    /// Stops all and waits until they ended, `patience` at most. True when all did.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(patience, self.tracker.wait()).await.is_ok()
    }
}
