//! The pods of one node, as the API has them: a list, then every change.
//!
//! What must always hold: a list comes first, and whoever reads has seen every change since the last list, in order,
//! or gets a new list. A watch that ends in order is resumed where it was; one that breaks, or whose position the
//! server no longer has, begins anew with a list. What the pods mean is the reader's business.

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pulselet_model::Pod;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::backoff::Backoff;
use crate::client::{ApiClient, ApiClientError, Call};
use crate::store_memory::{StoreMemory, StoreMemoryError};

/// Pods in one page of a list: a megabyte or two.
const PAGE: usize = 500;
/// Seconds after which the server may end a watch, and up to as much again, so that nodes do not come back together.
const WATCH_SECONDS: u64 = 300;
/// Bytes of one event; objects of etcd have at most one and a half million.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
/// Changes that wait for the reader; the server waits too then.
pub(crate) const BACKLOG: usize = 256;

/// What the API says about the node's pods.
#[derive(Debug)]
pub(crate) enum Seen {
    /// All there are.
    Listed(Vec<Pod>),
    /// One came, or is another than before.
    Changed(Box<Pod>),
    /// One was removed.
    Gone(Box<Pod>),
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The part of any object that says how far the watch has come.
#[derive(Deserialize)]
struct Positioned {
    metadata: ListMeta,
}

/// Why a watch is over.
#[derive(Debug, thiserror::Error)]
enum WatchError {
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

/// Follows the pods of a node until nobody reads.
pub(crate) async fn follow(client: ApiClient, node: String, memory: StoreMemory, sink: mpsc::Sender<Seen>) {
    let mut backoff = Backoff::default();
    loop {
        let follower = Follower {
            client: &client,
            path: path(&node),
            sink: &sink,
            memory: &memory,
        };
        let error = match follower.list_and_watch(&mut backoff).await {
            Err(WatchError::Unread) => return,
            Err(error) => error,
            Ok(never) => match never {},
        };
        let pause = backoff.next();
        if let WatchError::Expired(_) = error {
            tracing::info!(%error, "listing the node's pods anew");
        } else if let WatchError::Memory(_) = error {
            tracing::error!(%error, ?pause, "the node's pods run on as they are");
        } else {
            tracing::warn!(%error, ?pause, "cannot follow the node's pods at the API; they run on");
        }
        tokio::time::sleep(pause).await;
    }
}

fn path(node: &str) -> String {
    let node = utf8_percent_encode(node, NON_ALPHANUMERIC);
    format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")
}

struct Follower<'a> {
    client: &'a ApiClient,
    path: String,
    sink: &'a mpsc::Sender<Seen>,
    memory: &'a StoreMemory,
}

impl Follower<'_> {
    async fn list_and_watch(&self, backoff: &mut Backoff) -> Result<std::convert::Infallible, WatchError> {
        self.memory.check(self.client).await?;
        let (pods, mut position) = self.list().await?;
        self.send(Seen::Listed(pods)).await?;
        backoff.reset();
        loop {
            self.watch(&mut position).await?;
        }
    }

    async fn send(&self, seen: Seen) -> Result<(), WatchError> {
        self.sink.send(seen).await.map_err(|_| WatchError::Unread)
    }

    async fn list(&self) -> Result<(Vec<Pod>, String), WatchError> {
        let (mut pods, mut next) = (Vec::new(), String::new());
        loop {
            let mut path = format!("{}&limit={PAGE}", self.path);
            if !next.is_empty() {
                let token = utf8_percent_encode(&next, NON_ALPHANUMERIC);
                path = format!("{path}&continue={token}");
            }
            let list: List = self.client.ask(Call::get(path)).await?;
            pods.extend(list.items.iter().filter_map(|item| pod(item)));
            if list.metadata.next.is_empty() {
                return Ok((pods, list.metadata.resource_version));
            }
            next = list.metadata.next;
        }
    }

    /// Watches from a position until the server ends the watch in order.
    async fn watch(&self, position: &mut String) -> Result<(), WatchError> {
        let seconds = WATCH_SECONDS + rand::random::<u64>() % WATCH_SECONDS;
        let path = format!(
            "{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={position}",
            self.path
        );
        let mut lines = Lines {
            body: self.client.stream(Call::get(path)).await?,
            read: BytesMut::new(),
        };
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
        if let Some(pod) = Some(event.kind)
            .filter(|kind| *kind != "BOOKMARK")
            .and(pod(event.object))
        {
            let pod = Box::new(pod);
            let seen = match event.kind {
                "DELETED" => Seen::Gone(pod),
                _ => Seen::Changed(pod),
            };
            self.send(seen).await?;
        }
        *position = at.metadata.resource_version;
        Ok(())
    }
}

/// A pod that this program cannot read is nothing it can run; the others must not suffer.
fn pod(object: &RawValue) -> Option<Pod> {
    serde_json::from_str(object.get())
        .inspect_err(|error| tracing::error!(%error, "a pod of the API cannot be read and is left out"))
        .ok()
}

/// The lines of a body.
struct Lines {
    body: Incoming,
    read: BytesMut,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<BytesMut>, WatchError> {
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
