//! How often somebody may try a password: per account from one address, per address, and per account from all.
//!
//! A stranger must not be able to lock an account's owner out: what they try is theirs, from their address, and the
//! account's own purse is far larger. Should many addresses empty even that one, an address from which the right
//! password came before is not asked for it.
//!
//! A try takes a coin and a right password gives it back, so only wrong ones cost. Coins come back with
//! time. The coin is taken before the password is looked at: a hundred guesses at once are a hundred
//! coins, and a right guess without a coin looks like a wrong one.
//!
//! Kept in memory: a restart forgets, and each of several managers counts for itself. That multiplies an
//! attacker's handful of tries by a small number, and costs no write per try.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// An account from one address: ten tries, one more each half minute.
const PAIR: Rate = Rate { coins: 10, each: Duration::from_secs(30) };

/// An account from wherever: under 9,000 guesses a day, which find no password of twelve characters that is none of
/// the first ones to be tried.
const ACCOUNT: Rate = Rate { coins: 200, each: Duration::from_secs(10) };

/// An address, behind which an office may be: fifty, one more each three seconds.
const ADDRESS: Rate = Rate { coins: 50, each: Duration::from_secs(3) };

/// Purses kept. Past it, those nearest to full are forgotten first: forgetting gives them least.
const MAX_PURSES: usize = 20_000;

#[derive(Debug, Clone, Copy)]
struct Rate {
    coins: u32,
    each: Duration,
}

/// A try: what it was paid from.
#[derive(Debug)]
pub(crate) struct Try {
    /// Of the account with the address.
    pair: Key,
    /// Unless this address is known to be the owner's.
    account: Option<Key>,
    address: Option<Key>,
}

type Key = [u8; 16];

#[derive(Debug, Default)]
pub(crate) struct Throttle {
    pairs: Mutex<HashMap<Key, Duration>>,
    accounts: Mutex<HashMap<Key, Duration>>,
    addresses: Mutex<HashMap<Key, Duration>>,
    /// Pairs for which the right password came, and when last.
    known: Mutex<HashMap<Key, Duration>>,
}

impl Throttle {
    /// Takes a coin of each; or says how long until there is one again.
    pub(crate) fn take(
        &self,
        account: &str,
        address: Option<IpAddr>,
        now: Duration,
    ) -> Result<Try, Duration> {
        let account = key(account.to_lowercase().as_bytes());
        let address = address.map(address_key);
        let pair = key(&[account, address.unwrap_or_default()].concat());
        // Whoever is refused further on keeps these coins spent: trying many locked accounts is trying, too.
        if let Some(address) = address {
            spend(&mut self.addresses.lock(), address, ADDRESS, now)?;
        }
        spend(&mut self.pairs.lock(), pair, PAIR, now)?;
        let account = (!self.known.lock().contains_key(&pair)).then_some(account);
        if let Some(account) = account {
            spend(&mut self.accounts.lock(), account, ACCOUNT, now)?;
        }
        Ok(Try { pair, account, address })
    }

    /// It was right.
    pub(crate) fn give_back(&self, paid: &Try, now: Duration) {
        {
            let mut known = self.known.lock();
            if known.len() >= MAX_PURSES && !known.contains_key(&paid.pair) {
                forget_half(&mut known);
            }
            known.insert(paid.pair, now);
        }
        give(&mut self.pairs.lock(), paid.pair, PAIR);
        if let Some(account) = paid.account {
            give(&mut self.accounts.lock(), account, ACCOUNT);
        }
        if let Some(address) = paid.address {
            give(&mut self.addresses.lock(), address, ADDRESS);
        }
    }
}

fn key(text: &[u8]) -> Key {
    let mut key = Key::default();
    key.copy_from_slice(&Sha256::digest(text)[..16]);
    key
}

/// An IPv6 host owns a /64 and could try from each of its addresses.
fn address_key(address: IpAddr) -> Key {
    match address.to_canonical() {
        IpAddr::V4(four) => key(&four.octets()),
        IpAddr::V6(six) => key(&six.octets()[..8]),
    }
}

