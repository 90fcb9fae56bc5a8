//! Balancers as Network Load Balancers.
//!
//! One balancer is a security group (the source ranges), an NLB, and for each listener a target group with
//! the nodes' addresses. The security group is made first and deleted last, and carries the tags: as long
//! as anything is left, it is there to be listed, with what is left beside it. Everything else has a name
//! computed from cluster and token, so a call that was cut short is taken up where it ended.
//!
//! Targets are addresses rather than instances, so that nodes that joined by themselves are served too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aws_sdk_ec2::types::{Filter, IpPermission, IpRange, Ipv6Range, ResourceType, TagSpecification};
use aws_sdk_elasticloadbalancingv2::config::Builder;
use aws_sdk_elasticloadbalancingv2::config::retry::RetryConfig;
use aws_sdk_elasticloadbalancingv2::types::{
    Action, ActionTypeEnum, LoadBalancer, LoadBalancerSchemeEnum, LoadBalancerStateEnum,
    LoadBalancerTypeEnum, ProtocolEnum, Tag, TargetDescription, TargetGroup, TargetHealthDescription,
    TargetHealthStateEnum, TargetTypeEnum,
};
use base_clock::Timestamp;
use base_ids::TenantId;
use cloud_interface::{
    Balancer, BalancerSpec, BalancerState, ClientToken, CloudError, HealthCheck, Protocol, Tags, Target,
};

use crate::Aws;
use crate::config::Scheme;
use crate::errors::{Explain, code};
use crate::machines::{from_tags, tag_filter, to_tags};
use crate::names;

/// Targets in one registration; ELBv2 takes more, moderately sized requests fail more gracefully.
const TARGETS_PER_CALL: usize = 100;

/// Times a target group is looked at again in one call.
const TARGET_ROUNDS: usize = 3;

/// Everybody.
const ANYWHERE: &str = "0.0.0.0/0";

/// A listener as NLB has it: TCP and UDP on one port are one listener there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Door {
    port: u16,
    protocol: DoorProtocol,
    node_port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DoorProtocol {
    Tcp,
    Udp,
    Both,
}

impl DoorProtocol {
    fn aws(self) -> ProtocolEnum {
        match self {
            DoorProtocol::Tcp => ProtocolEnum::Tcp,
            DoorProtocol::Udp => ProtocolEnum::Udp,
            DoorProtocol::Both => ProtocolEnum::TcpUdp,
        }
    }
    fn letter(self) -> char {
        match self {
            DoorProtocol::Tcp => 't',
            DoorProtocol::Udp => 'u',
            DoorProtocol::Both => 'b',
        }
    }
    /// As security groups call them.
    fn transports(self) -> &'static [&'static str] {
        match self {
            DoorProtocol::Tcp => &["tcp"],
            DoorProtocol::Udp => &["udp"],
            DoorProtocol::Both => &["tcp", "udp"],
        }
    }
}

/// The listeners asked for, as NLB has them.
fn doors(spec: &BalancerSpec) -> Result<Vec<Door>, CloudError> {
    let mut doors: BTreeMap<u16, Door> = BTreeMap::new();
    for listener in &spec.listeners {
        let protocol = match listener.protocol {
            Protocol::Tcp => DoorProtocol::Tcp,
            Protocol::Udp => DoorProtocol::Udp,
        };
        let door = Door { port: listener.port, protocol, node_port: listener.node_port };
        match doors.get_mut(&listener.port) {
            None => drop(doors.insert(listener.port, door)),
            Some(other) if other.node_port == door.node_port && other.protocol != door.protocol => {
                other.protocol = DoorProtocol::Both;
            }
            Some(other) => {
                return Err(CloudError::Invalid(format!(
                    "port {} leads to the node ports {} and {}; a network load balancer takes one",
                    door.port, other.node_port, door.node_port
                )));
            }
        }
    }
    match doors.is_empty() {
        true => Err(CloudError::Invalid("a balancer needs a port".to_owned())),
        false => Ok(doors.into_values().collect()),
    }
}

