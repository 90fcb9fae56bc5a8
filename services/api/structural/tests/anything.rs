//! Whatever a schema and a value are, there is an answer.

use api_machinery::Field;
use api_structural::{
    Dialect, Part, Prune, Published, Structural, default_definition, publish, validate_definition,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Words that schemas and their values have in common, so that the two meet.
const WORDS: [&str; 8] = ["a", "b", "metadata", "kind", "apiVersion", "status", "k", "x-y"];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![prop::sample::select(&WORDS[..]).prop_map(str::to_owned), ".{0,4}"]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|float| json!(float)),
        word().prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn flat_schema() -> impl Strategy<Value = Value> {
    let types = ["object", "array", "string", "integer", "number", "boolean", "null", "odd", ""];
    let formats = ["date", "date-time", "int32", "duration", "byte", "uri", "ipv4", "odd"];
    let patterns = ["^a+$", "[", "a{2}", "(?=x)", "\\d", "\\p{L}", "\\"];
    let lists = ["set", "map", "atomic", "odd"];
    let some = |values: &'static [&'static str]| {
        prop::option::of(prop::sample::select(values).prop_map(Value::from))
    };
    let number = || {
        prop::option::of(prop_oneof![(-3_i64..4).prop_map(Value::from), any::<f64>().prop_map(|f| json!(f))])
    };
    (
        (
            prop::sample::select(types.to_vec()),
            some(Box::leak(Box::new(formats))),
            some(Box::leak(Box::new(patterns))),
            some(Box::leak(Box::new(lists))),
            number(),
            number(),
            number(),
            prop::option::of(scalar()),
        ),
        (any::<[bool; 6]>(), prop::collection::vec(word(), 0..3), prop::collection::vec(scalar(), 0..2)),
    )
        .prop_map(
            |((kind, format, pattern, list, most, least, multiple, default), (flags, words, values))| {
                let mut schema = json!({"type": kind, "nullable": flags[0], "required": words,
                "x-kubernetes-list-map-keys": words, "x-kubernetes-int-or-string": flags[1] && flags[2],
                "x-kubernetes-embedded-resource": flags[3] && flags[4]});
                let members = [
                    ("format", format),
                    ("pattern", pattern),
                    ("x-kubernetes-list-type", list),
                    ("maximum", most.clone()),
                    ("minimum", least.clone()),
                    ("maxLength", most),
                    ("minItems", least),
                    ("multipleOf", multiple),
                    ("default", default),
                    ("enum", (!values.is_empty()).then(|| values.into())),
                    ("x-kubernetes-preserve-unknown-fields", flags[5].then(|| flags[0].into())),
                ];
                for (key, value) in members {
                    if let Some(value) = value {
                        schema[key] = value;
                    }
                }
                schema
            },
        )
}

