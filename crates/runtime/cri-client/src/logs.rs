//! Logs of bounded size. CRI servers write a container's log and leave the rest to their client.
//!
//! A full `0.log` becomes `0.log.1`, that becomes `0.log.2`, and so on; then the server is asked to open its path anew.
//! Until it does, it goes on writing to the file it has, under whatever name: nothing is lost.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pulselet_runtime::ContainerId;

use crate::call::{CHANGE, call};
use crate::connection::Connection;
use crate::runtime::blocking;
use crate::table::Table;
use crate::wire::v1;

/// Bytes after which a new file is begun; the kubelet's default.
const FILE_SIZE: u64 = 10 << 20;
/// Files kept in all, the one being written among them; the kubelet's default.
const FILES: u32 = 5;
/// Between looks, as a kubelet looks. In that time a fast writer may go beyond the size.
const INTERVAL: Duration = Duration::from_secs(10);

/// Keeps the logs of running containers small, for ever.
pub(crate) async fn rotate(table: Arc<Table>, connection: Connection) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        for (id, path) in table.running_logs().await {
            let full = tokio::fs::metadata(&path)
                .await
                .is_ok_and(|file| file.len() >= FILE_SIZE);
            if full {
                begin_new_file(&connection, &id, path).await;
            }
        }
    }
}

async fn begin_new_file(connection: &Connection, id: &ContainerId, path: PathBuf) {
    let moved = blocking({
        let path = path.clone();
        move || make_room(&path, FILES)
    })
    .await;
    if let Err(error) = moved {
        tracing::warn!(path = %path.display(), %error, "cannot begin a new log file");
        return;
    }
    let request = v1::ReopenContainerLogRequest {
        container_id: id.to_string(),
    };
    if let Err(error) = call(CHANGE, connection.runtime().reopen_container_log(request)).await {
        tracing::warn!(container = %id, ?error, "the runtime does not open the log anew");
        // It still writes to the old file, which is the log as long as there is no new one.
        let back = move || fs::rename(numbered(&path, 1), &path);
        let _ = blocking(back).await;
    }
}

/// Moves every file to the next number; the oldest goes.
fn make_room(path: &Path, files: u32) -> io::Result<()> {
    for number in (1..files.saturating_sub(1)).rev() {
        match fs::rename(numbered(path, number), numbered(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fs::rename(path, numbered(path, 1))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_files_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("0.log");
        for text in ["a", "b", "c", "d"] {
            fs::write(&path, text).expect("written");
            make_room(&path, 3).expect("moved");
        }
        let mut kept: Vec<_> = fs::read_dir(directory.path())
            .expect("listed")
            .flatten()
            .map(|entry| {
                let text = fs::read_to_string(entry.path()).expect("read");
                (entry.file_name().into_string().expect("plain"), text)
            })
            .collect();
        kept.sort();
        let expected = [("0.log.1", "d"), ("0.log.2", "c")].map(|(name, text)| (name.into(), text.into()));
        assert_eq!(kept, expected);
    }
}
