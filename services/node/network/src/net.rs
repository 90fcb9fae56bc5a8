//! Address ranges.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an address range such as 10.244.0.0/16")]
pub struct ParseNetError {
    given: String,
}

/// An address range in CIDR form; host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    base: IpAddr,
    prefix: u8,
}

impl Subnet {
    /// `None` if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Subnet> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then(|| Subnet { base: masked(address, prefix), prefix })
    }
    pub fn base(&self) -> IpAddr {
        self.base
    }
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
    pub fn is_ipv4(&self) -> bool {
        self.base.is_ipv4()
    }
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.base.is_ipv4() && masked(address, self.prefix) == self.base
    }
    pub fn overlaps(&self, other: &Subnet) -> bool {
        self.contains(other.base) || other.contains(self.base)
    }
    /// The address `offset` above the first; `None` outside.
    pub fn nth(&self, offset: u32) -> Option<IpAddr> {
        let address = match self.base {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).checked_add(offset)?)),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).checked_add(offset.into())?)),
        };
        self.contains(address).then_some(address)
    }
    /// All ranges of `prefix` within this one, in order.
    pub fn parts(&self, prefix: u8) -> impl Iterator<Item = Subnet> + use<> {
        let (base, own) = (self.base, self.prefix);
        let (bits, count) = match base {
            IpAddr::V4(_) => (32u8, 1u64 << prefix.clamp(own, 32).saturating_sub(own)),
            IpAddr::V6(_) => (128u8, 1u64 << prefix.clamp(own, 128).saturating_sub(own).min(32)),
        };
        let step = u128::from(1u8) << (u32::from(bits) - u32::from(prefix.clamp(own, bits))).min(127);
        (0..count).filter_map(move |at| {
            let offset = step.checked_mul(at.into())?;
            let address = match base {
                IpAddr::V4(base) => {
                    IpAddr::V4(Ipv4Addr::from(u32::from(base).checked_add(u32::try_from(offset).ok()?)?))
                }
                IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).checked_add(offset)?)),
            };
            Subnet::new(address, prefix.clamp(own, bits))
        })
    }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

impl FromStr for Subnet {
    type Err = ParseNetError;
    fn from_str(given: &str) -> Result<Subnet, ParseNetError> {
        let parsed = given.split_once('/').and_then(|(address, prefix)| {
            let prefix = (!prefix.starts_with('+')).then(|| prefix.parse().ok()).flatten()?;
            Subnet::new(address.parse().ok()?, prefix)
        });
        parsed.ok_or_else(|| ParseNetError { given: given.to_owned() })
    }
}
impl TryFrom<String> for Subnet {
    type Error = ParseNetError;
    fn try_from(given: String) -> Result<Subnet, ParseNetError> {
        given.parse()
    }
}
impl From<Subnet> for String {
    fn from(subnet: Subnet) -> String {
        subnet.to_string()
    }
}
impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_parse_and_contain() {
        for (given, printed) in [
            ("10.244.3.7/24", Some("10.244.3.0/24")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::7/64", Some("fd00::/64")),
            ("10.0.0.1", None),
            ("10.0.0.0/33", None),
            ("10.0.0.0/+8", None),
            ("::/129", None),
            ("", None),
        ] {
            let parsed = given.parse::<Subnet>().ok().map(|subnet| subnet.to_string());
            assert_eq!(parsed.as_deref(), printed, "{given:?}");
        }
        for (range, address, inside) in [
            ("10.244.0.0/16", "10.244.255.255", true),
            ("10.244.0.0/16", "10.245.0.0", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
        ] {
            let range: Subnet = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), inside, "{range} {address}");
        }
        let range: Subnet = "172.31.240.0/20".parse().unwrap();
        let parts: Vec<String> = range.parts(24).map(|part| part.to_string()).collect();
        assert_eq!(parts.len(), 16);
        assert_eq!(parts[15], "172.31.255.0/24");
        assert_eq!(range.nth(1).unwrap().to_string(), "172.31.240.1");
        assert_eq!(range.nth(4096), None);
    }
}
