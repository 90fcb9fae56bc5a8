//! What is wrong with an expression, and where: rendered as cel-go renders it, since users compare and
//! Kubernetes puts the whole text into its field errors.

use std::fmt;
use std::sync::Arc;

/// Issues beyond this many are counted, not kept.
pub(crate) const MAX_ISSUES: usize = 100;
/// Longer source lines are not repeated under the message.
const MAX_SNIPPET_BYTES: usize = 16_384;

/// The text of one expression with its line starts, in code points as cel-go counts.
#[derive(Debug)]
pub(crate) struct Source {
    pub text: String,
    /// Code point offset at which each line begins.
    lines: Vec<u32>,
}

impl Source {
    pub fn new(text: &str) -> Source {
        let mut lines = vec![0];
        let mut at = 0u32;
        for c in text.chars() {
            at = at.saturating_add(1);
            if c == '\n' {
                lines.push(at);
            }
        }
        Source { text: text.to_owned(), lines }
    }

    /// Line from one and column from nought, of an offset in code points.
    pub fn place(&self, offset: u32) -> (i32, i32) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        (i32::try_from(line).unwrap_or(i32::MAX), i32::try_from(offset - start).unwrap_or(i32::MAX))
    }
}

/// One complaint about an expression. `Display` gives the message with the line it is about.
#[derive(Debug, Clone)]
pub struct Issue {
    /// From one; -1 when the issue is about the whole.
    pub line: i32,
    /// From nought; -1 when the issue is about the whole.
    pub column: i32,
    pub message: String,
    pub stage: Stage,
    pub(crate) source: Arc<Source>,
}

/// How far the expression got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It could not be read, or makes no sense. Upstream says "compilation failed: " and the issues.
    Compile,
    /// A constant in it fails. Upstream says "program instantiation failed: " and the message alone.
    Instantiate,
}

impl Issue {
    pub(crate) fn at(source: &Arc<Source>, offset: u32, message: impl Into<String>) -> Issue {
        let (line, column) = source.place(offset);
        Issue { line, column, message: message.into(), stage: Stage::Compile, source: source.clone() }
    }
    /// About no particular place.
    pub(crate) fn whole(source: &Arc<Source>, message: impl Into<String>) -> Issue {
        Issue { line: -1, column: -1, message: message.into(), stage: Stage::Compile, source: source.clone() }
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stage == Stage::Instantiate {
            return out.write_str(&self.message);
        }
        write!(out, "ERROR: <input>:{}:{}: {}", self.line, self.column + 1, self.message)?;
        let Some(snippet) =
            usize::try_from(self.line - 1).ok().and_then(|at| self.source.text.split('\n').nth(at))
        else {
            return Ok(());
        };
        if snippet.len() > MAX_SNIPPET_BYTES {
            return Ok(());
        }
        let snippet = snippet.replace('\t', " ");
        write!(out, "\n | {snippet}\n | ")?;
        let mut rest = snippet.chars();
        for c in rest.by_ref().take(usize::try_from(self.column).unwrap_or(0)) {
            out.write_str(if c.len_utf8() > 1 { "\u{ff0e}" } else { "." })?;
        }
        out.write_str(if rest.next().is_some_and(|c| c.len_utf8() > 1) { "\u{ff3e}" } else { "^" })
    }
}

/// All issues with what upstream puts before them: "compilation failed: ERROR: <input>:1:1: …".
pub fn explain(issues: &[Issue]) -> String {
    let what = match issues.first().map(|issue| issue.stage) {
        Some(Stage::Instantiate) => "program instantiation failed",
        _ => "compilation failed",
    };
    format!("{what}: {}", render(issues))
}

/// All issues as cel-go prints them together: in order of place, one under the other.
pub fn render(issues: &[Issue]) -> String {
    let mut sorted: Vec<&Issue> = issues.iter().collect();
    sorted.sort_by_key(|issue| (issue.line, issue.column));
    sorted.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
