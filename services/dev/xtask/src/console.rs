//! Builds the web console (`services/fleet/console/web`) and runs its unit tests.
//!
//! Node comes from this machine when it is new enough, else from a package on PyPI that carries it
//! (Debian 12's own is two majors too old for the bundler), kept below the target folder. What is built
//! already is not built again: a stamp beside it names the sources it was made from.
//!
//! Not here: embedding it, which `fleet-console`'s own build script does.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::run;
use crate::python;

/// What Vite 8 asks for: 20.19 and later of 20, 22.12 and later.
fn new_enough((major, minor): (u32, u32)) -> bool {
    match major {
        20 => minor >= 19,
        22 => minor >= 12,
        major => major > 22,
    }
}

/// The Node taken where the machine has none that is new enough: a long-term release.
const NODE_PINS: &str = include_str!("../python/node.txt");

/// Where the console's sources are, below the workspace.
const WEB: &str = "services/fleet/console/web";

/// Where tests' own packages are, below the workspace: what drives a browser, and the JavaScript client.
const TESTS: [&str; 2] = ["tests/console", "tests/clients/node"];

/// A Node with its npm.
#[derive(Debug, Clone)]
pub struct Node {
    /// To be put before everything else in `PATH`; `None` when it is there already.
    folder: Option<PathBuf>,
    version: String,
}

impl Node {
    /// The machine's own, or one of ours that is fetched the first time.
    pub fn find(target: &Path) -> Result<Node> {
        let own = Node { folder: None, version: version(None).unwrap_or_default() };
        if parse(&own.version).is_some_and(new_enough) && own.command("npm").arg("--version").output().is_ok()
        {
            return Ok(own);
        }
        let found = if own.version.is_empty() { "no Node" } else { own.version.as_str() };
        eprintln!("xtask: {found} on this machine, 20.19 is needed; taking one from PyPI");
        let folder = python::tool(target, "node", NODE_PINS).context("or install Node 20.19")?;
        let version = version(Some(&folder))?;
        Ok(Node { folder: Some(folder), version })
    }

    pub fn command(&self, program: &str) -> Command {
        let Some(folder) = &self.folder else { return Command::new(program) };
        let mut command = Command::new(folder.join(program));
        // npm's scripts look their node up by name.
        command.env("PATH", self.path());
        command
    }

    /// `PATH` with this Node first.
    pub fn path(&self) -> std::ffi::OsString {
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.folder.clone().into_iter().chain(std::env::split_paths(&rest));
        std::env::join_paths(folders).unwrap_or(rest)
    }
}

fn version(folder: Option<&Path>) -> Result<String> {
    let program = folder.map_or_else(|| PathBuf::from("node"), |folder| folder.join("node"));
    let output = Command::new(&program)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Major and minor of `v20.20.2`.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix('v')?.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Makes `web/dist` what the sources say.
pub fn build(root: &Path, target: &Path) -> Result<Node> {
    let web = root.join(WEB);
    let node = Node::find(target)?;
    let stamp = format!("{:016x} {}\n", digest(&web, &["node_modules", "dist"])?, node.version);
    let stamp_file = web.join("dist/.stamp");
    if std::fs::read_to_string(&stamp_file).is_ok_and(|text| text == stamp) {
        eprintln!("xtask: console up to date");
        return Ok(node);
    }
    install(&node, &web)?;
    run(node.command("npm").args(["run", "--silent", "build"]).current_dir(&web))?;
    std::fs::write(&stamp_file, stamp).with_context(|| format!("cannot write {}", stamp_file.display()))?;
    Ok(node)
}

/// The console's unit tests. [`build`] comes first.
pub fn test(root: &Path, node: &Node) -> Result<()> {
    let web = root.join(WEB);
    install(node, &web)?;
    run(node.command("npm").args(["run", "--silent", "test"]).current_dir(web))
}

/// What tests that are scripts for Node need beside it and a browser.
pub fn install_tests(root: &Path, node: &Node) -> Result<()> {
    TESTS.iter().try_for_each(|folder| install(node, &root.join(folder)))
}

/// Exactly what the lock file names, again only when that changed. No package gets to run scripts.
fn install(node: &Node, folder: &Path) -> Result<()> {
    let lock = folder.join("package-lock.json");
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(&lock).with_context(|| format!("cannot read {}", lock.display()))?);
    let stamp = format!("{:016x} {}\n", hasher.finish(), node.version);
    let stamp_file = folder.join("node_modules/.stamp");
    if std::fs::read_to_string(&stamp_file).is_ok_and(|text| text == stamp) {
        return Ok(());
    }
    let mut npm = node.command("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]).current_dir(folder);
    run(&mut npm).with_context(|| {
        format!("cannot install the packages of {}; is the npm registry reachable?", folder.display())
    })?;
    std::fs::write(&stamp_file, stamp).with_context(|| format!("cannot write {}", stamp_file.display()))
}

/// A digest of every file's name and bytes below `folder`, except in `without`.
fn digest(folder: &Path, without: &[&str]) -> Result<u64> {
    let mut files = Vec::new();
    collect(folder, without, &mut files)?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        hasher.write(file.as_os_str().as_encoded_bytes());
        hasher.write(&std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(hasher.finish())
}

fn collect(folder: &Path, without: &[&str], files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        bail!("{} is missing from the sources", folder.display());
    }
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        } else if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !without.contains(&name))
        {
            collect(&path, without, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_the_bundler_runs_on() {
        for (said, fine) in [
            ("v18.19.0", false),
            ("v20.18.1", false),
            ("v20.19.0", true),
            ("v21.7.0", false),
            ("v22.11.0", false),
            ("v22.12.0", true),
            ("v24.19.0", true),
            ("", false),
            ("20.19.0", false),
        ] {
            assert_eq!(parse(said).is_some_and(new_enough), fine, "{said:?}");
        }
    }
}
