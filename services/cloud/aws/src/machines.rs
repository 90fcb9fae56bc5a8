//! Machines as EC2 instances.
//!
//! An instance is found by its tags before one is made, and EC2's own client token covers the seconds in
//! which a fresh instance is not in lists yet. Where a zone has no capacity the next one is tried; should
//! that ever leave two instances of one token behind, the younger is terminated when they are next listed.

use std::net::IpAddr;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{
    BlockDeviceMapping, EbsBlockDevice, Filter, HttpTokensState, Instance, InstanceMetadataOptionsRequest,
    InstanceStateName, InstanceType, ResourceType, Tag, TagSpecification, VolumeType,
};
use base_clock::Timestamp;
use base_ids::TenantId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cloud_interface::{ClientToken, CloudError, Machine, MachineSpec, MachineState, MachineType, Tags};

use crate::Aws;
use crate::errors::{Explain, code};
use crate::names;
use crate::user_data;

/// All states but `terminated`, which EC2 shows for an hour after nothing is left.
const LEFT: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// What the configured instance types are, as EC2 says.
pub(crate) async fn types(ec2: &Client, names: &[String]) -> Result<Vec<MachineType>, CloudError> {
    let found = ec2
        .describe_instance_types()
        .set_instance_types(Some(names.iter().map(|name| InstanceType::from(name.as_str())).collect()))
        .send()
        .await
        .explain("the configured machine types")?;
    let size = |name: &String| {
        let of = found
            .instance_types()
            .iter()
            .find(|one| one.instance_type().map(InstanceType::as_str) == Some(name))?;
        let cpus = u32::try_from(of.v_cpu_info()?.default_v_cpus()?).ok()?;
        let memory_mib = u64::try_from(of.memory_info()?.size_in_mib()?).ok()?;
        Some(MachineType { name: name.clone(), cpu_millis: cpus * 1000, memory_bytes: memory_mib << 20 })
    };
    names
        .iter()
        .map(|name| {
            size(name).ok_or_else(|| CloudError::Invalid(format!("there is no instance type {name:?} here")))
        })
        .collect()
}

impl Aws {
    pub(crate) async fn create_instance(&self, spec: &MachineSpec) -> Result<Machine, CloudError> {
        let kind = self.description.machine_type(&spec.machine_type).ok_or_else(|| {
            let known: Vec<&str> =
                self.description.machine_types.iter().map(|one| one.name.as_str()).collect();
            CloudError::Invalid(format!(
                "there is no machine type {:?}; there are {}",
                spec.machine_type,
                known.join(", ")
            ))
        })?;
        let tags = names::tags(spec.cluster, &spec.client_token, &spec.name, &spec.name, &spec.tags)?;
        let script = user_data::script(spec, &self.config)?;

        let filters = [
            tag_filter(names::CLUSTER, &spec.cluster.to_string()),
            tag_filter(names::TOKEN, spec.client_token.as_str()),
        ];
        if let Some(found) = self.find(filters.into()).await?.into_iter().next() {
            return match found.name == spec.name && found.machine_type == kind.name {
                true => Ok(found),
                false => Err(CloudError::TokenUsed(format!(
                    "for the machine {} of type {}",
                    found.name, found.machine_type
                ))),
            };
        }
        let mut refusal = CloudError::Unavailable("no subnet is configured".to_owned());
        for subnet in &self.config.subnet_ids {
            match self.run_instance(spec, kind, subnet, &tags, &script).await {
                Err(error @ CloudError::Exhausted(_)) => {
                    tracing::warn!(cluster = %spec.cluster, subnet, %error, "no machine here, trying the next subnet");
                    refusal = error;
                }
                done => return done,
            }
        }
        Err(refusal)
    }

    async fn run_instance(
        &self,
        spec: &MachineSpec,
        kind: &MachineType,
        subnet: &str,
        tags: &Tags,
        script: &str,
    ) -> Result<Machine, CloudError> {
        let tagged = |kind: ResourceType| {
            TagSpecification::builder().resource_type(kind).set_tags(Some(to_tags(tags))).build()
        };
        let disk = EbsBlockDevice::builder()
            .volume_size(self.config.disk_gib)
            .volume_type(VolumeType::Gp3)
            .encrypted(true)
            .delete_on_termination(true)
            .build();
        let answer = self
            .ec2
            .run_instances()
            .min_count(1)
            .max_count(1)
            .client_token(names::run_token(spec.cluster, &spec.client_token, subnet))
            .image_id(&self.config.image_id)
            .instance_type(InstanceType::from(kind.name.as_str()))
            .subnet_id(subnet)
            .set_security_group_ids(Some(self.config.security_group_ids.clone()))
            .user_data(STANDARD.encode(script))
            .block_device_mappings(BlockDeviceMapping::builder().device_name("/dev/xvda").ebs(disk).build())
            // Pods cannot read the instance's credentials or user data: a token is needed, and it does not
            // travel a second hop.
            .metadata_options(
                InstanceMetadataOptionsRequest::builder()
                    .http_tokens(HttpTokensState::Required)
                    .http_put_response_hop_limit(1)
                    .build(),
            )
            .tag_specifications(tagged(ResourceType::Instance))
            .tag_specifications(tagged(ResourceType::Volume))
            .send()
            .await
            .explain("a new instance")?;
        let instance = answer.instances().first();
        instance
            .and_then(|instance| self.machine(instance))
            .ok_or_else(|| CloudError::Unavailable("EC2 answered without an instance".to_owned()))
    }