/// What the security group should admit: (transport, port, range).
fn admitted(doors: &[Door], ranges: &[String]) -> Result<BTreeSet<(String, u16, String)>, CloudError> {
    let anywhere = [ANYWHERE.to_owned()];
    let ranges = if ranges.is_empty() { &anywhere[..] } else { ranges };
    let mut rules = BTreeSet::new();
    for range in ranges {
        if !is_cidr(range) {
            return Err(CloudError::Invalid(format!("{range:?} is no address range")));
        }
        for door in doors {
            for transport in door.protocol.transports() {
                rules.insert(((*transport).to_owned(), door.port, range.clone()));
            }
        }
    }
    Ok(rules)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
        (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
        _ => false,
    }
}

/// A security group of ours and what its tags say.
struct Anchor {
    group_id: String,
    name: String,
    cluster: TenantId,
    token: ClientToken,
    tags: Tags,
    rules: BTreeSet<(String, u16, String)>,
}

impl Aws {
    pub(crate) async fn ensure_nlb(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError> {
        if let Some(address) = spec.wanted_address {
            return Err(CloudError::Invalid(format!(
                "AWS chooses a balancer's addresses; {address} cannot be had"
            )));
        }
        let doors = doors(spec)?;
        let wanted_rules = admitted(&doors, &spec.source_ranges)?;
        let name = names::balancer(spec.cluster, &spec.client_token);
        let tags = self.balancer_tags(spec)?;

        let anchor = match self.anchor(spec.cluster, &name).await? {
            Some(anchor) => anchor,
            None => self.create_anchor(spec, &name, &tags).await?,
        };
        self.sync_rules(&anchor, &wanted_rules).await?;
        let nlb = match self.nlb(&name).await? {
            Some(nlb) => nlb,
            None => self.create_nlb(&name, &anchor, &tags).await?,
        };
        let arn = nlb
            .load_balancer_arn()
            .ok_or_else(|| CloudError::Unavailable("ELB answered without an ARN".to_owned()))?;
        let mut groups = BTreeMap::new();
        for door in &doors {
            let group = self.ensure_target_group(&name, door, &spec.health_check, &tags).await?;
            self.sync_targets(&group, door, &spec.targets).await?;
            groups.insert((door.port, door.protocol), group);
        }
        self.sync_listeners(arn, &groups).await?;
        // After the listeners: a target group in use cannot be deleted.
        let kept: BTreeSet<&str> = groups.values().map(String::as_str).collect();
        self.delete_target_groups(&name, &kept).await?;
        Ok(balancer(&anchor, Some(&nlb)))
    }

    pub(crate) async fn nlbs(&self, cluster: TenantId) -> Result<Vec<Balancer>, CloudError> {
        let mut found = Vec::new();
        for anchor in self.anchors(vec![tag_filter(names::CLUSTER, &cluster.to_string())]).await? {
            let nlb = self.nlb(&anchor.name).await?;
            found.push(balancer(&anchor, nlb.as_ref()));
        }
        Ok(found)
    }

    pub(crate) async fn delete_nlb(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        let Some(anchor) = self.anchor(cluster, id).await? else { return Ok(()) };
        let _one_at_a_time = self.locks.lock(cluster, anchor.token.as_str()).await;
        if let Some(arn) = self.nlb(id).await?.as_ref().and_then(LoadBalancer::load_balancer_arn) {
            self.elb
                .delete_load_balancer()
                .load_balancer_arn(arn)
                .send()
                .await
                .explain("deleting the balancer")?;
        }
        self.delete_target_groups(id, &BTreeSet::new()).await?;
        // Refused while the NLB's interfaces go, which takes AWS a minute; the caller asks again.
        match self.ec2.delete_security_group().group_id(&anchor.group_id).send().await {
            Err(error) if code(&error) == "InvalidGroup.NotFound" => Ok(()),
            answer => answer.explain("deleting the balancer's security group").map(drop),
        }
    }

    fn balancer_tags(&self, spec: &BalancerSpec) -> Result<Tags, CloudError> {
        let mut tags = names::tags(spec.cluster, &spec.client_token, &spec.name, &spec.name, &spec.tags)?;
        tags.insert(names::CREATED.to_owned(), self.clock.now().as_millisecond().to_string());
        Ok(tags)
    }

    // ---- the security group ----

    async fn anchor(&self, cluster: TenantId, name: &str) -> Result<Option<Anchor>, CloudError> {
        let filters = vec![
            tag_filter(names::CLUSTER, &cluster.to_string()),
            Filter::builder().name("group-name").values(name).build(),
        ];
        Ok(self.anchors(filters).await?.into_iter().next())
    }

    async fn anchors(&self, mut filters: Vec<Filter>) -> Result<Vec<Anchor>, CloudError> {
        filters.push(Filter::builder().name("vpc-id").values(&self.vpc_id).build());
        let mut pages =
            self.ec2.describe_security_groups().set_filters(Some(filters)).into_paginator().send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.explain("the list of security groups")?;
            for group in page.security_groups() {
                let tags = from_tags(group.tags());
                let ours = || {
                    let cluster: TenantId = tags.get(names::CLUSTER)?.parse().ok()?;
                    let token: ClientToken = tags.get(names::TOKEN)?.parse().ok()?;
                    Some((group.group_id()?.to_owned(), group.group_name()?.to_owned(), cluster, token))
                };
                let Some((group_id, name, cluster, token)) = ours() else { continue };
                if name == names::balancer(cluster, &token) {
                    let rules = rules_of(group.ip_permissions());
                    found.push(Anchor { group_id, name, cluster, token, tags, rules });
                }
            }
        }
        Ok(found)
    }

