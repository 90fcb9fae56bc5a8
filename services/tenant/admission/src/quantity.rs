//! `resource.Quantity`: amounts of CPU, memory and the like.
//!
//! Exact to a billionth, capped where upstream caps (2^63-1), and printed in upstream's canonical form, since
//! clients compare what they read back: `1000m` is `1`, `1024Mi` is `1Gi`.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Ki, Mi, …
    Binary,
    /// m, k, M, …
    Decimal,
    /// e3
    Exponent,
}

#[derive(Debug, Clone, Copy)]
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

const NANO: i128 = 1_000_000_000;
const MAX_NANOS: i128 = (i64::MAX as i128) * NANO;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::Decimal };

    pub fn whole(amount: i64) -> Quantity {
        Quantity { nanos: i128::from(amount) * NANO, format: Format::Decimal }
    }

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
        let (format, base, exponent) = suffix_of(suffix)?;
        // digits * 10^-len(fraction) * base^exponent, in billionths, rounded away from zero.
        let mut digits: i128 = 0;
        let mut scale: i32 = 0;
        let mut dropped = false;
        for (at, c) in whole.bytes().chain(fraction.bytes()).enumerate() {
            if digits > i128::MAX / 1_000_000_000_000_000 {
                // More digits than can matter: whole ones still count as zeros, fractions only round.
                if at < whole.len() {
                    digits = i128::MAX / 100;
                } else {
                    dropped |= c != b'0';
                }
                continue;
            }
            digits = digits * 10 + i128::from(c - b'0');
            scale += i32::from(at >= whole.len());
        }
        let mut nanos = digits;
        let ten_power;
        if base == 2 {
            nanos = nanos.saturating_mul(1i128 << (10 * exponent));
            ten_power = 9 - scale;
        } else {
            ten_power = 9 - scale + exponent;
        }
        if ten_power >= 0 {
            nanos = nanos.saturating_mul(10i128.checked_pow(ten_power.unsigned_abs()).unwrap_or(i128::MAX));
        } else {
            let divisor = 10i128.checked_pow(ten_power.unsigned_abs()).unwrap_or(i128::MAX);
            dropped |= nanos % divisor != 0;
            nanos /= divisor;
        }
        nanos = (nanos + i128::from(dropped && nanos < MAX_NANOS)).min(MAX_NANOS);
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
    pub fn milli(&self) -> i64 {
        i64::try_from(div_up(self.nanos, NANO / 1000)).unwrap_or(i64::MAX)
    }
    /// Rounded up.
    pub fn value(&self) -> i64 {
        i64::try_from(div_up(self.nanos, NANO)).unwrap_or(i64::MAX)
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

fn suffix_of(suffix: &str) -> Result<(Format, u32, i32), QuantityError> {
    Ok(match suffix {
        "" => (Format::Decimal, 10, 0),
        "n" => (Format::Decimal, 10, -9),
        "u" => (Format::Decimal, 10, -6),
        "m" => (Format::Decimal, 10, -3),
        "k" => (Format::Decimal, 10, 3),
        "M" => (Format::Decimal, 10, 6),
        "G" => (Format::Decimal, 10, 9),
        "T" => (Format::Decimal, 10, 12),
        "P" => (Format::Decimal, 10, 15),
        "E" => (Format::Decimal, 10, 18),
        "Ki" => (Format::Binary, 2, 1),
        "Mi" => (Format::Binary, 2, 2),
        "Gi" => (Format::Binary, 2, 3),
        "Ti" => (Format::Binary, 2, 4),
        "Pi" => (Format::Binary, 2, 5),
        "Ei" => (Format::Binary, 2, 6),
        other => {
            let digits = other.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let exponent: i32 = digits.parse().map_err(|_| QuantityError::Suffix)?;
            // Beyond this everything is zero or the cap; the bound keeps the arithmetic small.
            (Format::Exponent, 10, exponent.clamp(-40, 30))
        }
    })
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

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let below_ki = self.nanos.abs() < 1024 * NANO;
        if self.format == Format::Binary && !below_ki {
            let mut amount = div_up(self.nanos, NANO);
            let mut suffix = 0;
            while amount % 1024 == 0 && suffix < 6 {
                amount /= 1024;
                suffix += 1;
            }
            return write!(f, "{amount}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][suffix]);
        }
        let mut mantissa = self.nanos;
        let mut exponent = -9i32;
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent += 1;
        }
        while exponent.rem_euclid(3) != 0 || exponent > 18 {
            mantissa *= 10;
            exponent -= 1;
        }
        if self.format == Format::Exponent {
            return if exponent == 0 { write!(f, "{mantissa}") } else { write!(f, "{mantissa}e{exponent}") };
        }
        let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let at = usize::try_from((exponent + 9) / 3).unwrap_or(0);
        write!(f, "{mantissa}{}", suffix[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_print_in_canonical_form() {
        for (given, wanted) in [
            ("0", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1.", "1"),
            ("1024Mi", "1Gi"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("1536Mi", "1536Mi"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("1e3", "1e3"),
            ("100e-3", "100e-3"),
            ("12E", "9223372036854775807"),
            ("-5", "-5"),
            ("0.0000000001", "1n"),
            ("123456789", "123456789"),
            ("100Mi", "100Mi"),
            ("2000k", "2M"),
            ("99999999999999999999999999999999999999999999", "9223372036854775807"),
        ] {
            assert_eq!(Quantity::parse(given).map(|q| q.to_string()), Ok(wanted.to_owned()), "{given:?}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for (given, wanted) in [
            ("", QuantityError::Form),
            ("x", QuantityError::Form),
            ("1.2.3", QuantityError::Form),
            ("1X", QuantityError::Suffix),
            ("1mi", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1 Gi", QuantityError::Suffix),
        ] {
            assert_eq!(Quantity::parse(given).err(), Some(wanted), "{given:?}");
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
