//! Objects and the rules for reading and changing them, between the wire and the store.
//!
//! What must always hold: an object passes its kind's rules before it is stored; a change is made on the very version
//! it was computed from, or not at all; the store sees one swap per change. Who may do what is decided before
//! (`access`), except for what depends on the object that is sent or replaced (`restriction`).

pub(crate) mod attendance;
pub(crate) mod copies;
mod decode;
mod deletion;
mod namespaces;
mod nodes;
pub(crate) mod object;
pub(crate) mod plain;
mod pods;
mod policy;
pub(crate) mod resource;
mod restriction;
pub(crate) mod scale;
pub(crate) mod selector;
mod service_warnings;
mod services;
pub(crate) mod strategies;
mod writes;

use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use pulselet_store::{Range, Revision, Store, StoredObject, Watch};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::rest::query::{ListOptions, VersionMatch};
use crate::rest::status::ApiError;
use attendance::Attendance;
pub(crate) use deletion::Deleted;
use namespaces::OpenNamespaces;
use object::{DamagedObject, Object, is_whole, splice};
use resource::{Endpoint, ObjectPath, ResourceKind};
use selector::Selector;
pub use services::{ParseServiceRangeError, ServiceRange};
use strategies::Rules;

/// How many objects are read at once while looking for those that a selector wants.
const SELECT_PAGE: usize = 1000;
/// Bytes of them.
const SELECT_BYTES: usize = 4 << 20;

/// Bytes of a list that are made at once.
const LIST_PART_BYTES: usize = 64 << 10;

/// Reads and changes objects by the rules of their kinds. Clones share one store.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    store: Arc<dyn Store>,
    rules: Rules,
    service_range: ServiceRange,
    /// Whose turn it is to write a Service.
    service_turn: Arc<tokio::sync::Mutex<()>>,
    attendance: Arc<Attendance>,
    /// The server's authority, in PEM.
    root_certificate: Arc<str>,
    /// How often roles and bindings have been changed.
    policy_changes: Arc<AtomicU64>,
    open_namespaces: Arc<OpenNamespaces>,
}

/// A list, or a page of one.
#[derive(Debug)]
pub(crate) struct Listed {
    pub entries: Vec<StoredObject>,
    pub revision: Revision,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
    /// Keys of objects that are left out because they cannot be read.
    pub damaged: Vec<String>,
}

/// The result of a write.
#[derive(Debug)]
pub(crate) struct Written {
    /// The object as it is stored, with its resourceVersion.
    pub object: Object,
    /// The same as the store has it; `None` if nothing was written, or it is gone.
    pub entry: Option<StoredObject>,
    pub warnings: Vec<String>,
    pub created: bool,
}

impl From<DamagedObject> for ApiError {
    fn from(error: DamagedObject) -> Self {
        tracing::error!(%error, "the registry cannot read a stored object");
        Self::internal(error)
    }
}

/// Where the next page of a list begins.
#[derive(Serialize, Deserialize)]
struct Continue {
    /// `None` if that is the newest: what the list began with is forgotten.
    #[serde(rename = "rv", default, skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    after: String,
}

impl Continue {
    fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!(self).to_string())
    }
}