    async fn create_anchor(
        &self,
        spec: &BalancerSpec,
        name: &str,
        tags: &Tags,
    ) -> Result<Anchor, CloudError> {
        let made = self
            .ec2
            .create_security_group()
            .group_name(name)
            .description("Who may connect to a balancer of a Kubernetes Service")
            .vpc_id(&self.vpc_id)
            .tag_specifications(
                TagSpecification::builder()
                    .resource_type(ResourceType::SecurityGroup)
                    .set_tags(Some(to_tags(tags)))
                    .build(),
            )
            .send()
            .await;
        let group_id = match made {
            Ok(made) => made.group_id().unwrap_or_default().to_owned(),
            // Made a moment ago by a call whose answer was lost, and not in lists yet.
            Err(error) if code(&error) == "InvalidGroup.Duplicate" => {
                return Err(CloudError::Unavailable("the balancer's security group appears".to_owned()));
            }
            Err(error) => return Err(error).explain("a security group for the balancer"),
        };
        Ok(Anchor {
            group_id,
            name: name.to_owned(),
            cluster: spec.cluster,
            token: spec.client_token.clone(),
            tags: tags.clone(),
            rules: BTreeSet::new(),
        })
    }

    async fn sync_rules(
        &self,
        anchor: &Anchor,
        wanted: &BTreeSet<(String, u16, String)>,
    ) -> Result<(), CloudError> {
        let (missing, surplus): (Vec<_>, Vec<_>) =
            (wanted.difference(&anchor.rules).collect(), anchor.rules.difference(wanted).collect());
        if !missing.is_empty() {
            let asked = self.ec2.authorize_security_group_ingress().group_id(&anchor.group_id);
            match asked.set_ip_permissions(Some(permissions(&missing))).send().await {
                Err(error) if code(&error) == "InvalidPermission.Duplicate" => {}
                answer => drop(answer.explain("who may connect")?),
            }
        }
        if !surplus.is_empty() {
            let asked = self.ec2.revoke_security_group_ingress().group_id(&anchor.group_id);
            match asked.set_ip_permissions(Some(permissions(&surplus))).send().await {
                Err(error) if code(&error) == "InvalidPermission.NotFound" => {}
                answer => drop(answer.explain("who may connect")?),
            }
        }
        Ok(())
    }

    // ---- the NLB ----

    async fn nlb(&self, name: &str) -> Result<Option<LoadBalancer>, CloudError> {
        match self.elb.describe_load_balancers().names(name).send().await {
            Err(error) if code(&error) == "LoadBalancerNotFound" => Ok(None),
            answer => Ok(answer.explain("the balancer")?.load_balancers().first().cloned()),
        }
    }

