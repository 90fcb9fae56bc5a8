//! How long to wait before the next try.

use std::time::Duration;

/// Doubles from `first` to `most`; upstream's controllers use 5 ms and 1000 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

impl Backoff {
    /// What upstream's rate limiter gives a controller's keys.
    pub const CONTROLLER: Backoff =
        Backoff { first: Duration::from_millis(5), most: Duration::from_secs(1000) };
    /// What upstream's scheduler gives a pod that did not fit.
    pub const SCHEDULER: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(10) };

    /// The wait after `failures` failures in a row; none after none.
    pub fn after(&self, failures: u32) -> Duration {
        if failures == 0 {
            return Duration::ZERO;
        }
        // 2^63 times anything is beyond `most`; the cap keeps the shift defined.
        let factor = 1u64 << (failures - 1).min(62);
        let nanos = (self.first.as_nanos()).saturating_mul(u128::from(factor));
        let most = self.most.as_nanos();
        Duration::from_nanos(u64::try_from(nanos.min(most)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit() {
        for (failures, wanted_ms) in [
            (0, 0),
            (1, 5),
            (2, 10),
            (3, 20),
            (11, 5120),
            (18, 655_360),
            (19, 1_000_000),
            (u32::MAX, 1_000_000),
        ] {
            let got = Backoff::CONTROLLER.after(failures);
            assert_eq!(got, Duration::from_millis(wanted_ms), "after {failures}");
        }
    }
}
