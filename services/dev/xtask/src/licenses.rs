//! Every dependency's licence must be one that asks for no more than being named.

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;

const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    // Copyleft per file, and we change none of the files (imbl, the persistent map).
    "MPL-2.0",
    "MPL-2.0+",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that must not come in, whatever their licence, and why.
const BANNED: &[(&str, &str)] = &[
    ("openssl", "one TLS stack: rustls with aws-lc-rs"),
    ("openssl-sys", "one TLS stack: rustls with aws-lc-rs"),
    ("spdy-mux", "GPL"),
];

pub fn check() -> Result<()> {
    let metadata = MetadataCommand::new().exec().context("cargo metadata failed")?;
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        if let Some((_, why)) = BANNED.iter().find(|(name, _)| *name == package.name.as_str()) {
            wrong.push(format!("{}: banned ({why})", package.name));
        }
        let license = package.license.as_deref().unwrap_or("none stated");
        if !accepted(license) {
            wrong.push(format!("{} {}: {license}", package.name, package.version));
        }
    }
    if !wrong.is_empty() {
        bail!("dependencies we cannot take:\n  {}", wrong.join("\n  "));
    }
    eprintln!("xtask: licences fine: {} packages", metadata.packages.len());
    Ok(())
}

/// Evaluates an SPDX expression: OR needs one side, AND both.
fn accepted(expression: &str) -> bool {
    // The old notation for OR.
    let expression = expression.replace('/', " OR ");
    split(&expression, " OR ").into_iter().any(|choice| {
        split(choice, " AND ").into_iter().all(|part| {
            let part = part.trim();
            match part.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
                Some(inner) => accepted(inner),
                None => ACCEPTED.contains(&part),
            }
        })
    })
}

/// Splits at `at` outside parentheses.
fn split<'a>(text: &'a str, at: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (index, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && index >= start && text[index..].starts_with(at) => {
                parts.push(&text[start..index]);
                start = index + at.len();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_mean_what_spdx_says() {
        for (expression, fine) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("(MIT OR GPL-3.0-only) AND Unicode-3.0", true),
            ("MIT AND GPL-3.0-only", false),
            ("ISC AND (Apache-2.0 OR ISC) AND OpenSSL", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0", true),
            ("none stated", false),
        ] {
            assert_eq!(accepted(expression), fine, "{expression}");
        }
    }
}
