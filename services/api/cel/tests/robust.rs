//! Nothing a stranger writes may panic, overflow the stack, or take for ever.

use std::time::{Duration, Instant};

use api_cel::{Budget, Decl, Env, EvalError, Type, Value, compile, explain};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn env() -> Env {
    Env::kubernetes().variable("x", Type::Dyn).variable("l", Type::list(Type::Int)).mutation().bindings()
}

/// Compiles and, if it can be, evaluates. Says what became of it.
fn run(source: &str) -> String {
    let program = match compile(&env(), source) {
        Ok(program) => program,
        Err(issues) => return explain(&issues),
    };
    let data = json!({"a": [1, 2, {"b": "c"}], "d": 1.5, "e": null, "f": "text"});
    let numbers = json!([1, 2, 3]);
    let activation = [("x", Value::from_json(&data)), ("l", Value::from_json(&numbers))];
    // A fiftieth of what upstream allows, since this runs unoptimised.
    match program.eval(&activation, &mut Budget { left: 10_000_000, per_call: 20_000 }) {
        Ok(value) => {
            let _ = value.to_json();
            value.to_string()
        }
        Err(err) => err.to_string(),
    }
}

fn nested(open: &str, inner: &str, close: &str, times: usize) -> String {
    format!("{}{inner}{}", open.repeat(times), close.repeat(times))
}

#[test]
fn depth_is_bounded() {
    for times in [10, 100, 240, 300, 2000, 20_000] {
        for source in [
            nested("(", "1", ")", times),
            nested("[", "1", "]", times),
            nested("{'a': ", "1", "}", times),
            nested("x.map(y, ", "1", ")", times),
            nested("l.all(y, ", "true", ")", times),
            nested("optional.of(", "1", ")", times),
            nested("cel.bind(y, ", "1", ", y)", times),
            nested("cel.bind(y, [y, y], ", "y", ")", times),
            nested("[1].transformMap(i, v, ", "v", ")", times),
            nested("Object{a: ", "1", "}", times),
            nested("x[", "1", "]", times),
            nested("-(", "1", ")", times),
            nested("dyn(", "x", ")", times),
            "!".repeat(times) + "true",
            "-".repeat(times) + "1",
            "x".to_owned() + &".a".repeat(times),
            "x".to_owned() + &"[0]".repeat(times),
            "x".to_owned() + &".?a".repeat(times),
            "l".to_owned() + &".map(y, y)".repeat(times.min(9000)),
            "optional.of(1)".to_owned() + &".optMap(y, y)".repeat(times.min(7000)),
            "1".to_owned() + &" + 1".repeat(times),
            "true".to_owned() + &" && true".repeat(times.min(12_000)),
            "true".to_owned() + &" ? true : false".repeat(times.min(6000)),
            "1".to_owned() + &" == 1".repeat(times.min(19_000)),
            "[1]".to_owned() + &" + [1]".repeat(times.min(16_000)),
            nested("has(", "x.a", ")", times),
            nested("'%s'.format([", "1", "])", times),
        ] {
            let begun = Instant::now();
            run(&source);
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{} took {:?}",
                &source[..40.min(source.len())],
                begun.elapsed()
            );
        }
    }
}

#[test]
fn limits_are_upstreams() {
    for (source, message) in [
        (nested("(", "1", ")", 300), "expression recursion limit exceeded: 250"),
        ("1".to_owned() + &" + 1".repeat(300), "max recursion depth exceeded"),
        ("x".to_owned() + &".a".repeat(300), "max recursion depth exceeded"),
        (
            "'".to_owned() + &"a".repeat(100_000) + "'",
            "expression code point size exceeds limit: size: 100002, limit 100000",
        ),
    ] {
        let found = run(&source);
        assert_eq!(
            found.lines().next().unwrap(),
            format!("compilation failed: ERROR: <input>:-1:0: {message}")
        );
    }
    assert_eq!(run(&("1".to_owned() + &" + 1".repeat(249))), "250");
    assert_eq!(run(&nested("(", "1", ")", 249)), "1");
    let long = "true".to_owned() + &" && true".repeat(5000);
    assert_eq!(run(&long), "true");
}

