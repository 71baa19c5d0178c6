//! What a request asks for beyond its path: the options of reads and writes, from the query and the body.

use percent_encoding::percent_decode_str;
use pulselet_store::Revision;
use serde::Deserialize;
use serde_json::Value;

use crate::access::{GrantLimit, Identity};
use crate::registry::resource::ResourceKind;
use crate::registry::selector::Selector;
use crate::rest::status::ApiError;

/// The parameters of a query string, in order. The first of a name counts, as upstream has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// How many parameters one query may have. Exec passes one per word of its command.
const MAX_PARAMETERS: usize = 1024;

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut parameters = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            parameters.push((decode(name)?, decode(value)?));
            if parameters.len() > MAX_PARAMETERS {
                return Err(ApiError::bad_request("the query has too many parameters"));
            }
        }
        Ok(Self(parameters))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// All values of a parameter that may come more than once.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(key, _)| key == name);
        named.map(|(_, value)| value.as_str())
    }

    /// The parameter, empty if it is not there.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
            Some(other) => Err(ApiError::bad_request(format!(
                "invalid value {other:?} of parameter {name}: expected a boolean"
            ))),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!(
                    "invalid value {text:?} of parameter {name}: expected a number"
                ))
            }),
        }
    }
}

fn decode(text: &str) -> Result<String, ApiError> {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| ApiError::bad_request("the query is not UTF-8"))
}

/// How the resourceVersion of a list is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    NotOlderThan,
    Exact,
}

/// Options of a list or a watch.
#[derive(Debug, Clone)]
pub(crate) struct ListOptions {
    pub selector: Selector,
    pub limit: Option<usize>,
    /// Bytes after which a page is full; `None` for what clients ask.
    pub max_bytes: Option<usize>,
    pub continue_token: Option<String>,
    /// `None` if the client leaves it open.
    pub resource_version: Option<Revision>,
    pub version_match: Option<VersionMatch>,
    pub allow_bookmarks: bool,
    pub send_initial_events: Option<bool>,
    pub timeout_seconds: Option<u64>,
}

impl ListOptions {
    pub(crate) fn parse(kind: ResourceKind, query: &Query) -> Result<Self, ApiError> {
        let version_match = match query.text("resourceVersionMatch") {
            "" => None,
            "NotOlderThan" => Some(VersionMatch::NotOlderThan),
            "Exact" => Some(VersionMatch::Exact),
            other => {
                return Err(ApiError::bad_request(format!(
                    "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                )));
            }
        };
        let limit = query.number("limit")?.unwrap_or(0);
        Ok(Self {
            max_bytes: None,
            selector: Selector::parse(kind, query.text("labelSelector"), query.text("fieldSelector"))?,
            limit: usize::try_from(limit).ok().filter(|limit| *limit > 0),
            continue_token: query
                .get("continue")
                .filter(|token| !token.is_empty())
                .map(str::to_owned),
            resource_version: parse_version(query.text("resourceVersion"))?,
            version_match,
            allow_bookmarks: query.flag("allowWatchBookmarks")?.unwrap_or(false),
            send_initial_events: query.flag("sendInitialEvents")?,
            timeout_seconds: query
                .number("timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok()),
        })
    }
}

/// A resourceVersion as a client sends it back.
pub(crate) fn parse_version(text: &str) -> Result<Option<Revision>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(revision) => Ok(Some(Revision(revision))),
        Err(_) => Err(ApiError::bad_request(format!(
            "Invalid value: {text:?}: the resourceVersion is not a number"
        ))),
    }
}

/// What to do about fields that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of a write.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    /// Do everything but the write.
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    /// The manager to whom written fields belong.
    pub field_manager: String,
    /// Take fields from other managers (server-side apply).
    pub force: bool,
    /// The node that writes, which may not write everything; `None` if the writer is no node.
    pub node: Option<String>,
    /// Who writes; `None` if it is the server itself.
    pub caller: Option<Identity>,
    /// What the writer may grant; `None` if that is everything, or if no role or binding is written.
    pub grants: Option<GrantLimit>,
}

/// How many bytes a manager's name may have.
const MAX_MANAGER_BYTES: usize = 128;

impl WriteOptions {
    /// Those of a write that the server makes itself.
    pub(crate) fn of_server() -> Self {
        Self {
            dry_run: false,
            field_validation: FieldValidation::Strict,
            field_manager: "pulselet".to_owned(),
            force: false,
            node: None,
            caller: None,
            grants: None,
        }
    }

