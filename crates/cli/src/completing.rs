//! Completion of what only the local agent knows: names of pods and of their containers.
//!
//! The shell calls this binary with the words so far. An agent that does not answer, or not soon, completes nothing: a shell
//! that waits is worse than one that does not know.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use pulselet_agent::PodView;

use crate::agent;
use crate::cli::{Cli, DataDirArgs};

/// The variable with which the scripts of `pulselet completion` call this binary.
pub(crate) const VARIABLE: &str = "PULSELET_COMPLETE";
/// How long a shell waits for the agent.
const PATIENCE: Duration = Duration::from_millis(500);
/// The namespace that need not be written.
const DEFAULT_NAMESPACE: &str = "default";

/// Answers a shell; does nothing where no shell asks. Must be called before any thread is started.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// Pods whose name begins with what is typed.
pub(crate) fn pods(current: &OsStr) -> Vec<CompletionCandidate> {
    let typed = current.to_string_lossy();
    let names = views().into_iter().map(|pod| short_name(&pod));
    candidates(names, &typed)
}

/// Containers of the pod that is named among the words so far, or of all pods.
pub(crate) fn containers(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = words();
    let mut views = views();
    let is_named = |pod: &PodView| {
        let full = pod.pod_name().to_string();
        words.iter().any(|word| *word == full || *word == short_name(pod))
    };
    if views.iter().any(is_named) {
        views.retain(is_named);
    }
    let names = views.into_iter().flat_map(|pod| {
        let statuses = pod.status.init_container_statuses.into_iter();
        statuses
            .chain(pod.status.container_statuses)
            .map(|status| status.name)
    });
    candidates(names, &current.to_string_lossy())
}

fn candidates(names: impl Iterator<Item = String>, typed: &str) -> Vec<CompletionCandidate> {
    let mut names: Vec<String> = names.filter(|name| name.starts_with(typed)).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The name as people write it.
fn short_name(pod: &PodView) -> String {
    if pod.namespace == DEFAULT_NAMESPACE {
        pod.name.clone()
    } else {
        pod.pod_name().to_string()
    }
}

fn words() -> Vec<String> {
    std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// What the agent of the chosen directory has.
fn views() -> Vec<PodView> {
    let data = DataDirArgs {
        data_dir: data_dir(&words()),
    };
    let (Ok(client), Ok(executor)) = (data.client(), agent::small_executor()) else {
        return Vec::new();
    };
    let asked = executor.block_on(async { tokio::time::timeout(PATIENCE, client.pods()).await });
    asked.ok().and_then(Result::ok).unwrap_or_default()
}

/// The directory that the words so far name.
fn data_dir(words: &[String]) -> Option<PathBuf> {
    let flag = "--data-dir";
    let joined = words.iter().find_map(|word| word.strip_prefix("--data-dir="));
    let place = words.iter().position(|word| word == flag);
    let apart = place.and_then(|place| words.get(place + 1)).map(String::as_str);
    joined.or(apart).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_found_among_the_words() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let expected = Some(PathBuf::from("./data"));
        assert_eq!(data_dir(&words("pulselet exec --data-dir ./data web")), expected);
        assert_eq!(data_dir(&words("pulselet exec --data-dir=./data web")), expected);
        assert_eq!(data_dir(&words("pulselet exec web --data-dir")), None);
    }

    #[test]
    fn names_are_offered_once_and_in_order() {
        let names = ["web", "db", "web", "worker"].map(str::to_owned).into_iter();
        let offered = candidates(names, "w");
        let offered: Vec<_> = offered.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(offered, ["web", "worker"]);
    }
}
