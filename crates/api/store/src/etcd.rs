//! The store in an etcd cluster, for API servers in more than one copy.
//!
//! Every key of ours begins with the prefix that was configured; a revision of the store is a revision of the cluster, so that
//! all copies speak of the same ones. Reads are consistent: they see every change that was answered before, by whichever copy.
//! A swap is one transaction. `members` says which member is asked, and what a failure means.
//!
//! All watches of a copy share one watch of the cluster, which `feed` keeps open; `compaction` forgets what is old.
//!
//! Beside the objects there are four keys of our own: which store this is, the revision up to which the past was forgotten, the
//! beginning of a feed, and what `registry` needs to take turns.

mod compaction;
mod feed;
mod members;
mod read;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pulselet_etcd_wire::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse, compare, request_op, response_op,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::window::Window;
use crate::{
    Expect, Integrity, ListPage, Range, Revision, Store, StoreError, StoreIdentity, StoredObject, Swap,
    Swapped, Watch,
};
use members::Members;

/// Which store this is.
const IDENTITY: &str = "/identity";
/// How often memory is given back that only saves time.
const REST_INTERVAL: Duration = Duration::from_secs(10);
/// Watches that read the past at a time, which bounds the memory that takes.
const MAX_CATCHING_UP: usize = 8;

/// Where the cluster is, and how it is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `host:port` of each member; at least one.
    pub members: Vec<String>,
    /// What our keys begin with.
    pub prefix: String,
    /// `None` if in plain text.
    pub tls: Option<EtcdTls>,
    /// How old a change may become before it is forgotten, at least; `None` if others see to that.
    pub compaction_interval: Option<Duration>,
}

/// Whom to trust, and who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    pub authority: PathBuf,
    /// The certificate with which we come, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A text that does not say where an etcd cluster is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name the members of an etcd cluster, for example etcd://10.0.0.1:2379,10.0.0.2:2379")]
pub struct ParseEtcdError(String);

impl EtcdConfig {
    /// What our keys begin with by default. A kube-apiserver keeps its own below `/registry`, in another form.
    pub const PREFIX: &str = "/pulselet";
    /// As upstream has it.
    pub const COMPACTION_INTERVAL: Duration = Duration::from_mins(5);
}

impl FromStr for EtcdConfig {
    type Err = ParseEtcdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let failed = || ParseEtcdError(text.to_owned());
        let members: Vec<String> = text
            .strip_prefix("etcd://")
            .ok_or_else(failed)?
            .split(',')
            .map(str::to_owned)
            .collect();
        let is_member = |member: &String| {
            let authority = member.parse::<http::uri::Authority>();
            authority
                .is_ok_and(|it| !it.host().is_empty() && it.port_u16().is_some() && !member.contains('@'))
        };
        if !members.iter().all(is_member) {
            return Err(failed());
        }
        Ok(Self {
            members,
            prefix: Self::PREFIX.to_owned(),
            tls: None,
            compaction_interval: Some(Self::COMPACTION_INTERVAL),
        })
    }
}

/// See the module. Clones share one store.
#[derive(Debug, Clone)]
pub struct EtcdStore {
    cluster: Arc<Cluster>,
    /// They end with the last clone.
    _tasks: Arc<Vec<AbortOnDropHandle<()>>>,
}

/// What reads, writes, watches and the tasks share.
#[derive(Debug)]
struct Cluster {
    members: Members,
    prefix: String,
    identity: String,
    /// Beside it is written which store was found.
    remembered: PathBuf,
    window: Mutex<Window>,
    latest: watch::Sender<Revision>,
    catching_up: Semaphore,
    /// Why the last write failed; `None` if it did not.
    trouble: Mutex<Option<String>>,
}

