//! The end of one life, from the decision to the last signal.
//!
//! It always holds:
//! - at most one stop signal is asked for in a life, none at grace zero;
//! - SIGKILL is asked for only at grace zero or when the grace period is over;
//! - a termination under way can only become shorter;
//! - having asked for a signal is not having stopped: only an observed exit ends a life.

use pulselet_vocabulary::Signal;
use serde::{Deserialize, Serialize};

use crate::hook::HookRun;
use crate::io::{Action, Exit};
use crate::line::{GraceFrom, HookOutcome, KillReason, LineBody};
use crate::plan::{Hook, HookPlan};
use crate::scope::Scope;
use crate::time::{Span, Time};
use crate::transition::{Stop, Transition};

/// What a container has left for its stop signal at least, when a hook or the wait for its turn used the grace up.
pub const MINIMUM_GRACE: Span = Span::from_secs(2);
/// An unanswered stop or kill is asked for again after this long.
const ASK_AGAIN_AFTER: Span = Span::from_secs(5);

/// A grace period and who set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grace {
    pub span: Span,
    pub from: GraceFrom,
}

/// The grace period of one kill: the first of these that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GraceSources {
    /// Set by an eviction or the node's shutdown.
    pub forced: Option<Span>,
    /// Set by a deletion, with its own number or the pod's.
    pub deletion: Option<Span>,
    /// Set by the probe that condemned the container.
    pub probe: Option<Span>,
    /// The node's own for kills by probes; it only shortens what the pod or the minimum would give.
    pub node: Option<Span>,
    pub pod: Option<Span>,
}

impl GraceSources {
    pub fn choose(self) -> Grace {
        let otherwise = self.pod.unwrap_or(MINIMUM_GRACE);
        let first = [
            (self.forced, GraceFrom::Override),
            (self.deletion, GraceFrom::Deletion),
            (self.probe, GraceFrom::Probe),
            (self.node.filter(|node| *node < otherwise), GraceFrom::NodeDefault),
            (self.pod, GraceFrom::Pod),
        ];
        first
            .into_iter()
            .find_map(|(span, from)| span.map(|span| Grace { span, from }))
            .unwrap_or(Grace {
                span: MINIMUM_GRACE,
                from: GraceFrom::Minimum,
            })
    }
}

/// Why and how a life is to end.
#[derive(Clone, Debug)]
pub(crate) struct KillOrder {
    pub(crate) reason: KillReason,
    pub(crate) grace: Grace,
    /// The text of the Killing event.
    pub(crate) message: String,
    /// The stop signal waits until it is this container's turn.
    pub(crate) in_turn: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Termination {
    reason: KillReason,
    grace: Grace,
    asked_at: Time,
    /// When the whole grace period is over.
    end: Time,
    in_turn: bool,
    /// The stop signal, once it was sent.
    #[serde(default)]
    sent: Option<Signal>,
    /// The process was read to do nothing about it.
    #[serde(default)]
    is_unhandled: bool,
    step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    PreStop(HookRun),
    AwaitingTurn,
    /// The stop signal is asked for.
    Signalling {
        grace: Span,
        ask_again: Time,
    },
    /// The stop signal was sent.
    Signalled {
        at: Time,
        deadline: Time,
    },
    /// SIGKILL is asked for.
    Killing {
        first: FirstSignal,
        ask_again: Time,
    },
}

/// The signal that came before, or is, the SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FirstSignal {
    /// SIGKILL itself, not yet known to be sent. A stop signal asked for earlier may come before it.
    KillAsked,
    KillSent {
        at: Time,
    },
    /// A stop signal that did not do.
    Stop {
        at: Time,
    },
}

impl FirstSignal {
    fn sent_at(self) -> Option<Time> {
        match self {
            Self::KillAsked => None,
            Self::KillSent { at } | Self::Stop { at } => Some(at),
        }
    }
}

impl Termination {
    pub(crate) fn begin(scope: &mut Scope<'_>, order: KillOrder, pre_stop: Option<HookPlan>) -> Self {
        let KillOrder {
            reason,
            grace,
            message,
            in_turn,
        } = order;
        scope.normal("Killing", message);
        let asked_at = scope.now;
        let end = asked_at + grace.span;
        let mut this = Self {
            reason,
            grace,
            asked_at,
            end,
            in_turn,
            sent: None,
            is_unhandled: false,
            step: Step::AwaitingTurn,
        };
        this.announce(scope);
        if grace.span.is_zero() {
            this.kill(scope);
        } else if let Some(plan) = pre_stop {
            this.step = Step::PreStop(HookRun::begin(scope, Hook::PreStop, plan, Some(grace.span)));
        } else if !in_turn {
            this.signal(scope);
        }
        this
    }

