use serde_json::{Value, json};

use super::*;

/// A definition with nothing wrong, of one version with this schema.
fn widgets(schema: Value) -> Value {
    let mut definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    default_definition(&mut definition);
    definition
}

fn fine() -> Value {
    widgets(json!({"type": "object"}))
}

fn shown(definition: &Value, old: Option<&Value>) -> Vec<String> {
    validate_definition(definition, old).iter().map(FieldError::to_string).collect()
}

/// A change to a definition that was fine, and what is wrong then.
fn check(path: &str, value: Value, expected: &[&str]) {
    let mut definition = fine();
    let (parent, key) = path.rsplit_once('/').unwrap();
    definition.pointer_mut(parent).unwrap()[key] = value;
    assert_eq!(shown(&definition, None), expected, "{path}");
}

fn check_schema(schema: Value, expected: &[&str]) {
    assert_eq!(shown(&widgets(schema.clone()), None), expected, "{schema}");
}

#[test]
fn defaults_of_a_definition() {
    let definition = fine();
    assert_eq!(definition["spec"]["names"]["singular"], "widget");
    assert_eq!(definition["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(definition["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(shown(&definition, None), [""; 0]);
    for odd in [json!(null), json!({}), json!({"spec": null}), json!({"spec": {"versions": 1, "names": 2}})] {
        let mut definition = odd.clone();
        default_definition(&mut definition);
        assert!(!validate_definition(&definition, None).is_empty(), "{odd}");
    }
}

#[test]
fn names_group_and_scope() {
    let label = api_machinery::validation::dns_1035_label("A")[0].clone();
    check(
        "/metadata/name",
        json!("x"),
        &["metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group"],
    );
    check(
        "/spec/scope",
        json!("All"),
        &["spec.scope: Unsupported value: \"All\": supported values: \"Cluster\", \"Namespaced\""],
    );
    check(
        "/spec/names/listKind",
        json!("Widget"),
        &["spec.names.listKind: Invalid value: \"Widget\": kind and listKind may not be the same"],
    );
    check(
        "/spec/names/shortNames",
        json!(["w", "A"]),
        &[&format!("spec.names.shortNames[1]: Invalid value: \"A\": {label}")],
    );
    check(
        "/spec/names/categories",
        json!(["A"]),
        &[&format!("spec.names.categories[0]: Invalid value: \"A\": {label}")],
    );
    check("/spec/names/singular", json!(""), &["spec.names.singular: Required value"]);
    let mut single = fine();
    single["spec"]["group"] = json!("single");
    single["metadata"]["name"] = json!("widgets.single");
    assert_eq!(
        shown(&single, None),
        ["spec.group: Invalid value: \"single\": should be a domain with at least one dot"]
    );
}

#[test]
fn versions_are_told_apart_and_one_is_stored() {
    let with = |versions: Value, stored: Value| {
        let mut definition = fine();
        for version in versions.as_array().unwrap() {
            let mut version = version.clone();
            version["schema"] = json!({"openAPIV3Schema": {"type": "object"}});
            definition["spec"]["versions"].as_array_mut().unwrap().push(version);
        }
        definition["status"]["storedVersions"] = stored;
        let errors = validate_definition(&definition, None);
        let detail = |error: &FieldError| match error.detail.rsplit_once("]: ") {
            Some((_, why)) => why.to_owned(),
            None => error.detail.clone(),
        };
        errors.iter().map(|error| format!("{}: {}", error.field, detail(error))).collect::<Vec<_>>()
    };
    assert_eq!(with(json!([{"name": "v2", "served": true}]), json!(["v1"])), [""; 0]);
    assert_eq!(
        with(json!([{"name": "v1", "served": true}]), json!(["v1"])),
        ["spec.versions: must contain unique version names",]
    );
    assert_eq!(
        with(json!([{"name": "v2", "storage": true}]), json!(["v1", "v2"])),
        ["spec.versions: must have exactly one version marked as storage version",]
    );
    assert_eq!(with(json!([]), json!([])), ["status.storedVersions: must have at least one stored version"]);
    assert_eq!(with(json!([]), json!(["v0"])), [
        "status.storedVersions: must have the storage version v1".to_owned(),
        "status.storedVersions[0]: missing from spec.versions; v0 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v0 and removes v0 from status.storedVersions".to_owned(),
    ]);
    check(
        "/spec/versions/0/schema",
        json!(null),
        &["spec.versions[0].schema.openAPIV3Schema: Required value"],
    );
    check(
        "/spec/versions/0/deprecationWarning",
        json!("gone"),
        &[
            "spec.versions[0].deprecationWarning: Invalid value: \"gone\": can only be set for deprecated versions",
        ],
    );
    check(
        "/spec/preserveUnknownFields",
        json!(true),
        &[
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ],
    );
}

#[test]
fn columns_subresources_and_selectable_fields() {
    check(
        "/spec/versions/0/additionalPrinterColumns",
        json!([
        {"name": "A", "type": "string", "jsonPath": ".a"}, {"type": "text", "format": "x", "jsonPath": "a"}, {}]),
        &[
            "spec.additionalPrinterColumns[1].name: Required value",
            "spec.additionalPrinterColumns[1].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[1].format: Invalid value: \"x\": must be one of byte,date,date-time,double,float,int32,int64,password",
            "spec.additionalPrinterColumns[1].JSONPath: Invalid value: \"a\": must be a simple json path starting with .",
            "spec.additionalPrinterColumns[2].name: Required value",
            "spec.additionalPrinterColumns[2].type: Required value: must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[2].JSONPath: Required value",
        ],
    );
    check(
        "/spec/versions/0/subresources",
        json!({"scale": {"specReplicasPath": ".replicas", "labelSelectorPath": "x"}}),
        &[
            "spec.subresources.scale.specReplicasPath: Invalid value: \".replicas\": should be a json path under .spec",
            "spec.subresources.scale.statusReplicasPath: Required value",
            "spec.subresources.scale.labelSelectorPath: Invalid value: \"x\": must be a simple json path starting with .",
        ],
    );
    let mut definition = widgets(json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "number"}}},
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}}));
    let paths =
        [".spec.color", ".spec.color", ".spec.size", ".spec.none", ".metadata.name", ".spec['color']", ""];
    let fields: Vec<Value> = paths.iter().map(|path| json!({"jsonPath": path})).collect();
    definition["spec"]["versions"][0]["selectableFields"] = fields.into();
    assert_eq!(
        shown(&definition, None),
        [
            "spec.selectableFields[1].jsonPath: Duplicate value: \".spec.color\"",
            "spec.selectableFields[2].jsonPath: Invalid value: \".spec.size\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            "spec.selectableFields[3].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field",
            "spec.selectableFields[4].jsonPath: Invalid value: \".metadata.name\": must not point to fields in metadata",
            "spec.selectableFields[5].jsonPath: Invalid value: \".spec['color']\": is an invalid path: array notation is not allowed",
            "spec.selectableFields[6].jsonPath: Required value",
        ]
    );
}

