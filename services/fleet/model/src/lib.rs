//! Organisations, clusters, operations as data.