/// Lists that hold themselves many times over grow without end while they cost next to nothing.
#[test]
fn growth_is_bounded() {
    let doubled = |what: &str, times: usize, last: &str| {
        let mut source = String::from("cel.bind(a0, ") + what + ", ";
        for at in 1..=times {
            source += &format!("cel.bind(a{at}, a{0} + a{0}, ", at - 1);
        }
        source + &last.replace('$', &format!("a{times}")) + &")".repeat(times + 1)
    };
    let paired = |times: usize, last: &str| {
        let mut source = String::from("cel.bind(a0, [1], ");
        for at in 1..=times {
            source += &format!("cel.bind(a{at}, [a{0}, a{0}], ", at - 1);
        }
        source + &last.replace('$', &format!("a{times}")) + &")".repeat(times + 1)
    };
    for source in [
        doubled("[1]", 60, "$ == $"),
        doubled("[1]", 70, "$.size() == 1"),
        doubled("[1]", 50, "$.map(x, x).size()"),
        doubled("[1]", 50, "1 in $"),
        doubled("[1]", 40, "2 in $"),
        doubled("[1]", 40, "$.sum()"),
        doubled("['']", 40, "$.isSorted()"),
        doubled("['a']", 40, "$.join()"),
        doubled("'abc'", 60, "$"),
        doubled("[1]", 40, "'%s'.format([$])"),
        doubled("[1]", 40, "$"),
        doubled("[1]", 40, "$.sort()"),
        doubled("[1]", 40, "$.distinct()"),
        doubled("[1]", 40, "$.reverse()"),
        doubled("[1]", 40, "sets.contains($, $)"),
        paired(30, "$ == $"),
        paired(60, "dyn($) == dyn($)"),
        paired(60, "dyn($)"),
        paired(60, "'%s'.format([dyn($)])"),
        paired(60, "dyn($).flatten(100)"),
        "('a'.split('') + 'b'.split('')).map(x, 'aaaaaaaaaa'.replace('', x)).join().replace('', 'bbbbbbbbbbbbbbbb').replace('', 'cccccccccccccccc').replace('', 'ddddddddddddddddd').replace('', 'eeeeeeeeeeeeeeeeee').replace('', 'fffffffff').size()".to_owned(),
        "lists.range(9223372036854775807).size()".to_owned(),
        "lists.range(1000).map(x, lists.range(1000).map(y, lists.range(1000)))".to_owned(),
        "lists.range(900000).map(x, 'a')".to_owned(),
        "'%.999999999f'.format([1.0])".to_owned(),
        "'%.1000f'.format([1.0])".to_owned(),
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'.matches('(a+)+$')".to_owned(),
        "'a'.matches('((a{100}){100}){100}')".to_owned(),
        "lists.range(9000).exists(y, x.f.matches('((a{100}){100}){9}' + string(y)))".to_owned(),
        "lists.range(9000).exists(y, x.f.matches('x' + 'y'))".to_owned(),
        "lists.range(9000).map(y, 'aaaaaaaaaa'.replace('', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb').replace('', 'ccccccccccccccccccccccccccccccccccccccccccc'))".to_owned(),
        "[".to_owned() + &"x.f.matches('((a{100}){90}){10}'), ".repeat(100) + "true]",
        "l.map(y, string(y) + '(').map(y, x.f.matches(y))".to_owned(),
        "{[1]: 1}".to_owned(),
        "{1.5: 1}".to_owned(),
        "{null: 1}".to_owned(),
        "l.transformMap(i, v, l.transformMap(j, w, {w: v}))".to_owned(),
        "timestamp('0001-01-01T00:00:00Z') - duration('1ns')".to_owned(),
        "timestamp('9999-12-31T23:59:59Z').getDate('+25:00')".to_owned(),
        "timestamp('9999-12-31T23:59:59.999999999Z').getFullYear('Pacific/Kiritimati')".to_owned(),
        "timestamp('2020-01-01T00:00:00Z').getDate('99999999999:0')".to_owned(),
        "duration('-9223372036854775808ns') + duration('-1ns')".to_owned(),
        "[duration('9223372036854775807ns'), duration('1ns')].sum()".to_owned(),
    ] {
        let begun = Instant::now();
        let outcome = run(&source);
        assert!(begun.elapsed() < Duration::from_secs(20), "{source} took {:?}: {outcome}", begun.elapsed());
    }
}

