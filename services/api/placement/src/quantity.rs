//! Kubernetes quantities (`100m`, `1.5Gi`, `2e3`), exact enough for accounting.

use std::fmt;

/// An amount in thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    milli: i128,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a quantity: {0:?}")]
pub struct QuantityError(String);

impl Quantity {
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        let wrong = || QuantityError(text.chars().take(64).collect());
        let number = text.trim();
        let end = number.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(number.len());
        let (digits, suffix) = number.split_at(end);
        let negative = digits.starts_with('-');
        let digits = digits.trim_start_matches(['+', '-']);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        // 18 digits of each are beyond anything a cluster counts, and keep the arithmetic below in range.
        if digits.is_empty() || whole.len() > 18 || (whole.is_empty() && fraction.is_empty()) {
            return Err(wrong());
        }
        let fraction = &fraction[..fraction.len().min(12)];
        let parse =
            |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<i128>().map_err(|_| wrong()) };
        let scale = 10i128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
        let value = parse(whole)?.checked_mul(scale).ok_or_else(wrong)? + parse(fraction)?;
        // value/scale × multiplier × 1000, rounded up as upstream rounds.
        let (times, divided) = multiplier(suffix).ok_or_else(wrong)?;
        let product = value.checked_mul(times).and_then(|one| one.checked_mul(1000)).ok_or_else(wrong)?;
        let by = scale.checked_mul(divided).ok_or_else(wrong)?;
        let milli = (product + by - 1).div_euclid(by);
        Ok(Quantity { milli: if negative { -milli } else { milli } })
    }
    pub fn milli(&self) -> i64 {
        i64::try_from(self.milli).unwrap_or(i64::MAX)
    }
    /// Whole units, rounded up.
    pub fn value(&self) -> i64 {
        i64::try_from((self.milli + 999).div_euclid(1000)).unwrap_or(i64::MAX)
    }
    pub fn from_milli(milli: i64) -> Quantity {
        Quantity { milli: i128::from(milli) }
    }
    pub fn from_value(value: i64) -> Quantity {
        Quantity { milli: i128::from(value) * 1000 }
    }
    pub fn plus(self, other: Quantity) -> Quantity {
        Quantity { milli: self.milli.saturating_add(other.milli) }
    }
}

/// What a suffix multiplies and divides by.
fn multiplier(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1i128 << (10 * power), 1));
    let decimal = |power: u32| Some((10i128.pow(power), 1));
    match suffix {
        "" => decimal(0),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            match power {
                0..=18 => decimal(power.unsigned_abs()),
                -9..0 => Some((1, 10i128.pow(power.unsigned_abs()))),
                _ => None,
            }
        }
    }
}

impl fmt::Display for Quantity {
    /// Plain units, or thousandths with `m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli % 1000 == 0 { write!(f, "{}", self.milli / 1000) } else { write!(f, "{}m", self.milli) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_written() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("1.5", Some(1500)),
            (".5", Some(500)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("2e3", Some(2_000_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("1u", Some(1)),
            ("-1", Some(-1000)),
            ("12E2", Some(1_200_000)),
            ("", None),
            ("m", None),
            ("1x", None),
            ("1.2.3", None),
            ("9999999999999999999999", None),
            ("1e99", None),
        ] {
            assert_eq!(Quantity::parse(text).ok().map(|one| one.milli), wanted, "{text:?}");
        }
    }
}
