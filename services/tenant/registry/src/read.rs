//! `get` and `list`.
//!
//! What `resourceVersion` means follows
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>: unset is linearizable,
//! `0` is whatever this replica has, a number is "not older than" unless the client asks for exactly it.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Field, FieldError, FieldSelector, Gvr, LabelSelector, Object, Status, mark};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use store_mvcc::{ReadError, Revision, Snapshot};

use crate::context::{Context, GetOptions, List, ListOptions};
use crate::convert;
use crate::error::read_status;
use crate::registry::{Registry, key_name, object};
use crate::resource::Resource;

/// How long a read waits for a revision that this replica has not applied yet; upstream's watch cache
/// waits as long.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);

impl Registry {
    pub async fn get(
        &self,
        _ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        name: &str,
        options: &GetOptions,
    ) -> Result<Arc<Object>, Status> {
        let resource = self.resource(of)?;
        match parse_revision(&options.resource_version)? {
            None => drop(self.barrier().await?),
            Some(0) => {}
            Some(at_least) => self.wait_for(at_least).await?,
        }
        let entry = self
            .entry(&resource, namespace.unwrap_or_default(), name)
            .ok_or_else(|| Status::not_found(&resource.gvr, name))?;
        self.served(&resource, &entry).await
    }

    pub async fn list(
        &self,
        ctx: &Context,
        of: &Gvr,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List, Status> {
        let resource = &self.resource(of)?;
        let selection = Selection::new(resource, namespace, &options.labels, &options.fields)?;
        check_list_options(options)?;
        let asked = parse_revision(&options.resource_version)?;

        let mut after = None;
        let mut begun_ms = self.now().as_millisecond();
        let snapshot = if options.continue_token.is_empty() {
            self.snapshot_for(resource, options, asked).await?
        } else {
            let token = Token::decode(&options.continue_token)?;
            let start = selection.prefix.clone() + &token.start;
            let snapshot = self.snapshot_of_token(resource, &token, begun_ms).await?;
            after = Some(start);
            if token.rv >= 0 {
                begun_ms = token.begun_ms;
            }
            snapshot
        };
        // Upstream's watch cache knows no pages; clients that ask for "0" expect everything at once.
        let limit = if asked == Some(0) && options.continue_token.is_empty() { 0 } else { options.limit };
        let mut list = page(resource, &selection, &snapshot, after.as_deref(), limit, begun_ms)?;
        if let Some(custom) = resource.custom().filter(|custom| custom.may_need_webhook() && !ctx.is_loop()) {
            // The webhook gets all of them in one call, and only then shows what selectors look at.
            self.serve_all(custom, &mut list.items).await?;
            list.items.retain(|item| selection.selects(item));
        }
        Ok(list)
    }

    async fn snapshot_for(
        &self,
        resource: &Resource,
        options: &ListOptions,
        asked: Option<u64>,
    ) -> Result<Snapshot, Status> {
        let space = self.group.space();
        match asked {
            None => {
                self.barrier().await?;
                Ok(space.snapshot(&resource.collection))
            }
            Some(0) => Ok(space.snapshot(&resource.collection)),
            Some(at) => {
                self.wait_for(at).await?;
                let exact = match &*options.resource_version_match {
                    "Exact" => true,
                    // From before there was a match parameter: a limited list at a revision is exact.
                    "" => options.limit > 0,
                    _ => false,
                };
                if !exact {
                    return Ok(space.snapshot(&resource.collection));
                }
                space.snapshot_at(&resource.collection, Revision(at)).map_err(|cause| match cause {
                    ReadError::Compacted { .. } => {
                        Status::expired("The resourceVersion for the provided list is too old.")
                    }
                    other => read_status(&other),
                })
            }
        }
    }

    async fn snapshot_of_token(
        &self,
        resource: &Resource,
        token: &Token,
        now_ms: i64,
    ) -> Result<Snapshot, Status> {
        let space = self.group.space();
        let Ok(at) = u64::try_from(token.rv) else {
            // Handed out with a 410: goes on inconsistently, from now.
            self.barrier().await?;
            return Ok(space.snapshot(&resource.collection));
        };
        let too_old = || {
            let fresh = Token { rv: -1, ..token.clone() }.encode();
            Status::expired_with_continue(CONTINUE_TOO_OLD, fresh)
        };
        // Where nothing has changed the past could be shown for ever, but how long a token lives must not
        // depend on who else writes: clients are promised that stale ones end.
        if now_ms.saturating_sub(token.begun_ms) > space.limits().history_ms {
            return Err(too_old());
        }
        self.wait_for(at).await?;
        space.snapshot_at(&resource.collection, Revision(at)).map_err(|cause| match cause {
            ReadError::Compacted { .. } => too_old(),
            other => read_status(&other),
        })
    }

    /// Until this replica has applied `at_least`; 504 if that takes too long, as for a revision from
    /// another cluster.
    pub(crate) async fn wait_for(&self, at_least: u64) -> Result<(), Status> {
        let space = self.group.space();
        if space.revision().0 >= at_least {
            return Ok(());
        }
        // A follower may be behind what another replica told the client.
        if self.barrier().await? >= at_least {
            return Ok(());
        }
        let deadline = tokio::time::Instant::now() + FRESHNESS_WAIT;
        while tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if space.revision().0 >= at_least {
                return Ok(());
            }
        }
        Err(Status::too_large_resource_version(at_least, space.revision().0))
    }
}

