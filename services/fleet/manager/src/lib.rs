//! Organisations, clusters and API tokens over SQL, behind a REST API.
//!
//! A request changes rows first; `lifecycle` makes cells agree with them, and whatever a crash leaves half
//! done it finishes, since it only ever looks at the rows. Start at
//! [`Manager::start`]; routes are in `http/routes.rs`, statements in `db`.
//!
//! Not here: a cluster's keys or objects (the manager sees certificates only), serving its clients.

mod auth;
mod belonging;
mod cells;
mod db;
mod http;
mod lifecycle;
mod observe;
mod problem;
mod proxy;
mod replicas;
mod returned;
mod routing;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base_clock::{SharedClock, Timestamp};
use base_ids::{CellId, Slug, UserId};
use base_net::pki::Issued;
use base_net::tasks::Tasks;
use base_net::tls::TlsError;
use fleet_model::{ApiToken, CreateToken, CreatedToken, Email, Hidden, User};
use tokio::sync::Semaphore;

pub use auth::password::PasswordError;
pub use belonging::{Belonging, belonging, claim};
pub use db::{DbError, ParsePlaceError, Place};
pub use returned::Unserved;

/// How this manager is reached and where it keeps its state.
#[derive(Debug, Clone)]
pub struct Config {
    /// REST over HTTPS.
    pub listen: SocketAddr,
    /// gRPC for gateways.
    pub rpc_listen: SocketAddr,
    pub database: Place,
    /// What the REST listener shows.
    pub https: Issued,
    /// mTLS with cells and gateways.
    pub fleet_ca_pem: String,
    pub fleet: Issued,
    /// Addresses (`ip:port`) of the gateway, the first of which goes into kubeconfigs.
    pub gateway_addresses: Vec<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    #[error("cannot listen on {address}: {cause}; is another manager running?")]
    Listen { address: SocketAddr, cause: std::io::Error },
    #[error("database")]
    Db(#[from] DbError),
    #[error("the database knows another cell that is called {0}; give this one another name")]
    CellName(Slug),
    #[error("TLS")]
    Tls(#[from] TlsError),
    #[error("certificate")]
    Pki(#[from] base_net::pki::PkiError),
    #[error("password")]
    Password(#[from] PasswordError),
    #[error("the key that signs receipts")]
    Receipts(#[from] lifecycle::receipts::ReceiptError),
    #[error("gRPC TLS")]
    Rpc(#[from] tonic::transport::Error),
}

/// A running manager. Clones are handles.
#[derive(Clone)]
pub struct Manager {
    state: Arc<State>,
    /// Where REST is served.
    pub rest_address: SocketAddr,
    /// Where gateways find the routing table.
    pub rpc_address: SocketAddr,
}

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) db: db::Db,
    pub(crate) cells: cells::Cells,
    pub(crate) routes: routing::Publisher,
    pub(crate) observed: observe::Observed,
    pub(crate) clock: SharedClock,
    pub(crate) metrics: http::Metrics,
    pub(crate) passwords: auth::password::Hasher,
    pub(crate) throttle: auth::throttle::Throttle,
    /// Wakes the driver.
    pub(crate) nudge: tokio::sync::Notify,
    /// Wakes event streams.
    pub(crate) changes: lifecycle::changes::Changes,
    pub(crate) turns: lifecycle::driver::Turns,
    pub(crate) providers: lifecycle::reports::Providers,
    pub(crate) receipts: lifecycle::receipts::Receipts,
    pub(crate) links: proxy::Links,
    pub(crate) tokens: proxy::Tokens,
    /// Event streams and proxied requests at the same time; whoever comes to a full house is told so.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) proxied: Arc<Semaphore>,
    pub(crate) tasks: Tasks,
}

impl State {
    /// In whole milliseconds, which is what the database keeps: what is answered at once and what is read
    /// later are the same moment.
    pub(crate) fn now(&self) -> Timestamp {
        let now = self.clock.now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }
}

/// A page holds one event stream and a few watches open.
const MAX_EVENT_STREAMS: usize = 1024;
const MAX_PROXIED: usize = 4096;

impl Manager {
    /// Opens the database, binds both listeners and starts the driver.
    pub async fn start(config: Config, clock: SharedClock, tasks: &Tasks) -> Result<Manager, ManagerError> {
        let db = db::Db::open(&config.database).await?;
        let receipts = lifecycle::receipts::Receipts::open(&db).await?;
        let cells = cells::Cells::new(&config.fleet_ca_pem, &config.fleet);
        let state = Arc::new(State {
            db,
            cells,
            routes: routing::Publisher::default(),
            observed: observe::Observed::default(),
            clock,
            metrics: http::Metrics::default(),
            passwords: auth::password::Hasher::new()?,
            throttle: auth::throttle::Throttle::default(),
            nudge: tokio::sync::Notify::new(),
            changes: lifecycle::changes::Changes::default(),
            turns: lifecycle::driver::Turns::default(),
            providers: lifecycle::reports::Providers::default(),
            receipts,
            links: proxy::Links::default(),
            tokens: proxy::Tokens::default(),
            streams: Arc::new(Semaphore::new(MAX_EVENT_STREAMS)),
            proxied: Arc::new(Semaphore::new(MAX_PROXIED)),
            tasks: tasks.clone(),
            config,
        });
        routing::publish(&state).await?;
        let rpc_address = routing::serve(state.clone(), tasks).await?;
        let rest_address = http::serve(state.clone(), tasks).await?;
        tasks.spawn(lifecycle::driver::run(state.clone()));
        tasks.spawn(lifecycle::reports::run(state.clone()));
        tasks.spawn(observe::run(state.clone()));
        tasks.spawn(forget_ended(state.clone()));
        let (closing, stop) = (state.clone(), tasks.stopping());
        tasks.spawn_to_end(async move {
            stop.cancelled().await;
            closing.db.close().await;
        });
        Ok(Manager { state, rest_address, rpc_address })
    }

    /// Makes a cell known, or says where it is now; which clusters it cannot serve. [`ManagerError::CellName`] when
    /// another one has its name.
    pub async fn register_cell(
        &self,
        id: CellId,
        name: &Slug,
        rpc_address: SocketAddr,
        api_address: SocketAddr,
        capacity: u32,
    ) -> Result<Vec<Unserved>, ManagerError> {
        self.state.db.upsert_cell(id, name, rpc_address, api_address, capacity).await.map_err(|error| {
            match error {
                DbError::Constraint => ManagerError::CellName(name.clone()),
                other => ManagerError::Db(other),
            }
        })?;
        self.state.cells.moved(id);
        routing::publish(&self.state).await?;
        let unserved = returned::take_stock(&self.state, id, name).await?;
        self.state.nudge.notify_one();
        Ok(unserved)
    }

    /// A token made by whoever holds the database, for the first sign-in.
    pub async fn create_token(&self, request: &CreateToken) -> Result<CreatedToken, ManagerError> {
        let bounds = auth::Bounds {
            id: auth::secret::random_hex::<8>(),
            organization: None,
            cluster: None,
            made_by: None,
            ends_at: None,
        };
        Ok(auth::create_token(&self.state, request, bounds).await?)
    }

    /// Whether somebody signs in with this address.
    pub async fn has_user(&self, email: &Email) -> Result<bool, ManagerError> {
        Ok(self.state.db.user_by_email(email).await?.is_some())
    }

    /// Makes one of the provider's operators.
    pub async fn create_operator(
        &self,
        email: &Email,
        name: &str,
        password: &Hidden,
    ) -> Result<(), ManagerError> {
        auth::password::check(password)?;
        let hash = self.state.passwords.hash(password).await?;
        let user = User { id: UserId::generate(), email: email.clone(), name: name.to_owned() };
        Ok(self.state.db.insert_user(&user, &hash, true, self.state.now()).await?)
    }

    /// Whether `secret` is a token that works.
    pub async fn accepts(&self, secret: &str) -> Result<bool, ManagerError> {
        Ok(auth::find(&self.state, secret).await?.is_some())
    }

    /// Tokens, as listed.
    pub async fn tokens(&self) -> Result<Vec<ApiToken>, ManagerError> {
        Ok(self.state.db.tokens(db::TokenScope::default(), "", i64::MAX).await?)
    }
}

/// Ended sessions, void invitations and old answers are swept this often; nothing depends on it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(600);

/// How long people can look up what became of an operation; receipts are kept for ever.
const OPERATIONS_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

async fn forget_ended(state: Arc<State>) {
    loop {
        let now = state.now();
        let operations = now.saturating_sub(OPERATIONS_KEPT).unwrap_or(now);
        if let Err(error) = state.db.forget_operations(operations).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "old operations are still in the database"
            );
        }
        let answers = now.saturating_sub(http::idempotency::KEPT).unwrap_or(now);
        if let Err(error) = state.db.forget_ended(now, answers).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what has ended is still in the database"
            );
        }
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}
