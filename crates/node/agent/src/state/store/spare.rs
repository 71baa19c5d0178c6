//! Spare copies: one file per pod beside the database, rewritten when what others see of the pod changes.
//!
//! They are read when the database cannot be, or does not know their pod. A spare may be older than the database was: the agent then goes on
//! from there with what it finds in the runtime.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{StoredPod, Write};
use crate::state::layout::Layout;

/// Larger files are not spares, in bytes: a record and the few specs of a pod are each below 3 MiB.
const MAX_SPARE: u64 = 32 * 1024 * 1024;

/// The file's content.
#[derive(Serialize, Deserialize)]
pub(crate) struct Spare {
    pub(crate) uid: String,
    pub(crate) record: Box<RawValue>,
    pub(crate) specs: Vec<(u32, Box<RawValue>)>,
}

/// Replaces the file in one step, so that neither a reader nor the next boot sees half of it.
pub(super) fn write(layout: &Layout, uid: &str, body: &[u8]) -> io::Result<()> {
    let path = layout.spare(uid);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    pulselet_durable::replace(&path, body, 0o600)
}

/// Removes the file, and the pod's directory if nothing else is in it.
pub(super) fn remove(layout: &Layout, uid: &str) -> io::Result<()> {
    let path = layout.spare(uid);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Volumes and messages are removed by who knows what they are.
    if let Some(parent) = path.parent() {
        let _ = fs::remove_dir(parent);
    }
    Ok(())
}

/// Every spare that can be read; the others are reported.
pub(super) fn load_all(layout: &Layout) -> Vec<StoredPod> {
    let Ok(entries) = fs::read_dir(layout.pods()) else {
        return Vec::new();
    };
    let mut pods = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path().join("spare.json");
        match read(&path) {
            Ok(Some(pod)) => pods.push(pod),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot read the spare state of a pod");
            }
        }
    }
    pods.sort_by(|a, b| a.uid.cmp(&b.uid));
    pods
}

/// Every spare, as a database has it.
pub(super) fn writes(layout: &Layout) -> Vec<Write> {
    let mut writes = Vec::new();
    for StoredPod {
        uid, record, specs, ..
    } in load_all(layout)
    {
        for (generation, body) in specs {
            let uid = uid.clone();
            writes.push(Write::Spec {
                uid,
                generation,
                body,
            });
        }
        writes.push(Write::Record { uid, body: record });
    }
    writes
}

/// The spare of one pod whose row cannot be read.
pub(crate) fn load(layout: &Layout, uid: &str) -> Option<StoredPod> {
    read(&layout.spare(uid)).ok().flatten()
}

fn read(path: &Path) -> io::Result<Option<StoredPod>> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if size > MAX_SPARE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too large"));
    }
    let spare: Spare = serde_json::from_slice(&fs::read(path)?)?;
    let bytes = |raw: Box<RawValue>| raw.get().as_bytes().to_vec();
    Ok(Some(StoredPod {
        uid: spare.uid,
        record: bytes(spare.record),
        specs: spare.specs.into_iter().map(|(n, raw)| (n, bytes(raw))).collect(),
        is_spare: true,
    }))
}
