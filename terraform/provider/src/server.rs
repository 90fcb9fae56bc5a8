//! Terraform's calls, answered from schemas, plans and resources.
//!
//! Each call is: decode with the schema, decide or do, encode. What goes wrong becomes a diagnostic in the
//! answer; a gRPC error would show a person nothing but "plugin error".
//!
//! Not here: how a thing is made (`resources`, `data`), what a plan is (`plan`).

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fleet_client::Client;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::diagnostic::{Diagnostic, path_to};
use crate::journal::Journal;
use crate::plan::plan;
use crate::proto::provider_server::Provider;
use crate::proto::*;
use crate::resource::{Api, Call, DataSource, Resource, new_key, no_organization};
use crate::resources::timeouts;
use crate::schema::{From as ValueFrom, Schema};
use crate::settings::{self, Settings, Surroundings};
use crate::value::{Object, Value};

/// For what is read while planning.
const READ_PATIENCE: Duration = Duration::from_secs(60);

type Answer<T> = Result<Response<T>, Status>;
type Found = Vec<Diagnostic>;
/// Reads an environment variable.
type Lookup = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The provider. Cloned handles share one configuration.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    resources: Vec<Box<dyn Resource>>,
    data_sources: Vec<Box<dyn DataSource>>,
    configured: RwLock<Configured>,
    stop: CancellationToken,
    env: Lookup,
    working_dir: PathBuf,
}

#[derive(Clone)]
enum Configured {
    NotYet,
    /// Parts of the provider's configuration depend on things that are not made yet.
    Unknown(Vec<String>),
    Ready(Box<Api>),
}

impl Server {
    /// `stop` ends waits when Terraform is interrupted.
    pub fn new(
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        working_dir: PathBuf,
        stop: CancellationToken,
    ) -> Server {
        Server {
            inner: Arc::new(Inner {
                resources: crate::resources::all(),
                data_sources: crate::data::all(),
                configured: RwLock::new(Configured::NotYet),
                stop,
                env: Box::new(env),
                working_dir,
            }),
        }
    }

    fn resource(&self, type_name: &str) -> Result<&dyn Resource, Diagnostic> {
        let found = self.inner.resources.iter().find(|one| one.type_name() == type_name);
        found.map(AsRef::as_ref).ok_or_else(|| unknown_type(type_name))
    }

    fn data_source(&self, type_name: &str) -> Result<&dyn DataSource, Diagnostic> {
        let found = self.inner.data_sources.iter().find(|one| one.type_name() == type_name);
        found.map(AsRef::as_ref).ok_or_else(|| unknown_type(type_name))
    }

