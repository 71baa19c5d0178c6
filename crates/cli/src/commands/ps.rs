//! `pulselet ps`: the containers of the local agent.

use std::io::{self, Write};

use jiff::Timestamp;
use pulselet_agent::PodView;
use pulselet_model::status::ContainerStatusFields;

use super::run::{age, printable};
use super::{probing, table};
use crate::agent;
use crate::cli::{PsArgs, PsFormat};
use crate::exit::{Exit, Failure};
use crate::output;

const HEADINGS: [&str; 7] = ["POD", "CONTAINER", "STATE", "STARTED", "READY", "RESTARTS", "AGE"];
const WIDE_HEADINGS: [&str; 8] = [
    "ADDRESS",
    "PORTS",
    "IMAGE",
    "SIGNAL",
    "STARTUP",
    "LIVENESS",
    "READINESS",
    "MESSAGE",
];
/// A cell of which nothing is known.
const NOTHING: &str = "-";
/// Characters of a message that are shown.
const MAX_MESSAGE: usize = 120;

pub(crate) fn run(args: &PsArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let pods = agent::small_executor()?.block_on(client.pods())?;
    let mut out = output::stdout();
    output::written(match args.output {
        PsFormat::Text => print_table(&mut out, &pods, false),
        PsFormat::Wide => print_table(&mut out, &pods, true),
        PsFormat::Json => print_json(&mut out, &pods),
    })?;
    Ok(Exit::Done)
}

fn print_json(out: &mut impl Write, pods: &[PodView]) -> io::Result<()> {
    for pod in pods {
        serde_json::to_writer(&mut *out, pod)?;
        writeln!(out)?;
    }
    out.flush()
}

fn print_table(out: &mut impl Write, pods: &[PodView], wide: bool) -> io::Result<()> {
    let now = Timestamp::now();
    let mut headings = HEADINGS.to_vec();
    if wide {
        headings.extend(WIDE_HEADINGS);
    }
    let rows: Vec<Vec<String>> = pods.iter().flat_map(|pod| rows(pod, now, wide)).collect();
    table::print(out, &headings, &rows)
}

fn rows(pod: &PodView, now: Timestamp, wide: bool) -> Vec<Vec<String>> {
    if pod.stopped {
        return vec![stopped_row(pod, wide)];
    }
    let statuses = pod.status.init_container_statuses.iter();
    statuses
        .chain(&pod.status.container_statuses)
        .map(|status| {
            let mut row = row(pod, status, now);
            if wide {
                row.extend(wide_cells(pod, status));
            }
            row
        })
        .collect()
}

/// A pod that is stopped has no containers to list.
fn stopped_row(pod: &PodView, wide: bool) -> Vec<String> {
    let cells = [NOTHING, "Stopped", "no", "no", NOTHING, NOTHING];
    let mut row = vec![pod.pod_name().to_string()];
    row.extend(cells.map(str::to_owned));
    if wide {
        let mut cells = [NOTHING; WIDE_HEADINGS.len()];
        cells[WIDE_HEADINGS.len() - 1] = "`pulselet start` runs it again";
        row.extend(cells.map(str::to_owned));
    }
    row
}

fn row(pod: &PodView, status: &ContainerStatusFields, now: Timestamp) -> Vec<String> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let since = status
        .state
        .running
        .as_ref()
        .and_then(|it| it.started_at.as_ref());
    let lived = since.map(|since| age(now.as_second() - since.0.as_second()));
    vec![
        pod.pod_name().to_string(),
        status.name.clone(),
        state(pod, status),
        yes(status.started.unwrap_or_default()),
        yes(status.ready),
        status.restart_count.to_string(),
        lived.unwrap_or_else(|| NOTHING.to_owned()),
    ]
}

fn wide_cells(pod: &PodView, status: &ContainerStatusFields) -> [String; WIDE_HEADINGS.len()] {
    let or_nothing = |text: String| if text.is_empty() { NOTHING.to_owned() } else { text };
    let ports = pod.ports.get(&status.name).map(|ports| ports.join(","));
    let signal = pod.stop_signals.get(&status.name).cloned();
    let probes = probing::cells(pod, &status.name);
    let [startup, liveness, readiness] = probes.map(|cell| or_nothing(cell.unwrap_or_default()));
    [
        or_nothing(pod.status.pod_ip.clone()),
        or_nothing(ports.unwrap_or_default()),
        or_nothing(status.image.clone()),
        or_nothing(signal.unwrap_or_default()),
        startup,
        liveness,
        readiness,
        or_nothing(message(status)),
    ]
}

/// What keeps it from running, or how its last life ended, in one line.
fn message(status: &ContainerStatusFields) -> String {
    let waiting = status
        .state
        .waiting
        .as_ref()
        .and_then(|waiting| waiting.message.clone());
    let ends = [&status.state.terminated, &status.last_state.terminated];
    let ended = ends.into_iter().flatten().next().map(|ended| {
        let reason = ended.reason.as_deref().unwrap_or_default();
        let message = ended.message.as_deref().filter(|message| !message.is_empty());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        format!("exited with {} ({reason}){message}", ended.exit_code)
    });
    let text = waiting
        .filter(|text| !text.is_empty())
        .or(ended)
        .unwrap_or_default();
    printable(&text).chars().take(MAX_MESSAGE).collect()
}

/// The state in the words of `kubectl`.
fn state(pod: &PodView, status: &ContainerStatusFields) -> String {
    let state = &status.state;
    if state.running.is_some() {
        return if pod.deleting { "Terminating" } else { "Running" }.to_owned();
    }
    if let Some(ended) = &state.terminated {
        let reason = ended.reason.clone().unwrap_or_default();
        return format!("{reason} ({})", ended.exit_code);
    }
    let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.clone());
    waiting.unwrap_or_else(|| "Waiting".to_owned())
}
