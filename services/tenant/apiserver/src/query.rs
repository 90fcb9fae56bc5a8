//! Query parameters, decoded once.

use std::borrow::Cow;

use api_machinery::Status;

/// The parameters of one request, in order. Bounded by the size hyper allows a request line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// From the part of a URL behind `?`. What cannot be percent-decoded to UTF-8 is kept lossily: it will
    /// match nothing.
    pub fn parse(raw: Option<&str>) -> Query {
        let pairs = raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (
                        decode(&key.replace('+', " ")).into_owned(),
                        decode(&value.replace('+', " ")).into_owned(),
                    )
                })
                .collect(),
        )
    }

    /// The first value of `name`; an absent parameter and an empty one differ.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
    /// The first value of `name` unless it is empty, which upstream treats as absent.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
    /// As upstream converts to bool: absent, `false` and `0` (any case) are false, everything else is true.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !(value.eq_ignore_ascii_case("false") || value == "0"))
    }
    /// A whole number, if given. Garbage is the client's fault.
    pub fn int(&self, name: &str) -> Result<Option<i64>, Status> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))
    }
}

/// Percent-decoding. A `%` that starts no escape stays as it is.
pub fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = bytes.get(at + 1..at + 3).and_then(|pair| Some(hex(pair[0])? << 4 | hex(pair[1])?));
        match escape {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// Percent-encodes everything but unreserved characters: good for a path segment and for a query value.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        for (raw, name, wanted) in [
            ("a=b", "a", Some("b")),
            ("labelSelector=app%3Dweb%2Ctier", "labelSelector", Some("app=web,tier")),
            ("x=1+2", "x", Some("1 2")),
            ("x", "x", Some("")),
            ("x=%zz%4", "x", Some("%zz%4")),
            ("y=1", "x", None),
            ("command=a&command=b", "command", Some("a")),
        ] {
            assert_eq!(Query::parse(Some(raw)).get(name), wanted, "{raw}");
        }
    }

    #[test]
    fn flags_read_as_upstream_reads_them() {
        for (raw, wanted) in [
            ("w=true", true),
            ("w=1", true),
            ("w", true),
            ("w=false", false),
            ("w=0", false),
            ("w=False", false),
            ("", false),
        ] {
            assert_eq!(Query::parse(Some(raw)).flag("w"), wanted, "{raw}");
        }
    }
}
