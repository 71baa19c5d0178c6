//! `pulselet explain`: the timing a manifest implies, in words or as JSON lines. Runs nothing.

use std::io::{self, Write};

use pulselet_agent::pod_name_of;
use pulselet_engine::line::GraceFrom;
use pulselet_engine::plan::{Handler, ProbeKind, ProbePlan, Role};
use pulselet_engine::time::Span;
use pulselet_model::Profile;
use pulselet_plan::advice::{Advice, Seconds};
use pulselet_plan::explain::{ContainerExplanation, ProbeExplanation};
use pulselet_plan::timing::StopTiming;
use pulselet_plan::{Explanation, NodeConfig, explain};
use pulselet_vocabulary::{PodName, Signal};
use serde::Serialize;

use crate::cli::ExplainArgs;
use crate::diagnostics;
use crate::exit::{Exit, Failure};
use crate::input::{Gatekeeper, Source, Subject};
use crate::output::{self, BOLD, CYAN, Format, RESET};

/// The next step for a file without a Pod.
const NOTHING_HINT: &str =
    "give it a Pod or a workload such as a Deployment; `pulselet check` lists what a file has";

pub(crate) fn run(args: &ExplainArgs) -> Result<Exit, Failure> {
    let config = args.node.resolve()?;
    let source = Source::read(&args.file)?;
    let mut out = output::stdout();
    let mut worst = Exit::Done;
    let mut explained = false;
    source.judge(Profile::Pulselet, Gatekeeper::Api(config.gates), |verdict| {
        diagnostics::complain(&source, &verdict);
        if verdict.outcome.is_rejected() {
            worst = worst.max(Exit::No);
        }
        // Other objects have no timing.
        match verdict.outcome.into_subject() {
            Some(subject) => {
                explained = true;
                output::written(explain_subject(&mut out, args, &config, &source, &subject)?)
            }
            None => Ok(()),
        }
    })?;
    output::written(out.flush())?;
    if !explained && worst == Exit::Done {
        let message = format!("cannot explain {}: it has nothing to run", source.name);
        return Err(Failure::usage(message).with_hint(NOTHING_HINT));
    }
    Ok(worst)
}

/// The outer failure is about the manifest, the inner one about stdout.
fn explain_subject(
    out: &mut dyn Write,
    args: &ExplainArgs,
    config: &NodeConfig,
    source: &Source,
    subject: &Subject,
) -> Result<io::Result<()>, Failure> {
    let explanation = explain(&subject.pod, config.gates, &config.settings)
        .map_err(|error| Failure::usage(format_args!("{}: {error}", source.name)))?;
    Ok(match args.output.output {
        Format::Text => print_text(out, subject, &explanation),
        Format::Json => print_json(out, subject, &explanation),
    })
}

/// One line of `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    #[serde(flatten)]
    owner: Owner,
    container: &'a str,
    kind: ProbeKind,
    period_ms: u64,
    period_after_ms: u64,
    timeout_ms: u64,
    /// The manifest's, else what is sent unless the image names another.
    stop_signal: Signal,
    startup_budget_seconds: Option<f64>,
    detect_min_seconds: f64,
    detect_max_seconds: f64,
    gone_by_seconds: Option<f64>,
    advice: Vec<String>,
}

/// The object that a line is about. Pods have the form of event lines, workloads that of `kubectl`.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum Owner {
    Pod { pod: PodName },
    Workload { workload: String, namespace: String },
}

impl Owner {
    fn of(subject: &Subject) -> Self {
        match subject.short_name() {
            Some(workload) => Self::Workload {
                workload,
                namespace: subject.pod.namespace().to_owned(),
            },
            None => Self::Pod {
                pod: pod_name_of(&subject.pod),
            },
        }
    }
}

