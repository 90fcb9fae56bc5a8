//! Whose database a start is given: the one of this folder's fleet, or another's.
//!
//! A manager acts on what it finds, so a database that is not the fleet's own would make an empty fleet over
//! cells full of clusters. Folder and database therefore have the fleet's id, each written once, and [`judge`]
//! compares them before anything is started.
//!
//! Not here: what is in either.

use std::path::Path;

use anyhow::{Context, Result, bail};
use base_files::{read_text, write_private};
use base_ids::{CellId, FleetId};
use fleet_manager::{Belonging, Place};
use serde::{Deserialize, Serialize};

use super::layout::Layout;

/// What the folder knows of the fleet that it is part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    fleet: FleetId,
    /// Where its database was the last time, for messages.
    database: String,
    /// Whether the database is known to have the id too: false when a start ended in between.
    claimed: bool,
}

/// What of the folder tells fleets apart.
#[derive(Debug, Default)]
struct Folder {
    record: Option<Record>,
    cells: Vec<CellId>,
    /// How many clusters its cells hold.
    clusters: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The database has this id already.
    Same(FleetId),
    /// The database is this fleet's from now on.
    Claim(FleetId),
    /// A new fleet begins.
    Found,
    Refuse(String),
}

/// Makes sure that `place` is this folder's database, and writes down on both sides that it is.
pub async fn settle(layout: &Layout, place: &Place, adopt: bool) -> Result<()> {
    let folder = Folder::read(layout)?;
    let database = match place {
        // Not opened: what a refused start leaves behind would be in the way of a copy that is put back.
        Place::Sqlite(path) if is_empty(path) => Belonging { fleet: None, cells: Vec::new() },
        _ => fleet_manager::belonging(place).await.context("database")?,
    };
    let verdict = match judge(&folder, &database, layout.root(), &place.to_string()) {
        // Whoever says so has the database as it is; a new id, since the old one stays with the old database.
        Verdict::Refuse(_) if adopt => database.fleet.map_or(Verdict::Found, Verdict::Same),
        verdict => verdict,
    };
    let (fleet, claim) = match verdict {
        Verdict::Refuse(why) => bail!("{why}"),
        Verdict::Same(fleet) => (fleet, false),
        Verdict::Claim(fleet) => (fleet, true),
        Verdict::Found => (FleetId::generate(), true),
    };
    let mut record = Record { fleet, database: place.to_string(), claimed: !claim };
    if claim {
        // The folder first: the other way round, a start that ended here would find somebody else's database.
        record.write(layout)?;
        let whose = fleet_manager::claim(place, fleet).await.context("database")?;
        if whose != fleet {
            bail!("{place} has just become the database of another fleet ({whose}); give this one its own");
        }
        record.claimed = true;
    }
    if folder.record.as_ref() == Some(&record) { Ok(()) } else { record.write(layout) }
}

/// What `folder`, at `root`, and the database, at `place`, say of one another.
fn judge(folder: &Folder, database: &Belonging, root: &Path, place: &str) -> Verdict {
    let root = root.display();
    let acquainted = database.cells.iter().any(|cell| folder.cells.contains(cell));
    let way_out = "--adopt-database starts on this one all the same: clusters that it does not know are then \
                   managed by nobody";
    match (&folder.record, database.fleet) {
        (Some(record), Some(fleet)) if record.fleet == fleet => Verdict::Same(fleet),
        (Some(record), Some(other)) => Verdict::Refuse(format!(
            "{root} is of the fleet {}, whose database is {}, and {place} is the database of another fleet \
             ({other}); give the right one with --database. {way_out}",
            record.fleet, record.database
        )),
        (Some(record), None) if acquainted || !record.claimed => Verdict::Claim(record.fleet),
        (Some(record), None) => Verdict::Refuse(format!(
            "{place} knows nothing of the fleet in {root}, whose database is {}: give that one with --database, \
             or put it back from a backup. {way_out}",
            record.database
        )),
        (None, Some(fleet)) if acquainted => Verdict::Same(fleet),
        (None, None) if acquainted => Verdict::Found,
        (None, None) if folder.clusters > 0 => Verdict::Refuse(format!(
            "the cells in {root} hold {}, and {place} knows none of these cells: give the database that the \
             clusters were made with (--database), or put it back from a backup. {way_out}",
            if folder.clusters == 1 {
                "a cluster".to_owned()
            } else {
                format!("{} clusters", folder.clusters)
            }
        )),
        (None, None) if database.cells.is_empty() => Verdict::Found,
        (None, _) => Verdict::Refuse(format!(
            "{place} is the database of another fleet, which has its own cells; {root} is not its folder. Give \
             this one a database of its own, or that fleet's folder with --data. {way_out}"
        )),
    }
}