    fn announce(&self, scope: &mut Scope<'_>) {
        let Self { reason, grace, .. } = *self;
        scope.line(LineBody::Killing {
            reason,
            grace_period_seconds: grace.span,
            grace_from: grace.from,
        });
        scope.transition(Transition::StopBegan {
            life: scope.life,
            reason,
            grace,
        });
    }

    pub(crate) fn reason(&self) -> KillReason {
        self.reason
    }

    pub(crate) fn next_deadline(&self) -> Time {
        match &self.step {
            Step::PreStop(run) => run.wakes_at().map_or(self.end, |at| at.min(self.end)),
            Step::AwaitingTurn => self.end,
            Step::Signalling { ask_again, .. } | Step::Killing { ask_again, .. } => *ask_again,
            Step::Signalled { deadline, .. } => *deadline,
        }
    }

    /// Does what is due. `turn` says that nothing is left that must stop before this container.
    pub(crate) fn advance(&mut self, scope: &mut Scope<'_>, turn: bool) {
        match self.step {
            Step::PreStop(run) if run.has_slept(scope.now) => {
                run.end(scope, HookOutcome::Success);
                self.after_hook(scope, turn);
            }
            Step::PreStop(run) if self.end <= scope.now => {
                cut_off(scope, run);
                self.after_hook(scope, turn);
            }
            Step::AwaitingTurn if turn || self.end <= scope.now => self.signal(scope),
            Step::Signalling { grace, ask_again } if ask_again <= scope.now => self.ask_stop(scope, grace),
            Step::Signalled { at, deadline } if deadline <= scope.now => self.exceed(scope, at),
            Step::Killing { first, ask_again } if ask_again <= scope.now => self.ask_kill(scope, first),
            Step::PreStop(_)
            | Step::AwaitingTurn
            | Step::Signalling { .. }
            | Step::Signalled { .. }
            | Step::Killing { .. } => {}
        }
    }

    fn after_hook(&mut self, scope: &mut Scope<'_>, turn: bool) {
        self.step = Step::AwaitingTurn;
        if !self.in_turn || turn || self.end <= scope.now {
            self.signal(scope);
        }
    }

    /// The pre-stop hook has ended.
    pub(crate) fn hook_done(&mut self, scope: &mut Scope<'_>, result: Result<(), String>, turn: bool) {
        let Step::PreStop(run) = self.step else { return };
        match result {
            Ok(()) => run.end(scope, HookOutcome::Success),
            Err(message) => {
                run.end(scope, HookOutcome::Failure);
                scope.line(LineBody::Warning {
                    message: format!("preStop hook failed: {message}"),
                });
                scope.warning("FailedPreStopHook", "PreStopHook failed");
            }
        }
        self.after_hook(scope, turn);
    }

    fn signal(&mut self, scope: &mut Scope<'_>) {
        let used = scope.now.since(self.asked_at);
        let left = self.end.since(scope.now);
        let grace = if used.is_zero() {
            left
        } else {
            left.max(MINIMUM_GRACE)
        };
        self.ask_stop(scope, grace);
    }

    fn ask_stop(&mut self, scope: &mut Scope<'_>, grace: Span) {
        self.step = Step::Signalling {
            grace,
            ask_again: scope.now + ASK_AGAIN_AFTER,
        };
        let life = scope.life;
        scope.act(Action::Stop { life, grace });
    }

    fn ask_kill(&mut self, scope: &mut Scope<'_>, first: FirstSignal) {
        self.step = Step::Killing {
            first,
            ask_again: scope.now + ASK_AGAIN_AFTER,
        };
        let life = scope.life;
        scope.act(Action::Kill { life });
    }

    /// SIGKILL at once. After a stop signal that means the grace period is over.
    fn kill(&mut self, scope: &mut Scope<'_>) {
        match self.step {
            Step::PreStop(run) => {
                cut_off(scope, run);
                self.ask_kill(scope, FirstSignal::KillAsked);
            }
            Step::AwaitingTurn | Step::Signalling { .. } => self.ask_kill(scope, FirstSignal::KillAsked),
            Step::Signalled { at, .. } => self.exceed(scope, at),
            Step::Killing { .. } => {}
        }
    }

