//! The end of a container in a few lines: for a kill which probe, what led to it, the grace period and the signal; the exit,
//! what came next.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pulselet_engine::line::LineOutcome;
use pulselet_engine::time::Span;
use pulselet_sim::timeline::wording::clock;
use pulselet_sim::timeline::{RecordedBody as Body, RecordedLine};

use super::super::run::printable;
use crate::output::{BOLD, DIM, GREEN, RED, RESET, YELLOW};

/// Prints a report for each end of a container, in order of the decisions and exits.
pub(super) fn print(out: &mut impl Write, lines: &str) -> io::Result<()> {
    let mut containers: BTreeMap<(String, String), Vec<RecordedLine>> = BTreeMap::new();
    let line = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<RecordedLine>(line).ok());
    for line in line {
        if let Some(container) = &line.container {
            let container = (line.pod.clone(), container.clone());
            containers.entry(container).or_default().push(line);
        }
    }
    let mut ends: Vec<_> = containers.values().flat_map(|lines| ends(lines)).collect();
    ends.retain(|end| cause(end).is_some());
    ends.sort_by_key(|end| cause(end).map(|line| line.time.as_str()));
    for (index, end) in ends.into_iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        report(out, end)?;
    }
    Ok(())
}

/// Cuts the lines of a container into its ends: attempts and the decision where it was killed, the exit, what followed.
fn ends(lines: &[RecordedLine]) -> Vec<&[RecordedLine]> {
    let mut ends = Vec::new();
    let mut from = 0;
    for (index, line) in lines.iter().enumerate() {
        let so_far = &lines[from..index];
        let has_exited = || so_far.iter().any(|line| matches!(line.body, Body::Exited { .. }));
        let begins = match &line.body {
            Body::Probe { .. } => cause(so_far).is_some(),
            // A second decision before the exit belongs to the same kill: it shortens the grace period.
            Body::Killing { .. } | Body::Exited { .. } => has_exited(),
            Body::Hook { .. }
            | Body::Signal { .. }
            | Body::GraceExceeded {}
            | Body::Backoff { .. }
            | Body::Created {}
            | Body::Running { .. }
            | Body::Other => false,
        };
        if begins {
            ends.push(so_far);
            from = index;
        }
    }
    ends.push(&lines[from..]);
    ends
}

/// The decision to kill, or the exit where there was none.
fn cause(end: &[RecordedLine]) -> Option<&RecordedLine> {
    end.iter()
        .find(|line| matches!(line.body, Body::Killing { .. } | Body::Exited { .. }))
}

fn report(out: &mut impl Write, end: &[RecordedLine]) -> io::Result<()> {
    let Some(cause) = cause(end) else {
        return Ok(());
    };
    let RecordedLine {
        pod,
        container,
        time,
        t,
        ..
    } = cause;
    let container = container.as_deref().unwrap_or_default();
    let how = if matches!(cause.body, Body::Killing { .. }) {
        "killed"
    } else {
        "exited"
    };
    let age = clock(span(*t));
    writeln!(
        out,
        "{BOLD}{pod}  container {container}{RESET}  {how} at {time}, {} after the pod was accepted",
        age.trim_start()
    )?;
    let mut attempts = Attempts::default();
    for line in end {
        match &line.body {
            Body::Probe { .. } => attempts.push(line),
            Body::Killing { .. } => {
                attempts.print(out)?;
                fact(out, line)?;
            }
            Body::Hook { .. }
            | Body::Signal { .. }
            | Body::GraceExceeded {}
            | Body::Exited { .. }
            | Body::Backoff { .. }
            | Body::Created {}
            | Body::Running { .. }
            | Body::Other => fact(out, line)?,
        }
    }
    Ok(())
}

