//! `roadstead_kubeconfig`: access to a cluster that stays the same from plan to plan.
//!
//! The data source of the same name issues a new certificate each time it is read, so an output made of it
//! changes with every plan. This one is issued once, kept in the state, and renewed before it expires.

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fleet_model::ClusterRef;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use crate::diagnostic::Diagnostic;
use crate::resource::{Call, Failed, Resource, client_refused};
use crate::resources::checks;
use crate::resources::cluster::named;
use crate::schema::{Attribute, Schema};
use crate::value::Object;

/// So long before its end a certificate is renewed, unless that is most of its life: then with a third of it left.
const RENEWAL: SignedDuration = SignedDuration::from_hours(7 * 24);

pub struct Kubeconfigs;

#[async_trait]
impl Resource for Kubeconfigs {
    fn type_name(&self) -> &'static str {
        "roadstead_kubeconfig"
    }

    fn schema(&self) -> Schema {
        let mut attributes = vec![
            Attribute::text("cluster", "Id of the cluster (or its name).")
                .required()
                .replaces()
                .same_as(&["id"])
                .checked(checks::reference),
            Attribute::text("organization", "The cluster's; the provider's own unless it is set.")
                .chosen()
                .replaces()
                .checked(checks::name),
            Attribute::text("id", "Id of the cluster.").computed(),
        ];
        attributes.extend(parts_schema());
        Schema {
            description: "Access to a cluster for whoever's token or session this is, issued once and renewed \
                          7 days before its end. Deleting it forgets it; it is refused once the API token that \
                          asked for it is deleted, or the member who did is removed or demoted.",
            attributes,
        }
    }

    async fn create(&self, call: &Call, planned: &Object) -> Result<Object, Failed> {
        Ok(issue(call, planned).await?)
    }

    async fn read(&self, call: &Call, state: &Object) -> Result<Option<Object>, Diagnostic> {
        let org = call.organization(state)?;
        let Some(id) = state.text("id") else { return Ok(None) };
        let found = named(call.client(), &org, id)
            .await
            .map_err(|error| client_refused(&format!("read the cluster {id}"), &error))?;
        Ok((found.is_some() && is_fresh(state, Timestamp::now())).then(|| state.clone()))
    }

    async fn update(&self, _call: &Call, _state: &Object, planned: &Object) -> Result<Object, Failed> {
        // The cluster in other words; what can change replaces.
        Ok(planned.clone())
    }

    async fn delete(&self, _call: &Call, _state: &Object) -> Result<(), Diagnostic> {
        Ok(())
    }

    async fn import(&self, _call: &Call, _id: &str) -> Result<Object, Diagnostic> {
        Err(Diagnostic::error(
            "A kubeconfig cannot be imported",
            "The manager keeps none. Let Terraform have one issued.",
        ))
    }
}

/// What resource and data source give out.
pub(crate) fn parts_schema() -> Vec<Attribute> {
    vec![
        Attribute::text("kubeconfig", "YAML, for a file that `KUBECONFIG` names.").computed().sensitive(),
        Attribute::text("host", "`https://IP:PORT` of the gateway.").computed(),
        Attribute::text("tls_server_name", "The cluster's name at the gateway.").computed(),
        Attribute::text("cluster_ca_certificate", "PEM.").computed(),
        Attribute::text("client_certificate", "PEM.").computed(),
        Attribute::text("client_key", "PEM.").computed().sensitive(),
        Attribute::text("expires_at", "When the client certificate does, RFC 3339.").computed(),
    ]
}

/// Has a kubeconfig issued for the cluster that `wanted` names, and takes it apart.
pub(crate) async fn issue(call: &Call, wanted: &Object) -> Result<Object, Diagnostic> {
    let org = call.organization(wanted)?;
    let text = wanted.text("cluster").unwrap_or_default();
    let cluster: ClusterRef = text.parse().map_err(|_| {
        Diagnostic::error("Invalid cluster", format!("{text:?} is neither the name nor the id of a cluster."))
            .at("cluster")
    })?;
    let doing = format!("have a kubeconfig of {cluster} issued");
    let failed = |error| client_refused(&doing, &error).at("cluster");
    let found = call.client().cluster(&org, cluster).await.map_err(failed)?;
    let yaml = call.client().kubeconfig(&org, found.id).await.map_err(failed)?.kubeconfig;
    let parts = take_apart(&yaml).ok_or_else(|| {
        Diagnostic::error(
            format!("Cannot {doing}"),
            "The manager's answer is no kubeconfig that this provider understands. Use the provider of the \
             manager's version.",
        )
    })?;
    Ok(parts.with("cluster", text).with("organization", org.as_str()).with("id", found.id.to_string()))
}

