use std::collections::BTreeMap;
use std::time::Duration;

use base_clock::Timestamp;
use base_ids::{NodePoolId, TenantId};
use cloud_interface::{ClientToken, Machine, MachineState, Taint};

use super::*;
use crate::ledger::{Entry, Phase, What};

const NOW: i64 = 1_800_000_000;

fn at(seconds_ago: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds_ago).unwrap()
}

/// A cluster in words: `pool 2 | a:made,joined b:intended | listed 0 s ago`.
struct World {
    pool: Pool,
    entries: BTreeMap<ClientToken, Entry>,
    listing: Listing,
    /// What the provider `other` has; nothing of it is any pool's.
    other: Option<Listing>,
    nodes: BTreeMap<String, NodeView>,
    held: bool,
    draining: bool,
    no_provider: bool,
}

fn world(size: u32) -> World {
    let pool = Pool {
        id: NodePoolId::generate(),
        name: "p".to_owned(),
        size,
        machine_type: String::new(),
        labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
        taints: vec![Taint { key: "gpu".into(), value: String::new(), effect: "NoSchedule".into() }],
        deleting: false,
        provider: String::new(),
    };
    World {
        pool,
        entries: BTreeMap::new(),
        listing: Listing { at: at(0), scheme: "fake".to_owned(), machines: Vec::new() },
        other: None,
        nodes: BTreeMap::new(),
        held: false,
        draining: false,
        no_provider: false,
    }
}

fn node(name: &str) -> NodeView {
    NodeView {
        name: name.to_owned(),
        uid: "u".to_owned(),
        ready: true,
        unschedulable: false,
        deleting: false,
        provider_id: None,
        internal_ip: None,
        labels: BTreeMap::new(),
        taints: Vec::new(),
        created: at(1000),
    }
}

impl World {
    fn entry(mut self, name: &str, phase: Phase) -> World {
        let entry = Entry {
            token: name.parse().unwrap(),
            provider: "fake".to_owned(),
            what: What::Machine { pool: self.pool.id, name: name.to_owned(), machine_type: String::new() },
            phase,
            created_at: at(1000 - self.entries.len() as i64),
        };
        self.entries.insert(entry.token.clone(), entry);
        self
    }
    fn intended(self, name: &str) -> World {
        self.entry(name, Phase::Intended)
    }
    fn made(self, name: &str, seconds_ago: i64) -> World {
        self.entry(name, Phase::Made { id: format!("m-{name}"), at: at(seconds_ago) })
    }
    fn deleting(self, name: &str, id: Option<&str>, seconds_ago: i64) -> World {
        self.entry(name, Phase::Deleting { id: id.map(str::to_owned), since: at(seconds_ago) })
    }
    fn listed(mut self, name: &str, state: MachineState) -> World {
        self.listing.machines.push(Machine {
            id: format!("m-{name}"),
            cluster: TenantId::generate(),
            client_token: name.parse().unwrap(),
            name: name.to_owned(),
            machine_type: "small".to_owned(),
            provider_id: format!("fake:///m-{name}"),
            state,
            addresses: Vec::new(),
            zone: "z1".to_owned(),
            region: "r1".to_owned(),
            message: "why".to_owned(),
            created_at: at(100),
            tags: BTreeMap::from([(TAG_POOL.to_owned(), self.pool.id.to_string())]),
        });
        self
    }
    fn node(mut self, name: &str, change: impl FnOnce(&mut NodeView)) -> World {
        let mut node = node(name);
        change(&mut node);
        self.nodes.insert(name.to_owned(), node);
        self
    }
    /// Made, listed, and a Ready node.
    fn joined(self, name: &str) -> World {
        self.made(name, 500).listed(name, MachineState::Running).node(name, |_| {})
    }
    /// The listing of a provider of that scheme with one machine, which goes already.
    fn listing_with(&self, name: &str, scheme: &str) -> Listing {
        let there = world(0).listed(name, MachineState::Deleting).listing;
        Listing { scheme: scheme.to_owned(), ..there }
    }
    fn with(mut self, change: impl FnOnce(&mut World)) -> World {
        change(&mut self);
        self
    }

