//! Remembers creations until Terraform has them in its state, so that a killed apply makes no twins.
//!
//! Terraform writes a new resource down only after we have answered. Were it (or we) killed before, the
//! next apply would create the thing again. So each creation is noted first, with the idempotency key it is
//! sent under; the next apply that asks for exactly the same takes that key, and the manager answers with
//! what it made the first time. The note goes when the thing appears in a state, or is deleted.
//!
//! It is a small file in Terraform's own data folder, and it holds no secret: keys are useless without the
//! token. A damaged file is an empty one; then the second creation is refused for its name, or, where there
//! are no names, made.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const FILE: &str = "roadstead-creations.json";

/// The manager keeps its answers for a day; an older key would make something new.
const LIFETIME: SignedDuration = SignedDuration::from_hours(23);

/// A plan with more creations than this in a day is cut at the oldest.
const MAX_NOTES: usize = 10_000;

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
struct Note {
    /// Of what is asked for, and of whom.
    digest: String,
    key: String,
    at: Timestamp,
    /// The process that is at it. One that is gone left its note to whoever comes next.
    process: u32,
    /// That process's Terraform.
    #[serde(default)]
    parent: u32,
    /// Known once the manager has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    creations: Vec<Note>,
}

/// The key to send a creation under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub key: String,
    /// It was sent before, by a process that ended before Terraform wrote down what came of it.
    pub repeated: bool,
}

#[derive(Debug, Clone)]
pub struct Journal {
    /// `None` where Terraform has no data folder.
    file: Option<PathBuf>,
    process: u32,
}

impl Journal {
    /// `folder` is Terraform's data folder (`TF_DATA_DIR`, else `.terraform`).
    pub fn in_folder(folder: &Path) -> Journal {
        let file = folder.is_dir().then(|| folder.join(FILE));
        Journal { file, process: std::process::id() }
    }

    /// What identifies a request: whom it is for, what it makes, and every value in it.
    pub fn digest(parts: &[&str]) -> String {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hex::encode(hash.finalize())
    }

    /// The key of an unfinished creation of the same, or `fresh`, noted.
    pub fn begin(&self, digest: &str, fresh: &str, now: Timestamp) -> std::io::Result<Ticket> {
        self.change(|notes| begin(notes, digest, fresh, now, self.process, is_at_it))
            .map(|ticket| ticket.unwrap_or_else(|| Ticket { key: fresh.to_owned(), repeated: false }))
    }

    /// The creation under `key` came to this.
    pub fn made(&self, key: &str, id: &str) -> std::io::Result<()> {
        self.change(|notes| {
            for note in notes.iter_mut().filter(|note| note.key == key) {
                note.id = Some(id.to_owned());
            }
        })
        .map(drop)
    }

    /// It was refused, or what it made is gone: the key is of no use.
    pub fn forget(&self, key: &str) -> std::io::Result<()> {
        self.change(|notes| notes.retain(|note| note.key != key)).map(drop)
    }

    /// Terraform knows of the thing with this id (or it was deleted).
    pub fn settle(&self, id: &str) -> std::io::Result<()> {
        // Asked about every resource at every plan, and nearly always there is nothing.
        let known = |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains(id));
        if !self.file.as_ref().is_some_and(known) {
            return Ok(());
        }
        self.change(|notes| notes.retain(|note| note.id.as_deref() != Some(id))).map(drop)
    }

    /// Under a lock, since two configurations of this provider are two processes in one folder.
    fn change<T>(&self, work: impl FnOnce(&mut Vec<Note>) -> T) -> std::io::Result<Option<T>> {
        let Some(path) = &self.file else { return Ok(None) };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        file.read_to_string(&mut text).or_else(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Ok(0),
            _ => Err(error),
        })?;
        let mut notes: Notes = serde_json::from_str(&text).unwrap_or_default();
        let before = notes.creations.clone();
        let result = work(&mut notes.creations);
        if notes.creations != before {
            write(&mut file, &notes)?;
        }
        Ok(Some(result))
    }
}

fn write(file: &mut File, notes: &Notes) -> std::io::Result<()> {
    let text = serde_json::to_vec(notes)?;
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(&text)?;
    // The request must not leave before its note is safe.
    file.sync_all()
}

