//! Byte streams through one outbound gRPC connection.
//!
//! A node that nobody can dial (NAT, firewall) opens one HTTP/2 connection to its server; from then on
//! either side opens byte streams to the other through it. [`Registry`] is the server's half: mount
//! [`Registry::service`] where the nodes arrive, then [`Registry::open`] reaches an address as the node
//! sees it. [`TunnelClient`] is the node's half. Both hand out [`TunnelStream`]s, which are ordinary
//! `AsyncRead + AsyncWrite` with half-close, and as fast as their slower end.
//!
//! Not here: TLS (the connector and the host bring it), who a node is (the host authenticates and says
//! so in a [`NodeIdentity`] extension), which addresses mean what. It has never heard of Kubernetes.

mod client;
mod server;
mod stream;

mod proto {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("roadstead.tunnel.v1");
}

pub use client::{BoxedIo, ClientConfig, Connect, Io, State, TunnelClient};
pub use server::{DialHandler, NoDials, NodeIdentity, Registry, TunnelService};
pub use stream::TunnelStream;

/// The path under which a host mounts [`Registry::service`]: `/{SERVICE_NAME}/{method}`.
pub const SERVICE_NAME: &str = "roadstead.tunnel.v1.Tunnel";

/// Streams one node may have open at a time, in both directions together.
///
/// Enough for a node full of pods being followed by `kubectl logs -f`; a bound, because each may pin
/// [`STREAM_WINDOW_BYTES`] on a slow reader.
pub const STREAMS_PER_NODE: usize = 512;

/// HTTP/2 receive window of one stream. Small enough that a stalled stream costs little, large enough
/// for about 10 Gbit/s at a millisecond of round trip.
pub const STREAM_WINDOW_BYTES: u32 = 128 * 1024;

/// HTTP/2 receive window of the connection: all streams stalled at once still leave room for the next
/// byte of the control stream, so no slow reader holds up the others.
pub const CONNECTION_WINDOW_BYTES: u32 = (STREAMS_PER_NODE as u32 + 64) * STREAM_WINDOW_BYTES;

/// What a host sets as HTTP/2's `max_concurrent_streams` where nodes arrive (hyper's default is 200).
pub const MAX_CONCURRENT_STREAMS: u32 = STREAMS_PER_NODE as u32 + 64;

const STREAM_ID: &str = "roadstead-stream-id";
const TARGET: &str = "roadstead-target";
