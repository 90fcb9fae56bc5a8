//! Flow control: how many requests of one cluster are worked on at once, and whose turn is next.
//!
//! Each [`Level`] has seats. A request that finds none waits in its user's queue; free seats go round the
//! users, so that one client in a loop delays itself and not the others. Queues are bounded in length and
//! patience: beyond either a request gets 429, which every client knows how to handle.
//!
//! Nodes and the control plane's own loops have a level of their own: heartbeats must pass however busy the
//! tenant's workloads are. `system:masters` is exempt, so that an admin can always look.
//!
//! Not here: FlowSchemas (stored and served, not consulted yet), the fair share between clusters of a cell.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api_machinery::Status;
use parking_lot::Mutex;
use tenant_client::UserInfo;
use tokio::sync::oneshot;

/// Bounds of one level.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub seats: usize,
    pub waiting: usize,
    pub waiting_per_user: usize,
    pub patience: Duration,
}

/// Upstream's defaults add up to 600 seats and wait a quarter of the request timeout; ours is split in two.
const SYSTEM: Bounds =
    Bounds { seats: 200, waiting: 1000, waiting_per_user: 200, patience: Duration::from_secs(15) };
const WORKLOAD: Bounds =
    Bounds { seats: 400, waiting: 1000, waiting_per_user: 250, patience: Duration::from_secs(15) };

#[derive(Debug)]
pub struct FlowControl {
    system: Arc<Level>,
    workload: Arc<Level>,
}

impl Default for FlowControl {
    fn default() -> FlowControl {
        FlowControl { system: Level::new(SYSTEM), workload: Level::new(WORKLOAD) }
    }
}

impl FlowControl {
    /// A seat for one request of `user`, held until it is dropped; `None` for those who need none.
    pub async fn enter(&self, user: &UserInfo) -> Result<Option<Seat>, Status> {
        if user.is_in(UserInfo::MASTERS) {
            return Ok(None);
        }
        let level = if is_system(user) { &self.system } else { &self.workload };
        level.enter(&user.name).await.map(Some)
    }
}

fn is_system(user: &UserInfo) -> bool {
    user.is_in("system:nodes")
        || user.is_in("system:serviceaccounts:kube-system")
        || user.name.starts_with("system:kube-")
}

/// One set of seats.
#[derive(Debug)]
pub struct Level {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    waiting: usize,
    queues: HashMap<String, VecDeque<oneshot::Sender<Seat>>>,
    /// Users with somebody waiting, the next one first.
    turn: VecDeque<String>,
}

impl Level {
    pub fn new(bounds: Bounds) -> Arc<Level> {
        Arc::new(Level { bounds, state: Mutex::default() })
    }

    pub async fn enter(self: &Arc<Level>, user: &str) -> Result<Seat, Status> {
        let waiter = {
            let mut state = self.state.lock();
            if state.taken < self.bounds.seats {
                state.taken += 1;
                return Ok(Seat { level: Some(self.clone()) });
            }
            let own = state.queues.get(user).map_or(0, VecDeque::len);
            if state.waiting >= self.bounds.waiting || own >= self.bounds.waiting_per_user {
                return Err(too_many());
            }
            let (give, waiter) = oneshot::channel();
            state.waiting += 1;
            state.queues.entry(user.to_owned()).or_default().push_back(give);
            if own == 0 {
                state.turn.push_back(user.to_owned());
            }
            waiter
        };
        match tokio::time::timeout(self.bounds.patience, waiter).await {
            Ok(Ok(seat)) => Ok(seat),
            // Out of patience. The sender stays in its queue until its turn comes and is skipped then.
            _ => Err(too_many()),
        }
    }

    /// Seats taken and requests waiting.
    #[cfg(test)]
    fn load(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.taken, state.waiting)
    }

    /// A seat became free: whoever is next gets it, those who gave up are skipped.
    fn pass_on(self: Arc<Level>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                let next = state.next();
                if next.is_none() {
                    state.taken -= 1;
                }
                next
            };
            let Some(give) = next else { return };
            match give.send(Seat { level: Some(self.clone()) }) {
                Ok(()) => return,
                // Taken apart by hand, or its drop would recurse once per waiter who gave up.
                Err(mut refused) => refused.level = None,
            }
        }
    }
}

impl State {
    fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        let user = self.turn.pop_front()?;
        let queue = self.queues.get_mut(&user)?;
        let give = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&user);
        } else {
            self.turn.push_back(user);
        }
        self.waiting -= usize::from(give.is_some());
        give
    }
}

fn too_many() -> Status {
    Status::too_many_requests("Too many requests, please try again later.", 1)
}

/// The right to be worked on. Dropping it lets the next one in.
#[derive(Debug)]
pub struct Seat {
    level: Option<Arc<Level>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(level) = self.level.take() {
            level.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Bounds =
        Bounds { seats: 1, waiting: 3, waiting_per_user: 2, patience: Duration::from_secs(1) };

    #[tokio::test(start_paused = true)]
    async fn seats_go_round_the_users() {
        let level = Level::new(SMALL);
        let held = level.enter("greedy").await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for user in ["greedy", "greedy", "modest"] {
            let (level, order) = (level.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let _seat = level.enter(user).await.unwrap();
                order.lock().push(user);
            }));
            tokio::task::yield_now().await;
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock(), ["greedy", "modest", "greedy"]);
        assert_eq!(level.load(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn queues_and_patience_end() {
        let level = Level::new(SMALL);
        let held = level.enter("a").await.unwrap();
        let (one, two) = (level.enter("a"), level.enter("a"));
        let third = async {
            tokio::task::yield_now().await;
            level.enter("a").await
        };
        let (one, two, third) = tokio::join!(one, two, third);
        // The third found the queue full at once, the others ran out of patience.
        assert_eq!([one, two, third].map(|got| got.unwrap_err().code), [429, 429, 429]);
        drop(held);
        assert_eq!(level.load(), (0, 0), "those who gave up are skipped and forgotten");
        level.enter("a").await.unwrap();
    }
}
