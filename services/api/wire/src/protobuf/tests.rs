use serde_json::json;

use super::*;

fn pod() -> Gvk {
    Gvk::new("", "v1", "Pod")
}

#[test]
fn objects_survive_the_round_trip() {
    for (gvk, object) in [
        (
            pod(),
            json!({"metadata": {"name": "a", "labels": {"x": "1"}, "creationTimestamp": "2026-11-30T21:00:00Z",
                "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "n", "uid": "u", "controller": false}],
                "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"terminationGracePeriodSeconds": 0, "hostNetwork": true, "securityContext": {"runAsUser": 0},
                "containers": [{"name": "c", "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "500m"}},
                    "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
                    "livenessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 5}}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s", "optional": false}}]}}),
        ),
        (
            Gvk::new("apps", "v1", "Deployment"),
            json!({"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}}}),
        ),
        (Gvk::new("", "v1", "Secret"), json!({"data": {"k": "aGVsbG8=", "empty": ""}, "type": "Opaque"})),
        (
            Gvk::new("coordination.k8s.io", "v1", "Lease"),
            json!({"spec": {"renewTime": "2026-11-30T21:00:00.123456Z", "leaseDurationSeconds": 40}}),
        ),
        (
            Gvk::new("authorization.k8s.io", "v1", "SubjectAccessReview"),
            json!({"spec": {"user": "u", "extra": {"k": ["a", "b"]}}}),
        ),
        (
            Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            json!({"spec": {"group": "g", "versions": [{"name": "v1", "served": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "default": [1]}},
                "additionalProperties": false}}}]}}),
        ),
        (
            Gvk::new("", "v1", "PodList"),
            json!({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}),
        ),
        (
            Gvk::new("apps", "v1", "ControllerRevision"),
            json!({"data": {"any": ["thing", 1]}, "revision": -3}),
        ),
    ] {
        let bytes = encode(&gvk, &object).unwrap();
        let (kind, mut back) = decode(&bytes, None).unwrap();
        assert_eq!(kind, gvk);
        let map = back.as_object_mut().unwrap();
        assert_eq!(map.remove("apiVersion"), Some(gvk.api_version().into()));
        assert_eq!(map.remove("kind"), Some(gvk.kind.to_string().into()));
        assert_eq!(back, object, "{gvk}");
    }
}

#[test]
fn bytes_are_those_of_the_wire_format() {
    let namespace = encode(&Gvk::new("", "v1", "Namespace"), &json!({"metadata": {"name": "ab"}})).unwrap();
    let wanted = [
        b"k8s\0".as_slice(),
        b"\x0a\x0f\x0a\x02v1\x12\x09Namespace", // typeMeta
        b"\x12\x06\x0a\x04\x0a\x02ab",          // raw: metadata: name
        b"\x1a\x00\x22\x00",                    // contentEncoding, contentType
    ]
    .concat();
    assert_eq!(namespace, wanted);
    assert_eq!(watch_frame("ADDED", b"xy"), b"\0\0\0\x0d\x0a\x05ADDED\x12\x04\x0a\x02xy");
}

#[test]
fn zeros_that_go_always_writes_are_dropped_and_real_ones_kept() {
    // nodeName "" (field 10) and hostNetwork false (11) are written by Go for want of a pointer;
    // terminationGracePeriodSeconds 0 (4) was meant.
    let spec = b"\x52\x00\x58\x00\x20\x00";
    let raw = [&[0x12, spec.len() as u8][..], spec].concat();
    let (_, object) = decode(&envelope(&pod(), &raw), None).unwrap();
    assert_eq!(object["spec"], json!({"terminationGracePeriodSeconds": 0}));
}

#[test]
fn lists_are_put_together_from_encoded_items() {
    let item = |name: &str| encode_bare(&pod(), &json!({"metadata": {"name": name}})).unwrap();
    let items = [item("a"), item("b")];
    let gvk = Gvk::new("", "v1", "PodList");
    let list = encode_list(&gvk, &json!({"resourceVersion": "9"}), &items).unwrap();
    let (_, list) = decode(&list, None).unwrap();
    assert_eq!(list["metadata"]["resourceVersion"], "9");
    assert_eq!(list["items"], json!([{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]));
}

#[test]
fn every_list_has_its_items_where_they_are_expected() {
    for resource in kinds().resources() {
        let mut gvk = resource.gvk.clone();
        gvk.kind = format!("{}List", gvk.kind).into();
        let Some(list) = kinds().kind_message(&gvk) else { continue };
        for (json, number) in [("metadata", 1), ("items", 2)] {
            assert_eq!(list.field(json).map(|field| field.number), Some(number), "{gvk}");
        }
    }
}

#[test]
fn rubbish_is_refused_and_nothing_worse() {
    let whole =
        encode(&pod(), &json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}})).unwrap();
    for length in 0..whole.len() {
        // Whatever the cut, it must be an answer and no panic.
        let _ = decode(&whole[..length], None);
    }
    let nested = {
        // JSONSchemaProps.not within itself, a thousand times.
        let not = read::schema_message().unwrap().field("not").unwrap().number;
        let mut body = Vec::new();
        for _ in 0..1000 {
            let mut outer = Writer::default();
            outer.bytes(not, &body);
            body = outer.into_bytes();
        }
        let mut wrapped = body;
        for number in [1, 4, 7, 2] {
            let mut outer = Writer::default();
            outer.bytes(number, &wrapped);
            wrapped = outer.into_bytes();
        }
        envelope(&Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), &wrapped)
    };
    for (row, bytes) in [
        ("empty", Vec::new()),
        ("json", b"{}".to_vec()),
        ("no kind", envelope(&Gvk::new("", "", ""), b"")),
        ("unknown kind", envelope(&Gvk::new("x.io", "v1", "X"), b"")),
        ("long varint", envelope(&pod(), &[0xff; 20])),
        ("length beyond the end", envelope(&pod(), b"\x0a\x7fab")),
        ("wrong wire type", envelope(&pod(), b"\x08\x01")),
        ("field 0", envelope(&pod(), b"\x02\x00")),
        ("group", envelope(&pod(), b"\x0b")),
        ("no text", envelope(&pod(), b"\x0a\x03\x0a\x01\xff")),
        ("too deep", nested),
    ] {
        assert!(decode(&bytes, None).is_err(), "{row}");
    }
    let custom = Gvk::new("x.io", "v1", "X");
    assert!(matches!(encode(&custom, &json!({})), Err(ProtobufError::NoMessage { .. })));
}

