//! The client verbs against a real fleet: a whole life, and everything people get wrong.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dev_testkit::{ApiClient, Fleet, Kubeconfig, Options};
use serde_json::Value;

/// What a verb ended in.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    fn ok(self) -> Result<String> {
        ensure!(self.code == 0, "exit code {}: {}", self.code, self.err);
        Ok(self.out)
    }
    fn json(self) -> Result<Value> {
        Ok(serde_json::from_str(&self.ok()?)?)
    }
    /// Exactly this exit code, and one line that has `word` in it.
    fn fails(self, code: i32, word: &str) -> Result<()> {
        ensure!(self.code == code, "exit code {} instead of {code}: {} {}", self.code, self.out, self.err);
        ensure!(self.err.contains(word), "{word:?} is not in {:?}", self.err);
        // clap adds its usage; ours is one line.
        ensure!(code == 2 || self.err.trim().lines().count() == 1, "more than one line: {:?}", self.err);
        ensure!(!self.err.contains("panicked"), "{}", self.err);
        Ok(())
    }
}

/// A person at a shell of their own: an empty folder, and a configuration folder.
struct Person<'a> {
    fleet: &'a Fleet,
    home: PathBuf,
}

impl<'a> Person<'a> {
    fn new(fleet: &'a Fleet, name: &str) -> Result<Person<'a>> {
        let home = fleet.data().join("people").join(name);
        std::fs::create_dir_all(&home)?;
        Ok(Person { fleet, home })
    }

    fn config(&self) -> PathBuf {
        self.home.join("config")
    }

    fn run(&self, line: &str) -> Result<Ran> {
        self.run_with(line, None)
    }

    /// With its output where nothing comes back from.
    fn run_into(&self, line: &str, stdout: Stdio) -> Result<Ran> {
        let mut command = self.command(line)?;
        let output = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).output()?;
        Ok(Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::new(),
            err: String::from_utf8(output.stderr)?,
        })
    }

    fn run_with(&self, line: &str, stdin: Option<&str>) -> Result<Ran> {
        let mut command = self.command(line)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().context("no input")?;
        // One that never reads has ended already, and says why.
        let _ = input.write_all(stdin.unwrap_or_default().as_bytes());
        drop(input);
        let output = child.wait_with_output()?;
        Ok(Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        })
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut words = line.split(' ');
        let verb = words.next().context("no verb")?;
        let mut command = self.fleet.bare_command(verb);
        command.args(words).current_dir(&self.home).env("ROADSTEAD_CONFIG", self.config());
        for name in [
            "ROADSTEAD_DATA",
            "ROADSTEAD_SERVER",
            "ROADSTEAD_TOKEN_FILE",
            "ROADSTEAD_CA_FILE",
            "ROADSTEAD_ORG",
        ] {
            command.env_remove(name);
        }
        Ok(command)
    }

    fn login(&self, email: &str, password: &str) -> Result<Ran> {
        let ca = self.fleet.data().join("fleet-ca.pem");
        let line = format!(
            "login https://{} --email {email} --password-stdin --ca-file {}",
            self.fleet.manager,
            ca.display()
        );
        self.run_with(&line, Some(password))
    }
}

#[test]
fn a_fleet_is_run_from_the_command_line() -> Result<()> {
    let fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    let outcome = signing_in(&fleet)
        .and_then(|()| clusters_live_and_die(&fleet))
        .and_then(|()| a_kubeconfig_ends_with_its_person(&fleet))
        .and_then(|()| pools_and_operations(&fleet))
        .and_then(|()| mistakes_are_told(&fleet));
    fleet.explain(outcome)
}

fn operator(fleet: &Fleet) -> Result<Person<'_>> {
    let operator = Person::new(fleet, "operator")?;
    let password = std::fs::read_to_string(fleet.data().join("admin.password"))?;
    operator.login("admin@roadstead.local", password.trim())?.ok()?;
    Ok(operator)
}

