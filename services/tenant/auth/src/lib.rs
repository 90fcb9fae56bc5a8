//! Who is asking, and may they.
//!
//! [`Authenticator`] turns a certificate, a bearer token or nothing into a `UserInfo`; [`Authority`]
//! answers whether that user may do a thing (the masters' bypass, then the node authorizer, then
//! [`Rbac`]). [`ClusterPki`] holds the keys of one cluster, [`TokenIssuer`] signs service-account tokens, [`issue_person_token`] those of signed-in people,
//! [`policy::default_objects`] is what RBAC starts with, and [`review`] answers the review APIs
//! (SubjectAccessReview and its kin), and [`NoEscalation`] goes into the admission chain. Start at [`Authenticator::authenticate`] and [`Rbac`].
//!
//! Everything reads the cluster's key space directly, in memory: a request is decided without waiting.
//! Rules parsed from bodies that many clusters share are shared too, and so is the whole index of a
//! cluster that still has exactly the default objects.
//!
//! Not here: TLS handshakes (`base-net`), HTTP, writing anything, audit.

mod authenticate;
mod authority;
mod bootstrap_token;
mod node;
mod person_token;
mod pki;
pub mod policy;
mod rbac;
pub mod review;
mod revocations;
mod stored;
mod token;
mod token_request;

pub use authenticate::{Authenticator, Credentials, Identity, Refusal};
pub use authority::{Authority, forbidden};
pub use bootstrap_token::NODE_OF_TOKEN;
pub use node::NodeAuthorizer;
pub use person_token::{LONGEST_PERSON_TOKEN_SECONDS, issue_person_token};
pub use pki::{ClusterPki, PkiEntryError, is_api_server_name, kubeconfig};
pub use rbac::{Grant, NoEscalation, Rbac, Rule, covers};
pub use revocations::Revocation;
pub use token::{BoundTo, Claims, ISSUER, KubernetesClaims, Reference, TokenError, TokenIssuer, TokenKeys};
pub use token_request::issue_token;