#[test]
fn conversion_by_webhook() {
    let service = json!({"name": "a", "namespace": "b", "port": 443});
    let webhook = |config: Value, versions: Value| {
        json!({"strategy": "Webhook",
        "webhook": {"clientConfig": config, "conversionReviewVersions": versions}})
    };
    let at = "spec.conversion.webhookClientConfig";
    check("/spec/conversion", webhook(json!({"service": service}), json!(["v1"])), &[]);
    check(
        "/spec/conversion",
        json!({"strategy": "Magic"}),
        &["spec.conversion.strategy: Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\""],
    );
    check(
        "/spec/conversion",
        json!({"strategy": "Webhook"}),
        &[
            &format!("{at}: Required value: required when strategy is set to Webhook"),
            "spec.conversion.conversionReviewVersions: Required value",
        ],
    );
    check(
        "/spec/conversion",
        webhook(json!({}), json!(["v7", "v7"])),
        &[
            &format!("{at}: Required value: exactly one of url or service is required"),
            "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v7\": duplicate version",
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v7\"]: must include at least one of v1, v1beta1",
        ],
    );
    check(
        "/spec/conversion",
        webhook(json!({"url": "http://u@/x?q#f"}), json!(["v1"])),
        &[
            &format!(
                "{at}.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"
            ),
            &format!(
                "{at}.url: Invalid value: \"\": host must be specified; desired format: https://host[/path]"
            ),
            &format!("{at}.url: Invalid value: \"u\": user information is not permitted in the URL"),
            &format!("{at}.url: Invalid value: \"f\": fragments are not permitted in the URL"),
            &format!("{at}.url: Invalid value: \"q\": query parameters are not permitted in the URL"),
        ],
    );
    check(
        "/spec/conversion",
        webhook(json!({"service": {"name": "a", "namespace": "b", "port": 0, "path": "a/b"}}), json!(["v1"])),
        &[
            &format!(
                "{at}.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive"
            ),
            &format!("{at}.service.path: Invalid value: \"a/b\": must start with a '/'"),
            &format!("{at}.service.path: Invalid value: \"a/b\": segment[0] may not be empty"),
        ],
    );
    let mut plain = webhook(json!({"service": service}), json!(["v1"]));
    plain["strategy"] = json!("None");
    check(
        "/spec/conversion",
        plain,
        &[
            &format!("{at}: Forbidden: should not be set when strategy is not set to Webhook"),
            "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook",
        ],
    );
}

