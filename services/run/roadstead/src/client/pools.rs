//! `roadstead nodepool …`.

use anyhow::Result;
use fleet_model::{CreateNodePool, UpdateNodePool};

use super::clusters::{ended, nothing, patch};
use super::output::{Columns, age, many, note, one, say};
use super::{connect, wait};
use crate::cli::{Connection, NodePool, Output};

const POOLS: Columns<fleet_model::NodePool> = Columns {
    names: &["NAME", "STATE", "READY", "TYPE", "PROVIDER", "MESSAGE", "AGE"],
    row: |pool| {
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        vec![
            pool.name.to_string(),
            pool.state.as_str().to_owned(),
            format!("{}/{}", pool.ready, pool.size),
            or_dash(&pool.machine_type),
            or_dash(&pool.provider),
            pool.message.clone().unwrap_or_default(),
            age(pool.created_at),
        ]
    },
};

const MACHINES: Columns<fleet_model::Machine> = Columns {
    names: &["MACHINE", "STATE", "ADDRESS", "ID", "MESSAGE"],
    row: |machine| {
        vec![
            machine.name.clone(),
            machine.state.as_str().to_owned(),
            machine.address.clone().unwrap_or_else(|| "-".to_owned()),
            if machine.id.is_empty() { "-".to_owned() } else { machine.id.clone() },
            machine.message.clone().unwrap_or_default(),
        ]
    },
};

const MACHINE_TYPES: Columns<fleet_model::MachineType> = Columns {
    names: &["PROVIDER", "TYPE", "CPU", "MEMORY", "DEFAULT"],
    row: |kind| {
        vec![
            kind.provider.clone(),
            kind.name.clone(),
            format!("{}m", kind.cpu_millis),
            format!("{} MiB", kind.memory_bytes / (1024 * 1024)),
            if kind.default { "yes" } else { "" }.to_owned(),
        ]
    },
};

pub async fn node_pool(connection: &Connection, command: NodePool) -> Result<()> {
    let fleet = connect(connection)?;
    let client = &fleet.client;
    match command {
        NodePool::Create { name, size, machine_type, provider, labels, taints, at, wait, shown } => {
            let org = fleet.org(&at.of)?;
            let labels = labels.into_iter().collect();
            let request = CreateNodePool { name, size, machine_type, labels, taints, provider };
            let mut made = client.create_node_pool(&org, &at.cluster, &request).await?;
            if let Some(id) = made.operation.filter(|_| wait.wait) {
                wait::finished(client, &org, id, wait.timeout).await?;
                made = client.node_pool(&org, &at.cluster, made.id).await?;
            }
            one(shown.output, &made, &POOLS)
        }
        NodePool::List { at, shown } => {
            many(shown.output, &client.node_pools(&fleet.org(&at.of)?, &at.cluster).await?, &POOLS)
        }
        NodePool::Get { pool, at, shown } => {
            let found = client.node_pool(&fleet.org(&at.of)?, &at.cluster, &pool).await?;
            one(shown.output, &found, &POOLS)?;
            if shown.output == Output::Table && !found.machines.is_empty() {
                say("")?;
                many(Output::Table, &found.machines, &MACHINES)?;
            }
            Ok(())
        }
        NodePool::Update { pool, name, labels, at, shown } => {
            let change = UpdateNodePool { name, size: None, labels: patch(labels) };
            if change == UpdateNodePool::default() {
                return Err(nothing());
            }
            let org = fleet.org(&at.of)?;
            one(shown.output, &client.update_node_pool(&org, &at.cluster, &pool, &change).await?, &POOLS)
        }
        NodePool::Resize { pool, size, at, wait, shown } => {
            let org = fleet.org(&at.of)?;
            let change = UpdateNodePool { size: Some(size), ..UpdateNodePool::default() };
            let mut changed = client.update_node_pool(&org, &at.cluster, &pool, &change).await?;
            if let Some(id) = changed.operation.filter(|_| wait.wait) {
                wait::finished(client, &org, id, wait.timeout).await?;
                changed = client.node_pool(&org, &at.cluster, changed.id).await?;
            }
            one(shown.output, &changed, &POOLS)
        }
        NodePool::Delete { pool, at, wait } => {
            let org = fleet.org(&at.of)?;
            let operation = client.delete_node_pool(&org, &at.cluster, &pool).await?;
            ended(&fleet, &org, operation, &wait, "node pool").await
        }
        NodePool::MachineTypes { shown } => {
            let types = client.machine_types().await?;
            if types.is_empty() && shown.output == Output::Table {
                note("no provider of this fleet has described its machines");
            }
            many(shown.output, &types, &MACHINE_TYPES)
        }
    }
}