    async fn create_nlb(&self, name: &str, anchor: &Anchor, tags: &Tags) -> Result<LoadBalancer, CloudError> {
        let scheme = match self.config.balancer_scheme {
            Scheme::InternetFacing => LoadBalancerSchemeEnum::InternetFacing,
            Scheme::Internal => LoadBalancerSchemeEnum::Internal,
        };
        let mut groups = vec![anchor.group_id.clone()];
        groups.extend(self.config.balancer_security_group_id.clone());
        let made = self
            .elb
            .create_load_balancer()
            .name(name)
            .r#type(LoadBalancerTypeEnum::Network)
            .scheme(scheme)
            .set_subnets(Some(self.config.subnet_ids.clone()))
            .set_security_groups(Some(groups))
            .set_tags(Some(elb_tags(tags)))
            .customize()
            .config_override(once())
            .send()
            .await
            .explain("a new balancer")?;
        made.load_balancers()
            .first()
            .cloned()
            .ok_or_else(|| CloudError::Unavailable("ELB answered without a balancer".to_owned()))
    }

    /// Listeners with their target groups: wanted ones are made or changed, others deleted.
    async fn sync_listeners(
        &self,
        balancer: &str,
        wanted: &BTreeMap<(u16, DoorProtocol), String>,
    ) -> Result<(), CloudError> {
        let mut pages = self.elb.describe_listeners().load_balancer_arn(balancer).into_paginator().send();
        let mut kept = BTreeSet::new();
        while let Some(page) = pages.next().await {
            for listener in page.explain("the listeners")?.listeners() {
                let Some(arn) = listener.listener_arn() else { continue };
                let door = wanted.keys().find(|(port, protocol)| {
                    listener.port() == Some(i32::from(*port)) && listener.protocol() == Some(&protocol.aws())
                });
                let Some(door) = door else {
                    self.elb
                        .delete_listener()
                        .listener_arn(arn)
                        .send()
                        .await
                        .explain("deleting a listener")?;
                    continue;
                };
                kept.insert(*door);
                let leads_to = listener.default_actions().first().and_then(Action::target_group_arn);
                if leads_to != Some(wanted[door].as_str()) {
                    let change =
                        self.elb.modify_listener().listener_arn(arn).default_actions(forward(&wanted[door]));
                    change.send().await.explain("changing a listener")?;
                }
            }
        }
        for (door, group) in wanted.iter().filter(|(door, _)| !kept.contains(door)) {
            let (port, protocol) = *door;
            self.elb
                .create_listener()
                .load_balancer_arn(balancer)
                .port(i32::from(port))
                .protocol(protocol.aws())
                .default_actions(forward(group))
                .customize()
                .config_override(once())
                .send()
                .await
                .explain("a new listener")?;
        }
        Ok(())
    }

    // ---- target groups ----

    /// The ARN of the group behind `door`, with its health check as asked for.
    async fn ensure_target_group(
        &self,
        balancer: &str,
        door: &Door,
        check: &HealthCheck,
        tags: &Tags,
    ) -> Result<String, CloudError> {
        let name = names::target_group(balancer, door.protocol.letter(), door.port);
        let check = NlbCheck::of(check);
        if let Some(group) = self.target_group(&name).await? {
            let arn = group.target_group_arn().unwrap_or_default().to_owned();
            if !check.is_in(&group) {
                self.elb
                    .modify_target_group()
                    .target_group_arn(&arn)
                    .health_check_protocol(check.protocol())
                    .health_check_port(check.port.to_string())
                    .set_health_check_path(check.path.clone())
                    .health_check_interval_seconds(check.interval_seconds)
                    .health_check_timeout_seconds(check.timeout_seconds)
                    .healthy_threshold_count(check.healthy_after)
                    .unhealthy_threshold_count(check.unhealthy_after)
                    .send()
                    .await
                    .explain("changing the health check")?;
            }
            return Ok(arn);
        }
        let made = self
            .elb
            .create_target_group()
            .name(&name)
            .protocol(door.protocol.aws())
            .port(i32::from(door.node_port))
            .vpc_id(&self.vpc_id)
            .target_type(TargetTypeEnum::Ip)
            .health_check_protocol(check.protocol())
            .health_check_port(check.port.to_string())
            .set_health_check_path(check.path.clone())
            .health_check_interval_seconds(check.interval_seconds)
            .health_check_timeout_seconds(check.timeout_seconds)
            .healthy_threshold_count(check.healthy_after)
            .unhealthy_threshold_count(check.unhealthy_after)
            .set_tags(Some(elb_tags(tags)))
            .send()
            .await
            .explain("a new target group")?;
        let arn = made.target_groups().first().and_then(TargetGroup::target_group_arn);
        arn.map(ToOwned::to_owned)
            .ok_or_else(|| CloudError::Unavailable("ELB answered without a target group".to_owned()))
    }

