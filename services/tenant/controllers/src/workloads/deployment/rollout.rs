//! The arithmetic of a rollout: how many replicas each ReplicaSet should have.
//!
//! Numbers in, numbers out. The rules are upstream's: never more than `replicas + maxSurge` pods, never
//! fewer than `replicas - maxUnavailable` available ones, unhealthy old pods first.

use api_machinery::Document;

use crate::convert::int_or_percent;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub name: String,
    pub replicas: i64,
    pub available: i64,
    pub created: i64,
    /// What the deployment wanted when this was last sized, and the most there could be then.
    pub desired: Option<i64>,
    pub most: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub replicas: i64,
    pub surge: i64,
    pub unavailable: i64,
}

impl Limits {
    pub fn of(deployment: &Document) -> Limits {
        let replicas = deployment.get_i64("spec.replicas").unwrap_or(1);
        if deployment.get_str("spec.strategy.type") == Some("Recreate") {
            return Limits { replicas, surge: 0, unavailable: replicas };
        }
        let of = |field: &str, up: bool| {
            let value = deployment.get(&format!("spec.strategy.rollingUpdate.{field}"));
            int_or_percent(value, replicas, up).unwrap_or(0).max(0)
        };
        let (surge, mut unavailable) = (of("maxSurge", true), of("maxUnavailable", false));
        // Rounding may leave no room at all to move in; one pod's worth is the least.
        if surge == 0 && unavailable == 0 {
            unavailable = 1;
        }
        Limits { replicas, surge, unavailable: unavailable.min(replicas.max(1)) }
    }
    pub fn most(&self) -> i64 {
        self.replicas + self.surge
    }
}

/// The size the new set may grow (or must shrink) to now.
pub(super) fn new_size(limits: &Limits, new: &Size, old: &[Size]) -> i64 {
    if new.replicas >= limits.replicas {
        return limits.replicas;
    }
    let total = new.replicas + old.iter().map(|set| set.replicas).sum::<i64>();
    let room = limits.most() - total;
    if room <= 0 {
        return new.replicas;
    }
    new.replicas + room.min(limits.replicas - new.replicas)
}

/// The old sets that may shrink now, and to what.
pub(super) fn shrink_old(limits: &Limits, new: &Size, old: &[Size]) -> Vec<(String, i64)> {
    let total = new.replicas + old.iter().map(|set| set.replicas).sum::<i64>();
    let least = limits.replicas - limits.unavailable;
    let new_unavailable = new.replicas - new.available;
    let mut budget = total - least - new_unavailable;
    if budget <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<Size> = old.to_vec();
    sizes.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    // Pods that serve nobody go first: they cost no availability.
    for set in &mut sizes {
        let sick = (set.replicas - set.available).clamp(0, budget);
        set.replicas -= sick;
        budget -= sick;
    }
    let available = new.available + old.iter().map(|set| set.available).sum::<i64>();
    let mut spare = available - least;
    for set in &mut sizes {
        if spare <= 0 {
            break;
        }
        let down = set.replicas.min(spare);
        set.replicas -= down;
        spare -= down;
    }
    let before = |name: &str| old.iter().find(|set| set.name == name).map_or(0, |set| set.replicas);
    sizes
        .into_iter()
        .filter(|set| set.replicas != before(&set.name))
        .map(|set| (set.name, set.replicas))
        .collect()
}

/// Sizes after somebody changed `replicas`, or while the deployment is paused: the whole grows or shrinks and
/// every set keeps its share.
pub(super) fn proportional(
    limits: &Limits,
    rolling: bool,
    new: Option<&Size>,
    old: &[Size],
) -> Vec<(String, i64)> {
    let active: Vec<&Size> = old.iter().chain(new).filter(|set| set.replicas > 0).collect();
    let only = match active.as_slice() {
        [] => new.or_else(|| old.iter().max_by_key(|set| set.created)),
        [one] => Some(*one),
        _ => None,
    };
    if let Some(only) = only {
        return vec![(only.name.clone(), limits.replicas)];
    }
    // The rollout is over, and the leftovers with it.
    let saturated = new.is_some_and(|new| {
        new.replicas == limits.replicas
            && new.available == limits.replicas
            && new.desired == Some(limits.replicas)
    });
    if saturated {
        return old.iter().filter(|set| set.replicas > 0).map(|set| (set.name.clone(), 0)).collect();
    }
    if !rolling {
        return Vec::new();
    }
    let total: i64 = active.iter().map(|set| set.replicas).sum();
    let allowed = if limits.replicas > 0 { limits.most() } else { 0 };
    let to_add = allowed - total;
    let mut order = active;
    // The biggest takes what rounding leaves; growth favours newer sets, shrinking older ones.
    order.sort_by_key(|set| {
        (
            std::cmp::Reverse(set.replicas),
            if to_add > 0 { -set.created } else { set.created },
            set.name.clone(),
        )
    });
    let mut added = 0;
    let mut sizes: Vec<(String, i64)> = Vec::new();
    for set in &order {
        let share = share(limits, set, to_add, added);
        added += share;
        sizes.push((set.name.clone(), set.replicas + share));
    }
    if let Some(first) = sizes.first_mut() {
        first.1 = (first.1 + to_add - added).max(0);
    }
    sizes
}

