//! The table.

pub struct Row {
    pub what: String,
    pub figure: String,
    pub aim: String,
}

impl Row {
    pub fn new(what: impl Into<String>, figure: impl Into<String>, aim: impl Into<String>) -> Row {
        Row { what: what.into(), figure: figure.into(), aim: aim.into() }
    }
}

pub fn print(rows: &[Row]) {
    let header = Row::new("measured", "figure", "aim");
    let width = |cell: fn(&Row) -> &str| {
        rows.iter().chain([&header]).map(|row| cell(row).chars().count()).max().unwrap_or_default()
    };
    let (what, figure) = (width(|row| &row.what), width(|row| &row.figure));
    let line = |row: &Row| println!("| {:<what$} | {:>figure$} | {} |", row.what, row.figure, row.aim);
    line(&header);
    println!("|{}|{}|---|", "-".repeat(what + 2), "-".repeat(figure + 2));
    rows.iter().for_each(line);
}