    async fn target_group(&self, name: &str) -> Result<Option<TargetGroup>, CloudError> {
        match self.elb.describe_target_groups().names(name).send().await {
            Err(error) if code(&error) == "TargetGroupNotFound" => Ok(None),
            answer => Ok(answer.explain("the target group")?.target_groups().first().cloned()),
        }
    }

    /// New targets come before old ones go. What went may have taken a new one with it, where a target is
    /// known by its address alone and only its port changed; so the list is read again after a removal.
    async fn sync_targets(&self, group: &str, door: &Door, targets: &[Target]) -> Result<(), CloudError> {
        let wanted: BTreeSet<(String, i32)> =
            targets.iter().map(|target| (target.address.to_string(), i32::from(door.node_port))).collect();
        let within: BTreeSet<String> = targets
            .iter()
            .filter(|target| target.machine_id.is_some())
            .map(|target| target.address.to_string())
            .collect();
        let describe = |(address, port): &(String, i32)| {
            let target = TargetDescription::builder().id(address).port(*port);
            // Addresses outside the VPC have no zone of their own.
            let target = if within.contains(address) { target } else { target.availability_zone("all") };
            target.build()
        };
        for _ in 0..TARGET_ROUNDS {
            let registered = self.registered(group).await?;
            let missing: Vec<_> = wanted.difference(&registered).map(describe).collect();
            for some in missing.chunks(TARGETS_PER_CALL) {
                let call =
                    self.elb.register_targets().target_group_arn(group).set_targets(Some(some.to_vec()));
                call.send().await.explain("adding targets")?;
            }
            let surplus: Vec<_> = registered
                .difference(&wanted)
                .map(|(address, port)| TargetDescription::builder().id(address).port(*port).build())
                .collect();
            for some in surplus.chunks(TARGETS_PER_CALL) {
                let call =
                    self.elb.deregister_targets().target_group_arn(group).set_targets(Some(some.to_vec()));
                call.send().await.explain("removing targets")?;
            }
            if surplus.is_empty() {
                return Ok(());
            }
        }
        Err(CloudError::Unavailable("the balancer's targets are still changing".to_owned()))
    }

    async fn registered(&self, group: &str) -> Result<BTreeSet<(String, i32)>, CloudError> {
        let health =
            self.elb.describe_target_health().target_group_arn(group).send().await.explain("the targets")?;
        let is_leaving = |one: &TargetHealthDescription| {
            one.target_health().and_then(|health| health.state()) == Some(&TargetHealthStateEnum::Draining)
        };
        Ok(health
            .target_health_descriptions()
            .iter()
            .filter(|one| !is_leaving(one))
            .filter_map(|one| Some((one.target()?.id()?.to_owned(), one.target()?.port()?)))
            .collect())
    }

    /// Deletes the balancer's target groups whose ARN is not in `kept`, attached to it or not.
    async fn delete_target_groups(&self, balancer: &str, kept: &BTreeSet<&str>) -> Result<(), CloudError> {
        let prefix = format!("{balancer}-");
        let mut pages = self.elb.describe_target_groups().into_paginator().send();
        while let Some(page) = pages.next().await {
            for group in page.explain("the target groups")?.target_groups() {
                let is_ours = group.target_group_name().is_some_and(|name| name.starts_with(&prefix));
                let Some(arn) = group.target_group_arn().filter(|arn| is_ours && !kept.contains(arn)) else {
                    continue;
                };
                self.elb
                    .delete_target_group()
                    .target_group_arn(arn)
                    .send()
                    .await
                    .explain("deleting a target group")?;
            }
        }
        Ok(())
    }
}

