//! `cargo xtask`: installs what is missing, builds, checks, tests, runs.
//!
//! Not here: anything that ships.

mod command;
mod console;
mod layers;
mod licenses;
mod packages;
mod python;
mod terraform;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::command::{cargo, replace_self, run};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, tests and runs Roadstead from its sources")]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install missing packages, build for release, run `roadstead up` with these arguments
    Up {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Everything that proves the product
    Test {
        /// Without what needs root, packages or other machines' worth of time
        #[arg(long)]
        fast: bool,
    },
    /// Check who may use whom among the planes
    Layers,
    /// Check that every dependency's licence is one we accept
    Licenses,
    /// Install the packages that nodes and tests need
    Packages,
    /// Build the web console, which the next build of `roadstead` embeds
    Console,
    /// Build the Terraform provider and put it where `terraform init` finds it; `up` does so too
    Terraform,
    /// Build for release and print measured figures as a table
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match work(Xtask::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(task: Task) -> Result<()> {
    match task {
        Task::Up { arguments } => {
            packages::install_for_nodes()?;
            if let Err(error) = build_console() {
                eprintln!("xtask: going on without the console: {error:#}");
            }
            run(cargo().args(["build", "--release", "--package", "roadstead"]))?;
            if terraform::on_path().is_some() {
                terraform::install(&root()?, &target_dir()?)?;
            }
            let binary = target_dir()?.join("release/roadstead");
            Err(replace_self(std::process::Command::new(binary).arg("up").args(arguments)))
        }
        Task::Test { fast } => test(fast),
        Task::Layers => layers::check(),
        Task::Licenses => licenses::check(),
        Task::Packages => {
            packages::install_for_tests()?;
            python::kubernetes(&target_dir()?)?;
            browser_tests().map(drop)
        }
        Task::Console => build_console().map(drop),
        Task::Terraform => terraform::install(&root()?, &target_dir()?),
        Task::Bench { arguments } => {
            packages::install_for_tests()?;
            let node = browser_tests();
            run(cargo().args(["build", "--release", "--package", "roadstead", "--package", "dev-bench"]))?;
            let release = target_dir()?.join("release");
            let mut bench = std::process::Command::new(release.join("dev-bench"));
            bench.arg("--binary").arg(release.join("roadstead")).args(arguments);
            match node {
                Ok(node) => bench.arg("--sources").arg(root()?).env("PATH", node.path()),
                Err(error) => {
                    eprintln!("xtask: no figures of the console: {error:#}");
                    &mut bench
                }
            };
            run(&mut bench)
        }
    }
}

/// Cheap checks first: what fails should fail early.
fn test(fast: bool) -> Result<()> {
    layers::check()?;
    licenses::check()?;
    run(cargo().args(["fmt", "--all", "--", "--check"]))?;
    if !fast {
        packages::install_for_tests()?;
        python::moto(&target_dir()?)?;
        python::schemathesis(&target_dir()?)?;
        python::kubernetes(&target_dir()?)?;
    }
    let node = build_console()?;
    console::test(&root()?, &node)?;
    if !fast {
        console::install_tests(&root()?, &node)?;
    }
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    // The end-to-end tests drive these very binaries.
    run(cargo().args(["build", "--package", "roadstead", "--package", "terraform-provider-roadstead"]))?;
    let mut tests = cargo();
    tests.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    if fast {
        tests.args(["--exclude", "end-to-end"]);
        // Its tests need moto.
        tests.args(["--filterset", "not (package(cloud-aws) and kind(test))"]);
    }
    // The console's test runs a script of its own on this Node.
    let target = target_dir()?;
    run(tests
        .env("ROADSTEAD_BINARY", target.join("debug/roadstead"))
        .env("ROADSTEAD_TERRAFORM", terraform::find(&target)?)
        .env("ROADSTEAD_TERRAFORM_PROVIDER", target.join("debug/terraform-provider-roadstead"))
        .env("PATH", node.path()))
}

/// What tests of the built console need beside a browser.
fn browser_tests() -> Result<console::Node> {
    let node = build_console()?;
    console::install_tests(&root()?, &node)?;
    Ok(node)
}

fn build_console() -> Result<console::Node> {
    console::build(&root()?, &target_dir()?)
}

fn root() -> Result<PathBuf> {
    let metadata =
        cargo_metadata::MetadataCommand::new().no_deps().exec().context("cargo metadata failed")?;
    Ok(metadata.workspace_root.into_std_path_buf())
}

fn target_dir() -> Result<PathBuf> {
    let metadata =
        cargo_metadata::MetadataCommand::new().no_deps().exec().context("cargo metadata failed")?;
    Ok(metadata.target_directory.into_std_path_buf())
}