#[test]
fn schemas_say_only_what_they_may() {
    let at = "spec.validation.openAPIV3Schema";
    check_schema(json!({"type": "object", "properties": {"a": {"type": "string", "format": "x"}}}), &[]);
    check_schema(
        json!({"type": "object", "properties": {"a": {"type": "text"}}}),
        &[&format!(
            "{at}.properties[a].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""
        )],
    );
    check_schema(
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}}}),
        &[&format!(
            "{at}.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        )],
    );
    check_schema(
        json!({"type": "object", "properties": {"a": {"$ref": "#/x"}}}),
        &[&format!("{at}.properties[a].$ref: Forbidden: $ref is not supported")],
    );
    check_schema(
        json!({"type": "object", "properties": {"a": {"type": "object",
        "additionalProperties": {"type": "string"}, "properties": {"b": {"type": "string"}}}}}),
        &[&format!(
            "{at}.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"
        )],
    );
    check_schema(
        json!({"type": "object", "nullable": true}),
        &[&format!("{at}.nullable: Forbidden: nullable cannot be true at the root")],
    );
    check_schema(
        json!({"properties": {"a": {"type": "string"}}}),
        &[&format!("{at}.type: Required value: must not be empty at the root")],
    );
    let mut status = widgets(json!({"type": "object", "maxProperties": 3}));
    status["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    let errors = shown(&status, None);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0]
            .contains("fields are allowed at the root of the schema if the status subresource is enabled")
    );
}

