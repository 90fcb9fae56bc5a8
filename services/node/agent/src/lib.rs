//! One node: join, tunnel, kubelet, proxy, DNS.
