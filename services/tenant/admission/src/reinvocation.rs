//! What a plugin that calls out remembers of a request between the two rounds of the chain.
//!
//! A webhook or policy may be asked again when something changed the object after it had its say. The chain
//! runs twice at most; in the second round the in-tree plugins all run again, and of those that call out only
//! the ones that asked for it, were called before and are now looking at something else.
//! Facts: upstream's `admission/reinvocation.go` and `plugin/webhook/mutating/reinvocationcontext.go`.

use std::collections::HashSet;

use api_machinery::Document;
use parking_lot::Mutex;

/// Starts empty with each request.
#[derive(Debug, Default)]
pub struct Reinvocation(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    second: bool,
    webhooks: Rounds,
    policies: Rounds,
}

/// Which of the plugins a memory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Webhooks,
    Policies,
}

#[derive(Debug, Default)]
struct Rounds {
    /// The object as the plugin left it.
    output: Option<Document>,
    /// Called, and to be called again should the object change.
    called: HashSet<String>,
    /// To be called in the second round.
    due: HashSet<String>,
}

impl Reinvocation {
    /// Whether a second round is needed; from then on it is the second.
    pub(crate) fn begin_second(&self) -> bool {
        let mut state = self.0.lock();
        if state.second || !state.wanted {
            return false;
        }
        state.second = true;
        true
    }
    pub(crate) fn is_second(&self) -> bool {
        self.0.lock().second
    }

    /// Before a plugin's turn: if others have changed the object since, all that it called are due again.
    pub(crate) fn enter(&self, who: Who, object: Option<&Document>) {
        let mut state = self.0.lock();
        let second = state.second;
        let rounds = state.of(who);
        if second && rounds.output.as_ref() != object {
            rounds.all_due();
        }
    }
    /// In the second round, only what is due is called.
    pub(crate) fn skips(&self, who: Who, id: &str) -> bool {
        let mut state = self.0.lock();
        state.second && !state.of(who).due.contains(id)
    }
    /// Something was changed: whatever was called before is due, and the chain has to run again.
    pub(crate) fn changed(&self, who: Who) {
        let mut state = self.0.lock();
        state.of(who).all_due();
        state.wanted = true;
    }
    pub(crate) fn may_repeat(&self, who: Who, id: &str) {
        self.0.lock().of(who).called.insert(id.to_owned());
    }
    /// After a plugin's turn.
    pub(crate) fn leave(&self, who: Who, object: Option<&Document>) {
        let mut state = self.0.lock();
        let rounds = state.of(who);
        // Whom nobody asks to repeat needs no memory of what it saw.
        if !rounds.called.is_empty() || !rounds.due.is_empty() {
            rounds.output = object.cloned();
        }
    }
}

impl State {
    fn of(&mut self, who: Who) -> &mut Rounds {
        match who {
            Who::Webhooks => &mut self.webhooks,
            Who::Policies => &mut self.policies,
        }
    }
}

impl Rounds {
    fn all_due(&mut self) {
        self.due.extend(self.called.drain());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: i64) -> Document {
        Document::from_value(json!({"value": value})).unwrap()
    }

    #[test]
    fn only_those_who_saw_something_else_are_asked_again() {
        let all = Reinvocation::default();
        // First round: a changes, b changes after it, both want to be asked again.
        all.enter(Who::Webhooks, Some(&object(0)));
        all.changed(Who::Webhooks);
        all.may_repeat(Who::Webhooks, "a");
        all.changed(Who::Webhooks);
        all.may_repeat(Who::Webhooks, "b");
        all.leave(Who::Webhooks, Some(&object(2)));
        assert!(all.begin_second() && all.is_second());
        // Nobody touched the object in between: b has seen the last of it.
        all.enter(Who::Webhooks, Some(&object(2)));
        assert!(!all.skips(Who::Webhooks, "a"));
        assert!(all.skips(Who::Webhooks, "b"));
        assert!(all.skips(Who::Webhooks, "never called"));
        assert!(!all.begin_second(), "there is no third round");
    }

    #[test]
    fn a_change_by_others_makes_all_due() {
        let all = Reinvocation::default();
        all.changed(Who::Webhooks);
        all.may_repeat(Who::Webhooks, "a");
        all.leave(Who::Webhooks, Some(&object(1)));
        assert!(all.begin_second());
        all.enter(Who::Webhooks, Some(&object(9)));
        assert!(!all.skips(Who::Webhooks, "a"));
    }

    #[test]
    fn without_a_change_there_is_one_round() {
        let all = Reinvocation::default();
        all.may_repeat(Who::Webhooks, "a");
        assert!(!all.begin_second());
        assert!(!all.skips(Who::Webhooks, "b"), "the first round skips nobody");
    }
}
