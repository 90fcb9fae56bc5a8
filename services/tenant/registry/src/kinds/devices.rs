//! `resource.k8s.io`: device classes, claims, their templates and slices.
//!
//! Not here: allocation (the scheduler's), and whether a selector's CEL compiles.

use api_machinery::{Document, Field};
use serde_json::{Map, Value};

use super::pod_defaults::{items, text};
use crate::strategy::{Generation, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{meta, names};

/// Requests in one claim, and alternatives in one request.
const MAX_REQUESTS: usize = 32;
const MAX_ALTERNATIVES: usize = 8;
const MAX_SELECTORS: usize = 32;

pub(crate) struct Claims;

impl Strategy for Claims {
    fn returns_deleted(&self) -> bool {
        true
    }
    fn defaults(&self, new: &mut Document) {
        default_requests(new.get_mut("spec.devices"));
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        check_claim(&At::top(new, "spec").get("devices"), &mut errors);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        same_spec(new, old)
    }
}

pub(crate) struct Templates;

impl Strategy for Templates {
    fn returns_deleted(&self) -> bool {
        true
    }
    fn defaults(&self, new: &mut Document) {
        default_requests(new.get_mut("spec.spec.devices"));
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        check_claim(&At::top(new, "spec").get("spec").get("devices"), &mut errors);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        same_spec(new, old)
    }
}

pub(crate) struct Classes;

impl Strategy for Classes {
    fn returns_deleted(&self) -> bool {
        true
    }
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        check_selectors(&At::top(new, "spec").get("selectors"), &mut errors);
        errors
    }
}

pub(crate) struct Slices;

impl Strategy for Slices {
    fn returns_deleted(&self) -> bool {
        true
    }
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let driver = spec.get("driver");
        if driver.require(&mut errors) {
            driver.reasons(&mut errors, names::dns_subdomain(driver.text()));
        }
        let pool = spec.get("pool");
        pool.get("name").require(&mut errors);
        let slices = pool.get("resourceSliceCount");
        if slices.int().unwrap_or(0) < 1 {
            errors.push(slices.invalid("must be greater than zero"));
        }
        let generation = pool.get("generation");
        if generation.int().unwrap_or(0) < 0 {
            errors.push(generation.invalid("must be greater than or equal to zero"));
        }
        let places = [
            spec.get("nodeName"),
            spec.get("nodeSelector"),
            spec.get("allNodes"),
            spec.get("perDeviceNodeSelection"),
        ];
        let set =
            places.iter().filter(|place| !place.is_empty() && place.value != &Value::Bool(false)).count();
        let shared = !spec.get("sharedCounters").is_empty();
        if set == 0 && !shared {
            errors.push(spec.required(
                "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
            ));
        } else if set > 1 {
            errors.push(spec.invalid("exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"));
        }
        let mut seen = std::collections::HashSet::new();
        for device in spec.get("devices").items() {
            let name = device.get("name");
            if name.require(&mut errors) {
                name.reasons(&mut errors, names::dns_label(name.text()));
            }
            if !seen.insert(name.text()) {
                errors.push(name.field.duplicate(name.text()));
            }
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        for path in ["spec.driver", "spec.nodeName", "spec.pool.name"] {
            errors.extend(meta::immutable(new.get(path), old.get(path), &Field::new(path)));
        }
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["spec.nodeName", "spec.driver"]
    }
}

fn same_spec(new: &Document, old: &Document) -> Errors {
    meta::immutable(new.0.get("spec"), old.0.get("spec"), &Field::new("spec")).into_iter().collect()
}

/// Exactly one device, unless the request says otherwise.
fn default_requests(devices: Option<&mut Value>) {
    let Some(Value::Object(devices)) = devices else { return };
    for request in items(devices.get_mut("requests")) {
        if let Some(Value::Object(exactly)) = request.get_mut("exactly") {
            default_count(exactly);
        }
        for alternative in items(request.get_mut("firstAvailable")) {
            default_count(alternative);
        }
    }
}

fn default_count(request: &mut Map<String, Value>) {
    text(request, "allocationMode", "ExactCount");
    let counts = request.get("allocationMode").and_then(Value::as_str) == Some("ExactCount");
    if counts && request.get("count").and_then(Value::as_i64).unwrap_or(0) == 0 {
        request.insert("count".to_owned(), 1.into());
    }
}

fn check_claim(devices: &At<'_>, errors: &mut Errors) {
    let requests = devices.get("requests");
    check_named(&requests, MAX_REQUESTS, errors);
    for request in requests.items() {
        let (exactly, alternatives) = (request.get("exactly"), request.get("firstAvailable"));
        match (exactly.is_set(), !alternatives.is_empty()) {
            (false, false) => {
                errors.push(request.required("exactly one of `exactly` or `firstAvailable` is required"));
            }
            (true, true) => errors.push(request.invalid(
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            )),
            (true, false) => check_wanted(&exactly, errors),
            (false, true) => {
                check_named(&alternatives, MAX_ALTERNATIVES, errors);
                alternatives.items().for_each(|one| check_wanted(&one, errors));
            }
        }
    }
}

fn check_named(list: &At<'_>, max: usize, errors: &mut Errors) {
    if list.len() > max {
        errors.push(list.field.too_many(list.len(), max));
    }
    let mut seen = std::collections::HashSet::new();
    for one in list.items() {
        let name = one.get("name");
        if name.require(errors) {
            name.reasons(errors, names::dns_label(name.text()));
        }
        if !seen.insert(name.text()) {
            errors.push(one.field.duplicate(name.text()));
        }
    }
}

fn check_wanted(request: &At<'_>, errors: &mut Errors) {
    let class = request.get("deviceClassName");
    if class.require(errors) {
        class.reasons(errors, names::dns_subdomain(class.text()));
    }
    check_selectors(&request.get("selectors"), errors);
    let (mode, count) = (request.get("allocationMode"), request.get("count"));
    match mode.text() {
        "All" if count.int().unwrap_or(0) != 0 => {
            errors.push(count.invalid("must not be specified when allocationMode is 'All'"));
        }
        "ExactCount" if count.int().unwrap_or(0) <= 0 => {
            errors.push(count.invalid("must be greater than zero"));
        }
        "All" | "ExactCount" => {}
        _ => errors.push(mode.unsupported(&["All", "ExactCount"])),
    }
}

fn check_selectors(selectors: &At<'_>, errors: &mut Errors) {
    if selectors.len() > MAX_SELECTORS {
        errors.push(selectors.field.too_many(selectors.len(), MAX_SELECTORS));
    }
    for selector in selectors.items() {
        let cel = selector.get("cel");
        if !cel.is_set() {
            errors.push(cel.required(""));
        } else {
            cel.get("expression").require(errors);
        }
    }
}
