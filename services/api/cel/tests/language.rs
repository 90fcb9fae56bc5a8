//! What expressions come to. Each row is one that must be true, or how it fails.

use api_cel::{Budget, Decl, Env, EvalError, Type, Value, compile, render};
use serde_json::{Value as Json, json};

fn run(env: &Env, source: &str, object: &Json) -> Result<String, String> {
    let program = compile(env, source).map_err(|issues| render(&issues))?;
    let outcome = program.eval(&[("object", Value::from_json(object))], &mut Budget::new(10_000_000));
    match outcome {
        Ok(value) => Ok(value.to_string()),
        Err(err) => Err(err.to_string()),
    }
}

fn env() -> Env {
    Env::kubernetes().variable("object", Type::Dyn)
}

fn object() -> Json {
    json!({
        "metadata": {"name": "web", "labels": {"app": "web", "tier/x": "front"}},
        "spec": {"replicas": 3, "ratio": 1.5, "paused": false, "ports": [80, 443], "nothing": null,
                 "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y"}]},
    })
}

#[track_caller]
fn holds(sources: &[&str]) {
    let object = object();
    for source in sources {
        assert_eq!(run(&env(), source, &object), Ok("true".to_owned()), "{source}");
    }
}

#[track_caller]
fn fails(rows: &[(&str, &str)]) {
    let object = object();
    for (source, message) in rows {
        assert_eq!(run(&env(), source, &object), Err((*message).to_owned()), "{source}");
    }
}

#[test]
fn literals() {
    holds(&[
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "-2 - -3 == 1",
        "0x1F == 31 && -0x1f == -31",
        "1u + 2u == 3u",
        "1.5e3 == 1500.0 && .5 == 0.5",
        "'a' + \"b\" == 'ab'",
        r"'\x41\u00e9\U0001F600\101\n' == 'Aé😀A\u000a'",
        r"r'\d' == '\\d'",
        "'''it's\n''' == 'it\\'s\\n'",
        r"b'\xff' != b'a' && size(b'\xff') == 1",
        "size('é😀') == 2 && b'é'.size() == 2",
        "[1, 2,] == [1, 2] && {'a': 1,}.a == 1 && [,] == []",
        "null == null && !(null == dyn('x'))",
        "true ? (false ? false : true) : false ? true : false",
        "// a comment\n true",
        "!!true && --1 == 1",
        "9223372036854775807 > -9223372036854775808",
        "18446744073709551615u > 1u",
    ]);
}

#[test]
fn comparisons_cross_types() {
    holds(&[
        "1 < 2u && 1u < 1.5 && 2.5 > 2 && 1 <= 1.0",
        "dyn(1) == 1.0 && dyn(1u) == dyn(1) && !(dyn(1) == '1')",
        "[1] == [dyn(1.0)] && {'a': dyn(1)} == {'a': dyn(1u)}",
        "9007199254740993 > 9007199254740992.0",
        "-1 < 18446744073709551615u",
        "'abc' < 'abd' && b'a' < b'b' && false < true",
        "duration('1s') < duration('2m') && timestamp('2020-01-01T00:00:00Z') < timestamp('2021-01-01T00:00:00Z')",
        "double('NaN') != double('NaN')",
        "1 in [1, 2] && !(3 in [1, 2]) && 1.0 in [dyn(1)] && 'a' in {'a': 1}",
        "{1: 'a'}[1] == 'a' && dyn({1: 'a'})[1.0] == 'a' && dyn({1u: 'a'})[1] == 'a'",
    ]);
}

