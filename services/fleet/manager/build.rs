//! Builds again when a migration is added: the macro that embeds them sees only those it already knows.
fn main() {
    println!("cargo:rerun-if-changed=../../../migrations");
}
