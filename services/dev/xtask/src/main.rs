//! Installs, builds, tests, runs.

fn main() {}