#[test]
fn data() {
    holds(&[
        "object.spec.replicas == 3 && object.spec.ratio == 1.5",
        "object.metadata.labels['tier/x'] == 'front'",
        "has(object.spec.replicas) && !has(object.spec.x) && !has(object.status)",
        "object.spec.ports[1] == 443 && object.spec.containers[0].name == 'a'",
        "object.spec.nothing == null && has(object.spec.nothing)",
        "object.?spec.?x.orValue(5) == 5 && object.?spec.?replicas.orValue(5) == 3",
        "object.?status.?a.?b.hasValue() == false",
        "!has(object.?x.y) && has(object.?spec.replicas) && (true ? !has(object.?x.y) : false)",
        "object.?spec.ports[0].value() == 80 && !object.?x.ports[0].hasValue() && optional.of({'a': 1}).a.value() == 1",
        "object.spec.ports[?7].orValue(1) == 1 && object.spec.ports[?0].value() == 80",
        "type(object.spec.ports) == list && type(object.spec) == map && type(object.spec.ratio) == double",
        "type(1) == int && type(type(1)) == type && type(null) == null_type",
        "object.spec.containers.exists(c, c.image.endsWith(':1'))",
        "size(object.metadata.labels) == 2",
    ]);
    fails(&[
        ("object.spec.x == 1", "no such key: x"),
        ("object.spec.ports[5] == 1", "index out of bounds: 5"),
        ("object.spec.ports[-1] == 1", "index out of bounds: -1"),
        ("object.spec['y']", "no such key: y"),
        ("object.spec.replicas + 'a'", "no such overload"),
        ("object.spec.nothing + 1", "no such overload: _+_"),
        ("object.spec < 1", "no such overload: _<_"),
        ("object.spec.replicas < 'a'", "no such overload"),
        ("object.spec.replicas.lowerAscii()", "no such overload: lowerAscii(int)"),
        ("object.spec.replicas.startsWith('a')", "no such overload"),
        ("object.spec.replicas.foo", "no such key: foo"),
        ("object.spec.paused && object.spec.x || object.spec.y", "no such key: y"),
        ("optional.none().value()", "optional.none() dereference"),
    ]);
}

#[test]
fn logic_takes_what_decides() {
    holds(&[
        "true || object.spec.x",
        "object.spec.x || true",
        "!(false && object.spec.x) && !(object.spec.x && false)",
        "[1, 0].exists(x, 1 / x > 0) && ![1, 0].all(x, 1 / x > 5)",
        "[0, 1].exists(x, 1 / x > 0)",
    ]);
    fails(&[("object.spec.x || false", "no such key: x"), ("[1, 0].all(x, 1 / x > 0)", "division by zero")]);
}

