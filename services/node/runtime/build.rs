//! Generates the CRI client and builds the pause binary.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let protos = here.join("../../../proto");
    let runtime = protos.join("cri/v1/runtime.proto");
    println!("cargo::rerun-if-changed={}", runtime.display());
    let descriptors = protox::compile([&runtime], [&protos])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;

    let pause = here.join("pause/pause.rs");
    println!("cargo::rerun-if-changed={}", pause.display());
    let status = Command::new(env::var("RUSTC")?)
        .arg(&pause)
        .args(["--edition", "2024", "--crate-type", "bin", "--target", &env::var("TARGET")?])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "opt-level=s",
            "-C",
            "relocation-model=static",
            "-C",
            "strip=symbols",
        ])
        .args(["-C", "link-arg=-nostartfiles", "-C", "link-arg=-nostdlib", "-C", "link-arg=-static"])
        .arg("-o")
        .arg(out.join("pause"))
        .status()?;
    if !status.success() {
        return Err(format!("building {} failed", pause.display()).into());
    }
    Ok(())
}
