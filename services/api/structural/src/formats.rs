//! `format` of strings: which are known, and what fits them.
//!
//! After `k8s.io/kube-openapi/pkg/validation/strfmt` and what it takes from Go's standard library. Names may
//! be written with or without dashes (`date-time`, `datetime`).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

type Check = fn(&str) -> bool;

/// The check for a format; `None` for one that is not known, which is then not looked at.
pub(crate) fn check(format: &str) -> Option<Check> {
    Some(match format.replace('-', "").as_str() {
        "bsonobjectid" => |text| text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri,
        "email" => is_email,
        "hostname" => is_hostname,
        "ipv4" => is_ipv4,
        "ipv6" => |text| text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr,
        "mac" => is_mac,
        "uuid" => |text| is_uuid(text, None),
        "uuid3" => |text| is_uuid(text, Some('3')),
        "uuid4" => |text| is_uuid(text, Some('4')),
        "uuid5" => |text| is_uuid(text, Some('5')),
        "isbn" => |text| is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10,
        "isbn13" => is_isbn13,
        "creditcard" => is_credit_card,
        "ssn" => |text| text.len() == 11 && matches(&SSN, text),
        "hexcolor" => |text| matches(&HEX_COLOR, text),
        "rgbcolor" => |text| matches(&RGB_COLOR, text),
        "byte" => |text| matches(&BASE64, text),
        "password" => |_| true,
        "date" => is_date,
        "duration" => is_duration,
        "datetime" => is_date_time,
        "k8sshortname" => |text| text.len() <= 63 && api_machinery::validation::is_dns_label(text),
        "k8slongname" => |text| text.len() <= 253 && api_machinery::validation::is_dns_subdomain(text),
        _ => return None,
    })
}

type Lazy = LazyLock<Option<Regex>>;
macro_rules! pattern {
    ($name:ident, $text:literal) => {
        static $name: Lazy = LazyLock::new(|| Regex::new($text).ok());
    };
}
pattern!(
    HOSTNAME,
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
);
pattern!(SSN, r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$");
pattern!(HEX_COLOR, r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
pattern!(
    RGB_COLOR,
    r"^rgb\([ \t\n\f\r]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \t\n\f\r]*,[ \t\n\f\r]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \t\n\f\r]*,[ \t\n\f\r]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \t\n\f\r]*\)$"
);
pattern!(BASE64, r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$");
pattern!(
    CREDIT_CARD,
    r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
);
pattern!(TIME_OF_DAY, r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
pattern!(SCALA_DURATION, r"([0-9]+)[ \t\n\f\r]*([A-Za-zµ]+)");

fn matches(pattern: &Lazy, text: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|part| part.len() <= 63) && matches(&HOSTNAME, text)
}

/// Leading zeros are taken, as Go did before 1.17.
fn sloppy_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then_some(octets.into())
}

fn is_ipv4(text: &str) -> bool {
    sloppy_v4(text).is_some() || (text.contains('.') && text.parse::<Ipv6Addr>().is_ok())
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let longest = if sloppy_v4(address).is_some() {
        32
    } else if address.parse::<Ipv6Addr>().is_ok() {
        128
    } else {
        return false;
    };
    !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && bits.parse::<u32>().is_ok_and(|bits| bits <= longest)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
    if text.len() < 14 {
        return false;
    }
    let (separator, digits) = match text.as_bytes() {
        [_, _, separator @ (b':' | b'-'), ..] => (char::from(*separator), 2),
        [_, _, _, _, b'.', ..] => ('.', 4),
        _ => return false,
    };
    let mut bytes = 0;
    for part in text.split(separator) {
        if !hex(part, digits) {
            return false;
        }
        bytes += digits / 2;
    }
    matches!(bytes, 6 | 8 | 20)
}

/// Dashes where they belong, or not.
fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut rest = text;
    let mut digits = String::with_capacity(32);
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(part) = rest.get(..length).filter(|part| part.bytes().all(|b| b.is_ascii_hexdigit())) else {
            return false;
        };
        digits.push_str(part);
        rest = &rest[length..];
    }
    let at = |index: usize| digits.as_bytes().get(index).map(|&b| char::from(b).to_ascii_lowercase());
    rest.is_empty()
        && match version {
            None => true,
            Some('3') => at(12) == Some('3'),
            Some(version) => at(12) == Some(version) && at(16).is_some_and(|c| "89ab".contains(c)),
        }
}