fn fact(out: &mut impl Write, line: &RecordedLine) -> io::Result<()> {
    let (name, text) = match &line.body {
        Body::Killing {
            reason,
            grace_period_seconds,
            grace_from,
        } => (
            "reason",
            format!(
                "{RED}{}{RESET}, grace period {grace_period_seconds}s ({})",
                reason.in_words(),
                grace_from.in_words()
            ),
        ),
        Body::Hook {
            hook,
            outcome,
            seconds,
        } => (
            "hook",
            format!("{} {} after {seconds:.3}s", hook.in_words(), outcome.in_words()),
        ),
        Body::Signal { signal } => ("signal", signal.clone()),
        Body::GraceExceeded {} => (
            "forced",
            format!("{YELLOW}SIGKILL: it was still running when the grace period was over{RESET}"),
        ),
        Body::Exited {
            exit_code,
            reason,
            seconds,
        } => {
            let after = seconds.map_or(String::new(), |seconds| {
                format!(", {seconds:.3}s after the signal")
            });
            ("exit", format!("code {exit_code} ({reason}){after}"))
        }
        Body::Backoff { seconds } => ("restart", format!("waits {seconds:.3}s (back-off)")),
        Body::Running { restart_count } => (
            "restart",
            format!("number {restart_count}, at {}", clock(span(line.t)).trim_start()),
        ),
        Body::Probe { .. } | Body::Created {} | Body::Other => return Ok(()),
    };
    writeln!(out, "  {name:<9}{text}")
}

/// Equal attempts in a row, printed once.
#[derive(Debug, Default)]
struct Attempts {
    folds: Vec<(RecordedLine, RecordedLine, usize)>,
}

impl Attempts {
    fn push(&mut self, line: &RecordedLine) {
        let same = |other: &RecordedLine| match (&line.body, &other.body) {
            (
                Body::Probe {
                    outcome,
                    detail,
                    counted,
                    ..
                },
                Body::Probe {
                    outcome: before,
                    detail: said,
                    counted: was_counted,
                    ..
                },
            ) => {
                outcome == before
                    && counted == was_counted
                    && (detail == said || outcome.is(LineOutcome::Success))
            }
            _ => false,
        };
        match self.folds.last_mut().filter(|(_, last, _)| same(last)) {
            Some((_, last, count)) => {
                *last = line.clone();
                *count += 1;
            }
            None => self.folds.push((line.clone(), line.clone(), 1)),
        }
    }

    fn print(&mut self, out: &mut impl Write) -> io::Result<()> {
        for (first, last, count) in self.folds.drain(..) {
            if let Some(text) = describe(&last, count) {
                let at = clock(span(first.t));
                writeln!(out, "  {:<9}{}  {text}", "probe", at.trim_start())?;
            }
        }
        Ok(())
    }
}

/// The last of `count` equal attempts.
fn describe(last: &RecordedLine, count: usize) -> Option<String> {
    let Body::Probe {
        kind,
        outcome,
        detail,
        latency_ms,
        run,
        counted,
    } = &last.body
    else {
        return None;
    };
    let (style, meaning) = match (outcome.known(), *counted) {
        (Some(LineOutcome::Success), _) => (GREEN, String::new()),
        (Some(LineOutcome::Failure), true) => (RED, format!(", {run} in a row: {}", printable(detail))),
        (Some(LineOutcome::Failure | LineOutcome::Warning | LineOutcome::Error) | None, _) => {
            (YELLOW, format!(", does not count: {}", printable(detail)))
        }
    };
    let (kind, outcome) = (kind.in_words(), outcome.in_words());
    let times = if count > 1 {
        format!(" x{count}, the last at {}", clock(span(last.t)).trim_start())
    } else {
        String::new()
    };
    Some(format!(
        "{kind} {style}{outcome}{RESET}{times}{meaning} {DIM}({latency_ms:.1} ms){RESET}"
    ))
}

