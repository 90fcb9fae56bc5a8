//! Regular expressions as Go reads them.
//!
//! Go's (RE2) and ours agree on nearly everything, both run in linear time, and differ in small things that
//! people do use: for Go `\d`, `\w`, `\s` and `\b` are ASCII, `{` that starts no count is itself, inside
//! brackets only `^`, `-`, `\` and `]` mean something, and no repetition is repeated.

use regex::{Regex, RegexBuilder};

/// Bytes a compiled pattern may take. Counts multiply (`(a{1000}){1000}`), so this needs an end; Go's is of
/// the same order (it refuses counts beyond 1000 and programs of more than some 128 MB).
const COMPILED_BYTES: usize = 8 << 20;
/// Bytes that each thread may keep for a pattern to be quick with. Most take a few KiB.
const CACHE_BYTES: usize = 256 << 10;

/// The error is worded as Go's where that can be told.
pub fn compile(text: &str) -> Result<Regex, String> {
    let parsing = |why: String| format!("error parsing regexp: {why}");
    let translated = translate(text).map_err(parsing)?;
    RegexBuilder::new(&translated)
        .size_limit(COMPILED_BYTES)
        .dfa_size_limit(CACHE_BYTES)
        .nest_limit(250)
        .build()
        .map_err(|error| {
            parsing(match &error {
                regex::Error::CompiledTooBig(_) => format!("expression too large: `{text}`"),
                _ if unbalanced(text) > 0 => format!("missing closing ): `{text}`"),
                _ if unbalanced(text) < 0 => format!("unexpected ): `{text}`"),
                _ => {
                    let message = error.to_string();
                    let last = message.lines().last().unwrap_or_default().trim();
                    format!("{}: `{text}`", last.strip_prefix("error: ").unwrap_or(last))
                }
            })
        })
}

/// Roughly how many states the compiled pattern has: what compiling it takes in time and memory. Counts
/// multiply what they stand behind, and classes of Unicode are large.
pub fn weight(text: &str) -> u64 {
    let chars: Vec<char> = text.chars().collect();
    // What each open group holds so far, and the weight of what came last in it.
    let mut groups: Vec<(u64, u64)> = vec![(0, 0)];
    let mut at = 0;
    while at < chars.len() {
        let (mut end, mut own) = (at + 1, 1);
        match chars[at] {
            '\\' => {
                end += 1;
                own = 2;
                if matches!(chars.get(at + 1), Some('p' | 'P')) {
                    own = 500;
                    let named = chars.get(at + 2) == Some(&'{');
                    end +=
                        if named { chars[at + 2..].iter().take_while(|c| **c != '}').count() + 1 } else { 1 };
                }
            }
            '.' => own = 10,
            '[' => {
                own = 10;
                while end < chars.len() && !(chars[end] == ']' && end > at + 1) {
                    let class = chars[end] == '\\' && matches!(chars.get(end + 1), Some('p' | 'P'));
                    own += if class { 500 } else { 2 };
                    end += 1 + usize::from(chars[end] == '\\');
                }
                end += 1;
            }
            '(' => {
                groups.push((0, 0));
                at = end;
                continue;
            }
            ')' => {
                own = match groups.pop() {
                    Some((sum, last)) => sum.saturating_add(last).saturating_add(2),
                    None => 1,
                };
                if groups.is_empty() {
                    groups.push((0, 0));
                }
            }
            _ => {
                if let Some(after) = repetition(&chars, at) {
                    let counts: String = chars[at..after].iter().collect();
                    let times = counts
                        .split(|char: char| !char.is_ascii_digit())
                        .filter_map(|count| count.parse().ok());
                    let times: u64 = times.max().unwrap_or(1).max(1);
                    if let Some((_, last)) = groups.last_mut() {
                        *last = last.saturating_mul(times).saturating_add(1);
                    }
                    at = after;
                    continue;
                }
            }
        }
        if let Some((sum, last)) = groups.last_mut() {
            *sum = sum.saturating_add(*last);
            *last = own;
        }
        at = end;
    }
    groups.iter().fold(0u64, |all, (sum, last)| all.saturating_add(*sum).saturating_add(*last))
}

/// Parentheses left open, brackets and escapes taken into account; below zero as soon as one closes nothing.
fn unbalanced(text: &str) -> i64 {
    let mut open = 0;
    let mut in_class = false;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => drop(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => open += 1,
            ')' if !in_class => open -= 1,
            _ => {}
        }
        if open < 0 {
            return open;
        }
    }
    open
}

