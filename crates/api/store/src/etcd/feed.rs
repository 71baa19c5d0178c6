//! Changes of the cluster, as watches of the store see them.
//!
//! One watch of the cluster brings every change below our prefix into the window that all watches of this copy share. It goes
//! on at another member where it was when its member fails, so it has no gaps; if what it missed is forgotten meanwhile, the
//! window begins anew and each watch that is behind learns from etcd that it cannot go on.
//!
//! A watch that is further back than the window opens one of its own for a moment and reads a bounded batch. It is sure to come
//! to the window that way, because a window begins at a change below our prefix: the mark that is written for this.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pulselet_etcd_wire::{
    Event, PutRequest, TxnRequest, WatchCreateRequest, WatchResponse, event, request_op,
};
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::{Cluster, from_wire, lock, operation, revision, to_wire};
use crate::window::{Lookup, Window};
use crate::{Change, Integrity, Revision, StoreError, Watch, prefix_end};

/// Written when a window begins; its revision is where.
const MARK: &str = "/feed";
/// The pause before a watch that failed is opened again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long a member may take for the next part of the past.
const PAST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the past is asked for, at one member after the other.
const PAST_ATTEMPTS: usize = 4;
/// Changes read at once for a watch that lags.
const PAST_BATCH: usize = 256;
/// Bytes of values read at once for it: what a watch that lags costs, and one message more.
const PAST_BYTES: usize = 1 << 20;

/// How a watch of the cluster ended.
#[derive(Debug)]
enum End {
    /// What it should go on with is forgotten; this is left.
    Compacted(Revision),
    Failed(String),
}

impl Cluster {
    /// Writes the mark where a window begins.
    pub(super) async fn mark(&self) -> Result<Revision, StoreError> {
        let put = request_op::Request::RequestPut(PutRequest {
            key: self.key(MARK),
            value: Bytes::new(),
        });
        let request = TxnRequest {
            success: vec![operation(put)],
            ..TxnRequest::default()
        };
        let answer = self.write(request).await?;
        Ok(revision(answer.header.as_ref()))
    }

    /// Everything before this revision is for each watch to read itself.
    pub(super) fn begin_at(&self, start: Revision) {
        *lock(&self.window) = Window::new(start);
        self.latest.send_replace(start);
    }

    fn everything_after(&self, position: Revision) -> WatchCreateRequest {
        let prefix = format!("{}/", self.prefix);
        WatchCreateRequest {
            range_end: prefix_end(&prefix).into(),
            key: prefix.into(),
            start_revision: to_wire(position) + 1,
            progress_notify: true,
            prev_kv: true,
            fragment: true,
        }
    }

    fn change(&self, event: Event) -> Option<Change> {
        let is_deletion = event.r#type() == event::EventType::Delete;
        let kv = event.kv?;
        Some(Change {
            key: self.stripped(&kv.key),
            revision: from_wire(kv.mod_revision),
            value: (!is_deletion).then_some(kv.value),
            integrity: Integrity::Unknown,
            previous: event.prev_kv.map(|previous| self.entry(previous)),
        })
    }

    /// Makes changes visible to watches, and that there are no others up to a revision.
    fn publish(&self, changes: Vec<Change>, newest: Revision) -> Revision {
        let mut window = lock(&self.window);
        for change in changes {
            window.push(change);
        }
        window.advance(newest);
        drop(window);
        self.latest.send_replace(newest);
        newest
    }
}