#[test]
fn optional_fields_are_fields() {
    for (name, fields) in OPTIONAL.iter() {
        let message = kinds().message_named(name).unwrap_or_else(|| panic!("{name} is no message"));
        for field in fields {
            assert!(message.field(field).is_some(), "{name} has no {field}");
        }
    }
}

/// A value with every field the table knows, none of them zero.
fn full(message: &'static api_kinds::Message, depth: usize) -> Value {
    let mut object = Map::new();
    for field in message.json_fields() {
        // apiVersion and kind of top-level objects travel in the envelope; fields without a number in JSON
        // alone.
        let mut value = match full_element(field, depth) {
            Some(value) => value,
            None => continue,
        };
        if !message.fields.iter().any(|own| own.json == field.json && own.number == 0) {
            match field.cardinality {
                api_kinds::Cardinality::One => {}
                api_kinds::Cardinality::List => value = json!([value.clone(), value]),
                api_kinds::Cardinality::Map => value = json!({"a": value.clone(), "b/c": value}),
            }
            object.insert(field.json.to_owned(), value);
        }
    }
    Value::Object(object)
}

fn full_element(field: &api_kinds::FieldInfo, depth: usize) -> Option<Value> {
    use api_kinds::FieldKind;
    Some(match field.kind {
        FieldKind::String => json!("text"),
        FieldKind::Bool => json!(true),
        FieldKind::Int32 => json!(-7),
        FieldKind::Int64 => json!(i64::MIN),
        FieldKind::Double => json!(1.5),
        FieldKind::Bytes => json!("aGVsbG8="),
        FieldKind::Quantity => json!("1500m"),
        FieldKind::IntOrString => json!("25%"),
        FieldKind::Time => json!("1969-12-31T23:59:59Z"),
        FieldKind::MicroTime => json!("2026-11-30T21:00:00.000001Z"),
        FieldKind::Duration => return None,
        FieldKind::RawExtension | FieldKind::Json => json!({"any": [1, null, "thing"]}),
        FieldKind::FieldsV1 => json!({"f:spec": {}}),
        FieldKind::Strings => json!(["x", "y"]),
        FieldKind::SchemaOrArray if depth < 4 => json!([full(read::schema_message()?, depth + 1)]),
        FieldKind::SchemaOrBool => json!(false),
        FieldKind::SchemaOrStrings => json!(["x"]),
        FieldKind::SchemaOrArray => return None,
        FieldKind::Message(_) if depth >= 6 => return None,
        FieldKind::Message(id) => full(kinds().message(id), depth + 1),
    })
}

#[test]
fn every_field_of_every_kind_survives_the_round_trip() {
    for resource in kinds().resources() {
        let gvk = &resource.gvk;
        let object = full(kinds().message(resource.message), 0);
        let bytes = encode(gvk, &object).unwrap_or_else(|error| panic!("{gvk}: {error}"));
        let (_, mut back) = decode(&bytes, None).unwrap_or_else(|error| panic!("{gvk}: {error}"));
        for name in ["apiVersion", "kind"] {
            back.as_object_mut().unwrap().remove(name);
        }
        assert_same(&back, &object, &gvk.to_string());
    }
}

/// Like `assert_eq`, but names the place: a whole Pod twice tells nobody anything.
fn assert_same(got: &Value, wanted: &Value, at: &str) {
    match (got, wanted) {
        (Value::Object(got), Value::Object(wanted)) => {
            let keys: HashSet<&String> = got.keys().chain(wanted.keys()).collect();
            for key in keys {
                let missing = Value::Null;
                let (got, wanted) = (got.get(key).unwrap_or(&missing), wanted.get(key).unwrap_or(&missing));
                assert_same(got, wanted, &format!("{at}.{key}"));
            }
        }
        (Value::Array(got), Value::Array(wanted)) if got.len() == wanted.len() => {
            for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
                assert_same(got, wanted, &format!("{at}[{index}]"));
            }
        }
        _ => assert_eq!(got, wanted, "{at}"),
    }
}
