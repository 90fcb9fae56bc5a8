//! Moto on a free port, with a proxy before it that can have a bad day.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use aws_sdk_ec2::types::{Filter, Instance, ResourceType, Tag, TagSpecification};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base_net::tasks::Tasks;
use cloud_aws::{Config, NodeBinary, Scheme};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use nix::sys::signal::Signal;
use tokio::sync::Notify;

/// Moto is Python and starts like it, on a machine that may be busy.
const START_PATIENCE: Duration = Duration::from_secs(90);

/// What the proxy does instead of passing on.
#[derive(Debug, Clone)]
pub enum Answer {
    Error {
        status: u16,
        code: &'static str,
    },
    /// The connection breaks before anything happened.
    Hangup,
    /// It happens, and the connection breaks before the answer.
    AfterDoingIt,
    /// It happens, and the answer waits for [`Moto::release`].
    Hold,
}

impl Answer {
    pub fn error(status: u16, code: &'static str) -> Answer {
        Answer::Error { status, code }
    }
}

#[derive(Clone)]
struct Proxy {
    moto: SocketAddr,
    http: Client<HttpConnector, Body>,
    fault: Arc<Mutex<Option<(String, Answer, u32)>>>,
    /// An answer is held, or one may go.
    held: Arc<Notify>,
    released: Arc<Notify>,
}

