//! Measured figures, as a table.

fn main() {}
