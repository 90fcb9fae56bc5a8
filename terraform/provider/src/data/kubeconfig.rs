//! `data.roadstead_kubeconfig`: access to a cluster for the length of one run.

use async_trait::async_trait;

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, DataSource};
use crate::resources::{checks, kubeconfig};
use crate::schema::{Attribute, Schema};
use crate::value::Object;

pub struct Kubeconfig;

#[async_trait]
impl DataSource for Kubeconfig {
    fn type_name(&self) -> &'static str {
        "roadstead_kubeconfig"
    }

    fn schema(&self) -> Schema {
        let mut attributes = vec![
            Attribute::text("cluster", "Id or name of the cluster.").required().checked(checks::reference),
            Attribute::text("organization", "The cluster's; the provider's own unless it is set.")
                .chosen()
                .checked(checks::name),
            Attribute::text("id", "Id of the cluster.").computed(),
        ];
        attributes.extend(kubeconfig::parts_schema());
        Schema {
            description: "Access to a cluster for whoever's token or session this is. A new certificate is issued at every read, so \
                          this suits other providers' configuration; for an output that stays the same, use \
                          the resource of this name.",
            attributes,
        }
    }

    async fn read(&self, call: &Call, config: &Object) -> Result<Object, Diagnostic> {
        kubeconfig::issue(call, config).await
    }
}
