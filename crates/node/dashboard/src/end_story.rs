//! The end of a container in one sentence: what condemned it, how it was asked to leave, and how it left.
//!
//! A tracker reads the event lines of one container as they come and holds no more than the sentence needs.

use pulselet_engine::line::{ExitReason, GraceFrom, KillReason, LineOutcome};
use pulselet_engine::plan::ProbeKind;
use pulselet_sim::timeline::{RecordedBody, RecordedLine, RecordedWord};
use serde::Serialize;

/// Characters of a probe's own words that are told.
const MAX_DETAIL: usize = 80;

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndStory {
    pub(crate) time: String,
    pub(crate) text: String,
    /// Somebody condemned it.
    pub(crate) killed: bool,
    /// How old it was when the probe that condemned it failed first; `None` if none did.
    pub(crate) failed_at_seconds: Option<f64>,
    /// How old it was at its end; `None` if nobody saw it begin.
    pub(crate) lived_seconds: Option<f64>,
}

/// Failures in a row of one kind of probe.
#[derive(Clone, Debug)]
struct Failures {
    kind: ProbeKind,
    /// `None` if nobody knows how many.
    count: Option<u32>,
    first: f64,
    last: f64,
    detail: String,
}

/// Reads the lines of one container.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndTracker {
    began: Option<f64>,
    failures: Vec<Failures>,
    /// What is known of an end that is under way.
    parts: Vec<String>,
    killed: bool,
    failed_at: Option<f64>,
    last: Option<EndStory>,
}

impl EndTracker {
    /// `None` if it has never ended, as far as was seen.
    pub(crate) fn last(&self) -> Option<&EndStory> {
        self.last.as_ref()
    }

    pub(crate) fn push(&mut self, line: &RecordedLine) {
        match &line.body {
            RecordedBody::Running { .. } => {
                *self = Self {
                    began: Some(line.t),
                    last: self.last.take(),
                    ..Self::default()
                };
            }
            RecordedBody::Probe {
                kind,
                outcome,
                detail,
                run,
                counted,
                ..
            } => {
                if let Some(kind) = kind.known() {
                    let failed = outcome.is(LineOutcome::Failure) && *counted;
                    self.probe(line.t, kind, failed.then_some(*run), detail);
                }
            }
            RecordedBody::Killing {
                reason,
                grace_period_seconds,
                grace_from,
            } => self.killing(reason, *grace_period_seconds, grace_from),
            RecordedBody::Hook {
                hook,
                outcome,
                seconds,
            } => {
                if self.killed {
                    let (hook, outcome) = (hook.in_words(), outcome.in_words());
                    self.parts
                        .push(format!("{hook} hook {outcome} after {}", duration(*seconds)));
                }
            }
            RecordedBody::Signal { signal } => self.parts.push(signal.clone()),
            RecordedBody::GraceExceeded {} => {
                if let Some(signal) = self.parts.last_mut() {
                    signal.push_str(" ignored");
                }
                self.parts.push("SIGKILL".to_owned());
            }
            RecordedBody::Exited {
                exit_code,
                reason,
                seconds,
            } => self.exited(line, *exit_code, reason, *seconds),
            RecordedBody::Created {} | RecordedBody::Backoff { .. } | RecordedBody::Other => {}
        }
    }

    /// `failed` is the number of failures in a row, 0 if nobody knows it; `None` if it did not fail.
    fn probe(&mut self, t: f64, kind: ProbeKind, failed: Option<u32>, detail: &str) {
        let Some(run) = failed else {
            return self.failures.retain(|failures| failures.kind != kind);
        };
        if run == 1 {
            self.failures.retain(|failures| failures.kind != kind);
        }
        let (count, detail) = ((run > 0).then_some(run), brief(detail));
        if let Some(failures) = self.failures.iter_mut().find(|failures| failures.kind == kind) {
            failures.count = count;
            failures.last = t;
            failures.detail = detail;
        } else {
            self.failures.push(Failures {
                kind,
                count,
                first: t,
                last: t,
                detail,
            });
        }
    }

    fn killing(&mut self, reason: &RecordedWord<KillReason>, grace: f64, from: &RecordedWord<GraceFrom>) {
        // A second decision shortens the first.
        if self.killed {
            return self.parts.push(format!("grace cut to {}", duration(grace)));
        }
        let cause = match reason.known().and_then(KillReason::probe) {
            Some(kind) => self.condemned(kind),
            None => format!("stopped: {}", reason.in_words()),
        };
        self.killed = true;
        self.parts = vec![cause, format!("grace {} {}", duration(grace), from.in_words())];
    }

    /// What a probe that condemns has seen.
    fn condemned(&mut self, kind: ProbeKind) -> String {
        let by = format!("killed by {}", kind.as_str());
        let Some(failures) = self.failures.iter().find(|failures| failures.kind == kind) else {
            return by;
        };
        self.failed_at = self.began.map(|began| (failures.first - began).max(0.0));
        let over = duration(failures.last - failures.first);
        let detail = &failures.detail;
        match failures.count {
            Some(count) => format!("{by}: {count} × {detail} over {over}"),
            None => format!("{by}: {detail}"),
        }
    }

    fn exited(&mut self, line: &RecordedLine, code: i32, reason: &str, seconds: Option<f64>) {
        let lived_seconds = self.began.map(|began| (line.t - began).max(0.0));
        let lived = lived_seconds.map(|lived| format!(" after {}", duration(lived)));
        let lived = lived.unwrap_or_default();
        let text = if self.killed {
            let after = seconds.map(|seconds| format!(" after {}", duration(seconds)));
            self.parts
                .push(format!("exit code {code}{}", after.unwrap_or_default()));
            self.parts.join(", ")
        } else if reason == ExitReason::OOMKilled.as_str() {
            format!("killed by the kernel: out of memory{lived}")
        } else if code == 0 {
            format!("done{lived}, exit code 0")
        } else {
            format!("left by itself{lived}, exit code {code}")
        };
        *self = Self {
            last: Some(EndStory {
                time: line.time.clone(),
                text,
                killed: self.killed,
                failed_at_seconds: self.failed_at,
                lived_seconds,
            }),
            ..Self::default()
        };
    }
}

