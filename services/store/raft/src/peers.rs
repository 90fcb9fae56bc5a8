//! Whether a group's leader is there still, and when to stand for election.
//!
//! Groups send no heartbeats: cells watch one another ([`crate::Transport::standing`]), and a group's leader
//! is taken to be there as long as its cell is, in the same run of its process. [`Beliefs::step`] is asked
//! several times a second and decides from what was seen; it reads no clock and sends nothing.
//!
//! Not here: voting, which is openraft's, and carrying out what is decided (`member`).

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::transport::Standing;
use crate::types::ReplicaId;

/// Between two tries to be elected: a round of votes takes some milliseconds, and rivals need a chance too.
const CAMPAIGN_EVERY_MS: u64 = 100;
/// What is added at random, so that replicas of one group stand one after the other.
const JITTER_MS: u64 = 150;
/// Between two questions to a leader that has not been heard since this replica was opened.
const PROBE_EVERY: Duration = Duration::from_millis(300);

/// One leader in one term.
pub(crate) type Reign = (u64, ReplicaId);

/// What a replica holds for true about its leader.
#[derive(Debug)]
pub(crate) struct Beliefs {
    state: Mutex<State>,
    /// Makes replicas differ in their jitter.
    salt: u32,
}

#[derive(Debug, Default)]
struct State {
    /// Whose appends have arrived, or who has answered, in this life of the replica. A vote found on disk
    /// says only that there was such a leader once.
    heard: Option<Reign>,
    /// Of whom it is known that they lead no more.
    deposed: Option<Reign>,
    /// The run of the leader's cell in which it was first seen to lead.
    boot: Option<(Reign, u64)>,
    next_probe: Option<Instant>,
    next_campaign: Option<Instant>,
    tries: u32,
}

/// A group as it looks right now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) me: ReplicaId,
    pub(crate) leader: Option<Reign>,
    /// Of the leader's cell.
    pub(crate) standing: Standing,
    /// False while this replica lacks the group's first command: a group must not begin without it.
    pub(crate) may_stand: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Ask the leader whether it is one.
    Probe,
    /// Stand for election, asking first whether anybody would vote for it.
    Campaign,
}

impl Beliefs {
    pub(crate) fn new(salt: u32) -> Beliefs {
        Beliefs { state: Mutex::default(), salt }
    }

    pub(crate) fn step(&self, view: View, now: Instant) -> Step {
        let mut state = self.state.lock();
        if view.leader.is_some_and(|(_, leader)| leader == view.me) || self.trusts(&mut state, &view) {
            state.next_campaign = None;
            state.tries = 0;
            if view.leader.is_none_or(|(_, leader)| leader == view.me) || state.heard == view.leader {
                return Step::Nothing;
            }
            if state.next_probe.is_some_and(|at| now < at) {
                return Step::Nothing;
            }
            state.next_probe = Some(now + PROBE_EVERY);
            return Step::Probe;
        }
        if !view.may_stand {
            return Step::Nothing;
        }
        match state.next_campaign {
            None => {
                state.next_campaign = Some(now + self.jitter(state.tries));
                Step::Nothing
            }
            Some(at) if now < at => Step::Nothing,
            Some(_) => {
                state.tries = state.tries.wrapping_add(1);
                let pause = Duration::from_millis(CAMPAIGN_EVERY_MS) + self.jitter(state.tries);
                state.next_campaign = Some(now + pause);
                Step::Campaign
            }
        }
    }

    /// Whether the leader of `view` is held for alive; a vote against it is then refused.
    pub(crate) fn trusts_leader(&self, view: &View) -> bool {
        self.trusts(&mut self.state.lock(), view)
    }

    fn trusts(&self, state: &mut State, view: &View) -> bool {
        let Some(reign) = view.leader else { return false };
        let Standing::Up { boot } = view.standing else { return false };
        if state.deposed == Some(reign) {
            return false;
        }
        match state.boot {
            Some((known, before)) if known == reign => before == boot,
            _ => {
                state.boot = Some((reign, boot));
                true
            }
        }
    }

