//! Connections that have not said yet what they want, and which of them goes when there are too many.
//!
//! Whoever connects and stays silent costs a slot for as long as a hello may take. Refusing newcomers once an
//! address has too many of those would lock out everybody else behind it; so the oldest silent one goes
//! instead. Somebody who means it says so within milliseconds, and is no longer silent when its turn comes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// All silent connections of a gateway. Clones share them.
#[derive(Debug, Clone)]
pub struct Silents {
    most_per_address: usize,
    most: usize,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Oldest first.
    all: BTreeMap<u64, (IpAddr, CancellationToken)>,
    of: HashMap<IpAddr, BTreeSet<u64>>,
}

/// One silent connection; it is none any more when this is dropped.
#[derive(Debug)]
pub struct Silent {
    number: u64,
    displaced: CancellationToken,
    table: Arc<Mutex<Table>>,
}

impl Silents {
    /// At most `most_per_address` of one address and `most` altogether.
    pub fn new(most_per_address: usize, most: usize) -> Silents {
        Silents { most_per_address, most, table: Arc::default() }
    }

    /// One more from `address`; others may have to go for it.
    pub fn enter(&self, address: IpAddr) -> Silent {
        let displaced = CancellationToken::new();
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        table.all.insert(number, (address, displaced.clone()));
        table.of.entry(address).or_default().insert(number);
        let own = table.of.get(&address).filter(|own| own.len() > self.most_per_address);
        if let Some(oldest) = own.and_then(|own| own.first().copied()) {
            table.displace(oldest);
        }
        if table.all.len() > self.most
            && let Some(oldest) = table.all.keys().next().copied()
        {
            table.displace(oldest);
        }
        Silent { number, displaced, table: self.table.clone() }
    }
}

impl Table {
    fn displace(&mut self, number: u64) {
        if let Some((_, displaced)) = self.all.get(&number) {
            displaced.cancel();
        }
        self.remove(number);
    }

    fn remove(&mut self, number: u64) {
        let Some((address, _)) = self.all.remove(&number) else { return };
        if let Some(own) = self.of.get_mut(&address) {
            own.remove(&number);
            if own.is_empty() {
                self.of.remove(&address);
            }
        }
    }
}

impl Silent {
    /// Resolves when a newer connection takes this one's place.
    pub async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.table.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(held: &[Silent]) -> Vec<usize> {
        (0..held.len()).filter(|at| held[*at].displaced.is_cancelled()).collect()
    }

    #[test]
    fn the_oldest_makes_room() {
        let silents = Silents::new(2, 4);
        let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut held = Vec::new();
        for (address, wanted) in [
            (1, &[][..]),
            (2, &[]),
            (1, &[]),
            // The third of one address: its own oldest goes.
            (1, &[0]),
            (3, &[0]),
            // The fifth in all: the oldest of anybody's.
            (4, &[0, 1]),
        ] {
            held.push(silents.enter(ip(address)));
            assert_eq!(gone(&held), wanted, "after one of {address}");
        }
        // Whoever has spoken leaves room.
        drop(held.remove(5));
        held.push(silents.enter(ip(5)));
        assert_eq!(gone(&held), [0, 1]);
        drop(held);
        let table = silents.table.lock();
        assert!(table.all.is_empty() && table.of.is_empty(), "{table:?}");
    }
}
