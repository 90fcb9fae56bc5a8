//! Which manager, and who we are to it: the provider's configuration, with everything it may leave out.
//!
//! Each item is taken from the first place that has it: the `provider` block, `ROADSTEAD_*` in the
//! environment, the login that `roadstead login` stored, the folder of a `roadstead up` above the working
//! directory. A token that was stored *for* a server goes to that server and to no other.
//!
//! Not here: talking to the manager.

use std::path::{Path, PathBuf};

use base_ids::Slug;

use crate::diagnostic::Diagnostic;
use crate::resources::checks;
use crate::schema::{Attribute, Schema};
use crate::value::Object;

/// Where `roadstead up` keeps its data unless it is told otherwise.
const DATA_FOLDER: &str = ".roadstead";

pub fn schema() -> Schema {
    Schema {
        description: "Clusters, node pools and tokens of a Roadstead fleet. Without any of these, the login \
                      that `roadstead login` stored is used, or the fleet that `roadstead up` runs in \
                      `.roadstead` above the working directory.",
        attributes: vec![
            Attribute::text("server", "The manager, `https://HOST:PORT`. Or `ROADSTEAD_SERVER`.")
                .checked(check_server),
            Attribute::text("token", "API token. Or `ROADSTEAD_TOKEN`; better a file than either.")
                .sensitive(),
            Attribute::text("token_file", "File that holds the API token. Or `ROADSTEAD_TOKEN_FILE`."),
            Attribute::text("ca_cert", "The manager's CA certificate, PEM. Or `ROADSTEAD_CA_CERT`."),
            Attribute::text(
                "ca_cert_file",
                "File that holds the manager's CA certificate. Or `ROADSTEAD_CA_FILE`.",
            ),
            Attribute::text(
                "organization",
                "The organisation of resources that name none. Or `ROADSTEAD_ORG`.",
            )
            .checked(checks::name),
        ],
    }
}

fn check_server(value: &crate::value::Value) -> Result<(), String> {
    match value {
        crate::value::Value::Text(text) => server_from(text).map(drop),
        _ => Ok(()),
    }
}

fn server_from(text: &str) -> Result<String, String> {
    let host = text.trim().trim_end_matches('/').strip_prefix("https://");
    match host {
        Some(host) if !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']) => {
            Ok(format!("https://{host}"))
        }
        _ => Err(format!("{text:?} is no address of a manager; one is https://HOST:PORT.")),
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    pub server: String,
    pub ca_pem: String,
    pub token: String,
    pub organization: Option<Slug>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("server", &self.server)
            .field("organization", &self.organization)
            .finish_non_exhaustive()
    }
}

/// What surrounds the process, as values.
pub struct Surroundings<'a> {
    pub env: &'a (dyn Fn(&str) -> Option<String> + Sync),
    pub working_dir: PathBuf,
}

/// A server with what is needed to use it, stored by somebody else: what `login.json` holds.
#[derive(serde::Deserialize)]
struct Stored {
    server: String,
    token: String,
    ca_pem: String,
    #[serde(default)]
    organization: Option<Slug>,
}