    fn exceed(&mut self, scope: &mut Scope<'_>, stopped_at: Time) {
        self.report_exceeded(scope);
        self.ask_kill(scope, FirstSignal::Stop { at: stopped_at });
    }

    fn report_exceeded(&self, scope: &mut Scope<'_>) {
        scope.line(LineBody::GraceExceeded { signal: Signal::KILL });
        let what = match self.sent {
            Some(signal) if self.is_unhandled => format!(": {signal} was sent and ignored"),
            Some(signal) => format!(": {signal} was sent and did not end it"),
            None => String::new(),
        };
        // Whether SIGKILL has ended it is not known yet: the exit tells.
        let message = format!(
            "Container {} did not stop within its grace period of {}{what}, so SIGKILL is needed",
            scope.name, self.grace.span
        );
        scope.warning("ExceededGracePeriod", message);
        scope.transition(Transition::GraceExceeded {
            life: scope.life,
            reason: self.reason,
        });
    }

    /// The stop signal was read to do nothing to this process.
    pub(crate) fn expect_nothing_of_signal(&mut self) {
        self.is_unhandled = true;
    }

    /// A signal was sent. Its sending starts what is left of the grace period.
    pub(crate) fn signalled(&mut self, scope: &mut Scope<'_>, signal: Signal, at: Time) {
        self.note_sent(signal);
        match self.step {
            Step::Signalling { grace, .. } => {
                scope.line(LineBody::Signal { signal });
                self.step = if signal.is_kill() {
                    // Nothing is left to escalate to, and nothing to be exceeded.
                    Step::Killing {
                        first: FirstSignal::KillSent { at },
                        ask_again: scope.now + ASK_AGAIN_AFTER,
                    }
                } else {
                    // A report that took its time may be of a signal sent before the grace was shortened.
                    let deadline = self.end.max(at + grace);
                    Step::Signalled { at, deadline }
                };
            }
            Step::Killing {
                first: FirstSignal::KillAsked,
                ask_again,
            } => {
                scope.line(LineBody::Signal { signal });
                let first = if signal.is_kill() {
                    FirstSignal::KillSent { at }
                } else {
                    // It was on its way when the kill was asked for.
                    self.report_exceeded(scope);
                    FirstSignal::Stop { at }
                };
                self.step = Step::Killing { first, ask_again };
            }
            Step::PreStop(_) | Step::AwaitingTurn | Step::Signalled { .. } | Step::Killing { .. } => {}
        }
    }

    fn note_sent(&mut self, signal: Signal) {
        if self.sent.is_none() && !signal.is_kill() {
            self.sent = Some(signal);
        }
    }

    /// Another reason to end asks for its own grace period: the shorter of the two counts.
    pub(crate) fn join(&mut self, scope: &mut Scope<'_>, order: &KillOrder) {
        self.in_turn |= order.in_turn;
        let grace = order.grace;
        let end = scope.now + grace.span;
        let current = match self.step {
            Step::PreStop(_) | Step::AwaitingTurn => self.end,
            Step::Signalling { grace, .. } => scope.now + grace,
            Step::Signalled { deadline, .. } => deadline,
            Step::Killing { .. } => return,
        };
        if end >= current {
            return;
        }
        self.reason = order.reason;
        self.grace = grace;
        self.end = end;
        self.announce(scope);
        if grace.span.is_zero() {
            self.kill(scope);
            return;
        }
        let life = scope.life;
        match self.step {
            Step::PreStop(_) | Step::AwaitingTurn | Step::Killing { .. } => {}
            Step::Signalling { .. } => self.ask_stop(scope, grace.span),
            Step::Signalled { at, .. } => {
                self.step = Step::Signalled { at, deadline: end };
                scope.act(Action::Stop {
                    life,
                    grace: grace.span,
                });
            }
        }
    }

    /// Nothing is left that must stop before this container; true if it had waited for that.
    pub(crate) fn take_turn(&mut self, scope: &mut Scope<'_>) -> bool {
        let waited = self.step == Step::AwaitingTurn;
        if waited {
            self.signal(scope);
        }
        waited
    }