const CONTINUE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

fn page(
    resource: &Resource,
    selection: &Selection,
    snapshot: &Snapshot,
    after: Option<&str>,
    limit: u64,
    begun_ms: i64,
) -> Result<List, Status> {
    let mut list = List { revision: snapshot.revision.0, ..List::default() };
    // One name pins the answer down: no walk over the collection.
    if let Some(name) = selection.single_key(resource) {
        if let Some(entry) = snapshot.entries.get(&*name) {
            let found = shown(resource, entry)?;
            if selection.may_select(&found) {
                list.items.push(convert::served_object(resource, &found)?);
            }
        }
        return Ok(list);
    }
    let mut last: Option<&str> = None;
    let mut entries = snapshot.range(&selection.prefix, after);
    for entry in entries.by_ref() {
        if selection.rules_out(entry) {
            continue;
        }
        let found = shown(resource, entry)?;
        if !selection.may_select(&found) {
            continue;
        }
        if limit > 0 && list.items.len() as u64 == limit {
            let start = last.unwrap_or_default().strip_prefix(&*selection.prefix).unwrap_or_default();
            list.continue_token = Some(Token::new(snapshot.revision.0, start, begun_ms).encode());
            if selection.is_everything() {
                list.remaining = Some(1 + entries.count() as u64);
            }
            break;
        }
        last = Some(&entry.key.name);
        list.items.push(convert::served_object(resource, &found)?);
    }
    Ok(list)
}

/// What selectors look at: the object as it is stored or, for custom resources, as their version shows it. Those
/// that a webhook converts are converted later, all at once.
pub(crate) fn shown(resource: &Resource, entry: &store_mvcc::Entry) -> Result<Arc<Object>, Status> {
    match resource.custom().filter(|custom| !custom.may_need_webhook()) {
        Some(custom) => custom.serve(entry),
        None => object(entry),
    }
}

/// Which objects of a collection a list or watch is about.
#[derive(Clone)]
pub(crate) struct Selection {
    /// `<namespace>/`, or empty for everything.
    pub(crate) prefix: String,
    labels: LabelSelector,
    fields: FieldSelector,
    /// What [`Selection::rules_out`] asks of an entry's mark.
    marks: u64,
    resource: Resource,
}

impl Selection {
    pub(crate) fn new(
        resource: &Resource,
        namespace: Option<&str>,
        labels: &LabelSelector,
        fields: &FieldSelector,
    ) -> Result<Selection, Status> {
        let strategy = resource.strategy();
        for (path, _, _) in &fields.terms {
            let known = path == "metadata.name"
                || (resource.namespaced && path == "metadata.namespace")
                || strategy.selects(path);
            if !known {
                return Err(Status::bad_request(format!("field label not supported: {path}")));
            }
        }
        let prefix = match namespace.filter(|namespace| resource.namespaced && !namespace.is_empty()) {
            Some(namespace) => format!("{namespace}/"),
            None => String::new(),
        };
        let marks = mark::of_selector(labels);
        Ok(Selection {
            prefix,
            labels: labels.clone(),
            fields: fields.clone(),
            marks,
            resource: resource.clone(),
        })
    }

