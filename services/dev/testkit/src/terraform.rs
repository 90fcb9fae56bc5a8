//! Real `terraform`, with our provider from a mirror of its own.
//!
//! The terraform is `ROADSTEAD_TERRAFORM` (which `cargo xtask test` sets), else the one on `PATH`. The
//! provider is `ROADSTEAD_TERRAFORM_PROVIDER`, else the one built beside the test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::Ran;

/// Where configurations say the provider is from. Nobody has that host: it can only come from a mirror.
pub const PROVIDER_SOURCE: &str = "roadstead.local/roadstead/roadstead";

/// The folder of one configuration, and everything around it that would else be the person's own.
#[derive(Debug)]
pub struct Terraform {
    dir: TempDir,
    binary: PathBuf,
    env: BTreeMap<String, String>,
}

impl Terraform {
    /// An empty configuration; `provider` is the provider's program.
    pub fn new(provider: &Path) -> Result<Terraform> {
        ensure!(
            provider.exists(),
            "{} is missing; run `cargo xtask test`, or build terraform-provider-roadstead first",
            provider.display()
        );
        let binary = find()?;
        let dir = tempfile::Builder::new().prefix("roadstead-tf-").tempdir()?;
        let version = env!("CARGO_PKG_VERSION");
        let place = dir.path().join("mirror").join(PROVIDER_SOURCE).join(version).join("linux_amd64");
        std::fs::create_dir_all(&place)?;
        std::fs::create_dir_all(dir.path().join("work"))?;
        std::os::unix::fs::symlink(
            provider.canonicalize()?,
            place.join(format!("terraform-provider-roadstead_v{version}")),
        )?;
        let config = format!(
            "disable_checkpoint = true\nprovider_installation {{\n  filesystem_mirror {{\n    path = {:?}\n  }}\n}}\n",
            dir.path().join("mirror")
        );
        std::fs::write(dir.path().join("terraform.rc"), config)?;
        let mut terraform = Terraform { dir, binary, env: BTreeMap::new() };
        let rc = terraform.dir.path().join("terraform.rc");
        terraform.set("TF_CLI_CONFIG_FILE", &rc.display().to_string());
        terraform.set("TF_IN_AUTOMATION", "1");
        terraform.set("TF_INPUT", "0");
        Ok(terraform)
    }

    /// The program that is built beside this test's own.
    pub fn provider() -> Result<PathBuf> {
        if let Some(path) = std::env::var_os("ROADSTEAD_TERRAFORM_PROVIDER") {
            return Ok(PathBuf::from(path));
        }
        let test = std::env::current_exe()?;
        let folder = test.parent().and_then(Path::parent).context("no target folder")?;
        Ok(folder.join("terraform-provider-roadstead"))
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// Where the configuration is.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Replaces the configuration by this one, with the lines that name the provider.
    pub fn write(&self, configuration: &str) -> Result<()> {
        let head = format!(
            "terraform {{\n  required_providers {{\n    roadstead = {{ source = {PROVIDER_SOURCE:?} }}\n  }}\n}}\n"
        );
        Ok(std::fs::write(self.folder().join("main.tf"), head + configuration)?)
    }

    /// `terraform` with these words, to be run however the caller likes.
    pub fn command(&self, words: &[&str]) -> Command {
        self.given(Command::new(&self.binary), words)
    }

    fn given(&self, mut command: Command, words: &[&str]) -> Command {
        // The person's own settings must not reach a test.
        for (name, _) in std::env::vars() {
            if name.starts_with("TF_") || name.starts_with("ROADSTEAD_") {
                command.env_remove(name);
            }
        }
        let folder = self.folder();
        command.args(words).envs(&self.env).current_dir(folder).stdin(Stdio::null());
        command
    }

    /// Runs it, whatever comes of it.
    pub fn run(&self, words: &[&str]) -> Result<Ran> {
        let output = self
            .command(words)
            .output()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        Ok(Ran {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Standard output of a run that must succeed.
    pub fn ok(&self, words: &[&str]) -> Result<String> {
        let ran = self.run(words)?;
        if !ran.success {
            bail!("`terraform {}` failed:\n{}{}", words.join(" "), ran.stdout, ran.stderr);
        }
        Ok(ran.stdout)
    }

    /// What a run that must fail complained about, as one line without the frame around it.
    pub fn complaint(&self, words: &[&str]) -> Result<String> {
        let ran = self.run(words)?;
        ensure!(!ran.success, "`terraform {}` went well:\n{}", words.join(" "), ran.stdout);
        let words: Vec<&str> =
            ran.stderr.split_whitespace().filter(|word| !["╷", "│", "╵"].contains(word)).collect();
        Ok(words.join(" "))
    }

    pub fn init(&self) -> Result<()> {
        self.ok(&["init", "-no-color"]).map(drop)
    }

    pub fn apply(&self) -> Result<String> {
        self.ok(&["apply", "-auto-approve", "-no-color"])
    }

    /// In the background, without output.
    pub fn start_apply(&self) -> Result<Child> {
        let program = crate::bound(&self.binary, Signal::SIGKILL);
        let mut command = self.given(program, &["apply", "-auto-approve", "-no-color"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(crate::start(command)?)
    }

    /// What a plan would do, `address: action+action`, in order; nothing when nothing changes.
    pub fn plan(&self) -> Result<Vec<String>> {
        self.ok(&["plan", "-out=plan.bin", "-no-color"])?;
        let plan: Value = serde_json::from_str(&self.ok(&["show", "-json", "plan.bin"])?)?;
        let mut found = Vec::new();
        for (list, prefix) in [("resource_changes", ""), ("output_changes", "output.")] {
            let changes: Vec<(String, &Value)> = match plan.get(list) {
                Some(Value::Array(items)) => items
                    .iter()
                    .map(|item| (item["address"].as_str().unwrap_or_default().to_owned(), &item["change"]))
                    .collect(),
                Some(Value::Object(items)) => items.iter().map(|(name, item)| (name.clone(), item)).collect(),
                _ => Vec::new(),
            };
            for (address, change) in changes {
                let actions: Vec<&str> =
                    change["actions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                if actions != ["no-op"] && actions != ["read"] {
                    found.push(format!("{prefix}{address}: {}", actions.join("+")));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Attributes of what the state has, by address.
    pub fn state(&self) -> Result<BTreeMap<String, Value>> {
        let shown: Value = serde_json::from_str(&self.ok(&["show", "-json"])?)?;
        let resources = shown.pointer("/values/root_module/resources").and_then(Value::as_array);
        let entry =
            |one: &Value| (one["address"].as_str().unwrap_or_default().to_owned(), one["values"].clone());
        Ok(resources.into_iter().flatten().map(entry).collect())
    }

    /// One attribute of one resource, as text.
    pub fn attribute(&self, address: &str, name: &str) -> Result<String> {
        let state = self.state()?;
        let value = state.get(address).with_context(|| format!("{address} is not in the state"))?.get(name);
        match value {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Ok(other.to_string()),
            None => bail!("{address} has no {name}"),
        }
    }

    pub fn output(&self, name: &str) -> Result<String> {
        self.ok(&["output", "-raw", name])
    }
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ROADSTEAD_TERRAFORM") {
        return Ok(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("terraform"))
        .find(|file| file.is_file())
        .context("terraform is missing: put it on PATH, or let `cargo xtask test` fetch it")
}