impl Settings {
    /// Everything resolved, or what is missing and how to give it. Unknown values are the caller's matter.
    pub fn resolve(config: &Object, around: &Surroundings<'_>) -> Result<Settings, Vec<Diagnostic>> {
        let mut wrong = Vec::new();
        let env = |name: &str| (around.env)(name).filter(|value| !value.is_empty());
        let given = |attribute: &str, variable: &str| {
            config.text(attribute).map(str::to_owned).or_else(|| env(variable))
        };

        let server = match given("server", "ROADSTEAD_SERVER").map(|text| server_from(&text)) {
            Some(Ok(server)) => Some(server),
            Some(Err(why)) => {
                wrong.push(Diagnostic::error("Invalid server", why).at("server"));
                None
            }
            None => None,
        };
        let stored = stored(around, &env).filter(|stored| {
            // Somebody else's server does not get this token.
            server.as_ref().is_none_or(|server| *server == stored.server)
        });
        let read = |path: &str, attribute: &str| {
            let path = around.working_dir.join(path);
            std::fs::read_to_string(&path).map_err(|error| {
                Diagnostic::error(
                    format!("Cannot read {attribute}"),
                    format!("{}: {error}. Name a file that this user can read.", path.display()),
                )
                .at(attribute)
            })
        };
        // The block wins over the environment whole: `token_file` there is not overruled by ROADSTEAD_TOKEN.
        let mut secret = |value: &str, file: &str, value_env: &str, file_env: &str| {
            let places = [
                config.text(value).map(|text| Ok(text.to_owned())),
                config.text(file).map(|path| read(path, file)),
                env(value_env).map(Ok),
                env(file_env).map(|path| read(&path, file)),
            ];
            match places.into_iter().flatten().next()? {
                Ok(text) => Some(text),
                Err(finding) => {
                    wrong.push(finding);
                    None
                }
            }
        };
        let token = secret("token", "token_file", "ROADSTEAD_TOKEN", "ROADSTEAD_TOKEN_FILE");
        let ca = secret("ca_cert", "ca_cert_file", "ROADSTEAD_CA_CERT", "ROADSTEAD_CA_FILE");
        let mut organization = given("organization", "ROADSTEAD_ORG").and_then(|text| {
            let parsed: Result<Slug, _> = text.parse();
            if parsed.is_err() {
                let why = format!("{text:?} is no name of an organisation.");
                wrong.push(Diagnostic::error("Invalid organization", why).at("organization"));
            }
            parsed.ok()
        });
        if !wrong.is_empty() {
            return Err(wrong);
        }

        let server = server.or_else(|| stored.as_ref().map(|stored| stored.server.clone()));
        let token = token.or_else(|| stored.as_ref().map(|stored| stored.token.clone()));
        if organization.is_none() {
            organization = stored.as_ref().and_then(|stored| stored.organization.clone());
        }
        let ca = ca.or_else(|| stored.map(|stored| stored.ca_pem));
        let mut missing = |what: &str, attribute: &str, variables: &str| {
            let detail = format!(
                "Set `{attribute}` in the provider block or {variables} in the environment, sign in with \
                 `roadstead login`, or work below the folder of a running `roadstead up`."
            );
            wrong.push(Diagnostic::error(format!("No {what}"), detail).at(attribute));
        };
        let empty = |value: &Option<String>| value.as_deref().is_none_or(|text| text.trim().is_empty());
        if empty(&server) {
            missing("manager's address", "server", "ROADSTEAD_SERVER");
        } else {
            if empty(&token) {
                missing("API token", "token_file", "ROADSTEAD_TOKEN_FILE (or ROADSTEAD_TOKEN)");
            }
            if empty(&ca) {
                missing("CA certificate of the manager", "ca_cert_file", "ROADSTEAD_CA_FILE");
            }
        }
        match (server, token, ca) {
            (Some(server), Some(token), Some(ca_pem)) if wrong.is_empty() => {
                Ok(Settings { server, ca_pem, token: token.trim().to_owned(), organization })
            }
            _ => Err(wrong),
        }
    }
}

/// The folder of a `roadstead up` that is named, else the login, else the nearest such folder above the
/// working directory that this user owns (another's could hand us a manager of theirs).
fn stored(around: &Surroundings<'_>, env: &dyn Fn(&str) -> Option<String>) -> Option<Stored> {
    if let Some(folder) = env("ROADSTEAD_DATA") {
        return from_folder(&around.working_dir.join(folder));
    }
    if let Some(login) = from_login(env) {
        return Some(login);
    }
    around
        .working_dir
        .ancestors()
        .map(|folder| folder.join(DATA_FOLDER))
        .filter(|folder| is_ours(folder))
        .find_map(|folder| from_folder(&folder))
}

fn from_folder(folder: &Path) -> Option<Stored> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    Some(Stored {
        server: server_from(&read("manager.url")?).ok()?,
        token: read("admin.token")?,
        ca_pem: read("fleet-ca.pem")?,
        organization: None,
    })
}

/// What `roadstead login` keeps; one that is damaged is none.
fn from_login(env: &dyn Fn(&str) -> Option<String>) -> Option<Stored> {
    let folder = env("ROADSTEAD_CONFIG")
        .map(PathBuf::from)
        .or_else(|| env("XDG_CONFIG_HOME").map(|config| Path::new(&config).join("roadstead")))
        .or_else(|| env("HOME").map(|home| Path::new(&home).join(".config/roadstead")))?;
    let text = std::fs::read(folder.join("login.json")).ok()?;
    let stored: Stored = serde_json::from_slice(&text).ok()?;
    Some(Stored { server: server_from(&stored.server).ok()?, ..stored })
}