fn signing_in(fleet: &Fleet) -> Result<()> {
    let nobody = Person::new(fleet, "nobody")?;
    nobody.run("cluster list")?.fails(4, "roadstead login")?;
    nobody.run("logout")?.ok()?;
    nobody.login("admin@roadstead.local", "not the password\n")?.fails(4, "try again")?;
    nobody.login("who@example.com", "not the password\n")?.fails(4, "try again")?;
    ensure!(!nobody.config().join("login.json").exists(), "a wrong password is kept");
    let server = fleet.manager;
    nobody
        .run(&format!("login https://{server} --email a@b.c --password-stdin --ca-file /nowhere/ca.pem"))?
        .fails(1, "--ca-file")?;

    let operator = operator(fleet)?;
    let kept = operator.config().join("login.json");
    ensure!(kept.metadata()?.permissions().mode() & 0o777 == 0o600, "others may read the sign-in");
    let me = operator.run("whoami -o json")?.json()?;
    ensure!(me["user"]["email"] == "admin@roadstead.local" && me["provider"] == true, "{me}");

    operator.run("org create acme")?.ok()?;
    operator.run("org create acme")?.fails(5, "acme")?;
    ensure!(operator.run("org list")?.ok()?.contains("acme"));
    let invited =
        operator.run("member create Ann@Example.com --role developer --org acme -o json")?.json()?;
    let invitation = invited["invitation"].as_str().context("no invitation")?;
    let ann = Person::new(fleet, "ann")?;
    let file = ann.home.join("invitation");
    std::fs::write(&file, invitation)?;
    let ca = fleet.data().join("fleet-ca.pem");
    let accept = format!(
        "login https://{server} --invitation-file {} --name Ann --password-stdin --ca-file {}",
        file.display(),
        ca.display()
    );
    ann.run_with(&accept, Some("short\n"))?.fails(2, "12")?;
    ann.run_with(&accept, Some("correct horse battery staple\n"))?.ok()?;
    ann.run_with(&accept, Some("correct horse battery staple\n"))?.fails(3, "invitation")?;
    let me = ann.run("whoami")?.ok()?;
    ensure!(me.contains("ann@example.com") && me.contains("developer"), "{me}");
    // Her only organisation is the one that is meant.
    ensure!(ann.run("cluster list -o json")?.json()?["items"] == serde_json::json!([]));
    ann.run("member list")?.fails(4, "admin")?;
    ann.run("org create evil")?.fails(3, "no such")?;
    ann.run("cluster list --org elsewhere")?.fails(3, "no such organization")?;
    operator.run("member update ann@example.com --role viewer --org acme")?.ok()?;
    ann.run("cluster create demo")?.fails(4, "only read")?;
    operator.run("member update ann@example.com --role developer --org acme")?.ok()?;
    operator.run("member delete who@example.com --org acme")?.fails(3, "no member")?;

    // An API token signs in as well, and a session that has ended says so.
    let secret = operator.run("token create ci --role viewer --org acme")?.ok()?;
    ensure!(secret.starts_with("rs_") && secret.lines().count() == 1, "{secret}");
    let other = operator.run("token create other --role viewer --org acme -o json")?.json()?;
    let id = other["id"].as_str().context("no id")?;
    ensure!(other["secret"].as_str().is_some_and(|secret| secret.starts_with("rs_")), "{other}");
    let got = operator.run(&format!("token get {id} -o json"))?.json()?;
    ensure!(got["description"] == "other" && got["secret"].is_null(), "{got}");
    ensure!(operator.run("token list")?.ok()?.contains(id));
    ensure!(operator.run("token list --org acme")?.ok()?.contains(id));
    operator.run("token list --org nowhere")?.fails(3, "no such organization")?;
    operator.run("token create short --role viewer --org acme --expires-in-seconds 1")?.ok()?;
    std::thread::sleep(Duration::from_millis(1100));
    let listed = operator.run("token list --org acme")?.ok()?;
    ensure!(listed.matches("(expired)").count() == 1, "{listed}");
    operator.run(&format!("token delete {id}"))?.ok()?;
    operator.run(&format!("token get {id}"))?.fails(3, "no such token")?;
    let ci = Person::new(fleet, "ci")?;
    std::fs::write(ci.home.join("token"), secret)?;
    ci.run(&format!("login https://{server} --token-file token --ca-file {}", ca.display()))?.ok()?;
    ensure!(ci.run("whoami")?.ok()?.contains("viewer"));
    let ended = Person::new(fleet, "ended")?;
    ended.login("ann@example.com", "correct horse battery staple")?.ok()?;
    let kept = std::fs::read(ended.config().join("login.json"))?;
    ended.run("logout")?.ok()?;
    std::fs::write(ended.config().join("login.json"), kept)?;
    ended.run("whoami")?.fails(4, "roadstead login")
}

