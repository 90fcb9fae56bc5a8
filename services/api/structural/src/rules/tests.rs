use serde_json::json;

use super::*;

fn verdict(schema: &Value, new: &Value, old: Option<&Value>) -> (Vec<String>, Vec<String>) {
    let schema = Schema::read(schema).unwrap();
    let rules = Rules::of(&schema, true).unwrap();
    let past = old.map(|old| Correlated::new(new, old, &schema));
    let broken = rules.validate(&Field::default(), new, old, past, &mut budget());
    (broken.errors.iter().map(FieldError::to_string).collect(), broken.warnings)
}

/// `rule` is that of property `x`.
fn with(property: Value, rule: Value) -> Value {
    let mut property = property;
    property["x-kubernetes-validations"] = json!([rule]);
    json!({"type": "object", "properties": {"x": property}})
}

fn check(schema: Value, new: Value, old: Option<Value>, expected: &[&str]) {
    let (errors, _) = verdict(&schema, &new, old.as_ref());
    assert_eq!(errors, expected, "{schema} {new} {old:?}");
}

#[test]
fn broken_rules_are_told_in_their_own_words() {
    let number = json!({"type": "integer"});
    let object =
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b-c": {"type": "string"}}});
    let rule = |text: &str| json!({"rule": text});
    check(with(number.clone(), rule("self > 1")), json!({"x": 2}), None, &[]);
    check(
        with(number.clone(), rule("self > 1")),
        json!({"x": 1}),
        None,
        &["x: Invalid value: 1: failed rule: self > 1"],
    );
    check(with(number.clone(), rule("self > 1")), json!({}), None, &[]);
    check(with(number.clone(), rule("self > 1")), json!({"x": null}), None, &[]);
    check(
        with(number.clone(), json!({"rule": "self > 1", "message": " more! "})),
        json!({"x": 1}),
        None,
        &["x: Invalid value: 1: more!"],
    );
    check(
        with(
            number.clone(),
            json!({"rule": "self > 1", "messageExpression": "'not ' + string(self)", "message": "m"}),
        ),
        json!({"x": 1}),
        None,
        &["x: Invalid value: 1: not 1"],
    );
    check(
        with(number.clone(), json!({"rule": "self > 1", "messageExpression": "''", "message": "m"})),
        json!({"x": 1}),
        None,
        &["x: Invalid value: 1: m"],
    );
    for (reason, expected) in [
        ("FieldValueForbidden", "x: Forbidden: m"),
        ("FieldValueRequired", "x: Required value: m"),
        ("FieldValueDuplicate", "x: Duplicate value: 1"),
        ("FieldValueInvalid", "x: Invalid value: 1: m"),
    ] {
        check(
            with(number.clone(), json!({"rule": "false", "message": "m", "reason": reason})),
            json!({"x": 1}),
            None,
            &[expected],
        );
    }
    check(
        with(object.clone(), rule("self.a > 1")),
        json!({"x": {"a": 1}}),
        None,
        &["x: Invalid value: failed rule: self.a > 1"],
    );
    check(
        with(object.clone(), json!({"rule": "self.a > 1", "fieldPath": ".a"})),
        json!({"x": {"a": 1}}),
        None,
        &["x.a: Invalid value: failed rule: self.a > 1"],
    );
    check(with(object.clone(), rule("self.b__dash__c == 'y'")), json!({"x": {"b-c": "y"}}), None, &[]);
    check(
        with(object.clone(), rule("self.a > 1")),
        json!({"x": {}}),
        None,
        &["x: Invalid value: \"object\": no such key: a evaluating rule: self.a > 1"],
    );
    check(with(object, rule("!has(self.a)")), json!({"x": {}}), None, &[]);
    let either = json!({"x-kubernetes-int-or-string": true});
    check(
        with(either, rule("self > 1")),
        json!({"x": "a"}),
        None,
        &[
            "x: Invalid value: \"\": 'no such overload': call arguments did not match a supported operator, function or macro signature for rule: self > 1",
        ],
    );
}

