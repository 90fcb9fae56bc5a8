use base_clock::{Clock, ManualClock};
use base_net::pki::{Profile, YEAR, certs_from_pem};
use http::{HeaderName, HeaderValue};
use serde_json::json;
use store_mvcc::{Command, Expect, Limits, Op, Term};
use tenant_client::Decision;

use super::*;
use crate::rbac::tests::put;
use crate::token::{BoundTo, Claims};
use crate::token_request::issue_token;
use crate::{Authority, review};
use api_machinery::Document;

struct Cluster {
    pki: ClusterPki,
    space: Arc<Space>,
    clock: Arc<ManualClock>,
    authenticator: Authenticator,
}

const SA_UID: &str = "0190163d-8694-739b-aea5-966c26f8ad91";
const POD_UID: &str = "0190163d-8694-739b-aea5-966c26f8ad92";
const NODE_UID: &str = "0190163d-8694-739b-aea5-966c26f8ad93";

fn cluster() -> Cluster {
    let pki = ClusterPki::generate().unwrap();
    let space = Arc::new(Space::new(Limits::default()));
    let clock = ManualClock::new("2026-11-30T21:00:00Z".parse().unwrap());
    put(&space, "serviceaccounts", json!({"metadata": {"name": "web", "namespace": "blue", "uid": SA_UID}}));
    put(&space, "pods", pod(json!({})));
    put(&space, "nodes", json!({"metadata": {"name": "n1", "uid": NODE_UID}}));
    let authenticator = Authenticator::new(&pki, space.clone(), clock.clone()).unwrap();
    Cluster { pki, space, clock, authenticator }
}

fn pod(more: serde_json::Value) -> serde_json::Value {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "blue", "uid": POD_UID},
        "spec": {"serviceAccountName": "web", "nodeName": "n1"}});
    for (key, value) in more.as_object().unwrap() {
        pod["metadata"][key] = value.clone();
    }
    pod
}

/// May impersonate what its name says, and nothing else.
struct Allows(&'static [&'static str]);

impl Authorizer for Allows {
    fn decide(&self, _: &UserInfo, access: &Access) -> Decision {
        let Target::Resource { resource, subresource, namespace, name, .. } = &access.target else {
            return Decision::NoOpinion { reason: String::new() };
        };
        let asked = format!("{} {resource}/{subresource} {namespace}/{name}", access.verb);
        if self.0.contains(&asked.as_str()) {
            Decision::Allow { reason: String::new() }
        } else {
            Decision::NoOpinion { reason: String::new() }
        }
    }
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers
            .append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    headers
}

impl Cluster {
    fn ask(&self, cert_pem: Option<&str>, pairs: &[(&str, &str)]) -> Result<UserInfo, Refusal> {
        let chain = cert_pem.map(|pem| certs_from_pem(pem).unwrap()).unwrap_or_default();
        let headers = headers(pairs);
        let credentials = Credentials { peer_certificates: &chain, headers: &headers };
        self.authenticator.authenticate(&credentials, &Allows(&[])).map(|identity| identity.user)
    }
    fn bearer(&self, token: &str) -> Result<UserInfo, Refusal> {
        self.ask(None, &[("Authorization", &format!("Bearer {token}"))])
    }
    fn request(&self, spec: serde_json::Value) -> Result<Document, Status> {
        let request = Document::from_value(json!({"spec": spec})).unwrap();
        issue_token(&self.space, self.pki.issuer(), "blue", "web", request, self.clock.now())
    }
    fn token(&self, spec: serde_json::Value) -> String {
        self.request(spec).unwrap().get_str("status.token").unwrap().to_owned()
    }
    fn delete(&self, collection: &str, name: &str) {
        let op = Op::Delete { key: Key::new(collection, name), expect: Expect::Any };
        self.space.apply(Term(1), &Command { ops: vec![op], ..Command::default() }).unwrap();
    }
}

