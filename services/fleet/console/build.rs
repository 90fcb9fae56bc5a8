//! Turns `web/dist`, where `cargo xtask console` puts the built console, into a table of embedded files.
//!
//! Node is not needed to build Roadstead: without a built console the table is empty and the console's
//! pages say how to build it. A table made here rather than by an embedding crate, because it is forty
//! lines, the compressed twins belong to their file, and entity tags are known before the program runs.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let dist = root.join("web/dist");
    // The folder is in the repository, with nothing in it, so that watching it is cheap either way.
    println!("cargo::rerun-if-changed=web/dist");
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    if dist.join("index.html").exists() {
        collect(&dist, &mut files);
    }
    files.sort();
    let mut table = String::from("&[\n");
    for (nth, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&dist).expect("below dist").to_str().expect("names we made are UTF-8");
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        writeln!(
            table,
            "File {{ path: {name:?}, content_type: {:?}, etag: \"\\\"{:016x}\\\"\", plain: include_bytes!({:?}), \
             gzip: {}, brotli: {} }},",
            content_type(name),
            hasher.finish(),
            kept(file, &out.join(format!("{nth}"))),
            twin(file, "gz", &out.join(format!("{nth}.gz"))),
            twin(file, "br", &out.join(format!("{nth}.br"))),
        )
        .expect("a string takes what is written");
    }
    table.push_str("]\n");
    std::fs::write(out.join("files.rs"), table).expect("OUT_DIR can be written");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder that can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            collect(&path, files);
        } else if !name.starts_with('.') && !name.ends_with(".gz") && !name.ends_with(".br") {
            files.push(path);
        }
    }
}

/// A copy beside the table. A target folder may serve several checkouts, and a table that names files of one
/// that is gone would not compile in the next.
fn kept(file: &Path, copy: &Path) -> PathBuf {
    std::fs::copy(file, copy).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    copy.to_owned()
}

/// The same file compressed, if the build found that worth it.
fn twin(file: &Path, suffix: &str, copy: &Path) -> String {
    let twin = PathBuf::from(format!("{}.{suffix}", file.display()));
    if twin.exists() { format!("Some(include_bytes!({:?}))", kept(&twin, copy)) } else { "None".to_owned() }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        // Guessing would leave a browser, told not to sniff, with a file it does not run.
        _ => panic!("{name}: add its content type to build.rs"),
    }
}
