//! What must hold for any objects and configurations, tried on made-up ones. A failure prints its seed.

use api_kinds::{Cardinality, FieldKind, Message, kinds};
use api_machinery::Gvk;
use serde_json::{Map, json};

use super::*;
use crate::{json_patch, merge_patch, strategic_merge};

/// xorshift: enough for choosing fields, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
    fn word(&mut self) -> String {
        ["a", "b", "c"][self.roll(3) as usize].to_owned()
    }
}

/// Some fields of a message, lists with distinct items.
fn some(message: &'static Message, dice: &mut Dice, depth: usize) -> Value {
    let mut object = Map::new();
    let wanted = ["name", "key", "type", "spec", "template", "containers", "metadata", "labels"];
    for field in message.json_fields() {
        if matches!(field.json, "apiVersion" | "kind" | "managedFields" | "status") {
            continue;
        }
        let likely = wanted.contains(&field.json);
        if dice.roll(if likely { 3 } else { 12 }) >= 2 && !(likely && dice.roll(2) == 0) || depth > 6 {
            continue;
        }
        let value = match field.cardinality {
            Cardinality::One => element(field.kind, dice, depth),
            Cardinality::Map => {
                let members = (0..=dice.roll(2)).map(|_| (dice.word(), element(field.kind, dice, depth)));
                Value::Object(members.collect())
            }
            Cardinality::List => {
                let shape = shape::Shape::of(message.id).member(field.json).0;
                let mut seen = Vec::new();
                let mut items = Vec::new();
                for _ in 0..=dice.roll(3) {
                    let mut item = element(field.kind, dice, depth);
                    if let api_kinds::ListType::Map { keys } = &field.list_type {
                        for key in keys {
                            let own = if key.to_lowercase().contains("port") {
                                json!(dice.roll(3) + 1)
                            } else {
                                json!(dice.word())
                            };
                            item[*key] = own;
                        }
                    }
                    let name =
                        if shape.is_list() { shape.element(&item).unwrap() } else { items.len().to_string() };
                    if !seen.contains(&name) {
                        seen.push(name);
                        items.push(item);
                    }
                }
                Value::Array(items)
            }
        };
        object.insert(field.json.to_owned(), value);
    }
    Value::Object(object)
}

fn element(kind: FieldKind, dice: &mut Dice, depth: usize) -> Value {
    match kind {
        FieldKind::Message(id) => some(kinds().message(id), dice, depth + 1),
        FieldKind::Bool => json!(dice.roll(2) == 0),
        FieldKind::Int32 | FieldKind::Int64 | FieldKind::IntOrString | FieldKind::Double => {
            json!(dice.roll(3))
        }
        FieldKind::Quantity => json!("1"),
        FieldKind::Time => json!("2026-11-30T21:00:00Z"),
        FieldKind::MicroTime => json!("2026-11-30T21:00:00.000000Z"),
        FieldKind::Bytes => json!("YQ=="),
        FieldKind::Strings => json!([dice.word()]),
        FieldKind::RawExtension | FieldKind::FieldsV1 | FieldKind::Json => json!({dice.word(): dice.roll(3)}),
        _ => json!(dice.word()),
    }
}

fn object(gvk: &Gvk, dice: &mut Dice) -> Document {
    let message = kinds().kind_message(gvk).unwrap();
    let mut document = Document::from_value(some(message, dice, 0)).unwrap();
    document.set("apiVersion", gvk.api_version());
    document.set("kind", gvk.kind.to_string());
    document.set("metadata.name", "x");
    document.set("metadata.namespace", "y");
    for field in ["managedFields", "uid", "resourceVersion", "generation", "creationTimestamp"] {
        document.metadata_mut().remove(field);
    }
    document
}

fn without_owners(document: &Document) -> Value {
    unmanaged(document)
}

