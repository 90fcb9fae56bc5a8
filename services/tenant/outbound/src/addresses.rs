//! Which addresses a tenant may send this process to.
//!
//! Two questions, by where the connection starts: [`is_public`] for what this process dials itself, and
//! [`is_inside_cluster`] for what a node dials for it. Both look at the address that will be dialled, in its
//! canonical form, so no notation of it (mapped, decimal, octal, a name) makes a difference.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// `10.0.0.0/8`, `2001:db8::/32`; a single address is a network of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network: write 10.0.0.0/8, 192.0.2.1 or 192.0.2.1:8443")]
pub struct NetworkError(pub String);

impl Network {
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                let shift = 32u32.saturating_sub(u32::from(self.bits));
                u32::from(net).checked_shr(shift).unwrap_or(0)
                    == u32::from(ip).checked_shr(shift).unwrap_or(0)
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => {
                let shift = 128u32.saturating_sub(u32::from(self.bits));
                u128::from(net).checked_shr(shift).unwrap_or(0)
                    == u128::from(ip).checked_shr(shift).unwrap_or(0)
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for Network {
    fn from(ip: IpAddr) -> Network {
        let address = ip.to_canonical();
        Network { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(wrong());
        }
        Ok(Network { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// An exception that the provider makes: a network, or one port of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    pub network: Network,
    pub port: Option<u16>,
}

impl Allowed {
    pub fn covers(&self, address: SocketAddr) -> bool {
        self.network.contains(address.ip()) && self.port.is_none_or(|port| port == address.port())
    }
}

impl FromStr for Allowed {
    type Err = NetworkError;

    /// A network, or an address with a port.
    fn from_str(text: &str) -> Result<Allowed, NetworkError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Allowed { network: address.ip().into(), port: Some(address.port()) });
        }
        Ok(Allowed { network: text.parse()?, port: None })
    }
}

/// Whether an address is one that anybody on the internet could reach: not this machine, not its link, not a
/// private network, and none of the ranges that embed such addresses.
///
/// For IPv6 only what is assigned as global unicast counts; everything else (unique local, link-local,
/// NAT64, Teredo, 6to4) is either private or a way to write an IPv4 address that would be refused.
/// Facts: the IANA special-purpose address registries.
pub fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127, _, _)
            | (100, 64..=127, _) // carrier-grade NAT; clouds put services there as well
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            | (224.., _, _)
    )
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let global_unicast = a & 0xe000 == 0x2000;
    let special = matches!(
        (a, b),
        (0x2001, 0..0x0200) // protocol assignments, Teredo among them
            | (0x2001, 0x0db8)
            | (0x2002, _)
            | (0x3fff, 0..0x1000)
    );
    global_unicast && !special
}

/// Whether a node may be asked to connect to it. What it reaches is the tenant's own, except for the node's
/// loopback and link-local addresses, where agents and clouds keep their credentials: no pod lives there,
/// whatever somebody wrote into its status.
pub fn is_inside_cluster(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let zero_net = ip.octets()[0] == 0;
            !(ip.is_loopback() || ip.is_link_local() || zero_net || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            let embeds_v4 = ip.segments()[..6] == [0; 6] || ip.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
            !(ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || embeds_v4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_internet_is_public_and_only_pods_are_inside() {
        for (ip, public, inside) in [
            ("8.8.8.8", true, true),
            ("1.1.1.1", true, true),
            ("0.0.0.0", false, false),
            ("0.1.2.3", false, false),
            ("127.0.0.1", false, false),
            ("127.255.0.9", false, false),
            ("10.244.0.5", false, true),
            ("100.64.0.1", false, true),
            ("100.100.100.200", false, true),
            ("100.128.0.1", true, true),
            ("169.254.169.254", false, false),
            ("172.15.0.1", true, true),
            ("172.16.0.1", false, true),
            ("172.31.255.255", false, true),
            ("172.32.0.1", true, true),
            ("192.0.0.192", false, true),
            ("192.0.2.1", false, true),
            ("192.88.99.1", false, true),
            ("192.168.1.1", false, true),
            ("198.18.0.1", false, true),
            ("198.19.255.1", false, true),
            ("198.20.0.1", true, true),
            ("198.51.100.7", false, true),
            ("203.0.113.7", false, true),
            ("224.0.0.1", false, false),
            ("240.0.0.1", false, true),
            ("255.255.255.255", false, false),
            ("::", false, false),
            ("::1", false, false),
            ("::127.0.0.1", false, false),
            ("::ffff:127.0.0.1", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("::ffff:10.244.0.5", false, true),
            ("::ffff:8.8.8.8", true, true),
            ("64:ff9b::7f00:1", false, false),
            ("2001:4860:4860::8888", true, true),
            ("2001:0:7f00:1::1", false, true),
            ("2001:db8::1", false, true),
            ("2002:7f00:1::1", false, true),
            ("3fff:0:1::1", false, true),
            ("fc00::1", false, true),
            ("fd00:ec2::254", false, true),
            ("fe80::1", false, false),
            ("ff02::1", false, false),
        ] {
            let address: IpAddr = ip.parse().unwrap();
            assert_eq!((is_public(address), is_inside_cluster(address)), (public, inside), "{ip}");
        }
    }

    #[test]
    fn networks_and_exceptions_are_read() {
        for (network, ip, wanted) in [
            ("10.0.0.0/8", "10.9.9.9", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
        ] {
            assert_eq!(
                network.parse::<Network>().unwrap().contains(ip.parse().unwrap()),
                wanted,
                "{network} {ip}"
            );
        }
        for (text, address, wanted) in [
            ("127.0.0.1:8443", "127.0.0.1:8443", true),
            ("127.0.0.1:8443", "127.0.0.1:8444", false),
            ("127.0.0.0/8", "127.0.0.5:1", true),
            ("[::1]:443", "[::1]:443", true),
        ] {
            assert_eq!(
                text.parse::<Allowed>().unwrap().covers(address.parse().unwrap()),
                wanted,
                "{text} {address}"
            );
        }
        for wrong in ["", "10.0.0.0/33", "x", "10.0.0/8", "::/129", "10.0.0.0/8:443"] {
            assert!(wrong.parse::<Allowed>().is_err(), "{wrong:?}");
        }
    }
}