fn is_ours(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// A working directory two levels below a folder of `roadstead up`.
    fn project() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join(DATA_FOLDER);
        fs::create_dir_all(&data).unwrap();
        for (name, text) in
            [("manager.url", "https://up:1\n"), ("admin.token", "rs_up\n"), ("fleet-ca.pem", "CA-up")]
        {
            fs::write(data.join(name), text).unwrap();
        }
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/token"), "rs_file\n").unwrap();
        fs::create_dir_all(dir.path().join("config")).unwrap();
        let login = r#"{"server":"https://in:1","ca_pem":"CA-in","token":"rss_in","organization":"acme"}"#;
        fs::write(dir.path().join("config/login.json"), login).unwrap();
        dir
    }

    fn resolve(below: &str, config: &[(&str, &str)], env: &[(&str, &str)]) -> String {
        let dir = project();
        let config = config.iter().fold(Object::default(), |object, (name, value)| object.with(name, *value));
        let env: BTreeMap<&str, &str> = env.iter().copied().collect();
        let here = dir.path().display().to_string();
        let lookup = |name: &str| env.get(name).map(|value| value.replace("HERE", &here));
        let around = Surroundings { env: &lookup, working_dir: dir.path().join(below) };
        match Settings::resolve(&config, &around) {
            Ok(settings) => {
                let organization = settings.organization.map_or_else(String::new, |org| format!(" {org}"));
                format!("{} {} {}{organization}", settings.server, settings.token, settings.ca_pem)
            }
            Err(wrong) => wrong.iter().map(|one| one.summary.clone()).collect::<Vec<_>>().join(", "),
        }
    }

    #[test]
    fn each_item_comes_from_the_first_place_that_has_it() {
        let block = [("server", "https://block:1/"), ("token", "rs_block"), ("ca_cert", "CA-block")];
        let env = [
            ("ROADSTEAD_SERVER", "https://env:1"),
            ("ROADSTEAD_TOKEN", "rs_env"),
            ("ROADSTEAD_CA_CERT", "CA-env"),
        ];
        for (config, env, wanted) in [
            (&block[..], &env[..], "https://block:1 rs_block CA-block"),
            (&[], &env, "https://env:1 rs_env CA-env"),
            (&[], &[], "https://up:1 rs_up CA-up"),
            (&[("organization", "acme")], &[], "https://up:1 rs_up CA-up acme"),
            (&[], &[("ROADSTEAD_ORG", "blue")], "https://up:1 rs_up CA-up blue"),
            // The block's file wins over the environment's value.
            (&[("token_file", "token")], &[("ROADSTEAD_TOKEN", "rs_env")], "https://up:1 rs_file CA-up"),
            // The stored token is for the stored server alone.
            (&[("server", "https://up:1")], &[], "https://up:1 rs_up CA-up"),
            (&[("server", "https://evil:1")], &[], "No API token, No CA certificate of the manager"),
            (&[], &[("ROADSTEAD_DATA", "nowhere")], "No manager's address"),
            (&[], &[("ROADSTEAD_DATA", "../../.roadstead")], "https://up:1 rs_up CA-up"),
            (&[], &[("ROADSTEAD_CONFIG", "HERE/config")], "https://in:1 rss_in CA-in acme"),
            (&[], &[("ROADSTEAD_CONFIG", "HERE/none")], "https://up:1 rs_up CA-up"),
            (&[("server", "http://up:1")], &[], "Invalid server"),
            (&[("server", "https://user@up:1")], &[], "Invalid server"),
            (&[("token_file", "missing")], &[], "Cannot read token_file"),
            (&[("organization", "../x")], &[], "Invalid organization"),
        ] {
            assert_eq!(resolve("a/b", config, env), wanted, "{config:?} {env:?}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let settings = Settings {
            server: "https://up:1".to_owned(),
            ca_pem: "CA".to_owned(),
            token: "rs_secret".to_owned(),
            organization: None,
        };
        assert!(!format!("{settings:?}").contains("secret"));
        assert!(schema().attribute("token").unwrap().sensitive);
    }
}
