//! The scheduler's pure filters and scores.
