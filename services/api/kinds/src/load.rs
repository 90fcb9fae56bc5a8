//! Reading the generated text into the table.
//!
//! `data/resources.txt` and `data/messages.txt` are part of the program, so a line that makes no sense is a
//! bug of ours and stops the process at its first use; a test reads both.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

use api_machinery::{Gvk, Gvr};

use crate::table::{Place, Stated};
use crate::{
    Cardinality, FieldInfo, FieldKind, ListType, Message, MessageId, Patch, ResourceInfo, Subresource,
};

const RESOURCES: &str = include_str!("../data/resources.txt");
const MESSAGES: &str = include_str!("../data/messages.txt");

/// Everything built in.
#[derive(Debug)]
pub struct Kinds {
    resources: Vec<ResourceInfo>,
    messages: Vec<Message>,
    by_gvr: HashMap<(&'static str, &'static str, &'static str), usize>,
    by_gvk: HashMap<(&'static str, &'static str, &'static str), usize>,
    by_name: HashMap<&'static str, MessageId>,
    /// Kinds that are no resource of their own (lists, options, scale, reviews) have a message too.
    kind_messages: HashMap<(&'static str, &'static str, &'static str), MessageId>,
    custom: MessageId,
}

/// The table, parsed at first use.
pub fn kinds() -> &'static Kinds {
    static KINDS: OnceLock<Kinds> = OnceLock::new();
    KINDS.get_or_init(|| Kinds::parse(RESOURCES, MESSAGES))
}

impl Kinds {
    pub fn resource(&self, gvr: &Gvr) -> Option<&ResourceInfo> {
        self.find(&gvr.group, &gvr.version, &gvr.resource)
    }
    /// [`Kinds::resource`] for parts of a URL that are not put together yet.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&ResourceInfo> {
        self.by_gvr.get(&(group, version, resource)).map(|&at| &self.resources[at])
    }
    /// The resource whose objects have this kind. Kinds that only bodies of subresources have (`Scale`,
    /// `Eviction`, `DeleteOptions`) are no resource: see [`Kinds::kind_message`].
    pub fn by_kind(&self, gvk: &Gvk) -> Option<&ResourceInfo> {
        let key: (&str, &str, &str) = (&gvk.group, &gvk.version, &gvk.kind);
        self.by_gvk.get(&key).map(|&at| &self.resources[at])
    }
    /// Every resource in every version, in the order discovery shows groups and resources.
    pub fn resources(&self) -> &[ResourceInfo] {
        &self.resources
    }
    /// Groups in discovery's order, the core group (`""`) first, each with its versions, preferred first.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let all: Vec<&ResourceInfo> = self.resources.iter().collect();
        crate::discovery::groups(&all)
    }
    /// The resource in the version it is stored in.
    pub fn stored(&self, resource: &ResourceInfo) -> Option<&ResourceInfo> {
        self.resource(&resource.storage)
    }

    pub fn message(&self, id: MessageId) -> &Message {
        &self.messages[usize::from(id.0)]
    }
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }
    /// By OpenAPI name: `io.k8s.api.core.v1.PodSpec`.
    pub fn message_named(&self, name: &str) -> Option<&Message> {
        self.by_name.get(name).map(|&id| self.message(id))
    }
    /// The shape of any kind the server speaks, be it a resource or not: `PodList`, `Scale`, `Status`.
    pub fn kind_message(&self, gvk: &Gvk) -> Option<&Message> {
        let key: (&str, &str, &str) = (&gvk.group, &gvk.version, &gvk.kind);
        // These two exist in every group, those of custom resources included.
        let everywhere = matches!(&*gvk.kind, "DeleteOptions" | "WatchEvent");
        let found = self.kind_messages.get(&key);
        let found = found.or_else(|| self.kind_messages.get(&("", "v1", key.2)).filter(|_| everywhere));
        found.map(|&id| self.message(id))
    }
    /// The texts the table was read from, resources and messages: for hashes of what is made from it.
    pub fn sources(&self) -> (&'static str, &'static str) {
        (RESOURCES, MESSAGES)
    }
    /// The shell of custom resources: `apiVersion`, `kind`, `metadata`, and anything else.
    pub fn custom(&self) -> MessageId {
        self.custom
    }

    fn parse(resources: &'static str, messages: &'static str) -> Kinds {
        let messages = Messages::parse(messages);
        let by_name = messages.by_name;
        let kind_messages = messages.kinds;
        let messages = messages.list;
        let mut list: Vec<ResourceInfo> = Vec::new();
        for line in lines(resources) {
            match line.strip_prefix(' ') {
                None => list.push(parse_resource(line, &by_name)),
                Some(line) => {
                    let parent = list.last_mut().unwrap_or_else(|| bad(line));
                    parent.subresources.push(parse_subresource(line));
                }
            }
        }
        let mut by_gvr = HashMap::new();
        let mut by_gvk = HashMap::new();
        for (at, resource) in list.iter().enumerate() {
            let (gvr, gvk) = (&resource.gvr, &resource.gvk);
            by_gvr.insert(
                (borrowed(gvr.group.clone()), borrowed(gvr.version.clone()), borrowed(gvr.resource.clone())),
                at,
            );
            by_gvk.insert(
                (borrowed(gvk.group.clone()), borrowed(gvk.version.clone()), borrowed(gvk.kind.clone())),
                at,
            );
        }
        let custom = by_name["dev.roadstead.CustomResource"];
        Kinds { resources: list, messages, by_gvr, by_gvk, by_name, kind_messages, custom }
    }
}