#[test]
fn lists_have_types_that_fit() {
    let at = "spec.validation.openAPIV3Schema.properties[l]";
    let list = |more: Value| {
        let mut list = json!({"type": "array", "items": {"type": "object", "required": ["k"],
            "properties": {"k": {"type": "string"}, "o": {"type": "object"}}}});
        list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"l": list}})
    };
    let map = "x-kubernetes-list-type";
    let keys = "x-kubernetes-list-map-keys";
    check_schema(list(json!({map: "map", keys: ["k"]})), &[]);
    check_schema(
        list(json!({map: "map"})),
        &[&format!("{at}.{keys}: Required value: must not be empty if x-kubernetes-list-type is map")],
    );
    check_schema(
        list(json!({keys: ["k"]})),
        &[&format!("{at}.{map}: Required value: must be map if x-kubernetes-list-map-keys is non-empty")],
    );
    check_schema(
        list(json!({map: "map", keys: ["k", "k"]})),
        &[&format!("{at}.{keys}: Invalid value: [\"k\",\"k\"]: must not contain duplicate entries")],
    );
    check_schema(
        list(json!({map: "map", keys: ["z"]})),
        &[&format!("{at}.{keys}: Invalid value: [\"z\"]: entries must all be names of item properties")],
    );
    check_schema(
        list(json!({map: "map", keys: ["o"]})),
        &[
            &format!(
                "{at}.items.properties[o].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map"
            ),
            &format!(
                "{at}.items.properties[o].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            ),
        ],
    );
    check_schema(
        list(json!({map: "set"})),
        &[&format!(
            "{at}.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set"
        )],
    );
    check_schema(
        list(json!({map: "bag"})),
        &[&format!("{at}.{map}: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"")],
    );
    check_schema(
        json!({"type": "object", "x-kubernetes-map-type": "x", "properties": {"s": {"type": "string", "x-kubernetes-map-type": "atomic"}}}),
        &[
            "spec.validation.openAPIV3Schema.properties[s].type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
            "spec.validation.openAPIV3Schema.x-kubernetes-map-type: Unsupported value: \"x\": supported values: \"atomic\", \"granular\"",
        ],
    );
}

#[test]
fn defaults_are_valid_and_pruned() {
    let at = "spec.validation.openAPIV3Schema.properties";
    let with = |property: Value| json!({"type": "object", "properties": {"a": property}});
    check_schema(with(json!({"type": "integer", "default": 1})), &[]);
    check_schema(
        with(json!({"type": "integer", "default": "x"})),
        &[&format!(
            "{at}[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\""
        )],
    );
    check_schema(
        with(json!({"type": "object", "default": {"b": 1}})),
        &[&format!("{at}[a].default: Invalid value: {{\"b\":1}}: must not have unknown fields")],
    );
    check_schema(
        with(
            json!({"type": "object", "properties": {"b": {"type": "integer", "maximum": 1}}, "default": {"b": 2}}),
        ),
        &[&format!("{at}[a].default.b: Invalid value: 2: b in body should be less than or equal to 1")],
    );
    check_schema(
        json!({"type": "object", "properties": {"metadata": {"type": "object",
        "properties": {"name": {"type": "string", "default": "x"}}}}}),
        &[&format!(
            "{at}[metadata].properties[name].default: Forbidden: must not be set in top-level metadata"
        )],
    );
    let embedded = |metadata: Value| {
        with(json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"metadata": {"type": "object", "properties": {"name": metadata}}}}))
    };
    check_schema(embedded(json!({"type": "string", "default": "fine"})), &[]);
    check_schema(
        embedded(json!({"type": "string", "default": ".."})),
        &[&format!(
            "{at}[a].properties[metadata].properties[name].default: Invalid value: \"..\": must result in valid metadata: metadata.name: Invalid value: \"..\": may not be '..'"
        )],
    );
}

#[test]
fn rules_have_texts_and_paths() {
    let at = "spec.validation.openAPIV3Schema.x-kubernetes-validations[0]";
    let with = |rule: Value| json!({"type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-validations": [rule]});
    check_schema(
        with(json!({"rule": "true", "message": "m", "fieldPath": ".a", "reason": "FieldValueForbidden"})),
        &[],
    );
    check_schema(with(json!({"rule": " "})), &[&format!("{at}.rule: Required value: rule is not specified")]);
    check_schema(
        with(json!({"rule": "true", "message": " "})),
        &[&format!("{at}.message: Invalid value: \" \": must be non-empty if specified")],
    );
    check_schema(
        with(json!({"rule": "true", "message": "a\nb"})),
        &[&format!("{at}.message: Invalid value: \"a\\nb\": must not contain line breaks")],
    );
    check_schema(
        with(json!({"rule": "true\n&& true"})),
        &[&format!("{at}.message: Required value: message must be specified if rule contains line breaks")],
    );
    check_schema(
        with(json!({"rule": "true", "reason": "Because"})),
        &[&format!(
            "{at}.reason: Unsupported value: \"Because\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\""
        )],
    );
    check_schema(
        with(json!({"rule": "true", "fieldPath": ".b"})),
        &[&format!("{at}.fieldPath: Invalid value: \".b\": must be a valid path")],
    );
}