#[test]
fn budgets_hold_whatever_is_evaluated() {
    let program = compile(&env(), "l.all(y, lists.range(100).all(z, z >= 0))").unwrap();
    let numbers = json!([1, 2, 3]);
    for left in [0, 1, 10, 100, 1000] {
        let mut budget = Budget::new(left);
        let outcome = program.eval(&[("l", Value::from_json(&numbers))], &mut budget);
        assert_eq!((outcome.map(|_| ()), budget.left), (Err(EvalError::Budget), 0), "{left}");
    }
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "[ -~]{0,8}".prop_map(Json::from),
        Just(json!("2020-01-01T00:00:00Z")),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::btree_map("[a-d]", inner, 0..4)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

const PIECES: &[&str] = &[
    "x",
    "l",
    "a",
    "b",
    "1",
    "-1",
    "0",
    "1u",
    "1.5",
    "'s'",
    "b'b'",
    "true",
    "null",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    "?",
    ":",
    "+",
    "-",
    "*",
    "/",
    "%",
    "!",
    "==",
    "!=",
    "<",
    ">=",
    "&&",
    "||",
    "in",
    "has(",
    ".all(y, ",
    ".map(y, ",
    ".filter(y, ",
    ".exists(y, ",
    "size(",
    "[?",
    ".?",
    "optional.of(",
    ".orValue(",
    "'%s'.format([",
    "dyn(",
    "type(",
    "string(",
    "int(",
    "duration('1h')",
    "timestamp('2020-01-01T00:00:00Z')",
    ".transformMap(k, v, ",
    ".sum()",
    "y",
    "quantity('1')",
    "ip('::1')",
    "Object{",
    "a: ",
    "'",
    "\"",
    "\\",
    "`",
    "//",
    "\n",
    "é",
    "😀",
    "@",
    "=",
    "0x",
    "'''",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text_is_answered(source in "\\PC{0,60}") {
        run(&source);
    }

    #[test]
    fn any_soup_of_pieces_is_answered(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..25)) {
        run(&pieces.concat());
        run(&pieces.join(" "));
    }

    #[test]
    fn any_data_is_read_by_any_schema(schema in any_json(), data in any_json(), at in 0usize..8) {
        let kinds = [
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": schema}}),
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}},
                   "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
            json!({"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}}),
            json!({"x-kubernetes-int-or-string": true}),
            json!({"type": "string", "format": "duration"}),
            json!({"type": "string", "format": "byte", "nullable": true}),
            schema,
        ];
        if let Some(decl) = Decl::from_schema(&kinds[at], at == 0, "t") {
            let env = Env::kubernetes().declared("self", decl.clone().into());
            for source in [
                "self == self", "[self] == [self]", "type(self) == type(self)", "dyn(self).a == 1", "dyn(self)[0] == 1",
                "dyn(self).all(k, k == k)", "dyn(self).all(k, v, v == v)", "dyn(self) + dyn(self) == dyn(self)", "self in [self]",
                "has(dyn(self).b)", "'%s'.format([dyn(self)]) == ''", "dyn(self).?b.orValue(1) == 1", "dyn(self).distinct() == dyn(self)",
            ] {
                if let Ok(program) = compile(&env, source)
                    && let Ok(value) = Value::typed(&data, &decl)
                {
                    let _ = program.eval(&[("self", value)], &mut Budget::new(1_000_000));
                }
            }
        }
    }
}
