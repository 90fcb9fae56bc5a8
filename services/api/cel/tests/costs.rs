//! What expressions cost: at run time, and estimated beforehand.
//!
//! The numbers are upstream's (its tests of cost stability have the same forms). They decide which rules may
//! be written and which may run, so none may change.

use std::sync::Arc;

use api_cel::{
    Authorize, AuthorizerValue, Budget, CostRange, Decision, Decl, Env, Opaque, Question, Type, Value,
    compile, explain,
};
use serde_json::{Value as Json, json};

/// Expression, cost when run, most it is estimated at.
type Row = (&'static str, u64, u64);

fn schema() -> Json {
    let text = || json!({"type": "string"});
    let int = || json!({"type": "integer"});
    json!({"type": "object", "properties": {
        "count": int(), "other": int(), "ratio": {"type": "number"}, "on": {"type": "boolean"}, "off": {"type": "boolean"},
        "text": text(), "none": text(), "amount": text(), "enum": {"type": "string", "enum": ["One", "Three"]},
        "blob": {"type": "string", "format": "byte"}, "span": {"type": "string", "format": "duration"},
        "when": {"type": "string", "format": "date-time"}, "either": {"x-kubernetes-int-or-string": true},
        "ints": {"type": "array", "items": int()}, "few": {"type": "array", "maxItems": 5, "items": int()},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text()},
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                  "items": {"type": "object", "properties": {"k": text(), "v": int()}}},
        "nested": {"type": "array", "maxItems": 10, "items": {"type": "array", "maxItems": 10, "items": int()}},
        "counts": {"type": "object", "additionalProperties": int()},
        "object": {"type": "object", "properties": {
            "inner": {"type": "object", "properties": {"leaf": text()}}, "gone": text()}},
    }})
}

fn data() -> Json {
    json!({"count": 5, "other": 5, "ratio": 1.5, "on": true, "off": false, "text": "some text", "amount": "200M",
           "enum": "One", "blob": "QUI=", "span": "1h", "when": "2020-01-01T00:00:00Z", "either": "50%",
           "ints": [1, 2, 3], "few": [1, 2], "set": ["a", "b"], "keyed": [{"k": "x", "v": 1}, {"k": "y", "v": 2}],
           "nested": [[1, 2], [3]], "counts": {"a": 1, "b": 2}, "object": {"inner": {"leaf": "x"}}})
}