#[test]
fn certificates_name_users_by_the_authority_that_signed_them() {
    let cluster = cluster();
    let ann = cluster.pki.issue_client("ann", &["ops", "dev"], YEAR).unwrap();
    let user = cluster.ask(Some(&ann.cert_pem), &[]).unwrap();
    assert_eq!(
        (user.name.as_str(), user.groups.join(" ")),
        ("ann", "ops dev system:authenticated".to_owned())
    );
    assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("X509SHA256="));

    // A client's word about somebody else counts for nothing; a front proxy's does.
    let remote = [
        ("X-Remote-User", "bob"),
        ("X-Remote-Group", "g1"),
        ("X-Remote-Group", "g2"),
        ("X-Remote-Extra-Scopes%2fA", "x"),
    ];
    assert_eq!(cluster.ask(Some(&ann.cert_pem), &remote).unwrap().name, "ann");
    let proxy = cluster.pki.front_proxy_client().unwrap();
    let user = cluster.ask(Some(&proxy.cert_pem), &remote).unwrap();
    assert_eq!((user.name.as_str(), user.groups.join(" ")), ("bob", "g1 g2 system:authenticated".to_owned()));
    assert_eq!(user.extra["scopes/a"], ["x"]);
    // And its own certificate makes it nobody.
    assert_eq!(cluster.ask(Some(&proxy.cert_pem), &[]).unwrap().name, "system:anonymous");
    assert_eq!(cluster.ask(None, &remote).unwrap().name, "system:anonymous");

    let server = cluster.pki.server_identity(&[], &[]).unwrap();
    assert_eq!(
        cluster.ask(Some(&server.cert_pem), &[]).unwrap().name,
        "system:anonymous",
        "a server is no client"
    );
    let nameless =
        cluster.pki.ca().issue(&Profile { client: true, lifetime: YEAR, ..Profile::default() }).unwrap();
    assert_eq!(cluster.ask(Some(&nameless.cert_pem), &[]).unwrap().name, "system:anonymous");
}

#[test]
fn a_bearer_token_is_good_or_a_401() {
    let cluster = cluster();
    let token = cluster.token(json!({}));
    for _ in 0..2 {
        let user = cluster.bearer(&token).unwrap();
        assert_eq!(user.name, "system:serviceaccount:blue:web");
        assert_eq!(
            user.groups.join(" "),
            "system:serviceaccounts system:serviceaccounts:blue system:authenticated"
        );
        assert_eq!(user.uid, SA_UID);
    }
    let encoded = URL_SAFE_NO_PAD.encode(&token);
    let protocol = format!("v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}");
    let user = cluster.ask(None, &[("Sec-WebSocket-Protocol", &protocol)]).unwrap();
    assert_eq!(user.name, "system:serviceaccount:blue:web");

    let stranger = ClusterPki::generate().unwrap();
    let account = Reference { name: "web".to_owned(), uid: SA_UID.to_owned() };
    let claims =
        Claims::new("blue", account, BoundTo::Nothing, vec![ISSUER.to_owned()], cluster.clock.now(), 600);
    let stolen = stranger.issuer().sign(&claims).unwrap();
    let vault = cluster.token(json!({"audiences": ["vault"]}));
    for (row, token) in [("rubbish", "x"), ("another cluster's", &stolen), ("another audience's", &vault)] {
        let refused = cluster.bearer(token).unwrap_err();
        assert_eq!(refused.to_status().code, 401, "{row}");
        assert_eq!(refused.to_status().message, "Unauthorized", "{row}");
    }
    // A certificate goes before a token, as upstream has it.
    let ann = cluster.pki.issue_client("ann", &[], YEAR).unwrap();
    assert_eq!(cluster.ask(Some(&ann.cert_pem), &[("Authorization", "Bearer x")]).unwrap().name, "ann");
    // Other schemes, and no token at all, are nobody.
    for header in ["Basic YTpi", "Bearer ", "Bearer"] {
        assert_eq!(
            cluster.ask(None, &[("Authorization", header)]).unwrap().name,
            "system:anonymous",
            "{header:?}"
        );
    }

    cluster.clock.advance(std::time::Duration::from_secs(3600 + 61));
    assert!(cluster.bearer(&token).is_err(), "remembered tokens expire too");
}

