//! Forgetting: every copy looks from time to time, and one of them has etcd forget what was old at the last look.
//!
//! A key counts the looks. Whoever counts one further has this look; the others see that somebody did, and how far the store
//! was then. So a change stays readable for one interval at least, and for two at most as long as some copy runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulselet_etcd_wire::{Compare, PutRequest, TxnRequest, compare, request_op};

use super::{Cluster, operation, ranged, revision, to_wire};
use crate::{Revision, StoreError};

/// Counts the looks; its value is the revision up to which the past was forgotten.
pub(super) const KEY: &str = "/compaction";

/// What a copy knows between two looks.
#[derive(Debug, Default)]
struct LastLook {
    /// How many looks had been counted.
    count: i64,
    /// How far the store was.
    newest: Revision,
}

/// Runs until it is dropped.
pub(super) async fn run(cluster: Arc<Cluster>, interval: Duration) {
    let mut last = LastLook::default();
    loop {
        match look(&cluster, &last).await {
            Ok(now) => last = now,
            Err(error) => tracing::warn!(%error, "the store could not shorten its history"),
        }
        tokio::time::sleep(interval).await;
    }
}

async fn look(cluster: &Cluster, last: &LastLook) -> Result<LastLook, StoreError> {
    let put = request_op::Request::RequestPut(PutRequest {
        key: cluster.key(KEY),
        value: Bytes::from(last.newest.to_string()),
    });
    let read = request_op::Request::RequestRange(cluster.one(KEY));
    let request = TxnRequest {
        compare: vec![Compare {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Version.into(),
            key: cluster.key(KEY),
            target_union: Some(compare::TargetUnion::Version(last.count)),
        }],
        success: vec![operation(put)],
        failure: vec![operation(read)],
    };
    let answer = cluster.write(request).await?;
    let newest = revision(answer.header.as_ref());
    if !answer.succeeded {
        let found = answer.responses.into_iter().find_map(ranged);
        let counted = found.and_then(|found| found.kvs.into_iter().next());
        let count = counted.map_or(0, |counted| counted.version);
        return Ok(LastLook { count, newest });
    }
    if last.newest.0 > 0
        && let Err(status) = cluster.members.compact(to_wire(last.newest)).await
        // Somebody else has forgotten more already.
        && status.code() != tonic::Code::OutOfRange
    {
        tracing::warn!(error = status.message(), "etcd could not forget what is old");
    }
    let count = last.count + 1;
    Ok(LastLook { count, newest })
}
