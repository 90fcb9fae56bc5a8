//! Priority and fairness: FlowSchemas and PriorityLevelConfigurations.

use api_machinery::{Document, Field};
use serde_json::json;

use super::pod_defaults::text;
use crate::strategy::{Generation, Strategy};
use crate::validation::at::{At, Errors};

pub(crate) struct FlowSchemas;

impl Strategy for FlowSchemas {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        new.set_default("spec.matchingPrecedence", 1000);
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let precedence = spec.get("matchingPrecedence");
        let number = precedence.int().unwrap_or(0);
        if number <= 0 {
            errors.push(precedence.invalid("must be a positive value"));
        }
        if number > 10_000 {
            errors.push(precedence.invalid("must not be greater than 10000"));
        }
        if number == 1 && new.name() != "exempt" {
            errors.push(precedence.invalid("only the schema named 'exempt' may have matchingPrecedence 1"));
        }
        spec.get("priorityLevelConfiguration").get("name").require(&mut errors);
        let method = spec.get("distinguisherMethod");
        if method.is_set() {
            method.get("type").must_be_one_of(&mut errors, &["ByNamespace", "ByUser"]);
        }
        for rule in spec.get("rules").items() {
            if rule.get("subjects").is_empty() {
                errors.push(rule.get("subjects").required("subjects must contain at least one value"));
            }
            if rule.get("resourceRules").is_empty() && rule.get("nonResourceRules").is_empty() {
                errors.push(
                    rule.required("at least one of resourceRules and nonResourceRules has to be non-empty"),
                );
            }
            for subject in rule.get("subjects").items() {
                subject.get("kind").must_be_one_of(&mut errors, &["Group", "ServiceAccount", "User"]);
            }
        }
        errors
    }
}

pub(crate) struct PriorityLevels;

impl Strategy for PriorityLevels {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        if new.get("spec.limited").is_some() {
            new.set_default("spec.limited.nominalConcurrencyShares", 30);
            new.set_default("spec.limited.lendablePercent", 0);
            if new.get("spec.limited.limitResponse").is_some() {
                let response = new.object_mut("spec.limited.limitResponse");
                text(response, "type", "Reject");
                if response["type"] == "Queue" {
                    let queuing = response.entry("queuing").or_insert_with(|| json!({}));
                    for (name, value) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                        if queuing.get(name).is_none_or(|value| value.as_i64() == Some(0)) {
                            queuing[name] = value.into();
                        }
                    }
                }
            }
        }
        if new.get("spec.exempt").is_some() {
            new.set_default("spec.exempt.nominalConcurrencyShares", 0);
            new.set_default("spec.exempt.lendablePercent", 0);
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let (limited, exempt) = (spec.get("limited"), spec.get("exempt"));
        match spec.get("type").text() {
            "Exempt" if limited.is_set() => {
                errors.push(limited.forbidden("must be nil if the type is not Limited"));
            }
            "Limited" => {
                if !limited.is_set() {
                    errors.push(limited.required("must not be empty when type is Limited"));
                }
                if exempt.is_set() {
                    errors.push(exempt.forbidden("must be nil if the type is Limited"));
                }
                let shares = limited.get("nominalConcurrencyShares");
                shares.not_negative(&mut errors);
            }
            "Exempt" => {}
            _ => errors.push(spec.get("type").unsupported(&["Exempt", "Limited"])),
        }
        let queuing = limited.get("limitResponse").get("queuing");
        if queuing.is_set() {
            let hand = queuing.get("handSize");
            if hand.int().unwrap_or(0) > queuing.get("queues").int().unwrap_or(0) {
                let field = Field::new("spec.limited.limitResponse.queuing.handSize");
                errors.push(field.invalid(hand.value.clone(), "should not be greater than queues"));
            }
        }
        errors
    }
}
