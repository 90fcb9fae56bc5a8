//! Gives each node its block of pod addresses.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use api_machinery::Object;
use api_reconcile::{Action, EventText, PatchKind, Plan};
use serde_json::json;

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::world::World;

pub struct PodRanges {
    first: u32,
    blocks: u32,
    block_bits: u8,
}

impl PodRanges {
    /// Blocks of `/block_bits` out of `cidr`. A block that doesn't fit into it leaves none to give.
    pub fn new(cidr: (Ipv4Addr, u8), block_bits: u8) -> PodRanges {
        let (address, bits) = cidr;
        let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
        let spread = block_bits.min(30).saturating_sub(bits);
        let blocks = if block_bits >= bits { 1u32 << spread.min(24) } else { 0 };
        PodRanges { first: u32::from(address) & mask, blocks, block_bits: block_bits.min(30) }
    }

    fn block(&self, at: u32) -> String {
        let address = Ipv4Addr::from(self.first + (at << (32 - self.block_bits)));
        format!("{address}/{}", self.block_bits)
    }
}

fn range_of(node: &Object) -> Option<String> {
    node.field("spec.podCIDR")?.as_str().filter(|range| !range.is_empty()).map(str::to_owned)
}

impl Controller for PodRanges {
    fn name(&self) -> &'static str {
        "node-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::NODES]
    }
    /// One at a time: each must see what the last one gave.
    fn workers(&self) -> usize {
        1
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        // A node never loses its block while it exists, so only new ones are looked at.
        if change.kind == ChangeKind::Seen {
            wake(Key::of(res::NODES, change.object));
        }
    }
    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(node) = world.at(key) else { return Plan::nothing() };
        if range_of(node).is_some() || world.is_deleting(node) {
            return Plan::nothing();
        }
        let taken: HashSet<String> = world.all(res::NODES).filter_map(|node| range_of(node)).collect();
        let free = (0..self.blocks).map(|at| self.block(at)).find(|block| !taken.contains(block));
        let Some(block) = free else {
            let text = EventText::normal(
                "CIDRNotAvailable",
                format!("Node {} status is now: CIDRNotAvailable", key.name),
            );
            let about = convert::regarding(&world.catalog().get(res::NODES).gvk, node);
            let mut plan = Plan::of(vec![Action::Event(about, text)]);
            plan.again(std::time::Duration::from_secs(60));
            return plan;
        };
        Plan::of(vec![Action::Patch {
            of: world.catalog().get(res::NODES).gvr.clone(),
            subresource: None,
            namespace: None,
            name: key.name.to_string(),
            kind: PatchKind::Merge,
            patch: json!({"metadata": {"uid": node.header.uid.to_string()},
                "spec": {"podCIDR": block, "podCIDRs": [block]}}),
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_side_by_side_in_the_range() {
        let ranges = PodRanges::new((Ipv4Addr::new(10, 244, 0, 0), 16), 24);
        assert_eq!(ranges.blocks, 256);
        assert_eq!(
            (ranges.block(0), ranges.block(255)),
            ("10.244.0.0/24".to_owned(), "10.244.255.0/24".to_owned())
        );
        assert_eq!(PodRanges::new((Ipv4Addr::new(10, 0, 0, 0), 24), 16).blocks, 0);
    }
}
