//! What is said of expressions that make no sense, in upstream's words.

use api_cel::{Decl, Env, Field, Type, compile, explain};

fn env() -> Env {
    let inner = Decl::object("selfType.spec", [("n".to_owned(), field(Decl::integer()))], 2);
    let fields = [
        ("spec".to_owned(), field(inner)),
        ("name".to_owned(), field(Decl::string(None))),
        ("l".to_owned(), field(Decl::list(Decl::integer(), api_cel::ListKind::Atomic, None))),
        ("m".to_owned(), field(Decl::map(Decl::string(None), None))),
    ];
    let decl = Decl::object("selfType", fields, 2);
    Env::kubernetes().declared("self", decl.into()).variable("object", Type::Dyn)
}

fn field(decl: Decl) -> Field {
    Field { decl: decl.into(), required: false }
}

#[track_caller]
fn check(rows: &[(&str, &str)]) {
    for (source, message) in rows {
        match compile(&env(), source) {
            Ok(_) => panic!("{source} is fine"),
            Err(issues) => assert_eq!(explain(&issues), *message, "{source}"),
        }
    }
}

/// The first line alone.
#[track_caller]
fn check_first(rows: &[(&str, &str)]) {
    for (source, message) in rows {
        match compile(&env(), source) {
            Ok(_) => panic!("{source} is fine"),
            Err(issues) => {
                let text = explain(&issues);
                let first = text.lines().next().unwrap_or_default();
                assert_eq!(
                    first.strip_prefix("compilation failed: ERROR: <input>:").unwrap_or(first),
                    *message,
                    "{source}"
                );
            }
        }
    }
}

#[test]
fn the_place_is_shown() {
    check(&[
        (
            "noSuchVar",
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'noSuchVar' (in container '')\n | noSuchVar\n | ^",
        ),
        (
            "request.user = 'test'",
            "compilation failed: ERROR: <input>:1:14: Syntax error: token recognition error at: '= '\n | request.user = 'test'\n | .............^\nERROR: <input>:1:16: Syntax error: extraneous input ''test'' expecting <EOF>\n | request.user = 'test'\n | ...............^",
        ),
        (
            "'é' +\n\t self.nope",
            "compilation failed: ERROR: <input>:2:7: undefined field 'nope'\n |   self.nope\n | ......^",
        ),
        (
            "'é' + 1",
            "compilation failed: ERROR: <input>:1:5: found no matching overload for '_+_' applied to '(string, int)'\n | 'é' + 1\n | .．..^",
        ),
    ]);
}

#[test]
fn syntax() {
    const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
    check_first(&[
        ("self.name requires", "1:11: Syntax error: extraneous input 'requires' expecting <EOF>"),
        ("this is not valid", "1:6: Syntax error: mismatched input 'is' expecting <EOF>"),
        ("object.x in [1, 2,", "1:19: Syntax error: missing ']' at '<EOF>'"),
        ("object.x in [1, 2, ", "1:20: Syntax error: missing ']' at '<EOF>'"),
        ("'asdf'.contains('x'", "1:20: Syntax error: missing ')' at '<EOF>'"),
        ("self.true == 1", "1:6: Syntax error: mismatched input 'true' expecting IDENTIFIER"),
        ("1 +", &format!("1:4: Syntax error: mismatched input '<EOF>' expecting {STARTS}")),
        ("", &format!("1:1: Syntax error: mismatched input '<EOF>' expecting {STARTS}")),
        ("* 1", &format!("1:1: Syntax error: extraneous input '*' expecting {STARTS}")),
        ("self.\"a\"", "1:6: Syntax error: no viable alternative at input '.\"a\"'"),
        ("'abc", "1:1: Syntax error: token recognition error at: ''abc'"),
        ("@a", "1:1: Syntax error: token recognition error at: '@'"),
        ("for == 1", "1:1: reserved identifier: for"),
        ("99999999999999999999", "1:1: invalid int literal"),
        ("99999999999999999999u", "1:1: invalid uint literal"),
        ("'\\U99999999'", "1:1: invalid unicode code point"),
        ("has(self)", "1:5: invalid argument to has() macro"),
        ("[1].all(1 + 1, true)", "1:11: argument must be a simple name"),
        ("[1].map(1, true)", "1:9: argument is not an identifier"),
        ("[1].all(a, a, true)", "1:12: duplicate variable name: a"),
        ("[1].all(__result__, true)", "1:9: iteration variable overwrites accumulator variable"),
        ("optional.of(1).optMap(1, 1)", "1:23: optMap() variable name must be a simple identifier"),
    ]);
}