#[test]
fn rules_are_everywhere() {
    let positive = json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]});
    check(
        json!({"type": "object", "properties": {"l": {"type": "array", "items": positive}, "m": {"type": "object", "additionalProperties": positive}}}),
        json!({"l": [1, -1], "m": {"a": 1, "b": -1}}),
        None,
        &["l[1]: Invalid value: -1: failed rule: self > 0", "m[b]: Invalid value: -1: failed rule: self > 0"],
    );
    check(
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name == 'a'"}, {"rule": "self.kind == 'K'"}]}),
        json!({"kind": "K", "metadata": {"name": "b"}}),
        None,
        &["<nil>: Invalid value: failed rule: self.metadata.name == 'a'"],
    );
    let date = json!({"type": "string", "format": "date-time"});
    check(
        with(date, json!({"rule": "self < timestamp('2020-01-01T00:00:00Z')"})),
        json!({"x": "2021-01-01T00:00:00Z"}),
        None,
        &[
            "x: Invalid value: \"2021-01-01T00:00:00Z\": failed rule: self < timestamp('2020-01-01T00:00:00Z')",
        ],
    );
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    check(with(set, json!({"rule": "self == ['b', 'a']"})), json!({"x": ["a", "b"]}), None, &[]);
}

#[test]
fn transitions_compare_with_what_was() {
    let number = json!({"type": "integer"});
    let grows = json!({"rule": "self >= oldSelf"});
    check(with(number.clone(), grows.clone()), json!({"x": 1}), None, &[]);
    check(with(number.clone(), grows.clone()), json!({"x": 1}), Some(json!({})), &[]);
    check(
        with(number.clone(), grows.clone()),
        json!({"x": 1}),
        Some(json!({"x": 2})),
        &["x: Invalid value: 1: failed rule: self >= oldSelf"],
    );
    let optional = json!({"rule": "oldSelf.hasValue() || self == 0", "optionalOldSelf": true});
    check(
        with(number.clone(), optional.clone()),
        json!({"x": 1}),
        None,
        &["x: Invalid value: 1: failed rule: oldSelf.hasValue() || self == 0"],
    );
    check(with(number, optional), json!({"x": 1}), Some(json!({"x": 1})), &[]);
    let keyed = json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"},
            "v": {"type": "integer", "x-kubernetes-validations": [grows]}}}}}});
    check(
        keyed,
        json!({"l": [{"k": "b", "v": 1}, {"k": "a", "v": 1}]}),
        Some(json!({"l": [{"k": "a", "v": 2}]})),
        &["l[1].v: Invalid value: 1: failed rule: self >= oldSelf"],
    );
}

#[test]
fn what_did_not_change_is_warned_of() {
    let schema = with(json!({"type": "integer"}), json!({"rule": "self > 1"}));
    let (errors, warnings) = verdict(&schema, &json!({"x": 1}), Some(&json!({"x": 1})));
    assert_eq!((errors, warnings), (vec![], vec!["x: Invalid value: 1: failed rule: self > 1".to_owned()]));
    let (errors, warnings) = verdict(&schema, &json!({"x": 0}), Some(&json!({"x": 1})));
    assert_eq!((errors.len(), warnings.len()), (1, 0));
    // A transition that failed is new, whatever else stayed.
    let schema = with(json!({"type": "integer"}), json!({"rule": "self != oldSelf"}));
    let (errors, warnings) = verdict(&schema, &json!({"x": 1}), Some(&json!({"x": 1})));
    assert_eq!((errors.len(), warnings.len()), (1, 0));
}

#[test]
fn costs_end() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let items: Vec<i64> = (0..2000).collect();
    let dear = with(list.clone(), json!({"rule": "self.all(x, self.all(y, x >= 0 && y >= 0))"}));
    let (errors, _) = verdict(&dear, &json!({"x": items}), None);
    assert_eq!(
        errors,
        [
            "x: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.all(x, self.all(y, x >= 0 && y >= 0))"
        ]
    );
    let rule = json!({"rule": "self.all(x, self.all(y, x >= 0 && y >= 0))"});
    let mut many = with(list, rule.clone());
    many["properties"]["x"]["x-kubernetes-validations"] = vec![rule; 40].into();
    let items: Vec<i64> = (0..300).collect();
    let (errors, _) = verdict(&many, &json!({"x": items}), None);
    assert_eq!(
        errors,
        [
            "x: Invalid value: \"array\": validation failed due to running out of cost budget, no further validation rules will be run"
        ]
    );
}
