//! IP addresses and networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Body, no_overload};
use crate::eval::{EvalError, Outcome, bool_value};
use crate::plan::Call;
use crate::value::{Opaque, Value, quote_go};

pub(super) const BODIES: &[(&str, Body)] = &[
    ("ip", |_, call, args| match args {
        [Value::String(text)] => Ok(Value::opaque(Opaque::Ip(parse_ip(text)?))),
        [Value::Opaque(value)] => match &**value {
            Opaque::Cidr(ip, _) => Ok(Value::opaque(Opaque::Ip(*ip))),
            _ => no_overload(call, args),
        },
        _ => no_overload(call, args),
    }),
    ("isIP", |_, call, args| match args {
        [Value::String(text)] => bool_value(parse_ip(text).is_ok()),
        _ => no_overload(call, args),
    }),
    ("ip.isCanonical", |_, call, args| match args {
        [Value::String(text)] => bool_value(parse_ip(text)?.to_string() == text.as_str()),
        _ => no_overload(call, args),
    }),
    ("family", |_, call, args| match ip_of(args) {
        Some(ip) => Ok(Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        None => no_overload(call, args),
    }),
    ("isUnspecified", |_, call, args| test(call, args, |ip| ip.is_unspecified())),
    ("isLoopback", |_, call, args| test(call, args, |ip| ip.is_loopback())),
    ("isLinkLocalMulticast", |_, call, args| test(call, args, is_link_local_multicast)),
    ("isLinkLocalUnicast", |_, call, args| test(call, args, is_link_local_unicast)),
    ("isGlobalUnicast", |_, call, args| {
        test(call, args, |ip| {
            let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
            let special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
            !(broadcast || special || is_link_local_unicast(ip))
        })
    }),
    ("cidr", |_, call, args| match args {
        [Value::String(text)] => cidr(text),
        _ => no_overload(call, args),
    }),
    ("isCIDR", |_, call, args| match args {
        [Value::String(text)] => bool_value(parse_cidr(text).is_ok()),
        _ => no_overload(call, args),
    }),
    ("prefixLength", |_, call, args| match args {
        [value] => match cidr_of(value) {
            Some((_, bits)) => Ok(Value::Int(i64::from(bits))),
            None => no_overload(call, args),
        },
        _ => no_overload(call, args),
    }),
    ("masked", |_, call, args| match args {
        [value] => match cidr_of(value) {
            Some((ip, bits)) => Ok(Value::opaque(Opaque::Cidr(masked(ip, bits), bits))),
            None => no_overload(call, args),
        },
        _ => no_overload(call, args),
    }),
    ("containsIP", |_, call, args| {
        let [cidr, other] = args else { return no_overload(call, args) };
        let Some((ip, bits)) = cidr_of(cidr) else { return no_overload(call, args) };
        let other = match other {
            Value::String(text) => parse_ip(text)?,
            other => match ip_of(std::slice::from_ref(other)) {
                Some(other) => other,
                None => return no_overload(call, args),
            },
        };
        bool_value(ip.is_ipv4() == other.is_ipv4() && masked(ip, bits) == masked(other, bits))
    }),
    ("containsCIDR", |_, call, args| {
        let [cidr, other] = args else { return no_overload(call, args) };
        let Some((ip, bits)) = cidr_of(cidr) else { return no_overload(call, args) };
        let (other, other_bits) = match other {
            Value::String(text) => parse_cidr(text).map_err(not_a_cidr)?,
            other => match cidr_of(other) {
                Some(other) => other,
                None => return no_overload(call, args),
            },
        };
        let overlaps = ip.is_ipv4() == other.is_ipv4() && masked(ip, bits) == masked(other, bits);
        bool_value(overlaps && bits <= other_bits)
    }),
];

fn ip_of(args: &[Value<'_>]) -> Option<IpAddr> {
    match args {
        [Value::Opaque(value)] => match &**value {
            Opaque::Ip(ip) => Some(*ip),
            _ => None,
        },
        _ => None,
    }
}

fn cidr_of(value: &Value<'_>) -> Option<(IpAddr, u8)> {
    match value {
        Value::Opaque(value) => match &**value {
            Opaque::Cidr(ip, bits) => Some((*ip, *bits)),
            _ => None,
        },
        _ => None,
    }
}

fn test<'a>(call: &Call, args: &[Value<'a>], holds: fn(IpAddr) -> bool) -> Outcome<'a> {
    match ip_of(args) {
        Some(ip) => bool_value(holds(ip)),
        None => no_overload(call, args),
    }
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_mapped(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

fn parse_ip(text: &str) -> Result<IpAddr, EvalError> {
    let quoted = quote_go(text);
    if let Some((address, zone)) = text.split_once('%')
        && !zone.is_empty()
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(EvalError::failed(format!("IP address {quoted} with zone value is not allowed")));
    }
    let ip: IpAddr = text.parse().map_err(|_| {
        let why = why_no_address(text);
        EvalError::failed(format!("IP Address {quoted} parse error during conversion from string: {why}"))
    })?;
    if is_mapped(&ip) {
        return Err(EvalError::failed(format!("IPv4-mapped IPv6 address {quoted} is not allowed")));
    }
    Ok(ip)
}