    fn configured(&self) -> Configured {
        self.inner.configured.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn configure(&self, config: &Object) -> Result<Configured, Found> {
        let unknown: Vec<String> =
            config.0.iter().filter(|(_, value)| !value.is_known()).map(|(name, _)| name.clone()).collect();
        if !unknown.is_empty() {
            return Ok(Configured::Unknown(unknown));
        }
        let env = |name: &str| (self.inner.env)(name);
        let around = Surroundings { env: &env, working_dir: self.inner.working_dir.clone() };
        let settings = Settings::resolve(config, &around)?;
        let client = Client::new(&settings.server, &settings.ca_pem, &settings.token).map_err(|error| {
            let why = crate::resource::client_refused("use the CA certificate", &error);
            vec![why.at("ca_cert_file")]
        })?;
        let client = client.with_ca_named("`ca_cert` or `ca_cert_file`");
        let data_dir = env("TF_DATA_DIR").filter(|dir| !dir.is_empty());
        let data_dir = self.inner.working_dir.join(data_dir.unwrap_or_else(|| ".terraform".to_owned()));
        Ok(Configured::Ready(Box::new(Api {
            client,
            organization: settings.organization,
            journal: Journal::in_folder(&data_dir),
            stop: self.inner.stop.clone(),
        })))
    }

    /// For acting; `until` is counted from now.
    fn call(&self, patience: Duration, key: &str) -> Result<Call, Diagnostic> {
        match self.configured() {
            Configured::Ready(api) => {
                Ok(Call { api: *api, until: Instant::now() + patience, key: key.to_owned() })
            }
            Configured::Unknown(names) => Err(Diagnostic::error(
                "The provider's configuration is not known yet",
                format!(
                    "{} of the provider depends on something that is still to be made. Make that first \
                     (`terraform apply -target=…`), then apply again.",
                    names.join(", ")
                ),
            )),
            Configured::NotYet => Err(Diagnostic::error(
                "The provider is not configured",
                "Terraform asked for a change before it configured the provider. Run `terraform init` again.",
            )),
        }
    }

    fn plan_change(&self, request: &PlanRequest) -> Result<PlanAnswer, Found> {
        let resource = self.resource(&request.type_name).map_err(one)?;
        let schema = resource.schema();
        let present = decode(&schema, request.prior_state.as_ref())?;
        if let Some(id) = present.as_ref().and_then(|state| state.text("id")) {
            self.settle(id);
        }
        if decode(&schema, request.proposed_state.as_ref())?.is_none() {
            // To be destroyed: nothing to decide.
            return Ok(PlanAnswer { planned_state: Some(null()), ..PlanAnswer::default() });
        }
        let config = decode(&schema, request.config.as_ref())?.unwrap_or_default();
        let mut decided = plan(&schema, present.as_ref(), &config);
        if !decided.refused.is_empty() {
            return Err(decided.refused);
        }
        if present.is_none() {
            self.fill_organization(&schema, &config, &mut decided.state)?;
        }
        let key = if present.is_none() { new_key() } else { String::new() };
        Ok(PlanAnswer {
            planned_state: Some(encode(&schema, &decided.state)),
            requires_replace: decided.replaced_by.iter().map(|name| path_to(name)).collect(),
            planned_private: key.into_bytes(),
            diagnostics: Vec::new(),
        })
    }

    /// The provider's organisation for a new thing that names none, so that the plan shows it.
    fn fill_organization(&self, schema: &Schema, config: &Object, state: &mut Object) -> Result<(), Found> {
        let asks = schema.attribute("organization").is_some_and(|found| found.from == ValueFrom::Chosen);
        if !asks || !config.get("organization").is_null() {
            return Ok(());
        }
        if let Configured::Ready(api) = self.configured() {
            let organization = api.organization.ok_or_else(|| one(no_organization()))?;
            state.set("organization", organization.as_str());
        }
        Ok(())
    }

    async fn apply_change(&self, request: &ApplyRequest) -> (Option<Object>, Found) {
        let prepared = || -> Result<_, Found> {
            let resource = self.resource(&request.type_name).map_err(one)?;
            let schema = resource.schema();
            let present = decode(&schema, request.prior_state.as_ref())?;
            let planned = decode(&schema, request.planned_state.as_ref())?;
            let verb = match (&present, &planned) {
                (None, _) => "create",
                (Some(_), Some(_)) => "update",
                (Some(_), None) => "delete",
            };
            let patience = timeouts::of(planned.as_ref().or(present.as_ref()), verb);
            let key = String::from_utf8(request.planned_private.clone()).unwrap_or_default();
            let key = if key.is_empty() { new_key() } else { key };
            let call = self.call(patience.unwrap_or_else(|| resource.patience()), &key).map_err(one)?;
            Ok((resource, schema, call, present, planned))
        };
        let (resource, schema, call, present, planned) = match prepared() {
            Ok(prepared) => prepared,
            // Nothing was done; Terraform keeps what it has.
            Err(wrong) => {
                let kept = self.resource(&request.type_name).ok().and_then(|resource| {
                    decode(&resource.schema(), request.prior_state.as_ref()).ok().flatten()
                });
                return (kept, wrong);
            }
        };
        match (present, planned) {
            (None, None) => (None, Vec::new()),
            (Some(present), None) => match resource.delete(&call, &present).await {
                Ok(()) => {
                    if let Some(id) = present.text("id") {
                        self.settle(id);
                    }
                    (None, Vec::new())
                }
                Err(why) => (Some(present), vec![why]),
            },
            (None, Some(planned)) => match resource.create(&call, &planned).await {
                Ok(state) => (Some(state), Vec::new()),
                Err(failed) => {
                    let mut why = failed.why;
                    if failed.left.is_some() {
                        why.detail += " It exists: the next apply replaces it, unless you keep it with \
                                       `terraform untaint` and its address.";
                    }
                    (failed.left, vec![why])
                }
            },
            (Some(present), Some(planned)) => {
                // What was unknown while planning is known now, and may have become a change that is refused.
                let again = plan(&schema, Some(&present), &planned);
                if !again.refused.is_empty() {
                    return (Some(present), again.refused);
                }
                match resource.update(&call, &present, &planned).await {
                    Ok(state) => (Some(state), Vec::new()),
                    Err(failed) => (Some(failed.left.unwrap_or(present)), vec![failed.why]),
                }
            }
        }
    }

    async fn read_now(&self, request: &ReadRequest) -> Result<ReadAnswer, Found> {
        let resource = self.resource(&request.type_name).map_err(one)?;
        let schema = resource.schema();
        let kept = |diagnostics| ReadAnswer {
            new_state: request.current_state.clone(),
            diagnostics,
            private: request.private.clone(),
        };
        let Some(state) = decode(&schema, request.current_state.as_ref())? else {
            return Ok(kept(Vec::new()));
        };
        if let Configured::Unknown(names) = self.configured() {
            let warning = Diagnostic::warning(
                format!("{} was not looked at", request.type_name),
                format!(
                    "{} of the provider is not known yet; what changed outside is not seen.",
                    names.join(", ")
                ),
            );
            return Ok(kept(vec![warning.to_proto()]));
        }
        if let Some(id) = state.text("id") {
            self.settle(id);
        }
        let call = self.call(READ_PATIENCE, "").map_err(one)?;
        let found = resource.read(&call, &state).await.map_err(one)?;
        Ok(ReadAnswer {
            new_state: Some(found.map_or_else(null, |state| encode(&schema, &state))),
            diagnostics: Vec::new(),
            private: request.private.clone(),
        })
    }

    async fn import_now(&self, request: &ImportRequest) -> Result<ImportAnswer, Found> {
        let resource = self.resource(&request.type_name).map_err(one)?;
        let call = self.call(READ_PATIENCE, "").map_err(one)?;
        let state = resource.import(&call, &request.id).await.map_err(one)?;
        let imported = import_answer::Imported {
            type_name: request.type_name.clone(),
            state: Some(encode(&resource.schema(), &state)),
            private: Vec::new(),
        };
        Ok(ImportAnswer { resources: vec![imported], diagnostics: Vec::new() })
    }

    async fn read_data(&self, request: &ReadDataRequest) -> Result<ReadDataAnswer, Found> {
        let source = self.data_source(&request.type_name).map_err(one)?;
        let schema = source.schema();
        let config = decode(&schema, request.config.as_ref())?.unwrap_or_default();
        let call = self.call(READ_PATIENCE, "").map_err(one)?;
        let state = source.read(&call, &config).await.map_err(one)?;
        Ok(ReadDataAnswer { state: Some(encode(&schema, &state)), diagnostics: Vec::new() })
    }

    fn upgrade(&self, request: &UpgradeRequest) -> Result<Dynamic, Found> {
        let schema = self.resource(&request.type_name).map_err(one)?.schema();
        if request.version > 0 {
            return Err(one(Diagnostic::error(
                "The state is from a newer provider",
                format!(
                    "It has schema version {} of {}, and this provider knows 0. Use the provider's newer version.",
                    request.version, request.type_name
                ),
            )));
        }
        let raw = request.raw_state.as_ref().map(|raw| raw.json.as_slice()).unwrap_or_default();
        let state = Value::from_json(raw).and_then(|value| schema.fit(value)).map_err(|error| {
            one(Diagnostic::error(
                format!("The state of a {} is not readable", request.type_name),
                format!("{error}. Take it out with `terraform state rm` and import it again."),
            ))
        })?;
        Ok(state.map_or_else(null, |state| encode(&schema, &state)))
    }

    fn validate_resource(&self, request: &ValidateRequest) -> Result<(), Found> {
        let resource = self.resource(&request.type_name).map_err(one)?;
        let schema = resource.schema();
        let config = decode(&schema, request.config.as_ref())?.unwrap_or_default();
        let mut wrong = schema.check(&config);
        wrong.extend(resource.validate(&config));
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn validate_data(&self, request: &ValidateRequest) -> Result<(), Found> {
        let schema = self.data_source(&request.type_name).map_err(one)?.schema();
        let config = decode(&schema, request.config.as_ref())?.unwrap_or_default();
        let wrong = schema.check(&config);
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn settle(&self, id: &str) {
        if let Configured::Ready(api) = self.configured()
            && let Err(error) = api.journal.settle(id)
        {
            // The note stays until it is too old to be used; nothing is lost by it.
            eprintln!("a note of a finished creation was not removed: {error}");
        }
    }

    fn capabilities() -> Capabilities {
        Capabilities { plan_destroy: false, get_provider_schema_optional: true, move_resource_state: false }
    }
}

fn unknown_type(type_name: &str) -> Diagnostic {
    Diagnostic::error(
        format!("There is no {type_name}"),
        "This version of the provider does not have it. Correct the name, or use a newer version.",
    )
}

fn one(finding: Diagnostic) -> Found {
    vec![finding]
}

fn told(findings: &[Diagnostic]) -> Vec<crate::proto::Diagnostic> {
    findings.iter().map(Diagnostic::to_proto).collect()
}

fn null() -> Dynamic {
    Dynamic { msgpack: Value::Null.to_msgpack(), json: Vec::new() }
}

fn encode(schema: &Schema, object: &Object) -> Dynamic {
    Dynamic { msgpack: schema.complete(object).to_msgpack(), json: Vec::new() }
}

/// `None` for null, and for a value that is not there at all.
fn decode(schema: &Schema, value: Option<&Dynamic>) -> Result<Option<Object>, Found> {
    let Some(value) = value else { return Ok(None) };
    let read = if value.msgpack.is_empty() {
        if value.json.is_empty() {
            return Ok(None);
        }
        Value::from_json(&value.json)
    } else {
        Value::from_msgpack(&value.msgpack)
    };
    read.and_then(|value| schema.fit(value)).map_err(|error| {
        one(Diagnostic::error(
            "Terraform and this provider do not understand each other",
            format!("{error}. Run `terraform init -upgrade`; if that does not help, report it."),
        ))
    })
}

#[tonic::async_trait]
impl Provider for Server {
    async fn get_metadata(&self, _: Request<Empty>) -> Answer<Metadata> {
        let named = |type_name: &'static str| metadata::Named { type_name: type_name.to_owned() };
        Ok(Response::new(Metadata {
            capabilities: Some(Server::capabilities()),
            diagnostics: Vec::new(),
            data_sources: self.inner.data_sources.iter().map(|one| named(one.type_name())).collect(),
            resources: self.inner.resources.iter().map(|one| named(one.type_name())).collect(),
        }))
    }

    async fn get_provider_schema(&self, _: Request<Empty>) -> Answer<ProviderSchema> {
        let resources = self.inner.resources.iter();
        let data_sources = self.inner.data_sources.iter();
        Ok(Response::new(ProviderSchema {
            provider: Some(settings::schema().to_proto()),
            resources: resources.map(|one| (one.type_name().to_owned(), one.schema().to_proto())).collect(),
            data_sources: data_sources
                .map(|one| (one.type_name().to_owned(), one.schema().to_proto()))
                .collect(),
            diagnostics: Vec::new(),
            capabilities: Some(Server::capabilities()),
        }))
    }

    async fn get_functions(&self, _: Request<Empty>) -> Answer<Functions> {
        Ok(Response::new(Functions::default()))
    }

    async fn validate_provider_config(
        &self,
        request: Request<ValidateProviderRequest>,
    ) -> Answer<ValidateProviderAnswer> {
        let schema = settings::schema();
        let wrong = match decode(&schema, request.get_ref().config.as_ref()) {
            Ok(config) => schema.check(&config.unwrap_or_default()),
            Err(wrong) => wrong,
        };
        Ok(Response::new(ValidateProviderAnswer { diagnostics: told(&wrong) }))
    }

    async fn validate_resource_config(&self, request: Request<ValidateRequest>) -> Answer<Findings> {
        let wrong = self.validate_resource(request.get_ref()).err().unwrap_or_default();
        Ok(Response::new(Findings { diagnostics: told(&wrong) }))
    }

    async fn validate_data_resource_config(&self, request: Request<ValidateRequest>) -> Answer<Findings> {
        let wrong = self.validate_data(request.get_ref()).err().unwrap_or_default();
        Ok(Response::new(Findings { diagnostics: told(&wrong) }))
    }

    async fn validate_ephemeral_resource_config(
        &self,
        request: Request<ValidateRequest>,
    ) -> Answer<Findings> {
        Ok(Response::new(Findings { diagnostics: told(&[unknown_type(&request.get_ref().type_name)]) }))
    }

    async fn configure_provider(&self, request: Request<ConfigureRequest>) -> Answer<Findings> {
        let config = decode(&settings::schema(), request.get_ref().config.as_ref());
        let configured = config.and_then(|config| self.configure(&config.unwrap_or_default()));
        let wrong = match configured {
            Ok(configured) => {
                *self.inner.configured.write().unwrap_or_else(PoisonError::into_inner) = configured;
                Vec::new()
            }
            Err(wrong) => wrong,
        };
        Ok(Response::new(Findings { diagnostics: told(&wrong) }))
    }

    async fn stop_provider(&self, _: Request<Empty>) -> Answer<StopAnswer> {
        self.inner.stop.cancel();
        Ok(Response::new(StopAnswer::default()))
    }

    async fn upgrade_resource_state(&self, request: Request<UpgradeRequest>) -> Answer<UpgradeAnswer> {
        Ok(Response::new(match self.upgrade(request.get_ref()) {
            Ok(state) => UpgradeAnswer { upgraded_state: Some(state), diagnostics: Vec::new() },
            Err(wrong) => UpgradeAnswer { upgraded_state: None, diagnostics: told(&wrong) },
        }))
    }

    async fn import_resource_state(&self, request: Request<ImportRequest>) -> Answer<ImportAnswer> {
        let answer = self.import_now(request.get_ref()).await;
        Ok(Response::new(
            answer.unwrap_or_else(|wrong| ImportAnswer { resources: Vec::new(), diagnostics: told(&wrong) }),
        ))
    }

    async fn read_resource(&self, request: Request<ReadRequest>) -> Answer<ReadAnswer> {
        let answer = self.read_now(request.get_ref()).await;
        Ok(Response::new(answer.unwrap_or_else(|wrong| ReadAnswer {
            new_state: request.get_ref().current_state.clone(),
            diagnostics: told(&wrong),
            private: request.get_ref().private.clone(),
        })))
    }

    async fn plan_resource_change(&self, request: Request<PlanRequest>) -> Answer<PlanAnswer> {
        let answer = self.plan_change(request.get_ref());
        Ok(Response::new(answer.unwrap_or_else(|wrong| PlanAnswer {
            planned_state: request.get_ref().prior_state.clone(),
            diagnostics: told(&wrong),
            ..PlanAnswer::default()
        })))
    }

    async fn apply_resource_change(&self, request: Request<ApplyRequest>) -> Answer<ApplyAnswer> {
        let (state, wrong) = self.apply_change(request.get_ref()).await;
        let state = match (state, self.resource(&request.get_ref().type_name)) {
            (Some(state), Ok(resource)) => encode(&resource.schema(), &without_unknown(state)),
            _ => null(),
        };
        Ok(Response::new(ApplyAnswer {
            new_state: Some(state),
            private: Vec::new(),
            diagnostics: told(&wrong),
        }))
    }

    async fn move_resource_state(&self, request: Request<MoveRequest>) -> Answer<MoveAnswer> {
        let request = request.get_ref();
        let why = Diagnostic::error(
            format!("A {} cannot become a {}", request.source_type_name, request.target_type_name),
            "This provider moves state within one type only. Take it out with `terraform state rm`, or a \
             `removed` block, and import it as what it is to be.",
        );
        Ok(Response::new(MoveAnswer { target_state: None, diagnostics: told(&[why]) }))
    }

    async fn read_data_source(&self, request: Request<ReadDataRequest>) -> Answer<ReadDataAnswer> {
        let answer = self.read_data(request.get_ref()).await;
        Ok(Response::new(
            answer.unwrap_or_else(|wrong| ReadDataAnswer { state: None, diagnostics: told(&wrong) }),
        ))
    }

    async fn call_function(&self, request: Request<CallRequest>) -> Answer<CallAnswer> {
        let text = format!("this provider has no function {}", request.get_ref().name);
        Ok(Response::new(CallAnswer { result: None, error: Some(call_answer::CallError { text }) }))
    }
}

/// A state has no unknown values; what is not known of a thing that failed half-way is null.
fn without_unknown(state: Object) -> Object {
    fn known(value: Value) -> Value {
        match value {
            Value::Unknown => Value::Null,
            Value::List(items) => Value::List(items.into_iter().map(known).collect()),
            Value::Map(items) => {
                Value::Map(items.into_iter().map(|(key, item)| (key, known(item))).collect())
            }
            other => other,
        }
    }
    Object(state.0.into_iter().map(|(name, value)| (name, known(value))).collect())
}
