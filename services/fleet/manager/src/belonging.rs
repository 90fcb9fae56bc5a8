//! Whose a database is: asked before a manager is started on it, since a manager acts on what it finds.
//!
//! Not here: what to do about the answer, which whoever keeps the fleet's folders knows.

use base_ids::{CellId, FleetId};

use crate::db::{Db, DbError, Place};

/// What a database says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belonging {
    /// `None`: nobody's yet, or of a release that wrote no ids down.
    pub fleet: Option<FleetId>,
    /// The cells that it knows.
    pub cells: Vec<CellId>,
}

/// Looks, and brings the tables up to date for that; nothing else is changed.
pub async fn belonging(place: &Place) -> Result<Belonging, DbError> {
    let db = Db::open(place).await?;
    let found = async {
        let cells = db.cells().await?.into_iter().map(|cell| cell.id).collect();
        Ok(Belonging { fleet: db.fleet().await?, cells })
    };
    let found = found.await;
    db.close().await;
    found
}

/// Makes the database `fleet`'s unless it is somebody's already; whose it is then.
pub async fn claim(place: &Place, fleet: FleetId) -> Result<FleetId, DbError> {
    let db = Db::open(place).await?;
    let whose = db.fleet_or(fleet).await;
    db.close().await;
    whose
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_comes_first_has_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::Sqlite(dir.path().join("manager.db"));
        let nobodys = Belonging { fleet: None, cells: Vec::new() };
        assert_eq!(belonging(&place).await.unwrap(), nobodys);
        let (first, second) = (FleetId::generate(), FleetId::generate());
        assert_eq!(claim(&place, first).await.unwrap(), first);
        assert_eq!(claim(&place, second).await.unwrap(), first);
        assert_eq!(belonging(&place).await.unwrap().fleet, Some(first));
    }
}
