//! Decides what an apply will do: keep, change in place, replace, or refuse.
//!
//! [`plan`] is a function of schema, present state and configuration; it reaches nobody. Terraform calls it
//! several times (with values unknown at first, without a present state once it has decided to replace) and
//! wants answers that agree.

use crate::diagnostic::Diagnostic;
use crate::schema::{Attribute, From, OnChange, Schema};
use crate::value::{Object, Value};

/// What is going to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub state: Object,
    /// Attributes whose change makes it another thing.
    pub replaced_by: Vec<&'static str>,
    pub refused: Vec<Diagnostic>,
}

/// `present` is `None` when there is nothing yet.
pub fn plan(schema: &Schema, present: Option<&Object>, config: &Object) -> Plan {
    let mut state = Object::default();
    for attribute in &schema.attributes {
        state.set(attribute.name, planned(attribute, present, config));
    }
    let Some(present) = present else {
        return Plan { state, replaced_by: Vec::new(), refused: Vec::new() };
    };
    let changed: Vec<&Attribute> = schema
        .attributes
        .iter()
        .filter(|attribute| {
            attribute.is_configurable() && state.get(attribute.name) != present.get(attribute.name)
        })
        .collect();
    if !changed.is_empty() {
        for attribute in schema.attributes.iter().filter(|attribute| attribute.from == From::Reported) {
            state.set(attribute.name, Value::Unknown);
        }
    }
    let matters = |attribute: &&&Attribute| {
        let new = state.get(attribute.name);
        !attribute.same_as.iter().any(|other| *new != Value::Null && present.get(other) == new)
    };
    let replaced_by: Vec<&'static str> = changed
        .iter()
        .filter(|attribute| attribute.on_change == OnChange::Replace)
        .filter(matters)
        .map(|attribute| attribute.name)
        .collect();
    // What is replaced anyway may become anything.
    let refused = if replaced_by.is_empty() {
        changed.iter().filter_map(|attribute| refusal(attribute, present, &state)).collect()
    } else {
        Vec::new()
    };
    Plan { state, replaced_by, refused }
}

fn planned(attribute: &Attribute, present: Option<&Object>, config: &Object) -> Value {
    let configured = config.get(attribute.name);
    let kept = || present.map_or(Value::Unknown, |present| present.get(attribute.name).clone());
    match &attribute.from {
        From::Required | From::Optional => configured.clone(),
        From::Default(value) if configured.is_null() => value.clone(),
        From::Chosen if configured.is_null() => kept(),
        From::Default(_) | From::Chosen => configured.clone(),
        From::Computed | From::Reported => kept(),
    }
}

