//! Ranges of sizes and costs. Arithmetic stops at the largest number there is.

/// From the least to the most that something costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostRange {
    pub min: u64,
    pub max: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub min: u64,
    pub max: u64,
}

pub(super) fn fixed(cost: u64) -> CostRange {
    CostRange { min: cost, max: cost }
}

fn scaled(amount: u64, factor: f64) -> u64 {
    // A cast of what does not fit gives the largest number.
    (amount as f64 * factor).ceil() as u64
}

impl CostRange {
    pub(super) fn add(self, other: CostRange) -> CostRange {
        CostRange { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }
    pub(super) fn times(self, other: CostRange) -> CostRange {
        CostRange { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }
    pub(super) fn factor(self, factor: f64) -> CostRange {
        CostRange { min: scaled(self.min, factor), max: scaled(self.max, factor) }
    }
    pub(super) fn union(self, other: CostRange) -> CostRange {
        CostRange { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

impl Size {
    pub const UNKNOWN: Size = Size { min: 0, max: u64::MAX };

    pub fn fixed(size: u64) -> Size {
        Size { min: size, max: size }
    }
    pub fn add(self, other: Size) -> Size {
        Size { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }
    pub fn times(self, other: Size) -> Size {
        Size { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }
    pub fn factor(self, factor: f64) -> CostRange {
        CostRange { min: scaled(self.min, factor), max: scaled(self.max, factor) }
    }
    pub fn times_cost(self, cost: CostRange) -> CostRange {
        CostRange { min: self.min.saturating_mul(cost.min), max: self.max.saturating_mul(cost.max) }
    }
    pub fn union(self, other: Size) -> Size {
        Size { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}