#[test]
fn a_signed_in_person_comes_with_a_short_token() {
    let c = cluster();
    let viewers = ["roadstead:viewers".to_owned()];
    let (token, _) =
        crate::issue_person_token(c.pki.issuer(), "ada@example.com", &viewers, c.clock.now(), 600).unwrap();
    let user = c.bearer(&token).unwrap();
    assert_eq!(user.name, "ada@example.com");
    assert_eq!(user.groups, ["roadstead:viewers", UserInfo::AUTHENTICATED]);
    // No TokenReview of somebody else's audience finds a person.
    let vault = ["vault".to_owned()];
    assert_eq!(c.authenticator.authenticate_token(&token, &vault), Err(TokenError::Foreign));
    c.clock.advance(std::time::Duration::from_secs(600));
    assert!(matches!(c.bearer(&token), Err(Refusal::Unauthorized(_))));
}

#[test]
fn what_was_issued_before_a_revocation_is_a_401() {
    let c = cluster();
    let at = |second| std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second);
    let cut: Timestamp = "2026-11-30T21:00:00.5Z".parse().unwrap();
    let second = u64::try_from(cut.as_second()).unwrap();
    let certificate = |user: &str, issued| {
        c.pki.issue_client_at(user, &["kubeadm:cluster-admins"], at(issued), YEAR).unwrap().cert_pem
    };
    let token = |user: &str, ago| {
        let issued = cut - jiff::SignedDuration::from_secs(ago);
        crate::issue_person_token(c.pki.issuer(), user, &[], issued, 600).unwrap().0
    };
    let rows = [
        ("a certificate from before", Some(certificate("ann@red.example", second - 60)), None, false),
        ("one of that second", Some(certificate("ann@red.example", second)), None, false),
        ("one of the second after", Some(certificate("ann@red.example", second + 1)), None, true),
        ("somebody else's", Some(certificate("bob@red.example", second - 60)), None, true),
        ("a node's", Some(certificate("system:node:n1", second - 60)), None, true),
        ("a token from before", None, Some(token("ann@red.example", 60)), false),
        ("somebody else's token", None, Some(token("bob@red.example", 60)), true),
        ("a token from after", None, Some(token("ann@red.example", -2)), true),
        // A certificate that is refused is not made good by a token.
        (
            "both",
            Some(certificate("ann@red.example", second - 60)),
            Some(token("bob@red.example", 60)),
            false,
        ),
    ];
    c.clock.advance(std::time::Duration::from_secs(3));
    let ask = |certificate: &Option<String>, token: &Option<String>| {
        let bearer = token.as_ref().map(|token| format!("Bearer {token}"));
        let pairs: Vec<(&str, &str)> = bearer.iter().map(|text| ("Authorization", text.as_str())).collect();
        c.ask(certificate.as_deref(), &pairs)
    };
    for (row, certificate, token, _) in &rows {
        assert!(ask(certificate, token).is_ok(), "{row}, with nothing revoked");
    }
    let revocation = Revocation { user: "ann@red.example".to_owned(), before_ms: cut.as_millisecond() };
    c.authenticator.revoke([revocation]);
    for (row, certificate, token, fine) in &rows {
        match ask(certificate, token) {
            Ok(_) => assert!(fine, "{row} is let in"),
            Err(refusal) => {
                assert!(!fine, "{row}: {refusal}");
                assert_eq!(refusal.to_status(), Status::unauthorized(), "{row}");
            }
        }
    }
}