fn take_apart(yaml: &str) -> Option<Object> {
    let parsed: Json = serde_yaml::from_str(yaml).ok()?;
    let text = |pointer: &str| parsed.pointer(pointer).and_then(Json::as_str);
    let pem = |pointer: &str| String::from_utf8(STANDARD.decode(text(pointer)?).ok()?).ok();
    let certificate = pem("/users/0/user/client-certificate-data")?;
    Some(
        Object::default()
            .with("kubeconfig", yaml)
            .with("host", text("/clusters/0/cluster/server")?)
            .with("tls_server_name", text("/clusters/0/cluster/tls-server-name"))
            .with("cluster_ca_certificate", pem("/clusters/0/cluster/certificate-authority-data")?)
            .with("client_key", pem("/users/0/user/client-key-data")?)
            .with("expires_at", expiry(&certificate)?.to_string())
            .with("client_certificate", certificate),
    )
}

fn expiry(pem: &str) -> Option<Timestamp> {
    Some(validity(pem)?.1)
}

/// From when until when.
fn validity(pem: &str) -> Option<(Timestamp, Timestamp)> {
    let chain = base_net::pki::certs_from_pem(pem).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some((at(certificate.validity().not_before)?, at(certificate.validity().not_after)?))
}

/// Whether it is far enough from its end.
fn is_fresh(state: &Object, now: Timestamp) -> bool {
    state.text("client_certificate").and_then(validity).is_some_and(|(begin, end)| {
        let third = end.duration_since(begin) / 3;
        end.duration_since(now) > third.min(RENEWAL)
    })
}

#[cfg(test)]
mod tests {
    use base_net::pki::{Ca, Profile, YEAR};

    use super::*;

    #[test]
    fn a_kubeconfig_is_taken_apart() {
        let ca = Ca::generate("kubernetes").unwrap();
        let issued = ca
            .issue(&Profile {
                common_name: "ann".to_owned(),
                client: true,
                lifetime: YEAR,
                ..Profile::default()
            })
            .unwrap();
        let data = |text: &str| STANDARD.encode(text);
        let yaml = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: web\n  cluster:\n    server: https://127.0.0.1:6443\n    \
             tls-server-name: c1.roadstead.local\n    certificate-authority-data: {}\nusers:\n- name: ann\n  user:\n    \
             client-certificate-data: {}\n    client-key-data: {}\n",
            data(ca.cert_pem()),
            data(&issued.cert_pem),
            data(&issued.key_pem),
        );
        let parts = take_apart(&yaml).unwrap();
        for (name, wanted) in [
            ("host", "https://127.0.0.1:6443"),
            ("tls_server_name", "c1.roadstead.local"),
            ("cluster_ca_certificate", ca.cert_pem()),
            ("client_certificate", &issued.cert_pem),
            ("client_key", &issued.key_pem),
            ("kubeconfig", &yaml),
        ] {
            assert_eq!(parts.text(name), Some(wanted), "{name}");
        }
        let now = Timestamp::now();
        for (life, hours, fresh) in [
            (YEAR, 0, true),
            (YEAR, 357 * 24, true),
            (YEAR, 359 * 24, false),
            (YEAR, 400 * 24, false),
            (YEAR / 365, 0, true),
            (YEAR / 365, 15, true),
            (YEAR / 365, 17, false),
        ] {
            let profile =
                Profile { common_name: "ann".to_owned(), client: true, lifetime: life, ..Profile::default() };
            let state = parts.clone().with("client_certificate", ca.issue(&profile).unwrap().cert_pem);
            assert_eq!(
                is_fresh(&state, now + SignedDuration::from_hours(hours)),
                fresh,
                "{life:?} {hours} h"
            );
        }
        for broken in ["", "a: [", "clusters: []", &yaml.replace("client-key-data", "x")] {
            assert!(take_apart(broken).is_none(), "{broken}");
        }
    }
}