fn without_spaces(text: &str) -> Vec<u8> {
    text.bytes().filter(|b| !matches!(b, b' ' | b'\t' | b'\n' | 0x0c | b'\r' | b'-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = without_spaces(text);
    let [first @ .., last] = digits.as_slice() else { return false };
    if first.len() != 9 || !first.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let last = match last {
        b'X' => 10,
        b'0'..=b'9' => u32::from(last - b'0'),
        _ => return false,
    };
    let sum: u32 = (1..).zip(first).map(|(weight, digit)| weight * u32::from(digit - b'0')).sum();
    (sum + 10 * last).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let digits = without_spaces(text);
    if digits.len() != 13 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let weighted = digits
        .iter()
        .enumerate()
        .map(|(index, digit)| u32::from(digit - b'0') * if index % 2 == 0 { 1 } else { 3 });
    weighted.sum::<u32>().is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !matches(&CREDIT_CARD, &digits) {
        return false;
    }
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(index, digit)| {
            let digit = u32::from(digit - b'0') * if index % 2 == 1 { 2 } else { 1 };
            digit / 10 + digit % 10
        })
        .sum();
    sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shaped = bytes.len() == 10
        && bytes.iter().enumerate().all(|(index, b)| match index {
            4 | 7 => *b == b'-',
            _ => b.is_ascii_digit(),
        });
    shaped && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(found) = TIME_OF_DAY.as_ref().and_then(|pattern| pattern.captures(time)) else {
        return false;
    };
    // Two digits each, so that text compares as numbers do.
    text.len() >= 4 && is_date(date) && &found[1] <= "23" && &found[2] <= "59" && &found[3] <= "59"
}

/// Go's `time.ParseDuration`, or words as Scala has them (`3 days`).
fn is_duration(text: &str) -> bool {
    go_duration(text) || scala_duration(text)
}

fn go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    let mut total_ns = 0.0;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (number, after) = rest.split_at(digits);
        if number.matches('.').count() > 1 || !number.bytes().any(|b| b.is_ascii_digit()) {
            return false;
        }
        let unit_end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit_ns = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return false,
        };
        // What doesn't fit a signed count of nanoseconds is no duration.
        total_ns += number.parse::<f64>().unwrap_or(f64::INFINITY) * unit_ns;
        if total_ns > 9_223_372_036_854_775_807.0 {
            return false;
        }
        rest = after;
    }
    true
}

fn scala_duration(text: &str) -> bool {
    const UNITS: [&[&str]; 8] = [
        &["ns", "nano"],
        &["us", "µs", "micro"],
        &["ms", "milli"],
        &["s", "sec"],
        &["m", "min"],
        &["h", "hr", "hour"],
        &["d", "day"],
        &["w", "wk", "week"],
    ];
    let Some(pattern) = SCALA_DURATION.as_ref() else { return false };
    let mut found = false;
    for part in pattern.captures_iter(text) {
        if part[1].parse::<i64>().is_err() {
            return false;
        }
        let unit = part[2].to_lowercase();
        found |= UNITS.iter().any(|names| {
            names.contains(&unit.as_str()) || names.last().is_some_and(|longest| unit.starts_with(longest))
        });
    }
    found
}

/// Go's `url.ParseRequestURI`: an absolute path, or a URI with a scheme.
pub(crate) fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = scheme(text) else { return false };
    let rest = rest.split('?').next().unwrap_or_default();
    if !rest.starts_with('/') {
        // `mailto:someone`; what follows is not looked into.
        return !scheme.is_empty();
    }
    match rest.strip_prefix("//") {
        Some(authority) if !scheme.is_empty() => {
            let end = authority.find('/').unwrap_or(authority.len());
            is_authority(&authority[..end]) && are_escapes_whole(&authority[end..])
        }
        _ => are_escapes_whole(rest),
    }
}

/// `None` where a URL starts with a colon.
pub(crate) fn scheme(text: &str) -> Option<(&str, &str)> {
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return None,
            b':' => return Some((&text[..index], &text[index + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

fn are_escapes_whole(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.all(|part| part.get(..2).is_some_and(|two| two.bytes().all(|b| b.is_ascii_hexdigit())))
}

fn is_authority(authority: &str) -> bool {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user_fine = user.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b));
    let port_fine = |port: &str| {
        port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()))
    };
    let (name, port) = match host.strip_prefix('[') {
        Some(inside) => match inside.rsplit_once(']') {
            Some(parts) => parts,
            None => return false,
        },
        None => host.rfind(':').map_or((host, ""), |colon| host.split_at(colon)),
    };
    let allowed =
        |b: u8| !b.is_ascii() || b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"%".contains(&b);
    user_fine && port_fine(port) && name.bytes().all(allowed) && are_escapes_whole(name)
}

