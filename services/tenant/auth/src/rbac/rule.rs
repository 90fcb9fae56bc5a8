//! What one rule allows, and when rules cover other rules.

use serde::{Deserialize, Serialize};
use tenant_client::{Access, Target};

/// `rbac.authorization.k8s.io/v1` PolicyRule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub api_groups: Vec<String>,
    #[serde(
        rename = "nonResourceURLs",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_empty"
    )]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub verbs: Vec<String>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == wanted)
}

impl Rule {
    /// Everything: what `cluster-admin` holds.
    pub fn full_authority() -> [Rule; 2] {
        let all = || vec!["*".to_owned()];
        [
            Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
            Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
        ]
    }

    pub fn allows(&self, access: &Access) -> bool {
        if !has(&self.verbs, "*") && !has(&self.verbs, &access.verb) {
            return false;
        }
        match &access.target {
            Target::Path(path) => self.non_resource_urls.iter().any(|owned| url_covers(owned, path)),
            Target::Resource { group, resource, subresource, name, .. } => {
                (has(&self.api_groups, "*") || has(&self.api_groups, group))
                    && self.resources.iter().any(|owned| resource_matches(owned, resource, subresource))
                    && (self.resource_names.is_empty() || has(&self.resource_names, name))
            }
        }
    }

    /// How many [`Rule::pieces`] there are: a product of lengths, so that a body of kilobytes may mean
    /// billions.
    pub(super) fn size(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let named = resources.saturating_mul(self.resource_names.len().max(1));
        self.verbs.len().saturating_mul(named.saturating_add(self.non_resource_urls.len()))
    }

    /// Rules with one verb, one group, one resource and at most one name that together say the same.
    fn pieces(&self) -> Vec<Rule> {
        let mut pieces = Vec::new();
        let one = |text: &String| vec![text.clone()];
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let piece = Rule {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        ..Rule::default()
                    };
                    if self.resource_names.is_empty() {
                        pieces.push(piece);
                    } else {
                        let named = self.resource_names.iter();
                        pieces.extend(named.map(|name| Rule { resource_names: one(name), ..piece.clone() }));
                    }
                }
            }
            for url in &self.non_resource_urls {
                pieces.push(Rule { verbs: one(verb), non_resource_urls: one(url), ..Rule::default() });
            }
        }
        pieces
    }

    /// Whether this rule alone gives all that `piece` (see [`Rule::pieces`]) gives.
    pub(super) fn covers_piece(&self, piece: &Rule) -> bool {
        let all =
            |owned: &[String], wanted: &[String]| has(owned, "*") || wanted.iter().all(|one| has(owned, one));
        let names = self.resource_names.is_empty()
            || (!piece.resource_names.is_empty()
                && piece.resource_names.iter().all(|one| has(&self.resource_names, one)));
        let resource = |wanted: &String| {
            has(&self.resources, wanted)
                || wanted.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        };
        all(&self.verbs, &piece.verbs)
            && all(&self.api_groups, &piece.api_groups)
            && (has(&self.resources, "*") || piece.resources.iter().all(resource))
            && names
            && piece
                .non_resource_urls
                .iter()
                .all(|wanted| self.non_resource_urls.iter().any(|owned| url_covers(owned, wanted)))
    }

    /// `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}`, as escalation errors print it.
    pub fn compact(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| {
            let quoted: Vec<String> = list.iter().map(|one| format!("{one:?}")).collect();
            // Go prints a list of quoted strings with spaces between.
            format!("{name}:[{}]", quoted.join(" "))
        })
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

fn resource_matches(owned: &str, resource: &str, subresource: &str) -> bool {
    if owned == "*" {
        return true;
    }
    if subresource.is_empty() {
        return owned == resource;
    }
    match owned.split_once('/') {
        Some((of, sub)) => sub == subresource && (of == "*" || of == resource),
        None => false,
    }
}

fn url_covers(owned: &str, wanted: &str) -> bool {
    if owned == wanted {
        return true;
    }
    owned.ends_with('*') && wanted.starts_with(owned.trim_end_matches('*'))
}

/// What of `wanted` is not given by `owned`; empty when all is. Verbs of otherwise equal pieces are put
/// together again, so that an error stays readable.
pub fn covers<'a>(owned: impl Iterator<Item = &'a Rule> + Clone, wanted: &[Rule]) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    // A rule that another one gives as a whole needn't be taken apart; to admins that is every rule.
    let partly = wanted.iter().filter(|rule| !owned.clone().any(|owned| owned.covers_piece(rule)));
    for piece in partly.flat_map(Rule::pieces) {
        if owned.clone().any(|rule| rule.covers_piece(&piece)) {
            continue;
        }
        let same = missing.iter_mut().find(|one| {
            (&one.api_groups, &one.resources, &one.resource_names, &one.non_resource_urls)
                == (&piece.api_groups, &piece.resources, &piece.resource_names, &piece.non_resource_urls)
        });
        match same {
            Some(one) => {
                for verb in piece.verbs {
                    if !has(&one.verbs, &verb) {
                        one.verbs.push(verb);
                    }
                }
            }
            None => missing.push(piece),
        }
    }
    missing
}
