//! The table as a whole, and the transaction that leads from one state of it to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::compile::{DatagramTarget, Family, MASQUERADE_MARK, Map, Pieces};
use crate::model::ServiceKey;

const MAPS: [Map; 8] = [
    Map::ServiceIps,
    Map::ServiceNodePorts,
    Map::RefusedIps,
    Map::RefusedNodePorts,
    Map::ClusterIps,
    Map::Endpoints,
    Map::PortEndpoints,
    Map::Hairpin,
];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Elements per command: nft's parser is quadratic in nothing, but netlink messages have an end.
const ELEMENTS_PER_COMMAND: usize = 500;

/// What the kernel should hold. [`Rules::change`] keeps it and says how to get there.
#[derive(Debug)]
pub struct Rules {
    table: String,
    services: BTreeMap<ServiceKey, Pieces>,
    /// Who wants an element, and as what. Two Services may claim one (an external IP, an address being
    /// reused); the first by name has it until it lets go.
    claims: BTreeMap<Element, BTreeMap<ServiceKey, String>>,
    /// How many Services use each shared chain.
    shared: BTreeMap<String, usize>,
}

type Element = (Map, Family, String);

/// One step: a transaction for `nft -f -`, and the datagram flows to forget after it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Empty if nothing has to change.
    pub transaction: String,
    pub stale: Vec<StaleFlow>,
}

/// Connection tracking entries that would send datagrams to where nobody is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleFlow {
    pub target: DatagramTarget,
    /// `None`: all of the target, since it had no endpoint and now has.
    pub endpoint: Option<IpAddr>,
}

impl Rules {
    /// An empty table of that name, not yet in the kernel.
    pub fn new(table: &str) -> Rules {
        Rules {
            table: table.to_owned(),
            services: BTreeMap::new(),
            claims: BTreeMap::new(),
            shared: BTreeMap::new(),
        }
    }

    /// Puts `changes` in place of what these Services had (`None`: gone).
    pub fn change(&mut self, changes: Vec<(ServiceKey, Option<Pieces>)>) -> Change {
        let mut script = Script::default();
        let mut stale = Vec::new();
        let mut touched: BTreeMap<Element, Option<String>> = BTreeMap::new();
        for (key, next) in changes {
            let next = next.unwrap_or_default();
            let last = self.services.remove(&key).unwrap_or_default();
            if last != next {
                stale.extend(stale_flows(&last, &next));
                script.chains_and_sets(&self.table, &last, &next);
                self.share(&last, &next, &mut script);
                for element in last.elements.keys().chain(next.elements.keys()) {
                    touched.entry(element.clone()).or_insert_with(|| winner(&self.claims, element));
                }
                for element in last.elements.keys() {
                    if let Some(claims) = self.claims.get_mut(element) {
                        claims.remove(&key);
                        if claims.is_empty() {
                            self.claims.remove(element);
                        }
                    }
                }
                for (element, value) in &next.elements {
                    self.claims.entry(element.clone()).or_default().insert(key.clone(), value.clone());
                }
            }
            if next != Pieces::default() {
                self.services.insert(key, next);
            }
        }
        let mut gone: BTreeMap<(Map, Family), Vec<String>> = BTreeMap::new();
        let mut come: BTreeMap<(Map, Family), Vec<String>> = BTreeMap::new();
        for (element, before) in touched {
            let after = winner(&self.claims, &element);
            if before == after {
                continue;
            }
            let (map, family, key) = element;
            if before.is_some() {
                gone.entry((map, family)).or_default().push(key.clone());
            }
            if let Some(value) = after {
                let text = if value.is_empty() { key } else { format!("{key} : {value}") };
                come.entry((map, family)).or_default().push(text);
            }
        }
        // A chain may have lost its last user and found another within this change.
        for chain in std::mem::take(&mut script.idle) {
            if self.shared.get(&chain) == Some(&0) {
                self.shared.remove(&chain);
                script.drop_chain(&self.table, &chain);
            }
        }
        let transaction = script.finish(&self.table, &gone, &come);
        Change { transaction, stale }
    }

    /// Shared chains come with their first user and go with their last.
    fn share(&mut self, last: &Pieces, next: &Pieces, script: &mut Script) {
        for (chain, rules) in &next.shared {
            let users = self.shared.entry(chain.clone()).or_default();
            *users += usize::from(!last.shared.contains_key(chain));
            if *users == 1 && !last.shared.contains_key(chain) {
                script.chain(&self.table, chain, rules);
            }
        }
        for chain in last.shared.keys().filter(|chain| !next.shared.contains_key(*chain)) {
            if let Some(users) = self.shared.get_mut(chain) {
                *users -= 1;
                if *users == 0 {
                    script.idle.insert(chain.clone());
                }
            }
        }
    }