impl Folder {
    fn read(layout: &Layout) -> Result<Folder> {
        let file = layout.fleet();
        let record = match read_text(&file)? {
            Some(text) => Some(serde_json::from_str(&text).with_context(|| {
                format!("{} is damaged; remove it, it is made anew from the database", file.display())
            })?),
            None => None,
        };
        let mut folder = Folder { record, ..Folder::default() };
        for number in 1..=u8::MAX {
            let dir = layout.cell(number);
            if !dir.is_dir() {
                continue;
            }
            // One that is damaged is reported where it is used.
            let config = read_text(&dir.join("config.json"))?.unwrap_or_default();
            let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_default();
            folder.cells.extend(config["id"].as_str().and_then(|id| id.parse::<CellId>().ok()));
            let assigned = std::fs::read_dir(dir.join("assignments")).into_iter().flatten().flatten();
            folder.clusters +=
                assigned.filter(|file| file.path().extension().is_some_and(|end| end == "json")).count();
        }
        Ok(folder)
    }
}

impl Record {
    fn write(&self, layout: &Layout) -> Result<()> {
        write_private(&layout.fleet(), &serde_json::to_vec_pretty(self)?)
    }
}

fn is_empty(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.len() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_started_on_its_own_database() {
        let (ours, theirs) = (FleetId::generate(), FleetId::generate());
        let (cell, other) = (CellId::generate(), CellId::generate());
        let record = |fleet, claimed| Some(Record { fleet, database: "OLD".to_owned(), claimed });
        let folder = |record, cells: &[CellId], clusters| Folder { record, cells: cells.to_vec(), clusters };
        let database = |fleet, cells: &[CellId]| Belonging { fleet, cells: cells.to_vec() };
        for (case, folder, database, wanted) in [
            ("everything is new", folder(None, &[], 0), database(None, &[]), Ok("a new fleet")),
            ("as always", folder(record(ours, true), &[cell], 1), database(Some(ours), &[cell]), Ok("same")),
            ("moved", folder(record(ours, true), &[cell], 1), database(Some(ours), &[]), Ok("same")),
            ("older release", folder(None, &[cell], 3), database(None, &[cell]), Ok("a new fleet")),
            ("record lost", folder(None, &[cell], 3), database(Some(ours), &[cell]), Ok("same")),
            ("ended half way", folder(record(ours, false), &[], 0), database(None, &[]), Ok("claimed")),
            ("old backup", folder(record(ours, true), &[cell], 1), database(None, &[cell]), Ok("claimed")),
            (
                "another fleet's",
                folder(record(ours, true), &[cell], 1),
                database(Some(theirs), &[other]),
                Err("whose database is OLD, and NEW is the database of another fleet"),
            ),
            (
                "an empty one",
                folder(record(ours, true), &[cell], 1),
                database(None, &[]),
                Err("NEW knows nothing of the fleet in /data, whose database is OLD"),
            ),
            (
                "an empty one under clusters of an older release",
                folder(None, &[cell], 2),
                database(None, &[]),
                Err("the cells in /data hold 2 clusters, and NEW knows none of these cells"),
            ),
            (
                "a new folder on somebody's",
                folder(None, &[], 0),
                database(Some(theirs), &[other]),
                Err("NEW is the database of another fleet, which has its own cells; /data is not its folder"),
            ),
            (
                "a new folder on one of an older release",
                folder(None, &[], 0),
                database(None, &[other]),
                Err("NEW is the database of another fleet"),
            ),
        ] {
            let said = match judge(&folder, &database, Path::new("/data"), "NEW") {
                Verdict::Same(fleet) => {
                    assert_eq!(fleet, ours, "{case}");
                    Ok("same")
                }
                Verdict::Claim(fleet) => {
                    assert_eq!(fleet, ours, "{case}");
                    Ok("claimed")
                }
                Verdict::Found => Ok("a new fleet"),
                Verdict::Refuse(why) => Err(why),
            };
            match (said, wanted) {
                (Err(said), Err(wanted)) => {
                    assert!(said.contains(wanted) && said.contains("--adopt-database"), "{case}: {said}");
                }
                (said, wanted) => assert_eq!(said, wanted.map_err(str::to_owned), "{case}"),
            }
        }
    }
}
