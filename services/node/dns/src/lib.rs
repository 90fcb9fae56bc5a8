//! Cluster DNS.