#[test]
fn tokens_end_with_what_they_are_bound_to() {
    let bound =
        |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    let gone = |cluster: &Cluster| cluster.delete("pods", "blue/p");
    let account_gone = |cluster: &Cluster| cluster.delete("serviceaccounts", "blue/web");
    let replaced = |cluster: &Cluster| {
        let other = "0190163d-8694-739b-aea5-966c26f8ad99";
        put(&cluster.space, "pods", pod(json!({"uid": other})));
    };
    let deleting = |cluster: &Cluster| {
        put(&cluster.space, "pods", pod(json!({"deletionTimestamp": "2026-11-30T20:58:00Z"})));
    };
    let deleting_later = |cluster: &Cluster| {
        put(&cluster.space, "pods", pod(json!({"deletionTimestamp": "2026-11-30T21:00:30Z"})));
    };
    let labelled = |cluster: &Cluster| put(&cluster.space, "pods", pod(json!({"labels": {"a": "b"}})));
    let node_gone = |cluster: &Cluster| cluster.delete("nodes", "n1");
    type Change<'a> = &'a dyn Fn(&Cluster);
    for (row, spec, change, fine) in [
        ("pod deleted", bound("Pod", "p"), &gone as Change<'_>, false),
        ("pod replaced", bound("Pod", "p"), &replaced, false),
        ("pod being deleted for long", bound("Pod", "p"), &deleting, false),
        ("pod being deleted", bound("Pod", "p"), &deleting_later, true),
        ("pod labelled", bound("Pod", "p"), &labelled, true),
        ("account deleted", bound("Pod", "p"), &account_gone, false),
        ("not bound to the pod", json!({}), &gone, true),
        ("a pod's node is a mere remark", bound("Pod", "p"), &node_gone, true),
        ("bound to the node", bound("Node", "n1"), &node_gone, false),
    ] {
        let cluster = cluster();
        let token = cluster.token(spec);
        assert!(cluster.bearer(&token).is_ok(), "{row}");
        change(&cluster);
        assert_eq!(cluster.bearer(&token).is_ok(), fine, "{row}");
    }
    // While a pod is being deleted its token works for a minute after its deletionTimestamp, no longer.
    let cluster = cluster();
    let token = cluster.token(bound("Pod", "p"));
    deleting_later(&cluster);
    assert!(cluster.bearer(&token).is_ok());
    cluster.clock.advance(std::time::Duration::from_secs(120));
    assert!(cluster.bearer(&token).is_err());
}

#[test]
fn token_requests_are_answered_or_refused_in_upstreams_words() {
    let cluster = cluster();
    let pod = |more: serde_json::Value| {
        let mut spec = json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}});
        for (key, value) in more.as_object().unwrap() {
            spec["boundObjectRef"][key] = value.clone();
        }
        spec
    };
    let answer = cluster.request(json!({"expirationSeconds": 7200})).unwrap();
    assert_eq!(answer.get_str("status.expirationTimestamp"), Some("2026-11-30T23:00:00Z"));
    assert_eq!(answer.get("spec.audiences"), Some(&json!([ISSUER])));
    assert_eq!(answer.kind(), "TokenRequest");

    let claims = cluster.pki.issuer().keys().verify(&cluster.token(pod(json!({})))).unwrap();
    assert_eq!(claims.kubernetes.pod, Some(Reference { name: "p".to_owned(), uid: POD_UID.to_owned() }));
    assert_eq!(claims.kubernetes.node, Some(Reference { name: "n1".to_owned(), uid: NODE_UID.to_owned() }));
    let mut injected = pod(json!({}));
    injected["expirationSeconds"] = 3607.into();
    let claims = cluster.pki.issuer().keys().verify(&cluster.token(injected)).unwrap();
    assert_eq!(claims.exp - claims.iat, 365 * 24 * 3600);
    assert_eq!(claims.kubernetes.warnafter, Some(claims.iat + 3607));

    for (spec, code, words) in [
        (json!({"expirationSeconds": 599}), 422, "may not specify a duration less than 10 minutes"),
        (
            json!({"expirationSeconds": 1i64 << 33}),
            422,
            "may not specify a duration larger than 2^32 seconds",
        ),
        (pod(json!({"name": "absent"})), 404, "pods \"absent\" not found"),
        (pod(json!({"uid": "other"})), 409, "does not match the UID in record"),
        (pod(json!({"kind": "ConfigMap"})), 400, "cannot bind token to object of type"),
    ] {
        let refused = cluster.request(spec.clone()).unwrap_err();
        assert_eq!(refused.code, code, "{spec}");
        assert!(refused.message.contains(words), "{spec}: {}", refused.message);
    }
}