    pub(crate) async fn instances(&self, cluster: TenantId) -> Result<Vec<Machine>, CloudError> {
        let mut machines = self.find(vec![tag_filter(names::CLUSTER, &cluster.to_string())]).await?;
        // Twins: the oldest stays, as `find` sorts by age.
        let mut seen: Vec<ClientToken> = Vec::new();
        for machine in &mut machines {
            if machine.state == MachineState::Deleting {
                continue;
            }
            if seen.contains(&machine.client_token) {
                tracing::warn!(%cluster, instance = machine.id, "terminating a second instance of one token");
                self.terminate(&machine.id).await?;
                machine.state = MachineState::Deleting;
            }
            seen.push(machine.client_token.clone());
        }
        Ok(machines)
    }

    pub(crate) async fn terminate_instance(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        // Anything else would be refused as malformed, and is nobody's machine.
        if !id.starts_with("i-") {
            return Ok(());
        }
        let own = [
            tag_filter(names::CLUSTER, &cluster.to_string()),
            Filter::builder().name("instance-id").values(id).build(),
        ];
        match self.find(own.into()).await?.is_empty() {
            true => Ok(()),
            false => self.terminate(id).await,
        }
    }

    async fn terminate(&self, id: &str) -> Result<(), CloudError> {
        match self.ec2.terminate_instances().instance_ids(id).send().await {
            Err(error) if code(&error) == "InvalidInstanceID.NotFound" => Ok(()),
            answer => answer.explain(&format!("terminating {id}")).map(drop),
        }
    }

    /// Oldest first.
    async fn find(&self, mut filters: Vec<Filter>) -> Result<Vec<Machine>, CloudError> {
        let states = LEFT.iter().map(|state| (*state).to_owned()).collect();
        filters.push(Filter::builder().name("instance-state-name").set_values(Some(states)).build());
        let mut pages = self.ec2.describe_instances().set_filters(Some(filters)).into_paginator().send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.explain("the list of instances")?;
            let instances = page.reservations().iter().flat_map(|reservation| reservation.instances());
            found.extend(instances.filter_map(|instance| self.machine(instance)));
        }
        found.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(found)
    }

    /// `None` for what somebody tagged by hand so that it cannot be ours.
    fn machine(&self, instance: &Instance) -> Option<Machine> {
        let id = instance.instance_id()?.to_owned();
        let tags = from_tags(instance.tags());
        let zone = instance.placement().and_then(|at| at.availability_zone()).unwrap_or_default().to_owned();
        let addresses: Vec<IpAddr> = [instance.private_ip_address(), instance.public_ip_address()]
            .into_iter()
            .flatten()
            .filter_map(|address| address.parse().ok())
            .collect();
        let reason = instance.state_reason().and_then(|reason| reason.message()).unwrap_or_default();
        let state = instance.state().and_then(|state| state.name()).cloned();
        Some(Machine {
            cluster: tags.get(names::CLUSTER)?.parse().ok()?,
            client_token: tags.get(names::TOKEN)?.parse().ok()?,
            name: tags.get(names::NAME)?.clone(),
            machine_type: instance.instance_type().map(|kind| kind.as_str().to_owned()).unwrap_or_default(),
            provider_id: format!("aws:///{zone}/{id}"),
            state: state_of(state.as_ref()),
            addresses,
            zone,
            region: self.config.region.clone(),
            message: reason.to_owned(),
            created_at: instance.launch_time().map_or(Timestamp::UNIX_EPOCH, |at| from_aws(*at)),
            tags: names::given(&tags),
            id,
        })
    }
}

fn state_of(state: Option<&InstanceStateName>) -> MachineState {
    match state {
        Some(InstanceStateName::Running) => MachineState::Running,
        Some(InstanceStateName::ShuttingDown | InstanceStateName::Terminated) => MachineState::Deleting,
        // Nobody here stops instances. Whoever did meant it, and the pool gets another one.
        Some(InstanceStateName::Stopping | InstanceStateName::Stopped) => MachineState::Failed,
        _ => MachineState::Pending,
    }
}

pub(crate) fn tag_filter(key: &str, value: &str) -> Filter {
    // `*`, `?` and `\` are patterns to EC2.
    let mut exact = String::new();
    for character in value.chars() {
        if "*?\\".contains(character) {
            exact.push('\\');
        }
        exact.push(character);
    }
    Filter::builder().name(format!("tag:{key}")).values(exact).build()
}

pub(crate) fn to_tags(tags: &Tags) -> Vec<Tag> {
    tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}

pub(crate) fn from_tags(tags: &[Tag]) -> Tags {
    let pair = |tag: &Tag| Some((tag.key()?.to_owned(), tag.value().unwrap_or_default().to_owned()));
    tags.iter().filter_map(pair).collect()
}

pub(crate) fn from_aws(at: aws_sdk_ec2::primitives::DateTime) -> Timestamp {
    at.to_millis().ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_takes_no_patterns() {
        for (given, sent) in [("plain", "plain"), ("a*b?", "a\\*b\\?"), ("\\", "\\\\")] {
            assert_eq!(tag_filter("k", given).values(), [sent]);
        }
    }

    #[test]
    fn every_state_is_one_of_ours() {
        for (theirs, ours) in [
            (Some(InstanceStateName::Pending), MachineState::Pending),
            (Some(InstanceStateName::Running), MachineState::Running),
            (Some(InstanceStateName::ShuttingDown), MachineState::Deleting),
            (Some(InstanceStateName::Stopped), MachineState::Failed),
            (None, MachineState::Pending),
        ] {
            assert_eq!(state_of(theirs.as_ref()), ours, "{theirs:?}");
        }
    }
}
