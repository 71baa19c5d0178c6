//! `pulselet ps`: the containers of the local agent.

use std::io::{self, Write};

use jiff::Timestamp;
use pulselet_agent::PodView;
use pulselet_model::status::ContainerStatusFields;

use super::run::age;
use crate::agent;
use crate::cli::PsArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, BOLD, Format, RESET};

const HEADINGS: [&str; 7] = ["POD", "CONTAINER", "STATE", "STARTED", "READY", "RESTARTS", "AGE"];

type Row = [String; HEADINGS.len()];

pub(crate) fn run(args: &PsArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let pods = agent::small_executor()?.block_on(client.pods())?;
    let mut out = output::stdout();
    output::written(match args.output.output {
        Format::Text => print_table(&mut out, &pods),
        Format::Json => print_json(&mut out, &pods),
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

fn print_table(out: &mut impl Write, pods: &[PodView]) -> io::Result<()> {
    let now = Timestamp::now();
    let rows: Vec<Row> = pods.iter().flat_map(|pod| rows(pod, now)).collect();
    let widths: [usize; HEADINGS.len()] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADINGS[column].len()]).max().unwrap_or_default()
    });
    let line = |cells: &[&str]| {
        let cells = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line: Vec<String> = cells.collect();
        line.join("  ").trim_end().to_owned()
    };
    writeln!(out, "{BOLD}{}{RESET}", line(&HEADINGS))?;
    for row in &rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        writeln!(out, "{}", line(&cells))?;
    }
    out.flush()
}

fn rows(pod: &PodView, now: Timestamp) -> Vec<Row> {
    let statuses = pod.status.init_container_statuses.iter();
    statuses
        .chain(&pod.status.container_statuses)
        .map(|status| row(pod, status, now))
        .collect()
}

fn row(pod: &PodView, status: &ContainerStatusFields, now: Timestamp) -> Row {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let since = status
        .state
        .running
        .as_ref()
        .and_then(|it| it.started_at.as_ref());
    let lived = since.map(|since| age(now.as_second() - since.0.as_second()));
    [
        pod.pod_name().to_string(),
        status.name.clone(),
        state(pod, status),
        yes(status.started.unwrap_or_default()),
        yes(status.ready),
        status.restart_count.to_string(),
        lived.unwrap_or_else(|| "-".to_owned()),
    ]
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