#[test]
fn bootstrap_tokens_are_secrets() {
    let cluster = cluster();
    let base = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
        "expiration": "2026-12-01T00:00:00Z", "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"});
    let secret = |changes: serde_json::Value| {
        let mut data = base.clone();
        for (key, value) in changes.as_object().unwrap() {
            data[key] = value.clone();
        }
        let encoded: serde_json::Map<String, serde_json::Value> = data
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| {
                (
                    key.clone(),
                    base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap()).into(),
                )
            })
            .collect();
        json!({"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token", "data": encoded})
    };
    for (row, changes, fine) in [
        ("as kubeadm makes it", json!({}), true),
        ("without an end", json!({"expiration": null}), true),
        ("expired", json!({"expiration": "2026-11-30T20:59:59Z"}), false),
        ("an end nobody understands", json!({"expiration": "soon"}), false),
        ("another secret", json!({"token-secret": "fedcba9876543210"}), false),
        ("another id", json!({"token-id": "fedcba"}), false),
        ("for signing only", json!({"usage-bootstrap-authentication": "false"}), false),
        ("usage not said", json!({"usage-bootstrap-authentication": null}), false),
        ("a group it may not give", json!({"auth-extra-groups": "system:masters"}), false),
    ] {
        put(&cluster.space, "secrets", secret(changes));
        let user = cluster.bearer("abcdef.0123456789abcdef");
        assert_eq!(user.is_ok(), fine, "{row}: {user:?}");
        if let Ok(user) = user {
            assert_eq!(user.name, "system:bootstrap:abcdef");
            assert_eq!(
                user.groups.join(" "),
                "system:bootstrappers system:bootstrappers:kubeadm:default-node-token system:authenticated"
            );
        }
    }
    assert!(cluster.bearer("abcdeg.0123456789abcdef").is_err(), "no such token");

    let mut bound = secret(json!({}));
    bound["metadata"]["annotations"] = json!({crate::NODE_OF_TOKEN: "n1"});
    put(&cluster.space, "secrets", bound);
    let user = cluster.bearer("abcdef.0123456789abcdef").unwrap();
    assert_eq!(user.extra.get(crate::NODE_OF_TOKEN), Some(&vec!["n1".to_owned()]));
}

/// What a node may with everything that a fresh cluster grants, over the node authorizer alone and RBAC.
#[test]
fn a_fresh_cluster_shows_a_node_its_own() {
    let cluster = cluster();
    for (gvr, object) in crate::policy::default_objects() {
        put(&cluster.space, &gvr.resource, object.into_value());
    }
    let authority = Authority::new(cluster.space.clone());
    let user = |name: &str, groups: &[&str]| UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    };
    let node = user("system:node:n1", &["system:nodes", "system:authenticated"]);
    let proxy = user("system:kube-proxy", &["system:authenticated"]);
    for (who, verb, resource, name, fields, wanted) in [
        (&node, "list", "pods", "", "", false),
        (&node, "watch", "pods", "", "", false),
        (&node, "list", "pods", "", "spec.nodeName=n2", false),
        (&node, "list", "pods", "", "spec.nodeName=n1", true),
        (&node, "watch", "pods", "", "spec.nodeName=n1", true),
        (&node, "get", "pods", "blue/p", "", true),
        (&node, "get", "pods", "blue/other", "", false),
        (&node, "list", "nodes", "", "", false),
        (&node, "watch", "nodes", "", "", false),
        (&node, "get", "nodes", "n2", "", false),
        (&node, "get", "nodes", "n1", "", true),
        // A list with `metadata.name=n1` has that name.
        (&node, "watch", "nodes", "n1", "metadata.name=n1", true),
        (&node, "list", "namespaces", "", "", false),
        (&node, "list", "networkpolicies.networking.k8s.io", "", "", false),
        (&node, "list", "endpointslices.discovery.k8s.io", "", "", false),
        (&node, "list", "services", "", "", true),
        (&node, "list", "certificatesigningrequests.certificates.k8s.io", "", "", true),
        (&node, "impersonate", "users", "system:kube-proxy", "", true),
        (&node, "impersonate", "users", "system:node:n2", "", false),
        (&node, "impersonate", "groups", "system:nodes", "", false),
        (&proxy, "list", "nodes", "", "", true),
        (&proxy, "watch", "services", "", "", true),
        (&proxy, "watch", "endpointslices.discovery.k8s.io", "", "", true),
        (&proxy, "list", "pods", "", "", false),
        (&proxy, "list", "secrets", "", "", false),
    ] {
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let target = Target::Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let fields = api_machinery::FieldSelector::parse(fields).unwrap();
        let decision = authority.decide(who, &Access { verb: verb.to_owned(), target, fields });
        assert_eq!(decision.is_allowed(), wanted, "{} {verb} {resource} {name}: {decision:?}", who.name);
    }
}

