//! The REST API without a network: a whole manager, asked through its router.
//!
//! Behaviours are written once and run on SQLite and on a real PostgreSQL ([`suite`]). Cells are rows that
//! nobody answers for: what needs one is tested from the outside (`tests/`).

mod authorization;
mod bodies;
mod idempotency;
mod identity;
mod lifecycle;
mod openapi;
mod races;
mod revocations;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use base_clock::{ManualClock, Timestamp};
use base_ids::{CellId, OrgId, Slug, TenantId};
use base_net::pki::{Ca, Profile, YEAR};
use base_net::tasks::Tasks;
use dev_testkit::Postgres;
use fleet_model::{CreateToken, Email, Hidden, Organization, Role};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::auth::secret;
use crate::db::{NewToken, sql};
use crate::http::Peer;
use crate::{Config, Manager, Place};

pub(super) const OPERATOR: &str = "operator@roadstead.local";
pub(super) const PASSWORD: &str = "correct horse battery";

/// Every behaviour that depends on the database, by name.
macro_rules! suite {
    ($($module:ident :: $name:ident),* $(,)?) => {
        async fn suite(mut place: impl FnMut() -> Place) {
            $(
                eprintln!(concat!(stringify!($module), "::", stringify!($name)));
                let harness = Harness::start(place()).await;
                $module::$name(&harness).await;
                harness.stop().await;
            )*
        }
    };
}
suite!(
    identity::people_sign_in_and_out,
    identity::a_wrong_password_and_an_unknown_person_are_alike,
    identity::wrong_passwords_run_out,
    identity::sessions_slide_and_end,
    identity::a_new_password_ends_other_sessions,
    identity::a_cookie_works_from_our_own_pages_only,
    identity::an_invitation_works_once,
    identity::an_account_is_whoever_knows_its_password,
    identity::the_last_admin_stays,
    identity::nobody_makes_a_token_mightier_than_themselves,
    identity::a_token_falls_with_its_maker,
    identity::a_token_of_one_cluster_sees_no_other,
    identity::hostile_values_are_refused_with_words,
    identity::an_address_that_is_nobody_s_is_forgotten,
    identity::an_expired_token_is_listed_for_a_while,
    identity::lists_come_in_pages,
    bodies::every_refused_field_is_named,
    idempotency::the_first_answer_again,
    idempotency::another_body_is_another_request,
    idempotency::a_refusal_is_not_kept,
    idempotency::work_without_a_record_is_found_again,
    idempotency::its_own_earlier_work_is_no_reason_to_refuse,
    idempotency::a_running_request_is_not_started_twice,
    idempotency::kept_secrets_are_sealed,
    races::one_name_goes_to_one_of_many,
    races::one_key_is_worked_on_once,
    races::patches_of_different_fields_all_hold,
    races::one_invitation_lets_one_in,
    races::two_admins_cannot_both_leave,
    races::a_removed_member_stops_at_once,
    revocations::who_may_less_is_refused_by_clusters,
    revocations::a_provider_s_token_is_refused_everywhere,
    revocations::revocations_are_bounded,
    lifecycle::pools_follow_what_is_asked_and_reported,
    lifecycle::a_cluster_is_changed_in_place_and_ends_in_a_receipt,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let mut number = 0;
    suite(|| {
        number += 1;
        Place::Sqlite(dir.path().join(format!("{number}.db")))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let mut postgres = Postgres::start().unwrap();
    suite(|| postgres.database().unwrap().parse().unwrap()).await;
}

/// A manager whose clock stands still.
pub(super) struct Harness {
    pub(super) manager: Manager,
    pub(super) clock: Arc<ManualClock>,
    router: Router,
    tasks: Tasks,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl Answered {
    pub(super) fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_else(|| panic!("no {field} in {self:?}")).to_owned()
    }
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
    #[track_caller]
    pub(super) fn is(self, status: u16) -> Answered {
        assert_eq!(self.status.as_u16(), status, "{:?}", self.body);
        self
    }
}

/// Who asks, and how they show it.
#[derive(Debug, Clone)]
pub(super) enum Who {
    Nobody,
    Bearer(String),
    /// With these further headers.
    Cookie(String, Vec<(&'static str, &'static str)>),
}

impl Harness {
    pub(super) async fn start(database: Place) -> Harness {
        let ca = Ca::generate("test").unwrap();
        let profile = Profile {
            common_name: "manager".to_owned(),
            organizations: vec!["roadstead".to_owned()],
            dns_names: vec!["manager".to_owned()],
            ip_addresses: vec![],
            server: true,
            client: true,
            lifetime: YEAR,
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config {
            listen: any,
            rpc_listen: any,
            database,
            https: ca.issue(&profile).unwrap(),
            fleet_ca_pem: ca.cert_pem().to_owned(),
            fleet: ca.issue(&profile).unwrap(),
            gateway_addresses: vec![any],
        };
        let clock = ManualClock::new("2026-12-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let tasks = Tasks::new();
        let manager = Manager::start(config, clock.clone(), &tasks).await.unwrap();
        let router = crate::http::router(manager.state.clone());
        Harness { manager, clock, router, tasks }
    }

    pub(super) async fn stop(self) {
        assert!(self.tasks.stop(Duration::from_secs(30)).await, "the manager did not stop");
    }

    pub(super) async fn send(&self, who: &Who, method: &str, path: &str, body: Option<Value>) -> Answered {
        let body = body.map(|body| body.to_string());
        self.send_with(who, method, path, body, &[]).await
    }

    pub(super) async fn send_with(
        &self,
        who: &Who,
        method: &str,
        path: &str,
        body: Option<String>,
        headers: &[(&str, &str)],
    ) -> Answered {
        let mut request = Request::builder().method(method).uri(path).header("host", "roadstead.test:8443");
        match who {
            Who::Nobody => {}
            Who::Bearer(secret) => request = request.header("authorization", format!("Bearer {secret}")),
            Who::Cookie(secret, more) => {
                request = request.header("cookie", format!("theme=dark; __Host-roadstead={secret}"));
                for (name, value) in more {
                    request = request.header(*name, *value);
                }
            }
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let mut request = request.body(Body::from(body.unwrap_or_default())).unwrap();
        request.extensions_mut().insert(Peer(SocketAddr::from(([192, 0, 2, 1], 4711))));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        // A stream of events does not end; who is interested in its status does not read it.
        let is_stream = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let bytes =
            if is_stream { Default::default() } else { axum::body::to_bytes(body, 1 << 20).await.unwrap() };
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answered { status: parts.status, headers: parts.headers, body }
    }

    pub(super) async fn provider(&self) -> Who {
        let request = CreateToken {
            description: "test".to_owned(),
            role: Role::Provider,
            organization: None,
            cluster: None,
            expires_in_seconds: None,
        };
        Who::Bearer(self.manager.create_token(&request).await.unwrap().secret)
    }

    pub(super) async fn organization(&self, name: &str) -> Organization {
        let organization =
            Organization { id: OrgId::generate(), name: name.parse().unwrap(), created_at: self.now() };
        self.manager.state.db.insert_organization(&organization).await.unwrap();
        organization
    }

    /// A person with `PASSWORD`, as a member, signed in.
    pub(super) async fn member(&self, organization: &str, email: &str, role: &str) -> Who {
        let provider = self.provider().await;
        let path = format!("/api/v1/organizations/{organization}/members");
        let made =
            self.send(&provider, "POST", &path, Some(json!({"email": email, "role": role}))).await.is(201);
        let accept = json!({"invitation": made.text("invitation"), "name": email, "password": PASSWORD});
        let session =
            self.send(&Who::Nobody, "POST", "/api/v1/invitations/accept", Some(accept)).await.is(201);
        Who::Bearer(session.text("secret"))
    }

    pub(super) async fn user_id(&self, email: &str) -> String {
        let email: Email = email.parse().unwrap();
        self.manager.state.db.user_by_email(&email).await.unwrap().unwrap().user.id.to_string()
    }

    pub(super) async fn operator(&self) {
        let email: Email = OPERATOR.parse().unwrap();
        self.manager.create_operator(&email, "Operator", &Hidden::new(PASSWORD)).await.unwrap();
    }

    /// A cluster that is `ready`, on a cell that does not answer.
    pub(super) async fn cluster(&self, organization: OrgId, name: &str) -> TenantId {
        let id = TenantId::generate();
        self.cluster_as(id, organization, name).await;
        id
    }

    /// The same under a given id.
    pub(super) async fn cluster_as(&self, id: TenantId, organization: OrgId, name: &str) {
        let db = &self.manager.state.db;
        let cell = match db.cells().await.unwrap().first() {
            Some(cell) => cell.id,
            None => {
                let (id, name): (CellId, Slug) = (CellId::generate(), "nowhere".parse().unwrap());
                // Nobody listens on port 1 of a test machine.
                let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
                db.upsert_cell(id, &name, nowhere, nowhere, 1000).await.unwrap();
                id
            }
        };
        db.run(
            sql("INSERT INTO clusters (id, organization_id, name, state, kubernetes_version, cell_id, created_ms)
                 VALUES ($1, $2, $3, 'ready', 'v1.36.0', $4, $5)")
            .bind(id)
            .bind(organization)
            .bind(name)
            .bind(cell)
            .bind(self.now()),
        )
        .await
        .unwrap();
        db.run(
            sql("INSERT INTO cluster_replicas (cluster_id, number, cell_id) VALUES ($1, 1, $2)")
                .bind(id)
                .bind(cell),
        )
        .await
        .unwrap();
    }

    /// A token straight from the database's holder.
    pub(super) async fn token(
        &self,
        organization: Option<OrgId>,
        role: Role,
        cluster: Option<TenantId>,
        expires_at: Option<Timestamp>,
    ) -> Who {
        let fresh = secret::fresh(secret::TOKEN);
        let new = NewToken {
            id: &fresh.id,
            description: "test",
            role,
            organization,
            cluster,
            made_by: None,
            secret_hash: &fresh.hash,
            created_at: self.now(),
            expires_at,
        };
        self.manager.state.db.put_token(&new).await.unwrap();
        Who::Bearer(fresh.shown)
    }

    pub(super) fn now(&self) -> Timestamp {
        use base_clock::Clock;
        self.clock.now()
    }

    pub(super) fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}
