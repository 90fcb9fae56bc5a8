//! Compiles `proto/terraform/v6` without needing protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../../proto";
    let files = ["terraform/v6/provider.proto", "terraform/v6/controller.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={root}/{file}");
    }
    let descriptors = protox::compile(files, [root])?;
    // The client side is for our own tests, which play Terraform.
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