/// Go's `mail.ParseAddress`, without comments and encoded words: `a@b` or `Name <a@b>`.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let address = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((name, address)) => {
            let name = name.trim_matches([' ', '\t']);
            let quoted = name.len() >= 2 && name.starts_with('"') && name.ends_with('"');
            let words = |name: &str| name.split([' ', '\t']).all(|word| word.is_empty() || is_dot_atom(word));
            if !quoted && !words(name) {
                return false;
            }
            address
        }
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let quoted = local.len() >= 2
        && local.starts_with('"')
        && local.ends_with('"')
        && !local[1..local.len() - 1].contains(['"', '\\', '\n', '\r']);
    let literal = domain.strip_prefix('[').and_then(|domain| domain.strip_suffix(']'));
    let domain_fine = match literal {
        Some(address) => {
            let v6 = address.strip_prefix("IPv6:").unwrap_or(address);
            address.parse::<Ipv4Addr>().is_ok() || v6.parse::<Ipv6Addr>().is_ok()
        }
        None => is_dot_atom(domain),
    };
    (quoted || is_dot_atom(local)) && domain_fine
}

fn is_dot_atom(text: &str) -> bool {
    let allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    text.split('.').all(|part| !part.is_empty() && part.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_tell_what_fits() {
        for (format, fine, wrong) in [
            ("date", vec!["2006-01-02", "2024-02-29"], vec!["2006-1-2", "2023-02-29", "2006-01-02T"]),
            (
                "date-time",
                vec!["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20+02:00"],
                vec!["2014-12-15 19:30:20Z", "2014-12-15T24:30:20Z", "2014-12-15T19:30:20", ""],
            ),
            ("duration", vec!["22 ns", "1h3m", "-1.5h", "3 days", "0", "2 weeks"], vec!["", "x", "1", "1y"]),
            (
                "uri",
                vec!["/a", "https://a.b:80/c?d", "mailto:a@b", "http://[::1]:80/"],
                vec!["a", "", "http://a b/", "http://a:x/", "/%zz", ":a"],
            ),
            ("email", vec!["a@b.c", "Some One <a@b>", "\"a b\"@c"], vec!["a", "a@", "@b", "a@b@c", "a..b@c"]),
            ("hostname", vec!["a", "a.example.com", "1a"], vec!["-a", "a_b", "", "a.b.c1"]),
            ("ipv4", vec!["1.2.3.4", "01.2.3.4"], vec!["1.2.3", "::1", "1.2.3.256"]),
            ("ipv6", vec!["::1", "::ffff:1.2.3.4"], vec!["1.2.3.4", ":::", "fe80::1%eth0"]),
            ("cidr", vec!["10.0.0.0/8", "::/0"], vec!["10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1"]),
            (
                "mac",
                vec!["01:23:45:67:89:ab", "01-23-45-67-89-ab-cd-ef", "0123.4567.89ab"],
                vec!["01:23:45", "01:23-45:67:89:ab", "0123456789ab"],
            ),
            (
                "uuid",
                vec!["123e4567-e89b-12d3-a456-426655440000", "123E4567E89B12D3A456426655440000"],
                vec!["123e4567-e89b-12d3-a456-42665544000", "x23e4567-e89b-12d3-a456-426655440000"],
            ),
            (
                "uuid4",
                vec!["025b0d74-00a2-4048-bf57-227c5111bb34"],
                vec!["025b0d74-00a2-3048-bf57-227c5111bb34"],
            ),
            ("isbn", vec!["0321751043", "978-0321751041"], vec!["0321751042", "978-0321751042"]),
            ("creditcard", vec!["4111-1111-1111-1111"], vec!["4111-1111-1111-1112"]),
            ("ssn", vec!["111-11-1111"], vec!["111111111", "11-111-1111"]),
            ("hexcolor", vec!["#FFF", "ffffff"], vec!["#ff", "ggg"]),
            ("rgbcolor", vec!["rgb(255, 0,1)"], vec!["rgb(256,0,1)", "rgb(1,2)"]),
            ("byte", vec!["aGVsbG8="], vec!["", "a", "aGVsbG8"]),
            ("bsonobjectid", vec!["507f1f77bcf86cd799439011"], vec!["507f1f77"]),
            ("k8s-short-name", vec!["a-b"], vec!["A", "a.b"]),
            ("k8s-long-name", vec!["a-b.c"], vec!["a..b"]),
            ("password", vec![""], vec![]),
        ] {
            let check = check(format).unwrap_or_else(|| panic!("{format}"));
            fine.iter().for_each(|text| assert!(check(text), "{format} {text}"));
            wrong.iter().for_each(|text| assert!(!check(text), "{format} {text}"));
        }
        assert!(check("int-or-string").is_none());
    }

    proptest::proptest! {
        #[test]
        fn any_text_fits_or_not(text in ".{0,40}", close in "[-0-9a-fA-FTZ:+./@<>\\[\\]% nsmhµ]{0,40}") {
            for format in [
                "bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid5", "isbn",
                "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "date", "duration", "datetime",
                "k8s-short-name", "k8s-long-name",
            ] {
                let check = check(format).expect("a known format");
                check(&text);
                check(&close);
            }
        }
    }
}
