//! Objects of one kind as the API has them, such as the pods of a node or all services: a list, then every change.
//!
//! What must always hold: a list comes first, and whoever reads has seen every change since the last list, in order,
//! or gets a new list. A watch that ends in order is resumed where it was; one that breaks, or whose position the
//! server no longer has, begins anew with a list. What the objects mean is the reader's business.

use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pulselet_model::Pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch as value};

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::paths;
use crate::store_memory::{StoreMemory, StoreMemoryError};

/// Objects in one page of a list: a megabyte or two.
const PAGE: usize = 500;
/// Seconds after which the server may end a watch, and up to as much again, so that nodes do not come back together.
const WATCH_SECONDS: u64 = 300;
/// Bytes of one event; objects of etcd have at most one and a half million.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
/// How long an API that does not have a kind is not asked for it.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Changes that wait for the reader; the server waits too then.
pub(crate) const BACKLOG: usize = 256;

/// What the API says about the objects.
#[derive(Debug)]
pub enum Seen<T = Pod> {
    /// All there are.
    Listed(Vec<T>),
    /// One came, or is another than before.
    Changed(Box<T>),
    /// One was removed.
    Gone(Box<T>),
}

/// Which objects.
#[derive(Debug)]
pub(crate) struct Followed {
    /// For what people read.
    what: &'static str,
    path: String,
    /// An API that does not have the kind has none of them.
    optional: bool,
    /// Whose they are, where that matters because something ends when they are missing.
    memory: Option<StoreMemory>,
    /// Who wants to know why they cannot be followed.
    trouble: Option<value::Sender<Option<String>>>,
}

impl Followed {
    /// The pods of one node.
    pub(crate) fn pods_of(node: &str, memory: StoreMemory) -> Self {
        let node = utf8_percent_encode(node, NON_ALPHANUMERIC);
        Self {
            what: "the node's pods",
            path: format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"),
            optional: false,
            memory: Some(memory),
            trouble: None,
        }
    }

    /// The pods of a namespace, for somebody who only looks.
    pub(crate) fn pods_in(namespace: &str, trouble: value::Sender<Option<String>>) -> Self {
        Self {
            what: "pods",
            path: format!("{}?", paths::pods(namespace)),
            optional: false,
            memory: None,
            trouble: Some(trouble),
        }
    }

    /// The events of a namespace.
    pub(crate) fn events_in(namespace: &str, trouble: value::Sender<Option<String>>) -> Self {
        Self {
            what: "events",
            path: format!("{}?", paths::events(namespace)),
            optional: true,
            memory: None,
            trouble: Some(trouble),
        }
    }

    /// The services of all namespaces.
    pub(crate) fn services() -> Self {
        Self {
            what: "services",
            path: "/api/v1/services?".to_owned(),
            optional: true,
            memory: None,
            trouble: None,
        }
    }

    /// Says why they cannot be followed, or that they are.
    fn say(&self, why: Option<&WatchError>) {
        if let Some(trouble) = &self.trouble {
            trouble.send_replace(why.map(ToString::to_string));
        }
    }
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListMeta {
    pub(crate) resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
pub(crate) struct Event<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'a str,
    #[serde(borrow)]
    pub(crate) object: &'a RawValue,
}

/// The part of any object that says how far the watch has come.
#[derive(Deserialize)]
struct Positioned {
    metadata: ListMeta,
}

/// Why a watch is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error(transparent)]
    Client(#[from] ApiClientError),
    #[error(transparent)]
    Memory(#[from] StoreMemoryError),
    #[error("the watch broke off: {0}")]
    Broken(hyper::Error),
    #[error("an event has more than {MAX_EVENT_BYTES} bytes")]
    TooLarge,
    #[error("an event cannot be read: {0}")]
    Decode(serde_json::Error),
    #[error("the watch cannot go on: {0}")]
    Expired(String),
    /// Nobody reads any more.
    #[error("the reader is gone")]
    Unread,
}

impl WatchError {
    /// What happened since the position is no longer known.
    pub(crate) fn is_expired(&self) -> bool {
        match self {
            Self::Client(error) => error.is_gone(),
            Self::Expired(_) => true,
            Self::Memory(_) | Self::Broken(_) | Self::TooLarge | Self::Decode(_) | Self::Unread => false,
        }
    }

    fn is_not_served(&self) -> bool {
        matches!(self, Self::Client(error) if error.is_not_found())
    }
}

/// Follows objects until nobody reads.
pub(crate) async fn follow<T: DeserializeOwned>(
    client: ApiClient,
    followed: Followed,
    sink: mpsc::Sender<Seen<T>>,
) {
    let mut backoff = Backoff::default();
    let reader = Follower {
        client: &client,
        followed: &followed,
        sink: &sink,
    };
    let what = followed.what;
    loop {
        let error = match reader.list_and_watch(&mut backoff).await {
            Err(WatchError::Unread) => return,
            Err(error) => error,
            Ok(never) => match never {},
        };
        let mut pause = backoff.next();
        // A list that is out of date is only asked for again.
        if !matches!(error, WatchError::Expired(_)) {
            followed.say(Some(&error));
        }
        if let WatchError::Expired(_) = error {
            tracing::info!(%error, what, "listing anew");
        } else if let WatchError::Memory(_) = error {
            tracing::error!(%error, what, ?pause, "the node runs on as it is");
        } else if followed.optional && error.is_not_served() {
            tracing::debug!(what, "the API does not have them");
            if sink.send(Seen::Listed(Vec::new())).await.is_err() {
                return;
            }
            pause = ASK_AGAIN;
        } else {
            tracing::warn!(%error, what, ?pause, "cannot follow them at the API; all stays as it is");
        }
        tokio::time::sleep(pause).await;
    }
}

struct Follower<'a, T> {
    client: &'a ApiClient,
    followed: &'a Followed,
    sink: &'a mpsc::Sender<Seen<T>>,
}

impl<T: DeserializeOwned> Follower<'_, T> {
    async fn list_and_watch(&self, backoff: &mut Backoff) -> Result<std::convert::Infallible, WatchError> {
        if let Some(memory) = &self.followed.memory {
            memory.check(self.client).await?;
        }
        let (objects, mut position) = self.list().await?;
        self.send(Seen::Listed(objects)).await?;
        self.followed.say(None);
        backoff.reset();
        loop {
            self.watch(&mut position).await?;
        }
    }