impl EtcdStore {
    /// Looks whether this is the store that was here before, and follows its changes. `remembered` is a path beside which that
    /// is kept.
    pub async fn open(config: &EtcdConfig, remembered: &Path) -> Result<Self, StoreError> {
        let known = StoreIdentity::read(remembered)?;
        if config.tls.is_none() && !config.members.iter().all(|member| is_loopback(member)) {
            tracing::warn!(
                "etcd is spoken to in plain text over the network, secrets included: name its authority with --etcd-cafile"
            );
        }
        let mut cluster = Cluster {
            members: Members::new(config)?,
            prefix: config.prefix.clone(),
            identity: String::new(),
            remembered: remembered.to_owned(),
            window: Mutex::new(Window::new(Revision(0))),
            latest: watch::Sender::new(Revision(0)),
            catching_up: Semaphore::new(MAX_CATCHING_UP),
            trouble: Mutex::default(),
        };
        cluster.identity = cluster.identify(known.as_ref()).await?;
        let start = cluster.mark().await?;
        cluster.begin_at(start);
        cluster.remember(start)?;
        let cluster = Arc::new(cluster);
        let mut tasks = vec![
            AbortOnDropHandle::new(tokio::spawn(feed::run(Arc::clone(&cluster), start))),
            AbortOnDropHandle::new(tokio::spawn(rest(Arc::clone(&cluster)))),
        ];
        if let Some(interval) = config.compaction_interval {
            let run = compaction::run(Arc::clone(&cluster), interval);
            tasks.push(AbortOnDropHandle::new(tokio::spawn(run)));
        }
        Ok(Self {
            cluster,
            _tasks: Arc::new(tasks),
        })
    }
}

/// Gives back memory that only saves time.
async fn rest(cluster: Arc<Cluster>) {
    loop {
        tokio::time::sleep(REST_INTERVAL).await;
        lock(&cluster.window).let_go();
    }
}

impl Cluster {
    fn key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.prefix).into()
    }

    /// Which store this is. The first who asks says so. One that is not what was here before is refused, unless nothing is
    /// known of that.
    async fn identify(&self, known: Option<&StoreIdentity>) -> Result<String, StoreError> {
        let (found, revision) = self.get(IDENTITY).await?;
        let text = |entry: StoredObject| String::from_utf8_lossy(&entry.value).into_owned();
        let found = found.map(text);
        if let Some(known) = known {
            let checked = known.check(found.as_deref(), revision.0, 0);
            checked.map_err(|why| StoreError::Forgetful {
                path: format!("etcd below {}", self.prefix),
                why,
            })?;
        }
        if let Some(found) = found {
            return Ok(found);
        }
        let swap = Swap {
            key: IDENTITY.to_owned(),
            expect: Expect::Absent,
            value: Some(pulselet_vocabulary::uid(rand::random()).into()),
            guards: Vec::new(),
        };
        self.swap(swap).await?;
        let (found, _) = self.get(IDENTITY).await?;
        found.map(text).ok_or_else(|| StoreError::Write {
            message: "what was written cannot be read".to_owned(),
        })
    }

    fn remember(&self, revision: Revision) -> Result<(), StoreError> {
        let known = StoreIdentity {
            identity: self.identity.clone(),
            open: false,
            revision: revision.0,
        };
        known.write(&self.remembered)
    }

    /// Makes a transaction, and notes whether it could be made.
    async fn write(&self, request: TxnRequest) -> Result<TxnResponse, StoreError> {
        let answer = self.members.write(request).await;
        let trouble = match &answer {
            Ok(_) | Err(StoreError::TooLarge) => None,
            Err(error) => Some(error.to_string()),
        };
        *lock(&self.trouble) = trouble;
        answer
    }

    async fn swap(&self, swap: Swap) -> Result<Swapped, StoreError> {
        let Swap {
            key,
            expect,
            value,
            guards,
        } = swap;
        let own = (key, expect);
        let all: Vec<&(String, Expect)> = guards.iter().chain([&own]).collect();
        let change = match value {
            Some(value) => request_op::Request::RequestPut(PutRequest {
                key: self.key(&own.0),
                value,
            }),
            None => request_op::Request::RequestDeleteRange(DeleteRangeRequest {
                key: self.key(&own.0),
            }),
        };
        let look = |(key, _): &&(String, Expect)| request_op::Request::RequestRange(self.one(key));
        let request = TxnRequest {
            compare: all
                .iter()
                .map(|(key, expect)| self.compare(key, *expect))
                .collect(),
            success: vec![operation(change)],
            failure: all.iter().map(look).map(operation).collect(),
        };
        let answer = self.write(request).await?;
        if answer.succeeded {
            return Ok(Swapped::Done(revision(answer.header.as_ref())));
        }
        let mut found: Vec<Option<StoredObject>> = Vec::new();
        for response in answer.responses {
            found.push(
                ranged(response)
                    .and_then(|range| range.kvs.into_iter().next())
                    .map(|kv| self.entry(kv)),
            );
        }
        let holding = found.last().cloned().flatten();
        for ((key, expect), found) in guards.into_iter().zip(found) {
            if !expect.holds(found.map(|entry| entry.revision)) {
                return Ok(Swapped::GuardFailed { key });
            }
        }
        Ok(Swapped::Conflict(holding))
    }

    fn compare(&self, key: &str, expect: Expect) -> Compare {
        let (result, revision) = match expect {
            Expect::Absent => (compare::CompareResult::Equal, 0),
            Expect::Present => (compare::CompareResult::Greater, 0),
            Expect::Revision(revision) => (compare::CompareResult::Equal, to_wire(revision)),
        };
        Compare {
            result: result.into(),
            target: compare::CompareTarget::Mod.into(),
            key: self.key(key),
            target_union: Some(compare::TargetUnion::ModRevision(revision)),
        }
    }

    /// The request for one key.
    fn one(&self, key: &str) -> RangeRequest {
        RangeRequest {
            key: self.key(key),
            ..RangeRequest::default()
        }
    }

    /// An entry of the cluster as the store's, without our prefix.
    fn entry(&self, kv: KeyValue) -> StoredObject {
        StoredObject {
            key: self.stripped(&kv.key),
            value: kv.value,
            revision: from_wire(kv.mod_revision),
            integrity: Integrity::Unknown,
        }
    }

    /// A key without our prefix. One whose bytes are no text is nobody's name.
    fn stripped(&self, key: &[u8]) -> String {
        let own = key.get(self.prefix.len()..).unwrap_or_default();
        String::from_utf8_lossy(own).into_owned()
    }
}