fn print_json(out: &mut dyn Write, subject: &Subject, explanation: &Explanation) -> io::Result<()> {
    let owner = Owner::of(subject);
    for container in &explanation.containers {
        for (place, probe) in container.probes.iter().enumerate() {
            // What concerns the whole container is said once, with its first probe.
            let shared = if place == 0 { &container.advice[..] } else { &[] };
            let timing = &probe.timing;
            let line = Line {
                owner: owner.clone(),
                container: &container.plan.name,
                kind: timing.kind,
                period_ms: millis(timing.period),
                period_after_ms: millis(timing.period_after),
                timeout_ms: millis(probe.plan.timeout),
                stop_signal: container.plan.stop_signal.unwrap_or(Signal::TERM),
                startup_budget_seconds: timing.startup_budget.map(Span::as_secs_f64),
                detect_min_seconds: timing.detect.min.as_secs_f64(),
                detect_max_seconds: timing.detect.max.as_secs_f64(),
                gone_by_seconds: timing.gone_by.map(Span::as_secs_f64),
                advice: shared
                    .iter()
                    .chain(&probe.advice)
                    .map(ToString::to_string)
                    .collect(),
            };
            serde_json::to_writer(&mut *out, &line)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

const fn millis(span: Span) -> u64 {
    span.as_micros() / 1_000
}

fn print_text(out: &mut dyn Write, subject: &Subject, explanation: &Explanation) -> io::Result<()> {
    match Owner::of(subject) {
        Owner::Pod { pod } => writeln!(out, "{BOLD}pod {pod}{RESET}")?,
        Owner::Workload { workload, namespace } => {
            writeln!(out, "{BOLD}{workload}{RESET} in namespace {namespace}")?;
        }
    }
    if let Some(refusal) = &explanation.refusal {
        let template = subject.workload.map(|kind| format!("{}.", kind.template_path()));
        let prefix = template.unwrap_or_default();
        let (field, message) = (&refusal.field, &refusal.message);
        writeln!(out, "  no node runs it: {prefix}{field}: {message}")?;
    }
    for container in &explanation.containers {
        print_container(out, container)?;
    }
    Ok(())
}

fn print_container(out: &mut dyn Write, container: &ContainerExplanation) -> io::Result<()> {
    let role = match container.plan.role {
        Role::Init => "init container",
        Role::Sidecar => "sidecar",
        Role::Main => "container",
        Role::Ephemeral => "ephemeral container",
    };
    writeln!(out, "\n{BOLD}{role} {}{RESET}", container.plan.name)?;
    for probe in &container.probes {
        print_probe(out, probe, container.plan.stop_signal)?;
    }
    match container.plan.role {
        Role::Init => writeln!(out, "  runs to completion before the next container begins")?,
        Role::Sidecar | Role::Main if container.probes.is_empty() => {
            writeln!(out, "  no probes: it counts as started and ready while it runs")?;
        }
        Role::Sidecar | Role::Main | Role::Ephemeral => {}
    }
    writeln!(
        out,
        "  on deletion it is gone after {} at the latest ({})",
        Seconds(container.deleted_within),
        stop_signal(container.plan.stop_signal)
    )?;
    print_advice(out, &container.advice)
}

fn print_probe(out: &mut dyn Write, probe: &ProbeExplanation, signal: Option<Signal>) -> io::Result<()> {
    let timing = &probe.timing;
    writeln!(out, "  {} probe: {}", timing.kind.as_str(), settings(probe))?;
    let (min, max) = (Seconds(timing.detect.min), Seconds(timing.detect.max));
    if let Some(budget) = timing.startup_budget.map(Seconds) {
        writeln!(
            out,
            "    a container that is not up {budget} after its start is killed"
        )?;
    }
    match timing.kind {
        ProbeKind::Startup => writeln!(out, "    that is decided {min} to {max} after its start")?,
        ProbeKind::Liveness => writeln!(
            out,
            "    a deadlock is noticed after {min} to {max}, and the container killed"
        )?,
        ProbeKind::Readiness => writeln!(
            out,
            "    a container that stops answering is unready after {min} to {max}"
        )?,
    }
    if let (Some(gone_by), Some(stop)) = (timing.gone_by.map(Seconds), timing.stop) {
        let since = match timing.kind {
            ProbeKind::Startup => "after its start",
            ProbeKind::Liveness | ProbeKind::Readiness => "after the deadlock began",
        };
        writeln!(
            out,
            "    it is gone {gone_by} {since} at the latest ({})",
            grace(&stop, signal)
        )?;
    }
    print_advice(out, &probe.advice)
}

/// The probe as it works, in one line.
fn settings(probe: &ProbeExplanation) -> String {
    let ProbePlan {
        handler,
        initial_delay,
        timeout,
        failure_threshold,
        ..
    } = &*probe.plan;
    let handler = match handler {
        Handler::Exec => "exec",
        Handler::Http => "httpGet",
        Handler::Tcp => "tcpSocket",
        Handler::Grpc => "grpc",
    };
    let (period, after) = (Seconds(probe.timing.period), Seconds(probe.timing.period_after));
    let mut parts = vec![if period == after || probe.timing.kind == ProbeKind::Startup {
        format!("{handler} every {period}")
    } else {
        format!("{handler} every {period} until it succeeds, then every {after}")
    }];
    parts.push(format!("timeout {}", Seconds(*timeout)));
    let initial = probe.plan.initial_failure_threshold;
    let failures = plural(*failure_threshold, "failure");
    parts.push(if initial > *failure_threshold {
        format!("{failures} ({initial} until the first success)")
    } else {
        failures
    });
    if !initial_delay.is_zero() {
        parts.push(format!("from {} after the start", Seconds(*initial_delay)));
    }
    parts.join(", ")
}

fn plural(count: u32, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

const SIGKILL_FIRST: &str = "stop signal SIGKILL: at once, after a hook";

/// What ends the container on a stop.
fn stop_signal(signal: Option<Signal>) -> String {
    match signal {
        Some(signal) if signal.is_kill() => SIGKILL_FIRST.to_owned(),
        Some(signal) => format!("stop signal {signal}"),
        None => "stop signal SIGTERM, unless the image names another".to_owned(),
    }
}

fn grace(stop: &StopTiming, signal: Option<Signal>) -> String {
    if stop.grace.is_zero() {
        return "grace period 0: SIGKILL at once, no hook".to_owned();
    }
    if signal.is_some_and(Signal::is_kill) {
        return SIGKILL_FIRST.to_owned();
    }
    let from = match stop.from {
        GraceFrom::Probe => "the probe's",
        GraceFrom::NodeDefault => "the node's",
        GraceFrom::Pod => "the pod's",
        GraceFrom::Minimum => "the least",
        GraceFrom::Override => "the override's",
        GraceFrom::Deletion => "the deletion's",
    };
    format!("{from} grace period of {}", Seconds(stop.grace))
}

fn print_advice(out: &mut dyn Write, advice: &[Advice]) -> io::Result<()> {
    for advice in advice {
        let label = if advice.is_offer() { "option" } else { "advice" };
        writeln!(out, "    {CYAN}{label}{RESET}: {advice}")?;
    }
    Ok(())
}
