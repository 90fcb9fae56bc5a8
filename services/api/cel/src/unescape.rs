//! What a quoted literal stands for. Escapes as cel-go reads them, its messages included.

/// Takes the literal as spelt, quotes and the `r` of raw ones included, without the `b` of bytes.
pub(crate) fn unescape(spelt: &str, is_bytes: bool) -> Result<Vec<u8>, &'static str> {
    const UNABLE: &str = "unable to unescape string";
    let spelt = spelt.replace("\r\n", "\n").replace('\r', "\n");
    let (raw, quoted) = match spelt.strip_prefix(['r', 'R']) {
        Some(quoted) => (true, quoted),
        None => (false, spelt.as_str()),
    };
    let inner = ["'''", "\"\"\"", "'", "\""]
        .iter()
        .find(|quote| {
            quoted.len() >= 2 * quote.len() && quoted.starts_with(**quote) && quoted.ends_with(**quote)
        })
        .map(|quote| &quoted[quote.len()..quoted.len() - quote.len()])
        .ok_or(UNABLE)?;
    if raw || !inner.contains('\\') {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner.chars();
    let put = |out: &mut Vec<u8>, code: u32| -> Result<(), &'static str> {
        if is_bytes {
            out.push(u8::try_from(code).map_err(|_| UNABLE)?);
        } else {
            let c = char::from_u32(code).ok_or("invalid unicode code point")?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    };
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let Some(c) = rest.next() else {
            return Err("unable to unescape string, found '\\' as last character");
        };
        match c {
            'a' => out.push(0x07),
            'b' => out.push(0x08),
            'f' => out.push(0x0c),
            'n' => out.push(b'\n'),
            'r' => out.push(b'\r'),
            't' => out.push(b'\t'),
            'v' => out.push(0x0b),
            '\\' | '\'' | '"' | '`' | '?' => out.push(u8::try_from(c).map_err(|_| UNABLE)?),
            'x' | 'X' => put(&mut out, number(&mut rest, 2, 16).ok_or(UNABLE)?)?,
            'u' if !is_bytes => put(&mut out, number(&mut rest, 4, 16).ok_or(UNABLE)?)?,
            'U' if !is_bytes => put(&mut out, number(&mut rest, 8, 16).ok_or(UNABLE)?)?,
            '0'..='3' => {
                let low = number(&mut rest, 2, 8).ok_or("unable to unescape octal sequence in string")?;
                put(&mut out, c.to_digit(8).unwrap_or(0) * 64 + low)?;
            }
            _ => return Err(UNABLE),
        }
    }
    Ok(out)
}

fn number(rest: &mut std::str::Chars<'_>, digits: usize, radix: u32) -> Option<u32> {
    (0..digits).try_fold(0u32, |sum, _| sum.checked_mul(radix)?.checked_add(rest.next()?.to_digit(radix)?))
}
