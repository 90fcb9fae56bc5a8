use serde_json::{Value, json};

use super::*;

/// `schema` is that of `x`; errors are those of `{"x": value}`.
fn errors(schema: Value, value: Value) -> Vec<String> {
    let schema = Schema::read(&json!({"type": "object", "properties": {"x": schema}})).unwrap();
    let found = validate(&Field::default(), &json!({"x": value}), &schema, None);
    found.iter().map(FieldError::to_string).collect()
}

fn check(schema: Value, value: Value, expected: &[&str]) {
    assert_eq!(errors(schema.clone(), value.clone()), expected, "{schema} {value}");
}

#[test]
fn types_are_told_apart() {
    let string = json!({"type": "string"});
    check(string.clone(), json!("a"), &[]);
    check(
        string.clone(),
        json!(1),
        &[r#"x: Invalid value: "integer": x in body must be of type string: "integer""#],
    );
    check(
        string.clone(),
        json!(null),
        &[r#"x: Invalid value: "null": x in body must be of type string: "null""#],
    );
    check(string, json!({}), &[r#"x: Invalid value: "object": x in body must be of type string: "object""#]);
    check(json!({"type": "string", "nullable": true}), json!(null), &[]);
    check(
        json!({"type": "integer"}),
        json!("a"),
        &[r#"x: Invalid value: "string": x in body must be of type integer: "string""#],
    );
    check(json!({"type": "integer"}), json!(1.0), &[]);
    check(
        json!({"type": "integer"}),
        json!(1.5),
        &[
            r#"x: Invalid value: "number": x in body must be of type integer: "number""#,
            r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in x"#,
        ],
    );
    check(json!({"type": "number"}), json!(1), &[]);
    check(json!({"type": "boolean"}), json!(true), &[]);
    check(
        json!({"type": "array", "items": {"type": "string"}}),
        json!(["a", 1]),
        &[r#"x[1]: Invalid value: "integer": x[1] in body must be of type string: "integer""#],
    );
    let either = json!({"x-kubernetes-int-or-string": true});
    check(either.clone(), json!(1), &[]);
    check(either.clone(), json!("1"), &[]);
    check(
        either,
        json!(true),
        &[r#"x: Invalid value: "boolean": x in body must be of type integer,string: "boolean""#],
    );
    check(json!({}), json!([1, {"a": null}]), &[]);
}

#[test]
fn strings_numbers_lists_and_objects_have_their_bounds() {
    let text = json!({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-zé]+$"});
    check(text.clone(), json!("éé"), &[]);
    check(text.clone(), json!("abcd"), &["x: Too long: may not be more than 3 bytes"]);
    check(text.clone(), json!("a"), &[r#"x: Invalid value: "a": x in body should be at least 2 chars long"#]);
    check(text, json!("A1"), &[r#"x: Invalid value: "A1": x in body should match '^[a-zé]+$'"#]);
    let date = json!({"type": "string", "format": "date"});
    check(date.clone(), json!("2020-01-01"), &[]);
    check(date, json!("x"), &[r#"x: Invalid value: "x": x in body must be of type date: "x""#]);
    check(json!({"type": "string", "format": "nobody-knows"}), json!("x"), &[]);

    let number = json!({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 2});
    check(number.clone(), json!(2), &[]);
    check(number.clone(), json!(0), &["x: Invalid value: 0: x in body should be greater than or equal to 1"]);
    check(
        number,
        json!(5),
        &[
            "x: Invalid value: 5: x in body should be a multiple of 2",
            "x: Invalid value: 5: x in body should be less than or equal to 4",
        ],
    );
    let open = json!({"type": "number", "minimum": 0.5, "exclusiveMinimum": true, "multipleOf": 0.1});
    check(open.clone(), json!(0.7), &[]);
    check(open.clone(), json!(0.5), &["x: Invalid value: 0.5: x in body should be greater than 0.5"]);
    check(open, json!(0.75), &["x: Invalid value: 0.75: x in body should be a multiple of 0.1"]);
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(3_000_000_000_i64),
        &[r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in x"#],
    );

    let list = json!({"type": "array", "minItems": 1, "maxItems": 2});
    check(list.clone(), json!([1]), &[]);
    check(list.clone(), json!([]), &["x: Invalid value: 0: x in body should have at least 1 items"]);
    check(list, json!([1, 2, 3]), &["x: Too many: 3: must have at most 2 items"]);
    check(
        json!({"uniqueItems": true}),
        json!([1, 1]),
        &[r#"x: Invalid value: "": x in body shouldn't contain duplicates"#],
    );

    let object = json!({"type": "object", "minProperties": 1, "maxProperties": 1, "required": ["a"]});
    check(object.clone(), json!({"a": 1}), &[]);
    check(
        object.clone(),
        json!({}),
        &["x: Invalid value: 0: x in body should have at least 1 properties", "x.a: Required value"],
    );
    check(object, json!({"a": 1, "b": 1}), &["x: Too many: 2: must have at most 1 item"]);
    check(
        json!({"additionalProperties": {"type": "string"}}),
        json!({"k": 1}),
        &[r#"x.k: Invalid value: "integer": x.k in body must be of type string: "integer""#],
    );
    check(
        json!({"additionalProperties": false}),
        json!({"k": 1}),
        &[r#"x: Invalid value: "k": x.k in body is a forbidden property"#],
    );
}

#[test]
fn enums_list_what_they_take() {
    check(json!({"enum": ["a", 1]}), json!("a"), &[]);
    check(json!({"enum": ["a", 1]}), json!(1), &[]);
    check(
        json!({"enum": ["a", 1]}),
        json!("b"),
        &[r#"x: Unsupported value: "b": supported values: "a", "1""#],
    );
    check(
        json!({"type": "string", "nullable": true, "enum": ["a"]}),
        json!(null),
        &[r#"x: Unsupported value: null: supported values: "a""#],
    );
}

#[test]
fn junctors_say_which_one() {
    let two = json!([{"minimum": 5}, {"multipleOf": 2}]);
    let schema = |junctor: &str| json!({"type": "integer", junctor: two});
    check(schema("anyOf"), json!(2), &[]);
    check(
        schema("anyOf"),
        json!(3),
        &[
            r#"<nil>: Invalid value: "": "x" must validate at least one schema (anyOf)"#,
            "x: Invalid value: 3: x in body should be greater than or equal to 5",
        ],
    );
    check(schema("oneOf"), json!(7), &[]);
    check(
        schema("oneOf"),
        json!(6),
        &[
            r#"<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ],
    );
    check(
        schema("oneOf"),
        json!(3),
        &[
            r#"<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf). Found none valid"#,
            "x: Invalid value: 3: x in body should be greater than or equal to 5",
        ],
    );
    check(schema("allOf"), json!(6), &[]);
    check(
        schema("allOf"),
        json!(7),
        &[
            "x: Invalid value: 7: x in body should be a multiple of 2",
            r#"<nil>: Invalid value: "": "x" must validate all the schemas (allOf)"#,
        ],
    );
    check(
        schema("allOf"),
        json!(3),
        &[
            "x: Invalid value: 3: x in body should be greater than or equal to 5",
            "x: Invalid value: 3: x in body should be a multiple of 2",
            r#"<nil>: Invalid value: "": "x" must validate all the schemas (allOf). None validated"#,
        ],
    );
    check(
        json!({"not": {"minimum": 5}}),
        json!(6),
        &[r#"<nil>: Invalid value: "": "x" must not validate the schema (not)"#],
    );
    check(json!({"not": {"minimum": 5}}), json!(4), &[]);
}

#[test]
fn the_root_has_its_own_ways_of_being_named() {
    let schema = Schema::read(&json!({"type": "object", "required": ["spec"]})).unwrap();
    let shown = |base: &str, value: Value| -> Vec<String> {
        validate(&Field::new(base), &value, &schema, None).iter().map(FieldError::to_string).collect()
    };
    assert_eq!(shown("", json!({})), ["spec: Required value"]);
    assert_eq!(shown("status", json!({})), ["status.spec: Required value"]);
    assert_eq!(
        shown("", json!(1)),
        [r#"<nil>: Invalid value: "integer":  in body must be of type object: "integer""#]
    );
    assert_eq!(
        shown("status", json!(1)),
        [r#"status: Invalid value: "integer":  in body must be of type object: "integer""#]
    );
}

#[test]
fn what_did_not_change_may_stay() {
    let small = json!({"type": "integer", "maximum": 5});
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": small}}});
    let schema = json!({"type": "object", "properties": {"a": small, "b": small, "list": list,
        "atomic": {"type": "array", "items": small}, "any": {"anyOf": [small]},
        "object": {"type": "object", "required": ["r"], "properties": {"a": small}}}});
    let schema = Schema::read(&schema).unwrap();
    for (old, new, expected) in [
        (json!({"a": 9}), json!({"a": 9}), vec![]),
        (
            json!({"a": 9}),
            json!({"a": 8}),
            vec!["a: Invalid value: 8: a in body should be less than or equal to 5"],
        ),
        (
            json!({"a": 9}),
            json!({"a": 9, "b": 9}),
            vec!["b: Invalid value: 9: b in body should be less than or equal to 5"],
        ),
        (
            json!({"list": [{"k": "x", "v": 9}]}),
            json!({"list": [{"k": "y", "v": 1}, {"k": "x", "v": 9}]}),
            vec![],
        ),
        (json!({"atomic": [9]}), json!({"atomic": [9]}), vec![]),
        (
            json!({"atomic": [9]}),
            json!({"atomic": [9, 1]}),
            vec!["atomic[0]: Invalid value: 9: atomic[0] in body should be less than or equal to 5"],
        ),
        (json!({"any": 9}), json!({"any": 9}), vec![]),
        (json!({"object": {"a": 9}}), json!({"object": {"a": 9}}), vec![]),
        (json!({"object": {"a": 9}}), json!({"object": {"a": 1}}), vec!["object.r: Required value"]),
    ] {
        let past = Correlated::new(&new, &old, &schema);
        let found = validate(&Field::default(), &new, &schema, Some(past));
        let found: Vec<String> = found.iter().map(FieldError::to_string).collect();
        assert_eq!(found, expected, "{old} {new}");
    }
}
