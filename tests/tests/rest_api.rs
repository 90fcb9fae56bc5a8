//! The manager's REST API from the outside, through the real binary.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use dev_testkit::{Fleet, Options, Postgres, bound, output_of, tool};
use futures::future::join_all;
use nix::sys::signal::Signal;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Requests of each kind to each operation: about a minute. A number rather than a time, so that the seed
/// brings the same requests back.
const EXAMPLES: u32 = 25;

/// What may be answered to a request that its description allows: 400 is not among it, but a key that was used
/// before, or fields that contradict each other, are no fault of its form.
const ACCEPTABLE: &str = "[checks.positive_data_acceptance]
expected-statuses = [\"2xx\", 401, 403, 404, 409, 422, 429, 503]

# Which versions, providers and labels there are is more than a schema can say.
[[operations]]
include-operation-id = [\"create_cluster\", \"update_cluster\", \"create_node_pool\", \"update_node_pool\"]
checks.positive_data_acceptance.enabled = false
";

/// The manager, asked with the provider's token.
struct Api {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl Api {
    fn new(fleet: &Fleet) -> Result<Api> {
        let read = |name: &str| std::fs::read_to_string(fleet.data().join(name)).context(name.to_owned());
        let ca = reqwest::Certificate::from_pem(read("fleet-ca.pem")?.as_bytes())?;
        let http =
            reqwest::Client::builder().tls_certs_only([ca]).timeout(Duration::from_secs(30)).build()?;
        let token = read("admin.token")?.trim().to_owned();
        Ok(Api { http, base: format!("https://{}/api/v1", fleet.manager), token })
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token)
    }

    async fn keyed(&self, path: &str, key: &str, body: &Value) -> Result<(StatusCode, Value)> {
        let request = self.request(Method::POST, path).header("idempotency-key", key).json(body);
        let response = request.send().await?;
        Ok((response.status(), response.json().await?))
    }

    /// Until it is answered: whoever ran it may have died with its lease.
    async fn keyed_until_done(&self, path: &str, key: &str, body: &Value) -> Result<Value> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match self.keyed(path, key, body).await {
                Ok((StatusCode::CREATED, answer)) => return Ok(answer),
                Ok((StatusCode::CONFLICT, answer)) if answer["title"] == "Still running" => {}
                Ok((status, answer)) if !status.is_server_error() => bail!("{key}: {status} {answer}"),
                Ok(_) | Err(_) => {}
            }
            ensure!(Instant::now() < deadline, "{key} was not answered for a minute");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn get(&self, path: &str) -> Result<Value> {
        Ok(self.request(Method::GET, path).send().await?.error_for_status()?.json().await?)
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// The API does what its description says, whatever is sent.
#[test]
fn schemathesis_finds_nothing() -> Result<()> {
    let program = tool("schemathesis", "schemathesis")?;
    let fleet = Fleet::start(Options::default())?;
    let token = std::fs::read_to_string(fleet.data().join("admin.token"))?;
    std::fs::write(fleet.data().join("schemathesis.toml"), ACCEPTABLE)?;
    let mut schemathesis = bound(program, Signal::SIGKILL);
    schemathesis
        .arg("run")
        .arg(format!("https://{}/openapi.json", fleet.manager))
        .args(["--header", &format!("Authorization: Bearer {}", token.trim())])
        .arg("--tls-verify")
        .arg(fleet.data().join("fleet-ca.pem"))
        .args(["--max-examples", &EXAMPLES.to_string(), "--seed", "3", "--request-timeout", "30"])
        .args(["--warnings", "off", "--continue-on-failure", "--suppress-health-check", "all"])
        // Endless answers, and those of a cluster's own API, are other tests' business.
        .args(["--exclude-operation-id", "watch_events", "--exclude-operation-id", "proxy"])
        // It would sign itself out.
        .args(["--exclude-operation-id", "delete_session", "--exclude-operation-id", "delete_token"])
        .current_dir(fleet.data())
        .env("NO_COLOR", "1");
    let output = output_of(schemathesis)?;
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    ensure!(output.status.success(), "schemathesis: {}\n{said}", String::from_utf8_lossy(&output.stderr));
    ensure!(said.contains("passed") || said.contains("No issues found"), "it tested nothing:\n{said}");
    Ok(())
}

/// kill -9 between the work and the record of its answer: sent again, each is there once, under one id.
#[test]
fn keyed_requests_survive_kill_9() -> Result<()> {
    const ROUNDS: usize = 4;
    const AT_ONCE: usize = 12;
    let mut fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    let api = Api::new(&fleet)?;
    let runtime = runtime()?;
    let mut wanted = Vec::new();
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..AT_ONCE).map(|number| format!("org-{round}-{number}")).collect();
        let pid = fleet.pid()?;
        let early = runtime.block_on(async {
            let api = &api;
            let all = join_all(names.iter().map(|name| async move {
                let answer = api.keyed("/organizations", name, &json!({"name": name})).await;
                answer.ok().filter(|(status, _)| *status == StatusCode::CREATED).map(|(_, answer)| answer)
            }));
            let kill = async {
                // Another moment each round, somewhere among the first answers.
                tokio::time::sleep(Duration::from_millis(10 + 25 * round as u64)).await;
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)
            };
            let (answers, killed) = futures::future::join(all, kill).await;
            killed.map(|()| answers)
        })?;
        acknowledged += early.iter().flatten().count();
        fleet.kill()?;
        fleet.start_again()?;
        let answers = runtime.block_on(async {
            let all = names.iter().map(|name| {
                let api = &api;
                async move { api.keyed_until_done("/organizations", name, &json!({"name": name})).await }
            });
            join_all(all).await.into_iter().collect::<Result<Vec<Value>>>()
        })?;
        for (early, answer) in early.iter().zip(&answers) {
            if let Some(early) = early {
                ensure!(early == answer, "answered {early}, then {answer}");
            }
        }
        wanted.extend(answers);
    }
    let page = runtime.block_on(api.get("/organizations?limit=500"))?;
    let listed = page["items"].as_array().ok_or_else(|| anyhow!("no items: {page}"))?;
    ensure!(listed.len() == ROUNDS * AT_ONCE, "{} organizations for {} requests", listed.len(), wanted.len());
    ensure!(wanted.iter().all(|one| listed.contains(one)), "an answer is of what is not there");
    println!("{ROUNDS} kills, {} keyed requests, {acknowledged} of them answered before", wanted.len());
    Ok(())
}

/// Everything that is written is found again after kill -9, on the other database.
#[test]
fn a_fleet_runs_on_postgres() -> Result<()> {
    let mut postgres = Postgres::start()?;
    let database = Some(postgres.database()?);
    let mut fleet = Fleet::start(Options { database, ..Options::default() })?;
    ensure!(!fleet.data().join("manager.db").exists(), "there is a SQLite file");
    let api = Api::new(&fleet)?;
    let runtime = runtime()?;
    let made = runtime.block_on(async {
        let made = api.keyed("/organizations", "k", &json!({"name": "acme"})).await?;
        ensure!(made.0 == StatusCode::CREATED, "{made:?}");
        let cluster = api.keyed("/organizations/acme/clusters", "c", &json!({"name": "blue"})).await?;
        ensure!(cluster.0 == StatusCode::CREATED, "{cluster:?}");
        Ok(cluster.1)
    })?;
    fleet.kill()?;
    fleet.start_again()?;
    let found = runtime.block_on(api.get("/organizations/acme/clusters/blue"))?;
    ensure!(found["id"] == made["id"] && found["state"] == "ready", "{found}");
    Ok(())
}

/// The operator's password is in a private file and works; nobody's takes longer or reads differently.
#[test]
fn the_operator_signs_in() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    let file = fleet.data().join("admin.password");
    ensure!(std::fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "others can read it");
    let password = std::fs::read_to_string(&file)?;
    let api = Api::new(&fleet)?;
    let runtime = runtime()?;
    let sign_in = async |email: &str, password: &str| {
        let body = json!({"email": email, "password": password});
        let begun = Instant::now();
        let response = api.http.post(format!("{}/sessions", api.base)).json(&body).send().await?;
        let status = response.status();
        Ok::<_, anyhow::Error>((status, response.json::<Value>().await?, begun.elapsed()))
    };
    runtime.block_on(async {
        let (status, session, _) = sign_in("admin@roadstead.local", password.trim()).await?;
        ensure!(status == StatusCode::CREATED && session["user"]["name"] == "Operator", "{session}");
        let mut known = Vec::new();
        let mut unknown = Vec::new();
        for _ in 0..5 {
            let one = sign_in("admin@roadstead.local", "wrong horse battery").await?;
            let other = sign_in("nobody@roadstead.local", "wrong horse battery").await?;
            ensure!(one.0 == StatusCode::UNAUTHORIZED && one.1 == other.1, "{one:?} {other:?}");
            known.push(one.2);
            unknown.push(other.2);
        }
        // The quickest of each is what the machine can do; a missing hash would be a tenth of it.
        let (known, unknown) = (known.iter().min(), unknown.iter().min());
        let (Some(known), Some(unknown)) = (known, unknown) else { bail!("nothing was measured") };
        ensure!(*unknown * 3 > *known && *known * 3 > *unknown, "known {known:?}, unknown {unknown:?}");
        Ok(())
    })?;
    // Started again, it is the same one.
    fleet.stop()?;
    fleet.start_again()?;
    ensure!(std::fs::read_to_string(&file)? == password, "the password changed");
    Ok(())
}

/// Clients that say nothing are let go, and hold up nobody meanwhile.
#[test]
fn silent_clients_are_let_go() -> Result<()> {
    let fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    let api = Api::new(&fleet)?;
    let mut silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(fleet.manager)).collect::<std::io::Result<_>>()?;
    let begun = Instant::now();
    runtime()?.block_on(api.get("/organizations"))?;
    ensure!(begun.elapsed() < Duration::from_secs(5), "held up for {:?}", begun.elapsed());
    for stream in &mut silent {
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        // Zero bytes: the other side closed. A time-out is an error.
        ensure!(stream.read(&mut [0u8; 1])? == 0, "the manager said something to a silent client");
    }
    Ok(())
}
