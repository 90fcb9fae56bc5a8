//! `roadstead cluster …` and `roadstead operation …`.

use std::collections::BTreeMap;

use anyhow::Result;
use base_ids::Slug;
use fleet_client::Client;
use fleet_model::labels::LabelsPatch;
use fleet_model::{CreateCluster, CreateJoinToken, CreateKubeconfig, UpdateCluster};

use super::exit::Mistake;
use super::output::{Columns, age, many, note, one, raw, say};
use super::{connect, wait};
use crate::cli::{Cluster, Connection, LabelChange, Operation, Wait};

const CLUSTERS: Columns<fleet_model::Cluster> = Columns {
    names: &["NAME", "STATE", "VERSION", "REPLICAS", "ID", "AGE"],
    row: |cluster| {
        vec![
            cluster.name.to_string(),
            cluster.state.as_str().to_owned(),
            cluster.kubernetes_version.clone(),
            cluster.replicas.to_string(),
            cluster.id.to_string(),
            age(cluster.created_at),
        ]
    },
};

/// The same with their providers, for fleets that have more than one.
const PROVIDED: Columns<fleet_model::Cluster> = Columns {
    names: &["NAME", "STATE", "VERSION", "REPLICAS", "PROVIDER", "ID", "AGE"],
    row: |cluster| {
        let mut row = (CLUSTERS.row)(cluster);
        row.insert(4, if cluster.provider.is_empty() { "-".to_owned() } else { cluster.provider.clone() });
        row
    },
};

const OPERATIONS: Columns<fleet_model::Operation> = Columns {
    names: &["ID", "KIND", "TARGET", "STATE", "PROGRESS", "MESSAGE", "AGE"],
    row: |operation| {
        vec![
            operation.id.to_string(),
            operation.kind.as_str().to_owned(),
            operation.target.clone(),
            operation.state.as_str().to_owned(),
            format!("{}%", operation.progress),
            operation.message.clone(),
            age(operation.created_at),
        ]
    },
};

const JOIN_TOKENS: Columns<fleet_model::JoinTokenInfo> = Columns {
    names: &["ID", "EXPIRES", "DESCRIPTION"],
    row: |token| {
        let expires = token.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
        vec![token.id.clone(), expires, token.description.clone()]
    },
};

const VERSIONS: Columns<fleet_model::Version> = Columns {
    names: &["VERSION", "DEFAULT"],
    row: |version| vec![version.version.clone(), if version.default { "yes" } else { "" }.to_owned()],
};

const RECEIPTS: Columns<fleet_model::Receipt> = Columns {
    names: &["CLUSTER", "NAME", "DELETED", "RESOURCES"],
    row: |receipt| {
        vec![
            receipt.cluster.to_string(),
            receipt.name.to_string(),
            receipt.deleted_at.to_string(),
            receipt.resources.len().to_string(),
        ]
    },
};