/// What a probe said, in a word or two.
fn brief(detail: &str) -> String {
    let code = detail.rsplit_once("statuscode: ").map(|(_, code)| code.trim());
    if let Some(code) = code.filter(|code| code.chars().all(|digit| digit.is_ascii_digit())) {
        return code.to_owned();
    }
    let known = [
        ("deadline exceeded", "no answer in time"),
        ("timed out", "no answer in time"),
        ("timeout", "no answer in time"),
        ("connection refused", "connection refused"),
        ("NOT_SERVING", "not serving"),
    ];
    if let Some((_, word)) = known.iter().find(|(part, _)| detail.contains(part)) {
        return (*word).to_owned();
    }
    let plain: String = detail
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(MAX_DETAIL)
        .collect();
    let plain = plain.trim();
    if plain.is_empty() {
        "a failure".to_owned()
    } else {
        format!("“{plain}”")
    }
}

fn duration(seconds: f64) -> String {
    let millis = (seconds.max(0.0) * 1_000.0).round();
    if millis < 1_000.0 {
        format!("{millis} ms")
    } else if millis < 60_000.0 {
        format!("{} s", (millis / 100.0).round() / 10.0)
    } else {
        let seconds = (millis / 1_000.0).round();
        let (minutes, rest) = ((seconds / 60.0).floor(), seconds % 60.0);
        if minutes < 60.0 {
            format!("{minutes} min {rest} s")
        } else {
            format!("{} h {} min", (minutes / 60.0).floor(), minutes % 60.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(lines: &[(f64, Value)]) -> Option<EndStory> {
        let mut tracker = EndTracker::default();
        for (t, body) in lines {
            let mut line =
                json!({"t": t, "time": format!("at {t}"), "pod": "default/web", "container": "app"});
            let fields = body.as_object().unwrap().clone();
            line.as_object_mut().unwrap().extend(fields);
            tracker.push(&serde_json::from_value(line).unwrap());
        }
        tracker.last().cloned()
    }

    fn probe(outcome: &str, detail: &str, run: u32) -> Value {
        json!({"type": "probe", "kind": "liveness", "outcome": outcome, "detail": detail, "latencyMs": 1.0, "run": run,
            "counted": true, "look": false})
    }

    #[test]
    fn a_kill_is_told_from_the_first_failure_to_the_exit() {
        let failure = |run| probe("failure", "HTTP probe failed with statuscode: 503", run);
        let end = told(&[
            (1.0, json!({"type": "running", "id": "c", "restartCount": 0})),
            (11.0, failure(1)),
            (21.0, probe("success", "", 1)),
            (31.0, failure(1)),
            (41.0, failure(2)),
            (51.0, failure(3)),
            (
                51.0,
                json!({"type": "killing", "reason": "livenessProbe", "gracePeriodSeconds": 60.0, "graceFrom": "probe"}),
            ),
            (51.0, json!({"type": "signal", "signal": "SIGTERM"})),
            (111.0, json!({"type": "graceExceeded", "signal": "SIGKILL"})),
            (
                111.1,
                json!({"type": "exited", "exitCode": 137, "reason": "Error", "seconds": 60.1}),
            ),
        ]);
        let end = end.unwrap();
        assert_eq!(
            end.text,
            "killed by liveness: 3 × 503 over 20 s, grace 1 min 0 s of the probe, SIGTERM ignored, SIGKILL, exit code 137 after \
             1 min 0 s"
        );
        assert_eq!((end.killed, end.failed_at_seconds), (true, Some(30.0)));
        assert!(
            end.lived_seconds
                .is_some_and(|lived| (lived - 110.1).abs() < 0.01)
        );
        assert_eq!(end.time, "at 111.1");
    }

    #[test]
    fn an_end_of_its_own_is_told_with_its_code() {
        let running = || (1.0, json!({"type": "running", "id": "c", "restartCount": 0}));
        let exited = |code: i32, reason: &str| {
            (
                13.5,
                json!({"type": "exited", "exitCode": code, "reason": reason}),
            )
        };
        for (code, reason, text) in [
            (0, "Completed", "done after 12.5 s, exit code 0"),
            (7, "Error", "left by itself after 12.5 s, exit code 7"),
            (
                137,
                "OOMKilled",
                "killed by the kernel: out of memory after 12.5 s",
            ),
        ] {
            assert_eq!(told(&[running(), exited(code, reason)]).unwrap().text, text);
        }
        assert_eq!(told(&[running()]), None);
    }

    #[test]
    fn what_a_probe_said_is_cut_short_and_harmless() {
        assert_eq!(
            brief("Get \"http://a/\": context deadline exceeded (Client.Timeout)"),
            "no answer in time"
        );
        assert_eq!(
            brief("dial tcp 10.0.0.1:80: connect: connection refused"),
            "connection refused"
        );
        assert_eq!(brief(""), "a failure");
        let long = format!("a\nb{}", "x".repeat(500));
        assert_eq!(brief(&long).chars().count(), MAX_DETAIL + 2);
        assert!(brief(&long).starts_with("“a b"));
    }

    #[test]
    fn durations_read_well() {
        for (seconds, text) in [
            (-1.0, "0 ms"),
            (0.25, "250 ms"),
            (20.04, "20 s"),
            (90.0, "1 min 30 s"),
            (7260.0, "2 h 1 min"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
