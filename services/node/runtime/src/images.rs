//! Images that need no registry.
//!
//! [`demo`] and [`pause`] assemble OCI archives from files of this machine; [`import_folder`] loads every
//! tar of a folder, whoever put it there. The archives are deterministic: the same input gives the same
//! digest, so that a node that has the image is not asked to unpack it again.
//!
//! Not here: pulling from a registry, which is containerd's work.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::PAUSE_IMAGE;

/// The static, libc-free PID 1 of sandboxes; its source is `pause/pause.rs`.
const PAUSE_BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// Where Debian's busybox-static puts its binary.
pub const BUSYBOX: &str = "/bin/busybox";

/// What `demo:N` runs unless it is told otherwise: a web server that answers its host's name.
///
/// The shell stays PID 1 because PID 1 must ask for SIGTERM to get it, and busybox's httpd doesn't.
const SERVE: &str = r#"#!/bin/sh
trap 'kill $server 2>/dev/null; exit 0' TERM INT
httpd -f -v -p "${PORT:-8080}" -h /www &
server=$!
echo "demo $(cat /etc/demo-version) on $(hostname) listens on :${PORT:-8080}"
wait $server
"#;

/// busybox's httpd runs it for `/` when there is no index.html.
const INDEX: &str = r#"#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
hostname
"#;

/// One more page, to tell the versions apart.
const VERSION_PAGE: &str = r#"#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
cat /etc/demo-version
"#;

/// An image ready to be imported.
#[derive(Debug, Clone)]
pub struct Archive {
    /// `roadstead.local/demo:1`
    pub reference: String,
    /// An OCI image layout in a tar.
    pub tar: Vec<u8>,
}

impl Archive {
    /// The name of its file in an images folder: `demo-1.tar`.
    pub fn file_name(&self) -> String {
        let name = self.reference.rsplit('/').next().unwrap_or(&self.reference);
        format!("{}.tar", name.replace(':', "-"))
    }

    /// Puts the archive into `folder`, whole or not at all. Gives the path; an equal file is left alone.
    pub fn write_to(&self, folder: &Path) -> io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(self.file_name());
        if std::fs::read(&path).is_ok_and(|old| old == self.tar) {
            return Ok(path);
        }
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&self.tar)?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(path)
    }
}

/// The sandbox image, [`PAUSE_IMAGE`].
pub fn pause() -> io::Result<Archive> {
    let mut layer = Layer::new();
    layer.file("pause", PAUSE_BINARY, 0o755)?;
    let config = json!({ "Entrypoint": ["/pause"], "User": "65535:65535", "WorkingDir": "/" });
    assemble(PAUSE_IMAGE, layer, config)
}

