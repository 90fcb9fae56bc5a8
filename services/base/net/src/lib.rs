//! TLS, certificates, listeners, task trees.