fn begin(
    notes: &mut Vec<Note>,
    digest: &str,
    fresh: &str,
    now: Timestamp,
    process: u32,
    is_at_it: impl Fn(&Note) -> bool,
) -> Ticket {
    notes.retain(|note| now.duration_since(note.at) < LIFETIME);
    let open =
        notes.iter_mut().find(|note| note.digest == digest && note.process != process && !is_at_it(note));
    if let Some(note) = open {
        (note.process, note.parent) = (process, std::os::unix::process::parent_id());
        return Ticket { key: note.key.clone(), repeated: true };
    }
    if notes.len() >= MAX_NOTES {
        notes.remove(0);
    }
    notes.push(Note {
        digest: digest.to_owned(),
        key: fresh.to_owned(),
        at: now,
        process,
        parent: std::os::unix::process::parent_id(),
        id: None,
    });
    Ticket { key: fresh.to_owned(), repeated: false }
}

/// Whether whoever made the note still works for the Terraform it worked for. A killed process may stay in
/// the table for long, until somebody asks how it ended; and one whose Terraform was killed is about to go.
fn is_at_it(note: &Note) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", note.process)).unwrap_or_default();
    lives_under(&stat, note.parent)
}

/// `PID (NAME) STATE PPID …`; the name may hold anything.
fn lives_under(stat: &str, parent: u32) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut words = rest.split(' ');
    let ended = matches!(words.next(), None | Some("Z" | "X" | "x"));
    !ended && words.next().and_then(|word| word.parse().ok()) == Some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hour)
    }

    #[test]
    fn a_key_is_taken_over_from_a_process_that_is_gone() {
        // Digest, process, hour; what it got; processes below 10 are gone.
        let mut notes = Vec::new();
        for (nth, (digest, process, hour, wanted)) in [
            ("a", 1, 0, "key-0"),
            ("a", 1, 0, "key-1"),
            // Two of the same are two; each is taken over once.
            ("a", 2, 1, "key-0 again"),
            ("a", 2, 1, "key-1 again"),
            ("a", 2, 1, "key-4"),
            ("b", 2, 1, "key-5"),
            ("b", 10, 1, "key-5 again"),
            // That one still runs.
            ("b", 11, 1, "key-7"),
            // Notes get old.
            ("a", 12, 23, "key-4 again"),
            ("a", 13, 24, "key-9"),
        ]
        .into_iter()
        .enumerate()
        {
            let ticket =
                begin(&mut notes, digest, &format!("key-{nth}"), at(hour), process, |one| one.process >= 10);
            let said = ticket.key + if ticket.repeated { " again" } else { "" };
            assert_eq!(said, wanted, "step {nth}");
        }
    }

    #[test]
    fn a_zombie_and_an_orphan_are_at_nothing() {
        for (stat, wanted) in [
            ("7 (terraform-provi) S 5 7 7", true),
            ("7 (a) b) R 5 7 7", true),
            ("7 (terraform-provi) Z 5 7 7", false),
            ("7 (terraform-provi) S 1 7 7", false),
            ("", false),
            ("7 (x) ", false),
        ] {
            assert_eq!(lives_under(stat, 5), wanted, "{stat}");
        }
    }

    #[test]
    fn notes_survive_and_are_settled() {
        let dir = tempfile::tempdir().unwrap();
        let ours = Journal::in_folder(dir.path());
        let next = Journal { process: u32::MAX, ..ours.clone() };
        let gone = Journal { process: u32::MAX - 1, ..ours.clone() };
        let digest = Journal::digest(&["https://m", "roadstead_cluster", "{}"]);
        assert_ne!(digest, Journal::digest(&["https://mroadstead_cluster", "", "{}"]));

        let begin = |journal: &Journal, key: &str| journal.begin(&digest, key, at(0)).unwrap();
        assert_eq!(begin(&gone, "k1"), Ticket { key: "k1".to_owned(), repeated: false });
        gone.made("k1", "id-1").unwrap();
        assert_eq!(begin(&next, "k2"), Ticket { key: "k1".to_owned(), repeated: true });
        next.settle("id-1").unwrap();
        assert_eq!(begin(&next, "k3"), Ticket { key: "k3".to_owned(), repeated: false });
        next.forget("k3").unwrap();

        std::fs::write(dir.path().join(FILE), "\u{0}{damaged").unwrap();
        assert_eq!(begin(&ours, "k4"), Ticket { key: "k4".to_owned(), repeated: false });
        assert!(std::fs::read_to_string(dir.path().join(FILE)).unwrap().contains("k4"));
    }

    #[test]
    fn without_a_folder_there_is_no_journal() {
        let journal = Journal::in_folder(Path::new("/nonexistent"));
        let ticket = journal.begin("d", "k", at(0)).unwrap();
        assert_eq!(ticket, Ticket { key: "k".to_owned(), repeated: false });
        journal.made("k", "id").unwrap();
        journal.settle("id").unwrap();
    }
}