#[test]
fn types() {
    check_first(&[
        ("1 < 'a'", "1:3: found no matching overload for '_<_' applied to '(int, string)'"),
        ("114 + '514'", "1:5: found no matching overload for '_+_' applied to '(int, string)'"),
        (
            "self.spec + 1 == 2",
            "1:11: found no matching overload for '_+_' applied to '(selfType.spec, int)'",
        ),
        (
            "self.l.contains(1)",
            "1:16: found no matching overload for 'contains' applied to 'list(int).(int)'",
        ),
        ("self.l['a']", "1:7: found no matching overload for '_[_]' applied to '(list(int), string)'"),
        (
            "self.m[1] == 'a'",
            "1:7: found no matching overload for '_[_]' applied to '(map(string, string), int)'",
        ),
        ("self.spec.x", "1:10: undefined field 'x'"),
        ("self.name.x", "1:10: type 'string' does not support field selection"),
        ("nope(1)", "1:5: undeclared reference to 'nope' (in container '')"),
        ("self.nope()", "1:10: undeclared reference to 'nope' (in container '')"),
        ("1 && true", "1:1: expected type 'bool' but found 'int'"),
        (
            "self.name.all(x, true)",
            "1:5: expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("[1, 'a']", "1:5: expected type 'int' but found 'string'"),
        ("{'a': 1, 'b': 'c'}", "1:15: expected type 'int' but found 'string'"),
        ("isIP(cidr('::/0'))", "1:5: found no matching overload for 'isIP' applied to '(net.CIDR)'"),
        ("Object{a: 1}", "1:7: undeclared reference to 'Object' (in container '')"),
        ("jsonpatch.escapeKey('a')", "1:1: undeclared reference to 'jsonpatch' (in container '')"),
        ("true ? 1 : 'a'", "1:6: found no matching overload for '_?_:_' applied to '(bool, int, string)'"),
        ("[?1]", "1:3: expected type 'optional_type(int)' but found 'int'"),
        (
            "self == null || self.l == null",
            "1:24: found no matching overload for '_==_' applied to '(list(int), null)'",
        ),
    ]);
}

#[test]
fn literals_are_tried() {
    check_first(&[
        ("duration('1d') == duration('1h')", "1:10: invalid duration argument"),
        ("timestamp('1000-00-00T00:00:00Z') == timestamp(0)", "1:11: invalid timestamp argument"),
        ("timestamp(-62135596801) == timestamp(0)", "1:11: invalid timestamp argument"),
        ("self.name.matches(')')", "1:19: invalid matches argument"),
        ("self.name.matches('x++')", "1:19: invalid matches argument"),
        (
            "self.name.find(')') == ''",
            "program instantiation failed: error parsing regexp: unexpected ): `)`",
        ),
        ("int('x') == 1", "program instantiation failed: type conversion error from 'string' to 'int'"),
        (
            "'%d'.format(['a'])",
            "1:14: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("'%s'.format([])", "1:12: index 0 out of range"),
        ("'%s'.format([1, 2])", "1:12: too many arguments supplied to string.format (expected 1, got 2)"),
        ("'%q'.format([1])", "1:12: could not parse formatting clause: unrecognized formatting clause \"q\""),
    ]);
}

#[test]
fn what_a_program_knows_of_itself() {
    let program =
        |source: &str| compile(&env(), source).unwrap_or_else(|issues| panic!("{}", explain(&issues)));
    for (source, output) in [
        ("self.spec.n", "int"),
        ("self.l.map(x, string(x))", "list(string)"),
        ("self.?spec.?n", "optional_type(int)"),
        ("object.x", "dyn"),
        ("{'a': [1]}", "map(string, list(int))"),
        ("type(1)", "type(int)"),
        ("[]", "list(dyn)"),
        ("true ? optional.of(1) : optional.none()", "optional_type(int)"),
    ] {
        assert_eq!(program(source).output().to_string(), output, "{source}");
    }
    assert!(program("self.l.all(x, x > object.y)").references("object"));
    assert!(!program("self.l.all(x, x > 1)").references("object"));
}
