//! ResourceQuotas: what a namespace uses of what it may.
//!
//! Admission adds to `used` as objects are made; this recounts, so that what is deleted is given back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api_machinery::{Object, Quantity};
use api_reconcile::{Action, Plan};
use serde_json::{Map, Value, json};

use crate::catalog::{Catalog, ResourceId, res};
use crate::controller::{Change, Controller, Key, News, Now};
use crate::convert;
use crate::world::World;

#[derive(Default)]
pub struct Quotas {
    /// Counts of resources whose objects aren't kept here, as the API just gave them.
    counted: HashMap<Key, HashMap<String, i64>>,
}

impl Controller for Quotas {
    fn name(&self) -> &'static str {
        "resourcequota-controller"
    }
    /// Everything can be counted; kinds without a quota in their namespace are passed over below.
    fn resources(&self) -> &'static [ResourceId] {
        &[]
    }
    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::QUOTAS {
            wake(Key::of(res::QUOTAS, change.object));
            return;
        }
        if world.count(res::QUOTAS) == 0 {
            return;
        }
        let Some(namespace) = change.object.header.namespace.as_deref() else { return };
        // Numbers of objects change with their coming and going; amounts only where there are amounts.
        let amounts = [res::PODS, res::SERVICES, res::CLAIMS].contains(&change.of);
        if change.old.is_some() && change.kind == crate::controller::ChangeKind::Changed && !amounts {
            return;
        }
        for quota in world.within(res::QUOTAS, namespace) {
            wake(Key::of(res::QUOTAS, quota));
        }
    }

    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let counted = self.counted.remove(key).unwrap_or_default();
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let resource = world.catalog().get(res::QUOTAS);
        let Some(mut document) = convert::document(resource, object) else { return Plan::nothing() };
        if !world.is_synced(res::PODS) || !world.is_synced(res::SERVICES) || !world.is_synced(res::CLAIMS) {
            return Plan { actions: Vec::new(), again_after: Some(std::time::Duration::from_secs(1)) };
        }
        let hard = document.get("spec.hard").cloned().unwrap_or(json!({}));
        let scopes = Scopes::of(&document);
        let mut used = Map::new();
        let mut questions: Vec<Action> = Vec::new();
        let pods: Vec<Value> = world
            .within(res::PODS, &key.namespace)
            .filter_map(|pod| pod.to_document().ok())
            .map(|pod| pod.into_value())
            .filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
            .filter(|pod| scopes.select(pod))
            .collect();
        for name in hard.as_object().into_iter().flatten().map(|(name, _)| name) {
            let amount = match name.as_str() {
                "pods" | "count/pods" => Some(Quantity::whole(pods.len() as i64)),
                _ if is_compute(name) => {
                    Some(pods.iter().map(|pod| compute(pod, name)).fold(Quantity::default(), Quantity::plus))
                }
                "services.nodeports" | "services.loadbalancers" => {
                    Some(services(world, &key.namespace, name))
                }
                "requests.storage" => Some(storage(world, &key.namespace)),
                _ => match counted_resource(world.catalog(), name) {
                    Some(of) => match counted.get(&world.catalog().get(of).gvr.group_resource()) {
                        Some(count) => Some(Quantity::whole(*count)),
                        None => {
                            let of = world.catalog().get(of).gvr.clone();
                            questions.push(Action::Count { of, namespace: key.namespace.to_string() });
                            None
                        }
                    },
                    None => None,
                },
            };
            if let Some(amount) = amount {
                used.insert(name.clone(), json!(amount.to_string()));
            }
        }
        if !questions.is_empty() && counted.is_empty() {
            return Plan::of(questions);
        }
        let same = document.get("status.hard") == Some(&hard)
            && document
                .get("status.used")
                .and_then(Value::as_object)
                .is_some_and(|known| same_amounts(known, &used));
        if same {
            return Plan::nothing();
        }
        document.set("status.hard", hard);
        document.set("status.used", used);
        Plan::of(vec![Action::Update {
            of: resource.gvr.clone(),
            subresource: Some("status"),
            object: document,
        }])
    }

    fn learn(&mut self, key: &Key, news: &News) {
        if let News::Counted { resource, count } = news {
            self.counted.entry(key.clone()).or_default().insert(resource.clone(), *count);
        }
    }
}

struct Scopes(Vec<(String, String, Vec<String>)>);