impl Registry {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        rules: Rules,
        service_range: ServiceRange,
        root_certificate: &str,
    ) -> Self {
        Self {
            store,
            rules,
            service_range,
            service_turn: Arc::default(),
            attendance: Arc::default(),
            root_certificate: root_certificate.into(),
            policy_changes: Arc::default(),
            open_namespaces: Arc::default(),
        }
    }

    /// Who watches what.
    pub(crate) const fn attendance(&self) -> &Arc<Attendance> {
        &self.attendance
    }

    /// How many changes of roles and bindings have been made.
    pub(crate) fn policy_changes(&self) -> u64 {
        self.policy_changes.load(Ordering::Acquire)
    }

    pub(crate) const fn rules(&self) -> Rules {
        self.rules
    }

    async fn entry(&self, path: &ObjectPath) -> Result<StoredObject, ApiError> {
        let name = path.name.as_deref().unwrap_or_default();
        let key = path.endpoint.kind.key(path.namespace.as_deref(), name);
        let (entry, _) = self.store.get(&key).await?;
        entry.ok_or_else(|| ApiError::not_found(path.endpoint.kind.storage(), name))
    }

    /// One object as it is stored.
    pub(crate) async fn get(&self, path: &ObjectPath) -> Result<Object, ApiError> {
        Ok(Object::from_entry(&self.entry(path).await?)?)
    }

    /// One object as its endpoint shows it.
    pub(crate) async fn read(&self, path: &ObjectPath) -> Result<StoredObject, ApiError> {
        self.entry(path).await
    }

    /// Whether an endpoint shows objects of its kind just as they are stored.
    pub(crate) fn shows_as_stored(&self, endpoint: Endpoint) -> bool {
        strategies::served_as_stored(endpoint, self.rules)
    }

    /// Appends an object as JSON, as its endpoint shows it.
    pub(crate) fn render(
        &self,
        endpoint: Endpoint,
        entry: &StoredObject,
        out: &mut BytesMut,
    ) -> Result<(), ApiError> {
        if self.shows_as_stored(endpoint) {
            if !is_whole(&entry.value, entry.integrity) {
                return Err(DamagedObject::of(entry).into());
            }
            splice(out, &entry.value, entry.revision);
            return Ok(());
        }
        let object = self.present(endpoint, Object::from_entry(entry)?);
        serde_json::to_writer(out.writer(), object.value()).map_err(ApiError::internal)
    }

    /// An object as its endpoint shows it.
    pub(crate) fn present(&self, endpoint: Endpoint, object: Object) -> Object {
        strategies::present(endpoint, object, self.rules)
    }

    pub(crate) async fn list(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Listed, ApiError> {
        let prefix = kind.prefix(namespace);
        let mut range = Range {
            prefix: prefix.clone(),
            limit: options.limit,
            max_bytes: options.max_bytes,
            ..Range::default()
        };
        if let Some(token) = &options.continue_token {
            let position = parse_continue(token, &prefix)?;
            range.at = position.revision.map(Revision);
            range.after = Some(position.after);
        } else {
            range.at = self.list_revision(options).await?;
        }
        let after = range.after.clone();
        let expired = |error: ApiError| match &after {
            Some(after) if error.reason == crate::rest::status::StatusReason::Expired => {
                let rest = Continue {
                    revision: None,
                    after: after.clone(),
                };
                ApiError::expired_continue(&rest.token())
            }
            _ => error,
        };
        let page = if options.selector.is_everything() {
            let page = self
                .store
                .range(range)
                .await
                .map_err(ApiError::from)
                .map_err(expired)?;
            (page.entries, page.revision, page.remaining)
        } else {
            self.select(range, &options.selector, options.limit)
                .await
                .map_err(expired)?
        };
        let (mut entries, revision, remaining) = page;
        let more = remaining > 0;
        let last = entries.last().map(|entry| entry.key.clone()).filter(|_| more);
        let mut damaged = Vec::new();
        entries.retain(|entry| {
            let whole = is_whole(&entry.value, entry.integrity);
            if !whole {
                tracing::error!(
                    key = entry.key,
                    "a stored object is damaged, it is left out of a list"
                );
                damaged.push(entry.key.clone());
            }
            whole
        });
        Ok(Listed {
            continue_token: last.map(|after| {
                let revision = Some(revision.0);
                Continue { revision, after }.token()
            }),
            remaining: Some(remaining).filter(|_| more && options.selector.is_everything()),
            entries,
            revision,
            damaged,
        })
    }

    /// The revision that a list without a continue token is about; `None` if that is the newest.
    async fn list_revision(&self, options: &ListOptions) -> Result<Option<Revision>, ApiError> {
        let Some(asked) = options.resource_version.filter(|revision| revision.0 > 0) else {
            return match options.version_match {
                Some(VersionMatch::Exact) => Err(ApiError::bad_request(
                    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is \
                     provided",
                )),
                Some(VersionMatch::NotOlderThan) | None => Ok(None),
            };
        };
        match options.version_match {
            Some(VersionMatch::Exact) => Ok(Some(asked)),
            Some(VersionMatch::NotOlderThan) | None => {
                // A future version is an error, an old one is as good as the newest.
                let newest = self.revision().await?;
                if asked > newest {
                    return Err(pulselet_store::StoreError::Future { asked, newest }.into());
                }
                Ok(None)
            }
        }
    }

    /// Which store the objects are in.
    pub(crate) fn store_identity(&self) -> &str {
        self.store.identity()
    }

    /// Why nothing can be written now; `None` if it can.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.store.trouble()
    }

    /// Brings everything into one file, when the server stops.
    pub(crate) async fn settle(&self) {
        if let Err(error) = self.store.settle().await {
            tracing::warn!(%error, "the store keeps its log beside it; a copy of the file alone is no backup");
        }
    }

    /// The newest revision.
    pub(crate) async fn revision(&self) -> Result<Revision, ApiError> {
        let (_, revision) = self.store.get("").await?;
        Ok(revision)
    }

    /// Reads until enough objects match, and says how many keys were left unread.
    async fn select(
        &self,
        mut range: Range,
        selector: &Selector,
        limit: Option<usize>,
    ) -> Result<(Vec<StoredObject>, Revision, usize), ApiError> {
        let limit = limit.unwrap_or(usize::MAX);
        let max_bytes = range.max_bytes.unwrap_or(usize::MAX);
        let (mut found, mut bytes) = (Vec::new(), 0);
        range.limit = Some(SELECT_PAGE);
        range.max_bytes = Some(SELECT_BYTES);
        loop {
            let page = self.store.range(range.clone()).await?;
            let count = page.entries.len();
            for (index, entry) in page.entries.into_iter().enumerate() {
                range.after = Some(entry.key.clone());
                // What a damaged object was is not known: it may have matched.
                let matches = Object::from_entry(&entry).map_or(true, |object| selector.matches(&object));
                if matches {
                    bytes += entry.value.len();
                    found.push(entry);
                }
                if found.len() == limit || bytes >= max_bytes {
                    return Ok((found, page.revision, page.remaining + count - index - 1));
                }
            }
            if page.remaining == 0 {
                return Ok((found, page.revision, 0));
            }
            range.at = Some(page.revision);
        }
    }

    /// All objects of a kind, decoded. For the server's own use.
    pub(crate) async fn all(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
    ) -> Result<(Vec<Object>, Revision), ApiError> {
        let range = Range {
            prefix: kind.prefix(namespace),
            ..Range::default()
        };
        let page = self.store.range(range).await?;
        Ok((whole_objects(page.entries.iter()), page.revision))
    }

    /// The next objects of a kind by their keys, and the key to go on after if there are more. What is written between two calls is
    /// seen or not.
    pub(crate) async fn page(
        &self,
        kind: ResourceKind,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<Object>, Option<String>), ApiError> {
        let range = Range {
            prefix: kind.prefix(None),
            after,
            limit: Some(limit),
            ..Range::default()
        };
        let page = self.store.range(range).await?;
        let last = page.entries.last().map(|entry| entry.key.clone());
        Ok((
            whole_objects(page.entries.iter()),
            last.filter(|_| page.remaining > 0),
        ))
    }

    /// The objects of a kind in a namespace that have a text somewhere. Only these are decoded.
    pub(crate) async fn mentioning(
        &self,
        kind: ResourceKind,
        namespace: &str,
        text: &str,
    ) -> Result<Vec<Object>, ApiError> {
        let range = Range {
            prefix: kind.prefix(Some(namespace)),
            ..Range::default()
        };
        let page = self.store.range(range).await?;
        let mentions =
            |entry: &&StoredObject| std::str::from_utf8(&entry.value).is_ok_and(|value| value.contains(text));
        Ok(whole_objects(page.entries.iter().filter(mentions)))
    }

    /// Changes of objects of a kind after a revision.
    pub(crate) async fn watch(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
        after: Revision,
    ) -> Result<Box<dyn Watch>, ApiError> {
        Ok(self.store.watch(kind.prefix(namespace), after).await?)
    }

    /// A list as JSON, bit by bit.
    pub(crate) fn render_list(self, endpoint: Endpoint, listed: Listed) -> RenderedList {
        let (kind, version) = (endpoint.info().kind, endpoint.group_version.api_version());
        let metadata = listed.metadata();
        let head = format!(
            "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":["
        );
        RenderedList {
            as_stored: self.shows_as_stored(endpoint),
            registry: self,
            endpoint,
            pending: Some(BytesMut::from(head.as_bytes())),
            entries: listed.entries.into_iter().peekable(),
        }
    }
}