#[track_caller]
fn check(rows: &[Row]) {
    let decl = Decl::from_schema(&schema(), true, "selfType").unwrap();
    let env = Env::kubernetes().declared("self", decl.clone().into());
    let data = data();
    let mut wrong = Vec::new();
    for (source, cost, estimate) in rows {
        let program = compile(&env, source).unwrap_or_else(|issues| panic!("{source}: {}", explain(&issues)));
        let value = Value::typed(&data, &decl).unwrap();
        let (outcome, spent) = program.eval_counted(&[("self", value)], &mut Budget::new(10_000_000));
        assert_eq!(outcome.as_ref().map(Value::as_bool), Ok(Some(true)), "{source}");
        if (spent, program.cost().max) != (*cost, *estimate) {
            wrong.push(format!("({source:?}, {spent}, {}),", program.cost().max));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn scalars() {
    check(&[
        ("self.count == 5", 3, 2),
        ("self.count == self.other", 5, 4),
        ("self.count + 1 == 6", 4, 4),
        ("type(self.count) == int", 4, 4),
        ("double(self.count) < 10.0", 4, 4),
        ("self.ratio == 1.5", 3, 2),
        ("self.on == true", 3, 2),
        ("self.on != self.off", 5, 4),
        ("self.text == 'some text'", 3, 3),
        ("self.text.startsWith('some')", 3, 3),
        ("!self.text.startsWith('other')", 4, 4),
        ("self.text.matches('^[a-z ]*$')", 5, 943_721),
        ("size(self.text) == 9", 4, 4),
        ("self.text.charAt(1) == 'o'", 4, 4),
        ("self.text.indexOf('e') == 3", 3, 314_576),
        ("self.text.replace(' ', '-') == 'some-text'", 5, 629_149),
        ("self.text.split(' ') == ['some', 'text']", 5, 629_159),
        ("self.text.substring(5) == 'text'", 4, 314_576),
        ("self.text.upperAscii() == 'SOME TEXT'", 4, 314_576),
        ("self.text.lowerAscii() == self.text.lowerAscii()", 7, 943_723),
        ("self.text.contains('me t')", 3, 314_575),
        ("self.text.find('[a-z]+') == 'some'", 5, 629_149),
        ("self.text + self.text == 'some textsome text'", 8, 629_152),
        ("self.text in ['some text', 'other']", 2, 14),
        ("self.text == 'x' || self.text == 'some text'", 6, 6),
        ("self.text == 'some text' || self.text == 'x'", 3, 6),
        ("self.blob == b'AB'", 3, 3),
        ("self.span == duration('1h')", 3, 4),
        ("self.span.getHours() == 1", 4, 4),
        ("self.when == timestamp('2020-01-01T00:00:00Z')", 3, 4),
        ("string(self.count) == '5'", 4, 4),
        ("'%d of %s'.format([self.count, 'x']) == '5 of x'", 14, 14),
        ("has(self.text)", 1, 1),
        ("!has(self.none)", 2, 2),
        ("has(self.text) && self.text == 'some text'", 4, 4),
        ("self.either == '50%'", 3, 3),
        ("self.either != 1", 3, 3),
        ("type(self.either) == int ? self.either == 1 : self.either == '50%'", 7, 7),
        ("quantity(self.amount).isLessThan(quantity('1Gi'))", 5, 314_577),
        ("isQuantity(self.amount)", 3, 314_575),
        ("self.?text.orValue('x') == 'some text'", 3, 4),
        ("self.?none.hasValue() == false", 3, 4),
        ("optional.of('a') != optional.none()", 3, 1_844_674_407_370_955_266),
        ("self.enum == 'One'", 3, 3),
    ]);
}

#[test]
fn lists() {
    check(&[
        ("1 in self.ints", 5, 1_572_865),
        ("self.ints[0] in self.ints", 8, 1_572_868),
        ("self.ints + [4] == [1, 2, 3, 4]", 4, 24),
        ("self.ints.all(e, e > 0)", 18, 7_864_318),
        ("self.ints.exists(e, e > 2)", 21, 9_437_181),
        ("self.ints.exists_one(e, e == 3)", 12, 4_718_593),
        ("!self.ints.exists(e, e < 0)", 22, 9_437_182),
        ("self.ints.filter(e, e % 2 == 1).size() == 2", 40, 25_165_823),
        ("self.ints.map(e, e * 2).exists(e, e == 6)", 64, 29_884_411),
        ("self.ints.map(e, e > 1, e * 2).size() == 2", 39, 25_165_823),
        ("self.ints.sum() == 6", 6, 1_572_866),
        ("self.ints.isSorted()", 5, 1_572_865),
        ("self.ints.max() == 3", 6, 1_572_866),
        ("self.ints.indexOf(2) == 1", 6, 1_572_866),
        ("size(self.ints) == 3", 4, 4),
        ("self.ints == [1, 2, 3]", 3, 13),
        ("self.ints.all(i, e, i < e)", 21, 9_437_181),
        ("self.ints.transformList(i, e, e > 1, e).size() == 2", 37, 23_592_960),
        ("self.ints.slice(0, 2) == [1, 2]", 16, 26),
        ("self.ints.reverse() == [3, 2, 1]", 17, 1_572_887),
        ("self.ints.sort() == [1, 2, 3]", 32, 4_947_796_033_562),
        ("self.ints.distinct() == [1, 2, 3]", 32, 4_947_796_033_562),
        ("self.few.all(e, e > 0)", 13, 28),
        ("self.set == ['b', 'a']", 3, 13),
        ("sets.contains(self.set, ['a'])", 5, 1_048_588),
        ("sets.equivalent(self.set, ['a', 'b'])", 11, 4_194_313),
        ("self.set.join(',') == 'a,b'", 4, 329_853_068_906),
        ("self.keyed == [self.keyed[1], self.keyed[0]]", 19, 19),
        ("self.keyed.exists(e, e.k == 'y' && e.v == 2)", 20, 9_437_178),
        ("self.keyed.all(e, has(e.v))", 11, 4_194_303),
        ("self.keyed.map(e, e.k).exists(k, k == 'y')", 44, 19_922_939),
        ("self.nested.all(l, l.all(e, e > 0))", 28, 553),
        ("lists.range(3) == [0, 1, 2]", 15, 25),
        ("[3, 1, 2].sortBy(e, -e) == [3, 2, 1]", 75, 115),
    ]);
}

#[test]
fn maps_and_objects() {
    check(&[
        ("'a' in self.counts", 3, 3),
        ("self.counts.a == 1", 4, 4),
        ("self.counts['b'] == 2", 4, 3),
        ("self.counts.all(k, self.counts[k] > 0)", 17, 3_595_115),
        ("self.counts.all(k, v, v > 0)", 13, 2_246_948),
        ("self.counts.exists_one(k, self.counts[k] == 2)", 14, 2_696_338),
        ("size(self.counts) == 2", 4, 4),
        ("self.counts == {'a': 1, 'b': 2}", 3, 33),
        ("self.counts.transformMap(k, v, v + 1).size() == 2", 15, 2_246_980),
        ("self.counts.transformMapEntry(k, v, {v: k}).size() == 2", 73, 15_279_261),
        ("has(self.object.inner.leaf)", 3, 3),
        ("!has(self.object.gone)", 3, 3),
        ("self.object.inner.leaf == 'x'", 5, 5),
        ("self.object == self.object", 5, 4),
        ("self.counts[?'a'].orValue(0) == 1", 4, 5),
        ("self.object.?inner.?leaf.orValue('') == 'x'", 5, 6),
    ]);
}

/// A name that comes of no declared data is taken to be as large as the whole: what upstream accepts of rules
/// that take texts apart hangs on it.
#[test]
fn parts_of_results_are_as_large_as_the_root() {
    let decl = Decl::from_schema(&json!({"type": "string", "maxLength": 20}), false, "selfType").unwrap();
    let env = Env::kubernetes().declared("self", decl.into());
    let estimate = |source: &str| {
        compile(&env, source).unwrap_or_else(|issues| panic!("{}", explain(&issues))).cost().max
    };
    assert_eq!(estimate("!self.split('.').exists(x, x.matches('^0[0-9]+$'))"), 2579);
    assert_eq!(estimate("self.split('.').all(x, int(x) < 256)"), 498);
}

struct Everybody;
impl Authorize for Everybody {
    fn check(&self, question: &Question) -> Decision {
        Decision { allowed: question.verb != "delete", reason: "because".into(), error: None }
    }
}

/// Estimate (least and most) and cost at run time, with constants left to be computed then, as upstream's
/// tests of its libraries do.
#[test]
fn libraries() {
    let authorizer = "kubernetes.authorization.Authorizer";
    let env = Env::kubernetes()
        .mutation()
        .without_folded_constants()
        .variable("authorizer", Type::Opaque(authorizer));
    for (source, min, max, cost) in [
        ("[1, 2, 3].sum()", 13, 13, 13),
        ("[uint(1), uint(2)].max()", 14, 14, 14),
        ("'0123456789'.indexOf('5')", 1, 1, 1),
        ("url('https:://kubernetes.io/').getHost()", 4, 4, 4),
        ("url('https:://kubernetes.io/') == url('https:://kubernetes.io/')", 7, 9, 7),
        ("ip('192.168.0.1').family()", 3, 3, 3),
        ("ip('192.168.0.1') == ip('192.168.0.1')", 5, 5, 5),
        ("ip.isCanonical('2001:db8::abcd')", 3, 3, 3),
        ("cidr('192.168.0.0/16').containsCIDR('192.0.0.0/30')", 7, 11, 7),
        ("cidr('192.168.0.0/16').containsIP(ip('192.0.0.1'))", 4, 7, 4),
        ("cidr('2001:db8::/32').masked()", 3, 3, 3),
        ("'ABCDEFGHIJ abcdefghij'.lowerAscii()", 3, 3, 3),
        ("strings.quote('ABCDEFGHIJ abcdefghij') == strings.quote('ABCDEFGHIJ abcdefghij')", 7, 11, 9),
        ("'abc 123 def 123'.replace('', 'x')", 3, 3, 3),
        ("'abc 123 def 123'.split(' ', 1)", 3, 3, 3),
        ("'abc 123 def 123'.findAll('123', 1)", 2, 2, 2),
        ("jsonpatch.escapeKey('abc/def~ abc/def~')", 2, 2, 2),
        ("authorizer.path('/healthz')", 2, 2, 2),
        (
            "authorizer.group('apps').resource('deployments').subresource('status').namespace('a').name('b')",
            6,
            6,
            6,
        ),
        ("authorizer.group('').resource('pods').labelSelector('a=bcdefghi')", 264, 264, 264),
        ("authorizer.path('/healthz').check('get').allowed()", 350_003, 350_003, 350_003),
        ("authorizer.group('').resource('pods').check('create').reason()", 350_004, 350_004, 350_004),
        ("quantity('2M') == quantity('0.002G') && quantity('2000k') == quantity('2M')", 3, 6, 6),
        ("quantity('50k').add(20).sub(quantity('100k')).asInteger() > 0", 6, 6, 6),
        ("format.named('dns1123Subdomain').value().validate('my-name')", 34, 34, 17),
        ("format.named('dns1123Label').value() == format.named('dns1123Label').value()", 5, 11, 5),
        ("sets.contains([1, 2, 3, 4], [2, 3])", 29, 29, 29),
        ("sets.equivalent([1, 2], [2, 1])", 29, 29, 29),
        ("!sets.intersects([1], [])", 22, 22, 22),
        ("semver('1234.56789012345.67890123456789')", 4, 4, 4),
        ("semver('1.0.0').isLessThan(semver('1.1.0'))", 3, 3, 3),
        ("{'a': 1, 'b': 2}.all(k, v, v > 0)", 37, 41, 41),
        ("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 39, 43, 40),
        ("{'a': 1, 'b': 2}.transformMapEntry(k, v, v < 5, {k: v + 1})", 67, 135, 135),
        ("[1, 2].transformList(i, v, v + 1)", 49, 49, 49),
        ("[1, 2].existsOne(i, v, v > 0)", 18, 20, 20),
    ] {
        let program = compile(&env, source).unwrap_or_else(|issues| panic!("{source}: {}", explain(&issues)));
        let by = Value::Opaque(Arc::new(Opaque::Authorizer(AuthorizerValue::new(Arc::new(Everybody)))));
        let (outcome, spent) = program.eval_counted(&[("authorizer", by)], &mut Budget::new(10_000_000));
        assert!(outcome.is_ok(), "{source}: {outcome:?}");
        assert_eq!((program.cost(), spent), (CostRange { min, max }, cost), "{source}");
    }
}
