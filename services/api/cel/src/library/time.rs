//! Moments and durations: reading and writing them as Go does, and their parts.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Body, no_overload};
use crate::eval::{EvalError, Outcome};
use crate::value::{Time, Value};

/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z: no moment is outside.
pub(crate) const MIN_SECONDS: i64 = -62_135_596_800;
const MAX_SECONDS: i64 = 253_402_300_799;

const NANOS: i128 = 1_000_000_000;

pub(super) const BODIES: &[(&str, Body)] = &[
    ("getFullYear", |_, call, args| moment(call, args, |at| at.year)),
    ("getMonth", |_, call, args| moment(call, args, |at| at.month - 1)),
    ("getDayOfYear", |_, call, args| {
        moment(call, args, |at| at.days - days(at.year, 1, 1).unwrap_or(at.days))
    }),
    ("getDayOfMonth", |_, call, args| moment(call, args, |at| at.day - 1)),
    ("getDate", |_, call, args| moment(call, args, |at| at.day)),
    // 1970 began on a Thursday.
    ("getDayOfWeek", |_, call, args| moment(call, args, |at| (at.days + 4).rem_euclid(7))),
    ("getHours", |_, call, args| match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 3_600_000_000_000)),
        _ => moment(call, args, |at| at.second / 3600),
    }),
    ("getMinutes", |_, call, args| match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 60_000_000_000)),
        _ => moment(call, args, |at| at.second / 60 % 60),
    }),
    ("getSeconds", |_, call, args| match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000_000)),
        _ => moment(call, args, |at| at.second % 60),
    }),
    ("getMilliseconds", |_, call, args| match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000)),
        _ => moment(call, args, |at| at.nanos / 1_000_000),
    }),
];

/// A moment as calendar and clock show it somewhere.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    /// Since 1970.
    days: i64,
    /// Of the day.
    second: i64,
    nanos: i64,
}

impl Civil {
    fn at(time: &Time, offset_seconds: i32) -> Civil {
        let local = time.seconds + i64::from(offset_seconds);
        let (days, second) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        // The reverse of the function `days`: counted from March, in eras of 400 years.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = year_of_era + era * 400 + next_year;
        Civil { year, month, day, days, second, nanos: i64::from(time.nanos) }
    }
}

fn moment<'a>(call: &crate::plan::Call, args: &[Value<'a>], part: fn(&Civil) -> i64) -> Outcome<'a> {
    let (time, offset) = match args {
        // Without a zone, UTC: not the offset that the moment was written in.
        [Value::Timestamp(time)] => (time, 0),
        [Value::Timestamp(time), Value::String(zone)] => (time, offset_in(zone, time)?),
        _ => return no_overload(call, args),
    };
    Ok(Value::Int(part(&Civil::at(time, offset))))
}

/// Seconds that clocks of a zone are ahead at a moment.
fn offset_in(zone: &str, time: &Time) -> Result<i32, EvalError> {
    let unknown = || EvalError::failed(format!("unknown time zone {zone}"));
    let Some((hours, minutes)) = zone.split_once(':') else {
        if matches!(zone, "" | "UTC") {
            return Ok(0);
        }
        let zone = TimeZone::get(zone).map_err(|_| unknown())?;
        // The last days of the year 9999 are beyond the library; rules of zones end long before.
        let seconds = time.seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let stamp = Timestamp::from_second(seconds).map_err(|_| unknown())?;
        return Ok(zone.to_offset(stamp).seconds());
    };
    let number = |text: &str| {
        text.parse::<i32>().map_err(|_| {
            EvalError::failed(format!(
                "strconv.Atoi: parsing {}: invalid syntax",
                crate::value::quote_go(text)
            ))
        })
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minutes = if zone.starts_with('-') { -minutes } else { minutes };
    let seconds = hours
        .checked_mul(60)
        .and_then(|hours| hours.checked_add(minutes))
        .and_then(|sum| sum.checked_mul(60));
    // Upstream takes any number of hours; a thousand years of them is enough.
    seconds.ok_or_else(unknown)
}

/// None outside of the years 1 to 9999.
pub(crate) fn at(seconds: i64, nanos: u32, offset_seconds: i32) -> Option<Time> {
    (MIN_SECONDS..=MAX_SECONDS).contains(&seconds).then_some(Time { seconds, nanos, offset_seconds })
}

/// Since 1970.
pub(crate) fn nanos(time: &Time) -> i128 {
    i128::from(time.seconds) * NANOS + i128::from(time.nanos)
}

pub(crate) fn shift(time: &Time, by: i128) -> Option<Time> {
    let total = nanos(time) + by;
    let seconds = i64::try_from(total.div_euclid(NANOS)).ok()?;
    at(seconds, u32::try_from(total.rem_euclid(NANOS)).ok()?, time.offset_seconds)
}

struct Digits<'t>(&'t [u8]);

impl Digits<'_> {
    fn number(&mut self, count: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        head.iter()
            .try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
    }
    fn sign(&mut self, signs: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        signs.contains(first).then_some(*first)
    }
    /// Of a second; no digits beyond a billionth.
    fn fraction(&mut self) -> Option<u32> {
        let count = self.0.iter().take_while(|digit| digit.is_ascii_digit()).count();
        let mut nanos = 0;
        for at in 0..9 {
            nanos = nanos * 10 + if at < count { u32::from(self.0[at] - b'0') } else { 0 };
        }
        self.0 = &self.0[count..];
        (count > 0).then_some(nanos)
    }
}

fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    if !(1..=length).contains(&day) {
        return None;
    }
    // Counted from March, so that the odd day comes last.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    Some(
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468,
    )
}

/// `2006-01-02T15:04:05.999999999Z07:00`.
pub(crate) fn parse_rfc3339(text: &str) -> Option<Time> {
    parse(text, b"T", false)
}

/// As the format `date-time` of OpenAPI takes it: a space or small letters will do, and no zone is UTC.
pub(crate) fn parse_open_api_date_time(text: &str) -> Option<Time> {
    if text.is_empty() {
        return at(0, 0, 0);
    }
    parse(text, b"Tt ", true)
}

/// `2006-01-02`.
pub(crate) fn parse_date(text: &str) -> Option<Time> {
    let mut rest = Digits(text.as_bytes());
    let date = date(&mut rest)?;
    rest.0.is_empty().then(|| at(date * 86_400, 0, 0))?
}

fn date(rest: &mut Digits<'_>) -> Option<i64> {
    let year = rest.number(4)?;
    rest.sign(b"-")?;
    let month = rest.number(2)?;
    rest.sign(b"-")?;
    let day = rest.number(2)?;
    days(year, month, day)
}

fn parse(text: &str, separators: &[u8], lenient: bool) -> Option<Time> {
    let mut rest = Digits(text.as_bytes());
    let date = date(&mut rest)?;
    rest.sign(separators)?;
    let hour = rest.number(2)?;
    rest.sign(b":")?;
    let minute = rest.number(2)?;
    let mut second = 0;
    if !lenient || rest.0.first() == Some(&b':') {
        rest.sign(b":")?;
        second = rest.number(2)?;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut nanos = 0;
    if matches!(rest.0.first(), Some(b'.' | b',')) {
        rest.sign(b".,")?;
        nanos = rest.fraction()?;
    }
    let offset = match rest.0.first() {
        None if lenient => 0,
        Some(b'Z') | Some(b'z') if rest.0.len() == 1 && (lenient || rest.0[0] == b'Z') => {
            rest.0 = &[];
            0
        }
        _ => {
            let sign = rest.sign(b"+-")?;
            let hours = rest.number(2)?;
            if !lenient || rest.0.first() == Some(&b':') {
                rest.sign(b":")?;
            }
            let minutes = rest.number(2)?;
            if hours > 24 || minutes > 60 {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            if sign == b'-' { -seconds } else { seconds }
        }
    };
    if !rest.0.is_empty() {
        return None;
    }
    let seconds = date * 86_400 + hour * 3600 + minute * 60 + second - offset;
    at(seconds, nanos, i32::try_from(offset).ok()?)
}

/// In RFC 3339, with as many digits of a second as there are, in the offset it was written in.
pub(crate) fn format(time: &Time) -> String {
    let Civil { year, month, day, second, .. } = Civil::at(time, time.offset_seconds);
    let mut text = format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    );
    if time.nanos != 0 {
        let fraction = format!("{:09}", time.nanos);
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    if time.offset_seconds == 0 {
        text.push('Z');
    } else {
        let sign = if time.offset_seconds < 0 { '-' } else { '+' };
        let minutes = time.offset_seconds.abs() / 60;
        text.push_str(&format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60));
    }
    text
}

/// Seconds, as `string()` writes durations: "90s", "0.5s".
pub(crate) fn format_duration(nanos: i64) -> String {
    format!("{}s", nanos as f64 / 1e9)
}

/// As Go's `time.ParseDuration`: "1h30m", "-1.5s".
pub(crate) fn parse_go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(amount(number, unit)?)?;
        if total > i128::from(i64::MAX) + 1 {
            return None;
        }
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

fn amount(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<i64>().ok()?.into() };
    let mut sum = whole.checked_mul(unit)?;
    let mut scale = unit * NANOS;
    let mut parts: i128 = 0;
    for digit in fraction.bytes() {
        scale /= 10;
        parts += i128::from(digit - b'0') * scale;
    }
    sum += parts / NANOS;
    Some(sum)
}

/// As the format `duration` of OpenAPI: Go's, or a number and a word ("3 days").
/// Source: `k8s.io/kube-openapi/pkg/validation/strfmt/duration.go`.
pub(crate) fn parse_open_api_duration(text: &str) -> Option<i64> {
    if let Some(nanos) = parse_go_duration(text) {
        return Some(nanos);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "ns" | "nano" | "nanos" => 1.0,
        "us" | "µs" | "micro" | "micros" => 1e3,
        "ms" | "milli" | "millis" => 1e6,
        "s" | "sec" | "secs" | "second" | "seconds" => 1e9,
        "m" | "min" | "mins" | "minute" | "minutes" => 6e10,
        "h" | "hr" | "hour" | "hours" => 3.6e12,
        "d" | "day" | "days" => 8.64e13,
        "w" | "wk" | "week" | "weeks" => 6.048e14,
        _ => return None,
    };
    let nanos = number * unit;
    (nanos < 9.2e18).then_some(nanos as i64)
}
