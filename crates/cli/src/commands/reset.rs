//! `pulselet reset`: ends all pods of a data directory and removes everything that was put on the machine for it.
//!
//! Containers, networks and cgroups are taken away by the runtime that made them, which also finds what a killed agent or
//! a removed directory has left. Files are removed by their names: a directory may have other users. Only the files go of a
//! copy whose pods are those of the original.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::DataDir;
use pulselet_cgroup::{CgroupError, PodCgroups};
use pulselet_runtime::{ContainerFilter, ContainerState, ContainerStatus, Runtime, SandboxStatus};
use tokio::task::JoinSet;

use crate::agent;
use crate::cli::{CniArgs, ResetArgs};
use crate::copied;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::runtime::{self, ImageSettings, OpenRuntime, RuntimeChoice};

/// How long containers may take to end before they are killed.
const GRACE: Duration = Duration::from_secs(10);
/// What agents and API servers make in a data directory.
const OURS: [&str; 24] = [
    "admin.kubeconfig",
    "agent.identity",
    "agent.lock",
    "api-store",
    "api.lock",
    "api.reserve",
    "api.restoring",
    "cri",
    "images",
    "logs",
    "node-client.pem",
    "node-serving.pem",
    "node.kubeconfig",
    "node.reserve",
    "objects.json",
    "oci",
    "pki",
    "pods",
    "process",
    "pulselet.sock",
    // What the Debian package keeps to be purged with.
    "reset-program",
    "services.json",
    "stopped.json",
    "tokens.csv",
];
/// Files beside which others have their names and an ending: those of `SQLite`, and what was put aside.
const WITH_ENDINGS: [&str; 3] = ["api.db", "api.identity", "node.db"];
const HELD: &str = "stop that agent first: Ctrl-C in its terminal, or `systemctl stop pulselet`; its pods are ended by reset";

pub(crate) fn run(args: &ResetArgs) -> Result<Exit, Failure> {
    let path = args.data.resolve()?;
    if path.try_exists().is_ok_and(|exists| !exists) && !runtime::has_traces(&path) {
        return say_that_nothing_exists(&path);
    }
    let data_dir = DataDir::claim(&path).map_err(|error| {
        let is_held = error.is_held();
        let failure = Failure::environment(error);
        if is_held { failure.with_hint(HELD) } else { failure }
    })?;
    agent::executor()?.block_on(reset(args, data_dir))
}

/// Claiming the directory would create it.
fn say_that_nothing_exists(path: &Path) -> Result<Exit, Failure> {
    pulselet_runtime_oci::forget_data_dir(path);
    let mut out = output::stdout();
    let text = writeln!(out, "nothing to remove: {} does not exist", path.display());
    output::written(text.and_then(|()| out.flush()))?;
    Ok(Exit::Done)
}

async fn reset(args: &ResetArgs, data_dir: DataDir) -> Result<Exit, Failure> {
    let path = data_dir.path().to_owned();
    // A copy has files alone: the pods in its records are the original's.
    let original = copied::original(&path)?;
    let found = match &original {
        Some(_) => Found(Vec::new()),
        None => Found::look(args, &path).await?,
    };
    found.list(&path)?;
    if !args.yes && !confirm()? {
        output::note("nothing was removed");
        return Ok(Exit::No);
    }
    found.end().await?;
    found.remove_pod_cgroups().await;
    if original.is_none() {
        // Opened once more, a runtime that has no pods takes away what all of them shared.
        drop(Found::look(args, &path).await?);
    }
    pulselet_runtime_oci::forget_data_dir(&path);
    unmount_below(&path);
    let left = remove_files(&path)?;
    // The lock file is gone; another agent that comes now makes its own.
    drop(data_dir);
    say_what_is_gone(&path, original.as_deref(), &left)?;
    Ok(Exit::Done)
}

fn say_what_is_gone(data_dir: &Path, original: Option<&Path>, left: &[PathBuf]) -> Result<(), Failure> {
    let mut out = output::stdout();
    let shown = data_dir.display();
    let mut text = match left {
        [] if original.is_some() => writeln!(out, "{shown} is gone, with its images"),
        [] => writeln!(out, "{shown} is gone, with all pods and images"),
        left => {
            let names: Vec<_> = left.iter().map(|path| path.to_string_lossy()).collect();
            writeln!(
                out,
                "all pods and images are gone; {shown} stays, for {}",
                names.join(", ")
            )
        }
    };
    if let Some(original) = original {
        let original = original.display();
        text = text.and_then(|()| writeln!(out, "it was a copy: the pods of {original} are left alone"));
    }
    output::written(text.and_then(|()| out.flush()))
}

/// What runtimes have of the directory.
struct Found(Vec<FoundRuntime>);

struct FoundRuntime {
    runtime: Arc<dyn Runtime>,
    sandboxes: Vec<SandboxStatus>,
    containers: Vec<ContainerStatus>,
}

impl Found {
    async fn look(args: &ResetArgs, data_dir: &Path) -> Result<Self, Failure> {
        let mut found = Vec::new();
        for choice in runtime::used_in(data_dir, &args.runtime) {
            let no_plugins = CniArgs {
                cni_conf_dir: None,
                cni_bin_dir: Vec::new(),
            };
            let OpenRuntime { runtime, .. } =
                RuntimeChoice::open(&choice, data_dir, &no_plugins, ImageSettings::default()).await?;
            let containers = runtime.list_containers(&ContainerFilter::default()).await;
            let sandboxes = runtime.list_sandboxes().await;
            found.push(FoundRuntime {
                sandboxes: sandboxes.map_err(Failure::environment)?,
                containers: containers.map_err(Failure::environment)?,
                runtime,
            });
        }
        Ok(Self(found))
    }

