//! Client verbs: ask the manager, print the answer.

use anyhow::{Context, Result, bail};
use fleet_client::Client;
use fleet_model::{CreateCluster, CreateToken};
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::{Cluster, Connection, Org, Output, Token};
use crate::up::layout::Layout;

pub async fn cluster(connection: &Connection, command: Cluster) -> Result<()> {
    let client = connect(connection)?;
    match command {
        Cluster::Create { name, of, shown } => {
            let request = CreateCluster::named(name);
            let made = client.create_cluster(&of.org, &request).await?;
            print(shown.output, std::slice::from_ref(&made), true, &CLUSTER_COLUMNS, cluster_row)
        }
        Cluster::List { of, shown } => {
            let found = client.clusters(&of.org).await?;
            print(shown.output, &found, false, &CLUSTER_COLUMNS, cluster_row)
        }
        Cluster::Get { name, of, shown } => {
            let found = client.cluster(&of.org, &name).await?;
            print(shown.output, std::slice::from_ref(&found), true, &CLUSTER_COLUMNS, cluster_row)
        }
        Cluster::Kubeconfig { name, of } => {
            print!("{}", client.kubeconfig(&of.org, &name).await?.kubeconfig);
            Ok(())
        }
        Cluster::JoinCommand { name, of } => {
            println!("{}", client.join_token(&of.org, &name).await?.command);
            Ok(())
        }
        Cluster::Delete { name, of } => {
            client.delete_cluster(&of.org, &name).await?;
            println!("cluster {name} deleted");
            Ok(())
        }
    }
}

pub async fn org(connection: &Connection, command: Org) -> Result<()> {
    let client = connect(connection)?;
    let row = |org: &fleet_model::Organization| vec![org.name.to_string(), age(org.created_at)];
    match command {
        Org::Create { name, shown } => {
            let made = client.create_organization(&name).await?;
            print(shown.output, std::slice::from_ref(&made), true, &["NAME", "AGE"], row)
        }
        Org::List { shown } => {
            print(shown.output, &client.organizations().await?, false, &["NAME", "AGE"], row)
        }
        Org::Delete { name } => {
            client.delete_organization(&name).await?;
            println!("organisation {name} deleted");
            Ok(())
        }
    }
}

pub async fn token(connection: &Connection, command: Token) -> Result<()> {
    let client = connect(connection)?;
    match command {
        Token::Create { description, role, org, expires_in_seconds } => {
            let request =
                CreateToken { description, role, organization: org, cluster: None, expires_in_seconds };
            println!("{}", client.create_token(&request).await?.secret);
            Ok(())
        }
        Token::List { shown } => {
            let columns = ["ID", "ROLE", "ORGANISATION", "EXPIRES", "DESCRIPTION"];
            print(shown.output, &client.tokens().await?, false, &columns, |token| {
                vec![
                    token.id.clone(),
                    token.role.as_str().to_owned(),
                    token.organization.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                    token.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string()),
                    token.description.clone(),
                ]
            })
        }
        Token::Delete { id } => {
            client.delete_token(&id).await?;
            println!("token {id} deleted");
            Ok(())
        }
    }
}

fn connect(connection: &Connection) -> Result<Client> {
    let layout = Layout::new(&connection.data);
    let token_file = connection.token_file.clone().unwrap_or_else(|| layout.admin_token());
    let ca_file = connection.ca_file.clone().unwrap_or_else(|| layout.fleet_ca());
    let read = |path: &std::path::Path, what: &str| {
        std::fs::read_to_string(path).with_context(|| {
            format!("no {what} in {}; is `roadstead up` running with this --data?", path.display())
        })
    };
    let server = match &connection.server {
        Some(server) => server.clone(),
        None => read(&layout.manager_url(), "manager's address")?.trim().to_owned(),
    };
    if !server.starts_with("https://") {
        bail!("--server is https://HOST:PORT, not {server:?}");
    }
    Ok(Client::new(&server, &read(&ca_file, "CA certificate")?, &read(&token_file, "API token")?)?)
}

const CLUSTER_COLUMNS: [&str; 5] = ["NAME", "STATE", "VERSION", "ID", "AGE"];

fn cluster_row(cluster: &fleet_model::Cluster) -> Vec<String> {
    vec![
        cluster.name.to_string(),
        cluster.state.as_str().to_owned(),
        cluster.kubernetes_version.clone(),
        cluster.id.to_string(),
        age(cluster.created_at),
    ]
}

/// `5s`, `3m`, `2h`, `9d`: what kubectl's AGE shows, to one unit.
fn age(since: Timestamp) -> String {
    let seconds = Timestamp::now().duration_since(since).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Tables for people, the API's own JSON (or YAML) for programs: `single` prints the object, not a list.
fn print<T: Serialize>(
    output: Output,
    items: &[T],
    single: bool,
    columns: &[&str],
    row: impl Fn(&T) -> Vec<String>,
) -> Result<()> {
    let value = match items.first() {
        Some(first) if single => serde_json::to_value(first)?,
        _ => serde_json::json!({ "items": items }),
    };
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&value)?),
        Output::Yaml => print!("{}", serde_yaml::to_string(&value)?),
        Output::Table => {
            let rows: Vec<Vec<String>> = items.iter().map(row).collect();
            print!("{}", table(columns, &rows));
        }
    }
    Ok(())
}

fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([columns[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let header: Vec<String> = columns.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += cells.join("   ").trim_end();
        text.push('\n');
    }
    text
}
