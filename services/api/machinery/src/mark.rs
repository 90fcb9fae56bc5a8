//! Labels in one word: enough to see that an object is not meant, without looking at it.
//!
//! A Bloom filter of 63 bits. Each label sets a bit for its key and two for key and value; a selector that asks
//! for a label asks for those bits. What lacks one does not match; what has them all may. The highest bit says
//! that the others are set at all.

use std::collections::BTreeMap;
use std::hash::Hasher;

use crate::selector::{LabelSelector, Requirement};

const MADE: u64 = 1 << 63;

/// Never 0.
pub fn of_labels(labels: &BTreeMap<String, String>) -> u64 {
    labels.iter().fold(MADE, |mark, (key, value)| mark | of_key(key) | of_label(key, value))
}

/// Bits without which nothing matches; 0 if the selector is not about what is there.
pub fn of_selector(selector: &LabelSelector) -> u64 {
    selector.requirements.iter().fold(0, |mark, requirement| {
        mark | match requirement {
            Requirement::In(key, values) => match &values[..] {
                [value] => of_key(key) | of_label(key, value),
                _ => of_key(key),
            },
            Requirement::Exists(key) | Requirement::GreaterThan(key, _) | Requirement::LessThan(key, _) => {
                of_key(key)
            }
            Requirement::NotIn(..) | Requirement::NotExists(_) => 0,
        }
    })
}

/// Whether an object with `mark` can be ruled out; one that has none cannot.
pub fn rules_out(mark: u64, wanted: u64) -> bool {
    mark != 0 && mark & wanted != wanted
}

fn of_key(key: &str) -> u64 {
    bit(hash(&[key]))
}

fn of_label(key: &str, value: &str) -> u64 {
    let hash = hash(&[key, value]);
    bit(hash) | bit(hash >> 32)
}

fn bit(hash: u64) -> u64 {
    1 << (hash % 63)
}

/// The same in every process of one build, which is all that is needed: marks are never stored.
fn hash(parts: &[&str]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    for part in parts {
        hasher.write(part.as_bytes());
        // Never part of a label.
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matches_is_never_ruled_out() {
        let labels = |text: &str| -> BTreeMap<String, String> {
            let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let all = ["", "app=web", "app=db", "app=web,tier=front", "tier=back,n=7", "app=,x=y"];
        let selectors = [
            "",
            "app",
            "app=web",
            "app in (web,db)",
            "app!=web",
            "!app",
            "tier=front,app=web",
            "n>6",
            "n<9",
            "app=",
            "app notin (web)",
        ];
        for object in all {
            let mark = of_labels(&labels(object));
            assert_ne!(mark, 0);
            for text in selectors {
                let selector = LabelSelector::parse(text).unwrap();
                let wanted = of_selector(&selector);
                if selector.matches(&labels(object)) {
                    assert!(!rules_out(mark, wanted), "{object:?} {text:?}");
                }
                assert!(!rules_out(0, wanted), "{text:?}");
            }
        }
        // And most of the others are.
        let wanted = of_selector(&LabelSelector::parse("shard=none").unwrap());
        let ruled_out = (0..1_000)
            .filter(|n| rules_out(of_labels(&labels(&format!("shard={n},app=web"))), wanted))
            .count();
        assert!(ruled_out > 950, "{ruled_out}");
    }
}
