//! Event lines in words: one wording for `simulate`, `run`, `history` and the dashboard.

use std::fmt::Write as _;

use pulselet_engine::line::{GraceFrom, HookOutcome, KillReason, LineBody};
use pulselet_engine::plan::{Hook, ProbeKind};
use pulselet_engine::time::Span;
use pulselet_plan::duration::format_duration;

use super::ProbeResult;

/// Styles of a terminal; whoever prints to something else removes them.
pub mod style {
    use pulselet_engine::line::LineBody;

    use super::ProbeResult;

    pub const DIM: &str = "\x1b[2m";
    pub const BOLD: &str = "\x1b[1m";
    pub const GREEN: &str = "\x1b[32m";
    pub const YELLOW: &str = "\x1b[33m";
    pub const RED: &str = "\x1b[31m";
    pub const RESET: &str = "\x1b[0m";

    /// How a line is shown.
    pub const fn of(body: &LineBody) -> &'static str {
        match body {
            LineBody::Killing { .. } | LineBody::GraceExceeded { .. } => RED,
            LineBody::Started | LineBody::Ready => GREEN,
            LineBody::Unready
            | LineBody::Signal { .. }
            | LineBody::Backoff { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::Warning { .. }
            | LineBody::AgentRestarted => YELLOW,
            LineBody::Phase { .. } | LineBody::Deleted => BOLD,
            LineBody::Probe { outcome, counted, .. } => of_probe(ProbeResult::of(*outcome, *counted)),
            LineBody::Created { .. }
            | LineBody::Running { .. }
            | LineBody::Hook { .. }
            | LineBody::Exited { .. } => "",
        }
    }

    pub const fn of_probe(result: ProbeResult) -> &'static str {
        match result {
            ProbeResult::Success => DIM,
            ProbeResult::Failure => RED,
            ProbeResult::Look | ProbeResult::Warning | ProbeResult::Error => YELLOW,
        }
    }
}

/// Elapsed time as `h:mm:ss.mmm`.
pub fn clock(elapsed: Span) -> String {
    let millis = elapsed.as_micros() / 1_000;
    let (seconds, millis) = (millis / 1_000, millis % 1_000);
    format!(
        "{:>3}:{:02}:{:02}.{millis:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// `count` equal probes, the last of them number `run` in a row.
pub fn describe_probe(kind: ProbeKind, result: ProbeResult, count: u64, run: u32, detail: &str) -> String {
    let mut text = format!("probe {} {}", kind.as_str(), result.as_str());
    // Writing to a String does not fail.
    if count > 1 {
        let _ = write!(text, " x{count}");
    }
    let _ = match result {
        ProbeResult::Success => return text,
        ProbeResult::Failure => write!(text, " ({run} in a row)"),
        ProbeResult::Look => write!(text, " (does not count)"),
        ProbeResult::Warning | ProbeResult::Error => Ok(()),
    };
    if !detail.is_empty() {
        let _ = write!(text, ": {detail}");
    }
    text
}

/// A line's body in words.
pub fn describe(body: &LineBody) -> String {
    match body {
        LineBody::Created { id, .. } => format!("created {id}"),
        LineBody::Running { restart_count: 0, .. } => "running".to_owned(),
        LineBody::Running { restart_count, .. } => format!("running, restart {restart_count}"),
        LineBody::Probe {
            kind,
            outcome,
            detail,
            run,
            counted,
            ..
        } => describe_probe(*kind, ProbeResult::of(*outcome, *counted), 1, *run, detail),
        LineBody::Started => "started".to_owned(),
        LineBody::Ready => "ready".to_owned(),
        LineBody::Unready => "not ready".to_owned(),
        LineBody::Killing {
            reason: why,
            grace_period_seconds,
            grace_from,
        } => {
            let grace = format_duration(*grace_period_seconds);
            format!(
                "killing: {}, grace period {grace} ({})",
                reason(*why),
                grace_source(*grace_from)
            )
        }
        LineBody::Hook {
            hook,
            outcome,
            seconds,
        } => {
            let (name, came) = (self::hook(*hook), hook_outcome(*outcome));
            format!("{name} hook {came} after {}", measured(*seconds))
        }
        LineBody::Signal { signal } => format!("signal {signal}"),
        LineBody::GraceExceeded { signal } => format!("grace period exceeded: {signal}"),
        LineBody::Exited {
            exit_code,
            reason,
            seconds,
        } => {
            let mut text = format!("exited with {exit_code} ({})", reason.as_str());
            if let Some(seconds) = seconds {
                let _ = write!(text, ", {} after the signal", measured(*seconds));
            }
            text
        }
        LineBody::Backoff { seconds } => format!("back-off: restarts in {}", measured(*seconds)),
        LineBody::RestartAllContainers { exit_code } => {
            format!("all containers restart: exit code {exit_code}")
        }
        LineBody::Phase { phase } => phase.as_str().to_owned(),
        LineBody::Deleted => "deleted".to_owned(),
        LineBody::AgentRestarted => "agent restarted".to_owned(),
        LineBody::Warning { message } => format!("warning: {message}"),
    }
}

/// A duration that a clock has measured: more than its milliseconds is noise.
fn measured(span: Span) -> String {
    const MILLI: u64 = 1_000;
    let micros = span.as_micros();
    let rounded = if micros < MILLI {
        micros
    } else {
        (micros + MILLI / 2) / MILLI * MILLI
    };
    format_duration(Span::from_micros(rounded))
}

/// Which hook.
pub const fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::PostStart => "postStart",
        Hook::PreStop => "preStop",
    }
}

/// What became of a hook.
pub const fn hook_outcome(outcome: HookOutcome) -> &'static str {
    match outcome {
        HookOutcome::Success => "done",
        HookOutcome::Failure => "failed",
        HookOutcome::Timeout => "cut off",
    }
}

/// Why a container is stopped.
pub const fn reason(reason: KillReason) -> &'static str {
    match reason {
        KillReason::StartupProbe => "startup probe failed",
        KillReason::LivenessProbe => "liveness probe failed",
        KillReason::Deleted => "pod deleted",
        KillReason::Stopped => "stop asked for",
        KillReason::Evicted => "pod evicted",
        KillReason::NodeShutdown => "node shut down",
        KillReason::Deadline => "pod past its deadline",
        KillReason::SandboxChanged => "sandbox changed",
        KillReason::ImageChanged => "image changed",
        KillReason::Restarted => "restart asked for",
        KillReason::AllContainersRestarting => "all containers restart",
        KillReason::PostStartHook => "postStart hook failed",
        KillReason::Completed => "pod completed",
    }
}

/// Where its grace period comes from.
pub const fn grace_source(from: GraceFrom) -> &'static str {
    match from {
        GraceFrom::Override => "of the eviction or shutdown",
        GraceFrom::Deletion => "of the deletion",
        GraceFrom::Probe => "of the probe",
        GraceFrom::NodeDefault => "of the node's settings",
        GraceFrom::Pod => "of the pod",
        GraceFrom::Minimum => "the minimum",
    }
}