#[test]
fn an_update_changes_no_names_and_keeps_what_was() {
    let mut established = fine();
    established["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let mut other = established.clone();
    other["spec"]["names"]["kind"] = json!("Gadget");
    other["spec"]["scope"] = json!("Cluster");
    other["spec"]["group"] = json!("other.com");
    assert_eq!(
        shown(&other, Some(&established)),
        [
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
            "spec.names.kind: Invalid value: \"Gadget\": field is immutable",
            "spec.group: Invalid value: \"other.com\": field is immutable",
        ]
    );
    // What was wrong before may stay so.
    let odd = widgets(json!({"type": "object", "properties": {"l": {"type": "array",
        "x-kubernetes-list-type": "set", "items": {"type": "object"}}}}));
    assert_eq!(shown(&odd, None).len(), 1);
    assert_eq!(shown(&odd, Some(&odd)), [""; 0]);
}

#[test]
fn groups_of_the_community_need_approval() {
    let with = |annotation: Option<&str>| {
        let mut definition = fine();
        definition["spec"]["group"] = json!("a.k8s.io");
        definition["metadata"] = json!({"name": "widgets.a.k8s.io"});
        if let Some(text) = annotation {
            definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": text});
        }
        definition
    };
    let at = "metadata.annotations[api-approved.kubernetes.io]";
    for (annotation, expected) in [
        (
            None,
            Some(format!(
                "{at}: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
            )),
        ),
        (
            Some("x"),
            Some(format!(
                "{at}: Invalid value: \"x\": protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            )),
        ),
        (Some("unapproved, testing"), None),
        (Some("https://github.com/kubernetes/kubernetes/pull/1"), None),
    ] {
        let definition = with(annotation);
        assert_eq!(shown(&definition, None), Vec::from_iter(expected), "{annotation:?}");
        assert_eq!(shown(&definition, Some(&definition)), [""; 0]);
    }
    assert!(is_protected_group("k8s.io") && !is_protected_group("myk8s.io"));
}

/// Field and kind of each error: estimates are `api-cel`'s to get right.
fn check_rules(schema: Value, expected: &[&str]) {
    let errors = validate_definition(&widgets(schema.clone()), None);
    let shown: Vec<String> = errors
        .iter()
        .map(|error| {
            let field = error.field.replace("spec.validation.openAPIV3Schema", "S");
            let detail = error.detail.split(" (try").next().unwrap_or_default();
            let detail = detail.split('\n').next().unwrap_or_default();
            let detail = detail.split_once("\"OptionalOldSelf\":null}: ").map_or(detail, |(_, why)| why);
            format!("{field}: {detail}")
        })
        .collect();
    assert_eq!(shown, expected, "{schema}");
}

#[test]
fn rules_compile_and_cost_little() {
    let rule = |rule: &str| json!([{"rule": rule}]);
    let with = |value: Value| json!({"type": "object", "properties": {"v": value}});
    let rules = "x-kubernetes-validations";
    check_rules(with(json!({"type": "integer", rules: rule("self < 1024")})), &[]);
    check_rules(
        with(json!({"type": "integer", rules: rule("self + 1")})),
        &["S.properties[v].x-kubernetes-validations[0].rule: cel expression must evaluate to a bool"],
    );
    check_rules(
        with(json!({"type": "integer", rules: rule("slef < 1")})),
        &[
            "S.properties[v].x-kubernetes-validations[0].rule: compilation failed: ERROR: <input>:1:1: undeclared reference to 'slef' (in container '')",
        ],
    );
    check_rules(
        with(json!({"type": "integer", rules: [{"rule": "true", "messageExpression": "1"}]})),
        &[
            "S.properties[v].x-kubernetes-validations[0].messageExpression: messageExpression must evaluate to a string",
        ],
    );
    check_rules(
        with(json!({"type": "string", rules: [{"rule": "self.find(')') == ''"}]})),
        &[
            "S.properties[v].x-kubernetes-validations[0].rule: program instantiation failed: error parsing regexp: unexpected ): `)`",
        ],
    );
    check_rules(
        with(json!({"type": "string", rules: [{"rule": "true", "messageExpression": "self.find(')')"}]})),
        &[
            "S.properties[v].x-kubernetes-validations[0].messageExpression: messageExpression instantiation failed: error parsing regexp: unexpected ): `)`",
        ],
    );
    // What a call comes to is taken to be as large as what the rule is about.
    check_rules(
        with(
            json!({"type": "string", "maxLength": 20, rules: rule("!self.split('.').exists(x, x.matches('^0[0-9]+$'))")}),
        ),
        &[],
    );
    // A rule is not looked at where the schema below it is wrong.
    check_rules(
        json!({"type": "object", "properties": {"v": {"type": "object", "properties": {"f": {"type": "integer"}},
            "additionalProperties": {"type": "string"}}}, rules: rule("self.nothing > 50")}),
        &["S.properties[v].additionalProperties: additionalProperties and properties are mutual exclusive"],
    );
    let nested = |items: Value, properties: Value, key: Value| {
        let mut list = json!({"type": "array", rules: rule("self.all(x, x.all(y, x[y].key == x[y].key))"),
            "items": {"type": "object", "additionalProperties": {"type": "object", "required": ["key"],
                "properties": {"key": key}}}});
        list["maxItems"] = items;
        list["items"]["maxProperties"] = properties;
        with(list)
    };
    let many = [
        "S.properties[v].x-kubernetes-validations[0].rule: estimated rule cost exceeds budget by factor of more than 100x",
        "S.properties[v].x-kubernetes-validations[0].rule: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
        "S: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x",
    ];
    let text = json!({"type": "string"});
    let short = json!({"type": "string", "maxLength": 10});
    check_rules(nested(json!(null), json!(null), text), &many);
    check_rules(nested(json!(null), json!(null), short.clone()), &many);
    check_rules(nested(json!(10), json!(10), short), &[]);
    check_rules(nested(json!(4), json!(null), json!({"type": "number"})), &[]);
    let long = json!({"type": "string", "maxLength": 5000, rules: rule("self.contains('keyword')")});
    check_rules(
        json!({"type": "object", "properties": {
            "list": {"type": "array", "maxItems": 100000, "items": long},
            "map": {"type": "object", "maxProperties": 1000, "additionalProperties": long},
            "field": {"type": "integer", rules: rule("self > 50 && self < 100")}}}),
        &[
            "S.properties[list].items.x-kubernetes-validations[0].rule: estimated rule cost exceeds budget by factor of 20.0x",
            "S.properties[list].items.x-kubernetes-validations[0].rule: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            "S.properties[map].additionalProperties.x-kubernetes-validations[0].rule: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            "S: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 2.0x",
        ],
    );
}

#[test]
fn a_rule_is_shown_as_it_was_written() {
    let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a > 1", "optionalOldSelf": true}]});
    assert_eq!(
        shown(&widgets(schema), None)[0].lines().next(),
        Some(
            r#"spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self.a \u003e 1","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":true}: compilation failed: ERROR: <input>:1:5: undefined field 'a'"#
        )
    );
}

#[test]
fn transitions_need_identity() {
    let rules = "x-kubernetes-validations";
    let item = json!({"type": "integer", rules: [{"rule": "self >= oldSelf"}]});
    check_rules(
        json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 5, "items": item}}}),
        &[
            "S.properties[l].items.x-kubernetes-validations[0].rule: oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[l]",
        ],
    );
    check_rules(
        json!({"type": "object", "properties": {"m": {"type": "object", "maxProperties": 5, "additionalProperties": item}}}),
        &[],
    );
    check_rules(
        json!({"type": "object", "properties": {"a": {"type": "integer", rules: [{"rule": "self > 1", "optionalOldSelf": true}]}}}),
        &[
            "S.properties[a].x-kubernetes-validations[0].optionalOldSelf: may not be set if oldSelf is not used in rule",
        ],
    );
    // Rules hold for defaults too.
    check_rules(
        json!({"type": "object", "properties": {"a": {"type": "integer", "default": 1, rules: [{"rule": "self > 1"}]}}}),
        &["S.properties[a].default: failed rule: self > 1"],
    );
}

#[test]
fn unknown_formats_are_warned_of_once() {
    let with = |formats: &[&str]| {
        let properties: serde_json::Map<String, Value> = formats
            .iter()
            .enumerate()
            .map(|(index, format)| (format!("p{index}"), json!({"type": "string", "format": format})))
            .collect();
        widgets(json!({"type": "object", "properties": properties}))
    };
    assert_eq!(
        definition_warnings(&with(&["date", "x", "int64", "x"]), None),
        ["unrecognized format \"x\"", "unrecognized format \"int64\"",]
    );
    assert_eq!(definition_warnings(&with(&["x", "y"]), Some(&with(&["x"]))), ["unrecognized format \"y\""]);
}
