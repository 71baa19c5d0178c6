//! A lifecycle hook under way.

use serde::{Deserialize, Serialize};

use crate::io::Action;
use crate::line::{HookOutcome, LineBody};
use crate::plan::{Hook, HookPlan};
use crate::scope::Scope;
use crate::time::{Span, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HookRun {
    hook: Hook,
    since: Time,
    /// When a sleep is over; none for a hook that the driver carries out.
    wakes_at: Option<Time>,
}

impl HookRun {
    /// Begins a hook; `limit` is how long the driver may take for it.
    pub(crate) fn begin(scope: &mut Scope<'_>, hook: Hook, plan: HookPlan, limit: Option<Span>) -> Self {
        let since = scope.now;
        let wakes_at = match plan {
            HookPlan::Sleep(span) => Some(since + span),
            HookPlan::Run => {
                let life = scope.life;
                scope.act(Action::Hook { life, hook, limit });
                None
            }
        };
        Self {
            hook,
            since,
            wakes_at,
        }
    }

    pub(crate) fn wakes_at(&self) -> Option<Time> {
        self.wakes_at
    }

    /// A sleep that is over at `now`.
    pub(crate) fn has_slept(&self, now: Time) -> bool {
        self.wakes_at.is_some_and(|at| at <= now)
    }

    /// Asks for the hook again: its answer was lost with an agent. A sleep just goes on.
    pub(crate) fn resume(&self, scope: &mut Scope<'_>, limit: Option<Span>) {
        if self.wakes_at.is_none() {
            let (life, hook) = (scope.life, self.hook);
            scope.act(Action::Hook { life, hook, limit });
        }
    }

    /// Reports the end of the hook.
    pub(crate) fn end(self, scope: &mut Scope<'_>, outcome: HookOutcome) {
        if outcome == HookOutcome::Timeout {
            self.cancel(scope);
        }
        let seconds = scope.now.since(self.since);
        scope.line(LineBody::Hook {
            hook: self.hook,
            outcome,
            seconds,
        });
    }

    /// Nobody waits for it any more.
    pub(crate) fn cancel(self, scope: &mut Scope<'_>) {
        if self.wakes_at.is_none() {
            let (life, hook) = (scope.life, self.hook);
            scope.act(Action::CancelHook { life, hook });
        }
    }
}
