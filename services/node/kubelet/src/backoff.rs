//! Waiting longer after each failure.

use jiff::{SignedDuration, Timestamp};

/// First pause, doubling up to the longest.
const FIRST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(300);

/// What ran this long after its last failure is taken for healthy, and starts from the first pause again.
const FORGIVEN_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// How often something failed lately. Nothing failed yet: `Backoff::default()`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    last: Option<(SignedDuration, Timestamp)>,
}

impl Backoff {
    /// Until when to wait after a failure at `failed`; `None`: try at once.
    pub fn wait_until(&self, failed: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let (pause, at) = self.last?;
        let until = failed + pause;
        (!forgiven(failed, at) && now < until).then_some(until)
    }

    /// Trying again after a failure at `failed`: the next pause is longer.
    pub fn next(&self, failed: Timestamp) -> Backoff {
        let pause = match self.last {
            Some((pause, at)) if !forgiven(failed, at) => (pause * 2).min(LONGEST),
            _ => FIRST,
        };
        Backoff { last: Some((pause, failed)) }
    }

    /// The pause in force, for messages.
    pub fn pause(&self) -> SignedDuration {
        self.last.map_or(SignedDuration::ZERO, |(pause, _)| pause)
    }
}

fn forgiven(failed: Timestamp, last: Timestamp) -> bool {
    failed.duration_since(last) > FORGIVEN_AFTER
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
        assert_eq!(backoff.next(at(617 + 601)).pause(), FIRST);
    }
}