#[test]
fn impersonation_is_authorized_part_by_part() {
    let cluster = cluster();
    let ann = cluster.pki.issue_client("ann", &[], YEAR).unwrap();
    let chain = certs_from_pem(&ann.cert_pem).unwrap();
    let ask = |allowed: &'static [&'static str], pairs: &[(&str, &str)]| {
        let headers = headers(pairs);
        let credentials = Credentials { peer_certificates: &chain, headers: &headers };
        cluster.authenticator.authenticate(&credentials, &Allows(allowed))
    };
    let bob = ("Impersonate-User", "bob");
    let identity = ask(&["impersonate users/ /bob"], &[bob]).unwrap();
    assert_eq!(
        (identity.user.name.as_str(), identity.user.groups.join(" ")),
        ("bob", "system:authenticated".to_owned())
    );
    assert_eq!(identity.impersonator.unwrap().name, "ann");

    let account = ("Impersonate-User", "system:serviceaccount:blue:web");
    let identity = ask(&["impersonate serviceaccounts/ blue/web"], &[account]).unwrap();
    assert!(identity.user.is_in("system:serviceaccounts:blue"));

    let all = &[
        "impersonate users/ /bob",
        "impersonate groups/ /ops",
        "impersonate uids/ /7",
        "impersonate userextras/scopes /view",
    ][..];
    let whole =
        [bob, ("Impersonate-Group", "ops"), ("Impersonate-Uid", "7"), ("Impersonate-Extra-Scopes", "view")];
    let identity = ask(all, &whole).unwrap();
    assert_eq!(
        (identity.user.uid.as_str(), identity.user.groups.join(" ")),
        ("7", "ops system:authenticated".to_owned())
    );
    assert_eq!(identity.user.extra["scopes"], ["view"]);

    for (row, allowed, pairs, code) in [
        ("nothing allowed", &[][..], &[bob][..], 403),
        ("the group is not", &["impersonate users/ /bob"], &whole[..2], 403),
        ("the uid is not", &["impersonate users/ /bob", "impersonate groups/ /ops"], &whole[..3], 403),
        ("a group without a user", &["impersonate groups/ /ops"], &whole[1..2], 500),
    ] {
        let refused = ask(allowed, pairs).unwrap_err().to_status();
        assert_eq!(refused.code, code, "{row}");
    }
    let refused = ask(&[], &[bob]).unwrap_err().to_status();
    assert_eq!(
        refused.message,
        "users \"bob\" is forbidden: User \"ann\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
}