    /// The resource's definition has changed.
    pub(crate) fn follow(&mut self, resource: &Resource) {
        self.resource = resource.clone();
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// The one key that can match, if the selectors name it.
    fn single_key(&self, resource: &Resource) -> Option<String> {
        let name = self.fields.single_name()?;
        if !resource.namespaced {
            return Some(key_name(resource, "", name));
        }
        let namespace = self.prefix.strip_suffix('/')?;
        Some(key_name(resource, namespace, name))
    }

    /// Whether its labels alone say that it is not selected, at a glance. What never was looked at has no mark.
    pub(crate) fn rules_out(&self, entry: &store_mvcc::Entry) -> bool {
        mark::rules_out(entry.mark.get(), self.marks)
    }

    /// [`Selection::selects`], as far as it can be said of an object that a webhook is still to convert.
    pub(crate) fn may_select(&self, object: &Object) -> bool {
        let waits = self.resource.custom().is_some_and(|custom| custom.needs_webhook(object));
        if waits { self.labels.matches(&object.header.labels) } else { self.selects(object) }
    }

    pub(crate) fn in_scope(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
    }

    pub(crate) fn selects(&self, object: &Object) -> bool {
        self.labels.matches(&object.header.labels)
            && (self.fields.is_everything()
                || self.fields.matches(|path| match path {
                    "metadata.name" => object.header.name.to_string(),
                    "metadata.namespace" => object.header.namespace.as_deref().unwrap_or_default().to_owned(),
                    other => self.resource.strategy().select(object, other),
                }))
    }
}

/// `None` when unset.
pub(crate) fn parse_revision(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        let error = Field::new("resourceVersion")
            .invalid(text, "strconv.ParseUint: parsing \"".to_owned() + text + "\": invalid syntax");
        invalid_options(&[error])
    })
}

fn check_list_options(options: &ListOptions) -> Result<(), Status> {
    let field = Field::new("resourceVersionMatch");
    let mut errors = Vec::new();
    if !options.continue_token.is_empty()
        && !options.resource_version.is_empty()
        && options.resource_version != "0"
    {
        return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
    }
    let matched = &*options.resource_version_match;
    if !matched.is_empty() {
        if options.resource_version.is_empty() {
            errors.push(
                field.forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"),
            );
        }
        if !options.continue_token.is_empty() {
            errors.push(field.forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !["Exact", "NotOlderThan"].contains(&matched) {
            errors.push(field.not_supported(matched, &["Exact", "NotOlderThan", ""]));
        }
        if matched == "Exact" && options.resource_version == "0" {
            errors.push(
                field.forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""),
            );
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(invalid_options(&errors)) }
}

pub(crate) fn invalid_options(errors: &[FieldError]) -> Status {
    Status::invalid("meta.k8s.io", "ListOptions", "", errors)
}

/// `continue`: opaque to clients, upstream's shape all the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    /// The last key handed out, without the namespace when the list is of one.
    start: String,
    /// When the first page was handed out.
    begun_ms: i64,
}

impl Token {
    const VERSION: &'static str = "meta.k8s.io/v1";

    fn new(revision: u64, start: &str, begun_ms: i64) -> Token {
        Token {
            v: Token::VERSION.to_owned(),
            rv: i64::try_from(revision).unwrap_or(i64::MAX),
            start: start.to_owned(),
            begun_ms,
        }
    }
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
    fn decode(text: &str) -> Result<Token, Status> {
        let wrong = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| wrong("not base64"))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| wrong("not a token of this server"))?;
        if token.v != Token::VERSION {
            return Err(wrong(&format!("server does not recognize this encoded version {:?}", token.v)));
        }
        if token.start.is_empty() {
            return Err(wrong("start key must not be empty"));
        }
        Ok(token)
    }
}
