//! REST types and client.