/// A health check within what NLB takes.
/// <https://docs.aws.amazon.com/elasticloadbalancing/latest/network/target-group-health-checks.html>
struct NlbCheck {
    port: u16,
    path: Option<String>,
    interval_seconds: i32,
    /// Never more than the interval.
    timeout_seconds: i32,
    healthy_after: i32,
    unhealthy_after: i32,
}

impl NlbCheck {
    fn of(check: &HealthCheck) -> NlbCheck {
        let clamp =
            |value: u32, least: i32, most: i32| i32::try_from(value).unwrap_or(most).clamp(least, most);
        let interval_seconds = clamp(check.interval_ms.div_ceil(1000), 5, 300);
        NlbCheck {
            port: check.port,
            path: check.http_path.clone(),
            interval_seconds,
            timeout_seconds: clamp(check.timeout_ms.div_ceil(1000), 2, 120.min(interval_seconds)),
            healthy_after: clamp(check.healthy_after, 2, 10),
            unhealthy_after: clamp(check.unhealthy_after, 2, 10),
        }
    }
    fn protocol(&self) -> ProtocolEnum {
        match self.path {
            Some(_) => ProtocolEnum::Http,
            None => ProtocolEnum::Tcp,
        }
    }
    fn is_in(&self, group: &TargetGroup) -> bool {
        let same_path = self.path.is_none() || group.health_check_path() == self.path.as_deref();
        same_path
            && group.health_check_protocol() == Some(&self.protocol())
            && group.health_check_port() == Some(self.port.to_string().as_str())
            && group.health_check_interval_seconds() == Some(self.interval_seconds)
            && group.health_check_timeout_seconds() == Some(self.timeout_seconds)
            && group.healthy_threshold_count() == Some(self.healthy_after)
            && group.unhealthy_threshold_count() == Some(self.unhealthy_after)
    }
}

/// For what is asked once. Whether a call without an answer made something is found out by looking next
/// time, not by making it again: not everything that speaks this API knows a name or a port it has.
fn once() -> Builder {
    Builder::new().retry_config(RetryConfig::disabled())
}

fn forward(group: &str) -> Action {
    Action::builder().r#type(ActionTypeEnum::Forward).target_group_arn(group).build()
}

fn elb_tags(tags: &Tags) -> Vec<Tag> {
    tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}

fn rules_of(permissions: &[IpPermission]) -> BTreeSet<(String, u16, String)> {
    let mut rules = BTreeSet::new();
    for permission in permissions {
        let transport = permission.ip_protocol().unwrap_or_default();
        let port = permission.from_port().and_then(|port| u16::try_from(port).ok()).unwrap_or_default();
        let v4 = permission.ip_ranges().iter().filter_map(IpRange::cidr_ip);
        let v6 = permission.ipv6_ranges().iter().filter_map(Ipv6Range::cidr_ipv6);
        rules.extend(v4.chain(v6).map(|range| (transport.to_owned(), port, range.to_owned())));
    }
    rules
}

fn permissions(rules: &[&(String, u16, String)]) -> Vec<IpPermission> {
    let permission = |(transport, port, range): &(String, u16, String)| {
        let port = i32::from(*port);
        let rule = IpPermission::builder().ip_protocol(transport).from_port(port).to_port(port);
        let rule = match range.contains(':') {
            true => rule.ipv6_ranges(Ipv6Range::builder().cidr_ipv6(range).build()),
            false => rule.ip_ranges(IpRange::builder().cidr_ip(range).build()),
        };
        rule.build()
    };
    rules.iter().map(|rule| permission(rule)).collect()
}

