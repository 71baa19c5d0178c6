//! What fuzzers call, and nobody else: this takes what is in the files of sandboxes and containers.

use crate::store::{ContainerRecord, SandboxRecord};

/// A function with its name, by which fuzzers and their corpora know it.
type FuzzTarget = (&'static str, fn(&[u8]));

pub const TARGETS: &[FuzzTarget] = &[("container_records", read_records)];

/// Reads `container.json` and `sandbox.json`.
pub fn read_records(bytes: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<ContainerRecord>(bytes) {
        let text = serde_json::to_vec(&record).expect("a record is JSON");
        let again = serde_json::from_slice(&text).ok();
        assert_eq!(again, Some(record), "a record reads back");
    }
    if let Ok(record) = serde_json::from_slice::<SandboxRecord>(bytes) {
        let text = serde_json::to_vec(&record).expect("a record is JSON");
        let again = serde_json::from_slice(&text).ok();
        assert_eq!(again, Some(record), "a record reads back");
    }
}