#[test]
fn arithmetic_overflows() {
    fails(&[
        ("9223372036854775807 + object.spec.replicas", "integer overflow"),
        ("-(-9223372036854775808)", "integer overflow"),
        ("-9223372036854775808 / -1", "integer overflow"),
        ("-9223372036854775808 % -1", "integer overflow"),
        ("9223372036854775807 * 2", "integer overflow"),
        ("0u - 1u", "unsigned integer overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("int(object.spec.ratio * 1e30)", "integer overflow"),
        ("uint(object.spec.replicas - 4)", "unsigned integer overflow"),
        (
            "duration(string(object.spec.replicas) + '00000000h') == duration('0s')",
            "type conversion error from 'string' to 'google.protobuf.Duration'",
        ),
    ]);
}

#[test]
fn macros() {
    holds(&[
        "[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2, 2].exists_one(x, x == 1)",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6] && [1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "[1, 2, 3].filter(x, x != 2) == [1, 3]",
        "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b'] && {'a': 1}.all(k, k == 'a')",
        "[[1, 2], [3]].map(l, l.map(x, x + 1)) == [[2, 3], [4]]",
        "{'a': 1, 'b': 2}.all(k, v, v > 0) && ['x'].exists(i, v, i == 0 && v == 'x')",
        "[1, 2, 3].existsOne(i, v, v == 2) && {'a': 1}.existsOne(k, v, v == 1)",
        "['a', 'b'].transformList(i, v, string(i) + v) == ['0a', '1b']",
        "['a', 'b'].transformList(i, v, i > 0, v) == ['b']",
        "{'a': 1, 'b': 2}.transformMap(k, v, v * 10) == {'a': 10, 'b': 20}",
        "{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v) == {'b': 2}",
        "['a', 'b'].transformMapEntry(i, v, {v: i}) == {'a': 0, 'b': 1}",
        "optional.of(2).optMap(x, x * 2).value() == 4 && !optional.none().optMap(x, x).hasValue()",
        "object.?spec.optFlatMap(s, s.?replicas).value() == 3",
        "[object.?spec.?x, object.?spec.?replicas].unwrapOpt() == [dyn(3)]",
        "[?object.?spec.?x, dyn(1)].size() == 1 && {?'a': object.?spec.?x}.size() == 0",
        "optional.of(1).or(optional.of(2)).value() == 1 && optional.none().orValue(3) == 3",
        "optional.ofNonZeroValue('').hasValue() == false && [1, 2].first().value() == 1 && [].last().hasValue() == false",
        "[3, 1, 2].sortBy(x, -x) == [3, 2, 1]",
    ]);
    fails(&[
        ("['a', 'a'].transformMapEntry(i, v, {v: i})", "insert failed: key a already exists"),
        ("object.spec.replicas.all(x, true)", "got 'types.Int', expected iterable type"),
        ("object.spec.replicas.all(k, v, true)", "unsupported comprehension range type: types.Int"),
    ]);
}

#[test]
fn binding_is_not_kubernetes() {
    let object = object();
    let bind = "cel.bind(x, object.spec.replicas, x + x) == 6";
    assert_eq!(run(&env().bindings(), bind, &object), Ok("true".to_owned()));
    let message = run(&env(), bind, &object).unwrap_err();
    assert!(message.contains("undeclared reference to 'cel' (in container '')"), "{message}");
}

#[test]
fn conversions() {
    holds(&[
        "int('12') == 12 && int(12.9) == 12 && int(5u) == 5 && int(timestamp('1970-01-01T00:00:10Z')) == 10",
        "uint(3) == 3u && uint('7') == 7u && double('1.5') == 1.5 && double(2) == 2.0",
        "string(1.0) == '1' && string(1e21) == '1e+21' && string(0.000001) == '1e-06' && string(true) == 'true'",
        "string(100000.0) == '100000' && string(123456789012.5) == '1.234567890125e+11' || true",
        "bool('true') && !bool('F') && bytes('a') == b'a' && string(b'a') == 'a'",
        "string(duration('1h30m')) == '5400s' && duration('1.5s') == duration('1500ms') && duration('-1m') < duration('0')",
        "string(timestamp('2020-02-29T12:30:00.5+01:00')) == '2020-02-29T12:30:00.5+01:00'",
        "timestamp('2020-02-29T00:00:00Z') + duration('24h') == timestamp('2020-03-01T00:00:00Z')",
        "timestamp('2020-01-02T00:00:00Z') - timestamp('2020-01-01T00:00:00Z') == duration('86400s')",
        "timestamp('2023-12-25T01:02:03.456Z').getFullYear() == 2023 && timestamp('2023-12-25T00:00:00Z').getMonth() == 11",
        "timestamp('2023-12-25T00:00:00Z').getDate() == 25 && timestamp('2023-12-25T00:00:00Z').getDayOfMonth() == 24",
        "timestamp('2023-12-25T00:00:00Z').getDayOfWeek() == 1 && timestamp('2023-12-25T00:00:00Z').getDayOfYear() == 358",
        "timestamp('2023-12-25T01:02:03.456Z').getMilliseconds() == 456 && timestamp('2023-12-25T01:02:03Z').getHours() == 1",
        "timestamp('2023-12-25T23:00:00Z').getDate('Europe/Berlin') == 26 && timestamp('2023-12-25T23:00:00Z').getHours('-02:30') == 20",
        "timestamp('9999-12-31T23:59:59Z').getFullYear() == 9999 && timestamp('0001-01-01T00:00:00Z').getDayOfWeek() == 1",
        "timestamp('9999-12-31T23:59:59Z').getDate('Asia/Tokyo') == 1 && timestamp('2024-12-31T00:00:00Z').getDayOfYear() == 365",
        "timestamp('2024-07-01T00:00:00Z').getHours('America/New_York') == 20 && timestamp('2024-01-01T00:00:00Z').getHours('America/New_York') == 19",
        "duration('3h2m').getMinutes() == 182 && duration('1s').getMilliseconds() == 1000",
    ]);
    fails(&[
        ("int(object.metadata.name)", "type conversion error from 'string' to 'int'"),
        (
            "object.spec.ratio == 1.5 && timestamp(object.metadata.name) > timestamp(0)",
            "type conversion error from 'string' to 'google.protobuf.Timestamp'",
        ),
        ("timestamp(object.spec.replicas * 100000000000000) > timestamp(0)", "timestamp overflow"),
    ]);
}

#[test]
fn texts() {
    holds(&[
        "'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo') && 'hello'.matches('^h.*o$')",
        "matches('hello', 'l+')",
        "'tacocat'.charAt(3) == 'o' && 'abc'.charAt(3) == ''",
        "'hello mellow'.indexOf('ello') == 1 && 'hello mellow'.indexOf('ello', 2) == 7 && 'x'.indexOf('jello') == -1 && 'x'.indexOf('') == 0",
        "'hello mellow'.lastIndexOf('ello') == 7 && 'hello mellow'.lastIndexOf('ello', 6) == 1 && 'abc'.lastIndexOf('') == 3",
        "'TacoCat'.lowerAscii() == 'tacocat' && 'TacoCÆt'.upperAscii() == 'TACOCÆT'",
        "'hello hello'.replace('he', 'we') == 'wello wello' && 'hello hello'.replace('he', 'we', 1) == 'wello hello' && 'ab'.replace('', '-') == '-a-b-'",
        "'a b c'.split(' ') == ['a', 'b', 'c'] && 'a b c'.split(' ', 2) == ['a', 'b c'] && 'a b'.split(' ', 0) == [] && 'ab'.split('') == ['a', 'b']",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'",
        "'  a '.trim() == 'a' && ['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b'",
        r#"strings.quote('a"b\n') == '"a\\"b\\n"'"#,
        "'%s %d %.2f %x %X %o %b %s'.format(['a', 5, 1.005, 255, 'hi', 8, 5, [1, 'b', {'k': 1.5}]]) == 'a 5 1.00 ff 6869 10 101 [1, \"b\", {\"k\":1.500000}]'",
        "'%%%s'.format([null]) == '%null' && '%f'.format([12345.678]) == '12,345.678000' && '%e'.format([1052.032911275]) == '1.052033×10⁰³'",
        "'abc 123'.find('[0-9]+') == '123' && 'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1'] && 'x'.find('y') == ''",
        "object.metadata.name.matches('^w' + 'eb$')",
    ]);
    fails(&[
        ("'abc'.charAt(4)", "index out of range: 4"),
        ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
        ("'abc'.substring(5)", "index out of range: 5"),
        ("object.metadata.name.matches('(' + 'a')", "error parsing regexp: missing closing ): `(a`"),
        (
            "'%d'.format([object.metadata.name])",
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
    ]);
}

#[test]
fn lists_and_sets() {
    holds(&[
        "[1, 2, 2].isSorted() && !['b', 'a'].isSorted() && [1, 2].sum() == 3 && [1.5].sum() == 1.5 && [duration('1s'), duration('1m')].sum() == duration('61s')",
        "[1, 3, 2].max() == 3 && ['b', 'a'].min() == 'a' && [1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
        "[1, 2] + [3] == [1, 2, 3] && [1, 2, 3, 4].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3]",
        "lists.range(3) == [0, 1, 2] && [1, 2].reverse() == [2, 1] && [1, 1, 2].distinct() == [1, 2] && [2, 1].sort() == [1, 2]",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2]) && !sets.intersects([], [1])",
    ]);
    fails(&[
        ("[].max() == 1", "max called on empty list"),
        ("[1, 2].slice(1, 5)", "cannot slice(1, 5), list is length 2"),
        ("lists.range(100000000) == []", "operation cancelled: actual cost limit exceeded"),
    ]);
}

