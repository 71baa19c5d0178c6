//! Reads of the cluster: one key, and ranges of them page by page.
//!
//! Values may be large and etcd counts keys only, so the size of a page follows the sizes that were seen. Where that was a wrong
//! guess and an answer is too large to be read, a smaller one is asked for.

use pulselet_etcd_wire::RangeRequest;
use tonic::{Code, Status};

use super::{Cluster, compaction, revision, to_wire};
use crate::{ListPage, Range, Revision, StoreError, StoredObject, prefix_end};

/// Keys of the first page: little even if all of them are as large as etcd allows.
const FIRST_PAGE: usize = 16;
const MAX_PAGE: usize = 1000;
/// By what a page is smaller after one that was too large.
const PAGE_SHRINKS: usize = 8;
/// Bytes of values that a page should have.
const PAGE_BYTES: usize = 4 << 20;

impl Cluster {
    pub(super) async fn get(&self, key: &str) -> Result<(Option<StoredObject>, Revision), StoreError> {
        let answer = self
            .members
            .range(self.one(key))
            .await
            .map_err(|error| failed(&error))?;
        let at = revision(answer.header.as_ref());
        let found = answer.kvs.into_iter().next().map(|kv| self.entry(kv));
        Ok((found, at))
    }

    pub(super) async fn range(&self, range: Range) -> Result<ListPage, StoreError> {
        let (limit, max_bytes) = (
            range.limit.unwrap_or(usize::MAX),
            range.max_bytes.unwrap_or(usize::MAX),
        );
        let mut request = RangeRequest {
            key: self.after(range.after.as_deref().unwrap_or(&range.prefix)),
            range_end: prefix_end(&format!("{}{}", self.prefix, range.prefix)).into(),
            revision: range.at.map_or(0, to_wire),
            ..RangeRequest::default()
        };
        let mut page = ListPage {
            entries: Vec::new(),
            revision: Revision(0),
            remaining: 0,
        };
        let (mut bytes, mut size) = (0, FIRST_PAGE);
        loop {
            let wanted = size.min(limit - page.entries.len()).max(1);
            request.limit = i64::try_from(wanted).unwrap_or(i64::MAX);
            let answer = match self.members.range(request.clone()).await {
                Ok(answer) => answer,
                Err(status) if wanted > 1 && is_too_much(&status) => {
                    size = wanted / PAGE_SHRINKS;
                    continue;
                }
                Err(status) => return Err(self.past_failed(&status, request.revision).await),
            };
            if request.revision == 0 {
                // The pages that follow are of the same state.
                request.revision = to_wire(revision(answer.header.as_ref()));
            }
            page.revision = super::from_wire(request.revision);
            let count = usize::try_from(answer.count).unwrap_or(0);
            let mut taken = 0;
            for kv in answer.kvs {
                if page.entries.len() >= limit || bytes >= max_bytes {
                    break;
                }
                bytes += kv.value.len();
                taken += 1;
                page.entries.push(self.entry(kv));
            }
            page.remaining = count.saturating_sub(taken);
            if taken == 0 || page.remaining == 0 || page.entries.len() >= limit || bytes >= max_bytes {
                return Ok(page);
            }
            if let Some(last) = page.entries.last() {
                request.key = self.after(&last.key);
            }
            size = (PAGE_BYTES * page.entries.len() / bytes.max(1)).clamp(1, MAX_PAGE);
        }
    }

    /// The first key behind this one.
    fn after(&self, key: &str) -> bytes::Bytes {
        format!("{}{key}\0", self.prefix).into()
    }

    /// The newest revision.
    pub(super) async fn newest(&self) -> Result<Revision, StoreError> {
        self.get("").await.map(|(_, newest)| newest)
    }

    /// Whether the changes after a revision can still be read.
    pub(super) async fn check_readable(&self, asked: Revision) -> Result<(), StoreError> {
        let request = RangeRequest {
            revision: to_wire(asked).max(1),
            count_only: true,
            ..self.one("")
        };
        match self.members.range(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(self.past_failed(&status, to_wire(asked)).await),
        }
    }

    /// Why a state of the past cannot be read.
    async fn past_failed(&self, status: &Status, asked: i64) -> StoreError {
        let asked = super::from_wire(asked);
        if status.code() != Code::OutOfRange || is_too_much(status) {
            return failed(status);
        }
        if status.message().contains("compacted") {
            return self.compacted(asked).await;
        }
        match self.newest().await {
            Ok(newest) => StoreError::Future { asked, newest },
            Err(error) => error,
        }
    }

    /// The revision that was asked for is gone; this says what is left, as far as that is known.
    async fn compacted(&self, asked: Revision) -> StoreError {
        let kept = self.get(compaction::KEY).await.ok().and_then(|(found, _)| found);
        let kept = kept.and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse().ok());
        let oldest = Revision(kept.unwrap_or(0)).max(Revision(asked.0 + 1));
        StoreError::Compacted { asked, oldest }
    }
}

/// Whether our own end refused to read an answer because of its size.
fn is_too_much(status: &Status) -> bool {
    status.message().contains("message length too large")
}

fn failed(status: &Status) -> StoreError {
    StoreError::Unreachable {
        message: status.message().to_owned(),
    }
}
