//! All containers of a pod restart, because one of them exited with a code that its rules name.
//!
//! The init containers, sidecars and main containers end without preStop hooks and with the least grace period. Then the
//! pod begins with its first init container again, without a back-off. Its sandbox, its volumes and its ephemeral
//! containers stay.

use std::sync::Arc;

use super::{PodMachine, Sandbox};
use crate::container::Container;
use crate::io::{ContainerIx, Outbox};
use crate::line::{KillReason, Line, LineBody};
use crate::plan::Role;
use crate::termination::{GraceSources, KillOrder};
use crate::time::Time;
use crate::transition::Transition;

/// The text of the Killing event, as a kubelet writes it.
const MESSAGE: &str = "killing";

impl PodMachine {
    /// Ends all containers because this one exited with that code. The first such exit counts.
    pub(super) fn restart_all(&mut self, now: Time, source: ContainerIx, exit_code: i32, out: &mut Outbox) {
        if self.restarting_after.is_some() {
            return;
        }
        self.restarting_after = Some(source);
        out.lines.push(Line {
            at: now,
            container: Some(Arc::clone(&self.containers[source].plan().name)),
            body: LineBody::RestartAllContainers { exit_code },
        });
        out.transitions.push(Transition::StatusChanged);
        // Without its sandbox, or before a shutdown of the machine, all of it ends already and has the time that it was given.
        if self.sandbox == Sandbox::Ready && !self.awaits_boot {
            for ix in 0..self.containers.len() {
                self.stop_for_restart(now, ix, out);
            }
        }
    }

    /// Whether this container ends, or has ended, so that all of them can restart.
    pub(super) fn is_restarting(&self, ix: ContainerIx) -> bool {
        let restarts = |it: &Container| it.role() != Role::Ephemeral;
        self.restarting_after.is_some() && self.containers.get(ix).is_some_and(restarts)
    }

    fn stop_for_restart(&mut self, now: Time, ix: ContainerIx, out: &mut Outbox) {
        if !self.is_restarting(ix) {
            return;
        }
        let order = KillOrder {
            reason: KillReason::AllContainersRestarting,
            grace: GraceSources::default().choose(),
            message: MESSAGE.to_owned(),
            in_turn: self.containers[ix].role() == Role::Sidecar,
        };
        self.with(now, ix, out, |it, scope| {
            if !it.kill(scope, order) {
                it.wait_for_turn();
            }
        });
    }

    /// One step of a pod whose containers end so that all of them can restart.
    pub(super) fn step_restart(&mut self, now: Time, out: &mut Outbox) -> bool {
        let mut advanced = false;
        for ix in 0..self.containers.len() {
            let container = &self.containers[ix];
            if !container.is_terminating() {
                // It may have been created or started since the restart began.
                self.stop_for_restart(now, ix, out);
                advanced |= self.containers[ix].is_terminating() && self.is_restarting(ix);
            } else if container.role() == Role::Sidecar && self.is_turn_of(ix) {
                advanced |= self.with(now, ix, out, Container::take_turn).unwrap_or(false);
            }
        }
        let ended = self.reset_for_restart();
        if ended {
            out.transitions.push(Transition::StatusChanged);
        }
        ended || advanced
    }

    /// Lets all containers begin again if they are to and all of them have ended.
    pub(super) fn reset_for_restart(&mut self) -> bool {
        let restarts = |it: &Container| it.role() != Role::Ephemeral;
        let left = self.containers.iter().any(|it| restarts(it) && it.is_alive());
        if left || self.restarting_after.take().is_none() {
            return false;
        }
        let containers = self.containers.iter_mut();
        containers.filter(|it| restarts(it)).for_each(Container::reset);
        true
    }
}