/// A value that is still unknown may turn out to be the present one; that is judged at apply.
fn refusal(attribute: &Attribute, present: &Object, state: &Object) -> Option<Diagnostic> {
    let OnChange::Refuse(why) = attribute.on_change else { return None };
    let new = state.known(attribute.name)?;
    let show = |value: &Value| match value {
        Value::Text(text) => text.clone(),
        other => format!("{other:?}"),
    };
    let summary = format!(
        "{} cannot change from {} to {}",
        attribute.name,
        show(present.get(attribute.name)),
        show(new)
    );
    Some(Diagnostic::error(summary, why).at(attribute.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema {
            description: "",
            attributes: vec![
                Attribute::text("name", "").required(),
                Attribute::text("place", "").chosen().replaces(),
                Attribute::text("of", "").replaces().same_as(&["of_id"]),
                Attribute::number("size", "").default(1u32),
                Attribute::text("version", "").chosen().refuses("Make another one."),
                Attribute::text("id", "").computed(),
                Attribute::text("of_id", "").computed(),
                Attribute::text("state", "").reported(),
            ],
        }
    }

    fn object(text: &str) -> Object {
        text.split_whitespace().fold(Object::default(), |object, word| {
            let (name, value) = word.split_once('=').unwrap();
            match (value, value.parse::<u32>()) {
                ("?", _) => object.with(name, Value::Unknown),
                (_, Ok(number)) => object.with(name, number),
                _ => object.with(name, value),
            }
        })
    }

    fn show(plan: &Plan) -> String {
        let value = |value: &Value| match value {
            Value::Unknown => "?".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            other => format!("{other:?}"),
        };
        let known = plan.state.0.iter().filter(|(_, value)| !value.is_null());
        let mut words: Vec<String> = known.map(|(name, found)| format!("{name}={}", value(found))).collect();
        words.extend(plan.replaced_by.iter().map(|name| format!("!{name}")));
        words.extend(plan.refused.iter().map(|finding| format!("X{}", finding.summary.replace(' ', "_"))));
        words.join(" ")
    }

    #[test]
    fn plans() {
        let present = "id=7 name=a of=web of_id=9 place=here size=1 state=fine version=1.36";
        for (present, config, wanted) in [
            // Making.
            ("", "name=a", "id=? name=a of_id=? place=? size=1 state=? version=?"),
            ("", "name=? size=3 place=x", "id=? name=? of_id=? place=x size=3 state=? version=?"),
            // Nothing to do, whether the defaults are spelt out or not.
            (present, "name=a of=web", present),
            (present, "name=a of=web size=1 place=here version=1.36", present),
            // In place: what is reported may be another one afterwards.
            (present, "name=b of=web", "id=7 name=b of=web of_id=9 place=here size=1 state=? version=1.36"),
            (
                present,
                "name=a of=web size=?",
                "id=7 name=a of=web of_id=9 place=here size=? state=? version=1.36",
            ),
            // Replacing; a value that is not known yet may be another one, so it replaces too.
            (
                present,
                "name=a of=web place=there",
                "id=7 name=a of=web of_id=9 place=there size=1 state=? version=1.36 !place",
            ),
            (present, "name=a of=?", "id=7 name=a of=? of_id=9 place=here size=1 state=? version=1.36 !of"),
            // The same thing by another name.
            (present, "name=a of=9x", "id=7 name=a of=9x of_id=9 place=here size=1 state=? version=1.36 !of"),
            // Refusing, unless it is replaced anyway.
            (
                present,
                "name=a of=web version=1.35x",
                "id=7 name=a of=web of_id=9 place=here size=1 state=? version=1.35x \
                 Xversion_cannot_change_from_1.36_to_1.35x",
            ),
            (
                present,
                "name=a of=web version=?",
                "id=7 name=a of=web of_id=9 place=here size=1 state=? version=?",
            ),
            (
                present,
                "name=a of=web version=1.35x place=there",
                "id=7 name=a of=web of_id=9 place=there size=1 state=? version=1.35x !place",
            ),
        ] {
            let before = Some(object(present)).filter(|object| !object.0.is_empty());
            let plan = plan(&schema(), before.as_ref(), &object(config));
            assert_eq!(show(&plan), wanted, "{present} | {config}");
        }
    }

    #[test]
    fn another_spelling_does_not_replace() {
        let present = object("id=7 name=a of=web of_id=u9 place=here size=1 state=fine version=v");
        let plan = plan(&schema(), Some(&present), &object("name=a of=u9"));
        assert_eq!(plan.replaced_by, Vec::<&str>::new());
        assert_eq!(plan.state.text("of"), Some("u9"));
    }

    /// Terraform plans again after a replacement was decided, and once more before it applies.
    #[test]
    fn a_plan_of_a_plan_is_the_same_plan() {
        for config in ["name=a", "name=a size=4 place=x of=y version=z"] {
            let first = plan(&schema(), None, &object(config));
            let mut made = first.state.clone();
            for (name, value) in &mut made.0 {
                if *value == Value::Unknown {
                    *value = format!("made-{name}").into();
                }
            }
            let again = plan(&schema(), Some(&made), &object(config));
            assert_eq!(again, Plan { state: made, replaced_by: vec![], refused: vec![] }, "{config}");
        }
    }
}
