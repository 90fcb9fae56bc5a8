use serde_json::json;

use super::*;

#[test]
fn equal_schemas_are_kept_once() {
    let schema = json!({"type": "object", "properties": {"once": {"type": "string"}}});
    let first = Structural::parse(&schema).unwrap();
    assert!(Arc::ptr_eq(&first, &Structural::parse(&schema.clone()).unwrap()));
    let other = Structural::parse(&json!({"type": "object"})).unwrap();
    assert!(!Arc::ptr_eq(&first, &other));
}

#[test]
fn an_object_is_decoded_and_defaulted() {
    let schema = Structural::parse(&json!({"type": "object", "properties": {
        "metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}},
        "spec": {"type": "object", "default": {}, "properties": {
            "replicas": {"type": "integer", "default": 1}, "note": {"type": "string"}}},
    }}))
    .unwrap();
    let mut object = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"labels": null},
        "spec": {"note": null, "replicas": null, "other": 1}});
    let unknown = schema.prune(&mut object, Prune { unknown: true, ..Prune::default() }).unwrap();
    assert_eq!(unknown, ["spec.other"]);
    schema.default(&mut object);
    assert_eq!(
        object,
        json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"labels": null}, "spec": {"replicas": 1}})
    );
    let mut empty = json!({"metadata": {}});
    schema.default(&mut empty);
    assert_eq!(empty, json!({"metadata": {}, "spec": {"replicas": 1}}));
}

#[test]
fn parts_are_validated_on_their_own() {
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let part =
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "set": set}});
    let schema =
        Structural::parse(&json!({"type": "object", "properties": {"spec": part, "status": part}})).unwrap();
    let errors = |new: Value, old: Option<Value>, part: Part| -> Vec<String> {
        let verdict = schema.validate(&new, old.as_ref(), part);
        verdict.errors.iter().map(FieldError::to_string).collect()
    };
    let both = json!({"spec": {}, "status": {}});
    assert_eq!(
        errors(both.clone(), None, Part::Whole),
        ["spec.a: Required value", "status.a: Required value"]
    );
    assert_eq!(errors(both.clone(), Some(json!({})), Part::Status), ["status.a: Required value"]);
    assert_eq!(errors(both.clone(), Some(both), Part::Status), [""; 0]);
    let twice = json!({"spec": {"a": "", "set": ["x", "x"]}});
    assert_eq!(errors(twice.clone(), None, Part::Whole), ["spec.set[1]: Duplicate value: \"x\""]);
    let more = json!({"spec": {"a": "", "set": ["x", "x", "y"]}});
    assert_eq!(errors(more, Some(twice), Part::Whole), [""; 0]);
}
