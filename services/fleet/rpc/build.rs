//! Compiles `proto/fleet/v1` without needing protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../../proto";
    let files = ["fleet/v1/fleet.proto", "fleet/v1/cells.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={root}/{file}");
    }
    let descriptors = protox::compile(files, [root])?;
    // Messages between replicas are long and many: no copy of each.
    tonic_prost_build::configure().bytes(".roadstead.fleet.v1").compile_fds(descriptors)?;
    Ok(())
}
