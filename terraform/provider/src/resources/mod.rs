//! Every resource, one file each; and what they share.

pub mod checks;
pub mod timeouts;

mod api_token;
mod cluster;
mod join_token;
pub(crate) mod kubeconfig;
mod node_pool;

use std::str::FromStr;

use crate::diagnostic::Diagnostic;
use crate::resource::Resource;
use crate::value::Object;

pub fn all() -> Vec<Box<dyn Resource>> {
    vec![
        Box::new(cluster::Clusters),
        Box::new(node_pool::NodePools),
        Box::new(join_token::JoinTokens),
        Box::new(api_token::ApiTokens),
        Box::new(kubeconfig::Kubeconfigs),
    ]
}

/// The id in a state, of what `kind` says. States are files that people edit.
fn id_of<T: FromStr>(state: &Object, kind: &str) -> Result<T, Diagnostic> {
    let text = state.text("id").unwrap_or_default();
    text.parse().map_err(|_| {
        Diagnostic::error(
            "The state has no usable id",
            format!("{text:?} is no id of a {kind}. Take it out with `terraform state rm` and import it."),
        )
        .at("id")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Attribute;

    /// Words that Terraform keeps for itself in a resource block.
    const RESERVED: &[&str] =
        &["count", "for_each", "depends_on", "lifecycle", "provider", "provisioner", "connection"];

    #[test]
    fn every_schema_is_one_that_terraform_takes() {
        fn check(type_name: &str, attributes: &[Attribute]) {
            let mut names: Vec<&str> = attributes.iter().map(|one| one.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), attributes.len(), "{type_name}: a name twice");
            for one in attributes {
                let fine = one.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                assert!(fine && !RESERVED.contains(&one.name), "{type_name}.{}", one.name);
                assert!(!one.description.is_empty(), "{type_name}.{} is not described", one.name);
                if let crate::schema::Kind::Single(of) | crate::schema::Kind::Set(of) = &one.kind {
                    check(&format!("{type_name}.{}", one.name), of);
                }
                for other in one.same_as {
                    assert!(names.contains(other), "{type_name}.{} is the same as nothing", one.name);
                }
            }
        }
        for resource in all() {
            check(resource.type_name(), &resource.schema().attributes);
            assert!(resource.schema().attribute("id").is_some(), "{}", resource.type_name());
        }
        for source in crate::data::all() {
            check(source.type_name(), &source.schema().attributes);
        }
        check("provider", &crate::settings::schema().attributes);
    }

    #[test]
    fn secrets_are_marked() {
        for resource in all() {
            for attribute in resource.schema().attributes {
                let secret =
                    ["token", "secret", "kubeconfig", "client_key", "command"].contains(&attribute.name);
                assert_eq!(attribute.sensitive, secret, "{}.{}", resource.type_name(), attribute.name);
            }
        }
    }
}