fn schema() -> impl Strategy<Value = Value> {
    flat_schema().prop_recursive(4, 24, 4, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3);
        let rules = ["self.a == 1", "self == oldSelf", "true", "1", "self.all(x, x > 0)", "bad(", " "];
        let rule = prop::option::of(prop::sample::select(rules.to_vec()));
        let named = prop::collection::btree_map(word(), inner.clone(), 0..4);
        (flat_schema(), named, prop::option::of(inner.clone()), list(), list(), any::<u8>(), rule).prop_map(
            |(mut schema, properties, one, several, more, which, rule)| {
                schema["properties"] = Value::Object(properties.into_iter().collect());
                if let Some(one) = one {
                    let key =
                        ["items", "additionalProperties", "not", "additionalItems"][usize::from(which % 4)];
                    schema[key] = one;
                }
                schema[["allOf", "anyOf", "oneOf"][usize::from(which % 3)]] = several.into();
                if which > 200 {
                    schema["items"] = more.into();
                }
                if let Some(rule) = rule {
                    schema["x-kubernetes-validations"] =
                        json!([{"rule": rule, "messageExpression": "'x'", "fieldPath": ".a"}]);
                }
                schema
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_value_meets_any_schema(schema in schema(), new in value(), old in value()) {
        let Ok(structural) = Structural::parse(&schema) else { return Ok(()) };
        structural.violations(&Field::new("x"));
        for part in [Part::Whole, Part::Status] {
            structural.validate(&new, None, part);
            structural.validate(&new, Some(&old), part);
        }
        for from_store in [false, true] {
            let mut pruned = new.clone();
            let how = Prune { unknown: true, from_store, keep_unknown: false };
            if structural.prune(&mut pruned, how).is_ok() {
                // What was pruned once is pruned.
                let mut again = pruned.clone();
                prop_assert_eq!(structural.prune(&mut again, how), Ok(Vec::new()));
                prop_assert_eq!(&again, &pruned);
            }
            structural.default(&mut pruned);
        }
        for dialect in [Dialect::V2, Dialect::V3] {
            let what = Published { group: "g", version: "v", kind: "K", selectable_fields: &[], keep_unknown: false };
            prop_assert!(publish(Some(&structural), dialect, what).is_object());
        }
    }

    #[test]
    fn any_definition_is_judged(schema in schema(), other in value(), more in value()) {
        let mut definition = json!({
            "metadata": {"name": "as.example.com"},
            "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "as", "kind": "A"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                    "selectableFields": [{"jsonPath": ".a.b"}]}]},
        });
        default_definition(&mut definition);
        validate_definition(&definition, None);
        validate_definition(&definition, Some(&definition));
        let mut odd = definition.clone();
        odd["spec"]["versions"][0] = other.clone();
        odd["spec"]["conversion"] = more;
        default_definition(&mut odd);
        validate_definition(&odd, Some(&definition));
        validate_definition(&definition, Some(&odd));
        validate_definition(&other, None);
    }
}

/// The way from a schema to one below it, and from a value to the one that fits there.
type Deepen = (fn(Value) -> Value, fn(Value) -> Value);

/// Decoding refuses more than 100 levels of JSON. Every walk has to fit the stack of a thread that serves
/// requests (2 MiB, as tests have), and that in a build that was not optimised.
#[test]
fn depth_has_an_end() {
    let ways: [Deepen; 5] = [
        (|schema| json!({"type": "object", "properties": {"a": schema}}), |value| json!({"a": value})),
        (|schema| json!({"type": "array", "items": schema}), |value| json!([value])),
        (|schema| json!({"type": "object", "additionalProperties": schema}), |value| json!({"a": value})),
        (|schema| json!({"not": schema}), |value| value),
        (|schema| json!({"anyOf": [schema]}), |value| value),
    ];
    for (deeper_schema, deeper_value) in ways {
        for levels in [45, 90, 300] {
            let mut schema = json!({"type": "object"});
            let mut value = json!({});
            for _ in 0..levels {
                schema = deeper_schema(schema);
                value = deeper_value(value);
            }
            schema = json!({"type": "object", "properties": {"spec": schema}});
            value = json!({"spec": value});
            let mut definition = json!({"spec": {"group": "example.com", "names": {"plural": "as", "kind": "A"},
                "versions": [{"name": "v1", "storage": true, "schema": {"openAPIV3Schema": schema.clone()}}]}});
            default_definition(&mut definition);
            validate_definition(&definition, None);
            validate_definition(&definition, Some(&definition));
            let structural = match Structural::parse(&schema) {
                Ok(structural) => structural,
                Err(errors) => {
                    assert_eq!((levels, errors.len()), (300, 1));
                    continue;
                }
            };
            assert!(levels < 100);
            structural.violations(&Field::default());
            structural.validate(&value, Some(&value), Part::Whole);
            structural.prune(&mut value, Prune { unknown: true, ..Prune::default() }).unwrap();
            structural.default(&mut value);
            let what = Published {
                group: "g",
                version: "v",
                kind: "K",
                selectable_fields: &[],
                keep_unknown: false,
            };
            publish(Some(&structural), Dialect::V2, what);
            publish(Some(&structural), Dialect::V3, what);
        }
    }
}

/// Schemas and objects as large as requests may be, made to multiply one another.
#[test]
fn nothing_takes_for_ever_or_all_memory() {
    let long = "k".repeat(1 << 20);
    let many = |value: Value, count: usize| Value::from(vec![value; count]);
    let list = |items: Value| json!({"type": "array", "items": items});
    let numbers: Vec<Value> = (0..20_000).map(|number| json!({"multipleOf": number + 2})).collect();
    let values: Vec<Value> = (0..100_000).map(Value::from).collect();
    let required: Vec<String> = (0..50_000).map(|key| key.to_string()).collect();
    for (what, schema, value) in [
        ("wrong types", list(json!({"type": "string"})), many(json!(1), 300_000)),
        ("alternatives", list(json!({"anyOf": numbers})), many(json!(1), 50_000)),
        ("enums", list(json!({"enum": values})), many(json!(-1), 100_000)),
        ("required", list(json!({"required": required})), many(json!({}), 100_000)),
        ("patterns", json!({"allOf": many(json!({"pattern": "^(a|b|k)*z$"}), 5_000)}), json!(long)),
        (
            "long keys",
            json!({"additionalProperties": list(json!({"type": "string"}))}),
            json!({long.clone(): many(json!(1), 100_000)}),
        ),
        ("duplicates", json!({"type": "array", "x-kubernetes-list-type": "set"}), many(json!(1), 300_000)),
        ("embedded", list(json!({"x-kubernetes-embedded-resource": true})), many(json!({}), 300_000)),
        (
            "rules",
            list(
                json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1", "message": long}]}),
            ),
            many(json!(1), 300_000),
        ),
    ] {
        let start = std::time::Instant::now();
        let whole = json!({"type": "object", "properties": {"spec": schema}});
        let structural = Structural::parse(&whole).unwrap();
        let object = json!({"spec": value});
        let verdict = structural.validate(&object, Some(&json!({"spec": 1})), Part::Whole);
        let bytes: usize = verdict.errors.iter().map(|error| error.to_string().len()).sum();
        assert!(
            !verdict.errors.is_empty() && verdict.errors.len() <= 3000,
            "{what}: {}",
            verdict.errors.len()
        );
        assert!(bytes < 32 << 20, "{what}: {bytes} bytes");
        // Debug builds, on a busy machine.
        assert!(start.elapsed().as_secs() < 60, "{what}: {:?}", start.elapsed());
        println!("{what}: {:?}, {} errors, {bytes} bytes", start.elapsed(), verdict.errors.len());
    }
    let properties: serde_json::Map<String, Value> =
        (0..50_000).map(|key| (key.to_string(), json!({"type": "odd", "nullable": true}))).collect();
    let mut definition = json!({"spec": {"group": "example.com", "names": {"plural": "as", "kind": "A"},
        "versions": [{"name": "v1", "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {long: {"type": "object", "properties": properties}}}}}]}});
    default_definition(&mut definition);
    let start = std::time::Instant::now();
    let errors = validate_definition(&definition, None);
    let bytes: usize = errors.iter().map(|error| error.to_string().len()).sum();
    assert!(errors.len() <= 1000 && bytes < 32 << 20, "{} {bytes}", errors.len());
    println!("definition: {:?}, {} errors, {bytes} bytes", start.elapsed(), errors.len());
}
