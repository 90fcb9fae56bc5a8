//! Load balancers and machines of the provider `local`, beside everything that the fleet holds by then. Needs
//! root.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use dev_testkit::{ApiClient, Fleet};
use fleet_model::{CreateNodePool, NodePoolState};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::rows::{micros, millis};
use crate::table::Row;

const SERVICES: usize = 50;
const MACHINES: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(120);

/// From the answer to a Service's creation to its address, one after the other.
pub async fn balancers(fleet: &Fleet) -> Result<Vec<Row>> {
    let api = ApiClient::new(&fleet.kubeconfig()?)?;
    let mut times = Histogram::<u64>::new(3)?;
    for number in 0..SERVICES {
        let body = json!({
            "metadata": {"name": format!("lb{number}")},
            "spec": {"type": "LoadBalancer", "selector": {"app": "none"}, "ports": [{"port": 80}]},
        });
        let started = Instant::now();
        api.create("/api/v1/namespaces/default/services", &body).await?;
        let path = format!("/api/v1/namespaces/default/services/lb{number}");
        loop {
            let service = api.get(&path).await?;
            if service.pointer("/status/loadBalancer/ingress/0/ip").is_some_and(Value::is_string) {
                break;
            }
            if started.elapsed() > PATIENCE {
                let events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind=Service";
                let events =
                    api.get(events).await.map_or_else(|error| error.to_string(), |list| list.to_string());
                bail!("no address within {PATIENCE:?}: {service}; events: {events}; logs:\n{}", fleet.logs());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times.record(micros(started.elapsed()))?;
    }
    Ok(vec![
        Row::new(
            format!("Service of type LoadBalancer to address, {SERVICES}, p50"),
            millis(times.value_at_quantile(0.5)),
            "under 1 s",
        ),
        Row::new("the same, p99", millis(times.value_at_quantile(0.99)), ""),
    ])
}

/// From the request for a pool until all its machines are Ready nodes.
pub async fn machines(fleet: &Fleet) -> Result<Vec<Row>> {
    let client = fleet.client()?;
    let demo = "demo".parse()?;
    let request = CreateNodePool {
        name: "bench".parse()?,
        size: MACHINES,
        machine_type: None,
        labels: Default::default(),
        taints: Vec::new(),
        provider: None,
    };
    let started = Instant::now();
    let pool = client.create_node_pool(&demo, &demo, &request).await?;
    loop {
        let now = client.node_pool(&demo, &demo, pool.id).await?;
        if now.ready == MACHINES && now.state == NodePoolState::Ready {
            let took = millis(micros(started.elapsed()));
            return Ok(vec![Row::new(format!("pool of {MACHINES} to Ready nodes"), took, "under 10 s")]);
        }
        if started.elapsed() > PATIENCE {
            bail!("not Ready within {PATIENCE:?}: {now:?}; logs:\n{}", fleet.logs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
