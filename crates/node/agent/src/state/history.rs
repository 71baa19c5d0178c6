//! How containers ended: for a kill the attempts of its probe and the course of the stop, for an exit of their own that
//! exit, and what followed, as event lines.
//!
//! Attempts are kept small, because every probe worker has some; texts are kept for failures only. A kill is
//! written down line by line as it goes on, so that an agent's death in the middle loses nothing of it.

use std::collections::VecDeque;
use std::sync::Arc;

use pulselet_engine::line::{KillReason, Line, LineBody, LineOutcome};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Attempts remembered per probe.
const ATTEMPTS: usize = 100;
/// Bytes of a failure's text that are kept.
const MAX_DETAIL: usize = 1024;

/// One attempt of a probe in few bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(from = "StoredAttempt", into = "StoredAttempt")]
struct Attempt {
    at: Time,
    latency_micros: u32,
    run: u16,
    outcome: AttemptOutcome,
    turn: AttemptTurn,
}

/// An attempt as it is written down.
#[derive(Serialize, Deserialize)]
struct StoredAttempt {
    at: Time,
    latency_micros: u32,
    run: u16,
    outcome: AttemptOutcome,
    counted: bool,
    #[serde(default)]
    look: bool,
}

/// Whether it counted, and whether it was a look, in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptTurn {
    Tick,
    ForgivenTick,
    Look,
    FailedLook,
}

impl AttemptTurn {
    fn new(counted: bool, look: bool) -> Self {
        match (counted, look) {
            (true, false) => Self::Tick,
            (false, false) => Self::ForgivenTick,
            (true, true) => Self::Look,
            (false, true) => Self::FailedLook,
        }
    }

    fn is_counted(self) -> bool {
        match self {
            Self::Tick | Self::Look => true,
            Self::ForgivenTick | Self::FailedLook => false,
        }
    }

    fn is_look(self) -> bool {
        match self {
            Self::Look | Self::FailedLook => true,
            Self::Tick | Self::ForgivenTick => false,
        }
    }
}

impl From<StoredAttempt> for Attempt {
    fn from(stored: StoredAttempt) -> Self {
        Self {
            at: stored.at,
            latency_micros: stored.latency_micros,
            run: stored.run,
            outcome: stored.outcome,
            turn: AttemptTurn::new(stored.counted, stored.look),
        }
    }
}

impl From<Attempt> for StoredAttempt {
    fn from(attempt: Attempt) -> Self {
        Self {
            at: attempt.at,
            latency_micros: attempt.latency_micros,
            run: attempt.run,
            outcome: attempt.outcome,
            counted: attempt.turn.is_counted(),
            look: attempt.turn.is_look(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum AttemptOutcome {
    Success,
    Failure,
    Warning,
    Error,
}

/// The last attempts of one probe.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Attempts {
    container: Arc<str>,
    kind: ProbeKind,
    list: VecDeque<Attempt>,
    /// Texts of attempts that were not successes, by the moment of the attempt.
    details: VecDeque<(Time, Box<str>)>,
}

/// The recent past of one pod. Persisted with it, except for what successes add.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct History {
    attempts: Vec<Attempts>,
    /// The newest attempt of each container, counted as its restarts.
    lives: Vec<(Arc<str>, u32)>,
    /// Kills that are not over.
    open: Vec<KillRecord>,
}

/// A kill so far: the attempts that led to it, the decision, and what followed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KillRecord {
    pub(crate) container: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) at: Time,
    /// JSON texts, each with its newline.
    pub(crate) lines: String,
}

/// Turns a line into its JSON text.
pub(crate) type ToJson<'a> = &'a dyn Fn(&Line) -> String;

