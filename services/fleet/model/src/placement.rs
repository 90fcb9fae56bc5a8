//! Chooses the cell that hosts a new cluster.
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
    pub clusters: u32,
    /// Clusters this cell takes at most.
    pub capacity: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("the fleet has no cells; start one")]
    NoCells,
    #[error("none of the {cells} cells can take a cluster: {unreachable} unreachable, {full} full")]
    NoRoom { cells: usize, unreachable: usize, full: usize },
}

/// The reachable cell with room that hosts the fewest clusters; the lowest id among equals.
pub fn place(cells: &[Candidate]) -> Result<CellId, PlacementError> {
    if cells.is_empty() {
        return Err(PlacementError::NoCells);
    }
    cells
        .iter()
        .filter(|cell| cell.reachable && cell.clusters < cell.capacity)
        .min_by_key(|cell| (cell.clusters, cell.id))
        .map(|cell| cell.id)
        .ok_or_else(|| PlacementError::NoRoom {
            cells: cells.len(),
            unreachable: cells.iter().filter(|cell| !cell.reachable).count(),
            full: cells.iter().filter(|cell| cell.reachable && cell.clusters >= cell.capacity).count(),
        })
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
    fn a_cluster_goes_to_the_emptiest_cell_that_answers() {
        for (cells, wanted) in [
            (vec![], Err(PlacementError::NoCells)),
            (vec![cell(1, true, 5), cell(2, true, 3)], Ok(id(2))),
            (vec![cell(2, true, 3), cell(1, true, 3)], Ok(id(1))),
            (vec![cell(1, false, 0), cell(2, true, 9)], Ok(id(2))),
            (
                vec![cell(1, false, 0), cell(2, true, 10)],
                Err(PlacementError::NoRoom { cells: 2, unreachable: 1, full: 1 }),
            ),
        ] {
            assert_eq!(place(&cells), wanted, "{cells:?}");
        }
    }
}
