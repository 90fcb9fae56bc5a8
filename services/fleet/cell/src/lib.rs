//! Hosts many clusters' control planes.