/// Whether a member is on this machine.
fn is_loopback(member: &str) -> bool {
    let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn operation(request: request_op::Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn ranged(response: ResponseOp) -> Option<RangeResponse> {
    match response.response? {
        response_op::Response::ResponseRange(range) => Some(range),
        response_op::Response::ResponsePut(_) | response_op::Response::ResponseDeleteRange(_) => None,
    }
}

fn revision(header: Option<&ResponseHeader>) -> Revision {
    from_wire(header.map_or(0, |header| header.revision))
}

fn to_wire(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

fn from_wire(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

/// The data under these locks is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &str) -> Result<(Option<StoredObject>, Revision), StoreError> {
        self.cluster.get(key).await
    }

    async fn range(&self, range: Range) -> Result<ListPage, StoreError> {
        self.cluster.range(range).await
    }

    async fn swap(&self, swap: Swap) -> Result<Swapped, StoreError> {
        self.cluster.swap(swap).await
    }

    fn identity(&self) -> &str {
        &self.cluster.identity
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.cluster.trouble).clone()
    }

    async fn settle(&self) -> Result<(), StoreError> {
        self.cluster.remember(*self.cluster.latest.borrow())
    }

    async fn watch(&self, prefix: String, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        Ok(Box::new(feed::watch(&self.cluster, prefix, after).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_named_with_their_ports() {
        let config: EtcdConfig = "etcd://10.0.0.1:2379,etcd-2.example:2379,[::1]:2379"
            .parse()
            .expect("parses");
        assert_eq!(
            config.members,
            ["10.0.0.1:2379", "etcd-2.example:2379", "[::1]:2379"]
        );
        for (member, expected) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("10.0.0.1:1", false),
            ("etcd:1", false),
        ] {
            assert_eq!(is_loopback(member), expected, "{member}");
        }
        for text in [
            "10.0.0.1:2379",
            "http://10.0.0.1:2379",
            "etcd://",
            "etcd://10.0.0.1",
            "etcd://10.0.0.1:2379,",
            "etcd://10.0.0.1:2379/x",
            "etcd://user@10.0.0.1:2379",
            "etcd://:2379",
            "etcd://a:99999",
        ] {
            assert!(text.parse::<EtcdConfig>().is_err(), "{text}");
        }
    }
}