    async fn send(&self, seen: Seen<T>) -> Result<(), WatchError> {
        self.sink.send(seen).await.map_err(|_| WatchError::Unread)
    }

    async fn list(&self) -> Result<(Vec<T>, String), WatchError> {
        let (mut objects, mut next) = (Vec::new(), String::new());
        loop {
            let mut path = format!("{}&limit={PAGE}", self.followed.path);
            if !next.is_empty() {
                let token = utf8_percent_encode(&next, NON_ALPHANUMERIC);
                path = format!("{path}&continue={token}");
            }
            let list: List = self.client.ask(Call::get(path)).await?;
            objects.extend(list.items.iter().filter_map(|item| self.read(item)));
            if list.metadata.next.is_empty() {
                return Ok((objects, list.metadata.resource_version));
            }
            next = list.metadata.next;
        }
    }

    /// Watches from a position until the server ends the watch in order.
    async fn watch(&self, position: &mut String) -> Result<(), WatchError> {
        let mut lines = open(self.client, &self.followed.path, position).await?;
        while let Some(line) = lines.next().await? {
            self.event(&line, position).await?;
        }
        Ok(())
    }

    async fn event(&self, line: &[u8], position: &mut String) -> Result<(), WatchError> {
        let event: Event<'_> = serde_json::from_slice(line).map_err(WatchError::Decode)?;
        if event.kind == "ERROR" {
            return Err(WatchError::Expired(event.object.get().to_owned()));
        }
        let at: Positioned = serde_json::from_str(event.object.get()).map_err(WatchError::Decode)?;
        // A bookmark says only how far the watch has come; what else is in it is no object.
        let object = (event.kind != "BOOKMARK").then(|| self.read(event.object));
        if let Some(object) = object.flatten() {
            let object = Box::new(object);
            let seen = match event.kind {
                "DELETED" => Seen::Gone(object),
                _ => Seen::Changed(object),
            };
            self.send(seen).await?;
        }
        *position = at.metadata.resource_version;
        Ok(())
    }

    /// An object that this program cannot read is nothing it can use; the others must not suffer.
    fn read(&self, object: &RawValue) -> Option<T> {
        let what = self.followed.what;
        serde_json::from_str(object.get())
            .inspect_err(
                |error| tracing::error!(%error, what, "one of the API's cannot be read and is left out"),
            )
            .ok()
    }
}

/// Begins a watch of what a path selects; an empty position is the present, with all there is as the first events.
pub(crate) async fn open(client: &ApiClient, path: &str, position: &str) -> Result<Lines, WatchError> {
    let seconds = WATCH_SECONDS + rand::random::<u64>() % WATCH_SECONDS;
    let path = format!(
        "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={position}"
    );
    Ok(Lines {
        body: client.stream(Call::get(path)).await?,
        read: BytesMut::new(),
    })
}

/// The lines of a body.
pub(crate) struct Lines {
    body: Incoming,
    read: BytesMut,
}

impl Lines {
    pub(crate) async fn next(&mut self) -> Result<Option<BytesMut>, WatchError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(end + 1);
                if line.len() > 1 {
                    return Ok(Some(line));
                }
                continue;
            }
            if self.read.len() > MAX_EVENT_BYTES {
                return Err(WatchError::TooLarge);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let frame = frame.map_err(WatchError::Broken)?;
                    self.read
                        .extend_from_slice(&frame.into_data().unwrap_or_default());
                }
            }
        }
    }
}
