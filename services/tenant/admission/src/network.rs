//! DefaultIngressClass: an Ingress that names no class gets the default one.

use api_machinery::{Document, Gvr, Status};
use async_trait::async_trait;

use crate::attributes::{Attributes, Operation};
use crate::chain::Admission;

pub(crate) struct DefaultIngressClass;

const CLASSES: Gvr = Gvr::new("networking.k8s.io", "v1", "ingressclasses");
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

#[async_trait]
impl Admission for DefaultIngressClass {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let fits =
            attributes.is("networking.k8s.io", "ingresses") && attributes.operation == Operation::Create;
        let Some(ingress) = object.filter(|_| fits) else { return Ok(()) };
        if ingress.get("spec.ingressClassName").is_some()
            || ingress.annotation("kubernetes.io/ingress.class").is_some()
        {
            return Ok(());
        }
        let classes = attributes.lookup.list(&CLASSES, None);
        let defaults = classes
            .iter()
            .filter(|class| class.field("metadata.annotations").is_some_and(|all| all[IS_DEFAULT] == "true"));
        let newest = defaults.max_by(|a, b| {
            a.header.created.cmp(&b.header.created).then_with(|| b.header.name.cmp(&a.header.name))
        });
        if let Some(class) = newest {
            ingress.set("spec.ingressClassName", class.header.name.to_string());
        }
        Ok(())
    }
}
