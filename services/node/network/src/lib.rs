//! Network namespaces, CNI, underlay.
