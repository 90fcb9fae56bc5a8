//! Services as nftables.