    /// Builds the whole table anew, whatever the kernel holds now.
    pub fn everything(&self) -> String {
        let mut script = Script::default();
        let mut shared = BTreeSet::new();
        for pieces in self.services.values() {
            script.chains_and_sets(&self.table, &Pieces::default(), pieces);
            for (chain, rules) in &pieces.shared {
                if shared.insert(chain) {
                    script.chain(&self.table, chain, rules);
                }
            }
        }
        let mut come: BTreeMap<(Map, Family), Vec<String>> = BTreeMap::new();
        for (map, family, key) in self.claims.keys() {
            let Some(value) = winner(&self.claims, &(*map, *family, key.clone())) else { continue };
            let text = if value.is_empty() { key.clone() } else { format!("{key} : {value}") };
            come.entry((*map, *family)).or_default().push(text);
        }
        base(&self.table) + &script.finish(&self.table, &BTreeMap::new(), &come)
    }

    /// Removes the table, there or not.
    pub fn removal(table: &str) -> String {
        format!("add table inet {table}\ndelete table inet {table}\n")
    }
}

fn winner(claims: &BTreeMap<Element, BTreeMap<ServiceKey, String>>, element: &Element) -> Option<String> {
    claims.get(element).and_then(|claims| claims.values().next()).cloned()
}

/// The parts of a transaction, in the order nft needs: what is referred to exists before, and what goes
/// is referred to by nothing any more.
#[derive(Debug, Default)]
struct Script {
    declare: String,
    fill: String,
    empty: String,
    remove: String,
    /// Shared chains without a user so far.
    idle: BTreeSet<String>,
}

impl Script {
    fn chains_and_sets(&mut self, table: &str, last: &Pieces, next: &Pieces) {
        for (set, declaration) in &next.sets {
            // A set of the same name is the same: what cannot be changed about it is in the name.
            if !last.sets.contains_key(set) {
                self.declare += &format!("add set inet {table} {set} {{ {declaration} }}\n");
            }
        }
        for (chain, rules) in &next.chains {
            match last.chains.get(chain) {
                Some(before) if before == rules => continue,
                Some(_) => self.fill += &format!("flush chain inet {table} {chain}\n"),
                None => self.declare += &format!("add chain inet {table} {chain}\n"),
            }
            for rule in rules {
                self.fill += &format!("add rule inet {table} {chain} {rule}\n");
            }
        }
        for chain in last.chains.keys().filter(|chain| !next.chains.contains_key(*chain)) {
            self.drop_chain(table, chain);
        }
        for set in last.sets.keys().filter(|set| !next.sets.contains_key(*set)) {
            self.remove += &format!("delete set inet {table} {set}\n");
        }
    }

    /// Adding what is there is no error, so a chain that was about to go may come back; its rules are
    /// then flushed first.
    fn chain(&mut self, table: &str, chain: &str, rules: &[String]) {
        self.declare += &format!("add chain inet {table} {chain}\n");
        self.fill += &format!("flush chain inet {table} {chain}\n");
        for rule in rules {
            self.fill += &format!("add rule inet {table} {chain} {rule}\n");
        }
    }

    fn drop_chain(&mut self, table: &str, chain: &str) {
        self.empty += &format!("flush chain inet {table} {chain}\n");
        self.remove += &format!("delete chain inet {table} {chain}\n");
    }

    fn finish(
        self,
        table: &str,
        gone: &BTreeMap<(Map, Family), Vec<String>>,
        come: &BTreeMap<(Map, Family), Vec<String>>,
    ) -> String {
        let mut text = self.declare + &self.fill;
        for (verb, elements) in [("delete", gone), ("add", come)] {
            for ((map, family), keys) in elements {
                for keys in keys.chunks(ELEMENTS_PER_COMMAND) {
                    let name = name_of(*map, *family);
                    text += &format!("{verb} element inet {table} {name} {{ {} }}\n", keys.join(", "));
                }
            }
        }
        text + &self.empty + &self.remove
    }
}

fn stale_flows(last: &Pieces, next: &Pieces) -> Vec<StaleFlow> {
    let none = BTreeSet::new();
    let mut stale = Vec::new();
    for (target, before) in &last.datagrams {
        let after = next.datagrams.get(target).unwrap_or(&none);
        let gone = before.difference(after);
        stale.extend(gone.map(|ip| StaleFlow { target: target.clone(), endpoint: Some(*ip) }));
    }
    for (target, after) in &next.datagrams {
        let before = last.datagrams.get(target).unwrap_or(&none);
        if before.is_empty() && !after.is_empty() {
            stale.push(StaleFlow { target: target.clone(), endpoint: None });
        }
    }
    stale
}

