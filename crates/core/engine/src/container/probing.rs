//! What happens beside a running life: its hooks and its probes.

use super::{Container, PodView, Stage};
use crate::io::{Action, ProbeOutcome, ProbeReport};
use crate::line::{HookOutcome, LineBody};
use crate::plan::{Hook, ProbeKind};
use crate::probe_runner::{Asked, Finding};
use crate::schedule::Turn;
use crate::scope::Scope;
use crate::time::{Span, Time};
use crate::transition::Transition;
use crate::worker::{LifeState, LifeView, Next, Published, View};

impl Container {
    pub(crate) fn hook_done(
        &mut self,
        scope: &mut Scope<'_>,
        hook: Hook,
        result: Result<(), String>,
        turn: bool,
    ) -> Option<FailedPostStart> {
        let running = self.running_mut(scope.life.attempt)?;
        match hook {
            Hook::PreStop => {
                running.termination.as_mut()?.hook_done(scope, result, turn);
                None
            }
            Hook::PostStart => {
                let run = running.post_start.take()?;
                match result {
                    Ok(()) => {
                        run.end(scope, HookOutcome::Success);
                        None
                    }
                    Err(message) => {
                        run.end(scope, HookOutcome::Failure);
                        let message = format!("postStart hook failed: {message}");
                        scope.line(LineBody::Warning { message });
                        scope.warning("FailedPostStartHook", "PostStartHook failed");
                        Some(FailedPostStart)
                    }
                }
            }
        }
    }

    pub(crate) fn view(&self, now: Time, pod: PodView) -> View {
        let life = match &self.stage {
            Stage::Running(running) => Some(LifeView {
                attempt: running.life.attempt,
                state: LifeState::Running,
                age: now.since(running.started_at),
                started: running.started.is_some(),
            }),
            Stage::Starting(life) => Some(LifeView {
                attempt: life.attempt,
                state: LifeState::Waiting,
                age: Span::ZERO,
                started: false,
            }),
            Stage::Pending
            | Stage::Pulling
            | Stage::PullBackOff { .. }
            | Stage::Creating
            | Stage::CreateBackOff { .. }
            | Stage::BackOff { .. }
            | Stage::Finished => self.newest.as_ref().map(|ended| LifeView {
                attempt: ended.attempt,
                state: LifeState::Ended {
                    restarts: !self.is_finished(),
                },
                age: Span::ZERO,
                started: false,
            }),
        };
        View {
            pod_finished: pod.finished,
            pod_ending: pod.ending,
            life,
        }
    }

    /// Lets the probers follow what has changed; those with nothing left to do retire.
    pub(crate) fn sync_probers(&mut self, scope: &mut Scope<'_>, pod: PodView) {
        let view = self.view(scope.now, pod);
        let (started_at, started) = self.running().map_or((Time::ZERO, None), |running| {
            (running.started_at, running.started)
        });
        for slot in &mut self.probers {
            let Some(prober) = slot else { continue };
            let gate = match prober.kind() {
                ProbeKind::Startup => started.is_none().then_some(started_at),
                ProbeKind::Liveness | ProbeKind::Readiness => started,
            };
            if prober.sync(&view, started_at, gate, scope.settings) == Next::Stop {
                scope.transition(Transition::WorkerRetired {
                    container: scope.life.container,
                    kind: prober.kind(),
                });
                *slot = None;
            }
        }
    }

    /// Takes a probe's report: what to report about it, and whether it condemns the container.
    pub(crate) fn probe_done(
        &mut self,
        scope: &mut Scope<'_>,
        kind: ProbeKind,
        report: ProbeReport,
    ) -> Option<(Finding, Option<Condemned>)> {
        let now = scope.now;
        let attempt = scope.life.attempt;
        let running = self.running_mut(attempt)?;
        let already_ending = running.termination.is_some();
        let prober = self.probers[kind as usize].as_mut()?;
        let finding = prober.complete(now, &report, scope.settings)?;
        report_probe(scope, kind, report, &finding);
        self.note_first_success(scope, &finding);
        let condemned = match (kind, finding.published) {
            (ProbeKind::Startup, Some(Published::Success)) => {
                self.running_mut(attempt)?.started = Some(now);
                self.was_started = true;
                None
            }
            (ProbeKind::Startup | ProbeKind::Liveness, Some(Published::Failure)) if !already_ending => {
                Some(Condemned::By(kind))
            }
            (ProbeKind::Startup | ProbeKind::Liveness | ProbeKind::Readiness, _) => None,
        };
        Some((finding, condemned))
    }

    fn note_first_success(&mut self, scope: &mut Scope<'_>, finding: &Finding) {
        let (now, life) = (scope.now, scope.life);
        let Some(running) = self.running_mut(life.attempt) else {
            return;
        };
        if finding.outcome.is_success() && !running.succeeded {
            running.succeeded = true;
            let after = now.since(running.started_at);
            scope.transition(Transition::FirstSuccess { life, after });
        }
    }

    /// Begins the probes that are due. They change nothing but their own clock.
    pub(crate) fn advance_probes(&mut self, scope: &mut Scope<'_>, pod: PodView) {
        let view = self.view(scope.now, pod);
        let life = scope.life;
        for prober in self.probers.iter_mut().flatten() {
            if let Some(Asked { timeout, look }) = prober.begin(scope.now, &view) {
                let kind = prober.kind();
                scope.act(Action::Probe {
                    life,
                    kind,
                    timeout,
                    look,
                });
            }
        }
    }
}

/// What a published probe result asks the pod to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condemned {
    By(ProbeKind),
}

/// The hook that should have run beside the start did not do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedPostStart;

fn report_probe(scope: &mut Scope<'_>, kind: ProbeKind, report: ProbeReport, finding: &Finding) {
    let title = kind.title();
    if finding.counted {
        let detail = &report.detail;
        match finding.outcome {
            ProbeOutcome::Success => {}
            ProbeOutcome::Warning => {
                scope.warning("ProbeWarning", format!("{title} probe warning: {detail}"));
            }
            ProbeOutcome::Failure | ProbeOutcome::Unknown => {
                scope.warning("Unhealthy", format!("{title} probe failed: {detail}"));
            }
            ProbeOutcome::Error => scope.warning("Unhealthy", format!("{title} probe errored: {detail}")),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a probe's latency is small")]
    let latency_ms = report.latency.as_micros() as f64 / 1e3;
    scope.line(LineBody::Probe {
        kind,
        outcome: finding.outcome.into(),
        detail: detail_of_line(report),
        latency_ms,
        run: finding.run,
        counted: finding.counted,
        look: finding.turn == Turn::Look,
    });
    if finding.forgiven {
        let message =
            format!("{title} time-out not counted: the agent itself was late, so it may be to blame");
        scope.line(LineBody::Warning { message });
    }
}

/// What a line says of a probe. Events, whose words are those of Kubernetes, leave the exit code out.
fn detail_of_line(report: ProbeReport) -> String {
    match report.exit_code {
        None => report.detail,
        Some(code) if report.detail.is_empty() => format!("exit code {code}"),
        Some(code) => format!("exit code {code}: {}", report.detail),
    }
}
