//! Routes TLS by SNI.