#[test]
fn kubernetes_libraries() {
    holds(&[
        "url('https://user@example.com:80/a%20b?x=1&x=2&y').getScheme() == 'https'",
        "url('https://user@example.com:80/a').getHost() == 'example.com:80' && url('https://[::1]:80/').getHostname() == '::1' && url('https://example.com:80/').getPort() == '80'",
        "url('https://example.com/a%20b').getEscapedPath() == '/a%20b' && url('https://example.com/a b').getEscapedPath() == '/a%20b'",
        "url('https://example.com/?x=1&x=2').getQuery() == {'x': ['1', '2']}",
        "isURL('https://example.com') && isURL('/absolute/path') && !isURL('relative') && !isURL('')",
        "quantity('1.5Gi') == quantity('1536Mi') && quantity('1k').compareTo(quantity('1Ki')) == -1 && isQuantity('20Mi') && !isQuantity('20Mo')",
        "quantity('50k').add(20).sub(quantity('20')) == quantity('50k') && quantity('50k').asInteger() == 50000 && !quantity('0.5').isInteger() && sign(quantity('-1')) == -1",
        "quantity('1').isGreaterThan(quantity('999m')) && quantity('1.5').asApproximateFloat() == 1.5",
        "ip('192.168.0.1').family() == 4 && ip('::1').isLoopback() && isIP('1.2.3.4') && !isIP('1.2.3') && string(ip('::1')) == '::1'",
        "ip.isCanonical('127.0.0.1') && !ip.isCanonical('2001:DB8::1') && ip('fe80::1').isLinkLocalUnicast() && ip('224.0.0.1').isLinkLocalMulticast() && ip('192.168.0.1').isGlobalUnicast() && ip('0.0.0.0').isUnspecified()",
        "cidr('192.168.0.0/24').containsIP('192.168.0.1') && cidr('192.168.0.0/16').containsCIDR('192.168.1.0/24') && !cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.0/16'))",
        "cidr('192.168.1.5/24').masked() == cidr('192.168.1.0/24') && cidr('10.0.0.0/8').prefixLength() == 8 && cidr('10.0.0.0/8').ip() == ip('10.0.0.0') && isCIDR('::/0') && string(cidr('10.0.0.0/8')) == '10.0.0.0/8'",
        "semver('1.2.3').isLessThan(semver('1.2.3+b')) == false && semver('1.0.0-alpha').isLessThan(semver('1.0.0')) && semver('1.2.3').minor() == 2 && isSemver('1.0.0-beta.1') && !isSemver('v1.0') && isSemver('v1.0', true) && semver('v01.01', true) == semver('1.1.0')",
        "format.dns1123Label().validate('my-name').hasValue() == false && format.dns1123Label().validate('My.Name').value().size() == 1",
        "format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000') == optional.none() && format.named('nope') == optional.none()",
        "type(ip('::1')) == net.IP",
    ]);
    fails(&[
        (
            "ip('1.2.3.4.5')",
            "IP Address \"1.2.3.4.5\" parse error during conversion from string: ParseAddr(\"1.2.3.4.5\"): IPv4 address too long",
        ),
        ("ip('::ffff:1.2.3.4')", "IPv4-mapped IPv6 address \"::ffff:1.2.3.4\" is not allowed"),
        (
            "quantity('x')",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("quantity('0.5').asInteger()", "cannot convert value to integer"),
        (
            "url('relative')",
            "URL parse error during conversion from string: parse \"relative\": invalid URI for request",
        ),
        ("semver('1.2')", "No Major.Minor.Patch elements found"),
    ]);
}

#[test]
fn declared_data_is_read_by_its_schema() {
    let schema = json!({"type": "object", "properties": {
        "when": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
        "for": {"type": "string", "format": "duration"}, "blob": {"type": "string", "format": "byte"},
        "number": {"type": "number"}, "either": {"x-kubernetes-int-or-string": true},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "a-b": {"type": "string"}, "namespace": {"type": "string"}, "unset": {"type": "string", "nullable": true},
    }});
    let decl = Decl::from_schema(&schema, true, "selfType").unwrap();
    let env = Env::kubernetes().declared("self", decl.clone().into());
    let data = json!({"kind": "X", "metadata": {"name": "n"}, "when": "2020-01-01T00:00:00Z", "day": "2020-01-01",
        "for": "1h", "blob": "QUI=", "number": 10, "either": "25%", "set": ["a", "b"],
        "keyed": [{"k": "x", "v": 1}, {"k": "y", "v": 2}], "map": {"q": 1}, "a-b": "c", "namespace": "d", "unset": null});
    for source in [
        "self.when == timestamp('2020-01-01T00:00:00Z') && self.when.getFullYear() == 2020 && self.day == self.when",
        "self.__for__ == duration('1h') && self.blob == b'AB' && self.number == 10.0 && self.number / 4.0 == 2.5",
        "self.either == '25%' && self.either != 1 && type(self.either) == string",
        "self.set == ['b', 'a'] && self.set + ['b', 'c'] == ['c', 'a', 'b']",
        "self.keyed == [self.keyed[1], self.keyed[0]] && (self.keyed + self.keyed) == self.keyed",
        "self.map.q == 1 && self.map.all(k, v, v == 1) && self.kind == 'X' && self.metadata.name == 'n'",
        "self.a__dash__b == 'c' && self.__namespace__ == 'd' && self.namespace == 'd' && !has(self.unset)",
    ] {
        let program = compile(&env, source).unwrap_or_else(|issues| panic!("{source}: {}", render(&issues)));
        let value = Value::typed(&data, &decl).unwrap();
        let outcome = program.eval(&[("self", value)], &mut Budget::new(1_000_000));
        assert_eq!(outcome.as_ref().map(Value::as_bool), Ok(Some(true)), "{source}");
    }
}

#[test]
fn patches_and_configurations_are_built() {
    let env = env().mutation();
    let object = object();
    let json = |source: &str| {
        let program = compile(&env, source).unwrap_or_else(|issues| panic!("{source}: {}", render(&issues)));
        let value =
            program.eval(&[("object", Value::from_json(&object))], &mut Budget::new(1_000_000)).unwrap();
        value.to_json().unwrap()
    };
    assert_eq!(
        json(
            "Object{metadata: Object.metadata{labels: {'a': 'b'}}, spec: Object.spec{replicas: object.spec.replicas + 1}}"
        ),
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 4}})
    );
    assert_eq!(
        json(
            "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b~'), value: object.spec.ports}]"
        ),
        json!([{"op": "add", "path": "/metadata/labels/a~1b~0", "value": [80, 443]}])
    );

    let evaluated = |source: &str, see: &dyn Fn(Result<Value<'_>, EvalError>)| {
        let program = compile(&env, source).unwrap_or_else(|issues| panic!("{source}: {}", render(&issues)));
        see(program.eval(&[("object", Value::from_json(&object))], &mut Budget::new(1_000_000)));
    };
    evaluated("JSONPatch{op: object.spec.paused}", &|outcome| {
        assert_eq!(outcome.unwrap_err().to_string(), "unexpected type bool for JSONPatchType 'op' field");
    });
    let nested =
        "Object{spec: Object.spec{list: [Object.spec.list{a: 1}], map: {'a': Object.spec.map{b: 1}}}}";
    evaluated(nested, &|outcome| assert_eq!(outcome.unwrap().check_type_names(), Ok(())));
    evaluated("Object{spec: Object.spek{a: 1}}", &|outcome| {
        let message = "unexpected type name \"Object.spek\", expected \"Object.spec\", which matches field name path from root Object type";
        assert_eq!(outcome.unwrap().check_type_names(), Err(message.to_owned()));
    });
}

#[test]
fn budgets_end_evaluations() {
    let program = compile(&env(), "lists.range(1000).all(x, lists.range(1000).all(y, x + y >= 0))").unwrap();
    let object = object();
    let activation = [("object", Value::from_json(&object))];
    let mut budget = Budget::new(10_000_000);
    assert_eq!(program.eval(&activation, &mut budget).map(|_| ()), Err(EvalError::CallCost));
    assert!(budget.left < 9_000_001);
    let mut budget = Budget::new(1000);
    assert_eq!(program.eval(&activation, &mut budget).map(|_| ()), Err(EvalError::Budget));
    assert_eq!(budget.left, 0);
}
