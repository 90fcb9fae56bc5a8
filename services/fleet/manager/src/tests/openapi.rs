//! The description says what the router does.

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::Value;
use utoipa::OpenApi;

use crate::http::openapi::{Document, documented};
use crate::http::routes::{self, Need};

/// Described elsewhere or for machines only.
const NOT_DESCRIBED: [&str; 4] = ["/openapi.json", "/healthz", "/readyz", "/metrics"];

fn document() -> Value {
    serde_json::to_value(Document::openapi()).unwrap()
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let document = document();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys().filter(|key| key.as_str() != "parameters");
            methods.map(move |method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let routed: BTreeSet<(String, String)> = routes::all()
        .iter()
        .filter(|route| route.path.starts_with("/api/") && !NOT_DESCRIBED.contains(&route.path))
        .map(|route| {
            // Of a path that takes every method, one stands for all.
            let method = route.method.clone().unwrap_or(Method::GET);
            (documented(route), method.to_string())
        })
        .collect();
    assert_eq!(described, routed);
}

#[test]
fn every_operation_is_described_completely() {
    let document = document();
    let mut ids = BTreeSet::new();
    for route in routes::all() {
        let method = route.method.clone().unwrap_or(Method::GET).as_str().to_lowercase();
        let operation = &document["paths"][documented(&route)][&method];
        if operation.is_null() {
            continue;
        }
        let here = format!("{method} {}", route.path);
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{here}: id used twice");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{here}: no success");
        if route.need != Need::Nothing {
            assert!(responses.contains_key("401"), "{here}: 401");
        }
        for (status, response) in responses {
            assert!(response["description"].is_string(), "{here} {status}: no description");
            if status.starts_with(['4', '5']) {
                let content = response["content"].as_object().unwrap();
                assert_eq!(
                    content.keys().collect::<Vec<_>>(),
                    ["application/problem+json"],
                    "{here} {status}"
                );
            }
        }
    }
    assert_eq!(document["openapi"], "3.1.0");
}

#[test]
fn every_reference_leads_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    found.push(reference);
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.trim_start_matches('#');
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn a_refusal_is_described_with_its_fields() {
    let document = document();
    let field = document.pointer("/components/schemas/FieldProblem/properties").unwrap();
    assert_eq!(field.as_object().unwrap().keys().collect::<Vec<_>>(), ["detail", "field"]);
    let items = document.pointer("/components/schemas/Problem/properties/errors/items").unwrap();
    assert_eq!(items["$ref"], "#/components/schemas/FieldProblem");
    let create = &document["paths"]["/api/v1/organizations"]["post"]["responses"]["400"];
    assert_eq!(create["content"]["application/problem+json"]["example"]["errors"][0]["field"], "/name");
}
