//! Labels in Kubernetes' own syntax, and the merge patch on them.
//!
//! The rules are those of `k8s.io/apimachinery/pkg/util/validation` (`IsQualifiedName`,
//! `IsValidLabelValue`), since a pool's labels end on its nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{FieldProblem, pointer_step};

/// Sorted, so that equal labels are equal text in the database.
pub type Labels = BTreeMap<String, String>;

/// Labels on one object at most.
pub const MAX_LABELS: usize = 64;

/// What is wrong with `labels`, in words for whoever sent them; the fields are relative to the labels.
pub fn check_labels(labels: &Labels) -> Vec<FieldProblem> {
    if labels.len() > MAX_LABELS {
        return vec![FieldProblem::new("", format!("{} labels; at most {MAX_LABELS}", labels.len()))];
    }
    labels
        .iter()
        .filter_map(|(key, value)| {
            let fault = match check_key(key) {
                Err(why) => why,
                Ok(()) => format!("label {key:?}: {}", check_value(value).err()?),
            };
            Some(FieldProblem::new(pointer_step(key), fault))
        })
        .collect()
}

/// A qualified name: `[prefix/]name`, the prefix a DNS subdomain.
pub fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix
        && !is_subdomain(prefix)
    {
        return Err(format!("key {key:?}: what stands before '/' is a DNS name"));
    }
    if name.is_empty() || !is_word(name) {
        return Err(format!(
            "key {key:?}: 1 to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
        ));
    }
    Ok(())
}

/// A label's value; it may be empty.
pub fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_word(value) {
        return Ok(());
    }
    Err(format!(
        "value {value:?}: at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
    ))
}

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_subdomain(text: &str) -> bool {
    let part_is_fine = |part: &str| {
        let fine = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(fine)
            && bytes.last().is_some_and(fine)
            && bytes.iter().all(|byte| fine(byte) || *byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(part_is_fine)
}

/// The `labels` member of a merge patch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LabelsPatch {
    /// Absent: they stay as they are.
    #[default]
    Keep,
    /// `null`: all of them go.
    Clear,
    /// Each is set, or goes when it is `null`.
    Merge(BTreeMap<String, Option<String>>),
}

impl LabelsPatch {
    pub fn is_keep(&self) -> bool {
        *self == LabelsPatch::Keep
    }

    /// The patch that turns `old` into `new`.
    pub fn between(old: &Labels, new: &Labels) -> LabelsPatch {
        let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), None));
        let set = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
        let merge: BTreeMap<_, _> =
            gone.chain(set.map(|(key, value)| (key.clone(), Some(value.clone())))).collect();
        if merge.is_empty() { LabelsPatch::Keep } else { LabelsPatch::Merge(merge) }
    }

    pub fn apply(&self, labels: &mut Labels) {
        match self {
            LabelsPatch::Keep => {}
            LabelsPatch::Clear => labels.clear(),
            LabelsPatch::Merge(changes) => {
                for (key, value) in changes {
                    match value {
                        Some(value) => drop(labels.insert(key.clone(), value.clone())),
                        None => drop(labels.remove(key)),
                    }
                }
            }
        }
    }
}

impl Serialize for LabelsPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // Only reached where a struct forgot to skip it; an empty merge changes nothing either.
            LabelsPatch::Keep => BTreeMap::<String, String>::new().serialize(serializer),
            LabelsPatch::Clear => serializer.serialize_none(),
            LabelsPatch::Merge(changes) => changes.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for LabelsPatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LabelsPatch, D::Error> {
        let given: Option<BTreeMap<String, Option<String>>> = Deserialize::deserialize(deserializer)?;
        Ok(given.map_or(LabelsPatch::Clear, LabelsPatch::Merge))
    }
}

/// For a member of a merge patch that cannot be removed: absent is `None`, `null` is an error.
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UpdateCluster;

    #[test]
    fn keys_and_values_are_kubernetes_own() {
        let (long, too_long) = ("a".repeat(63), "a".repeat(64));
        for (key, fine) in [
            ("team", true),
            ("example.com/team", true),
            ("A_b.c-1", true),
            (long.as_str(), true),
            (too_long.as_str(), false),
            ("", false),
            ("/team", false),
            ("a/b/c", false),
            ("Example.com/team", false),
            ("-team", false),
            ("team-", false),
            ("te am", false),
            ("té", false),
        ] {
            assert_eq!(check_key(key).is_ok(), fine, "{key:?}");
        }
        for (value, fine) in
            [("", true), ("v1.2_3-x", true), (&long, true), (&too_long, false), (".x", false), ("a/b", false)]
        {
            assert_eq!(check_value(value).is_ok(), fine, "{value:?}");
        }
    }

    #[test]
    fn every_label_that_is_wrong_is_named() {
        let labels = [("a/b/c", "1"), ("fine", "1"), ("team", "a/b")];
        let labels: Labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let found = check_labels(&labels);
        let fields: Vec<&str> = found.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(fields, ["/a~1b~1c", "/team"]);
        assert!(found[1].detail.starts_with("label \"team\": value \"a/b\""), "{}", found[1].detail);
        let many: Labels = (0..65).map(|n| (format!("l{n}"), String::new())).collect();
        assert_eq!(check_labels(&many), [FieldProblem::new("", "65 labels; at most 64")]);
    }

    #[test]
    fn a_merge_patch_sets_removes_and_keeps() {
        let old: Labels = [("a", "1"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (patch, wanted) in [
            ("{}", r#"{"a":"1","b":"2"}"#),
            (r#"{"labels":{}}"#, r#"{"a":"1","b":"2"}"#),
            (r#"{"labels":null}"#, "{}"),
            (r#"{"labels":{"a":null,"c":"3"}}"#, r#"{"b":"2","c":"3"}"#),
        ] {
            let parsed: UpdateCluster = serde_json::from_str(patch).unwrap();
            let mut labels = old.clone();
            parsed.labels.apply(&mut labels);
            assert_eq!(serde_json::to_string(&labels).unwrap(), wanted, "{patch}");
            let again: UpdateCluster =
                serde_json::from_str(&serde_json::to_string(&parsed).unwrap()).unwrap();
            assert_eq!(again, parsed, "{patch}");
            let mut other = old.clone();
            LabelsPatch::between(&old, &labels).apply(&mut other);
            assert_eq!(other, labels, "{patch}");
        }
        for wrong in [r#"{"name":null}"#, r#"{"replicas":3}"#, r#"{"labels":{"a":1}}"#] {
            assert!(serde_json::from_str::<UpdateCluster>(wrong).is_err(), "{wrong}");
        }
    }
}