/// Parts of a list as JSON. Each is made when it is wanted, and the objects in it are let go.
#[derive(Debug)]
pub(crate) struct RenderedList {
    registry: Registry,
    endpoint: Endpoint,
    as_stored: bool,
    /// What the next part begins with; `None` after the last one.
    pending: Option<BytesMut>,
    entries: Peekable<vec::IntoIter<StoredObject>>,
}

impl RenderedList {
    pub(crate) const fn has_more(&self) -> bool {
        self.pending.is_some()
    }

    fn part(&mut self, mut out: BytesMut) -> Result<Bytes, ApiError> {
        out.reserve(LIST_PART_BYTES);
        while let Some(entry) = self.entries.next() {
            // Whoever listed them has left out what is damaged.
            if self.as_stored {
                splice(&mut out, &entry.value, entry.revision);
            } else {
                self.registry.render(self.endpoint, &entry, &mut out)?;
            }
            let is_last = self.entries.peek().is_none();
            out.extend_from_slice(if is_last { b"]}" } else { b"," });
            if out.len() >= LIST_PART_BYTES {
                break;
            }
        }
        Ok(out.freeze())
    }
}

impl Iterator for RenderedList {
    type Item = Result<Bytes, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut out = self.pending.take()?;
        if self.entries.len() == 0 {
            out.extend_from_slice(b"]}");
            return Some(Ok(out.freeze()));
        }
        let part = self.part(out);
        self.pending = (self.entries.len() > 0).then(BytesMut::new);
        Some(part)
    }
}

/// Decodes objects. One that is damaged must not keep the server from its work with the others.
fn whole_objects<'a>(entries: impl Iterator<Item = &'a StoredObject>) -> Vec<Object> {
    entries
        .filter_map(|entry| {
            Object::from_entry(entry)
                .inspect_err(|error| tracing::error!(%error, "the server goes on without a stored object"))
                .ok()
        })
        .collect()
}

impl Listed {
    /// The `metadata` of the list.
    pub(crate) fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        metadata
    }
}

/// Reads a continue token back. It comes from outside: it must not lead out of the list it was made for.
fn parse_continue(token: &str, prefix: &str) -> Result<Continue, ApiError> {
    let invalid = || ApiError::bad_request("continue key is not valid");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
    let position: Continue = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
    if position.after.starts_with(prefix) && position.revision != Some(0) {
        Ok(position)
    } else {
        Err(invalid())
    }
}
