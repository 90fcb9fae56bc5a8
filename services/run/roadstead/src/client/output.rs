//! Tables for people, the API's own JSON or YAML for programs.

use anyhow::Result;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::Output;

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
        Output::Json => println!("{}", serde_json::to_string_pretty(document)?),
        Output::Yaml => print!("{}", serde_yaml::to_string(document)?),
        Output::Table => {
            let rows: Vec<Vec<String>> = items.iter().map(columns.row).collect();
            print!("{}", table(columns.names, &rows));
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