fn translate(text: &str) -> Result<String, String> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len() + 16);
    let mut at = 0;
    // Where the repetition before this place began, if one ended here: Go takes no second one.
    let mut repeated: Option<usize> = None;
    while at < chars.len() {
        if let Some(end) = repetition(&chars, at) {
            if let Some(start) = repeated {
                let shown: String = chars[start..end].iter().collect();
                return Err(format!("invalid nested repetition operator: `{shown}`"));
            }
            if at == 0 || opens(&chars, at) {
                let shown: String = chars[at..end].iter().collect();
                return Err(format!("missing argument to repetition operator: `{shown}`"));
            }
            let counts: String = chars[at..end].iter().collect();
            let too_many =
                |count: &str| count.parse::<u32>().is_ok_and(|count| count > 1000) || count.len() > 9;
            if counts.split(|char: char| !char.is_ascii_digit()).any(too_many) {
                return Err(format!("invalid repeat count: `{}`", counts.trim_end_matches('?')));
            }
            out.push_str(&counts);
            repeated = Some(at);
            at = end;
            continue;
        }
        repeated = None;
        match chars[at] {
            '\\' => at = escape(&chars, at, &mut out)?,
            '[' => at = class(&chars, at, &mut out)?,
            '{' if !is_count(&chars[at..]) => {
                out.push_str("\\{");
                at += 1;
            }
            '(' if chars[at..].starts_with(&['(', '?']) => {
                let rest: String = chars[at..].iter().take(4).collect();
                for (start, shown) in [("(?=", "(?="), ("(?!", "(?!"), ("(?<=", "(?<"), ("(?<!", "(?<")] {
                    if rest.starts_with(start) {
                        return Err(format!("invalid or unsupported Perl syntax: `{shown}`"));
                    }
                }
                out.push('(');
                at += 1;
            }
            char => {
                out.push(char);
                at += 1;
            }
        }
    }
    Ok(out)
}

/// Whether nothing stands before this place that could be repeated. The `?` of `(?:` is no repetition.
fn opens(chars: &[char], at: usize) -> bool {
    let escaped = chars[..at - 1].iter().rev().take_while(|&&char| char == '\\').count() % 2 == 1;
    match chars[at - 1] {
        '|' => !escaped,
        '(' => !escaped && chars[at] != '?',
        _ => false,
    }
}

/// Where a repetition that starts here ends, with the `?` that makes it lazy.
fn repetition(chars: &[char], at: usize) -> Option<usize> {
    let end = match chars[at] {
        '*' | '+' | '?' => at + 1,
        '{' if is_count(&chars[at..]) => at + 1 + chars[at..].iter().position(|&char| char == '}')?,
        _ => return None,
    };
    Some(if chars.get(end) == Some(&'?') { end + 1 } else { end })
}

/// `{2}`, `{2,}`, `{2,3}`
fn is_count(chars: &[char]) -> bool {
    let end = chars.iter().position(|&char| char == '}');
    let Some(inside) = end.map(|end| &chars[1..end]) else { return false };
    let mut parts = inside.split(|&char| char == ',');
    let digits = |part: &[char]| part.iter().all(char::is_ascii_digit);
    let first = parts.next().unwrap_or_default();
    let second = parts.next();
    !first.is_empty() && digits(first) && second.is_none_or(digits) && parts.next().is_none()
}

/// Perl's shorthands, as members of brackets.
fn shorthand(char: char) -> Option<(&'static str, bool)> {
    Some(match char {
        'd' | 'D' => ("0-9", char == 'D'),
        'w' | 'W' => ("0-9A-Za-z_", char == 'W'),
        's' | 'S' => ("\\t\\n\\x0C\\r ", char == 'S'),
        _ => return None,
    })
}

/// Writes the escape that starts at `at`, outside brackets; gives where it ends.
fn escape(chars: &[char], at: usize, out: &mut String) -> Result<usize, String> {
    let next = chars.get(at + 1).copied();
    if let Some((members, negated)) = next.and_then(shorthand) {
        out.push_str(&format!("[{}{members}]", if negated { "^" } else { "" }));
        return Ok(at + 2);
    }
    match next {
        Some(char @ ('b' | 'B')) => out.push_str(&format!("(?-u:\\{char})")),
        Some(char @ ('A' | 'z')) => out.extend(['\\', char]),
        Some('C') => out.push('.'),
        Some('p' | 'P') => return unicode(chars, at, out),
        // Everything up to \E is itself.
        Some('Q') => {
            let rest = &chars[at + 2..];
            let end = rest.windows(2).position(|two| two == ['\\', 'E']);
            let quoted: String = rest[..end.unwrap_or(rest.len())].iter().collect();
            out.push_str(&regex::escape(&quoted));
            return Ok(end.map_or(chars.len(), |end| at + 2 + end + 2));
        }
        _ => {
            let (char, end) = single(chars, at)?;
            push(char, out);
            return Ok(end);
        }
    }
    Ok(at + 2)
}

