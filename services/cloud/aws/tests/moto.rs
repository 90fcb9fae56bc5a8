//! The provider against moto, a stand-in for AWS, and against an AWS that has a bad day.

mod fleet;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base_clock::SystemClock;
use base_ids::TenantId;
use cloud_aws::Aws;
use cloud_interface::suite::{self, Bench};
use cloud_interface::{
    BalancerSpec, Cloud, CloudError, HealthCheck, Join, Listener, MachineSpec, MachineState, Protocol, Target,
};

use support::{Answer, Moto};

fn join() -> Join {
    Join {
        servers: vec!["192.0.2.7:6443".parse().unwrap()],
        tls_server_name: "c0.roadstead.local".to_owned(),
        token: "abcdef.0123456789abcdef".to_owned(),
        ca_cert_hashes: vec![format!("sha256:{}", "ab".repeat(32))],
        labels: BTreeMap::new(),
        taints: Vec::new(),
    }
}

fn machine(cluster: TenantId, token: &str) -> MachineSpec {
    MachineSpec {
        cluster,
        client_token: token.parse().unwrap(),
        name: "workers-1".to_owned(),
        machine_type: String::new(),
        join: join(),
        tags: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
    }
}

fn target(n: u8) -> Target {
    Target { name: format!("n{n}"), address: format!("10.0.0.{n}").parse().unwrap(), machine_id: None }
}

fn balancer(cluster: TenantId, token: &str) -> BalancerSpec {
    BalancerSpec {
        cluster,
        client_token: token.parse().unwrap(),
        name: "default/web".to_owned(),
        listeners: vec![Listener { port: 80, protocol: Protocol::Tcp, node_port: 30_080 }],
        targets: vec![target(10), target(11)],
        source_ranges: Vec::new(),
        health_check: HealthCheck {
            port: 30_080,
            http_path: None,
            interval_ms: 10_000,
            timeout_ms: 500,
            unhealthy_after: 2,
            healthy_after: 2,
        },
        tags: BTreeMap::new(),
        wanted_address: None,
    }
}

async fn provider(moto: &Moto) -> Aws {
    Aws::connect(moto.config(), SystemClock::shared()).await.expect("connect")
}

#[tokio::test]
async fn it_keeps_the_promises_of_a_provider() {
    let moto = Moto::start().await.unwrap();
    let mut bench = Bench::new(Arc::new(provider(&moto).await));
    bench.join = join();
    bench.targets = vec![target(10)];
    // Moto answers in tens of milliseconds, but the machine may be busy with other tests.
    bench.patience = Duration::from_secs(30);
    suite::machines(&bench).await;
    suite::balancers(&bench).await;
    assert_eq!(
        moto.leftovers().await,
        "instances 0, balancers 0, target groups 0, listeners 0, security groups 0"
    );
}

#[tokio::test]
async fn an_instance_is_what_was_asked_for() {
    let moto = Moto::start().await.unwrap();
    let aws = provider(&moto).await;
    let cluster = TenantId::generate();
    let made = aws.create_machine(&machine(cluster, "one")).await.unwrap();
    assert!(made.provider_id.starts_with("aws:///us-east-1"), "{}", made.provider_id);
    assert_eq!(made.tags, BTreeMap::from([("team".to_owned(), "blue".to_owned())]));
    let instance = moto.instance(&made.id).await;
    assert_eq!(instance.tag("roadstead:cluster"), Some(cluster.to_string()));
    assert_eq!(instance.tag("Name"), Some("workers-1".to_owned()));
    assert_eq!(instance.tag("team"), Some("blue".to_owned()));
    let script = moto.user_data(&made.id).await;
    for part in ["roadstead node join", "abcdef.0123456789abcdef", "--name 'workers-1'"] {
        assert!(script.contains(part), "{part} is missing in\n{script}");
    }

    // Somebody stops it by hand: the pool hears that it will not run again.
    moto.stop_instance(&made.id).await;
    let seen = aws.list_machines(cluster).await.unwrap();
    assert_eq!(seen[0].state, MachineState::Failed, "{seen:?}");
}