/// What is there, as callers see it. Without its NLB a balancer is on its way in or out; both are
/// `Deleting` to whoever lists, because a call that makes one does not end between the two.
fn balancer(anchor: &Anchor, nlb: Option<&LoadBalancer>) -> Balancer {
    let code = nlb.and_then(|nlb| nlb.state()).and_then(|state| state.code());
    let state = match (nlb, code) {
        (None, _) => BalancerState::Deleting,
        (_, Some(LoadBalancerStateEnum::Active | LoadBalancerStateEnum::ActiveImpaired)) => {
            BalancerState::Active
        }
        (_, Some(LoadBalancerStateEnum::Failed)) => BalancerState::Failed,
        _ => BalancerState::Pending,
    };
    let reason = nlb.and_then(|nlb| nlb.state()).and_then(|state| state.reason()).unwrap_or_default();
    let created = anchor.tags.get(names::CREATED).and_then(|text| text.parse().ok());
    Balancer {
        id: anchor.name.clone(),
        cluster: anchor.cluster,
        client_token: anchor.token.clone(),
        name: anchor.tags.get(names::NAME).cloned().unwrap_or_default(),
        state,
        addresses: Vec::new(),
        hostname: nlb.and_then(|nlb| nlb.dns_name()).map(ToOwned::to_owned),
        message: reason.to_owned(),
        created_at: created
            .and_then(|ms| Timestamp::from_millisecond(ms).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
        tags: names::given(&anchor.tags),
    }
}

#[cfg(test)]
mod tests {
    use cloud_interface::Listener;

    use super::*;

    fn spec(listeners: &[(u16, Protocol, u16)]) -> BalancerSpec {
        BalancerSpec {
            cluster: TenantId::generate(),
            client_token: "t".parse().unwrap(),
            name: "default/web".to_owned(),
            listeners: listeners
                .iter()
                .map(|(port, protocol, node_port)| Listener {
                    port: *port,
                    protocol: *protocol,
                    node_port: *node_port,
                })
                .collect(),
            targets: Vec::new(),
            source_ranges: Vec::new(),
            health_check: HealthCheck {
                port: 30_080,
                http_path: None,
                interval_ms: 1500,
                timeout_ms: 500,
                unhealthy_after: 1,
                healthy_after: 99,
            },
            tags: Tags::new(),
            wanted_address: None,
        }
    }

    #[test]
    fn listeners_become_what_nlb_has() {
        use Protocol::{Tcp, Udp};
        for (listeners, wanted) in [
            (vec![(80, Tcp, 30_080)], Some(vec![(80, DoorProtocol::Tcp)])),
            (vec![(53, Tcp, 30_053), (53, Udp, 30_053)], Some(vec![(53, DoorProtocol::Both)])),
            (vec![(53, Tcp, 30_053), (53, Udp, 30_054)], None),
            (vec![(80, Tcp, 30_080), (80, Tcp, 30_080)], None),
            (
                vec![(443, Tcp, 30_443), (80, Udp, 30_080)],
                Some(vec![(80, DoorProtocol::Udp), (443, DoorProtocol::Tcp)]),
            ),
            (vec![], None),
        ] {
            let got = doors(&spec(&listeners)).ok();
            let got =
                got.map(|doors| doors.iter().map(|door| (door.port, door.protocol)).collect::<Vec<_>>());
            assert_eq!(got, wanted, "{listeners:?}");
        }
    }

    #[test]
    fn rules_go_to_aws_and_come_back() {
        let doors =
            doors(&spec(&[(53, Protocol::Tcp, 1), (53, Protocol::Udp, 1), (80, Protocol::Tcp, 2)])).unwrap();
        let ranges = ["192.0.2.0/24".to_owned(), "2001:db8::/32".to_owned()];
        let rules = admitted(&doors, &ranges).unwrap();
        assert_eq!(rules.len(), 6, "{rules:?}");
        assert_eq!(rules_of(&permissions(&rules.iter().collect::<Vec<_>>())), rules);
        assert!(admitted(&doors, &[]).unwrap().iter().all(|(_, _, range)| range == ANYWHERE));
        for bad in ["192.0.2.0", "192.0.2.0/33", "x/8", "2001:db8::/129", ""] {
            assert!(admitted(&doors, &[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_health_check_stays_within_what_nlb_takes() {
        let check = NlbCheck::of(&spec(&[]).health_check);
        let got = (check.interval_seconds, check.timeout_seconds, check.healthy_after, check.unhealthy_after);
        assert_eq!(got, (5, 2, 10, 2));
    }
}
