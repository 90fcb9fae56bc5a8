//! Quantities in their canonical form.
//!
//! `1000m` and `1` are one quantity, and upstream's decoder makes the shorter of both of it. Stored text is
//! canonical, so that equal objects are equal bytes and clients read back what upstream would give.

/// Amounts are counted in these: a billionth, which is as fine as quantities get.
const NANO: i128 = 1_000_000_000;

/// Upstream caps what doesn't fit an int64.
const MAX: i128 = i64::MAX as i128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Binary,
    Decimal,
    Exponent,
}

/// The canonical text of a quantity; `Err` with upstream's words for what is none.
pub fn canonical_quantity(text: &str) -> Result<String, &'static str> {
    let (amount, format) = parse(text)?;
    Ok(print(amount, format))
}

const WRONG_FORM: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const WRONG_SUFFIX: &str = "unable to parse quantity's suffix";

/// In billionths, rounded away from zero.
fn parse(text: &str) -> Result<(i128, Format), &'static str> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        Some(_) => (false, text),
        None => return Err(WRONG_FORM),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(WRONG_FORM);
    }
    let (base, exponent, format) = scale(suffix).ok_or(WRONG_SUFFIX)?;

    // digits × 10^-fraction.len() × base^exponent, all in one integer. More digits than an i128 holds are
    // either beyond the cap or below a billionth.
    let mut digits: i128 = 0;
    let mut places: i32 = 0;
    let mut lost = false;
    for (at, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let after_point = at >= whole.len();
        if digits > i128::MAX / 100 {
            lost |= digit != b'0';
            places -= i32::from(!after_point);
            continue;
        }
        digits = digits * 10 + i128::from(digit - b'0');
        places += i32::from(after_point);
    }
    let mut round_up = lost;
    let mut amount = digits;
    let mut tens = 9 - places;
    if base == 2 {
        amount = amount.checked_mul(1 << exponent).unwrap_or(i128::MAX);
    } else {
        tens += exponent;
    }
    while tens > 0 && amount != 0 {
        amount = amount.checked_mul(10).unwrap_or(i128::MAX);
        tens -= 1;
    }
    while tens < 0 && amount != 0 {
        round_up |= amount % 10 != 0;
        amount /= 10;
        tens += 1;
    }
    if round_up {
        amount = amount.saturating_add(1);
    }
    let amount = amount.min(MAX * NANO);
    Ok((if negative { -amount } else { amount }, format))
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

fn print(amount: i128, format: Format) -> String {
    if amount == 0 {
        return "0".to_owned();
    }
    let integer = amount % NANO == 0;
    if format == Format::Binary && integer && (amount / NANO).abs() >= 1024 {
        let mut mantissa = amount / NANO;
        let mut times = 0;
        while mantissa % 1024 == 0 && times < 6 {
            mantissa /= 1024;
            times += 1;
        }
        let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][times];
        return format!("{mantissa}{suffix}");
    }
    let mut mantissa = amount;
    let mut exponent = -9;
    while mantissa % 1000 == 0 && exponent < 18 {
        mantissa /= 1000;
        exponent += 3;
    }
    if format == Format::Exponent {
        return if exponent == 0 { mantissa.to_string() } else { format!("{mantissa}e{exponent}") };
    }
    let suffix = match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        0 => "",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        _ => "E",
    };
    format!("{mantissa}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_in_one_way() {
        for (given, wanted) in [
            ("0", Ok("0")),
            ("0Ki", Ok("0")),
            ("1", Ok("1")),
            ("+1", Ok("1")),
            ("-1.5", Ok("-1500m")),
            ("1000m", Ok("1")),
            ("1500m", Ok("1500m")),
            ("0.5", Ok("500m")),
            (".5", Ok("500m")),
            ("1.", Ok("1")),
            ("100000", Ok("100k")),
            ("12345", Ok("12345")),
            ("1000000", Ok("1M")),
            ("1024Mi", Ok("1Gi")),
            ("1Gi", Ok("1Gi")),
            ("1536Mi", Ok("1536Mi")),
            ("0.5Gi", Ok("512Mi")),
            ("1.5Gi", Ok("1536Mi")),
            ("512", Ok("512")),
            ("0.5Ki", Ok("512")),
            ("100Mi", Ok("100Mi")),
            ("1e3", Ok("1e3")),
            ("1E3", Ok("1e3")),
            ("1000e0", Ok("1e3")),
            ("5n", Ok("5n")),
            ("0.1n", Ok("1n")),
            ("1.0000000001", Ok("1000000001n")),
            ("1E", Ok("1E")),
            ("99999999999999999999", Ok("9223372036854775807")),
            ("", Err(WRONG_FORM)),
            ("-", Err(WRONG_FORM)),
            ("1.2.3", Err(WRONG_FORM)),
            ("x", Err(WRONG_FORM)),
            ("1 Gi", Err(WRONG_SUFFIX)),
            ("1Q", Err(WRONG_SUFFIX)),
            ("1mm", Err(WRONG_SUFFIX)),
        ] {
            assert_eq!(canonical_quantity(given), wanted.map(str::to_owned), "{given:?}");
        }
    }
}