#[tokio::test]
async fn a_balancer_is_what_was_asked_for_and_changes_in_place() {
    let moto = Moto::start().await.unwrap();
    let aws = provider(&moto).await;
    let cluster = TenantId::generate();
    let mut spec = balancer(cluster, "web");
    let made = aws.ensure_balancer(&spec).await.unwrap();
    let host = made.hostname.clone().expect("a name");
    let id = made.id;
    assert_eq!(
        moto.balancer(&id).await,
        "80/TCP -> 10.0.0.10:30080 10.0.0.11:30080; admits tcp/80 0.0.0.0/0"
    );

    // Another node, another port for both protocols, only some may connect, another health check.
    spec.targets = vec![target(11), target(12)];
    spec.listeners = vec![
        Listener { port: 80, protocol: Protocol::Tcp, node_port: 30_081 },
        Listener { port: 53, protocol: Protocol::Tcp, node_port: 30_053 },
        Listener { port: 53, protocol: Protocol::Udp, node_port: 30_053 },
    ];
    spec.source_ranges = vec!["192.0.2.0/24".to_owned()];
    spec.health_check.port = 30_081;
    spec.health_check.http_path = Some("/healthz".to_owned());
    let changed = aws.ensure_balancer(&spec).await.unwrap();
    assert_eq!((changed.id.as_str(), changed.hostname), (id.as_str(), Some(host)));
    assert_eq!(
        moto.balancer(&id).await,
        "53/TCP_UDP -> 10.0.0.11:30053 10.0.0.12:30053, 80/TCP -> 10.0.0.11:30081 10.0.0.12:30081; \
         admits tcp/53 192.0.2.0/24, tcp/80 192.0.2.0/24, udp/53 192.0.2.0/24"
    );

    // One door goes, and with it its target group.
    spec.listeners.truncate(1);
    aws.ensure_balancer(&spec).await.unwrap();
    assert_eq!(
        moto.balancer(&id).await,
        "80/TCP -> 10.0.0.11:30081 10.0.0.12:30081; admits tcp/80 192.0.2.0/24"
    );
    assert_eq!(
        moto.leftovers().await,
        "instances 0, balancers 1, target groups 1, listeners 1, security groups 1"
    );

    for (change, why) in [
        (
            Box::new(|spec: &mut BalancerSpec| spec.listeners.clear()) as Box<dyn Fn(&mut BalancerSpec)>,
            "no port",
        ),
        (Box::new(|spec| spec.source_ranges = vec!["everybody".to_owned()]), "no range"),
        (
            Box::new(|spec| spec.wanted_address = Some("192.0.2.9".parse().unwrap())),
            "an address of one's own",
        ),
    ] {
        let mut wrong = balancer(cluster, "wrong");
        change(&mut wrong);
        let refused = aws.ensure_balancer(&wrong).await;
        assert!(matches!(refused, Err(CloudError::Invalid(_))), "{why}: {refused:?}");
    }
    assert_eq!(
        moto.leftovers().await,
        "instances 0, balancers 1, target groups 1, listeners 1, security groups 1"
    );
    aws.delete_balancer(cluster, &id).await.unwrap();
    assert_eq!(
        moto.leftovers().await,
        "instances 0, balancers 0, target groups 0, listeners 0, security groups 0"
    );
}