impl Scopes {
    fn of(quota: &api_machinery::Document) -> Scopes {
        let plain = quota.get_array("spec.scopes").iter().filter_map(Value::as_str);
        let mut scopes: Vec<_> = plain.map(|one| (one.to_owned(), "Exists".to_owned(), Vec::new())).collect();
        for one in quota.get_array("spec.scopeSelector.matchExpressions") {
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            let values = one["values"].as_array().into_iter().flatten();
            let values = values.filter_map(|value| value.as_str().map(str::to_owned)).collect();
            scopes.push((text("scopeName"), text("operator"), values));
        }
        Scopes(scopes)
    }
    fn select(&self, pod: &Value) -> bool {
        self.0.iter().all(|(scope, operator, values)| match scope.as_str() {
            "Terminating" => pod["spec"]["activeDeadlineSeconds"].as_i64().is_some(),
            "NotTerminating" => pod["spec"]["activeDeadlineSeconds"].as_i64().is_none(),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "PriorityClass" => {
                let class = pod["spec"]["priorityClassName"].as_str();
                let listed = class.is_some_and(|class| values.iter().any(|one| one == class));
                match operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "DoesNotExist" => class.is_none(),
                    _ => class.is_some(),
                }
            }
            "CrossNamespacePodAffinity" => false,
            _ => true,
        })
    }
}

fn is_best_effort(pod: &Value) -> bool {
    let lists = [&pod["spec"]["containers"], &pod["spec"]["initContainers"]];
    let containers = lists.into_iter().flat_map(|list| list.as_array().into_iter().flatten());
    let asks = |container: &Value| {
        ["requests", "limits"].iter().any(|kind| {
            let amounts = container["resources"][*kind].as_object();
            amounts.is_some_and(|amounts| amounts.contains_key("cpu") || amounts.contains_key("memory"))
        })
    };
    !containers.into_iter().any(asks)
}

/// `cpu` and the like mean requests.
fn parts(name: &str) -> (&'static str, &str) {
    match name.split_once('.') {
        Some(("requests", resource)) => ("requests", resource),
        Some(("limits", resource)) => ("limits", resource),
        _ => ("requests", name),
    }
}

fn is_compute(name: &str) -> bool {
    let (_, resource) = parts(name);
    matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-")
        || (name.starts_with("requests.") && resource.contains('/'))
}

fn compute(pod: &Value, name: &str) -> Quantity {
    let (kind, resource) = parts(name);
    let of = |container: &Value| {
        let text = container["resources"][kind][resource].as_str();
        text.and_then(|text| Quantity::parse(text).ok()).unwrap_or_default()
    };
    let list = |field: &str| pod["spec"][field].as_array().cloned().unwrap_or_default();
    let mut total = list("containers").iter().map(of).fold(Quantity::default(), Quantity::plus);
    let (mut sidecars, mut starting) = (Quantity::default(), Quantity::default());
    for container in list("initContainers") {
        if container["restartPolicy"] == "Always" {
            sidecars = sidecars.plus(of(&container));
            total = total.plus(of(&container));
            starting = starting.max(sidecars);
        } else {
            starting = starting.max(sidecars.plus(of(&container)));
        }
    }
    let overhead = pod["spec"]["overhead"][resource].as_str().and_then(|text| Quantity::parse(text).ok());
    total.max(starting).plus(overhead.unwrap_or_default())
}

fn services(world: &World, namespace: &str, name: &str) -> Quantity {
    let mut count = 0;
    for service in world.within(res::SERVICES, namespace) {
        let kind = service.field("spec.type").unwrap_or_default();
        let balanced = kind == "LoadBalancer";
        if name == "services.loadbalancers" {
            count += i64::from(balanced);
        } else if balanced || kind == "NodePort" {
            let without = service.field("spec.allocateLoadBalancerNodePorts").is_some_and(|one| one == false);
            let ports =
                service.field("spec.ports").and_then(|ports| ports.as_array().cloned()).unwrap_or_default();
            let given = ports
                .iter()
                .filter(|port| !(balanced && without) || port["nodePort"].as_i64().unwrap_or(0) > 0);
            count += given.count() as i64;
        }
    }
    Quantity::whole(count)
}

fn storage(world: &World, namespace: &str) -> Quantity {
    let amount = |claim: &Arc<Object>| {
        let text = claim.field("spec.resources.requests.storage")?;
        Quantity::parse(text.as_str()?).ok()
    };
    world.within(res::CLAIMS, namespace).filter_map(amount).fold(Quantity::default(), Quantity::plus)
}

fn counted_resource(catalog: &Catalog, name: &str) -> Option<ResourceId> {
    let name = match (name.strip_prefix("count/"), name) {
        (Some(counted), _) => counted,
        (
            None,
            "services"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "replicationcontrollers"
            | "resourcequotas",
        ) => name,
        _ => return None,
    };
    catalog.ids().find(|id| {
        let resource = catalog.get(*id);
        resource.namespaced && resource.gvr.group_resource() == name
    })
}

/// Admission may have written the same amount in another form.
fn same_amounts(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let read = |amounts: &Map<String, Value>| -> BTreeMap<String, Option<Quantity>> {
        let one = |value: &Value| value.as_str().and_then(|text| Quantity::parse(text).ok());
        amounts.iter().map(|(name, value)| (name.clone(), one(value))).collect()
    };
    read(a) == read(b)
}