impl History {
    /// Takes note of a line. A kill that has changed is returned, to be saved.
    pub(crate) fn note(&mut self, line: &Line, to_json: ToJson<'_>) -> Option<KillRecord> {
        let container = line.container.as_ref()?;
        match &line.body {
            LineBody::Probe {
                kind: kind @ (ProbeKind::Startup | ProbeKind::Liveness),
                ..
            } => {
                self.attempts_of(container, *kind).push(line);
                None
            }
            LineBody::Created { restart_count, .. } => {
                self.set_life(container, *restart_count);
                self.go_on(container, line, to_json, false)
            }
            LineBody::Killing { reason, .. } => Some(self.begin(container, *reason, line, to_json)),
            LineBody::Running { .. } => {
                self.attempts.retain(|attempts| attempts.container != *container);
                self.go_on(container, line, to_json, true)
            }
            LineBody::Exited { .. } => Some(self.exit(container, line, to_json)),
            LineBody::Hook { .. }
            | LineBody::Signal { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::Backoff { .. } => self.go_on(container, line, to_json, false),
            LineBody::Probe {
                kind: ProbeKind::Readiness,
                ..
            }
            | LineBody::Started
            | LineBody::Ready
            | LineBody::Unready
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted
            | LineBody::Warning { .. } => None,
        }
    }

    fn attempts_of(&mut self, container: &Arc<str>, kind: ProbeKind) -> &mut Attempts {
        let found = |attempts: &Attempts| attempts.kind == kind && attempts.container == *container;
        let index = self.attempts.iter().position(found).unwrap_or_else(|| {
            self.attempts.push(Attempts {
                container: Arc::clone(container),
                kind,
                list: VecDeque::new(),
                details: VecDeque::new(),
            });
            self.attempts.len() - 1
        });
        &mut self.attempts[index]
    }

    fn set_life(&mut self, container: &Arc<str>, attempt: u32) {
        match self.lives.iter_mut().find(|(name, _)| name == container) {
            Some((_, known)) => *known = attempt,
            None => self.lives.push((Arc::clone(container), attempt)),
        }
    }

    /// The end of a kill that was decided on, or an end that nobody had asked for.
    fn exit(&mut self, container: &Arc<str>, line: &Line, to_json: ToJson<'_>) -> KillRecord {
        let attempt = self.newest_life(container);
        let of_life = |open: &KillRecord| open.container == *container && open.attempt == attempt;
        if !self.open.iter().any(of_life) {
            return self.open(container, line.at, attempt, to_json(line) + "\n");
        }
        self.go_on(container, line, to_json, false)
            .expect("the record was just found")
    }

    fn newest_life(&self, container: &str) -> u32 {
        let newest = self.lives.iter().find(|(name, _)| &**name == container);
        newest.map_or(0, |(_, attempt)| *attempt)
    }

    /// Begins a record, in the place of one that is over.
    fn open(&mut self, container: &Arc<str>, at: Time, attempt: u32, lines: String) -> KillRecord {
        self.open.retain(|open| open.container != *container);
        let open = KillRecord {
            container: Arc::clone(container),
            attempt,
            at,
            lines,
        };
        self.open.push(open.clone());
        open
    }

    fn begin(
        &mut self,
        container: &Arc<str>,
        reason: KillReason,
        line: &Line,
        to_json: ToJson<'_>,
    ) -> KillRecord {
        let kind = reason.probe();
        let attempt = self.newest_life(container);
        let same = |open: &&mut KillRecord| open.container == *container && open.attempt == attempt;
        if let Some(open) = self.open.iter_mut().find(same) {
            // A second decision about the same life can only shorten the first.
            push(&mut open.lines, &to_json(line));
            return open.clone();
        }
        let mut lines = String::new();
        if let Some(kind) = kind {
            for attempt in self.attempts_of(container, kind).lines() {
                push(&mut lines, &to_json(&attempt));
            }
        }
        push(&mut lines, &to_json(line));
        self.open(container, line.at, attempt, lines)
    }

    fn go_on(&mut self, container: &str, line: &Line, to_json: ToJson<'_>, last: bool) -> Option<KillRecord> {
        let index = self.open.iter().position(|open| &*open.container == container)?;
        push(&mut self.open[index].lines, &to_json(line));
        let saved = self.open[index].clone();
        if last {
            self.open.swap_remove(index);
        }
        Some(saved)
    }

    /// What is worth persisting: the attempts since the last success, which a kill would speak of.
    pub(crate) fn condensed(&self) -> Self {
        let mut condensed = self.clone();
        for attempts in &mut condensed.attempts {
            attempts.keep_last_run();
        }
        condensed.attempts.retain(|attempts| {
            let last = attempts.list.back();
            last.is_some_and(|last| last.outcome != AttemptOutcome::Success)
        });
        condensed
    }
}

fn push(lines: &mut String, text: &str) {
    lines.push_str(text);
    lines.push('\n');
}

impl Attempts {
    fn push(&mut self, line: &Line) {
        let LineBody::Probe {
            outcome,
            detail,
            latency_ms,
            run,
            counted,
            look,
            ..
        } = &line.body
        else {
            return;
        };
        if self.list.len() == ATTEMPTS {
            self.list.pop_front();
        }
        let outcome = AttemptOutcome::from(*outcome);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates"
        )]
        self.list.push_back(Attempt {
            at: line.at,
            latency_micros: (latency_ms * 1_000.0) as u32,
            run: u16::try_from(*run).unwrap_or(u16::MAX),
            outcome,
            turn: AttemptTurn::new(*counted, *look),
        });
        if outcome != AttemptOutcome::Success {
            self.details.push_back((line.at, cut(detail)));
        }
        let oldest = self.list.front().map_or(line.at, |attempt| attempt.at);
        while self.details.front().is_some_and(|(at, _)| *at < oldest) {
            self.details.pop_front();
        }
    }

    fn keep_last_run(&mut self) {
        let last_good = self
            .list
            .iter()
            .rposition(|attempt| attempt.outcome == AttemptOutcome::Success);
        self.list.drain(..last_good.unwrap_or(0));
        let oldest = self.list.front().map_or(Time::ZERO, |attempt| attempt.at);
        self.details.retain(|(at, _)| *at >= oldest);
    }

    /// The attempts as the lines they were.
    fn lines(&self) -> impl Iterator<Item = Line> {
        self.list.iter().map(|attempt| {
            let detail = self.details.iter().find(|(at, _)| *at == attempt.at);
            Line {
                at: attempt.at,
                container: Some(Arc::clone(&self.container)),
                body: LineBody::Probe {
                    kind: self.kind,
                    outcome: attempt.outcome.into(),
                    detail: detail.map(|(_, text)| text.to_string()).unwrap_or_default(),
                    latency_ms: Span::from_micros(attempt.latency_micros.into()).as_secs_f64() * 1_000.0,
                    run: attempt.run.into(),
                    counted: attempt.turn.is_counted(),
                    look: attempt.turn.is_look(),
                },
            }
        })
    }
}