    fn see<T>(&self, decide: impl FnOnce(&Seen<'_>) -> T) -> T {
        let mut listings = BTreeMap::from([("fake".to_owned(), self.listing.clone())]);
        listings.extend(self.other.clone().map(|listing| ("other".to_owned(), listing)));
        decide(&Seen {
            pools: std::slice::from_ref(&self.pool),
            entries: &self.entries,
            listings: &listings,
            nodes: &self.nodes,
            held: &|_| self.held,
            provider_of: &|_| (!self.no_provider).then(|| "fake".to_owned()),
            draining: self.draining,
            now: at(0),
        })
    }
    fn plan(&self) -> String {
        let words = self.see(plan).into_iter().map(|action| match action {
            Action::Begin { .. } => "begin".to_owned(),
            Action::Leave { token, failed: None } => format!("leave {token}"),
            Action::Leave { token, failed: Some(why) } => format!("replace {token} ({why})"),
            Action::Adopt { machine, keep, .. } => {
                format!("{} {}", if keep.is_some() { "adopt" } else { "delete" }, machine.name)
            }
            Action::DeleteNode { name } => format!("forget {name}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }
    fn next(&self, name: &str, farewell: Farewell) -> String {
        let entry = &self.entries[&name.parse::<ClientToken>().unwrap()];
        match self.see(|seen| next(seen, entry, farewell)) {
            Next::Mark { change, .. } => format!("mark {change}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

#[test]
fn a_pool_gets_as_many_machines_as_it_wants() {
    let running = MachineState::Running;
    for (what, world, wanted) in [
        ("nothing there", world(2), "begin, begin"),
        ("as wanted", world(1).joined("a"), ""),
        ("one is on its way", world(2).joined("a").intended("b"), ""),
        ("no provider", world(2).with(|w| w.no_provider = true), ""),
        ("failures lately", world(2).with(|w| w.held = true), ""),
        ("draining", world(2).joined("a").with(|w| w.draining = true), "leave a"),
        ("the pool goes", world(2).joined("a").with(|w| w.pool.deleting = true), "leave a"),
        ("one is leaving", world(1).deleting("a", Some("m-a"), 5).listed("a", running), "begin"),
        ("a large pool comes in portions", world(500), &["begin"; 10].join(", ")),
        ("and waits for a portion", (0..10).fold(world(500), |w, n| w.intended(&format!("n{n}"))), ""),
        (
            "too many: the unborn, then the unjoined, then the newest",
            world(1)
                .joined("old")
                .joined("new")
                .made("unjoined", 20)
                .listed("unjoined", running)
                .intended("unborn"),
            "leave unborn, leave unjoined, leave new",
        ),
        ("not to be begun while too many", world(0).intended("a").with(|w| w.held = true), "leave a"),
        (
            "failed",
            world(1).made("a", 50).listed("a", MachineState::Failed),
            "replace a (it failed: why), begin",
        ),
        ("vanished", world(1).made("a", 50), "replace a (the provider does not have it any more), begin"),
        ("too young to be listed", world(1).made("a", 5), ""),
        ("slow to join", world(1).made("a", 500).listed("a", running), ""),
        (
            "never joins",
            world(1).made("a", 601).listed("a", running),
            "replace a (it did not join within 10 min: why), begin",
        ),
        (
            "joined but unready is the node lifecycle's",
            world(1).joined("a").node("a", |n| n.ready = false),
            "",
        ),
        ("a machine of ours that the ledger lost", world(1).listed("a", running), "begin, adopt a"),
        (
            "a machine of a pool that is gone",
            world(0).listed("a", running).with(|w| w.pool.deleting = true),
            "delete a",
        ),
        ("one that goes already", world(0).listed("a", MachineState::Deleting), ""),
        (
            "a Node whose machine is gone",
            world(0).node("n", |n| (n.ready, n.provider_id) = (false, Some("fake:///m-n".into()))),
            "forget n",
        ),
        ("a Ready Node is believed", world(0).node("n", |n| n.provider_id = Some("fake:///m-n".into())), ""),
        (
            "a Node of another region of the same cloud",
            world(0).node("n", |n| (n.ready, n.provider_id) = (false, Some("fake:///m-far".into()))).with(
                |world| {
                    let far = world.listing_with("far", "fake");
                    world.other = Some(far);
                },
            ),
            "",
        ),
        (
            "a Node that neither region has",
            world(0).node("n", |n| (n.ready, n.provider_id) = (false, Some("fake:///m-n".into()))).with(
                |world| {
                    let far = world.listing_with("far", "fake");
                    world.other = Some(far);
                },
            ),
            "forget n",
        ),
        (
            "a Node of another provider",
            world(0).node("n", |n| (n.ready, n.provider_id) = (false, Some("aws:///i-1".into()))),
            "",
        ),
        ("a Node that came by itself", world(0).node("n", |n| n.ready = false), ""),
    ] {
        assert_eq!(world.plan(), wanted, "{what}");
    }
}

#[test]
fn a_machine_takes_one_step_after_another() {
    let running = MachineState::Running;
    let marked = |node: &mut NodeView| {
        node.provider_id = Some("fake:///m-a".into());
        for (key, value) in [
            ("team", "blue"),
            (LABEL_POOL, "p"),
            (LABEL_ZONE, "z1"),
            (LABEL_REGION, "r1"),
            (LABEL_TYPE, "small"),
        ] {
            node.labels.insert(key.into(), value.into());
        }
    };
    let all_labels = concat!(
        r#"{"node.kubernetes.io/instance-type":"small","roadstead.dev/node-pool":"p","team":"blue","#,
        r#""topology.kubernetes.io/region":"r1","topology.kubernetes.io/zone":"z1"}"#
    );
    let first_mark = format!(
        r#"mark {{"metadata":{{"labels":{all_labels}}},"spec":{{"providerID":"fake:///m-a","taints":[{{"effect":"NoSchedule","key":"gpu","value":""}}]}}}}"#
    );
    let leaving = || world(0).deleting("a", Some("m-a"), 5).listed("a", running);
    for (what, world, farewell, wanted) in [
        ("on the books", world(1).intended("a"), Farewell::Begun, "create"),
        ("made", world(1).made("a", 5).listed("a", running), Farewell::Begun, "wait"),
        ("its Node is there", world(1).joined("a"), Farewell::Begun, first_mark.as_str()),
        ("marked", world(1).joined("a").node("a", marked), Farewell::Begun, "rest"),
        (
            "a label was taken away",
            world(1).joined("a").node("a", |n| {
                marked(n);
                n.labels.remove("team");
            }),
            Farewell::Begun,
            r#"mark {"metadata":{"labels":{"team":"blue"}}}"#,
        ),
        ("leaving: no pods come any more", leaving().node("a", |_| {}), Farewell::Begun, "cordon"),
        ("leaving: pods go", leaving().node("a", |n| n.unschedulable = true), Farewell::Begun, "drain"),
        (
            "leaving: pods are gone",
            leaving().node("a", |n| n.unschedulable = true),
            Farewell::Drained,
            "deletenode",
        ),
        (
            "leaving: pods do not go in time",
            world(0).deleting("a", Some("m-a"), 121).listed("a", running).node("a", |_| {}),
            Farewell::Begun,
            "deletenode",
        ),
        (
            "leaving: its kubelet has made the Node again",
            leaving().node("a", |n| n.unschedulable = true),
            Farewell::NodeDeleted,
            r#"delete { id: "m-a" }"#,
        ),
        ("leaving: no Node", leaving(), Farewell::Begun, r#"delete { id: "m-a" }"#),
        (
            "leaving: the cluster goes, nobody waits for pods",
            leaving().node("a", |_| {}).with(|w| w.draining = true),
            Farewell::Begun,
            "deletenode",
        ),
        (
            "leaving: nothing runs on it",
            world(0).deleting("a", Some("m-a"), 5).listed("a", MachineState::Failed).node("a", |_| {}),
            Farewell::Begun,
            "deletenode",
        ),
        (
            "leaving: the provider is at it",
            world(0).deleting("a", Some("m-a"), 5).listed("a", MachineState::Deleting),
            Farewell::Begun,
            "wait",
        ),
        ("gone", world(0).deleting("a", Some("m-a"), 5), Farewell::Begun, "close"),
        (
            "gone, its Node is back",
            world(0).deleting("a", Some("m-a"), 5).node("a", |_| {}),
            Farewell::Begun,
            "deletenode",
        ),
        ("nobody knows whether it was made", world(0).deleting("a", None, 59), Farewell::Begun, "wait"),
        ("it was not", world(0).deleting("a", None, 60), Farewell::Begun, "close"),
        (
            "it was",
            world(0).deleting("a", None, 5).listed("a", running),
            Farewell::Begun,
            r#"delete { id: "m-a" }"#,
        ),
    ] {
        assert_eq!(world.next("a", farewell), wanted, "{what}");
    }
}

#[test]
fn an_old_list_proves_nothing() {
    let old = |mut world: World| {
        world.listing.at = at(30);
        world
    };
    assert_eq!(old(world(0).deleting("a", Some("m-a"), 10)).next("a", Farewell::Begun), "wait");
    assert_eq!(old(world(1).made("a", 20)).plan(), "");
    assert_eq!(old(world(0).deleting("a", Some("m-a"), 40)).next("a", Farewell::Begun), "close");
}

#[test]
fn status_says_where_machines_are() {
    let world = world(5)
        .intended("a")
        .made("b", 5)
        .made("c", 50)
        .listed("c", MachineState::Running)
        .joined("d")
        .deleting("e", Some("m-e"), 5)
        .made("f", 50)
        .listed("f", MachineState::Failed)
        .made("g", 61)
        .listed("g", MachineState::Running)
        .made("h", 61)
        .listed("h", MachineState::Running)
        .node("h", |node| node.ready = false)
        .with(|world| {
            let quiet = |one: &&mut Machine| ["g", "h"].contains(&one.name.as_str());
            world.listing.machines.iter_mut().filter(quiet).for_each(|one| one.message.clear());
        });
    let problem = ("used up: the quota".to_owned(), false);
    let status = world.see(|seen| status(seen, &world.pool, Some(&problem)));
    let said: Vec<String> = status
        .machines
        .iter()
        .map(|one| format!("{} {} {:?}", one.name, one.step.as_str(), one.message))
        .collect();
    assert_eq!(
        said,
        [
            r#"a pending """#,
            r#"b creating """#,
            r#"c running "why""#,
            r#"d joined """#,
            r#"e deleting """#,
            r#"f failed "why""#,
            r#"g running "it runs and has not joined; after 10 min another one takes its place""#,
            r#"h running "it joined, and its node is not Ready""#
        ]
    );
    assert_eq!((status.message.as_str(), status.refused), ("used up: the quota", false));
}

#[test]
fn waits_are_long_enough_for_a_call_that_is_lost() {
    // `cloud_interface` gives a call up after 30 s; one that is still under way must not be overlooked.
    assert!(CALL_OVER >= Duration::from_secs(2 * 30));
}
