//! Watches as clients see them: a stream of events, one JSON object a line, or messages of protobuf with their lengths.
//!
//! A watch starts with what is there, if asked, and goes on with every change. With a selector, an object that begins
//! to match is ADDED and one that ceases to is DELETED. Bookmarks show a client how far it has seen, also when nothing
//! concerned it. A client that is too slow costs a position in the history, and no more memory than [`FRAME_BYTES`] and
//! one batch of the history; if all of them together cost too much, the next to ask for more is told to list anew.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use pulselet_store::{Change, Revision, StoredObject, Watch};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::registry::Registry;
use crate::registry::object::Object;
use crate::registry::resource::Endpoint;
use crate::registry::selector::Selector;
use crate::rest::accept::{Form, View, WireFormat};
use crate::rest::query::{ListOptions, VersionMatch};
use crate::rest::render::{object_view, render_json};
use crate::rest::status::{ApiError, StatusReason};
use pulselet_schema::protobuf;

/// The time between bookmarks, as upstream has it.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
/// A watch without a timeout of its own ends after this, and up to as much again, so that clients that started
/// together do not come back together.
const MIN_LIFETIME: Duration = Duration::from_mins(30);
/// The longest a client may ask for.
const MAX_LIFETIME: Duration = Duration::from_hours(24);

/// Objects held at once of those that a watch begins with. The rest is read as the client takes them.
const INITIAL_PAGE: usize = 250;
/// Bytes of them: objects may be large.
const INITIAL_BYTES: usize = 1 << 20;
/// Bytes that are rendered before they are sent, and one object more.
const FRAME_BYTES: usize = 256 * 1024;
/// Bytes that all watches together may hold of changes which their clients have not taken.
const HELD_BYTES: usize = 64 << 20;

/// Bytes that all watches hold now.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Changes that a client has not taken yet, counted in [`HELD`].
#[derive(Debug, Default)]
struct Backlog {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
}

impl Backlog {
    /// Takes changes in; false if all watches together hold too much already.
    fn fill(&mut self, changes: Vec<Arc<Change>>) -> bool {
        let bytes: usize = changes.iter().map(|change| change.bytes()).sum();
        let before = HELD.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        self.changes.extend(changes);
        before <= HELD_BYTES
    }