/// Follows the cluster until it is dropped.
pub(super) async fn run(cluster: Arc<Cluster>, start: Revision) {
    let mut position = start;
    loop {
        match follow(&cluster, &mut position).await {
            End::Failed(error) => {
                tracing::warn!(error, "the watch of etcd failed; it goes on at another member");
            }
            End::Compacted(oldest) => {
                tracing::warn!(%position, %oldest, "etcd has forgotten changes that were not seen yet: watches begin anew");
                match cluster.mark().await {
                    Ok(start) => {
                        cluster.begin_at(start);
                        position = start;
                        // What comes after it should not be forgotten meanwhile.
                        continue;
                    }
                    Err(error) => tracing::warn!(%error, "the watch of etcd cannot begin anew"),
                }
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Brings changes into the window as long as it goes well.
async fn follow(cluster: &Cluster, position: &mut Revision) -> End {
    let request = cluster.everything_after(*position);
    let (open, mut answers) = match cluster.members.watch(request).await {
        Ok(opened) => opened,
        Err(status) => return End::Failed(status.message().to_owned()),
    };
    let mut changes = Vec::new();
    loop {
        let answer = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                cluster.members.leave(&open);
                return End::Failed("the member has ended it".to_owned());
            }
            Err(status) => {
                cluster.members.leave(&open);
                return End::Failed(status.message().to_owned());
            }
        };
        if let Some(end) = ended(&answer) {
            cluster.members.leave(&open);
            return end;
        }
        if answer.created {
            continue;
        }
        let header = revision(answer.header.as_ref());
        let (is_whole, is_empty) = (!answer.fragment, answer.events.is_empty());
        changes.extend(
            answer
                .events
                .into_iter()
                .filter_map(|event| cluster.change(event)),
        );
        // An answer without changes says that there were none up to its revision.
        let newest = match changes.last() {
            Some(last) => last.revision,
            None if is_empty && is_whole => header,
            None => *position,
        };
        if is_whole {
            *position = cluster.publish(std::mem::take(&mut changes), newest.max(*position));
            continue;
        }
        // More of the newest revision may follow.
        let later = changes.split_off(changes.partition_point(|change| change.revision < newest));
        let ready = std::mem::replace(&mut changes, later);
        if let Some(last) = ready.last() {
            let reached = last.revision;
            *position = cluster.publish(ready, reached);
        }
    }
}

fn ended(answer: &WatchResponse) -> Option<End> {
    if answer.compact_revision > 0 {
        return Some(End::Compacted(from_wire(answer.compact_revision)));
    }
    answer.canceled.then(|| End::Failed(answer.cancel_reason.clone()))
}

/// Starts a watch of the store.
pub(super) async fn watch(
    cluster: &Arc<Cluster>,
    prefix: String,
    after: Revision,
) -> Result<FeedCursor, StoreError> {
    if after > *cluster.latest.borrow() {
        // Another copy may have made changes that are not here yet.
        let newest = cluster.newest().await?;
        if after > newest {
            return Err(StoreError::Future { asked: after, newest });
        }
    }
    if after < lock(&cluster.window).floor() {
        cluster.check_readable(after).await?;
    }
    Ok(FeedCursor {
        cluster: Arc::clone(cluster),
        latest: cluster.latest.subscribe(),
        prefix,
        position: after,
    })
}

/// A watch: a position in the order of changes.
#[derive(Debug)]
pub(super) struct FeedCursor {
    cluster: Arc<Cluster>,
    latest: Receiver<Revision>,
    prefix: String,
    position: Revision,
}

#[async_trait]
impl Watch for FeedCursor {
    async fn next(&mut self) -> Result<Vec<Arc<Change>>, StoreError> {
        loop {
            if *self.latest.borrow_and_update() <= self.position {
                self.latest.changed().await.map_err(|_| StoreError::Closed)?;
                continue;
            }
            let lookup = lock(&self.cluster.window).after(self.position, &self.prefix);
            let (changes, position) = match lookup {
                Lookup::Found(changes, position) => (changes, position),
                Lookup::TooOld => past(&self.cluster, &self.prefix, self.position).await?,
            };
            self.position = position;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn position(&self) -> Revision {
        self.position
    }
}

/// Some changes after a position that the window no longer has, those that match, and the position after them.
async fn past(
    cluster: &Cluster,
    prefix: &str,
    after: Revision,
) -> Result<(Vec<Arc<Change>>, Revision), StoreError> {
    let _permit = cluster
        .catching_up
        .acquire()
        .await
        .map_err(|_| StoreError::Closed)?;
    let mut message = String::new();
    for _ in 0..PAST_ATTEMPTS {
        match read_past(cluster, prefix, after).await {
            Ok(read) => return Ok(read),
            Err(End::Compacted(oldest)) => return Err(StoreError::Compacted { asked: after, oldest }),
            Err(End::Failed(why)) => message = why,
        }
        sleep(RETRY_PAUSE).await;
    }
    Err(StoreError::Unreachable { message })
}

async fn read_past(
    cluster: &Cluster,
    prefix: &str,
    after: Revision,
) -> Result<(Vec<Arc<Change>>, Revision), End> {
    let failed = |status: tonic::Status| End::Failed(status.message().to_owned());
    let opened = cluster.members.watch(cluster.everything_after(after)).await;
    let (open, mut answers) = opened.map_err(failed)?;
    let mut batch = Batch::new(prefix, after);
    loop {
        let answer = match timeout(PAST_TIMEOUT, answers.message()).await {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return Err(End::Failed("the member has ended the watch".to_owned())),
            Ok(Err(status)) => return Err(failed(status)),
            Err(_) => {
                cluster.members.leave(&open);
                return Err(End::Failed("the member sends no changes".to_owned()));
            }
        };
        if let Some(end) = ended(&answer) {
            return Err(end);
        }
        let is_whole = !answer.fragment;
        for event in answer.events {
            if let Some(change) = cluster.change(event) {
                batch.add(change);
            }
        }
        if let Some(read) = batch.take(is_whole, lock(&cluster.window).floor()) {
            return Ok(read);
        }
    }
}

/// Changes of the past on their way to one watch.
#[derive(Debug)]
struct Batch<'a> {
    prefix: &'a str,
    after: Revision,
    changes: Vec<Arc<Change>>,
    bytes: usize,
    /// The newest change that was seen, and the one before it.
    newest: Revision,
    before: Revision,
}

impl<'a> Batch<'a> {
    const fn new(prefix: &'a str, after: Revision) -> Self {
        Self {
            prefix,
            after,
            changes: Vec::new(),
            bytes: 0,
            newest: after,
            before: after,
        }
    }

    fn add(&mut self, change: Change) {
        if change.revision > self.newest {
            self.before = self.newest;
            self.newest = change.revision;
        }
        if change.key.starts_with(self.prefix) {
            self.bytes += change.bytes();
            self.changes.push(Arc::new(change));
        }
    }

    /// What there is, if it is enough. More of the newest revision may follow unless the answer was whole.
    fn take(&mut self, is_whole: bool, floor: Revision) -> Option<(Vec<Arc<Change>>, Revision)> {
        let reached = if is_whole { self.newest } else { self.before };
        let is_enough = reached >= floor || self.changes.len() >= PAST_BATCH || self.bytes >= PAST_BYTES;
        if !is_enough || reached <= self.after {
            return None;
        }
        let mut changes = std::mem::take(&mut self.changes);
        changes.retain(|change| change.revision <= reached);
        Some((changes, reached))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64, key: &str, bytes: usize) -> Change {
        Change {
            key: key.to_owned(),
            revision: Revision(revision),
            value: Some(vec![b'x'; bytes].into()),
            integrity: Integrity::Unknown,
            previous: None,
        }
    }

    #[test]
    fn a_batch_ends_at_the_window_or_when_it_is_large_and_never_within_a_revision() {
        let mut batch = Batch::new("/a", Revision(4));
        assert_eq!(batch.take(true, Revision(4)), None, "it has brought nothing yet");
        batch.add(change(5, "/b", 1));
        batch.add(change(6, "/a", 1));
        assert_eq!(batch.take(true, Revision(9)), None, "the window is further on");
        batch.add(change(9, "/a", PAST_BYTES));
        batch.add(change(9, "/a/2", 1));
        let (changes, reached) = batch.take(false, Revision(20)).expect("it is large");
        assert_eq!(
            (changes.len(), reached),
            (1, Revision(6)),
            "more of revision 9 may follow"
        );

        let mut batch = Batch::new("/a", Revision(6));
        batch.add(change(9, "/a", 1));
        batch.add(change(9, "/a/2", 1));
        let (changes, reached) = batch.take(true, Revision(9)).expect("the window goes on");
        assert_eq!((changes.len(), reached), (2, Revision(9)));
    }
}