/// What AWS answers once or for a while, and what the caller hears. Whatever happened, the same call
/// afterwards ends with one machine and one balancer, and nothing else.
#[tokio::test]
async fn a_bad_day_at_aws_leaves_nothing_twice() {
    let moto = Moto::start().await.unwrap();
    let aws = provider(&moto).await;
    for (action, answer, times, wanted) in [
        // The SDK rides these out.
        ("RunInstances", Answer::error(500, "InternalError"), 1, "made"),
        ("RunInstances", Answer::error(503, "RequestLimitExceeded"), 2, "made"),
        ("RunInstances", Answer::AfterDoingIt, 1, "made"),
        ("DescribeInstances", Answer::Hangup, 1, "made"),
        // These it does not.
        ("RunInstances", Answer::error(503, "RequestLimitExceeded"), 100, "unavailable"),
        ("RunInstances", Answer::error(500, "InternalError"), 100, "unavailable"),
        ("RunInstances", Answer::error(400, "VcpuLimitExceeded"), 100, "exhausted"),
        ("RunInstances", Answer::error(400, "InsufficientInstanceCapacity"), 1, "made"),
        ("RunInstances", Answer::error(400, "InsufficientInstanceCapacity"), 100, "exhausted"),
        ("RunInstances", Answer::error(403, "UnauthorizedOperation"), 100, "denied"),
    ] {
        let cluster = TenantId::generate();
        let spec = machine(cluster, "one");
        moto.fail(action, answer.clone(), times);
        let got = heard(aws.create_machine(&spec).await.map(drop));
        assert_eq!(got, wanted, "{action} {answer:?} x {times}");
        moto.heal();
        let made = aws.create_machine(&spec).await.unwrap();
        // EC2 knows its client tokens again and makes no second one; moto does not, and the second one goes.
        let mut machines = aws.list_machines(cluster).await.unwrap();
        machines.retain(|one| one.state != MachineState::Deleting);
        assert_eq!(machines.len(), 1, "{action} {answer:?} x {times}: {machines:?}");
        aws.delete_machine(cluster, &made.id).await.unwrap();
    }
    for action in [
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "CreateLoadBalancer",
        "CreateTargetGroup",
        "RegisterTargets",
        "CreateListener",
        "DescribeTargetHealth",
    ] {
        for answer in
            [Answer::error(400, "Throttling"), Answer::error(503, "ServiceUnavailable"), Answer::AfterDoingIt]
        {
            let cluster = TenantId::generate();
            let spec = balancer(cluster, "web");
            moto.fail(action, answer.clone(), 100);
            let got = heard(aws.ensure_balancer(&spec).await.map(drop));
            assert_ne!(got, "made", "{action} {answer:?}");
            moto.heal();
            let made = aws.ensure_balancer(&spec).await.unwrap();
            assert_eq!(
                moto.balancer(&made.id).await,
                "80/TCP -> 10.0.0.10:30080 10.0.0.11:30080; admits tcp/80 0.0.0.0/0",
                "{action} {answer:?}"
            );
            assert_eq!(
                moto.leftovers().await,
                "instances 0, balancers 1, target groups 1, listeners 1, security groups 1",
                "{action} {answer:?}"
            );
            aws.delete_balancer(cluster, &made.id).await.unwrap();
        }
    }
    for action in ["DeleteLoadBalancer", "DeleteTargetGroup", "DeleteSecurityGroup"] {
        for answer in [Answer::error(400, "DependencyViolation"), Answer::AfterDoingIt] {
            let cluster = TenantId::generate();
            let made = aws.ensure_balancer(&balancer(cluster, "web")).await.unwrap();
            moto.fail(action, answer.clone(), 100);
            let got = heard(aws.delete_balancer(cluster, &made.id).await);
            assert_eq!(got, "unavailable", "{action} {answer:?}");
            moto.heal();
            aws.delete_balancer(cluster, &made.id).await.unwrap();
            assert_eq!(aws.list_balancers(cluster).await.unwrap(), [], "{action} {answer:?}");
        }
    }
    assert_eq!(
        moto.leftovers().await,
        "instances 0, balancers 0, target groups 0, listeners 0, security groups 0"
    );
}

/// Two instances of one token, as a zone without capacity and a lost answer could leave them.
#[tokio::test]
async fn a_twin_is_terminated() {
    let moto = Moto::start().await.unwrap();
    let aws = provider(&moto).await;
    let cluster = TenantId::generate();
    let made = aws.create_machine(&machine(cluster, "one")).await.unwrap();
    moto.copy_instance(&made.id).await;
    assert_eq!(
        moto.leftovers().await,
        "instances 2, balancers 0, target groups 0, listeners 0, security groups 0"
    );
    let alive = |machines: Vec<cloud_interface::Machine>| {
        machines.into_iter().filter(|one| one.state != MachineState::Deleting).count()
    };
    assert_eq!(alive(aws.list_machines(cluster).await.unwrap()), 1);
    assert_eq!(
        moto.leftovers().await,
        "instances 1, balancers 0, target groups 0, listeners 0, security groups 0"
    );
}

#[tokio::test]
async fn a_wrong_configuration_says_so_at_the_start() {
    let moto = Moto::start().await.unwrap();
    for (change, wanted) in [
        (
            Box::new(|c: &mut cloud_aws::Config| c.subnet_ids = vec!["subnet-0".to_owned()])
                as Box<dyn Fn(&mut cloud_aws::Config)>,
            "subnets",
        ),
        (Box::new(|c| c.subnet_ids.clear()), "subnet_ids is empty"),
        (Box::new(|c| c.machine_types = vec!["t9.huge".to_owned()]), "t9.huge"),
        (Box::new(|c| c.node_binary.url = "http://x".to_owned()), "https://"),
        (Box::new(|c| c.node_binary.sha256 = "12".to_owned()), "hexadecimal"),
        (Box::new(|c| c.endpoint_url = Some("http://127.0.0.1:1".to_owned())), "not available"),
    ] {
        let mut config = moto.config();
        change(&mut config);
        let error = Aws::connect(config, SystemClock::shared()).await.err().expect(wanted).to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

fn heard(result: Result<(), CloudError>) -> &'static str {
    match result {
        Ok(()) => "made",
        Err(CloudError::Unavailable(_)) => "unavailable",
        Err(CloudError::Exhausted(_)) => "exhausted",
        Err(CloudError::Denied(_)) => "denied",
        Err(CloudError::Invalid(_)) => "invalid",
        Err(CloudError::TokenUsed(_)) => "used",
        Err(CloudError::Unsupported(_)) => "unsupported",
    }
}