/// Lines that say something.
fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The generated files are part of the program: see the module's first lines.
fn bad(line: &str) -> ! {
    panic!("generated table: cannot read {line:?}")
}

/// Everything in the table is borrowed from the embedded text.
fn borrowed(text: Cow<'static, str>) -> &'static str {
    match text {
        Cow::Borrowed(text) => text,
        Cow::Owned(text) => bad(&text),
    }
}

/// `PLURAL KIND GROUP/VERSION MESSAGE n|c key=value...`
fn parse_resource(line: &'static str, by_name: &HashMap<&'static str, MessageId>) -> ResourceInfo {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_else(|| bad(line));
    let (plural, kind) = (word(), word());
    let (group, version) = word().split_once('/').unwrap_or_else(|| bad(line));
    let message = *by_name.get(word()).unwrap_or_else(|| bad(line));
    let namespaced = word() == "n";
    let gvr = Gvr::new(group, version, plural);
    let mut resource = ResourceInfo {
        storage: gvr.clone(),
        gvr,
        gvk: Gvk::new(group, version, kind),
        list_kind: Cow::Borrowed(""),
        singular: Cow::Borrowed(""),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: Vec::new(),
        subresources: Vec::new(),
        collection: Cow::Borrowed(plural),
        hashed: None,
        message,
    };
    for word in words {
        match word.split_once('=').unwrap_or_else(|| bad(line)) {
            ("singular", name) => resource.singular = Cow::Borrowed(name),
            ("verbs", names) => resource.verbs = split(names),
            ("short", names) => resource.short_names = split(names),
            ("categories", names) => resource.categories = split(names),
            ("storage", at) => {
                let (group, version) = at.split_once('/').unwrap_or_else(|| bad(line));
                resource.storage = Gvr::new(group, version, plural);
            }
            ("hash", at) => {
                let (group, version) = at.split_once('/').unwrap_or_else(|| bad(line));
                resource.hashed = Some(Gvk::new(group, version, kind));
            }
            _ => bad(line),
        }
    }
    resource
}

/// ` NAME KIND GROUP/VERSION verbs`
fn parse_subresource(line: &'static str) -> Subresource {
    let words: Vec<&'static str> = line.split(' ').collect();
    let [name, kind, at, verbs] = words[..] else { bad(line) };
    let (group, version) = at.split_once('/').unwrap_or_else(|| bad(line));
    Subresource { name: Cow::Borrowed(name), gvk: Gvk::new(group, version, kind), verbs: split(verbs) }
}

fn split(names: &'static str) -> Vec<Cow<'static, str>> {
    names.split(',').filter(|name| !name.is_empty()).map(Cow::Borrowed).collect()
}

struct Messages {
    list: Vec<Message>,
    by_name: HashMap<&'static str, MessageId>,
    kinds: HashMap<(&'static str, &'static str, &'static str), MessageId>,
}

impl Messages {
    fn parse(text: &'static str) -> Messages {
        // Fields name messages that come later: number them first.
        let mut by_name: HashMap<&'static str, MessageId> = HashMap::new();
        for line in lines(text).filter(|line| !line.starts_with(' ')) {
            let name = line.split(' ').next().unwrap_or(line);
            let id = u16::try_from(by_name.len()).unwrap_or_else(|_| bad(line));
            by_name.insert(name, MessageId(id));
        }
        let mut list: Vec<Message> = Vec::with_capacity(by_name.len());
        let mut kinds = HashMap::new();
        for line in lines(text) {
            if let Some(line) = line.strip_prefix(' ') {
                let message = list.last_mut().unwrap_or_else(|| bad(line));
                message.fields.push(parse_field(line, &by_name));
                continue;
            }
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_else(|| bad(line));
            let id = by_name[name];
            let mut message = Message {
                id,
                name,
                fields: Vec::new(),
                map_atomic: false,
                open: false,
                kinds: Vec::new(),
                unions: Vec::new(),
                by_json: HashMap::new(),
                json_order: Vec::new(),
            };
            for word in words {
                match word {
                    "atomic" => message.map_atomic = true,
                    "open" => message.open = true,
                    word if word.starts_with("union=") => {
                        let union = serde_json::from_str(&word["union=".len()..]);
                        message.unions.push(union.unwrap_or_else(|_| bad(line)));
                    }
                    kind => {
                        let parts: Vec<&'static str> = kind.split('/').collect();
                        let [group, version, kind] = parts[..] else { bad(line) };
                        kinds.insert((group, version, kind), id);
                        message.kinds.push(Gvk::new(group, version, kind));
                    }
                }
            }
            list.push(message);
        }
        for at in 0..list.len() {
            let mut found = Vec::new();
            places(&list[at], &list, &mut found);
            list[at].json_order = found.iter().map(|(_, place)| *place).collect();
            list[at].by_json = found.into_iter().collect();
        }
        Messages { list, by_name, kinds }
    }
}

/// Where each field with a JSON name is, inline messages flattened.
fn places(message: &Message, all: &[Message], found: &mut Vec<(&'static str, Place)>) {
    for (at, field) in (0u16..).zip(&message.fields) {
        match field.kind {
            FieldKind::Message(id) if field.inline => places(&all[usize::from(id.0)], all, found),
            _ => found.push((field.json, Place { message: message.id, field: at })),
        }
    }
}

/// `JSON NUMBER TYPE flags...`, where JSON is `-` for an inline field and TYPE may begin with `[]` or `{}`.
fn parse_field(line: &'static str, by_name: &HashMap<&'static str, MessageId>) -> FieldInfo {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_else(|| bad(line));
    let json = word();
    let number = word().parse().unwrap_or_else(|_| bad(line));
    let typ = word();
    let (cardinality, typ) = if let Some(item) = typ.strip_prefix("[]") {
        (Cardinality::List, item)
    } else if let Some(item) = typ.strip_prefix("{}") {
        (Cardinality::Map, item)
    } else {
        (Cardinality::One, typ)
    };
    let kind = match typ {
        "string" => FieldKind::String,
        "bool" => FieldKind::Bool,
        "int32" => FieldKind::Int32,
        "int64" => FieldKind::Int64,
        "double" => FieldKind::Double,
        "bytes" => FieldKind::Bytes,
        "quantity" => FieldKind::Quantity,
        "int-or-string" => FieldKind::IntOrString,
        "time" => FieldKind::Time,
        "micro-time" => FieldKind::MicroTime,
        "duration" => FieldKind::Duration,
        "raw-extension" => FieldKind::RawExtension,
        "fields-v1" => FieldKind::FieldsV1,
        "json" => FieldKind::Json,
        "strings" => FieldKind::Strings,
        "schema-or-array" => FieldKind::SchemaOrArray,
        "schema-or-bool" => FieldKind::SchemaOrBool,
        "schema-or-strings" => FieldKind::SchemaOrStrings,
        name => FieldKind::Message(*by_name.get(name).unwrap_or_else(|| bad(line))),
    };
    let mut field = FieldInfo {
        inline: json == "-",
        json: if json == "-" { "" } else { json },
        number,
        kind,
        cardinality,
        list_type: ListType::Atomic,
        map_atomic: false,
        map_granular: false,
        patch: Patch::default(),
        default: None,
        required: false,
        stated: Stated::default(),
    };
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("required", _) => field.required = true,
            ("atomic", _) => field.map_atomic = true,
            ("granular", _) => field.map_granular = true,
            ("list-atomic", _) => field.stated.atomic = true,
            ("set", _) => field.list_type = ListType::Set,
            ("keys", keys) => field.list_type = ListType::Map { keys: keys.split(',').collect() },
            ("merge", "") => field.patch.merge = true,
            ("merge", key) => {
                field.patch.merge = true;
                field.patch.merge_key = Some(key);
            }
            ("replace", _) => field.patch.replace = true,
            ("retain-keys", _) => field.patch.retain_keys = true,
            ("key", key) => field.patch.merge_key = Some(key),
            ("default", value) => {
                let value: serde_json::Value = serde_json::from_str(value).unwrap_or_else(|_| bad(line));
                match is_zero(&value) {
                    true => field.stated.zero_default = Some(value),
                    false => field.default = Some(value),
                }
            }
            _ => bad(line),
        }
    }
    field
}

/// What Go leaves out anyway, so that nobody has to fill it in.
fn is_zero(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.is_empty(),
        serde_json::Value::Number(number) => number.as_f64() == Some(0.0),
        serde_json::Value::Bool(value) => !value,
        serde_json::Value::Object(map) => map.is_empty(),
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Null => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_table_says_what_upstream_says() {
        for (message, field, wanted) in [
            ("core.v1.Pod", "spec", "2 Message One"),
            ("core.v1.Pod", "apiVersion", "0 String One"),
            ("core.v1.PodSpec", "containers", "2 Message List map[name] merge(name) required"),
            ("core.v1.PodSpec", "volumes", "1 Message List map[name] merge(name) retain-keys"),
            ("core.v1.PodSpec", "nodeSelector", "7 String Map atomic"),
            ("core.v1.Container", "ports", "6 Message List map[containerPort,protocol] merge(containerPort)"),
            ("core.v1.ContainerPort", "protocol", "4 String One default=\"TCP\""),
            ("core.v1.ResourceRequirements", "limits", "1 Quantity Map"),
            ("core.v1.Volume", "emptyDir", "2 Message One"),
            ("core.v1.Secret", "data", "2 Bytes Map"),
            ("core.v1.ServicePort", "targetPort", "4 IntOrString One"),
            ("core.v1.SecretKeySelector", "name", "1 String One"),
            ("admissionregistration.v1.NamedRuleWithOperations", "apiGroups", "1 String List"),
            ("authentication.v1.UserInfo", "extra", "4 Strings Map"),
            ("apps.v1.DeploymentSpec", "strategy", "4 Message One retain-keys"),
        ] {
            let message = kinds().message_named(&format!("io.k8s.api.{message}")).expect(message);
            let got = describe(message.field(field).expect(field));
            assert_eq!(got, wanted, "{} {field}", message.name);
        }
    }

    fn describe(field: &FieldInfo) -> String {
        let kind = format!("{:?}", field.kind);
        let mut out =
            format!("{} {} {:?}", field.number, kind.split('(').next().unwrap_or(&kind), field.cardinality);
        match &field.list_type {
            ListType::Map { keys } => out.push_str(&format!(" map[{}]", keys.join(","))),
            ListType::Set => out.push_str(" set"),
            ListType::Atomic => {}
        }
        for (is, word) in [(field.map_atomic, "atomic"), (field.patch.replace, "replace")] {
            out.push_str(&if is { format!(" {word}") } else { String::new() });
        }
        match field.patch.merge_key {
            Some(key) if field.patch.merge => out.push_str(&format!(" merge({key})")),
            _ if field.patch.merge => out.push_str(" merge"),
            _ => {}
        }
        for (is, word) in [(field.patch.retain_keys, "retain-keys"), (field.required, "required")] {
            out.push_str(&if is { format!(" {word}") } else { String::new() });
        }
        if let Some(default) = &field.default {
            out.push_str(&format!(" default={default}"));
        }
        out
    }

    #[test]
    fn resources_are_where_clients_look() {
        for (gvr, wanted) in [
            (Gvr::core("pods"), "Pod pods v1 n 10"),
            (Gvr::core("nodes"), "Node nodes v1 c 2"),
            (Gvr::new("apps", "v1", "deployments"), "Deployment deployments apps/v1 n 2"),
            (Gvr::new("events.k8s.io", "v1", "events"), "Event events v1 n 0"),
            (
                Gvr::new("autoscaling", "v1", "horizontalpodautoscalers"),
                "HorizontalPodAutoscaler horizontalpodautoscalers autoscaling/v2 n 1",
            ),
        ] {
            let found = kinds().resource(&gvr).expect("a built-in resource");
            let scope = if found.namespaced { "n" } else { "c" };
            let got = format!(
                "{} {} {} {scope} {}",
                found.gvk.kind,
                found.collection,
                found.storage.api_version(),
                found.subresources.len()
            );
            assert_eq!(got, wanted);
            assert_eq!(kinds().by_kind(&found.gvk).map(|found| &found.gvr), Some(&gvr));
            assert!(kinds().stored(found).is_some());
        }
    }

    #[test]
    fn options_of_any_group_are_understood() {
        for (gvk, wanted) in [
            (Gvk::new("example.com", "v1", "DeleteOptions"), Some("DeleteOptions")),
            (Gvk::new("", "v1", "PodList"), Some("PodList")),
            (Gvk::new("autoscaling", "v1", "Scale"), Some("Scale")),
            (Gvk::new("meta.k8s.io", "v1", "PartialObjectMetadata"), Some("PartialObjectMetadata")),
            (Gvk::new("example.com", "v1", "Pod"), None),
        ] {
            assert_eq!(kinds().kind_message(&gvk).map(Message::short_name), wanted, "{gvk}");
        }
    }

    #[test]
    fn every_body_can_be_walked() {
        for resource in kinds().resources() {
            let message = kinds().message(resource.message);
            assert!(message.json_fields().count() > 0, "{}", message.name);
            assert!(kinds().stored(resource).is_some(), "{}", resource.gvr);
            for sub in &resource.subresources {
                // Options of connect verbs come as query parameters, never as a body.
                let options = sub.gvk.kind.ends_with("Options");
                assert!(options || kinds().kind_message(&sub.gvk).is_some(), "{}", sub.gvk);
            }
        }
    }
}