/// `\pL` and `\p{Greek}` are written as they are.
fn unicode(chars: &[char], at: usize, out: &mut String) -> Result<usize, String> {
    let end = match chars.get(at + 2) {
        Some('{') => at + 2 + chars[at + 2..].iter().position(|&char| char == '}').unwrap_or(chars.len()),
        _ => at + 2,
    };
    let Some(whole) = chars.get(at..=end) else {
        let rest: String = chars[at..].iter().collect();
        return Err(format!("invalid character class range: `{rest}`"));
    };
    out.extend(whole);
    Ok(end + 1)
}

fn push(char: char, out: &mut String) {
    out.push_str(&format!("\\x{{{:x}}}", u32::from(char)));
}

/// The one character that stands at `at`, escaped or not, and where it ends.
fn single(chars: &[char], at: usize) -> Result<(char, usize), String> {
    let invalid = |shown: &[char]| {
        let shown: String = shown.iter().collect();
        format!("invalid escape sequence: `{shown}`")
    };
    if chars[at] != '\\' {
        return Ok((chars[at], at + 1));
    }
    let Some(&char) = chars.get(at + 1) else {
        return Err("trailing backslash at end of expression: ``".to_owned());
    };
    let plain = match char {
        'a' => '\x07',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        '0'..='7' => {
            // Octal, unless a digit that would be a reference.
            let digits: String =
                chars[at + 1..].iter().take(3).take_while(|c| ('0'..='7').contains(c)).collect();
            if char != '0' && digits.len() < 2 {
                return Err(invalid(&chars[at..at + 2]));
            }
            let code = u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32);
            return code.map(|code| (code, at + 1 + digits.len())).ok_or_else(|| invalid(&chars[at..at + 2]));
        }
        'x' => {
            let (digits, end) = match chars.get(at + 2) {
                Some('{') => {
                    let close = chars[at..].iter().position(|&char| char == '}');
                    let end = close.map(|close| at + close).ok_or_else(|| invalid(&chars[at..]))?;
                    (&chars[at + 3..end], end + 1)
                }
                _ => {
                    let end = (at + 4).min(chars.len());
                    (&chars[at + 2..end], end)
                }
            };
            let digits: String = digits.iter().collect();
            let hex = digits.chars().all(|digit| digit.is_ascii_hexdigit());
            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| hex).and_then(char::from_u32);
            return code.map(|code| (code, end)).ok_or_else(|| invalid(&chars[at..end]));
        }
        char if char.is_ascii_punctuation() => char,
        _ => return Err(invalid(&chars[at..at + 2])),
    };
    Ok((plain, at + 2))
}