    /// `user_agent` names the manager of clients that do not name themselves.
    pub(crate) fn parse(query: &Query, user_agent: &str) -> Result<Self, ApiError> {
        let field_validation = match query.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                return Err(ApiError::bad_request(format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \
                     \"Warn\""
                )));
            }
        };
        let field_manager = match query.text("fieldManager") {
            "" => user_agent.split('/').next().unwrap_or_default().to_owned(),
            name if name.len() > MAX_MANAGER_BYTES => {
                return Err(ApiError::bad_request(format!(
                    "fieldManager: Too long: may not be more than {MAX_MANAGER_BYTES} bytes"
                )));
            }
            name => name.to_owned(),
        };
        let mut end = field_manager.len().min(MAX_MANAGER_BYTES);
        while !field_manager.is_char_boundary(end) {
            end -= 1;
        }
        Ok(Self {
            dry_run: parse_dry_run(query.get("dryRun"))?,
            field_validation,
            field_manager: field_manager[..end].to_owned(),
            force: query.flag("force")?.unwrap_or(false),
            node: None,
            caller: None,
            grants: None,
        })
    }
}

fn parse_dry_run(value: Option<&str>) -> Result<bool, ApiError> {
    match value {
        None | Some("") => Ok(false),
        Some("All") => Ok(true),
        Some(other) => Err(ApiError::bad_request(format!(
            "dryRun: Unsupported value: {other:?}: supported values: \"All\""
        ))),
    }
}

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// A garbage collector removes them afterwards.
    #[default]
    Background,
    /// The owner waits until they are gone.
    Foreground,
    /// They stay, without an owner.
    Orphan,
}

/// Options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub dry_run: bool,
    pub grace_period_seconds: Option<i64>,
    pub precondition_uid: Option<String>,
    pub precondition_version: Option<String>,
    pub propagation: Propagation,
    /// The node that deletes, which may not delete everything; `None` if somebody else does.
    pub node: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DeleteBody {
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
    propagation_policy: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the options from the body if there is one, else from the query.
    pub(crate) fn parse(query: &Query, body: Option<Value>) -> Result<Self, ApiError> {
        let body: DeleteBody = match body {
            Some(body) => serde_json::from_value(body).map_err(|error| {
                ApiError::bad_request(format!("the body is not a DeleteOptions object: {error}"))
            })?,
            None => DeleteBody {
                grace_period_seconds: query.number("gracePeriodSeconds")?,
                propagation_policy: query.get("propagationPolicy").map(str::to_owned),
                ..DeleteBody::default()
            },
        };
        let propagation = match body.propagation_policy.as_deref() {
            None | Some("" | "Background") => Propagation::Background,
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            Some(policy) => {
                return Err(ApiError::bad_request(format!(
                    "propagationPolicy: Unsupported value: {policy:?}: supported values: \"Foreground\", \
                     \"Background\", \"Orphan\""
                )));
            }
        };
        let mut dry_run = parse_dry_run(query.get("dryRun"))?;
        for value in body.dry_run.iter().flatten() {
            dry_run |= parse_dry_run(Some(value))?;
        }
        let preconditions = body.preconditions.unwrap_or_default();
        Ok(Self {
            dry_run,
            grace_period_seconds: body.grace_period_seconds,
            precondition_uid: preconditions.uid,
            precondition_version: preconditions.resource_version,
            propagation,
            node: None,
        })
    }
}