    fn list(&self, data_dir: &Path) -> Result<(), Failure> {
        let mut out = output::stdout();
        let mut write = || -> io::Result<()> {
            writeln!(out, "to be removed:")?;
            for sandbox in self.0.iter().flat_map(|it| &it.sandboxes) {
                let pod = sandbox.pod.pod_name();
                writeln!(out, "  pod {pod}, with its containers, network and cgroups")?;
            }
            for name in ours_in(data_dir) {
                writeln!(out, "  {}", data_dir.join(name).display())?;
            }
            out.flush()
        };
        output::written(write())
    }

    /// Ends every container, all at once, then takes every pod away.
    async fn end(&self) -> Result<(), Failure> {
        for found in &self.0 {
            let mut stops = JoinSet::new();
            let running = |it: &&ContainerStatus| matches!(it.state, ContainerState::Running { .. });
            for container in found.containers.iter().filter(running) {
                let (runtime, id) = (Arc::clone(&found.runtime), container.id.clone());
                stops.spawn(async move { runtime.stop_container(&id, GRACE).await });
            }
            // One that cannot be stopped is killed with its sandbox.
            while stops.join_next().await.is_some() {}
            for sandbox in &found.sandboxes {
                let removed = found.runtime.remove_sandbox(&sandbox.id).await;
                removed.map_err(|error| {
                    let pod = sandbox.pod.pod_name();
                    Failure::environment(format_args!("pod {pod} cannot be removed: {error}"))
                        .with_hint("run reset again; what is gone already stays gone")
                })?;
            }
        }
        Ok(())
    }

    async fn remove_pod_cgroups(&self) {
        for root in self.0.iter().filter_map(|it| it.runtime.cgroup_root()) {
            let removed = tokio::task::spawn_blocking(|| remove_pod_cgroups_below(root)).await;
            removed.expect("removing cgroups does not panic");
        }
    }
}

/// What a runtime does not know of because the node has made it.
fn remove_pod_cgroups_below(root: PathBuf) {
    match PodCgroups::open(root) {
        Ok(cgroups) => cgroups.remove_all(),
        // Where there are none, none are left.
        Err(CgroupError::NoHierarchy) => {}
        Err(error) => output::note(&format!("cgroups of pods may be left: {error}")),
    }
}

fn confirm() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("there is nobody to ask").with_hint("--yes removes it without asking"));
    }
    let asked = write!(io::stderr(), "Remove all of it? [y/N] ");
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    read.map_err(|error| Failure::environment(format_args!("cannot ask: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// What is ours in a data directory.
fn ours_in(data_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| PathBuf::from(entry.file_name()));
    let mut ours: Vec<PathBuf> = names.filter(|name| is_ours(name)).collect();
    ours.sort();
    ours
}

fn is_ours(name: &Path) -> bool {
    let Some(name) = name.to_str() else { return false };
    // A killed agent may have been writing any of them.
    let name = name.strip_suffix(pulselet_durable::UNFINISHED).unwrap_or(name);
    let has_ending = |file: &str| {
        let ending = name.strip_prefix(file);
        let ours = ["-", ".before-", ".corrupt-"];
        ending.is_some_and(|rest| rest.is_empty() || ours.iter().any(|own| rest.starts_with(own)))
    };
    let of_node = name.starts_with("node-") && name.ends_with(".kubeconfig");
    OURS.contains(&name) || WITH_ENDINGS.into_iter().any(has_ending) || of_node
}

/// Mounts that a killed agent has left: the deepest first.
fn unmount_below(data_dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mut below: Vec<&Path> = points
        .map(Path::new)
        .filter(|it| it.starts_with(data_dir))
        .collect();
    below.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for path in below.into_iter().filter(|path| *path != data_dir) {
        // What cannot be unmounted keeps its directory, which is said then.
        let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Removes what is ours, and the directory if nothing else is in it. Returns what is left.
fn remove_files(data_dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    for name in ours_in(data_dir) {
        let path = data_dir.join(&name);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_directory {
            pulselet_durable::remove_tree(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(|error| {
            Failure::environment(format_args!("cannot remove {}: {error}", path.display()))
                .with_hint("run reset again as the user that the agent ran as")
        })?;
    }
    if fs::remove_dir(data_dir).is_ok() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    Ok(entries.map(|entry| PathBuf::from(entry.file_name())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_goes() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "node.db",
            "node.db-wal",
            "node-a.kubeconfig",
            "stopped.json",
            "mine.txt",
            "node.dbx",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        fs::create_dir_all(directory.path().join("logs/a")).unwrap();
        let mut left = remove_files(directory.path()).unwrap();
        left.sort();
        assert_eq!(left, [Path::new("mine.txt"), Path::new("node.dbx")]);
        for name in left {
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        assert!(remove_files(directory.path()).unwrap().is_empty() && !directory.path().exists());
    }

    #[test]
    fn every_kind_of_file_is_ours_and_those_of_others_are_not() {
        let ours = [
            "agent.identity",
            "objects.json",
            "api-store",
            "api-store.new",
            "node-worker.kubeconfig.new",
            "api.reserve",
            "api.identity",
            "api.identity.before-1700000000000",
            "api.db",
            "api.db-wal",
            "api.db.before-restore-1700000000000",
            "api.db-wal.before-1700000000000",
            "node.db.corrupt-1",
            "node-client.pem",
            "node.kubeconfig",
            "node-worker.kubeconfig",
            "reset-program",
        ];
        for name in ours {
            assert!(is_ours(Path::new(name)), "{name}");
        }
        for name in [
            "mine.txt",
            "mine.txt.new",
            "api.dbx",
            "api",
            "node.txt",
            "my.kubeconfig",
            "api.db.mine",
        ] {
            assert!(!is_ours(Path::new(name)), "{name}");
        }
    }
}