/// `roadstead.local/demo:<version>` from a static busybox: a shell with its usual tools and a tiny web server.
///
/// It has a Cmd and no Entrypoint, so that `kubectl run … -- wget -qO- http://web`, which sets `args`,
/// runs just that. `applets` are the names busybox answers to (`busybox --list`).
pub fn demo(version: u32, busybox: &[u8], applets: &[String]) -> io::Result<Archive> {
    let mut layer = Layer::new();
    for (folder, mode) in [
        ("bin", 0o755),
        ("dev", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("proc", 0o755),
        ("root", 0o700),
        ("sys", 0o755),
    ] {
        layer.folder(folder, mode)?;
    }
    layer.folder("tmp", 0o1777)?;
    for folder in ["usr", "usr/bin", "var", "var/run", "www", "www/cgi-bin"] {
        layer.folder(folder, 0o755)?;
    }
    layer.file("bin/busybox", busybox, 0o755)?;
    let mut applets: Vec<&str> =
        applets.iter().map(String::as_str).filter(|name| *name != "busybox").collect();
    applets.sort_unstable();
    applets.dedup();
    for applet in applets {
        layer.link(&format!("bin/{applet}"), "busybox")?;
    }
    // Scripts in the wild begin with `#!/usr/bin/env`.
    layer.link("usr/bin/env", "../../bin/busybox")?;
    layer.file("bin/serve", SERVE.as_bytes(), 0o755)?;
    layer.file("www/cgi-bin/index.cgi", INDEX.as_bytes(), 0o755)?;
    layer.file("www/cgi-bin/version", VERSION_PAGE.as_bytes(), 0o755)?;
    layer.file("etc/demo-version", format!("{version}\n").as_bytes(), 0o644)?;
    let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n";
    layer.file("etc/passwd", passwd.as_bytes(), 0o644)?;
    layer.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n", 0o644)?;
    layer.file("etc/nsswitch.conf", b"hosts: files dns\n", 0o644)?;
    let config = json!({
        "Cmd": ["/bin/serve"],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "WorkingDir": "/",
        "ExposedPorts": { "8080/tcp": {} },
    });
    assemble(&format!("roadstead.local/demo:{version}"), layer, config)
}

/// [`demo`] from this machine's [`BUSYBOX`].
pub async fn demo_of_this_machine(version: u32) -> io::Result<Archive> {
    let missing = |cause: io::Error| {
        io::Error::new(cause.kind(), format!("{BUSYBOX}: {cause} (install Debian's busybox-static)"))
    };
    let binary = tokio::fs::read(BUSYBOX).await.map_err(missing)?;
    let listing = Command::new(BUSYBOX).arg("--list").output().await.map_err(missing)?;
    let applets: Vec<String> = String::from_utf8_lossy(&listing.stdout).lines().map(str::to_owned).collect();
    if !listing.status.success() || applets.is_empty() {
        return Err(io::Error::other(format!("{BUSYBOX} --list names no applets")));
    }
    demo(version, &binary, &applets)
}

/// Imports every `*.tar` of `folder` into the containerd at `socket`, in the order of their names.
///
/// Gives the files that could not be imported, each with a reason of one line; they keep nobody else back.
pub async fn import_folder(socket: &Path, folder: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let mut tars = Vec::new();
    let mut entries = match tokio::fs::read_dir(folder).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    while let Some(entry) = entries.next_entry().await? {
        if entry.path().extension().is_some_and(|extension| extension == "tar") {
            tars.push(entry.path());
        }
    }
    tars.sort();
    let mut failed = Vec::new();
    for tar in tars {
        if let Err(reason) = import(socket, &tar).await {
            tracing::warn!(file = %tar.display(), reason, "image archive was not imported");
            failed.push((tar, reason));
        }
    }
    Ok(failed)
}

/// Imports one archive with the `ctr` that ships with containerd.
async fn import(socket: &Path, tar: &Path) -> Result<(), String> {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images", "import"]);
    let output = command
        .arg(tar)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|cause| format!("ctr does not start: {cause}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("ctr failed without a word");
    Err(line.trim().to_owned())
}

/// A filesystem layer being written.
struct Layer {
    tar: tar::Builder<Vec<u8>>,
}

impl Layer {
    fn new() -> Layer {
        Layer { tar: tar::Builder::new(Vec::new()) }
    }
    fn folder(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let mut header = header(tar::EntryType::Directory, mode, 0);
        self.tar.append_data(&mut header, format!("{path}/"), io::empty())
    }
    fn file(&mut self, path: &str, data: &[u8], mode: u32) -> io::Result<()> {
        let mut header = header(tar::EntryType::Regular, mode, data.len());
        self.tar.append_data(&mut header, path, data)
    }
    fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        self.tar.append_link(&mut header, path, target)
    }
}

/// Owner root, time zero: nothing that differs between two runs.
fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// An OCI image layout with one image of one layer, under the name `reference`.
fn assemble(reference: &str, layer: Layer, config: serde_json::Value) -> io::Result<Archive> {
    let mut blobs = Vec::new();
    let mut add = |bytes: Vec<u8>| {
        let digest = hex::encode(Sha256::digest(&bytes));
        let size = bytes.len();
        blobs.push((digest.clone(), bytes));
        (format!("sha256:{digest}"), size)
    };
    let (layer_digest, layer_size) = add(layer.tar.into_inner()?);
    let image = json!({
        "created": "1970-01-01T00:00:00Z",
        "architecture": architecture(),
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [layer_digest] },
    });
    let (config_digest, config_size) = add(serde_json::to_vec(&image)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config_digest,
            "size": config_size,
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": layer_digest,
            "size": layer_size,
        }],
    });
    let (manifest_digest, manifest_size) = add(serde_json::to_vec(&manifest)?);
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest_digest,
            "size": manifest_size,
            "annotations": {
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": reference.rsplit(':').next().unwrap_or("latest"),
            },
            "platform": { "architecture": architecture(), "os": "linux" },
        }],
    });

    let mut archive = Layer::new();
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    archive.file("index.json", &serde_json::to_vec(&index)?, 0o644)?;
    archive.folder("blobs", 0o755)?;
    archive.folder("blobs/sha256", 0o755)?;
    for (digest, bytes) in blobs {
        archive.file(&format!("blobs/sha256/{digest}"), &bytes, 0o644)?;
    }
    Ok(Archive { reference: reference.to_owned(), tar: archive.tar.into_inner()? })
}

/// This machine's architecture by its OCI name.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_the_same_every_time_and_holds_what_it_says() {
        let applets = ["sh", "wget", "sh", "busybox"].map(str::to_owned);
        let first = demo(1, b"not really busybox", &applets).unwrap();
        let again = demo(1, b"not really busybox", &applets).unwrap();
        assert_eq!(first.tar, again.tar);
        assert_ne!(first.tar, demo(2, b"not really busybox", &applets).unwrap().tar);
        for (archive, reference, file) in
            [(first, "roadstead.local/demo:1", "demo-1.tar"), (pause().unwrap(), PAUSE_IMAGE, "pause-1.tar")]
        {
            assert_eq!(archive.file_name(), file);
            let mut index = None;
            let mut blobs = 0;
            for entry in tar::Archive::new(archive.tar.as_slice()).entries().unwrap() {
                let mut entry = entry.unwrap();
                let path = entry.path().unwrap().display().to_string();
                let mut bytes = Vec::new();
                io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
                if path == "index.json" {
                    index = Some(serde_json::from_slice::<serde_json::Value>(&bytes).unwrap());
                } else if let Some(digest) =
                    path.strip_prefix("blobs/sha256/").filter(|name| !name.is_empty())
                {
                    assert_eq!(digest, hex::encode(Sha256::digest(&bytes)), "{reference}");
                    blobs += 1;
                }
            }
            assert_eq!(blobs, 3, "{reference}: layer, config, manifest");
            let index = index.unwrap();
            assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], reference);
        }
    }
}
