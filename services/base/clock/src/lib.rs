//! Time comes in as a value.
//!
//! A [`Clock`] enters through a constructor; below that door a moment is plain data ([`Timestamp`]).
//! [`Clock::monotonic`] measures silence (node leases, elections): it never jumps when somebody sets
//! the wall clock. [`rfc3339`] and [`rfc3339_micro`] print the two forms Kubernetes has on the wire.
//!
//! Not here: timers. Whoever waits uses tokio's, which a test can pause.

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use jiff::{SignedDuration, Timestamp};
use std::sync::Mutex;

/// Where "now" comes from.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, for people and for stored timestamps.
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary start, for measuring how long ago something was seen.
    fn monotonic(&self) -> Duration;
}

pub type SharedClock = Arc<dyn Clock>;

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    pub fn shared() -> SharedClock {
        Arc::new(SystemClock { started: Instant::now() })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A clock that a test moves by hand.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<(Timestamp, Duration)>,
}

impl ManualClock {
    pub fn new(now: Timestamp) -> Arc<ManualClock> {
        Arc::new(ManualClock { state: Mutex::new((now, Duration::ZERO)) })
    }
    /// Both clocks move on.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.0 = state.0.saturating_add(by).unwrap_or(Timestamp::MAX);
        state.1 += by;
    }
    /// Somebody set the wall clock; monotonic time knows nothing of it.
    pub fn jump_to(&self, now: Timestamp) {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0 = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }
    fn monotonic(&self) -> Duration {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).1
    }
}

/// `2026-11-30T21:05:48Z`: the form of `metav1.Time`, cut to whole seconds.
pub fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2026-11-30T21:05:48.000000Z`: the form of `metav1.MicroTime`.
pub fn rfc3339_micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_kubernetes_prints_them() {
        let at: Timestamp = "2026-11-30T21:05:48.123456789Z".parse().unwrap();
        assert_eq!(rfc3339(at), "2026-11-30T21:05:48Z");
        assert_eq!(rfc3339_micro(at), "2026-11-30T21:05:48.123456Z");
    }

    #[test]
    fn a_jump_of_the_wall_clock_is_no_silence() {
        let clock = ManualClock::new("2026-11-30T21:00:00Z".parse().unwrap());
        clock.advance(Duration::from_secs(5));
        clock.jump_to("2036-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(clock.monotonic(), Duration::from_secs(5));
        assert_eq!(rfc3339(clock.now()), "2036-01-01T00:00:00Z");
    }
}