    /// An append, or the answer to a probe, came from this leader.
    pub(crate) fn heard(&self, reign: Reign) {
        let mut state = self.state.lock();
        state.heard = Some(reign);
        if state.deposed == Some(reign) {
            state.deposed = None;
        }
    }

    /// Its own cell says that it leads no more, or it stands for election itself.
    pub(crate) fn depose(&self, reign: Reign) {
        self.state.lock().deposed = Some(reign);
    }

    /// Whether the newest leader is known to lead no more.
    pub(crate) fn is_deposed(&self) -> bool {
        let state = self.state.lock();
        match (state.deposed, state.heard) {
            (Some((deposed, _)), Some((heard, _))) => deposed >= heard,
            (deposed, _) => deposed.is_some(),
        }
    }

    fn jitter(&self, tries: u32) -> Duration {
        let seed = [self.salt.to_le_bytes(), tries.to_le_bytes()].concat();
        Duration::from_millis(u64::from(crc32fast::hash(&seed)) % JITTER_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Standing = Standing::Up { boot: 7 };
    const REBORN: Standing = Standing::Up { boot: 8 };

    fn view(leader: Option<Reign>, standing: Standing) -> View {
        View { me: 1, leader, standing, may_stand: true }
    }

    /// What is done within a second of looking every 50 ms.
    fn within_a_second(beliefs: &Beliefs, view: View, from: Instant) -> Vec<Step> {
        let steps = (0..20).map(|tick| beliefs.step(view, from + Duration::from_millis(50 * tick)));
        let mut steps: Vec<Step> = steps.filter(|step| *step != Step::Nothing).collect();
        steps.dedup();
        steps
    }

    #[test]
    fn a_leader_is_left_alone_until_its_cell_is_gone() {
        let leader = Some((3, 2));
        let (other, mine) = (Some((4, 3)), Some((5, 1)));
        let rows: Vec<(&str, View, Vec<Step>)> = vec![
            ("nobody leads", view(None, Standing::Down), vec![Step::Campaign]),
            ("this one leads", view(mine, Standing::Down), vec![]),
            ("found on disk, not heard yet", view(leader, UP), vec![Step::Probe]),
            ("its cell is down", view(leader, Standing::Down), vec![Step::Campaign]),
            ("it is back in time", view(leader, UP), vec![Step::Probe]),
            ("its cell was started anew", view(leader, REBORN), vec![Step::Campaign]),
            ("another one leads", view(other, REBORN), vec![Step::Probe]),
            ("without the first command", View { may_stand: false, ..view(None, UP) }, vec![]),
        ];
        let beliefs = Beliefs::new(1);
        let mut now = Instant::now();
        for (what, view, expected) in rows {
            assert_eq!(within_a_second(&beliefs, view, now), expected, "{what}");
            now += Duration::from_secs(5);
        }
        beliefs.heard((4, 3));
        assert_eq!(within_a_second(&beliefs, view(other, REBORN), now), [], "heard");
        beliefs.depose((4, 3));
        assert!(beliefs.is_deposed());
        now += Duration::from_secs(5);
        assert_eq!(within_a_second(&beliefs, view(other, REBORN), now), [Step::Campaign], "deposed");
        assert!(!beliefs.trusts_leader(&view(other, REBORN)));
        beliefs.heard((6, 2));
        assert!(!beliefs.is_deposed());
    }

    #[test]
    fn rivals_stand_at_different_times() {
        let now = Instant::now();
        let first = |salt| {
            let beliefs = Beliefs::new(salt);
            let nobody = view(None, Standing::Down);
            (0..1000).find(|ms| beliefs.step(nobody, now + Duration::from_millis(*ms)) == Step::Campaign)
        };
        let mut times: Vec<_> = (0..10).map(first).collect();
        assert!(times.iter().all(Option::is_some));
        times.sort_unstable();
        times.dedup();
        assert!(times.len() > 5, "{times:?}");
    }
}
