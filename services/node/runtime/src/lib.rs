//! CRI client for containerd.
