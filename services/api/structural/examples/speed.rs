//! What schemas cost: `cargo run --release -p api-structural --example speed`.

use std::hint::black_box;
use std::time::Instant;

use api_structural::{Part, Prune, Structural, default_definition, validate_definition};
use serde_json::{Value, json};

fn main() {
    let widget = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["replicas"], "properties": {
            "replicas": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
            "image": {"type": "string", "maxLength": 253, "pattern": "^[a-z0-9./:-]+$"},
            "port": {"x-kubernetes-int-or-string": true},
            "ports": {"type": "array", "maxItems": 20, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string", "maxLength": 63}, "number": {"type": "integer"}}}},
        }, "x-kubernetes-validations": [{"rule": "self.replicas <= 10", "message": "at most ten"}]},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {
        "replicas": 3, "image": "registry.example.com/a/b:1", "port": "http", "unknown": true,
        "ports": [{"name": "a", "number": 1}, {"name": "b", "number": 2}, {"name": "c", "number": 3}],
    }});
    // As large as the largest that people install.
    let member = |index: usize| {
        let mut spec = widget["properties"]["spec"].clone();
        spec["description"] = "What this part is for, in a sentence or two as they are written there.".into();
        (format!("part{index}"), spec)
    };
    let parts: serde_json::Map<String, Value> = (0..400).map(member).collect();
    let large = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": parts}}});
    for (what, schema) in [("widget", &widget), ("400 parts", &large)] {
        println!("{what}: {} bytes of schema", schema.to_string().len());
        let mut definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com",
            "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1",
                "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        default_definition(&mut definition);
        time("validate the definition", 20, || assert!(validate_definition(&definition, None).is_empty()));
        time("read the schema", 20, || Structural::parse(schema).map(|_| ()).unwrap_or_default());
        let structural = Structural::parse(schema).unwrap_or_else(|errors| panic!("{errors:?}"));
        time("find the schema that is shared", 20, || drop(black_box(Structural::parse(schema))));
        let start = Instant::now();
        structural.validate(&object, None, Part::Whole);
        println!(
            "  {:<34} {:>9.1} µs",
            "first object (rules are compiled)",
            start.elapsed().as_secs_f64() * 1e6
        );
    }
    let structural = Structural::parse(&widget).unwrap_or_else(|errors| panic!("{errors:?}"));
    println!("object of {} bytes", object.to_string().len());
    time("copy (for comparison)", 2000, || drop(black_box(object.clone())));
    time("copy, prune, default", 2000, || {
        let mut object = object.clone();
        assert!(structural.prune(&mut object, Prune { unknown: true, ..Prune::default() }).is_ok());
        black_box(structural.default(&mut object));
    });
    time("validate", 2000, || assert!(structural.validate(&object, None, Part::Whole).errors.is_empty()));
    time("validate a change", 2000, || {
        assert!(structural.validate(&object, Some(&object), Part::Whole).errors.is_empty());
    });
}

/// Prints the median.
fn time(what: &str, times: usize, mut work: impl FnMut()) {
    let mut taken: Vec<f64> = (0..times)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    taken.sort_by(f64::total_cmp);
    println!("  {what:<34} {:>9.1} µs", taken[times / 2]);
}