fn cut(detail: &str) -> Box<str> {
    detail[..detail.floor_char_boundary(MAX_DETAIL)].into()
}

impl From<LineOutcome> for AttemptOutcome {
    fn from(outcome: LineOutcome) -> Self {
        match outcome {
            LineOutcome::Success => Self::Success,
            LineOutcome::Failure => Self::Failure,
            LineOutcome::Warning => Self::Warning,
            LineOutcome::Error => Self::Error,
        }
    }
}

impl From<AttemptOutcome> for LineOutcome {
    fn from(outcome: AttemptOutcome) -> Self {
        match outcome {
            AttemptOutcome::Success => Self::Success,
            AttemptOutcome::Failure => Self::Failure,
            AttemptOutcome::Warning => Self::Warning,
            AttemptOutcome::Error => Self::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulselet_engine::line::{ExitReason, GraceFrom};

    fn line(second: u64, body: LineBody) -> Line {
        Line {
            at: Time::ZERO + Span::from_secs(second),
            container: Some("app".into()),
            body,
        }
    }

    fn probe(second: u64, outcome: LineOutcome, run: u32) -> Line {
        let detail = format!("attempt {second}");
        let kind = ProbeKind::Liveness;
        line(
            second,
            LineBody::Probe {
                kind,
                outcome,
                detail,
                latency_ms: 1.5,
                run,
                counted: true,
                look: false,
            },
        )
    }

    fn created(restart_count: u32) -> LineBody {
        LineBody::Created {
            id: "x".into(),
            restart_count,
        }
    }

    fn killing() -> LineBody {
        LineBody::Killing {
            reason: KillReason::LivenessProbe,
            grace_period_seconds: Span::from_secs(5),
            grace_from: GraceFrom::Probe,
        }
    }

    fn as_text(line: &Line) -> String {
        let second = line.at.as_micros() / 1_000_000;
        match &line.body {
            LineBody::Probe { outcome, detail, .. } => format!("{second} {outcome:?} {detail}"),
            LineBody::Killing { .. } => format!("{second} killing"),
            LineBody::Exited { exit_code, .. } => format!("{second} exited {exit_code}"),
            LineBody::Running { .. } => format!("{second} running"),
            other => format!("{second} {other:?}"),
        }
    }

    fn exited() -> LineBody {
        LineBody::Exited {
            exit_code: pulselet_vocabulary::exit_code::KILLED,
            reason: ExitReason::Error,
            seconds: None,
        }
    }

    #[test]
    fn a_kill_tells_its_attempts_and_its_end_across_agents() {
        let mut history = History::default();
        history.note(&line(0, created(2)), &as_text);
        for second in 1..4 {
            history.note(&probe(second, LineOutcome::Success, 1), &as_text);
        }
        history.note(&probe(4, LineOutcome::Failure, 1), &as_text);
        // The agent dies and the next one goes on from what was saved.
        let saved = serde_json::to_string(&history.condensed()).unwrap();
        let mut history: History = serde_json::from_str(&saved).unwrap();
        history.note(&probe(5, LineOutcome::Failure, 2), &as_text);
        let kill = history.note(&line(5, killing()), &as_text).unwrap();
        assert_eq!((kill.attempt, &*kill.container), (2, "app"));
        let kill = history.note(&line(6, exited()), &as_text).unwrap();
        let expected = "3 Success \n4 Failure attempt 4\n5 Failure attempt 5\n5 killing\n6 exited 137\n";
        assert_eq!(kill.lines, expected);
        let running = LineBody::Running {
            id: "y".into(),
            restart_count: 3,
        };
        let kill = history.note(&line(7, running), &as_text).unwrap();
        assert!(kill.lines.ends_with("7 running\n"));
    }

    #[test]
    fn an_exit_that_nobody_asked_for_is_told_with_what_followed() {
        let mut history = History::default();
        history.note(&line(0, created(0)), &as_text);
        let exit = history.note(&line(1, exited()), &as_text).unwrap();
        assert_eq!((exit.attempt, exit.lines.as_str()), (0, "1 exited 137\n"));
        let seconds = Span::from_secs(10);
        history.note(&line(1, LineBody::Backoff { seconds }), &as_text);
        history.note(&line(11, created(1)), &as_text);
        let running = LineBody::Running {
            id: "y".into(),
            restart_count: 1,
        };
        let told = history.note(&line(11, running), &as_text).unwrap();
        assert!(told.attempt == 0 && told.lines.ends_with("11 running\n"));
        let next = history.note(&line(12, exited()), &as_text).unwrap();
        assert_eq!((next.attempt, next.lines.as_str()), (1, "12 exited 137\n"));
    }

    #[test]
    fn only_the_last_attempts_are_kept() {
        let mut history = History::default();
        for second in 0..250 {
            let outcome = if second % 2 == 0 {
                LineOutcome::Failure
            } else {
                LineOutcome::Success
            };
            history.note(&probe(second, outcome, 1), &as_text);
        }
        let attempts = &history.attempts[0];
        assert_eq!(
            (attempts.list.len(), attempts.details.len()),
            (ATTEMPTS, ATTEMPTS / 2)
        );
        assert_eq!(size_of::<Attempt>(), 16);
    }
}
