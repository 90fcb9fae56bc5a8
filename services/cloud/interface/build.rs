//! Compiles `proto/cloud/v1` without needing protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../../proto";
    let file = "cloud/v1/cloud.proto";
    println!("cargo:rerun-if-changed={root}/{file}");
    let descriptors = protox::compile([file], [root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