fn name_of(map: Map, family: Family) -> String {
    let name = match map {
        Map::ServiceIps => "service-ips",
        Map::ServiceNodePorts => "service-nodeports",
        Map::RefusedIps => "refused-ips",
        Map::RefusedNodePorts => "refused-nodeports",
        Map::ClusterIps => "cluster-ips",
        Map::Endpoints => "endpoints",
        Map::PortEndpoints => "port-endpoints",
        Map::Hairpin => "hairpin",
    };
    match family {
        Family::V4 => format!("{name}-4"),
        Family::V6 => format!("{name}-6"),
    }
}

/// The table without any Service.
fn base(table: &str) -> String {
    let mut text = Rules::removal(table) + &format!("add table inet {table}\n");
    for family in FAMILIES {
        let address = match family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        };
        for map in MAPS {
            let name = name_of(map, family);
            text += &match map {
                Map::ServiceIps | Map::RefusedIps => format!(
                    "add map inet {table} {name} {{ type {address} . inet_proto . inet_service : verdict; }}\n"
                ),
                Map::ServiceNodePorts | Map::RefusedNodePorts => {
                    format!("add map inet {table} {name} {{ type inet_proto . inet_service : verdict; }}\n")
                }
                Map::Endpoints => format!(
                    "add map inet {table} {name} {{ type {address} . inet_proto . inet_service . mark : {address} . inet_service; }}\n"
                ),
                Map::PortEndpoints => format!(
                    "add map inet {table} {name} {{ type inet_proto . inet_service . mark : {address} . inet_service; }}\n"
                ),
                Map::ClusterIps => format!("add set inet {table} {name} {{ type {address}; }}\n"),
                Map::Hairpin => format!("add set inet {table} {name} {{ type {address} . {address}; }}\n"),
            };
        }
    }
    let chain = |name: &str, hook: &str, rules: &[&str]| {
        let mut text = match hook {
            "" => format!("add chain inet {table} {name}\n"),
            hook => format!("add chain inet {table} {name} {{ type {hook}; policy accept; }}\n"),
        };
        for rule in rules {
            text += &format!("add rule inet {table} {name} {rule}\n");
        }
        text
    };
    // A reset where possible: an ICMP error that arrives while connect() still holds its socket is put
    // aside, and the client waits a second for its next attempt.
    text += &chain("refuse", "", &["meta l4proto tcp reject with tcp reset", "reject"]);
    text += &chain(
        "services",
        "",
        &[
            "ip daddr . meta l4proto . th dport vmap @service-ips-4",
            "ip6 daddr . meta l4proto . th dport vmap @service-ips-6",
            // 127.0.0.1 is left out: what would leave it has no way back.
            "meta nfproto ipv4 fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports-4",
            "meta nfproto ipv6 fib daddr type local ip6 daddr != ::1 meta l4proto . th dport vmap @service-nodeports-6",
        ],
    );
    text += &chain("nat-prerouting", "nat hook prerouting priority dstnat", &["jump services"]);
    text += &chain("nat-output", "nat hook output priority -100", &["jump services"]);
    let masquerade = format!(
        "meta mark & {MASQUERADE_MARK} != 0 meta mark set meta mark xor {MASQUERADE_MARK} masquerade fully-random"
    );
    text += &chain(
        "nat-postrouting",
        "nat hook postrouting priority srcnat",
        &[
            &masquerade,
            "ct status dnat ip saddr . ip daddr @hairpin-4 masquerade fully-random",
            "ct status dnat ip6 saddr . ip6 daddr @hairpin-6 masquerade fully-random",
        ],
    );
    // Only what found no Service above still has its first destination here.
    text += &chain(
        "refused",
        "",
        &[
            "ip daddr . meta l4proto . th dport vmap @refused-ips-4",
            "ip6 daddr . meta l4proto . th dport vmap @refused-ips-6",
        ],
    );
    let unknown_port = ["ip daddr @cluster-ips-4 goto refuse", "ip6 daddr @cluster-ips-6 goto refuse"];
    for (name, hook) in [
        ("filter-forward", "filter hook forward priority -110"),
        ("filter-output", "filter hook output priority -90"),
    ] {
        text += &chain(name, hook, &["ct state new jump refused", unknown_port[0], unknown_port[1]]);
    }
    text += &chain(
        "filter-input",
        "filter hook input priority -110",
        &[
            "ct state new jump refused",
            "ct state new meta nfproto ipv4 fib daddr type local meta l4proto . th dport vmap @refused-nodeports-4",
            "ct state new meta nfproto ipv6 fib daddr type local meta l4proto . th dport vmap @refused-nodeports-6",
        ],
    );
    text
}