pub async fn cluster(connection: &Connection, command: Cluster) -> Result<()> {
    let fleet = connect(connection)?;
    let client = &fleet.client;
    match command {
        Cluster::Create { name, replicas, kubernetes_version, provider, labels, of, wait, shown } => {
            let org = fleet.org(&of)?;
            let labels = labels.into_iter().collect();
            let request = CreateCluster { name, kubernetes_version, replicas, provider, labels };
            let mut made = client.create_cluster(&org, &request).await?;
            if let Some(id) = made.operation.filter(|_| wait.wait) {
                wait::finished(client, &org, id, wait.timeout).await?;
                made = client.cluster(&org, made.id).await?;
            }
            one(shown.output, &made, &CLUSTERS)
        }
        Cluster::List { of, shown } => {
            let clusters = client.clusters(&fleet.org(&of)?).await?;
            let columns = if has_choice(client, &clusters).await { &PROVIDED } else { &CLUSTERS };
            many(shown.output, &clusters, columns)
        }
        Cluster::Get { cluster, of, shown } => {
            one(shown.output, &client.cluster(&fleet.org(&of)?, &cluster).await?, &CLUSTERS)
        }
        Cluster::Update { cluster, name, labels, of, shown } => {
            let change = UpdateCluster { name, labels: patch(labels) };
            if change == UpdateCluster::default() {
                return Err(nothing());
            }
            one(shown.output, &client.update_cluster(&fleet.org(&of)?, &cluster, &change).await?, &CLUSTERS)
        }
        Cluster::Delete { cluster, of, wait } => {
            let org = fleet.org(&of)?;
            let operation = client.delete_cluster(&org, &cluster).await?;
            ended(&fleet, &org, operation, &wait, "cluster").await
        }
        Cluster::Kubeconfig { cluster, expires_in, of } => {
            let seconds = expires_in.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
            let request = CreateKubeconfig { expires_in_seconds: seconds };
            let made = client.create_kubeconfig(&fleet.org(&of)?, &cluster, &request).await?;
            raw(&made.kubeconfig)?;
            // Beside what is redirected into a file.
            note(&format!("valid until {}", made.expires_at));
            Ok(())
        }
        Cluster::JoinCommand { cluster, expires_in, of } => {
            let seconds = expires_in.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
            let request = CreateJoinToken { expires_in_seconds: seconds, description: None };
            Ok(say(&client.create_join_token(&fleet.org(&of)?, &cluster, &request).await?.command)?)
        }
        Cluster::JoinTokens { cluster, of, shown } => {
            many(shown.output, &client.join_tokens(&fleet.org(&of)?, &cluster).await?, &JOIN_TOKENS)
        }
        Cluster::DeleteJoinToken { cluster, id, of } => {
            client.delete_join_token(&fleet.org(&of)?, &cluster, &id).await?;
            Ok(say(&format!("join token {id} deleted"))?)
        }
        Cluster::Versions { shown } => many(shown.output, &client.versions().await?, &VERSIONS),
        Cluster::Receipts { id: None, of, shown } => {
            many(shown.output, &client.receipts(&fleet.org(&of)?).await?, &RECEIPTS)
        }
        Cluster::Receipts { id: Some(id), of, shown } => {
            one(shown.output, &client.receipt(&fleet.org(&of)?, id).await?, &RECEIPTS)
        }
    }
}

/// Whether more than one provider is there: among the clusters, or else among the machines on offer.
async fn has_choice(client: &Client, clusters: &[fleet_model::Cluster]) -> bool {
    let differ = |names: Vec<&str>| names.iter().any(|name| *name != names[0]);
    let used = clusters.iter().map(|one| one.provider.as_str()).filter(|name| !name.is_empty()).collect();
    if differ(used) {
        return true;
    }
    // Only for one more column: the list is complete without it.
    let types = client.machine_types().await.unwrap_or_default();
    differ(types.iter().map(|one| one.provider.as_str()).collect())
}

pub async fn operation(connection: &Connection, command: Operation) -> Result<()> {
    let fleet = connect(connection)?;
    let client = &fleet.client;
    match command {
        Operation::List { state, of, shown } => {
            many(shown.output, &client.operations(&fleet.org(&of)?, state).await?, &OPERATIONS)
        }
        Operation::Get { id, of, shown } => {
            one(shown.output, &client.operation(&fleet.org(&of)?, id).await?, &OPERATIONS)
        }
        Operation::Wait { id, timeout, of } => {
            wait::finished(client, &fleet.org(&of)?, id, timeout).await.map(drop)
        }
        Operation::Cancel { id, of, shown } => {
            one(shown.output, &client.cancel_operation(&fleet.org(&of)?, id).await?, &OPERATIONS)
        }
    }
}

/// Waits for a deletion if that is wanted, and says how it stands.
pub(super) async fn ended(
    fleet: &super::Fleet,
    org: &Slug,
    operation: fleet_model::Operation,
    wait: &Wait,
    what: &str,
) -> Result<()> {
    let target = operation.target.clone();
    if wait.wait {
        wait::finished(&fleet.client, org, operation.id, wait.timeout).await?;
        say(&format!("{what} {target} deleted"))?;
    } else {
        say(&format!("{what} {target} is being deleted by operation {}", operation.id))?;
    }
    Ok(())
}

pub(super) fn patch(change: LabelChange) -> LabelsPatch {
    let removed = change.remove.into_iter().map(|key| (key, None));
    let set = change.set.into_iter().map(|(key, value)| (key, Some(value)));
    let merge: BTreeMap<String, Option<String>> = removed.chain(set).collect();
    if merge.is_empty() { LabelsPatch::Keep } else { LabelsPatch::Merge(merge) }
}

pub(super) fn nothing() -> anyhow::Error {
    Mistake::Usage("nothing to change; give --name, --label or --remove-label".to_owned()).into()
}
