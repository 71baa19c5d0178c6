//! Why a pod is not what was waited for: what each of its containers waits for or how it ended, with the end of its log.

use pulselet_agent::{Layout, PodView};
use pulselet_model::ContainerStatusFields;
use pulselet_vocabulary::PodName;

use super::logs::tail;
use super::progress::{Progress, statuses};
use super::state::Pods;

/// Lines of a log that are repeated.
const TAIL: usize = 10;
/// Waiting reasons that say no more than that a container is about to begin.
const ORDINARY: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// What is said about a pod, each with the lines of a log that go with it; nothing where all is well.
pub(super) fn about(
    pod: &PodName,
    pods: &Pods,
    progress: &Progress,
    layout: &Layout,
) -> Vec<(String, Vec<String>)> {
    let view = progress.view_of(pod);
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for status in view.into_iter().flat_map(statuses) {
        if let Some(text) = failure(status).or_else(|| waiting(status)) {
            let log = view.map(|view| log_of(layout, view, status)).unwrap_or_default();
            said.push((format!("pod {pod}: container {} {text}", status.name), log));
        }
    }
    match progress.end_of(pod) {
        Some("Succeeded") => return Vec::new(),
        Some(end) => said.insert(0, (format!("pod {pod} is {end}"), Vec::new())),
        None if said.is_empty() => {
            let missing = pods.missing(pod).into_iter();
            said.extend(missing.map(|line| (line, Vec::new())));
            let unready = view.into_iter().flat_map(statuses).find(|status| !status.ready);
            if let (Some(view), Some(status), Some(last)) = (view, unready, said.last_mut()) {
                last.1 = log_of(layout, view, status);
            }
        }
        None => {}
    }
    said
}

/// How it ended, if with an error; also if it runs again.
fn failure(status: &ContainerStatusFields) -> Option<String> {
    let ends = [&status.state.terminated, &status.last_state.terminated];
    let ended = ends.into_iter().flatten().find(|ended| ended.exit_code != 0)?;
    let reason = ended.reason.as_deref().filter(|reason| *reason != "Error");
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let message = ended.message.as_deref().filter(|message| !message.is_empty());
    let message = message.map(|message| format!(": {}", message.trim_end()));
    let message = message.unwrap_or_default();
    Some(format!("has exited with {}{reason}{message}", ended.exit_code))
}

/// What keeps it from beginning, in the words of its status.
fn waiting(status: &ContainerStatusFields) -> Option<String> {
    let waiting = status.state.waiting.as_ref()?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| !ORDINARY.contains(reason))?;
    let message = waiting.message.as_deref().map(|message| format!(": {message}"));
    Some(format!("waits: {reason}{}", message.unwrap_or_default()))
}

/// The end of the log of the newest life that has one.
fn log_of(layout: &Layout, view: &PodView, status: &ContainerStatusFields) -> Vec<String> {
    let newest = u32::try_from(status.restart_count).unwrap_or_default();
    let lives = [Some(newest), newest.checked_sub(1)];
    let logs = lives.into_iter().flatten().map(|attempt| {
        let path = layout.container_log(&view.pod_name(), &view.uid, &status.name, attempt);
        tail(&path, TAIL)
    });
    let log = logs
        .into_iter()
        .find(|lines| !lines.is_empty())
        .unwrap_or_default();
    log.into_iter()
        .map(|line| format!("{} | {line}", status.name))
        .collect()
}