fn clusters_live_and_die(fleet: &Fleet) -> Result<()> {
    let ann = Person::new(fleet, "ann")?;
    let made = ann.run("cluster create demo --label team=a --label env=test -o json")?.json()?;
    ensure!(made["state"] == "ready" && made["labels"]["team"] == "a", "{made}");
    let id = made["id"].as_str().context("no id")?.to_owned();
    ann.run("cluster create demo")?.fails(5, "demo")?;
    let kubeconfig = ann.run("cluster kubeconfig demo")?.ok()?;
    let api = ApiClient::new(&Kubeconfig::parse(&kubeconfig)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(api.get("/api/v1/namespaces/default"))?;

    // Renamed in place: who has a kubeconfig notices nothing.
    let changed =
        ann.run("cluster update demo --name renamed --label team=b --remove-label env -o json")?.json()?;
    ensure!(
        changed["id"] == id.as_str() && changed["labels"] == serde_json::json!({"team": "b"}),
        "{changed}"
    );
    ann.run("cluster get demo")?.fails(3, "no such cluster")?;
    ensure!(ann.run(&format!("cluster get {id}"))?.ok()?.contains("renamed"));
    let yaml: Value = serde_yaml::from_str(&ann.run("cluster get renamed -o yaml")?.ok()?)?;
    ensure!(yaml == ann.run("cluster get renamed -o json")?.json()?, "{yaml}");
    runtime.block_on(api.get("/api/v1/namespaces/default"))?;
    ann.run("cluster update renamed")?.fails(2, "--name")?;
    ann.run("cluster update renamed --label=-x=1")?.fails(2, "label")?;

    let command = ann.run("cluster join-command renamed --expires-in 10m")?.ok()?;
    ensure!(command.starts_with("roadstead node join --server https://"), "{command}");
    let tokens = ann.run("cluster join-tokens renamed -o json")?.json()?;
    let token = tokens["items"][0]["id"].as_str().context("no join token")?.to_owned();
    ensure!(command.contains(&token) && tokens.to_string().len() < 400, "{tokens}");
    ann.run(&format!("cluster delete-join-token renamed {token}"))?.ok()?;
    ann.run(&format!("cluster delete-join-token renamed {token}"))?.fails(3, "no such join token")?;
    ann.run("cluster delete-join-token renamed ../../x")?.fails(3, "no such join token")?;
    ensure!(ann.run("cluster versions")?.ok()?.contains("v1.36"));

    let said = ann.run("cluster delete renamed")?;
    ensure!(said.err.contains("cluster.delete renamed"), "no progress: {}", said.err);
    ensure!(said.ok()?.contains("renamed deleted"));
    ann.run("cluster delete renamed")?.fails(3, "no such cluster")?;
    let receipt = ann.run(&format!("cluster receipts {id} -o json"))?.json()?;
    ensure!(receipt["name"] == "renamed" && receipt["resources"][0]["kind"] == "replica", "{receipt}");
    ensure!(receipt["signature"].as_str().is_some_and(|text| text.len() > 80), "{receipt}");
    ensure!(ann.run("cluster receipts")?.ok()?.contains(&id));
    Ok(())
}

/// Removed, demoted, or the token deleted: what they have downloaded is a 401. Who comes back gets another one.
fn a_kubeconfig_ends_with_its_person(fleet: &Fleet) -> Result<()> {
    let operator = operator(fleet)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let namespaces = "/api/v1/namespaces";
    let api = |text: &str| ApiClient::new(&Kubeconfig::parse(text)?);
    let allowed = |text: &str| runtime.block_on(api(text)?.get(namespaces));
    let refused = |text: &str| -> Result<()> {
        let api = api(text)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (code, body) = runtime.block_on(api.call(reqwest::Method::GET, namespaces, None))?;
            if code == 401 {
                ensure!(body["kind"] == "Status" && body["message"] == "Unauthorized", "{body}");
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "still let in: {code} {body}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let join = |person: &Person<'_>, email: &str, role: &str, password: &str| -> Result<()> {
        let invited =
            operator.run(&format!("member create {email} --role {role} --org acme -o json"))?.json()?;
        let file = person.home.join("invitation");
        std::fs::write(&file, invited["invitation"].as_str().context("no invitation")?)?;
        let ca = fleet.data().join("fleet-ca.pem");
        let line = format!(
            "login https://{} --invitation-file {} --name Bob --password-stdin --ca-file {}",
            fleet.manager,
            file.display(),
            ca.display()
        );
        person.run_with(&line, Some(password))?.ok().map(drop)
    };
    let password = "correct horse battery staple\n";
    operator.run("cluster create kept --org acme")?.ok()?;
    let others = operator.run("cluster kubeconfig kept --org acme")?.ok()?;
    // Somebody has to stay an admin.
    let cat = Person::new(fleet, "cat")?;
    join(&cat, "cat@example.com", "admin", password)?;
    let bob = Person::new(fleet, "bob")?;
    join(&bob, "bob@example.com", "admin", password)?;
    let said = bob.run("cluster kubeconfig kept --expires-in 1h")?;
    ensure!(said.err.contains("valid until 20"), "{}", said.err);
    let first = said.ok()?;
    allowed(&first)?;
    bob.run("cluster kubeconfig kept --expires-in 10s")?.fails(2, "expires_in_seconds")?;

    // A token of his, and one that is deleted while he stays.
    let mut by_token = Vec::new();
    for name in ["stays", "goes"] {
        let made = bob.run(&format!("token create {name} --role developer --org acme -o json"))?.json()?;
        let program = Person::new(fleet, name)?;
        std::fs::write(program.home.join("token"), made["secret"].as_str().context("no secret")?)?;
        let ca = fleet.data().join("fleet-ca.pem");
        let login = format!("login https://{} --token-file token --ca-file {}", fleet.manager, ca.display());
        program.run(&login)?.ok()?;
        let kubeconfig = program.run("cluster kubeconfig kept --org acme")?.ok()?;
        allowed(&kubeconfig)?;
        by_token.push((made["id"].as_str().context("no id")?.to_owned(), kubeconfig));
    }
    bob.run(&format!("token delete {}", by_token[1].0))?.ok()?;
    refused(&by_token[1].1)?;
    allowed(&first)?;
    allowed(&by_token[0].1)?;

    // Less than before: a new one, with less.
    operator.run("member update bob@example.com --role viewer --org acme")?.ok()?;
    refused(&first)?;
    refused(&by_token[0].1)?;
    let viewing = bob.run("cluster kubeconfig kept")?.ok()?;
    let (pods, secrets) = ("/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/secrets");
    runtime.block_on(api(&viewing)?.get(pods))?;
    let (code, body) = runtime.block_on(api(&viewing)?.call(reqwest::Method::GET, secrets, None))?;
    ensure!(
        code == 403 && body["message"].as_str().is_some_and(|text| text.contains("bob@example.com")),
        "{body}"
    );

    operator.run("member delete bob@example.com --org acme")?.ok()?;
    refused(&viewing)?;
    join(&bob, "bob@example.com", "developer", password)?;
    let again = bob.run("cluster kubeconfig kept")?.ok()?;
    allowed(&again)?;
    refused(&first)?;
    refused(&viewing)?;
    allowed(&others)?;
    operator.run("cluster delete kept --org acme")?.ok().map(drop)
}

fn pools_and_operations(fleet: &Fleet) -> Result<()> {
    let ann = Person::new(fleet, "ann")?;
    ann.run("cluster create pools")?.ok()?;
    // A pool of none needs no machines, so it settles with every provider and without root.
    let made = ann.run("nodepool create empty --cluster pools --size 0 --label tier=none -o json")?;
    if made.code != 0 {
        // Without root there is no provider, and that is said at once.
        return made.fails(2, "provider");
    }
    let made = made.json()?;
    ensure!(made["state"] == "ready" && made["labels"]["tier"] == "none", "{made}");
    ann.run("nodepool create empty --cluster pools --size 0")?.fails(5, "empty")?;
    ann.run("nodepool create huge --cluster pools --size 1 --machine-type nosuch")?.fails(2, "nosuch")?;
    ann.run("nodepool get nosuch --cluster pools")?.fails(3, "no such node pool")?;

    // A change that is taken back goes back, and says who did.
    let growing = ann.run("nodepool resize empty --cluster pools --size 3 --wait=false -o json")?.json()?;
    let operation = growing["operation"].as_str().context("no operation")?.to_owned();
    ensure!(ann.run("operation list --state running")?.ok()?.contains(&operation));
    let ended = ann.run(&format!("operation cancel {operation} -o json"))?.json()?;
    ensure!(ended["state"] == "cancelled", "{ended}");
    ensure!(ended["message"] == "cancelled by ann@example.com", "{ended}");
    ann.run(&format!("operation cancel {operation}"))?.fails(5, "ended")?;
    let back = ann.run("nodepool get empty --cluster pools -o json")?.json()?;
    ensure!(back["size"] == 0, "{back}");
    if let Some(id) = back["operation"].as_str() {
        ann.run(&format!("operation wait {id} --timeout 120s"))?.ok()?;
    }

    let renamed =
        ann.run("nodepool update empty --cluster pools --name other --label a=b -o json")?.json()?;
    ensure!(renamed["name"] == "other" && renamed["id"] == back["id"], "{renamed}");
    ann.run("nodepool delete other --cluster pools --timeout 120s")?.ok()?;
    ann.run("nodepool delete other --cluster pools")?.fails(3, "no such node pool")?;
    ensure!(ann.run("nodepool list --cluster pools -o json")?.json()?["items"] == serde_json::json!([]));

    // Deleting twice is deleting once.
    ann.run("cluster delete pools --wait=false")?.ok()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while ann.run("cluster get pools")?.code == 0 {
        ensure!(Instant::now() < deadline, "the cluster stays");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn mistakes_are_told(fleet: &Fleet) -> Result<()> {
    let ann = Person::new(fleet, "ann")?;
    for (line, code, word) in [
        ("cluster create ../x", 2, "not a name"),
        ("cluster create x --org ../y", 2, "not a name"),
        ("cluster get x%2Fy", 2, "not a name"),
        ("cluster create 0190163d-8694-739b-aea5-966c26f8ad91", 2, "not a name"),
        ("cluster create a190163d-8694-739b-aea5-966c26f8ad91", 2, "reads like an id"),
        ("cluster create three --replicas 2", 2, "1 or 3"),
        // One line names both fields that are wrong.
        (
            "cluster create a190163d-8694-739b-aea5-966c26f8ad91 --kubernetes-version v1.2.3",
            2,
            "choose another name; /kubernetes_version: ",
        ),
        ("cluster create three --replicas 3", 5, "3 cells"),
        ("cluster create old --kubernetes-version v1.2.3", 2, "v1.36"),
        ("nodepool create w --cluster x --size -1", 2, "0 to 1000"),
        ("nodepool create w --cluster x --size=-1", 2, "0 to 1000"),
        ("nodepool create w --cluster nosuch --size 1", 3, "no such cluster"),
        ("operation get 0190163d-8694-739b-aea5-966c26f8ad91", 3, "no such operation"),
        ("cluster list --server https://127.0.0.1:1", 4, "roadstead login"),
        ("completion bash", 0, ""),
    ] {
        let ran = ann.run(line)?;
        if code == 0 {
            ran.ok().context(line)?;
        } else {
            ran.fails(code, word).context(line)?;
        }
    }
    output_is_checked(&ann)?;
    wrong_authorities(fleet)?;
    // A fleet that is away.
    let away = Person::new(fleet, "away")?;
    std::fs::create_dir_all(away.config())?;
    let mut kept: Value = serde_json::from_slice(&std::fs::read(ann.config().join("login.json"))?)?;
    kept["server"] = "https://127.0.0.1:1".into();
    std::fs::write(away.config().join("login.json"), kept.to_string())?;
    away.run("cluster list")?.fails(6, "does not answer")?;
    std::fs::write(away.config().join("login.json"), "{")?;
    away.run("cluster list")?.fails(1, "sign in again")
}

/// Readers that leave, and a disk that is full.
fn output_is_checked(ann: &Person<'_>) -> Result<()> {
    for line in ["completion bash", "cluster list", "cluster versions -o json", "whoami -o yaml"] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let ran = ann.run_into(line, writer.into())?;
        ensure!(ran.code == 141 && ran.err.is_empty(), "{line} to nobody: {ran:?}");
        let full = std::fs::File::options().write(true).open("/dev/full")?;
        ann.run_into(line, full.into())?.fails(1, "No space left").context(line)?;
    }
    Ok(())
}

fn wrong_authorities(fleet: &Fleet) -> Result<()> {
    let one = Person::new(fleet, "mistaken")?;
    std::fs::write(one.home.join("rubbish"), "rubbish")?;
    let data = fleet.data();
    let other = data.join("cells").join("cell-1").join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(other)?)?;
    // A certificate, though not the authority of the manager's.
    std::fs::write(one.home.join("other.pem"), config["cert_pem"].as_str().context("no certificate")?)?;
    let server = format!("https://{}", fleet.manager);
    let token = data.join("admin.token");
    for verb in [
        format!("cluster list --server {server} --token-file {}", token.display()),
        format!("login {server} --token-file {}", token.display()),
    ] {
        one.run(&format!("{verb} --ca-file rubbish"))?.fails(1, "rubbish: there is no certificate in it")?;
        one.run(&format!("{verb} --ca-file other.pem"))?.fails(1, "is not from the CA in")?;
    }
    Ok(())
}