/// A purse is the moment it will be full again: one number, which needs no refilling.
fn spend(purses: &mut HashMap<Key, Duration>, key: Key, rate: Rate, now: Duration) -> Result<(), Duration> {
    let full_at = purses.get(&key).copied().unwrap_or(now).max(now);
    let after = full_at + rate.each;
    let empty = now + rate.each * rate.coins;
    if after > empty {
        return Err(after - empty);
    }
    if purses.len() >= MAX_PURSES && !purses.contains_key(&key) {
        forget(purses, now);
    }
    purses.insert(key, after);
    Ok(())
}

fn give(purses: &mut HashMap<Key, Duration>, key: Key, rate: Rate) {
    if let Some(full_at) = purses.get_mut(&key) {
        *full_at = full_at.saturating_sub(rate.each);
    }
}

/// Lets go of the full ones, and of the fuller half when none is.
fn forget(purses: &mut HashMap<Key, Duration>, now: Duration) {
    purses.retain(|_, full_at| *full_at > now);
    if purses.len() >= MAX_PURSES {
        forget_half(purses);
    }
}

/// Lets go of those with the earlier moments.
fn forget_half(moments: &mut HashMap<Key, Duration>) {
    let mut sorted: Vec<Duration> = moments.values().copied().collect();
    let middle = sorted.len() / 2;
    let (_, median, _) = sorted.select_nth_unstable(middle);
    let median = *median;
    moments.retain(|_, at| *at > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }
    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn ten_wrong_passwords_are_enough_for_a_while() {
        let throttle = Throttle::default();
        for number in 0..10 {
            assert!(throttle.take("ann@example.com", ip(1), at(0)).is_ok(), "{number}");
        }
        assert_eq!(throttle.take("Ann@example.com", ip(1), at(0)).unwrap_err(), Duration::from_secs(30));
        assert!(throttle.take("bob@example.com", ip(1), at(0)).is_ok(), "other accounts are not held up");
        assert!(throttle.take("ann@example.com", ip(99), at(0)).is_ok(), "nor is the owner, elsewhere");
        assert!(throttle.take("ann@example.com", ip(1), at(30)).is_ok());
        assert!(throttle.take("ann@example.com", ip(1), at(30)).is_err());
    }

    #[test]
    fn many_addresses_are_bounded_too_and_the_owner_still_gets_in() {
        let throttle = Throttle::default();
        let paid = throttle.take("ann@example.com", ip(200), at(0)).unwrap();
        throttle.give_back(&paid, at(0));
        let guesses = (0..60_u8).flat_map(|address| std::iter::repeat_n(address, 10));
        let tried =
            guesses.filter(|address| throttle.take("ann@example.com", ip(*address), at(1)).is_ok()).count();
        assert_eq!(tried, 200);
        assert!(throttle.take("ann@example.com", ip(201), at(1)).is_err(), "nobody knows this address");
        for number in 0..10 {
            assert!(throttle.take("ann@example.com", ip(200), at(1)).is_ok(), "{number}");
        }
        assert!(throttle.take("ann@example.com", ip(200), at(1)).is_err(), "known is not unlimited");
    }

    #[test]
    fn right_passwords_cost_nothing() {
        let throttle = Throttle::default();
        for _ in 0..1000 {
            let paid = throttle.take("ann@example.com", ip(1), at(0)).unwrap();
            throttle.give_back(&paid, at(0));
        }
    }

    #[test]
    fn an_address_cannot_try_account_after_account() {
        let throttle = Throttle::default();
        let tries = |throttle: &Throttle, address: fn(u16) -> Option<IpAddr>| {
            (0..200).filter(|n| throttle.take(&format!("user{n}"), address(*n), at(0)).is_ok()).count()
        };
        assert_eq!(tries(&throttle, |_| ip(1)), 50);
        // One IPv6 host with as many addresses as it likes.
        let neighbours = |n| Some(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]));
        assert_eq!(tries(&Throttle::default(), neighbours), 50);
    }

    #[test]
    fn memory_is_bounded_whatever_is_tried() {
        let throttle = Throttle::default();
        for number in 0..u32::try_from(3 * MAX_PURSES).unwrap() {
            let _ = throttle.take(&number.to_string(), None, at(0));
        }
        for number in 0..u32::try_from(2 * MAX_PURSES).unwrap() {
            let paid = throttle.take(&number.to_string(), None, at(600)).unwrap();
            throttle.give_back(&paid, at(600 + u64::from(number)));
        }
        for kept in [&throttle.accounts, &throttle.pairs, &throttle.known] {
            assert!(kept.lock().len() <= MAX_PURSES);
        }
    }
}
