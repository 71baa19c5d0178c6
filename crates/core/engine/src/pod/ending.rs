//! The end of a pod: who stops when, and what is left to do once nothing runs.

use std::sync::Arc;

use super::{End, PodMachine, Sandbox, push_line};
use crate::container::Container;
use crate::io::{Action, ContainerIx, Outbox};
use crate::line::{KillReason, LineBody};
use crate::plan::Role;
use crate::termination::{Grace, GraceSources, KillOrder};
use crate::time::Time;
use crate::transition::Transition;

impl PodMachine {
    /// Begins the end of the pod, or brings it nearer.
    pub(super) fn begin_end(&mut self, now: Time, reason: KillReason, grace: Grace, out: &mut Outbox) {
        let until = now + grace.span;
        match &mut self.end {
            None => {
                self.end = Some(End {
                    reason,
                    grace,
                    until,
                    deleted: false,
                });
            }
            Some(end) if until < end.until || end.reason == KillReason::Completed => {
                *end = End {
                    reason,
                    grace,
                    until,
                    ..*end
                };
            }
            Some(_) => {}
        }
        for ix in 0..self.containers.len() {
            self.end_container(now, ix, out);
        }
    }

    pub(super) fn end_container(&mut self, now: Time, ix: ContainerIx, out: &mut Outbox) {
        let Some(End { reason, grace, .. }) = self.end else {
            return;
        };
        let name = Arc::clone(&self.containers[ix].plan().name);
        let in_turn = self.containers[ix].role() == Role::Sidecar;
        let message = format!("Stopping container {name}");
        let order = KillOrder {
            reason,
            grace,
            message,
            in_turn,
        };
        self.with(now, ix, out, |it, scope| {
            if !it.kill(scope, order) {
                it.give_up();
            }
        });
    }

    /// Nothing of it runs, and its sandbox is gone.
    pub fn is_stopped(&self) -> bool {
        let has_sandbox = match self.sandbox {
            Sandbox::Starting | Sandbox::Ready | Sandbox::Stopping => true,
            Sandbox::Absent | Sandbox::Failed { .. } | Sandbox::Lost | Sandbox::Stopped => false,
        };
        !has_sandbox && !self.containers.iter().any(Container::is_alive)
    }

    /// Nothing is left that must stop before this container.
    pub(super) fn is_turn_of(&self, ix: ContainerIx) -> bool {
        let is_before = |other: ContainerIx| match self.containers[other].role() {
            Role::Main | Role::Init | Role::Ephemeral => true,
            Role::Sidecar => other > ix,
        };
        match self.containers[ix].role() {
            Role::Main | Role::Init | Role::Ephemeral => true,
            Role::Sidecar => (0..self.containers.len())
                .all(|it| it == ix || !is_before(it) || !self.containers[it].is_alive()),
        }
    }

    /// The pod has done what it is for, or cannot: what is left of it ends.
    pub(super) fn complete(&mut self, now: Time, out: &mut Outbox) -> bool {
        let grace = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        }
        .choose();
        self.begin_end(now, KillReason::Completed, grace, out);
        true
    }

    pub(super) fn step_end(&mut self, now: Time, out: &mut Outbox) -> bool {
        for ix in 0..self.containers.len() {
            let running = self.containers[ix].running().is_some();
            if running && !self.containers[ix].is_terminating() {
                self.end_container(now, ix, out);
                return true;
            }
            self.containers[ix].give_up();
        }
        let mut advanced = false;
        for ix in 0..self.containers.len() {
            if self.containers[ix].role() == Role::Sidecar && self.is_turn_of(ix) {
                advanced |= self.with(now, ix, out, Container::take_turn).unwrap_or(false);
            }
        }
        advanced
    }

    /// Stops the sandbox once all containers are gone, and ends a deleted pod once the sandbox is.
    pub(super) fn close(&mut self, now: Time, out: &mut Outbox) {
        if self.end.is_none() && !self.awaits_boot {
            return;
        }
        if self.containers.iter().any(Container::is_alive) {
            return;
        }
        match self.sandbox {
            // A runtime that did not answer may have made one all the same, and one that is lost may have left something.
            Sandbox::Ready | Sandbox::Failed { .. } | Sandbox::Lost => {
                self.sandbox = Sandbox::Stopping;
                out.actions.push(Action::StopSandbox);
                return;
            }
            Sandbox::Starting | Sandbox::Stopping => return,
            Sandbox::Absent => self.sandbox = Sandbox::Stopped,
            Sandbox::Stopped => {}
        }
        if self.is_deleting() {
            self.over = true;
            push_line(now, out, LineBody::Deleted);
            out.transitions.push(Transition::StatusChanged);
        }
    }
}
