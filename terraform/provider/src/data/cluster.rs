//! `data.roadstead_cluster`: a cluster that somebody else made.

use async_trait::async_trait;

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, DataSource, client_refused};
use crate::resources::checks;
use crate::schema::{Attribute, Schema};
use crate::value::Object;

pub struct Cluster;

#[async_trait]
impl DataSource for Cluster {
    fn type_name(&self) -> &'static str {
        "roadstead_cluster"
    }

    fn schema(&self) -> Schema {
        Schema {
            description: "A cluster, by its name or id.",
            attributes: vec![
                Attribute::text("cluster", "Its name or id.").required().checked(checks::reference),
                Attribute::text("organization", "The provider's own unless it is set.")
                    .chosen()
                    .checked(checks::name),
                Attribute::text("id", "What it is called whatever its name.").computed(),
                Attribute::text("name", "What people call it.").computed(),
                Attribute::text("state", "`creating`, `ready` or `deleting`.").computed(),
                Attribute::text("kubernetes_version", "Like `v1.36.0`.").computed(),
                Attribute::number("replicas", "Cells that hold a copy of it.").computed(),
                Attribute::text("cloud_provider", "Who makes its load balancers.").computed(),
                Attribute::text_list("cells", "Ids of those cells.").computed(),
                Attribute::text_map("labels", "As they are now.").computed(),
                Attribute::text("server_name", "Its TLS server name at the gateway.").computed(),
                Attribute::text("created_at", "RFC 3339.").computed(),
            ],
        }
    }

    async fn read(&self, call: &Call, config: &Object) -> Result<Object, Diagnostic> {
        let org = call.organization(config)?;
        let text = config.text("cluster").unwrap_or_default();
        let reference: fleet_model::ClusterRef = text.parse().map_err(|_| {
            let why = checks::reference(&text.into()).err().unwrap_or_default();
            Diagnostic::error("Invalid cluster", why).at("cluster")
        })?;
        let cluster = call.client().cluster(&org, reference).await.map_err(|error| {
            client_refused(&format!("read the cluster {text} of {org}"), &error).at("cluster")
        })?;
        let cells = cluster.cells.iter().map(|cell| cell.to_string().into()).collect();
        Ok(Object::default()
            .with("cluster", text)
            .with("organization", org.as_str())
            .with("id", cluster.id.to_string())
            .with("name", cluster.name.as_str())
            .with("state", cluster.state.as_str())
            .with("kubernetes_version", cluster.kubernetes_version.as_str())
            .with("replicas", u32::from(cluster.replicas))
            .with("cloud_provider", cluster.provider.as_str())
            .with("cells", crate::value::Value::List(cells))
            .with("labels", &cluster.labels)
            .with("server_name", cluster.server_name.as_str())
            .with("created_at", cluster.created_at.to_string()))
    }
}