pub struct Moto {
    server: Child,
    proxy: Proxy,
    address: SocketAddr,
    folder: tempfile::TempDir,
    ec2: aws_sdk_ec2::Client,
    elb: aws_sdk_elasticloadbalancingv2::Client,
    subnets: Vec<String>,
    security_group: String,
    _tasks: Tasks,
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It keeps nothing and has no children.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Moto {
    pub async fn start() -> Result<Moto, Box<dyn std::error::Error>> {
        base_net::tls::install_crypto_provider();
        let folder = tempfile::Builder::new().prefix("roadstead-moto-").tempdir()?;
        std::fs::write(
            folder.path().join("credentials"),
            "[default]\naws_access_key_id = testing\naws_secret_access_key = testing\n",
        )?;
        let moto = dev_testkit::free_port()?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let mut server = dev_testkit::bound(dev_testkit::tool("moto", "moto_server")?, Signal::SIGKILL);
        server
            .args(["-H", "127.0.0.1", "-p", &moto.port().to_string()])
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let server = dev_testkit::start(server)?;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let http = Client::builder(TokioExecutor::new()).build_http();
        let proxy =
            Proxy { moto, http, fault: Arc::default(), held: Arc::default(), released: Arc::default() };
        let app = Router::new().fallback(pass).with_state(proxy.clone());
        let tasks = Tasks::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, app).await;
        });

        let sdk = cloud_aws::sdk_config(&configuration(moto, folder.path())).await;
        let mut this = Moto {
            ec2: aws_sdk_ec2::Client::new(&sdk),
            elb: aws_sdk_elasticloadbalancingv2::Client::new(&sdk),
            server,
            proxy,
            address,
            folder,
            subnets: Vec::new(),
            security_group: String::new(),
            _tasks: tasks,
        };
        let deadline = Instant::now() + START_PATIENCE;
        while std::net::TcpStream::connect(moto).is_err() {
            if let Some(status) = this.server.try_wait()? {
                let log = std::fs::read_to_string(this.folder.path().join("log"))?;
                return Err(format!("moto ended with {status}: {log}").into());
            }
            if Instant::now() > deadline {
                return Err("moto does not listen".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        this.lay_network().await?;
        Ok(this)
    }

    async fn lay_network(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let vpc = self.ec2.create_vpc().cidr_block("10.0.0.0/16").send().await?;
        let vpc = vpc.vpc().and_then(|vpc| vpc.vpc_id()).ok_or("no VPC")?.to_owned();
        for (cidr, zone) in [("10.0.0.0/24", "us-east-1a"), ("10.0.1.0/24", "us-east-1b")] {
            let made =
                self.ec2.create_subnet().vpc_id(&vpc).cidr_block(cidr).availability_zone(zone).send().await?;
            self.subnets.push(made.subnet().and_then(|one| one.subnet_id()).ok_or("no subnet")?.to_owned());
        }
        let group = self
            .ec2
            .create_security_group()
            .group_name("machines")
            .description("machines")
            .vpc_id(&vpc)
            .send();
        self.security_group = group.await?.group_id().ok_or("no group")?.to_owned();
        Ok(())
    }

    pub fn config(&self) -> Config {
        Config {
            subnet_ids: self.subnets.clone(),
            security_group_ids: vec![self.security_group.clone()],
            ..configuration(self.address, self.folder.path())
        }
    }

    /// The next `times` calls of `action` are answered so.
    pub fn fail(&self, action: &str, answer: Answer, times: u32) {
        *self.proxy.fault.lock().unwrap() = Some((action.to_owned(), answer, times));
    }
    pub fn heal(&self) {
        *self.proxy.fault.lock().unwrap() = None;
    }

    /// Returns when an answer is held.
    pub async fn held(&self) {
        self.proxy.held.notified().await;
    }
    pub fn release(&self) {
        self.proxy.released.notify_one();
    }

    /// Everything but the identity, for instances that find the fleet at `gateway`.
    pub fn write_config(&self, file: &Path, gateway: &str) -> anyhow::Result<()> {
        let config = Config { gateway: Some(gateway.to_owned()), ..self.config() };
        Ok(std::fs::write(file, serde_json::to_vec_pretty(&config)?)?)
    }

    // ---- what is in the account, asked without the proxy ----

    async fn instances(&self) -> Vec<Instance> {
        let found = self.ec2.describe_instances().send().await.unwrap();
        found.reservations().iter().flat_map(|one| one.instances().to_vec()).collect()
    }

    /// Instances that are paid for, by id.
    pub async fn alive(&self) -> Vec<(String, Tagged)> {
        let mut found: Vec<(String, Tagged)> = self
            .instances()
            .await
            .iter()
            .filter(|one| is_alive(one))
            .map(|one| (one.instance_id().unwrap_or_default().to_owned(), Tagged(one.tags().to_vec())))
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found
    }

    pub async fn instance(&self, id: &str) -> Tagged {
        let all = self.instances().await;
        let one = all.iter().find(|one| one.instance_id() == Some(id)).expect("the instance");
        Tagged(one.tags().to_vec())
    }

    pub async fn user_data(&self, id: &str) -> String {
        use aws_sdk_ec2::types::InstanceAttributeName::UserData;
        use base64::Engine;
        let found =
            self.ec2.describe_instance_attribute().instance_id(id).attribute(UserData).send().await.unwrap();
        let text = found.user_data().and_then(|data| data.value()).expect("user data").to_owned();
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
    }

    pub async fn stop_instance(&self, id: &str) {
        self.ec2.stop_instances().instance_ids(id).send().await.unwrap();
    }

    /// Another instance with the same tags.
    pub async fn copy_instance(&self, id: &str) {
        let Tagged(tags) = self.instance(id).await;
        let tagged =
            TagSpecification::builder().resource_type(ResourceType::Instance).set_tags(Some(tags)).build();
        let run = self.ec2.run_instances().min_count(1).max_count(1).image_id("ami-12c6146b");
        run.subnet_id(&self.subnets[1]).tag_specifications(tagged).send().await.unwrap();
    }

    /// Names and DNS names of all balancers.
    pub async fn balancers(&self) -> Vec<(String, String)> {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let found = self.elb.describe_load_balancers().send().await.unwrap();
        let all = found.load_balancers().iter();
        all.map(|one| (text(one.load_balancer_name()), text(one.dns_name()))).collect()
    }

    /// `80/TCP -> 10.0.0.10:30080; admits tcp/80 0.0.0.0/0`
    pub async fn balancer(&self, name: &str) -> String {
        let found = self.elb.describe_load_balancers().names(name).send().await.unwrap();
        let arn = found.load_balancers()[0].load_balancer_arn().unwrap();
        let listeners = self.elb.describe_listeners().load_balancer_arn(arn).send().await.unwrap();
        let mut doors = Vec::new();
        for listener in listeners.listeners() {
            let group = listener.default_actions()[0].target_group_arn().unwrap();
            let health = self.elb.describe_target_health().target_group_arn(group).send().await.unwrap();
            let targets: BTreeSet<String> = health
                .target_health_descriptions()
                .iter()
                .filter(|one| {
                    let state = one.target_health().and_then(|health| health.state());
                    state.is_none_or(|state| state.as_str() != "draining")
                })
                .map(|one| one.target().unwrap())
                .map(|target| format!("{}:{}", target.id().unwrap(), target.port().unwrap()))
                .collect();
            doors.push(format!(
                "{}/{} -> {}",
                listener.port().unwrap(),
                listener.protocol().unwrap().as_str(),
                targets.into_iter().collect::<Vec<_>>().join(" ")
            ));
        }
        doors.sort();
        let filter = Filter::builder().name("group-name").values(name).build();
        let groups = self.ec2.describe_security_groups().filters(filter).send().await.unwrap();
        let mut rules = BTreeSet::new();
        for permission in groups.security_groups()[0].ip_permissions() {
            for range in permission.ip_ranges() {
                rules.insert(format!(
                    "{}/{} {}",
                    permission.ip_protocol().unwrap(),
                    permission.from_port().unwrap(),
                    range.cidr_ip().unwrap()
                ));
            }
        }
        format!("{}; admits {}", doors.join(", "), rules.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// Everything of ours that costs or counts.
    pub async fn leftovers(&self) -> String {
        let instances = self.alive().await.len();
        let balancers = self.elb.describe_load_balancers().send().await.unwrap();
        let mut listeners = 0;
        for balancer in balancers.load_balancers() {
            let arn = balancer.load_balancer_arn().unwrap();
            let found = self.elb.describe_listeners().load_balancer_arn(arn).send().await.unwrap();
            listeners += found.listeners().len();
        }
        let groups = self.elb.describe_target_groups().send().await.unwrap().target_groups().len();
        let filter = Filter::builder().name("tag-key").values("roadstead:cluster").build();
        let security = self.ec2.describe_security_groups().filters(filter).send().await.unwrap();
        format!(
            "instances {instances}, balancers {}, target groups {groups}, listeners {listeners}, security groups {}",
            balancers.load_balancers().len(),
            security.security_groups().len()
        )
    }
}

fn is_alive(instance: &Instance) -> bool {
    let state = instance.state().and_then(|state| state.name()).map(|name| name.as_str().to_owned());
    !matches!(state.as_deref(), Some("terminated" | "shutting-down"))
}

pub struct Tagged(Vec<Tag>);

impl Tagged {
    pub fn tag(&self, key: &str) -> Option<String> {
        self.0.iter().find(|tag| tag.key() == Some(key)).and_then(|tag| tag.value().map(ToOwned::to_owned))
    }
}

/// Everything but the network.
fn configuration(endpoint: SocketAddr, folder: &Path) -> Config {
    Config {
        identity_file: "identity.json".into(),
        listen: None,
        gateway: None,
        region: "us-east-1".to_owned(),
        endpoint_url: Some(format!("http://{endpoint}")),
        credentials_file: Some(folder.join("credentials")),
        subnet_ids: Vec::new(),
        security_group_ids: Vec::new(),
        balancer_security_group_id: None,
        // Moto's own list has it.
        image_id: "ami-12c6146b".to_owned(),
        machine_types: vec!["t3.medium".to_owned(), "m5.large".to_owned()],
        node_binary: NodeBinary { url: "https://example.com/roadstead".to_owned(), sha256: "ab".repeat(32) },
        balancer_scheme: Scheme::Internal,
        disk_gib: 20,
    }
}

async fn pass(State(proxy): State<Proxy>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let fault = {
        let mut fault = proxy.fault.lock().unwrap();
        match &mut *fault {
            Some((action, answer, left)) if *left > 0 && asks_for(&body, action) => {
                *left -= 1;
                Some(answer.clone())
            }
            _ => None,
        }
    };
    match fault {
        Some(Answer::Error { status, code }) => return refusal(status, code),
        Some(Answer::Hangup) => return hang_up(),
        Some(Answer::AfterDoingIt | Answer::Hold) | None => {}
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    parts.uri = format!("http://{}{path}", proxy.moto).parse::<Uri>().unwrap();
    let answer = proxy.http.request(axum::http::Request::from_parts(parts, Body::from(body))).await;
    match (answer, fault) {
        (Ok(answer), None) => answer.map(Body::new),
        (Ok(answer), Some(Answer::Hold)) => {
            proxy.held.notify_one();
            proxy.released.notified().await;
            answer.map(Body::new)
        }
        _ => hang_up(),
    }
}

fn asks_for(body: &Bytes, action: &str) -> bool {
    let wanted = format!("Action={action}");
    std::str::from_utf8(body).is_ok_and(|body| body.split('&').any(|pair| pair == wanted))
}

/// Both protocols' ways to say it: EC2 reads the first, ELB the second.
fn refusal(status: u16, code: &str) -> Response {
    let error = format!("<Error><Code>{code}</Code><Message>not today</Message></Error>");
    let body = match code {
        "Throttling" | "ServiceUnavailable" => format!("<ErrorResponse>{error}</ErrorResponse>"),
        _ => format!("<Response><Errors>{error}</Errors><RequestID>0</RequestID></Response>"),
    };
    (StatusCode::from_u16(status).unwrap(), [("content-type", "text/xml")], body).into_response()
}

/// A body that never comes ends the connection.
fn hang_up() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("gone")) });
    Response::builder().header("content-length", "1000").body(Body::from_stream(broken)).unwrap()
}
