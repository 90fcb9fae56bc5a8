//! Kubernetes objects as data.
