//! The machine goes down: what a pod does until then, and what is to become of it.
//!
//! A pod of a cluster ends and has failed. One that belongs to its machine is stopped in the same order and keeps its
//! place: nothing of it is started while it waits, and it begins anew, without a back-off, with the next agent.

use super::PodMachine;
use crate::container::Container;
use crate::io::{AfterShutdown, Outbox};
use crate::line::KillReason;
use crate::plan::Role;
use crate::termination::{Grace, GraceSources, KillOrder};
use crate::time::{Span, Time};

/// As a kubelet writes them.
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

impl PodMachine {
    pub(super) fn shut_down(&mut self, now: Time, left: Span, then: AfterShutdown, out: &mut Outbox) {
        if self.phase.is_terminal() {
            return;
        }
        let grace = GraceSources {
            forced: Some(self.plan.grace.map_or(left, |own| own.min(left))),
            ..GraceSources::default()
        }
        .choose();
        match then {
            AfterShutdown::BeginsAnew if self.end.is_none() => {
                self.awaits_boot = true;
                for ix in 0..self.containers.len() {
                    self.stop_for_shutdown(now, ix, grace, out);
                }
            }
            AfterShutdown::BeginsAnew => self.begin_end(now, KillReason::NodeShutdown, grace, out),
            AfterShutdown::Failed => {
                self.fail(REASON, MESSAGE.to_owned());
                crate::summary::add_disruption(&mut self.conditions, MESSAGE, now);
                self.begin_end(now, KillReason::NodeShutdown, grace, out);
            }
        }
    }

    fn stop_for_shutdown(&mut self, now: Time, ix: usize, grace: Grace, out: &mut Outbox) {
        let container = &self.containers[ix];
        let order = KillOrder {
            reason: KillReason::NodeShutdown,
            grace,
            message: format!("Stopping container {}", container.plan().name),
            in_turn: container.role() == Role::Sidecar,
        };
        self.with(now, ix, out, |it, scope| {
            if !it.kill(scope, order) {
                it.wait_for_turn();
            }
        });
    }

    /// One step of a pod that waits for the machine to go down.
    pub(super) fn step_shutdown(&mut self, now: Time, out: &mut Outbox) -> bool {
        let mut advanced = false;
        for ix in 0..self.containers.len() {
            let container = &self.containers[ix];
            if container.running().is_some() && !container.is_terminating() {
                // It was being started when the shutdown began. There may be no time left for its own grace period.
                let grace = GraceSources::default().choose();
                self.stop_for_shutdown(now, ix, grace, out);
                return true;
            }
            self.containers[ix].wait_for_turn();
            if self.containers[ix].role() == Role::Sidecar && self.is_turn_of(ix) {
                advanced |= self.with(now, ix, out, Container::take_turn).unwrap_or(false);
            }
        }
        advanced
    }
}
