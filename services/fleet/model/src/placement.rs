//! Chooses the cells that host a new cluster.
//!
//! [`place`] takes the fleet as last observed; it reads no clock and does no I/O, so a placement can be
//! replayed from a bug report.
//!
//! Not here: moving a cluster that already runs.

use base_ids::CellId;

/// A cell as last observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub id: CellId,
    pub reachable: bool,
    /// Replicas of clusters that it hosts.
    pub clusters: u32,
    /// How many it takes at most.
    pub capacity: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("the fleet has no cells; start one")]
    NoCells,
    /// Waiting is no use.
    #[error("{replicas} replicas need {replicas} cells, and the fleet has {cells}")]
    TooFewCells { replicas: u8, cells: usize },
    /// It may be different in a moment.
    #[error(
        "{replicas} of the {cells} cells would have to take a replica: {unreachable} are unreachable, {full} full"
    )]
    NoRoom { replicas: u8, cells: usize, unreachable: usize, full: usize },
}

/// As many different reachable cells with room as there are `replicas`, those with the fewest clusters first,
/// the lower id among equals.
pub fn place(cells: &[Candidate], replicas: u8) -> Result<Vec<CellId>, PlacementError> {
    if cells.is_empty() {
        return Err(PlacementError::NoCells);
    }
    let wanted = usize::from(replicas);
    if cells.len() < wanted {
        return Err(PlacementError::TooFewCells { replicas, cells: cells.len() });
    }
    let has_room = |cell: &&Candidate| cell.clusters < cell.capacity;
    let mut fit: Vec<&Candidate> = cells.iter().filter(|cell| cell.reachable).filter(has_room).collect();
    if fit.len() < wanted {
        return Err(PlacementError::NoRoom {
            replicas,
            cells: cells.len(),
            unreachable: cells.iter().filter(|cell| !cell.reachable).count(),
            full: cells.iter().filter(|cell| cell.reachable && !has_room(cell)).count(),
        });
    }
    fit.sort_by_key(|cell| (cell.clusters, cell.id));
    Ok(fit.into_iter().take(wanted).map(|cell| cell.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(n: u128, reachable: bool, clusters: u32) -> Candidate {
        Candidate { id: id(n), reachable, clusters, capacity: 10 }
    }
    fn id(n: u128) -> CellId {
        let text = format!("00000000-0000-0000-0000-{n:012}");
        text.parse().unwrap()
    }

    #[test]
    fn a_cluster_goes_to_the_emptiest_cells_that_answer() {
        let three = || vec![cell(1, true, 5), cell(2, true, 3), cell(3, true, 4)];
        let two_up = || vec![cell(1, true, 5), cell(2, false, 3), cell(3, true, 4)];
        for (cells, replicas, wanted) in [
            (vec![], 1, Err(PlacementError::NoCells)),
            (vec![cell(1, true, 5), cell(2, true, 3)], 1, Ok(vec![id(2)])),
            (vec![cell(2, true, 3), cell(1, true, 3)], 1, Ok(vec![id(1)])),
            (vec![cell(1, false, 0), cell(2, true, 9)], 1, Ok(vec![id(2)])),
            (
                vec![cell(1, false, 0), cell(2, true, 10)],
                1,
                Err(PlacementError::NoRoom { replicas: 1, cells: 2, unreachable: 1, full: 1 }),
            ),
            (three(), 3, Ok(vec![id(2), id(3), id(1)])),
            (three(), 1, Ok(vec![id(2)])),
            (three()[..2].to_vec(), 3, Err(PlacementError::TooFewCells { replicas: 3, cells: 2 })),
            (two_up(), 3, Err(PlacementError::NoRoom { replicas: 3, cells: 3, unreachable: 1, full: 0 })),
            (two_up(), 1, Ok(vec![id(3)])),
        ] {
            assert_eq!(place(&cells, replicas), wanted, "{cells:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_said_in_words() {
        for (error, words) in [
            (
                PlacementError::TooFewCells { replicas: 3, cells: 2 },
                "3 replicas need 3 cells, and the fleet has 2",
            ),
            (
                PlacementError::NoRoom { replicas: 3, cells: 3, unreachable: 1, full: 0 },
                "3 of the 3 cells would have to take a replica: 1 are unreachable, 0 full",
            ),
        ] {
            assert_eq!(error.to_string(), words);
        }
    }
}