    fn next(&mut self) -> Option<Arc<Change>> {
        let change = self.changes.pop_front()?;
        let bytes = change.bytes().min(self.bytes);
        self.bytes -= bytes;
        HELD.fetch_sub(bytes, Ordering::Relaxed);
        Some(change)
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A running watch of one client.
#[derive(Debug)]
pub(crate) struct Session {
    registry: Registry,
    endpoint: Endpoint,
    form: Form,
    selector: Selector,
    watch: Box<dyn Watch>,
    backlog: Backlog,
    /// A page of what was there at the start and is not sent yet.
    initial: std::vec::IntoIter<StoredObject>,
    /// How to read the next page, if there is one.
    next_page: Option<(ListOptions, Option<String>)>,
    /// The bookmark that ends the initial events, if the client asked for it.
    initial_end: Option<Revision>,
    bookmarks: bool,
    next_bookmark: Instant,
    ends: Instant,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The last bookmark was sent, or an error: nothing follows.
    Ended,
}

impl Session {
    /// Starts a watch. An expired resourceVersion is an error event, not a failed request, as upstream has it.
    pub(crate) async fn start(
        registry: &Registry,
        endpoint: Endpoint,
        namespace: Option<&str>,
        options: ListOptions,
        form: Form,
    ) -> Result<Self, ApiError> {
        let with_initial = wants_initial(&options)?;
        let (initial, next_page, revision) = if with_initial {
            let list = ListOptions {
                limit: Some(INITIAL_PAGE),
                max_bytes: Some(INITIAL_BYTES),
                continue_token: None,
                version_match: None,
                ..options.clone()
            };
            let listed = registry.list(endpoint.kind, namespace, &list).await?;
            let next_page = listed.continue_token.map(|token| ListOptions {
                continue_token: Some(token),
                ..list
            });
            let next_page = next_page.map(|options| (options, namespace.map(str::to_owned)));
            (listed.entries, next_page, listed.revision)
        } else {
            let asked = options.resource_version.filter(|revision| revision.0 > 0);
            let revision = match asked {
                Some(revision) => revision,
                None => registry.revision().await?,
            };
            (Vec::new(), None, revision)
        };
        let watch = registry.watch(endpoint.kind, namespace, revision).await?;
        let now = Instant::now();
        let lifetime = match options.timeout_seconds {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds).min(MAX_LIFETIME),
            _ => MIN_LIFETIME.mul_f64(1.0 + rand::random::<f64>()),
        };
        Ok(Self {
            registry: registry.clone(),
            endpoint,
            form,
            selector: options.selector,
            watch,
            backlog: Backlog::default(),
            initial: initial.into_iter(),
            next_page,
            initial_end: (options.send_initial_events == Some(true)).then_some(revision),
            bookmarks: options.allow_bookmarks,
            next_bookmark: now + BOOKMARK_INTERVAL,
            ends: now + lifetime,
            state: State::Open,
        })
    }

    /// The next bytes to send; `None` if the watch is over.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if self.state == State::Ended {
            return None;
        }
        match self.next_frames().await {
            Ok(frames) => Some(frames),
            Err(error) => {
                self.state = State::Ended;
                Some(error_frame(&error, self.form.wire))
            }
        }
    }

    async fn next_frames(&mut self) -> Result<Bytes, ApiError> {
        if let Some(entry) = self.next_initial().await? {
            return self.frame("ADDED", &entry);
        }
        if let Some(revision) = self.initial_end.take() {
            return self.bookmark(revision, true);
        }
        loop {
            let frames = self.backlog_frames()?;
            if !frames.is_empty() {
                return Ok(frames);
            }
            let wake = if self.bookmarks {
                self.next_bookmark.min(self.ends)
            } else {
                self.ends
            };
            tokio::select! {
                changes = self.watch.next() => {
                    if !self.backlog.fill(changes?) {
                        return Err(ApiError::new(
                            StatusReason::Expired,
                            "too many changes wait for slow clients; list anew",
                        ));
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if Instant::now() >= self.ends {
                        self.state = State::Ended;
                        return if self.bookmarks {
                            self.bookmark(self.watch.position(), false)
                        } else {
                            Ok(Bytes::new())
                        };
                    }
                    self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                    return self.bookmark(self.watch.position(), false);
                }
            }
        }
    }

    /// As many of the changes that wait as go into one frame.
    fn backlog_frames(&mut self) -> Result<Bytes, ApiError> {
        let mut out = BytesMut::new();
        while out.len() < FRAME_BYTES
            && let Some(change) = self.backlog.next()
        {
            self.append(&change, &mut out)?;
        }
        Ok(out.freeze())
    }

    /// The next object of those that were there at the start.
    async fn next_initial(&mut self) -> Result<Option<StoredObject>, ApiError> {
        if self.initial.len() == 0
            && let Some((options, namespace)) = self.next_page.take()
        {
            let listed = self
                .registry
                .list(self.endpoint.kind, namespace.as_deref(), &options)
                .await?;
            self.initial = listed.entries.into_iter();
            self.next_page = listed.continue_token.map(|token| {
                let options = ListOptions {
                    continue_token: Some(token),
                    ..options
                };
                (options, namespace)
            });
        }
        Ok(self.initial.next())
    }

    /// Writes what a change means to this watch, if anything.
    fn append(&self, change: &Change, out: &mut BytesMut) -> Result<(), ApiError> {
        let entry = |value: &Bytes, integrity| StoredObject {
            key: change.key.clone(),
            value: value.clone(),
            revision: change.revision,
            integrity,
        };
        let now = change.value.as_ref().map(|value| entry(value, change.integrity));
        // What ended is shown as it last was, with the revision of its end.
        let before = change.previous.as_ref();
        let before = before.map(|previous| entry(&previous.value, previous.integrity));
        let (did_match, does_match) = if self.selector.is_everything() {
            (before.is_some(), now.is_some())
        } else {
            (self.selects(before.as_ref())?, self.selects(now.as_ref())?)
        };
        let (kind, shown) = match (did_match, does_match) {
            (false, true) => ("ADDED", now),
            (true, true) => ("MODIFIED", now),
            (true, false) => ("DELETED", before),
            (false, false) => return Ok(()),
        };
        if let Some(entry) = shown {
            out.extend_from_slice(&self.frame(kind, &entry)?);
        }
        Ok(())
    }

    fn selects(&self, entry: Option<&StoredObject>) -> Result<bool, ApiError> {
        match entry {
            Some(entry) => Ok(self.selector.matches(&Object::from_entry(entry)?)),
            None => Ok(false),
        }
    }

    fn frame(&self, kind: &str, entry: &StoredObject) -> Result<Bytes, ApiError> {
        if self.form.wire == WireFormat::Protobuf {
            let object = Object::from_entry(entry)?;
            let shown = object_view(&self.registry, self.endpoint, self.form.view, object);
            return frame(kind, &shown, self.form.wire);
        }
        let mut out = BytesMut::new();
        out.extend_from_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
        render_json(&self.registry, self.endpoint, self.form.view, entry, &mut out)?;
        out.extend_from_slice(b"}\n");
        Ok(out.freeze())
    }

    fn bookmark(&self, revision: Revision, ends_initial: bool) -> Result<Bytes, ApiError> {
        let mut object = json!({
            "kind": self.endpoint.info().kind,
            "apiVersion": self.endpoint.group_version.api_version(),
            "metadata": {"resourceVersion": revision.to_string()},
        });
        if ends_initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.form.view {
            View::Objects => object,
            View::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }),
            View::Table(include) => {
                let object =
                    Object::new(object).ok_or_else(|| ApiError::internal("a bookmark is an object"))?;
                let rows = [(object.clone(), object)];
                let metadata = json!({"resourceVersion": revision.to_string()});
                crate::rest::table::table(self.endpoint.kind, &rows, include, &metadata)
            }
        };
        frame("BOOKMARK", &object, self.form.wire)
    }
}

