//! Kubernetes quantities as numbers: `1500m`, `64Mi`, `2e3`.
//!
//! Exact in thousandths, which is the finest step that cpu and memory know on a node. Not here: printing
//! them back in canonical form, which is the API server's business.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The quantity in thousandths, rounded up; `None` when it is no quantity. Saturates far beyond any machine.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    parse_milli(&quantity.0)
}

/// The quantity in whole units, rounded up.
pub fn whole(quantity: &Quantity) -> Option<i64> {
    milli(quantity).map(|milli| milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) != 0))
}

fn parse_milli(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (units, fraction) = number.split_once('.').unwrap_or((number, ""));
    let only_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    // 18 digits and the largest suffix still fit into 128 bits.
    let sane = (units.len() + fraction.len()) > 0 && units.len() <= 18 && fraction.len() <= 18;
    if !sane || !only_digits(units) || !only_digits(fraction) {
        return None;
    }
    let mantissa: i128 = format!("{units}{fraction}").parse().ok()?;
    // The value is mantissa * up / down units.
    let (up, down) = scale(suffix)?;
    let down = down * 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled = mantissa.checked_mul(up)?.checked_mul(1000)?;
    let rounded_up = scaled / down + i128::from(scaled % down != 0);
    let value = i64::try_from(rounded_up).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    let scale = match suffix {
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "" => (1, 1),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let ten = 10_i128.pow(u32::try_from(power.abs()).ok().filter(|power| *power <= 18)?);
            if power < 0 { (1, ten) } else { (ten, 1) }
        }
    };
    Some(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, milli_units) in [
            ("0", Some(0)),
            ("100m", Some(100)),
            ("1500m", Some(1500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("1.", Some(1000)),
            ("2", Some(2000)),
            ("64Mi", Some((64 << 20) * 1000)),
            ("1.5Gi", Some((3 << 29) * 1000)),
            ("1k", Some(1_000_000)),
            ("2e3", Some(2_000_000)),
            ("2E-3", Some(2)),
            ("100n", Some(1)),
            ("-1", Some(-1000)),
            ("20E", Some(i64::MAX)),
            ("", None),
            ("m", None),
            ("1x", None),
            ("1.2.3", None),
            ("--1", None),
            ("9999999999999999999999", None),
        ] {
            assert_eq!(parse_milli(text), milli_units, "{text:?}");
        }
        assert_eq!(whole(&Quantity("1500m".into())), Some(2));
    }
}