    /// The agent was away: asks again for what has no answer yet.
    pub(crate) fn resume(&mut self, scope: &mut Scope<'_>) {
        match self.step {
            Step::PreStop(run) => run.resume(scope, Some(self.end.since(scope.now))),
            Step::AwaitingTurn => {}
            // What an agent asked for as it died may not have been done. A runtime that did it sends no second signal.
            Step::Signalled { deadline, .. } => {
                let (life, grace) = (scope.life, deadline.since(scope.now));
                if !grace.is_zero() {
                    scope.act(Action::Stop { life, grace });
                }
            }
            Step::Signalling { grace, ask_again } => {
                let asked_at = ask_again - ASK_AGAIN_AFTER;
                let left = grace.saturating_sub(scope.now.since(asked_at));
                // The signal may not have been sent: then something is left for it. One that was sent keeps its deadline.
                self.ask_stop(scope, left.max(MINIMUM_GRACE.min(grace)));
            }
            Step::Killing { first, .. } => self.ask_kill(scope, first),
        }
    }

    /// The life has ended: reports what the runtime did that was not known yet. Returns how the stop went, and when its
    /// first signal was sent.
    pub(crate) fn exited(mut self, scope: &mut Scope<'_>, exit: &Exit) -> (Stop, Option<Time>) {
        if let Some(stop) = &exit.stop {
            self.note_sent(stop.signal);
        }
        let (sent_at, killed) = self.signals_until(scope, exit);
        let stop = Stop {
            reason: self.reason,
            took: exit.at.since(self.asked_at),
            killed,
        };
        (stop, sent_at)
    }

    /// When the first signal was sent, and whether one of them was SIGKILL.
    fn signals_until(&self, scope: &mut Scope<'_>, exit: &Exit) -> (Option<Time>, bool) {
        let (sent_at, killed) = match self.step {
            Step::PreStop(run) => {
                run.cancel(scope);
                (None, false)
            }
            Step::AwaitingTurn | Step::Signalling { .. } => (None, false),
            Step::Signalled { at, .. } => (Some(at), false),
            Step::Killing { first, .. } => (first.sent_at(), first.sent_at().is_some()),
        };
        let Some(stop) = &exit.stop else {
            return (sent_at, killed);
        };
        if sent_at.is_none() {
            scope.line(LineBody::Signal { signal: stop.signal });
        }
        let exceeded_before = matches!(
            self.step,
            Step::Killing {
                first: FirstSignal::Stop { .. },
                ..
            }
        );
        // A report of the stop signal that came too late, or not at all, does not take back what was told.
        let kill_told = matches!(
            self.step,
            Step::Killing {
                first: FirstSignal::KillSent { .. },
                ..
            }
        );
        let is_kill = stop.signal.is_kill();
        let exceeded = stop.forced && !exceeded_before && !kill_told && !is_kill;
        if exceeded {
            self.report_exceeded(scope);
        }
        let killed = killed || exceeded || (sent_at.is_none() && is_kill);
        (Some(sent_at.unwrap_or(stop.at)), killed)
    }
}

fn cut_off(scope: &mut Scope<'_>, run: HookRun) {
    run.end(scope, HookOutcome::Timeout);
    scope.warning("FailedPreStopHook", "PreStopHook failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_period_is_the_first_that_is_there() {
        let spans = [3600, 60, 20, 1, 30].map(|secs| Some(Span::from_secs(secs)));
        let froms = [
            GraceFrom::Override,
            GraceFrom::Deletion,
            GraceFrom::Probe,
            GraceFrom::NodeDefault,
            GraceFrom::Pod,
        ];
        for present in 0..32_u8 {
            let there = |place: usize| spans[place].filter(|_| present & (1 << place) != 0);
            let sources = GraceSources {
                forced: there(0),
                deletion: there(1),
                probe: there(2),
                node: there(3),
                pod: there(4),
            };
            let want = (0..5).find_map(|place| {
                there(place).map(|span| Grace {
                    span,
                    from: froms[place],
                })
            });
            let minimum = Grace {
                span: MINIMUM_GRACE,
                from: GraceFrom::Minimum,
            };
            assert_eq!(sources.choose(), want.unwrap_or(minimum), "sources {present:05b}");
        }
    }

    #[test]
    fn the_nodes_grace_period_only_shortens() {
        let chosen = |node, pod: Option<u64>| {
            let sources = GraceSources {
                node: Some(Span::from_secs(node)),
                pod: pod.map(Span::from_secs),
                ..GraceSources::default()
            };
            sources.choose().from
        };
        assert_eq!(chosen(10, Some(30)), GraceFrom::NodeDefault);
        assert_eq!(chosen(30, Some(30)), GraceFrom::Pod);
        assert_eq!(chosen(31, Some(30)), GraceFrom::Pod);
        assert_eq!(chosen(10, None), GraceFrom::Minimum);
        assert_eq!(chosen(0, None), GraceFrom::NodeDefault);
    }
}
