//! Tables for people, the API's own JSON or YAML for programs.
//!
//! Everything that verbs print goes through [`say`], [`raw`] and [`note`]: a reader that has left (`| head`) or a
//! disk that is full is an error like any other, and no panic.

use std::io::{self, Write};

use anyhow::Result;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::Output;

/// What became of standard output.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Whoever read it wants no more, which is no failure.
    #[error("nobody reads the output any more")]
    Closed,
    #[error("cannot write the output")]
    Io(#[source] io::Error),
}

/// Prints a line, which is out when it returns.
pub fn say(line: &str) -> Result<(), OutputError> {
    raw(&format!("{line}\n"))
}

/// Prints what brings its own line ends.
pub fn raw(text: &str) -> Result<(), OutputError> {
    write_to(&mut io::stdout().lock(), text)
}

/// Says something beside the output, on standard error. Whether anybody hears it makes no difference.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn write_to(out: &mut impl Write, text: &str) -> Result<(), OutputError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputError::Closed),
        Err(error) => Err(OutputError::Io(error)),
    }
}

/// A kind of thing, as a table shows it.
pub(super) struct Columns<T> {
    pub(super) names: &'static [&'static str],
    pub(super) row: fn(&T) -> Vec<String>,
}

/// Prints one.
pub(super) fn one<T: Serialize>(output: Output, item: &T, columns: &Columns<T>) -> Result<()> {
    print(output, item, std::slice::from_ref(item), columns)
}

/// Prints a list.
pub(super) fn many<T: Serialize>(output: Output, items: &[T], columns: &Columns<T>) -> Result<()> {
    print(output, &serde_json::json!({ "items": items }), items, columns)
}

fn print<T: Serialize>(
    output: Output,
    document: &impl Serialize,
    items: &[T],
    columns: &Columns<T>,
) -> Result<()> {
    match output {
        Output::Json => say(&serde_json::to_string_pretty(document)?)?,
        Output::Yaml => raw(&serde_yaml::to_string(document)?)?,
        Output::Table => {
            let rows: Vec<Vec<String>> = items.iter().map(columns.row).collect();
            raw(&table(columns.names, &rows))?;
        }
    }
    Ok(())
}

/// `5s`, `3m`, `2h`, `9d`: what kubectl's AGE shows, to one unit.
pub(super) fn age(since: Timestamp) -> String {
    let seconds = Timestamp::now().duration_since(since).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What somebody else wrote must not move a terminal's cursor.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
}

fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([columns[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let header: Vec<String> = columns.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", plain(cell))).collect();
        text += cells.join("   ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_moves_the_cursor() {
        let rows = [vec!["a".to_owned(), "x\u{1b}[2J".to_owned()], vec!["longer".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "B"], &rows), "NAME     B\na        x?[2J\nlonger\n");
    }
}
