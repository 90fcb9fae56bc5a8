//! `data.roadstead_versions`: the Kubernetes versions that clusters can have.

use async_trait::async_trait;

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, DataSource, client_refused};
use crate::schema::{Attribute, Schema};
use crate::value::{Object, Value};

pub struct Versions;

#[async_trait]
impl DataSource for Versions {
    fn type_name(&self) -> &'static str {
        "roadstead_versions"
    }

    fn schema(&self) -> Schema {
        Schema {
            description: "The Kubernetes versions that clusters can have.",
            attributes: vec![
                Attribute::text("default", "What a cluster gets unless it asks for another one.").computed(),
                Attribute::text_list("versions", "All of them.").computed(),
            ],
        }
    }

    async fn read(&self, call: &Call, _config: &Object) -> Result<Object, Diagnostic> {
        let versions = call
            .client()
            .versions()
            .await
            .map_err(|error| client_refused("list the Kubernetes versions", &error))?;
        let default = versions.iter().find(|one| one.default).map(|one| one.version.clone());
        let all = versions.into_iter().map(|one| one.version.into()).collect();
        Ok(Object::default().with("default", default).with("versions", Value::List(all)))
    }
}
