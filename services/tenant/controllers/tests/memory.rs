//! What an idle tenant's controllers cost. Rather a measurement than a test: the bound is far above it.

mod support;

use std::time::Duration;

use support::*;

/// Memory of this process that is not shared, in bytes; `None` where the system doesn't say.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[tokio::test(start_paused = true)]
async fn an_idle_tenant_is_small() {
    const TENANTS: u64 = 100;
    let furnished = || {
        let tenant = cluster();
        ["default", "kube-system", "kube-public", "kube-node-lease"]
            .iter()
            .for_each(|name| tenant.namespace(name));
        tenant
    };
    // The first one also loads what all share.
    let mut tenants = vec![furnished()];
    tokio::time::sleep(Duration::from_secs(60)).await;
    let Some(before) = resident() else { return };
    for _ in 0..TENANTS {
        tenants.push(furnished());
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let each = (resident().unwrap_or(before).saturating_sub(before)) / TENANTS;
    println!("an idle tenant's controllers with a store in memory: {each} bytes");
    assert_eq!(tenants.len() as u64, TENANTS + 1);
    assert!(each < 512 * 1024, "{each} bytes");
}
