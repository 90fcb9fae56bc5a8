//! `resource.Quantity`: amounts of CPU, memory and the like.
//!
//! Exact to a billionth, capped where upstream caps (2^63-1), and printed in upstream's canonical form, since
//! clients compare what they read back: `1000m` is `1`, `1024Mi` is `1Gi`. Everything that reads an amount,
//! from admission to the kubelet, reads it here.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Format {
    /// Ki, Mi, …
    Binary,
    /// m, k, M, …
    #[default]
    Decimal,
    /// e3
    Exponent,
}

/// Equal and ordered by amount, whatever the form it was written in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Why a text is no quantity, in upstream's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Form,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Amounts are counted in these: a billionth, which is as fine as quantities get.
const NANO: i128 = 1_000_000_000;
/// Upstream caps what does not fit an int64.
const MAX_NANOS: i128 = (i64::MAX as i128) * NANO;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::Decimal };

    pub fn whole(amount: i64) -> Quantity {
        Quantity { nanos: i128::from(amount) * NANO, format: Format::Decimal }
    }

    /// Rounds to billionths, away from zero.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        let text = text.trim();
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::Form);
        }
        let (base, exponent, format) = scale(suffix).ok_or(QuantityError::Suffix)?;

        // digits × 10^-places × base^exponent, all in one integer. More digits than an i128 holds are either
        // beyond the cap or below a billionth.
        let mut digits: i128 = 0;
        let mut places: i32 = 0;
        let mut round_up = false;
        for (at, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
            let after_point = at >= whole.len();
            if digits > i128::MAX / 100 {
                round_up |= digit != b'0';
                // Far beyond the cap already; a text of a gigabyte must not overflow the count.
                places = places.saturating_sub(i32::from(!after_point));
                continue;
            }
            digits = digits * 10 + i128::from(digit - b'0');
            places += i32::from(after_point);
        }
        let mut nanos = digits;
        let mut tens = 9i32.saturating_sub(places);
        if base == 2 {
            nanos = nanos.saturating_mul(1 << exponent);
        } else {
            tens = tens.saturating_add(exponent);
        }
        // Either ends after some forty rounds: an amount of zero, or one at the cap, stays what it is.
        while tens > 0 && nanos != 0 && nanos < MAX_NANOS {
            nanos = nanos.saturating_mul(10);
            tens -= 1;
        }
        while tens < 0 && nanos != 0 {
            round_up |= nanos % 10 != 0;
            nanos /= 10;
            tens += 1;
        }
        if round_up {
            nanos = nanos.saturating_add(1);
        }
        let nanos = nanos.min(MAX_NANOS);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }

    /// From JSON: a string, or a number as YAML writers leave it.
    pub fn from_json(value: &Value) -> Result<Quantity, QuantityError> {
        match value {
            Value::String(text) => Quantity::parse(text),
            Value::Number(number) => Quantity::parse(&number.to_string()),
            _ => Err(QuantityError::Form),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }
    /// No thousandths or smaller: what countable resources require.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }
    /// Thousandths, rounded away from zero.
    pub fn milli(&self) -> i64 {
        saturate(div_up(self.nanos, NANO / 1000))
    }
    /// Whole units, rounded away from zero.
    pub fn value(&self) -> i64 {
        saturate(div_up(self.nanos, NANO))
    }
    pub fn plus(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: (self.nanos + other.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
    pub fn minus(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity { nanos: (self.nanos - other.nanos).clamp(-MAX_NANOS, MAX_NANOS), format }
    }
    /// `self / other` as a number, for ratios of limit to request.
    pub fn ratio(self, other: Quantity) -> f64 {
        self.nanos as f64 / other.nanos as f64
    }
}

fn div_up(amount: i128, by: i128) -> i128 {
    if amount >= 0 { (amount + by - 1) / by } else { -((-amount + by - 1) / by) }
}

fn saturate(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// Base, exponent and the family a suffix belongs to.
fn scale(suffix: &str) -> Option<(i32, i32, Format)> {
    let decimal = |exponent| Some((10, exponent, Format::Decimal));
    let binary = |exponent| Some((2, exponent, Format::Binary));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            // Beyond this everything is capped or rounded anyway.
            Some((10, exponent.clamp(-60, 60), Format::Exponent))
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// The canonical form: no fraction, and the largest suffix that allows it.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::Binary && self.nanos.abs() >= 1024 * NANO {
            let mut mantissa = div_up(self.nanos, NANO);
            let mut times = 0;
            while mantissa % 1024 == 0 && times < 6 {
                mantissa /= 1024;
                times += 1;
            }
            return write!(f, "{mantissa}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][times]);
        }
        let mut mantissa = self.nanos;
        let mut times = 0;
        while mantissa % 1000 == 0 && times < 9 {
            mantissa /= 1000;
            times += 1;
        }
        match (self.format, times) {
            (Format::Exponent, 3) => write!(f, "{mantissa}"),
            (Format::Exponent, _) => write!(f, "{mantissa}e{}", 3 * times as i32 - 9),
            _ => write!(f, "{mantissa}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][times]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_in_one_way() {
        use QuantityError::{Form, Suffix};
        for (given, wanted) in [
            ("0", Ok("0")),
            ("0Ki", Ok("0")),
            ("1", Ok("1")),
            ("+1", Ok("1")),
            (" 1 ", Ok("1")),
            ("-5", Ok("-5")),
            ("-1.5", Ok("-1500m")),
            ("1000m", Ok("1")),
            ("1500m", Ok("1500m")),
            ("0.5", Ok("500m")),
            (".5", Ok("500m")),
            ("1.", Ok("1")),
            ("1000", Ok("1k")),
            ("100000", Ok("100k")),
            ("12345", Ok("12345")),
            ("123456789", Ok("123456789")),
            ("1000000", Ok("1M")),
            ("2000k", Ok("2M")),
            ("1Ki", Ok("1Ki")),
            ("1024Mi", Ok("1Gi")),
            ("1Gi", Ok("1Gi")),
            ("1536Mi", Ok("1536Mi")),
            ("0.5Gi", Ok("512Mi")),
            ("1.5Gi", Ok("1536Mi")),
            ("512", Ok("512")),
            ("0.5Ki", Ok("512")),
            ("1.0001Ki", Ok("1025")),
            ("100Mi", Ok("100Mi")),
            ("1e3", Ok("1e3")),
            ("1E3", Ok("1e3")),
            ("1000e0", Ok("1e3")),
            ("100e-3", Ok("100e-3")),
            ("5n", Ok("5n")),
            ("0.1n", Ok("1n")),
            ("0.0000000001", Ok("1n")),
            ("1e-99", Ok("1e-9")),
            ("1e99", Ok("9223372036854775807")),
            ("1.0000000001", Ok("1000000001n")),
            ("1E", Ok("1E")),
            ("12E", Ok("9223372036854775807")),
            ("99999999999999999999", Ok("9223372036854775807")),
            ("99999999999999999999999999999999999999999999", Ok("9223372036854775807")),
            ("0.00000000000000000000000000000000000000000001", Ok("1n")),
            ("", Err(Form)),
            ("-", Err(Form)),
            ("1.2.3", Err(Form)),
            ("x", Err(Form)),
            ("1 Gi", Err(Suffix)),
            ("1Q", Err(Suffix)),
            ("1X", Err(Suffix)),
            ("1mi", Err(Suffix)),
            ("1mm", Err(Suffix)),
            ("1e", Err(Suffix)),
        ] {
            let printed = Quantity::parse(given).map(|amount| amount.to_string());
            assert_eq!(printed, wanted.map(str::to_owned), "{given:?}");
        }
    }

    #[test]
    fn amounts_are_rounded_away_from_zero() {
        for (text, milli, value) in [
            ("0", 0, 0),
            ("100m", 100, 1),
            ("1.5", 1500, 2),
            ("-1.5", -1500, -2),
            ("1u", 1, 1),
            ("1Ki", 1_024_000, 1024),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("2e3", 2_000_000, 2000),
            ("1E", i64::MAX, 1_000_000_000_000_000_000),
            ("-100E", i64::MIN, -i64::MAX),
        ] {
            let amount = Quantity::parse(text).unwrap();
            assert_eq!((amount.milli(), amount.value()), (milli, value), "{text:?}");
        }
    }

    #[test]
    fn sums_keep_the_format_of_the_first() {
        let sum =
            |a: &str, b: &str| Quantity::parse(a).unwrap().plus(Quantity::parse(b).unwrap()).to_string();
        assert_eq!(sum("1Gi", "1Gi"), "2Gi");
        assert_eq!(sum("0", "1Gi"), "1Gi");
        assert_eq!(sum("500m", "500m"), "1");
    }
}
