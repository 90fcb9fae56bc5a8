//! Writes the generated tables of `api-kinds`, `api-wire` and `api-schema`.
//!
//! Five sources are joined: OpenAPI documents (JSON names, types, required, defaults, list types, merge keys),
//! discovery documents (resources, verbs, names), upstream's `generated.proto` files (field numbers), the Go
//! types beside them (which scalars are pointers) and the source of the `k8s-openapi` crate (descriptions).
//! What comes out is text that git can show a difference of.
//!
//! ```text
//! cargo run -p tablegen -- --openapi DIR --discovery DIR --protos KUBERNETES/staging/src/k8s.io
//! ```
//! Start at [`messages`] for the join. Not here: reading the tables (`api-kinds`), and any judgement about
//! what a kind means. Nothing that ships depends on this crate.

mod docs;
mod messages;
mod openapi;
mod optional;
mod proto;
mod resources;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// Folder with OpenAPI v3 documents, one file per group-version, as a server answers them.
    #[arg(long)]
    openapi: PathBuf,
    /// Folder with discovery documents: `apis.json`, `api__v1.json`, `apis__GROUP__VERSION.json`.
    #[arg(long)]
    discovery: PathBuf,
    /// `staging/src/k8s.io` of a Kubernetes source tree of the same version.
    #[arg(long)]
    protos: PathBuf,
    /// `services/api` of this repository.
    #[arg(long, default_value = "services/api")]
    out: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let schemas = openapi::read(&args.openapi)?;
    let protos = proto::read(&args.protos)?;
    let joined = messages::join(&schemas, &protos);
    for line in &joined.remarks {
        eprintln!("{line}");
    }
    let resources = resources::text(&args.discovery, &joined)?;
    let (descriptions, missing) = docs::text(&joined)?;
    eprintln!("{missing} descriptions missing");

    let optional = optional::text(&args.protos, |message| joined.messages.contains_key(message))?;

    let kinds = args.out.join("kinds/data");
    write(&kinds.join("messages.txt"), joined.text().as_bytes())?;
    write(&kinds.join("resources.txt"), resources.as_bytes())?;
    write(&args.out.join("wire/data/optional.txt"), optional.as_bytes())?;
    write(&args.out.join("schema/data/descriptions.txt.gz"), &docs::compress(&descriptions)?)
}

fn write(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    std::fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}