#[test]
fn reviews_answer_what_they_are_asked() {
    let cluster = cluster();
    for (gvr, object) in crate::policy::default_objects() {
        put(&cluster.space, &gvr.resource, object.into_value());
    }
    let authority = Authority::new(cluster.space.clone());
    let ann = UserInfo {
        name: "ann".to_owned(),
        groups: vec!["kubeadm:cluster-admins".to_owned()],
        ..UserInfo::default()
    };
    let ask = |resource: &str, namespace: &str, spec: serde_json::Value| {
        let review = Document::from_value(json!({"spec": spec})).unwrap();
        review::evaluate(resource, &cluster.authenticator, &authority, &ann, namespace, review)
            .expect("a review")
            .map(|answer| answer.get("status").cloned().unwrap_or_default())
    };

    let token = cluster.token(json!({}));
    let status = ask("tokenreviews", "", json!({"token": token})).unwrap();
    assert_eq!(
        (&status["authenticated"], &status["user"]["username"]),
        (&json!(true), &json!("system:serviceaccount:blue:web"))
    );
    assert_eq!(status["audiences"], json!([ISSUER]));
    let status = ask("tokenreviews", "", json!({"token": token, "audiences": ["vault"]})).unwrap();
    assert_eq!(status.get("authenticated"), None);
    assert_eq!(
        ask("tokenreviews", "", json!({"token": "x"})).unwrap(),
        json!({"user": {}, "error": "invalid bearer token"})
    );
    assert_eq!(ask("tokenreviews", "", json!({})).unwrap_err().code, 400);

    let pods = |verb: &str| json!({"verb": verb, "resource": "pods", "namespace": "blue"});
    let controller = "system:serviceaccount:kube-system:replicaset-controller";
    for (row, resource, spec, wanted) in [
        (
            "myself",
            "selfsubjectaccessreviews",
            json!({"resourceAttributes": pods("delete")}),
            json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"kubeadm:cluster-admins\" of ClusterRole \"cluster-admin\" to Group \"kubeadm:cluster-admins\""}),
        ),
        (
            "a controller",
            "subjectaccessreviews",
            json!({"user": controller, "resourceAttributes": pods("create")}),
            json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"system:controller:replicaset-controller\" of ClusterRole \"system:controller:replicaset-controller\" to ServiceAccount \"replicaset-controller/kube-system\""}),
        ),
        (
            "a stranger",
            "subjectaccessreviews",
            json!({"user": "bob", "resourceAttributes": pods("get")}),
            json!({"allowed": false}),
        ),
        (
            "anonymous health",
            "subjectaccessreviews",
            json!({"groups": ["system:unauthenticated"], "nonResourceAttributes": {"verb": "get", "path": "/healthz"}}),
            json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"system:public-info-viewer\" of ClusterRole \"system:public-info-viewer\" to Group \"system:unauthenticated\""}),
        ),
        (
            "anonymous elsewhere",
            "subjectaccessreviews",
            json!({"groups": ["system:unauthenticated"], "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}),
            json!({"allowed": false}),
        ),
        (
            "in the namespace",
            "localsubjectaccessreviews",
            json!({"user": "bob", "resourceAttributes": pods("get")}),
            json!({"allowed": false}),
        ),
    ] {
        assert_eq!(ask(resource, "blue", spec), Ok(wanted), "{row}");
    }
    for (row, resource, spec) in [
        ("nothing asked", "selfsubjectaccessreviews", json!({})),
        (
            "both asked",
            "selfsubjectaccessreviews",
            json!({"resourceAttributes": pods("get"), "nonResourceAttributes": {"path": "/"}}),
        ),
        ("about nobody", "subjectaccessreviews", json!({"resourceAttributes": pods("get")})),
        (
            "about another namespace",
            "localsubjectaccessreviews",
            json!({"user": "bob", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "red"}}),
        ),
    ] {
        assert_eq!(ask(resource, "blue", spec).unwrap_err().code, 422, "{row}");
    }

    let rules = ask("selfsubjectrulesreviews", "", json!({"namespace": "blue"})).unwrap();
    assert!(
        rules["resourceRules"]
            .as_array()
            .unwrap()
            .contains(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))
    );
    assert_eq!(rules["incomplete"], false);
    assert_eq!(ask("selfsubjectreviews", "", json!({})).unwrap()["userInfo"]["username"], "ann");
    assert!(
        review::evaluate("pods", &cluster.authenticator, &authority, &ann, "", Document::default()).is_none()
    );
}