fn span(seconds: f64) -> Span {
    std::time::Duration::try_from_secs_f64(seconds)
        .unwrap_or_default()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL_LINES: &str = r#"{"t":30.0,"time":"2026-01-02T03:04:30.000000Z","pod":"default/web","container":"app","type":"probe","kind":"liveness","outcome":"success","detail":"","latencyMs":1.5,"run":3,"counted":true}
{"t":31.0,"time":"2026-01-02T03:04:31.000000Z","pod":"default/web","container":"app","type":"probe","kind":"liveness","outcome":"failure","detail":"timeout","latencyMs":1000.0,"run":1,"counted":true}
{"t":32.0,"time":"2026-01-02T03:04:32.000000Z","pod":"default/web","container":"app","type":"probe","kind":"liveness","outcome":"failure","detail":"timeout","latencyMs":1000.0,"run":2,"counted":true}
{"t":32.0,"time":"2026-01-02T03:04:32.000000Z","pod":"default/web","container":"app","type":"killing","reason":"livenessProbe","gracePeriodSeconds":5.0,"graceFrom":"probe"}
{"t":32.1,"time":"2026-01-02T03:04:32.100000Z","pod":"default/web","container":"app","type":"signal","signal":"SIGTERM"}
{"t":37.1,"time":"2026-01-02T03:04:37.100000Z","pod":"default/web","container":"app","type":"graceExceeded","signal":"SIGKILL"}
{"t":37.2,"time":"2026-01-02T03:04:37.200000Z","pod":"default/web","container":"app","type":"exited","exitCode":137,"reason":"Error","seconds":5.1}
{"t":37.3,"time":"2026-01-02T03:04:37.300000Z","pod":"default/web","container":"app","type":"running","id":"c","restartCount":1}
"#;

    fn printed(lines: &str) -> String {
        let mut out = Vec::new();
        print(&mut out, lines).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn a_kill_is_understood_at_once() {
        insta::assert_snapshot!(printed(KILL_LINES), @r"
        default/web  container app  killed at 2026-01-02T03:04:32.000000Z, 0:00:32.000 after the pod was accepted
          probe    0:00:30.000  liveness success (1.5 ms)
          probe    0:00:31.000  liveness failure x2, the last at 0:00:32.000, 2 in a row: timeout (1000.0 ms)
          reason   liveness probe failed, grace period 5s (of the probe)
          signal   SIGTERM
          forced   SIGKILL: it was still running when the grace period was over
          exit     code 137 (Error), 5.100s after the signal
          restart  number 1, at 0:00:37.300
        ");
    }

    #[test]
    fn each_kill_has_its_report_and_a_shortened_one_stays_one() {
        let both = format!("{KILL_LINES}{KILL_LINES}");
        assert_eq!(printed(&both).matches("killed at").count(), 2);
        let decision = KILL_LINES.lines().nth(3).unwrap();
        let shortened = KILL_LINES.replacen(decision, &format!("{decision}\n{decision}"), 1);
        assert_eq!(printed(&shortened).matches("killed at").count(), 1);
    }

    #[test]
    fn an_exit_is_told_with_the_wait_after_it() {
        let line = |body: &str| {
            format!(
                r#"{{"t":1.0,"time":"2026-01-02T03:04:05.000000Z","pod":"default/web","container":"app",{body}}}"#
            )
        };
        let exited = line(r#""type":"exited","exitCode":1,"reason":"Error""#);
        let backoff = line(r#""type":"backoff","seconds":10.0"#);
        let running = line(r#""type":"running","id":"c","restartCount":1"#);
        let twice = [&*exited, &*backoff, &*running, &*exited].join("\n");
        insta::assert_snapshot!(printed(&twice), @r"
        default/web  container app  exited at 2026-01-02T03:04:05.000000Z, 0:00:01.000 after the pod was accepted
          exit     code 1 (Error)
          restart  waits 10.000s (back-off)
          restart  number 1, at 0:00:01.000

        default/web  container app  exited at 2026-01-02T03:04:05.000000Z, 0:00:01.000 after the pod was accepted
          exit     code 1 (Error)
        ");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        assert_eq!(printed("nonsense\n{}\n"), "");
    }
}