fn share(limits: &Limits, set: &Size, to_add: i64, added: i64) -> i64 {
    if to_add == 0 || to_add == added {
        return 0;
    }
    let fraction = if limits.replicas == 0 {
        -set.replicas
    } else {
        let before = set.most.filter(|most| *most > 0).unwrap_or(set.replicas.max(1));
        let exact = set.replicas as f64 * limits.most() as f64 / before as f64;
        exact.round() as i64 - set.replicas
    };
    if to_add > 0 { fraction.min(to_add - added) } else { fraction.max(to_add - added) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn size(name: &str, replicas: i64, available: i64) -> Size {
        Size { name: name.to_owned(), replicas, available, ..Size::default() }
    }
    fn limits(replicas: i64, surge: i64, unavailable: i64) -> Limits {
        Limits { replicas, surge, unavailable }
    }

    #[test]
    fn limits_round_in_favour_of_moving() {
        for (replicas, surge, unavailable, wanted) in [
            (10, json!("25%"), json!("25%"), (3, 2)),
            (1, json!("25%"), json!("25%"), (1, 0)),
            (10, json!(0), json!("1%"), (0, 1)),
            (4, json!(2), json!(10), (2, 4)),
            (0, json!("25%"), json!("25%"), (0, 1)),
        ] {
            let deployment = json!({"spec": {"replicas": replicas, "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}});
            let got = Limits::of(&Document::from_value(deployment).unwrap());
            assert_eq!((got.surge, got.unavailable), wanted, "{replicas} {surge} {unavailable}");
        }
    }

    #[test]
    fn the_new_set_grows_into_the_room_there_is() {
        for (limits, new, old, wanted) in [
            (limits(10, 3, 2), size("n", 0, 0), vec![size("o", 10, 10)], 3),
            (limits(10, 3, 2), size("n", 3, 0), vec![size("o", 8, 8)], 5),
            (limits(10, 0, 2), size("n", 0, 0), vec![size("o", 10, 10)], 0),
            (limits(10, 3, 2), size("n", 9, 9), vec![], 10),
            (limits(5, 3, 2), size("n", 9, 9), vec![], 5),
            (limits(3, 1, 0), size("n", 0, 0), vec![], 3),
        ] {
            assert_eq!(new_size(&limits, &new, &old), wanted, "{limits:?} {new:?} {old:?}");
        }
    }

    #[test]
    fn old_sets_shrink_only_as_far_as_availability_allows() {
        for (limits, new, old, wanted) in [
            (limits(10, 3, 2), size("n", 3, 0), vec![size("o", 10, 10)], vec![("o", 8)]),
            (limits(10, 3, 2), size("n", 3, 3), vec![size("o", 8, 8)], vec![("o", 5)]),
            (limits(10, 3, 2), size("n", 5, 0), vec![size("o", 8, 8)], vec![]),
            (limits(10, 3, 0), size("n", 3, 0), vec![size("o", 10, 10)], vec![]),
            (limits(10, 0, 2), size("n", 0, 0), vec![size("o", 10, 5)], vec![("o", 8)]),
            (limits(3, 1, 0), size("n", 3, 3), vec![size("o", 1, 1)], vec![("o", 0)]),
            (limits(3, 1, 0), size("n", 1, 0), vec![size("o", 3, 3)], vec![]),
        ] {
            let wanted: Vec<(String, i64)> = wanted.into_iter().map(|(n, s)| (n.to_owned(), s)).collect();
            assert_eq!(shrink_old(&limits, &new, &old), wanted, "{limits:?} {new:?} {old:?}");
        }
    }

    #[test]
    fn a_rollout_ends_and_never_breaks_its_limits() {
        for (replicas, surge, unavailable) in
            [(10, 3, 2), (3, 1, 0), (3, 0, 1), (1, 1, 0), (7, 7, 7), (50, 1, 1)]
        {
            let limits = limits(replicas, surge, unavailable);
            let (mut new, mut old) = (size("n", 0, 0), vec![size("o", replicas, replicas)]);
            let mut rounds = 0;
            while new.replicas != replicas || old[0].replicas != 0 {
                new.replicas = new_size(&limits, &new, &old);
                for (_, to) in shrink_old(&limits, &new, &old) {
                    old[0].replicas = to;
                    old[0].available = old[0].available.min(to);
                }
                assert!(new.replicas + old[0].replicas <= replicas + surge);
                assert!(new.available + old[0].available >= replicas - unavailable);
                // One more pod becomes available each round.
                new.available = (new.available + 1).min(new.replicas);
                rounds += 1;
                assert!(rounds < 500, "{limits:?} does not end");
            }
        }
    }

    #[test]
    fn rescaling_keeps_the_shares() {
        let with = |name: &str, replicas: i64, created: i64, most: i64| Size {
            most: Some(most),
            created,
            ..size(name, replicas, replicas)
        };
        for (limits, new, old, wanted) in [
            // 10 to 15 in the middle of a rollout, 13 to 18 in all: 5 and 8 become 7 and 11.
            (limits(15, 3, 2), with("n", 5, 2, 13), vec![with("o", 8, 1, 13)], vec![("o", 11), ("n", 7)]),
            (limits(0, 3, 2), with("n", 5, 2, 13), vec![with("o", 8, 1, 13)], vec![("o", 0), ("n", 0)]),
            (limits(5, 0, 2), with("n", 0, 2, 10), vec![with("o", 8, 1, 10)], vec![("o", 5)]),
            (limits(5, 0, 2), with("n", 0, 2, 10), vec![with("o", 0, 1, 10)], vec![("n", 5)]),
        ] {
            let wanted: Vec<(String, i64)> = wanted.into_iter().map(|(n, s)| (n.to_owned(), s)).collect();
            assert_eq!(proportional(&limits, true, Some(&new), &old), wanted, "{limits:?}");
        }
    }
}