/// Whether the watch begins with what is there.
fn wants_initial(options: &ListOptions) -> Result<bool, ApiError> {
    match options.send_initial_events {
        Some(wanted) => {
            if options.version_match != Some(VersionMatch::NotOlderThan) {
                return Err(ApiError::bad_request(
                    "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to \
                     NotOlderThan",
                ));
            }
            if wanted && !options.allow_bookmarks {
                return Err(ApiError::bad_request(
                    "sendInitialEvents: Forbidden: sendInitialEvents requires allowWatchBookmarks",
                ));
            }
            Ok(wanted)
        }
        None if options.version_match.is_some() => Err(ApiError::bad_request(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
             provided",
        )),
        None => Ok(options.resource_version.is_none_or(|revision| revision.0 == 0)),
    }
}

/// The event that ends a watch which cannot go on.
pub(crate) fn error_frame(error: &ApiError, wire: WireFormat) -> Bytes {
    frame("ERROR", &error.to_status(), wire).unwrap_or_default()
}

/// One event of a watch.
fn frame(kind: &str, object: &Value, wire: WireFormat) -> Result<Bytes, ApiError> {
    match wire {
        WireFormat::Json => Ok(line(&json!({"type": kind, "object": object}))),
        WireFormat::Protobuf => protobuf::watch_frame(kind, object)
            .map(Bytes::from)
            .ok_or_else(|| ApiError::not_acceptable(&["application/json"])),
    }
}

fn line(value: &Value) -> Bytes {
    let mut out = BytesMut::new();
    serde_json::to_writer((&mut out).writer(), value).expect("a JSON value can be written to memory");
    out.extend_from_slice(b"\n");
    out.freeze()
}
