//! Watches of single config maps and secrets, which tell when a volume has to be made anew.
//!
//! A watch is only a trigger: what an object holds is asked for by whoever makes something from it. There is one watch per
//! object however many pods use it, selected by its name, because a node may read no more than what its pods name. What
//! must always hold: an object counts as watched only while the server tells of its changes; what happened while a watch
//! was broken is told when it is back. Watches have connections of their own, of which a server allows a limited number of
//! streams, and are bounded; the objects beyond are looked at in rounds by their users.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pulselet_agent::{ChangedObjects, SourceKind, SourceObject};
use serde::Deserialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::backoff::Backoff;
use crate::client::ApiClient;
use crate::watch::{Event, ListMeta, WatchError, open};

/// Watches over one connection: every server allows as many, most of them 250.
const WATCHES_PER_CONNECTION: usize = 100;
/// Connections for watches, each made when the ones before it are full.
const CONNECTIONS: usize = 10;

/// The objects that are watched; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectWatches {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wanted: watch::Sender<BTreeSet<SourceObject>>,
    changed: ChangedObjects,
    open: Mutex<HashSet<SourceObject>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            wanted: watch::Sender::new(BTreeSet::new()),
            changed: ChangedObjects::default(),
            open: Mutex::default(),
        }
    }
}

impl ObjectWatches {
    /// These are to be watched from now on, and no others.
    pub(crate) fn follow(&self, wanted: BTreeSet<SourceObject>) {
        self.shared.wanted.send_replace(wanted);
    }

    /// Whether the server tells of an object's changes at present.
    pub(crate) fn is_open(&self, object: &SourceObject) -> bool {
        self.shared.open().contains(object)
    }

    /// The next object that may be another than before.
    pub(crate) async fn changed(&self) -> SourceObject {
        self.shared.changed.next().await
    }