/// What Go's `netip.ParseAddr` says of a text that is no address.
fn why_no_address(text: &str) -> String {
    let (why, at) = match text.chars().find(|c| matches!(c, '.' | ':' | '%')) {
        Some('.') => why_no_ipv4(text),
        Some(':') => why_no_ipv6(text),
        Some(_) => ("missing IPv6 address", ""),
        None => ("unable to parse IP", ""),
    };
    let at = if at.is_empty() { String::new() } else { format!(" (at {})", quote_go(at)) };
    format!("ParseAddr({}): {why}{at}", quote_go(text))
}

fn why_no_ipv4(text: &str) -> (&'static str, &str) {
    let (mut value, mut digits, mut dots) = (0u32, 0, 0);
    for (at, c) in text.char_indices() {
        match c.to_digit(10) {
            Some(digit) => {
                if digits == 1 && value == 0 {
                    return ("IPv4 field has octet with leading zero", "");
                }
                value = value * 10 + digit;
                digits += 1;
                if value > 255 {
                    return ("IPv4 field has value >255", "");
                }
            }
            None if c == '.' => {
                if at == 0 || at + 1 == text.len() || text.as_bytes()[at - 1] == b'.' {
                    return ("IPv4 field must have at least one digit", &text[at..]);
                }
                if dots == 3 {
                    return ("IPv4 address too long", "");
                }
                dots += 1;
                (value, digits) = (0, 0);
            }
            None => return ("unexpected character", &text[at..]),
        }
    }
    ("IPv4 address too short", "")
}

fn why_no_ipv6(text: &str) -> (&'static str, &str) {
    let (text, zone) = match text.split_once('%') {
        Some((text, zone)) => (text, Some(zone)),
        None => (text, None),
    };
    if zone == Some("") {
        return ("zone must be a non-empty string", "");
    }
    let mut rest = text;
    let (mut fields, mut ellipsis) = (0, false);
    if let Some(after) = rest.strip_prefix("::") {
        ellipsis = true;
        rest = after;
    }
    while !rest.is_empty() && fields < 8 {
        let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        if end > 4 {
            return ("each group must have 4 or fewer digits", rest);
        }
        if end == 0 {
            return ("each colon-separated field must have at least one digit", rest);
        }
        if rest[end..].starts_with('.') {
            return match (ellipsis, fields) {
                (false, fields) if fields != 6 => {
                    ("embedded IPv4 address must replace the final 2 fields of the address", rest)
                }
                (_, fields) if fields > 6 => {
                    ("too many hex fields to fit an embedded IPv4 at the end of the address", rest)
                }
                _ => (why_no_ipv4(rest).0, rest),
            };
        }
        fields += 1;
        rest = &rest[end..];
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else { return ("unexpected character, want colon", rest) };
        if after.is_empty() {
            return ("colon must be followed by more characters", rest);
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if ellipsis {
                return ("multiple :: in address", rest);
            }
            ellipsis = true;
            rest = after;
        }
    }
    match (rest.is_empty(), ellipsis) {
        (false, _) => ("trailing garbage after address", rest),
        (true, false) => ("address string too short", ""),
        (true, true) => ("the :: must expand to at least one field of zeros", ""),
    }
}

fn not_a_cidr(why: String) -> EvalError {
    EvalError::failed(format!("network address parse error during conversion from string: {why}"))
}

fn cidr<'a>(text: &str) -> Outcome<'a> {
    let (ip, bits) = parse_cidr(text).map_err(not_a_cidr)?;
    Ok(Value::opaque(Opaque::Cidr(ip, bits)))
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), String> {
    let quoted = quote_go(text);
    let wrong = |why: &str| {
        format!(
            "network address parse error during conversion from string: netip.ParsePrefix({quoted}): {why}"
        )
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| wrong("no '/'"))?;
    let ip: IpAddr = address
        .parse()
        .map_err(|_| wrong(&format!("ParseAddr({}): unable to parse IP", quote_go(address))))?;
    // No sign, no leading nought.
    let spelt =
        bits.bytes().all(|digit| digit.is_ascii_digit()) && (bits.len() == 1 || !bits.starts_with('0'));
    let number = bits.parse::<u8>().ok().filter(|_| spelt);
    let Some(number) = number else {
        return Err(wrong(&format!("bad bits after slash: {}", quote_go(bits))));
    };
    if number > if ip.is_ipv4() { 32 } else { 128 } {
        return Err(wrong("prefix length out of range"));
    }
    if is_mapped(&ip) {
        return Err(format!("IPv4-mapped IPv6 address {quoted} is not allowed"));
    }
    Ok((ip, number))
}

fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(u32::from(bits))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(ip) & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(u32::from(bits))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(ip) & mask))
        }
    }
}
