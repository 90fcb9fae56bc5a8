//! What names of objects and of what is in them may look like; what every kind's metadata needs is
//! `api_machinery::validation`'s. Each check gives the reasons against, in upstream's words; none means fine.

use super::at::{At, Errors};
use crate::strategy::NameRule;

const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV_NAME: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";

pub(crate) use api_machinery::validation::{
    Reasons, dns_label, dns_subdomain, label_value, path_segment, qualified_name, too_long,
};

/// `prefix` is a `generateName`: checked as the beginning of a name, since a suffix follows.
pub(crate) fn check(rule: NameRule, name: &str, prefix: bool) -> Reasons {
    // What a suffix may follow, it may also end in; upstream swaps a trailing dash the same way.
    let swapped;
    let name = if prefix && name.ends_with('-') {
        swapped = format!("{}a", &name[..name.len() - 1]);
        &swapped
    } else {
        name
    };
    match rule {
        NameRule::DnsSubdomain => dns_subdomain(name),
        NameRule::DnsLabel => dns_label(name),
        NameRule::PathSegment => path_segment(name, prefix),
        NameRule::IpAddress => canonical_ip(name),
    }
}

fn canonical_ip(name: &str) -> Reasons {
    use std::net::IpAddr;
    let Ok(ip) = name.parse::<IpAddr>() else {
        return vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()];
    };
    if matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        return vec!["must not be an IPv4-mapped IPv6 address".to_owned()];
    }
    if ip.to_string() == name {
        Vec::new()
    } else {
        vec![format!("must be in canonical form ({:?})", ip.to_string())]
    }
}

/// Keys of ConfigMaps and Secrets: also names of files.
pub(crate) fn config_key(key: &str) -> Reasons {
    let mut reasons = Vec::new();
    if key.len() > 253 {
        reasons.push(too_long(253));
    }
    let shaped = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(shaped) {
        reasons.push(CONFIG_KEY.to_owned());
    }
    match key {
        "." => reasons.push("must not be '.'".to_owned()),
        ".." => reasons.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => reasons.push("must not start with '..'".to_owned()),
        _ => {}
    }
    reasons
}

pub(crate) fn env_name(name: &str) -> Reasons {
    let printable = |b: u8| (0x20..0x7f).contains(&b) && b != b'=';
    if !name.is_empty() && name.bytes().all(printable) { Vec::new() } else { vec![ENV_NAME.to_owned()] }
}

/// Names of ports: at most 15 lower-case letters, digits and dashes, with a letter among them.
pub(crate) fn port_name(name: &str) -> Reasons {
    let mut reasons = Vec::new();
    if name.len() > 15 {
        reasons.push(too_long(15));
    }
    let bytes = name.as_bytes();
    if !bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-') {
        reasons.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        reasons.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        reasons.push("must not contain consecutive hyphens".to_owned());
    }
    if bytes.first() == Some(&b'-') || bytes.last() == Some(&b'-') {
        reasons.push("must not begin or end with a hyphen".to_owned());
    }
    reasons
}

pub(crate) fn port_number(port: i64) -> Reasons {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".to_owned()]
    }
}

pub(crate) fn ip(text: &str) -> Reasons {
    if text.parse::<std::net::IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

/// Whether the range `inner` is a part of the range `outer`, and smaller.
pub(crate) fn within(inner: &str, outer: &str) -> bool {
    /// The address left-aligned in 128 bits, how many of them count, and the family.
    fn parse(text: &str) -> Option<(u128, u32, bool)> {
        let (address, bits) = text.split_once('/')?;
        let bits = bits.parse().ok()?;
        match address.parse().ok()? {
            std::net::IpAddr::V4(four) => Some((u128::from(u32::from(four)) << 96, bits, false)),
            std::net::IpAddr::V6(six) => Some((u128::from(six), bits, true)),
        }
    }
    let (Some((inner, inner_bits, six)), Some((outer, bits, outer_six))) = (parse(inner), parse(outer))
    else {
        return false;
    };
    let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
    six == outer_six && bits < inner_bits && inner & mask == outer & mask
}

/// `example.com/path`: names of controllers.
pub(crate) fn domain_prefixed_path(at: &At<'_>, errors: &mut Errors) {
    const PATH: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
    if !at.require(errors) {
        return;
    }
    let halves = at.text().split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty());
    let Some((host, path)) = halves else {
        errors.push(at.invalid("must be a domain-prefixed path (such as \"acme.io/foo\")"));
        return;
    };
    errors.extend(dns_subdomain(host).into_iter().map(|why| at.field.invalid(host, why)));
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(fine) {
        errors.push(at.field.invalid(path, PATH));
    }
}

pub(crate) fn cidr(text: &str) -> Reasons {
    let fine = text.split_once('/').is_some_and(|(address, bits)| {
        let max = match address.parse() {
            Ok(std::net::IpAddr::V4(_)) => 32,
            Ok(std::net::IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= max)
    });
    if fine {
        Vec::new()
    } else {
        vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_rule_says() {
        let long_label = "a".repeat(64);
        for (rule, name, prefix, fine) in [
            (NameRule::DnsSubdomain, "a.b-c.d", false, true),
            (NameRule::DnsSubdomain, "A", false, false),
            (NameRule::DnsSubdomain, "a..b", false, false),
            (NameRule::DnsSubdomain, "-a", false, false),
            (NameRule::DnsSubdomain, "web-", true, true),
            (NameRule::DnsSubdomain, "web-", false, false),
            (NameRule::DnsLabel, "a.b", false, false),
            (NameRule::DnsLabel, &long_label, false, false),
            (NameRule::DnsLabel, "1a", false, true),
            (NameRule::PathSegment, "system:node:X", false, true),
            (NameRule::PathSegment, "a/b", false, false),
            (NameRule::PathSegment, "..", false, false),
        ] {
            assert_eq!(check(rule, name, prefix).is_empty(), fine, "{rule:?} {name:?}");
        }
    }
}
