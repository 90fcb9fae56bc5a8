//! Signing in and out, members, invitations.

use base_ids::{Slug, UserId};
use fleet_model::{
    AcceptInvitation, ChangePassword, CreateMember, CreateSession, Hidden, Identity, Member, Role, Session,
    UpdateMember,
};
use reqwest::Method;

use crate::{Client, ClientError};

type Result<T> = std::result::Result<T, ClientError>;

impl Client {
    /// A session for a person. Its secret goes where an API token goes: into [`Client::new`].
    pub async fn sign_in(server: &str, ca_pem: &str, email: &str, password: Hidden) -> Result<Session> {
        let request = CreateSession { email: email.to_owned(), password };
        Client::new(server, ca_pem, "")?.post("/api/v1/sessions", Some(&request)).await
    }

    /// Takes up an invitation, and signs in by that.
    pub async fn accept_invitation(
        server: &str,
        ca_pem: &str,
        request: &AcceptInvitation,
    ) -> Result<Session> {
        Client::new(server, ca_pem, "")?.post("/api/v1/invitations/accept", Some(request)).await
    }

    /// Who is asking, and what they may.
    pub async fn identity(&self) -> Result<Identity> {
        self.get("/api/v1/session").await
    }
    pub async fn sign_out(&self) -> Result<()> {
        self.delete("/api/v1/session").await
    }
    /// Ends the person's other sessions.
    pub async fn change_password(&self, request: &ChangePassword) -> Result<()> {
        self.request(Method::PUT, "/api/v1/session/password", Some(request)).await.map(drop)
    }

    pub async fn members(&self, org: &Slug) -> Result<Vec<Member>> {
        self.all_pages(&format!("/api/v1/organizations/{org}/members")).await
    }
    pub async fn create_member(&self, org: &Slug, request: &CreateMember) -> Result<Member> {
        self.post(&format!("/api/v1/organizations/{org}/members"), Some(request)).await
    }
    pub async fn update_member(&self, org: &Slug, user: UserId, role: Role) -> Result<Member> {
        self.patch(&format!("/api/v1/organizations/{org}/members/{user}"), &UpdateMember { role }).await
    }
    pub async fn delete_member(&self, org: &Slug, user: UserId) -> Result<()> {
        self.delete(&format!("/api/v1/organizations/{org}/members/{user}")).await
    }
}