/// Writes the brackets that open at `start`; gives where they end.
fn class(chars: &[char], start: usize, out: &mut String) -> Result<usize, String> {
    let missing = || {
        let rest: String = chars[start..].iter().collect();
        format!("missing closing ]: `{rest}`")
    };
    let mut at = start + 1;
    out.push('[');
    if chars.get(at) == Some(&'^') {
        out.push('^');
        at += 1;
    }
    let first = at;
    loop {
        let next = chars.get(at + 1).copied();
        match chars.get(at) {
            None => return Err(missing()),
            Some(']') if at > first => {
                out.push(']');
                return Ok(at + 1);
            }
            Some('[') if next == Some(':') => {
                if let Some(end) = chars[at + 2..].windows(2).position(|two| two == [':', ']']) {
                    out.extend(&chars[at..at + end + 4]);
                    at += end + 4;
                    continue;
                }
            }
            Some('\\') if matches!(next, Some('p' | 'P')) => {
                at = unicode(chars, at, out)?;
                continue;
            }
            Some('\\') => {
                if let Some((members, negated)) = next.and_then(shorthand) {
                    out.push_str(&if negated { format!("[^{members}]") } else { members.to_owned() });
                    at += 2;
                    continue;
                }
            }
            Some(_) => {}
        }
        let (low, end) = single(chars, at)?;
        push(low, out);
        at = end;
        if chars.get(at) == Some(&'-') && chars.get(at + 1).is_some_and(|&char| char != ']') {
            let (high, end) = single(chars, at + 1)?;
            if high < low {
                let shown: String = chars[end - (end - at) - 1..end].iter().collect();
                return Err(format!("invalid character class range: `{shown}`"));
            }
            out.push('-');
            push(high, out);
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_go_means() {
        for (pattern, text, fits) in [
            ("^[a-z]+$", "abc", true),
            ("^\\d+$", "12", true),
            ("^\\d+$", "١٢", false),
            ("^\\w+$", "é", false),
            ("^[\\w.-]+$", "a_b.c-d", true),
            ("^[\\w-]+$", "a-b", true),
            ("^a{,2}$", "a{,2}", true),
            ("^a{1,2}$", "aa", true),
            ("^a+?b*?$", "ab", true),
            ("^(?:a|\\|*)$", "||", true),
            ("^{}$", "{}", true),
            ("^[[a]+$", "[a", true),
            ("^[a&&b]+$", "a&b", true),
            ("^[]a]$", "]", true),
            ("^[^]a]$", "b", true),
            ("^[[:alpha:]]+$", "ab", true),
            ("^\\Qa.b\\E$", "a.b", true),
            ("^\\Qa.b\\E$", "axb", false),
            ("^\\/a\\-b$", "/a-b", true),
            ("^\\101$", "A", true),
            ("\\bfoo\\b", "a foo b", true),
            ("^[+--]$", ",", true),
            ("^[\\w-.]+$", "a-.", true),
            ("^[a-z-9]+$", "b-9", true),
            ("^[a-zA-Z0-9-\\p{L}]+$", "é-", true),
            ("^\\x41\\x{42}\\pL$", "ABC", true),
            ("^.$", "é", true),
            ("^(?i)abc$", "ABC", true),
        ] {
            let compiled = compile(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            assert_eq!(compiled.is_match(text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn weight_is_about_the_states() {
        for (pattern, least, most) in [
            ("", 0, 0),
            ("abc", 3, 3),
            ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 30, 90),
            ("a{100}", 100, 110),
            ("((a{100}){100}){100}", 1_000_000, 1_100_000),
            ("\\p{L}{10}", 5000, 6000),
            ("(((", 0, 10),
            (")))", 0, 10),
            ("[", 0, 20),
            ("a\\", 0, 10),
        ] {
            let weight = weight(pattern);
            assert!((least..=most).contains(&weight), "{pattern} {weight}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_in_its_words() {
        for (pattern, why) in [
            ("[a", "error parsing regexp: missing closing ]: `[a`"),
            ("(a", "error parsing regexp: missing closing ): `(a`"),
            ("a)", "error parsing regexp: unexpected ): `a)`"),
            ("a(?!b)", "error parsing regexp: invalid or unsupported Perl syntax: `(?!`"),
            ("(?<=b)a", "error parsing regexp: invalid or unsupported Perl syntax: `(?<`"),
            ("+", "error parsing regexp: missing argument to repetition operator: `+`"),
            ("a|*", "error parsing regexp: missing argument to repetition operator: `*`"),
            ("x++", "error parsing regexp: invalid nested repetition operator: `++`"),
            ("a{2}*?", "error parsing regexp: invalid nested repetition operator: `{2}*?`"),
            ("a{1001}", "error parsing regexp: invalid repeat count: `{1001}`"),
            ("\\y", "error parsing regexp: invalid escape sequence: `\\y`"),
            ("a\\", "error parsing regexp: trailing backslash at end of expression: ``"),
        ] {
            assert_eq!(compile(pattern).unwrap_err(), why, "{pattern}");
        }
        assert!(compile("((a{999}){999}){999}").is_err());
    }

    proptest::proptest! {
        /// Whatever a pattern is, it compiles or is refused, and what is only letters means itself.
        #[test]
        fn any_text_is_a_pattern_or_not(text in "[-\\\\\\[\\]^$.|?*+(){}:,<>!=&~abdwspPQExzDSW0-9é ]{0,12}", plain in "[a-z]{1,8}") {
            if let Ok(compiled) = compile(&text) {
                compiled.is_match(&plain);
            }
            let means_itself = compile(&format!("^{plain}$")).is_ok_and(|one| one.is_match(&plain));
            proptest::prop_assert!(means_itself);
            let quoted = compile(&format!("^\\Q{text}\\E$"));
            proptest::prop_assert!(quoted.is_ok_and(|one| one.is_match(&text)) || text.contains('\\'));
        }
    }
}
