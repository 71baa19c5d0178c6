//! The story for reading: a line for each thing that matters, long runs of equal probes folded into one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use pulselet_engine::line::{GraceFrom, HookOutcome, KillReason, Line, LineBody};
use pulselet_engine::plan::{Hook, Kind};
use pulselet_engine::time::Time;

use super::ProbeResult;
use pulselet_plan::duration::format_duration;

/// Styles of a terminal; whoever prints to something else removes them.
mod style {
    pub(super) const DIM: &str = "\x1b[2m";
    pub(super) const BOLD: &str = "\x1b[1m";
    pub(super) const GREEN: &str = "\x1b[32m";
    pub(super) const YELLOW: &str = "\x1b[33m";
    pub(super) const RED: &str = "\x1b[31m";
    pub(super) const RESET: &str = "\x1b[0m";
}

/// Writes lines as they come. What is still folded is written by [`TextTimeline::finish`].
#[derive(Debug)]
pub struct TextTimeline<W> {
    out: W,
    /// The width of the widest container name.
    width: usize,
    folds: BTreeMap<(Arc<str>, Kind), Fold>,
}

#[derive(Debug)]
struct Fold {
    result: ProbeResult,
    detail: String,
    run: u32,
    from: Time,
    until: Time,
    count: u64,
}

impl<W: Write> TextTimeline<W> {
    pub fn new<'a>(out: W, containers: impl IntoIterator<Item = &'a str>) -> Self {
        let width = containers
            .into_iter()
            .map(|name| name.chars().count())
            .chain([3])
            .max()
            .unwrap_or(3);
        Self {
            out,
            width,
            folds: BTreeMap::new(),
        }
    }

    pub fn push(&mut self, line: &Line) -> io::Result<()> {
        let (
            Some(container),
            LineBody::Probe {
                kind,
                outcome,
                detail,
                run,
                counted,
                ..
            },
        ) = (&line.container, &line.body)
        else {
            self.unfold()?;
            let subject = line.container.as_deref().unwrap_or("pod");
            return self.write(line.at, subject, style_of(&line.body), &describe(&line.body));
        };
        let result = ProbeResult::of(*outcome, *counted);
        let key = (Arc::clone(container), *kind);
        match self.folds.get_mut(&key) {
            Some(fold) if fold.result == result && fold.detail == *detail => {
                fold.until = line.at;
                fold.count += 1;
                fold.run = *run;
                return Ok(());
            }
            Some(_) => self.unfold()?,
            None => {}
        }
        let (from, until) = (line.at, line.at);
        self.folds.insert(
            key,
            Fold {
                result,
                detail: detail.clone(),
                run: *run,
                from,
                until,
                count: 1,
            },
        );
        Ok(())
    }

    /// Writes what is still folded.
    pub fn finish(mut self) -> io::Result<W> {
        self.unfold()?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn unfold(&mut self) -> io::Result<()> {
        let mut folds: Vec<_> = std::mem::take(&mut self.folds).into_iter().collect();
        folds.sort_by_key(|((_, kind), fold)| (fold.from, *kind));
        for ((container, kind), fold) in folds {
            let style = match fold.result {
                ProbeResult::Success => style::DIM,
                ProbeResult::Failure => style::RED,
                ProbeResult::Look | ProbeResult::Warning | ProbeResult::Error => style::YELLOW,
            };
            self.write(fold.from, &container, style, &fold.describe(kind))?;
        }
        Ok(())
    }

    fn write(&mut self, at: Time, subject: &str, style: &str, text: &str) -> io::Result<()> {
        let width = self.width;
        writeln!(
            self.out,
            "{}  {subject:width$}  {style}{text}{}",
            clock(at),
            style::RESET
        )
    }
}

impl Fold {
    fn describe(&self, kind: Kind) -> String {
        let mut text = format!("probe {} {}", kind.as_str(), self.result.as_str());
        // Writing to a String does not fail.
        if self.count > 1 {
            let _ = write!(text, " x{}", self.count);
        }
        match self.result {
            ProbeResult::Success => {}
            ProbeResult::Failure => {
                let _ = write!(text, " ({} in a row): {}", self.run, self.detail);
            }
            ProbeResult::Look => {
                let _ = write!(text, " (does not count): {}", self.detail);
            }
            ProbeResult::Warning | ProbeResult::Error => {
                let _ = write!(text, ": {}", self.detail);
            }
        }
        if self.count > 1 {
            let _ = write!(text, ", until {}", clock(self.until).trim_start());
        }
        text
    }
}

/// Elapsed time as `h:mm:ss.mmm`.
fn clock(at: Time) -> String {
    let millis = at.as_micros() / 1_000;
    let (seconds, millis) = (millis / 1_000, millis % 1_000);
    format!(
        "{:>3}:{:02}:{:02}.{millis:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

fn style_of(body: &LineBody) -> &'static str {
    match body {
        LineBody::Killing { .. } | LineBody::GraceExceeded { .. } => style::RED,
        LineBody::Started | LineBody::Ready => style::GREEN,
        LineBody::Unready
        | LineBody::Signal { .. }
        | LineBody::Backoff { .. }
        | LineBody::Warning { .. }
        | LineBody::AgentRestarted => style::YELLOW,
        LineBody::Phase { .. } | LineBody::Deleted => style::BOLD,
        LineBody::Created { .. }
        | LineBody::Running { .. }
        | LineBody::Probe { .. }
        | LineBody::Hook { .. }
        | LineBody::Exited { .. } => "",
    }
}

/// A line's body in words.
pub(super) fn describe(body: &LineBody) -> String {
    match body {
        LineBody::Created { id, .. } => format!("created {id}"),
        LineBody::Running { restart_count: 0, .. } => "running".to_owned(),
        LineBody::Running { restart_count, .. } => format!("running, restart {restart_count}"),
        LineBody::Probe { kind, detail, .. } => format!("probe {}: {detail}", kind.as_str()),
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
            let hook = match hook {
                Hook::PostStart => "postStart",
                Hook::PreStop => "preStop",
            };
            let outcome = match outcome {
                HookOutcome::Success => "done",
                HookOutcome::Failure => "failed",
                HookOutcome::Timeout => "cut off",
            };
            format!("{hook} hook {outcome} after {}", format_duration(*seconds))
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
                let _ = write!(text, ", {} after the signal", format_duration(*seconds));
            }
            text
        }
        LineBody::Backoff { seconds } => format!("back-off: restarts in {}", format_duration(*seconds)),
        LineBody::Phase { phase } => phase.as_str().to_owned(),
        LineBody::Deleted => "deleted".to_owned(),
        LineBody::AgentRestarted => "agent restarted".to_owned(),
        LineBody::Warning { message } => format!("warning: {message}"),
    }
}

pub(super) const fn reason(reason: KillReason) -> &'static str {
    match reason {
        KillReason::StartupProbe => "startup probe failed",
        KillReason::LivenessProbe => "liveness probe failed",
        KillReason::Deleted => "pod deleted",
        KillReason::Evicted => "pod evicted",
        KillReason::Deadline => "pod past its deadline",
        KillReason::SandboxChanged => "sandbox changed",
        KillReason::PostStartHook => "postStart hook failed",
        KillReason::Completed => "pod completed",
    }
}

const fn grace_source(from: GraceFrom) -> &'static str {
    match from {
        GraceFrom::Override => "eviction or shutdown",
        GraceFrom::Deletion => "deletion",
        GraceFrom::Probe => "of the probe",
        GraceFrom::Pod => "of the pod",
        GraceFrom::Minimum => "minimum",
    }
}
