//! Which Events are written, and how repeats are counted.
//!
//! As upstream's correlator: the same Event again raises the count of the first, and one object gets a
//! burst of 25 Events and then one each five minutes. The memory is bounded and empty in an idle tenant.
//!
//! Not here: writing them.

use std::collections::HashMap;
use std::time::Duration;

/// The object an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Regarding {
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventText {
    /// `Warning`, else `Normal`.
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    pub action: &'static str,
}

impl EventText {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> EventText {
        EventText { warning: false, reason, message: message.into(), action: "" }
    }
    pub fn warning(reason: &'static str, message: impl Into<String>) -> EventText {
        EventText { warning: true, reason, message: message.into(), action: "" }
    }
    pub fn action(mut self, action: &'static str) -> EventText {
        self.action = action;
        self
    }
}

/// What to do about one Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Write a new one, then call [`Correlator::named`].
    First,
    /// Raise the count of the Event `name` to `count`.
    Again { name: String, count: u32 },
    /// This object has had too many.
    Dropped,
}

#[derive(Debug, Default)]
pub struct Correlator {
    seen: HashMap<(String, &'static str, String), Seen>,
    budgets: HashMap<String, Budget>,
}

#[derive(Debug)]
struct Seen {
    name: String,
    count: u32,
    last: Duration,
}

#[derive(Debug)]
struct Budget {
    tokens: f64,
    at: Duration,
}

impl Correlator {
    /// Events remembered per loop. A repeat of a forgotten one is written anew: that costs an object, not truth.
    const REMEMBERED: usize = 1024;
    const BURST: f64 = 25.0;
    const REFILL_SECONDS: f64 = 300.0;
    /// Upstream's window for "the same Event again".
    const SAME_FOR: Duration = Duration::from_secs(600);

    pub fn record(&mut self, regarding: &Regarding, text: &EventText, now: Duration) -> Recorded {
        self.make_room(now);
        let budget =
            self.budgets.entry(regarding.uid.clone()).or_insert(Budget { tokens: Self::BURST, at: now });
        let gained = now.saturating_sub(budget.at).as_secs_f64() / Self::REFILL_SECONDS;
        budget.tokens = (budget.tokens + gained).min(Self::BURST);
        budget.at = now;
        if budget.tokens < 1.0 {
            return Recorded::Dropped;
        }
        budget.tokens -= 1.0;
        let key = (regarding.uid.clone(), text.reason, text.message.clone());
        match self.seen.get_mut(&key) {
            Some(seen) if now.saturating_sub(seen.last) < Self::SAME_FOR => {
                seen.count = seen.count.saturating_add(1);
                seen.last = now;
                Recorded::Again { name: seen.name.clone(), count: seen.count }
            }
            _ => Recorded::First,
        }
    }

    /// The Event that [`Recorded::First`] asked for was written under `name`.
    pub fn named(&mut self, regarding: &Regarding, text: &EventText, name: String, now: Duration) {
        let key = (regarding.uid.clone(), text.reason, text.message.clone());
        self.seen.insert(key, Seen { name, count: 1, last: now });
    }

    fn make_room(&mut self, now: Duration) {
        if self.seen.len() >= Self::REMEMBERED {
            self.seen.retain(|_, seen| now.saturating_sub(seen.last) < Self::SAME_FOR);
            if self.seen.len() >= Self::REMEMBERED {
                self.seen.clear();
            }
        }
        if self.budgets.len() >= Self::REMEMBERED {
            let full = Duration::from_secs_f64(Self::BURST * Self::REFILL_SECONDS);
            self.budgets.retain(|_, budget| now.saturating_sub(budget.at) < full);
            if self.budgets.len() >= Self::REMEMBERED {
                self.budgets.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(uid: &str) -> Regarding {
        Regarding {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: Some("default".to_owned()),
            name: "web".to_owned(),
            uid: uid.to_owned(),
            resource_version: "1".to_owned(),
        }
    }

    #[test]
    fn repeats_are_counted_and_floods_are_cut() {
        let mut correlator = Correlator::default();
        let at = Duration::from_secs;
        let text = EventText::warning("FailedScheduling", "no nodes");
        assert_eq!(correlator.record(&about("a"), &text, at(0)), Recorded::First);
        correlator.named(&about("a"), &text, "web.1".to_owned(), at(0));
        for count in 2..=25 {
            let wanted = Recorded::Again { name: "web.1".to_owned(), count };
            assert_eq!(correlator.record(&about("a"), &text, at(1)), wanted);
        }
        assert_eq!(correlator.record(&about("a"), &text, at(2)), Recorded::Dropped);
        assert_eq!(correlator.record(&about("b"), &text, at(2)), Recorded::First, "others are not affected");
        let wanted = Recorded::Again { name: "web.1".to_owned(), count: 26 };
        assert_eq!(correlator.record(&about("a"), &text, at(303)), wanted, "one each five minutes");
        assert_eq!(correlator.record(&about("a"), &text, at(1000)), Recorded::First, "long ago is forgotten");
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..5000 {
            let text = EventText::normal("Scheduled", format!("{n}"));
            let regarding = about(&n.to_string());
            assert_eq!(correlator.record(&regarding, &text, Duration::ZERO), Recorded::First);
            correlator.named(&regarding, &text, n.to_string(), Duration::ZERO);
        }
        assert!(correlator.seen.len() <= Correlator::REMEMBERED);
        assert!(correlator.budgets.len() <= Correlator::REMEMBERED);
    }
}
