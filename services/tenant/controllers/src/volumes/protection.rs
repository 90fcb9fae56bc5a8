//! Keeps a claim, a volume or a VolumeAttributesClass from vanishing while it is in use: lifts its finalizer
//! once it is being deleted and nobody needs it, and puts the finalizer on where it is missing.

use api_machinery::Object;
use api_reconcile::{Action, Plan};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::world::World;

/// What is protected.
#[derive(Debug, Clone, Copy)]
enum Guarded {
    /// By pods that are on a node.
    Claims,
    /// By the claim it is bound to.
    Volumes,
    /// By claims and volumes that name it.
    AttributesClasses,
}

pub struct Protection(Guarded);

impl Protection {
    pub fn of_claims() -> Protection {
        Protection(Guarded::Claims)
    }
    pub fn of_volumes() -> Protection {
        Protection(Guarded::Volumes)
    }
    pub fn of_attributes_classes() -> Protection {
        Protection(Guarded::AttributesClasses)
    }

    fn guarded(&self) -> ResourceId {
        match self.0 {
            Guarded::Claims => res::CLAIMS,
            Guarded::Volumes => res::VOLUMES,
            Guarded::AttributesClasses => res::ATTRIBUTES_CLASSES,
        }
    }
    fn finalizer(&self) -> &'static str {
        match self.0 {
            Guarded::Claims => "kubernetes.io/pvc-protection",
            Guarded::Volumes => "kubernetes.io/pv-protection",
            Guarded::AttributesClasses => "kubernetes.io/vac-protection",
        }
    }
    fn in_use(&self, world: &World, object: &Object) -> bool {
        let name = &*object.header.name;
        match self.0 {
            Guarded::Claims => {
                let namespace = object.header.namespace.as_deref().unwrap_or_default();
                // A kubelet starts no pod whose claim is being deleted, so only pods on a node count.
                world
                    .within(res::PODS, namespace)
                    .filter(|pod| world.node_of(pod).is_some())
                    .any(|pod| claims_of(pod).iter().any(|claim| claim == name))
            }
            Guarded::Volumes => object.field("status.phase").is_some_and(|phase| phase == "Bound"),
            Guarded::AttributesClasses => [res::CLAIMS, res::VOLUMES]
                .into_iter()
                .flat_map(|of| world.all(of))
                .any(|user| classes_of(user).iter().any(|class| class == name)),
        }
    }
}

impl Controller for Protection {
    fn name(&self) -> &'static str {
        match self.0 {
            Guarded::Claims => "pvc-protection-controller",
            Guarded::Volumes => "pv-protection-controller",
            Guarded::AttributesClasses => "volumeattributesclass-protection-controller",
        }
    }
    fn resources(&self) -> &'static [ResourceId] {
        match self.0 {
            Guarded::Claims => &[res::CLAIMS, res::PODS],
            Guarded::Volumes => &[res::VOLUMES],
            Guarded::AttributesClasses => &[res::ATTRIBUTES_CLASSES, res::CLAIMS, res::VOLUMES],
        }
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == self.guarded() {
            let header = &change.object.header;
            let protected = header.finalizers.iter().any(|one| &**one == self.finalizer());
            if change.kind != ChangeKind::Gone && protected == header.deleting_since.is_some() {
                wake(Key::of(change.of, change.object));
            }
            return;
        }
        // Who used something may use it no longer, by going or by changing.
        let users = change.old.into_iter().chain((change.kind == ChangeKind::Gone).then_some(change.object));
        for user in users {
            let (namespace, used) = match self.0 {
                Guarded::Claims => (user.header.namespace.as_deref().unwrap_or_default(), claims_of(user)),
                Guarded::Volumes => continue,
                Guarded::AttributesClasses => ("", classes_of(user)),
            };
            for name in used {
                let waits = world
                    .get(self.guarded(), namespace, &name)
                    .is_some_and(|object| object.header.deleting_since.is_some());
                if waits {
                    wake(Key::new(self.guarded(), namespace, &name));
                }
            }
        }
    }

    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let deleting = object.header.deleting_since.is_some();
        let mut finalizers: Vec<&str> = object.header.finalizers.iter().map(|one| &**one).collect();
        let protected = finalizers.contains(&self.finalizer());
        if protected != deleting || (deleting && self.in_use(world, object)) {
            return Plan::nothing();
        }
        if deleting {
            finalizers.retain(|one| *one != self.finalizer());
        } else {
            finalizers.push(self.finalizer());
        }
        let resource = world.catalog().get(key.of);
        let Some(mut document) = convert::document(resource, object) else { return Plan::nothing() };
        document.set("metadata.finalizers", serde_json::json!(finalizers));
        Plan::of(vec![Action::Update { of: resource.gvr.clone(), subresource: None, object: document }])
    }
}

/// Names of the claims a pod uses, generic ephemeral volumes included.
fn claims_of(pod: &Object) -> Vec<String> {
    let volumes = pod.field("spec.volumes").unwrap_or_default();
    let volumes = volumes.as_array().into_iter().flatten();
    volumes
        .filter_map(|volume| match volume["persistentVolumeClaim"]["claimName"].as_str() {
            Some(claim) => Some(claim.to_owned()),
            None if volume["ephemeral"].is_object() => {
                Some(format!("{}-{}", pod.header.name, volume["name"].as_str()?))
            }
            None => None,
        })
        .collect()
}

/// Names of the attributes classes a claim or a volume has, wants, or is on its way to.
fn classes_of(user: &Object) -> Vec<String> {
    let paths = [
        "spec.volumeAttributesClassName",
        "status.currentVolumeAttributesClassName",
        "status.modifyVolumeStatus.targetVolumeAttributesClassName",
    ];
    let names = paths.iter().filter_map(|path| user.field(path)?.as_str().map(str::to_owned));
    names.filter(|name| !name.is_empty()).collect()
}