#[test]
fn applying_holds_its_promises() {
    let all = [
        Gvk::new("", "v1", "Pod"),
        Gvk::new("", "v1", "Service"),
        Gvk::new("", "v1", "ConfigMap"),
        Gvk::new("apps", "v1", "Deployment"),
        Gvk::new("batch", "v1", "CronJob"),
        Gvk::new("rbac.authorization.k8s.io", "v1", "ClusterRole"),
        Gvk::new("networking.k8s.io", "v1", "Ingress"),
    ];
    for seed in 1..400u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let gvk = &all[(seed % all.len() as u64) as usize];
        let message = kinds().kind_message(gvk).unwrap().id;
        let version = gvk.api_version();
        let by = |manager| Tracking {
            schema: None,
            message,
            api_version: &version,
            manager,
            subresource: "",
            now: "2026-11-30T21:00:00Z".parse().unwrap(),
            ignored: &["status"],
        };
        let (one, two, three) = (object(gvk, &mut dice), object(gvk, &mut dice), object(gvk, &mut dice));
        let told = |what: &str| format!("seed {seed}, {gvk}: {what}");

        let made = apply(&by("ann"), None, &one, false).unwrap();
        assert_eq!(without_owners(&made), without_owners(&one), "{}", told("creating is taking it as it is"));
        let again = apply(&by("ann"), Some(&made), &one, false).unwrap();
        assert_eq!(again, made, "{}", told("applying twice is applying once"));

        let both = apply(&by("bob"), Some(&made), &two, true).unwrap();
        let shape = Shape::of(message);
        let merged = unmanaged(&both);
        assert_eq!(
            typed::merge(shape, Some(&merged), Some(&unmanaged(&two))).unwrap(),
            merged,
            "{}",
            told("what is applied is there")
        );
        let twice = apply(&by("bob"), Some(&both), &two, false).unwrap();
        assert_eq!(twice, both, "{}", told("owning it, there is no conflict"));

        // Saying nothing gives everything up that nobody else says.
        let mut nothing = Document::default();
        for field in ["apiVersion", "kind"] {
            nothing.set(field, two.get(field).cloned().unwrap());
        }
        nothing.set("metadata.name", "x");
        nothing.set("metadata.namespace", "y");
        let left = apply(&by("bob"), Some(&both), &nothing, false).unwrap();
        let owned = managed::read(&left).unwrap();
        assert!(owned.keys().all(|manager| manager.name != "bob"), "{}", told("bob owns nothing any more"));

        // What is changed by other means belongs to who changed it.
        let mut changed = three.clone();
        let owners = made.get("metadata.managedFields").cloned();
        if let Some(owners) = owners {
            changed.set("metadata.managedFields", owners);
        }
        track_update(&by("edit"), Some(&made), &mut changed);
        for (manager, entry) in managed::read(&changed).unwrap() {
            let there = typed::fields(shape, &with_parents(shape, unmanaged(&changed))).unwrap();
            let marked = there.mark_parents(shape, &Shape::step);
            let lost = entry.set.difference(&marked);
            // Parents of what is there are fields too, even where Go's types don't name them.
            assert!(
                lost.paths().iter().all(|path| path.ends_with(']')
                    || there.paths().iter().any(|other| other.starts_with(path.as_str()))),
                "{}",
                told(&format!("{} owns what is not there: {:?}", manager.name, lost.paths()))
            );
        }

        // The other patches. (A strategic merge twice need not be one: ports that share a number and differ
        // in protocol are one item to it.)
        let (before, patch) = (unmanaged(&one), unmanaged(&two));
        let unchanged = strategic_merge(message, &before, &json!({})).unwrap();
        assert_eq!(unchanged, before, "{}", told("an empty patch changes nothing"));
        let merged = merge_patch(&before, &patch);
        assert_eq!(merge_patch(&merged, &patch), merged, "{}", told("merge patch twice"));
        assert!(json_patch(&before, &patch).is_err());
    }
}
