//! `timeouts = { create = "10m" }`: how long a person is willing to wait.

use std::time::Duration;

use jiff::SignedDuration;

use crate::schema::Attribute;
use crate::value::{Object, Value};

const NAME: &str = "timeouts";

/// Longer than anything takes, short enough not to overflow a clock.
const MOST: Duration = Duration::from_secs(7 * 24 * 3600);

pub fn attribute() -> Attribute {
    let one = |name, description| Attribute::text(name, description);
    Attribute::single(
        NAME,
        "How long to wait for what was asked for, like `10m` or `1h30m`. What is going on goes on after that.",
        vec![
            one("create", "For the making."),
            one("update", "For changes in place."),
            one("delete", "For the removal."),
        ],
    )
    .checked(check)
}

fn check(value: &Value) -> Result<(), String> {
    let Value::Map(items) = value else { return Ok(()) };
    for (name, value) in items {
        if let Value::Text(text) = value {
            parse(text).ok_or_else(|| {
                format!(
                    "{name} = {text:?} is no length of time from 1s to 7 days; \"90s\" and \"1h30m\" are."
                )
            })?;
        }
    }
    Ok(())
}

/// What an object says about `verb` (create, update or delete).
pub fn of(object: Option<&Object>, verb: &str) -> Option<Duration> {
    parse(object?.object(NAME)?.text(verb)?)
}

fn parse(text: &str) -> Option<Duration> {
    let parsed: SignedDuration = text.parse().ok()?;
    let length = Duration::try_from(parsed).ok()?;
    (length >= Duration::from_secs(1) && length <= MOST).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, seconds) in [
            ("10m", Some(600)),
            ("90s", Some(90)),
            ("1h30m", Some(5400)),
            ("0s", None),
            ("-1m", None),
            ("10", None),
            ("", None),
            ("forever", None),
            ("99999999999999h", None),
            ("8000h", None),
        ] {
            let object = Object::default().with(NAME, Object::default().with("create", text));
            assert_eq!(of(Some(&object), "create").map(|length| length.as_secs()), seconds, "{text:?}");
            assert_eq!(check(object.get(NAME)).is_ok(), seconds.is_some(), "{text:?}");
            assert_eq!(of(Some(&object), "delete"), None);
        }
        assert_eq!(of(Some(&Object::default()), "create"), None);
    }
}
