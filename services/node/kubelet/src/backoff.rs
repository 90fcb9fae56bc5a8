//! Waiting longer after each failure.

use jiff::{SignedDuration, Timestamp};

/// How pauses grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Doubling up to the longest.
    first: SignedDuration,
    longest: SignedDuration,
    /// What ran this long after its last failure is taken for healthy, and starts from the first pause again.
    forgiven_after: SignedDuration,
}

/// Of containers and images.
pub const RESTARTS: Pace = Pace {
    first: SignedDuration::from_secs(10),
    longest: SignedDuration::from_secs(300),
    forgiven_after: SignedDuration::from_secs(600),
};

/// Of volumes, as upstream retries a volume's operations.
pub const MOUNTS: Pace = Pace {
    first: SignedDuration::from_millis(500),
    longest: SignedDuration::from_secs(122),
    forgiven_after: SignedDuration::from_secs(600),
};

/// How often something failed lately. Nothing failed yet: `Backoff::of(pace)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pace: Pace,
    last: Option<(SignedDuration, Timestamp)>,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::of(RESTARTS)
    }
}

impl Backoff {
    pub fn of(pace: Pace) -> Backoff {
        Backoff { pace, last: None }
    }

    /// Until when to wait after a failure at `failed`; `None`: try at once.
    pub fn wait_until(&self, failed: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let (pause, at) = self.last?;
        let until = failed + pause;
        (!self.forgives(failed, at) && now < until).then_some(until)
    }

    /// Trying again after a failure at `failed`: the next pause is longer.
    pub fn next(&self, failed: Timestamp) -> Backoff {
        let pause = match self.last {
            Some((pause, at)) if !self.forgives(failed, at) => (pause * 2).min(self.pace.longest),
            _ => self.pace.first,
        };
        Backoff { pace: self.pace, last: Some((pause, failed)) }
    }

    /// The pause in force, for messages.
    pub fn pause(&self) -> SignedDuration {
        self.last.map_or(SignedDuration::ZERO, |(pause, _)| pause)
    }

    fn forgives(&self, failed: Timestamp, last: Timestamp) -> bool {
        failed.duration_since(last) > self.pace.forgiven_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes_and_health_forgives() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let mut backoff = Backoff::default();
        assert_eq!(backoff.wait_until(at(0), at(0)), None, "the first restart is immediate");
        // Each row: when it failed, and until when it must then wait.
        for (failed, until) in [(1, 11), (12, 32), (33, 73), (74, 154), (155, 315), (316, 616), (617, 917)] {
            backoff = if failed == 1 { backoff.next(at(0)) } else { backoff };
            assert_eq!(backoff.wait_until(at(failed), at(failed)), Some(at(until)), "{failed}");
            assert_eq!(backoff.wait_until(at(failed), at(until)), None, "{failed}");
            backoff = backoff.next(at(failed));
        }
        assert_eq!(backoff.wait_until(at(617 + 601), at(617 + 601)), None);
        assert_eq!(backoff.next(at(617 + 601)).pause(), RESTARTS.first);
    }

    #[test]
    fn volumes_are_tried_again_soon_and_then_every_two_minutes() {
        let (mut backoff, mut now) = (Backoff::of(MOUNTS), Timestamp::UNIX_EPOCH);
        for pause_ms in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000] {
            backoff = backoff.next(now);
            assert_eq!(backoff.pause(), SignedDuration::from_millis(pause_ms));
            now += backoff.pause();
        }
    }
}