    /// Watches what is wanted, for as long as it is polled.
    pub(crate) async fn run(self, client: ApiClient) {
        let pool = Pool::new(|| client.apart());
        let mut wanted = self.shared.wanted.subscribe();
        let mut tasks = JoinSet::new();
        let mut watched: HashMap<SourceObject, AbortHandle> = HashMap::new();
        loop {
            let objects = wanted.borrow_and_update().clone();
            watched.retain(|object, task| {
                let stays = objects.contains(object);
                if !stays {
                    task.abort();
                }
                stays
            });
            while tasks.try_join_next().is_some() {}
            let mut is_full = false;
            for object in objects {
                if watched.contains_key(&object) {
                    continue;
                }
                let Some(place) = pool.take() else {
                    tracing::debug!("no more objects are watched; the others are looked at in rounds");
                    is_full = true;
                    break;
                };
                let watch = ObjectWatch::new(object.clone(), Arc::clone(&self.shared));
                watched.insert(object, tasks.spawn(watch.run(place)));
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() {
                    return;
                },
                () = pool.freed(), if is_full => {}
            }
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashSet<SourceObject>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections for watches, each of which a client makes when it is first used.
#[derive(Debug)]
struct Pool<C> {
    connections: Vec<(C, Arc<Semaphore>)>,
    freed: Arc<Notify>,
}

/// Room for one watch. The permit goes first, so that there is room when it is said that there is.
#[derive(Debug)]
struct Place<C> {
    client: C,
    _permit: OwnedSemaphorePermit,
    _freed: FreedPlace,
}

/// Says, when it goes, that there is room.
#[derive(Debug)]
struct FreedPlace(Arc<Notify>);

impl Drop for FreedPlace {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl<C: Clone> Pool<C> {
    fn new(client: impl Fn() -> C) -> Self {
        let connection = |_| (client(), Arc::new(Semaphore::new(WATCHES_PER_CONNECTION)));
        Self {
            connections: (0..CONNECTIONS).map(connection).collect(),
            freed: Arc::default(),
        }
    }

    /// Waits until a place was given back, or returns at once if one was since the last time.
    async fn freed(&self) {
        self.freed.notified().await;
    }

    /// `None` if all connections are full.
    fn take(&self) -> Option<Place<C>> {
        self.connections.iter().find_map(|(client, room)| {
            let permit = Arc::clone(room).try_acquire_owned().ok()?;
            Some(Place {
                client: client.clone(),
                _permit: permit,
                _freed: FreedPlace(Arc::clone(&self.freed)),
            })
        })
    }
}

/// The part of an object that a watch looks at.
#[derive(Deserialize)]
struct WatchedObject {
    metadata: ListMeta,
    #[serde(default)]
    immutable: Option<bool>,
}

/// How a watch ended that did not fail.
#[derive(Debug, PartialEq, Eq)]
enum WatchEnd {
    /// The server ended it in order.
    InOrder,
    /// The object will never change.
    Immutable,
}

/// The watch of one object.
struct ObjectWatch {
    object: SourceObject,
    path: String,
    shared: Arc<Shared>,
    /// The version up to which everything was told; empty if the watch begins with the present.
    position: String,
    backoff: Backoff,
}

impl ObjectWatch {
    fn new(object: SourceObject, shared: Arc<Shared>) -> Self {
        let resource = match object.kind {
            SourceKind::ConfigMap => "configmaps",
            SourceKind::Secret => "secrets",
        };
        let name = utf8_percent_encode(&object.name, NON_ALPHANUMERIC);
        let path = format!(
            "/api/v1/namespaces/{}/{resource}?fieldSelector=metadata.name%3D{name}",
            object.namespace
        );
        Self {
            object,
            path,
            shared,
            position: String::new(),
            backoff: Backoff::default(),
        }
    }

    async fn run(mut self, place: Place<ApiClient>) {
        // Marks end with the task, however it ends.
        let _mark = Mark(self.object.clone(), Arc::clone(&self.shared));
        loop {
            let end = self.watch(&place.client).await;
            if matches!(end, Ok(WatchEnd::Immutable)) {
                drop(place);
                return std::future::pending().await;
            }
            self.ended(end);
            tokio::time::sleep(self.backoff.next()).await;
        }
    }

    /// Nobody tells of changes until the next watch is open, however this one ended.
    fn ended(&mut self, end: Result<WatchEnd, WatchError>) {
        self.shared.open().remove(&self.object);
        let Err(error) = end else { return };
        tracing::debug!(object = ?self.object, %error, "a watch ended");
        if error.is_expired() {
            self.position.clear();
            // The object may be gone, of which no event tells any more.
            self.shared.changed.add(self.object.clone());
        }
    }

    async fn watch(&mut self, client: &ApiClient) -> Result<WatchEnd, WatchError> {
        let mut lines = open(client, &self.path, &self.position).await?;
        self.shared.open().insert(self.object.clone());
        while let Some(line) = lines.next().await? {
            let event: Event<'_> = serde_json::from_slice(&line).map_err(WatchError::Decode)?;
            if event.kind == "ERROR" {
                return Err(WatchError::Expired(event.object.get().to_owned()));
            }
            let seen: WatchedObject = serde_json::from_str(event.object.get()).map_err(WatchError::Decode)?;
            self.backoff.reset();
            self.position = seen.metadata.resource_version;
            if event.kind == "BOOKMARK" {
                continue;
            }
            self.shared.changed.add(self.object.clone());
            if seen.immutable == Some(true) && event.kind != "DELETED" {
                return Ok(WatchEnd::Immutable);
            }
        }
        Ok(WatchEnd::InOrder)
    }
}

/// Takes back that an object is watched.
struct Mark(SourceObject, Arc<Shared>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.1.open().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_filled_one_after_the_other_and_no_further() {
        let numbers = std::cell::Cell::new(0);
        let pool = Pool::new(|| numbers.replace(numbers.get() + 1));
        let places: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(places.len(), CONNECTIONS * WATCHES_PER_CONNECTION);
        let first = places.iter().take(WATCHES_PER_CONNECTION);
        assert!(first.clone().all(|place| place.client == 0));
        drop(places);
        assert_eq!(pool.take().map(|place| place.client), Some(0));
    }

    /// Objects beyond the bound wait for a place, not for the next change of what is wanted.
    #[tokio::test]
    async fn a_place_that_is_given_back_is_made_known_when_it_can_be_taken() {
        let pool = Pool::new(|| ());
        let mut places: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), pool.freed());
        assert!(waits.await.is_err(), "none was given back");
        let (freed, ()) = tokio::join!(
            async {
                pool.freed().await;
                pool.take()
            },
            async { drop(places.pop()) }
        );
        assert!(freed.is_some());
    }

    #[test]
    fn a_watch_that_ended_in_order_does_not_count_as_open() {
        let object = SourceObject {
            kind: SourceKind::ConfigMap,
            namespace: "shop".to_owned(),
            name: "own".to_owned(),
        };
        let watches = ObjectWatches::default();
        let mut watch = ObjectWatch::new(object.clone(), Arc::clone(&watches.shared));
        for end in [Ok(WatchEnd::InOrder), Err(WatchError::Expired(String::new()))] {
            watches.shared.open().insert(object.clone());
            assert!(watches.is_open(&object));
            watch.ended(end);
            assert!(!watches.is_open(&object));
        }
    }

    #[test]
    fn a_watch_selects_one_object_by_its_name() {
        let path = |kind| {
            let object = SourceObject {
                kind,
                namespace: "shop".to_owned(),
                name: "own.v1".to_owned(),
            };
            ObjectWatch::new(object, Arc::default()).path
        };
        assert_eq!(
            path(SourceKind::Secret),
            "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Down%2Ev1"
        );
        assert_eq!(
            path(SourceKind::ConfigMap),
            "/api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%3Down%2Ev1"
        );
    }
}
