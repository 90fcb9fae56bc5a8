//! Who may use whom among the planes (DESIGN §3), read off `cargo metadata`.

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

/// Planes that each plane may use, beside itself.
const ALLOWED: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("api", &["base"]),
    ("store", &["base"]),
    ("tenant", &["store", "api", "base"]),
    ("node", &["api", "base"]),
    ("cloud", &["api", "base"]),
    ("fleet", &["cloud", "api", "base"]),
    ("run", &["fleet", "node", "cloud", "api", "base"]),
    ("dev", &["run", "fleet", "node", "cloud", "tenant", "store", "api", "base"]),
    ("terraform", &["fleet", "base"]),
    ("tests", &["dev", "fleet", "api", "base"]),
];

/// Packages that may use more than their plane, and why: they are where planes are joined.
const JOINS: &[(&str, &[&str])] = &[
    ("fleet-cell", &["tenant", "store"]),
    // Its machines are local nodes.
    ("cloud-local", &["node"]),
];

/// Single packages that a package may use beyond its plane's arrows, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Only the API's trait: its loops watch and write through it as controllers do.
    ("cloud-controllers", "tenant-client"),
];

pub fn check() -> Result<()> {
    let metadata = MetadataCommand::new().exec().context("cargo metadata failed")?;
    let root = metadata.workspace_root.as_std_path();
    let plane_of = |manifest: &std::path::Path| -> Option<String> {
        let relative = manifest.strip_prefix(root).ok()?;
        let mut parts = relative.iter().map(|part| part.to_string_lossy().into_owned());
        let first = parts.next()?;
        if first == "services" { parts.next() } else { Some(first) }
    };
    let mut wrong = Vec::new();
    let packages = metadata.workspace_packages();
    for package in &packages {
        let Some(plane) = plane_of(package.manifest_path.as_std_path()) else { continue };
        for dependency in &package.dependencies {
            // Tests may reach across; what ships may not.
            if dependency.kind == DependencyKind::Development && plane != "tests" {
                continue;
            }
            let Some(path) = &dependency.path else { continue };
            let Some(used) = plane_of(&path.as_std_path().join("Cargo.toml")) else { continue };
            if !may(&package.name, &plane, &used)
                && !EXCEPTIONS.contains(&(package.name.as_str(), dependency.name.as_str()))
            {
                wrong.push(format!("{} ({plane}) uses {} ({used})", package.name, dependency.name));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("arrows that go the wrong way:\n  {}", wrong.join("\n  "));
    }
    eprintln!("xtask: layers fine: {} packages", packages.len());
    Ok(())
}

fn may(package: &str, plane: &str, used: &str) -> bool {
    let in_table = |table: &[(&str, &[&str])], who: &str| {
        table.iter().any(|(one, uses)| *one == who && uses.contains(&used))
    };
    plane == used || in_table(ALLOWED, plane) || in_table(JOINS, package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_down() {
        for (package, plane, used, fine) in [
            ("store-raft", "store", "base", true),
            ("store-raft", "store", "store", true),
            ("store-raft", "store", "api", false),
            ("node-kubelet", "node", "tenant", false),
            ("fleet-manager", "fleet", "store", false),
            ("fleet-cell", "fleet", "store", true),
            ("roadstead", "run", "node", true),
            ("api-kinds", "api", "dev", false),
            ("terraform-provider-roadstead", "terraform", "fleet", true),
            ("terraform-provider-roadstead", "terraform", "tenant", false),
        ] {
            assert_eq!(may(package, plane, used), fine, "{package} -> {used}");
        }
    }
}
