//! kubectl's verbs against the real binary, word for word: `tests/golden/kubectl.txt` has what is said and what
//! comes back.
//!
//! The transcript is Debian's kubectl, since what is printed is as much its doing as ours; any other one is
//! skipped, and tried by hand with `ROADSTEAD_KUBECTL=PATH`. `ROADSTEAD_GOLDEN=write` makes the file anew.
//!
//! Not here: what needs a node (`node`, `streams`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dev_testkit::{Fleet, Options};

/// The version that the transcript is of: 1.20, give or take its patches.
const VERSION: &str = "v1.20.";

#[test]
fn every_verb_says_what_it_always_said() -> Result<()> {
    let chosen = std::env::var_os("ROADSTEAD_KUBECTL").map(PathBuf::from);
    let kubectl = chosen.clone().unwrap_or_else(|| PathBuf::from("kubectl"));
    let version = Command::new(&kubectl).args(["version", "--client", "-o", "json"]).output()?;
    let version: serde_json::Value = serde_json::from_slice(&version.stdout)?;
    let version = version["clientVersion"]["gitVersion"].as_str().unwrap_or_default().to_owned();
    if chosen.is_none() && !version.starts_with(VERSION) {
        eprintln!("SKIPPED: the transcript is of kubectl {VERSION}x, this one is {version}");
        return Ok(());
    }
    let fleet = Fleet::start(Options::default())?;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let file = golden.join("kubectl.txt");
    let wanted = std::fs::read_to_string(&file)?;
    let found = transcript(&fleet, &kubectl, &golden, &wanted)?;
    if std::env::var_os("ROADSTEAD_GOLDEN").is_some_and(|value| value == "write") {
        return std::fs::write(&file, found).context("cannot write the transcript");
    }
    let differences = differences(&wanted, &found);
    ensure!(differences.is_empty(), "kubectl {version}:\n{}\n{}", differences.join("\n"), fleet.logs());
    Ok(())
}

/// Says every line of `script` that begins with `$`; gives the script with what came back.
fn transcript(fleet: &Fleet, kubectl: &Path, folder: &Path, script: &str) -> Result<String> {
    let mut found = String::new();
    for (line, _) in entries(script) {
        found.push_str(line);
        found.push('\n');
        let Some(words) = line.strip_prefix("$ ") else { continue };
        // A shell, since people quote and pipe; the function is the kubectl that was chosen.
        let program = format!("kubectl() {{ \"$KUBECTL\" \"$@\"; }}\n{words}");
        // A verb that waits for ever ends with 124, which no line expects.
        let output = Command::new("timeout")
            .args(["30", "bash", "-o", "pipefail", "-c", &program])
            .current_dir(folder)
            .env("KUBECTL", kubectl)
            .env("KUBECONFIG", fleet.demo_kubeconfig())
            .env("KUBECACHEDIR", fleet.demo_kubeconfig().with_extension("cache"))
            .env("HOME", fleet.data())
            .env("TZ", "UTC")
            .output()?;
        for part in [&output.stdout, &output.stderr] {
            for line in String::from_utf8_lossy(part).lines() {
                found.push_str(mask(line).trim_end());
                found.push('\n');
            }
        }
        if let Some(code) = output.status.code().filter(|code| *code != 0) {
            found.push_str(&format!("[exit {code}]\n"));
        }
    }
    Ok(found)
}

/// Commands, comments and the empty lines between them, each with what follows.
fn entries(script: &str) -> Vec<(&str, Vec<&str>)> {
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in script.lines() {
        match entries.last_mut() {
            // Output may be indented or empty; an empty line belongs to the script only before a comment.
            Some((said, output))
                if said.starts_with("$ ") && !line.starts_with("$ ") && !line.starts_with("# ") =>
            {
                output.push(line);
            }
            _ => entries.push((line, Vec::new())),
        }
    }
    entries
}

/// The commands that answered otherwise.
fn differences(wanted: &str, found: &str) -> Vec<String> {
    let (wanted, found) = (entries(wanted), entries(found));
    if wanted.len() != found.len() {
        return vec![format!("{} entries instead of {}", found.len(), wanted.len())];
    }
    let filled = |lines: &[&str]| lines.join("\n").trim_end().to_owned();
    let pairs = wanted.iter().zip(&found).filter(|(wanted, found)| filled(&wanted.1) != filled(&found.1));
    pairs
        .map(|(wanted, found)| {
            format!("{}\nwanted:\n{}\nfound:\n{}\n", wanted.0, filled(&wanted.1), filled(&found.1))
        })
        .collect()
}

/// Without what differs from run to run; columns two spaces apart.
fn mask(line: &str) -> String {
    let mut columns = Vec::new();
    for column in line.trim_start().split("  ").map(str::trim).filter(|column| !column.is_empty()) {
        let words: Vec<String> = column.split(' ').map(mask_word).collect();
        columns.push(words.join(" "));
    }
    let indent = if line.starts_with(' ') { "  " } else { "" };
    format!("{indent}{}", columns.join("  "))
}

fn mask_word(word: &str) -> String {
    let is_age = |word: &str| {
        let digits = word.trim_end_matches(['s', 'm', 'h', 'd']);
        word.len() > 1
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word.starts_with(|first: char| first.is_ascii_digit())
            && digits.chars().all(|one| one.is_ascii_digit() || "smhd".contains(one))
    };
    let bare = word.trim_matches(|one: char| "\"'(),".contains(one));
    if is_age(bare) {
        return word.replace(bare, "AGE");
    }
    if bare.parse::<std::net::IpAddr>().is_ok() {
        return word.replace(bare, "IP");
    }
    // 2026-12-01T09:00:00Z
    if bare.len() >= 20 && bare.ends_with('Z') && bare.get(4..5) == Some("-") && bare.get(10..11) == Some("T")
    {
        return word.replace(bare, "TIME");
    }
    // 2026-12-01 09:00:00, in two words
    let shaped = |shape: &str| {
        bare.len() == shape.len()
            && bare.chars().zip(shape.chars()).all(|(found, wanted)| match wanted {
                '0' => found.is_ascii_digit(),
                other => found == other,
            })
    };
    if shaped("0000-00-00") || shaped("00:00:00") {
        return word.replace(bare, "TIME");
    }
    // kubectl's own names for files, and those the server made up.
    let generated =
        |part: &str| part.len() == 5 && part.chars().all(|one| "bcdfghjklmnpqrstvwxz2456789".contains(one));
    match word.rsplit_once('-') {
        Some((before, last)) if generated(last) => format!("{before}-RANDOM"),
        _ if word.contains("kubectl-edit-") => "FILE".to_owned(),
        _ => word.to_owned(),
    }
}

#[test]
fn what_is_masked() {
    for (line, wanted) in [
        ("made   ClusterIP   10.0.0.7   <none>   80/TCP   12s", "made  ClusterIP  IP  <none>  80/TCP  AGE"),
        ("once-x7k2p   0/1   Pending   0   1m2s", "once-RANDOM  0/1  Pending  0  AGE"),
        ("    a:   1", "  a:  1"),
        ("at 2026-12-01T09:00:00Z", "at TIME"),
        ("Created on:  2026-12-01 09:00:00 +0000 UTC", "Created on:  TIME TIME +0000 UTC"),
        ("kube-public   Active", "kube-public  Active"),
        ("configmap/plain patched", "configmap/plain patched"),
        ("days", "days"),
    ] {
        assert_eq!(mask(line), wanted, "{line:?}");
    }
}
