//! What a pod mounts.
