//! One log per cell, shared by all tenants.
//!
//! A single writer thread takes what every group has queued, writes it in one piece and syncs once, so
//! fsyncs per second do not grow with the number of tenants. Start at [`Log::open`] and [`Log::submit`].
//! Each group has an index in memory (where each of its entries lies); segments are a plain first-in
//! first-out queue of files, and the live rest of the oldest is copied forward when it is worth it.
//!
//! What is promised: `done` is called after the bytes are on the disk; entries are readable as soon as
//! `submit` returns; a torn tail is cut off at open, a bad frame before it is an error that names file and
//! offset; a failed fsync is final ([`LogError::Failed`]); a full disk refuses writes before any fsync
//! ([`Log::accepting`]) and recovers by itself.
//!
//! Not here: what entries mean, compression, encryption (bodies arrive finished) and Raft's rules.

mod error;
mod files;
mod frame;
mod index;
mod log;
pub mod memory;
mod recover;
mod segment;
mod writer;

pub use error::{Failure, LogError};
pub use files::{File, Files, OsFiles};
pub use frame::GroupId;
pub use index::{GroupState, Position};
pub use log::{Change, Log, LogConfig, Record, Stats, Urgency};
