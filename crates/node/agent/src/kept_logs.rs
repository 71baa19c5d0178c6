//! Logs of pods that are gone: those of a run stay until the next agent begins, so that a job that failed can be looked into.
//!
//! The directories are read as they are: no agent is needed for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pulselet_vocabulary::PodName;

use crate::state::layout::Layout;

/// Directories of logs that are looked at; a node has fewer pods.
const MAX_DIRECTORIES: usize = 100_000;

/// The logs of one container: its lives, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLog {
    pub container: String,
    /// The restart count of each life, and its file.
    pub lives: Vec<(u32, PathBuf)>,
}

/// The logs that a data directory has of a pod, those of its newest instance where there were several. Empty if it has
/// none.
pub fn kept_logs(layout: &Layout, pod: &PodName) -> io::Result<Vec<KeptLog>> {
    let directories = match fs::read_dir(layout.logs()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    // Neither a namespace nor a pod has an underscore in its name.
    let prefix = format!("{}_{}_", pod.namespace, pod.name);
    let of_pod = directories.flatten().take(MAX_DIRECTORIES).filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(&prefix))
    });
    let newest = of_pod.max_by_key(|entry| last_change(&entry.path()));
    let Some(newest) = newest else {
        return Ok(Vec::new());
    };
    let mut logs = Vec::new();
    for entry in fs::read_dir(newest.path())?.flatten() {
        let Ok(container) = entry.file_name().into_string() else {
            continue;
        };
        let lives = lives(&entry.path());
        if !lives.is_empty() {
            logs.push(KeptLog { container, lives });
        }
    }
    logs.sort_by(|one, other| one.container.cmp(&other.container));
    Ok(logs)
}

/// When something was last written to a log below it.
fn last_change(directory: &Path) -> Option<SystemTime> {
    let containers = fs::read_dir(directory).ok()?.flatten();
    let files = containers.filter_map(|entry| fs::read_dir(entry.path()).ok());
    let files = files.flat_map(Iterator::flatten);
    files
        .filter_map(|file| file.metadata().ok()?.modified().ok())
        .max()
}

fn lives(directory: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(files) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut lives: Vec<(u32, PathBuf)> = files
        .flatten()
        .filter_map(|file| {
            let name = file.file_name();
            let attempt = name.to_str()?.strip_suffix(".log")?.parse().ok()?;
            Some((attempt, file.path()))
        })
        .collect();
    lives.sort();
    lives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logs_of_a_pod_are_found_without_an_agent() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let pod = PodName::new("default", "web");
        assert_eq!(kept_logs(&layout, &pod).unwrap(), []);
        let write = |pod: &PodName, uid: &str, container: &str, attempt: u32| {
            let path = layout.container_log(pod, uid, container, attempt);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        write(&PodName::new("default", "web-2"), "u", "app", 0);
        let files = [10, 2, 0].map(|attempt| (attempt, write(&pod, "u", "app", attempt)));
        fs::write(files[0].1.with_extension("log.1"), "").unwrap();
        let [log] = &kept_logs(&layout, &pod).unwrap()[..] else {
            panic!("one container");
        };
        let mut lives = files.to_vec();
        lives.reverse();
        assert_eq!((log.container.as_str(), &log.lives), ("app", &lives));
    }
}
