//! Compiles `proto/tunnel/v1` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let include = "../../../proto";
    let file = "tunnel/v1/tunnel.proto";
    println!("cargo:rerun-if-changed={include}/{file}");
    let descriptors = protox::compile([file], [include])?;
    // `Bytes` for chunks: what came from the connection's buffer is handed on without a copy.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
