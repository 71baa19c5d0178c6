//! One step after the other towards what the pod should be.

use std::sync::Arc;

use super::{PodMachine, Sandbox, push_line};
use crate::container::{Container, PodView, Stage};
use crate::io::{Action, Outbox};
use crate::line::{KillReason, LineBody};
use crate::plan::{PodPlan, Role, Settings};
use crate::pressure::PressureChange;
use crate::termination::{GraceSources, KillOrder};
use crate::time::Time;
use crate::transition::Transition;

impl PodMachine {
    /// Takes every step that the state allows, then reports what has changed.
    pub(super) fn settle(&mut self, now: Time, out: &mut Outbox) {
        out.dirty = true;
        while self.step(now, out) {}
        self.refresh(now, out);
        let view = self.view();
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, |it, scope| it.sync_probers(scope, view));
        }
        self.close(now, out);
    }

    pub(super) fn view(&self) -> PodView {
        PodView {
            finished: self.phase.is_terminal(),
            ending: self.awaits_boot || self.end.is_some_and(|end| end.reason != KillReason::Completed),
        }
    }

    /// One step towards what the pod should be; false when there is none.
    pub(super) fn step(&mut self, now: Time, out: &mut Outbox) -> bool {
        if self.end.is_some() {
            return self.step_end(now, out);
        }
        if self.awaits_boot {
            return self.step_shutdown(now, out);
        }
        match self.sandbox {
            Sandbox::Absent => self.run_sandbox(out),
            // One that was stopped although the pod stays was stopped for a shutdown that is over.
            Sandbox::Lost | Sandbox::Stopped => self.recover_sandbox(out),
            Sandbox::Ready if self.restarting_after.is_some() => self.step_restart(now, out),
            Sandbox::Ready => self.replace_image(now, out) || self.step_containers(now, out),
            Sandbox::Starting | Sandbox::Failed { .. } | Sandbox::Stopping => false,
        }
    }

    pub(super) fn run_sandbox(&mut self, out: &mut Outbox) -> bool {
        out.actions.push(Action::RunSandbox {
            attempt: self.sandbox_attempts,
        });
        self.sandbox_attempts += 1;
        self.sandbox = Sandbox::Starting;
        true
    }

    pub(super) fn recover_sandbox(&mut self, out: &mut Outbox) -> bool {
        if self.containers.iter().any(Container::is_alive) {
            return false;
        }
        let redo = self
            .containers
            .iter()
            .any(|it| it.role() == Role::Main && !it.is_finished());
        self.reset_for_restart();
        for container in &mut self.containers {
            if !container.is_finished() || (redo && container.role() == Role::Init) {
                container.reset();
            }
        }
        // Containers that had ended are to run once more, which others see.
        out.transitions.push(Transition::StatusChanged);
        self.run_sandbox(out)
    }

    /// Ends one life whose image the manifest does not name any more.
    fn replace_image(&mut self, now: Time, out: &mut Outbox) -> bool {
        let Some(ix) = self.containers.iter().position(Container::has_old_image) else {
            return false;
        };
        let container = &self.containers[ix];
        let name = &container.plan().name;
        let message = match container.role() {
            Role::Main | Role::Ephemeral => {
                format!("Container {name} definition changed, will be restarted")
            }
            Role::Init | Role::Sidecar => format!("Init container {name} definition changed"),
        };
        let grace = GraceSources {
            pod: self.plan.grace,
            ..GraceSources::default()
        }
        .choose();
        let order = KillOrder {
            reason: KillReason::ImageChanged,
            grace,
            message,
            in_turn: false,
        };
        self.with(now, ix, out, |it, scope| it.kill(scope, order));
        true
    }

    pub(super) fn step_containers(&mut self, now: Time, out: &mut Outbox) -> bool {
        // Whoever wants to look at a pod does not wait for its turn.
        let waits = |it: &Container| it.role() == Role::Ephemeral && *it.stage() == Stage::Pending;
        if let Some(ix) = self.containers.iter().position(waits) {
            self.with(now, ix, out, |it, scope| it.begin(scope, false));
            return true;
        }
        for ix in 0..self.containers.len() {
            let container = &self.containers[ix];
            if *container.stage() == Stage::Pending {
                self.with(now, ix, out, |it, scope| it.begin(scope, false));
                return true;
            }
            match container.role() {
                Role::Init if container.has_succeeded() => {}
                Role::Init if container.is_finished() => return self.complete(now, out),
                Role::Sidecar if container.was_started => {}
                Role::Init | Role::Sidecar => return false,
                Role::Main | Role::Ephemeral => {}
            }
        }
        let all_done = self.mains().all(Container::is_finished);
        all_done && self.complete(now, out)
    }

    pub(super) fn mains(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|it| it.role() == Role::Main)
    }

    /// Does one thing that is due, other than a probe; false when there is none.
    pub(super) fn fire(&mut self, now: Time, out: &mut Outbox) -> bool {
        if self.sandbox_retry().is_some_and(|at| at <= now) {
            self.sandbox = Sandbox::Absent;
            return true;
        }
        if self.active_until().is_some_and(|at| at <= now) {
            self.exceed_deadline(now, out);
            return true;
        }
        for ix in 0..self.containers.len() {
            let turn = self.is_turn_of(ix);
            if self.with(now, ix, out, |it, scope| it.advance(scope, turn)) == Some(true) {
                return true;
            }
        }
        false
    }

    pub(super) fn advance_probes(&mut self, now: Time, out: &mut Outbox) {
        let view = self.view();
        for ix in 0..self.containers.len() {
            if self.containers[ix].next_deadline().is_some_and(|at| at <= now) {
                self.with(now, ix, out, |it, scope| it.advance_probes(scope, view));
            }
        }
    }

    pub(super) fn resume(&mut self, now: Time, out: &mut Outbox) {
        push_line(now, out, LineBody::AgentRestarted);
        self.awaits_boot = false;
        match self.sandbox {
            Sandbox::Starting => {
                let attempt = self.sandbox_attempts.saturating_sub(1);
                out.actions.push(Action::RunSandbox { attempt });
            }
            Sandbox::Stopping => out.actions.push(Action::StopSandbox),
            Sandbox::Absent | Sandbox::Failed { .. } | Sandbox::Ready | Sandbox::Lost | Sandbox::Stopped => {}
        }
        let mut random = self.random;
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, |it, scope| it.resume(scope, || draw(&mut random)));
        }
        self.random = random;
    }

    pub(super) fn replan(
        &mut self,
        now: Time,
        plan: Arc<PodPlan>,
        running: &PodPlan,
        settings: Settings,
        out: &mut Outbox,
    ) {
        self.settings = settings;
        for (ix, plan) in plan.containers.iter().enumerate() {
            let running = running.containers.get(ix);
            self.with(now, ix, out, |it, scope| it.replan(scope, plan, running));
        }
        // Only ephemeral ones are added, behind the others.
        let known = self.containers.len();
        let added = plan.containers.iter().skip(known).map(Arc::clone);
        self.containers.extend(added.map(Container::new));
        self.plan = plan;
    }

    /// Probes with a period below one second give way to the node's pressure, or come back. Nothing else changes.
    pub(super) fn pace(&mut self, now: Time, change: PressureChange, out: &mut Outbox) {
        let pace = change.pace();
        if self.settings.pace == pace {
            return;
        }
        self.settings.pace = pace;
        for ix in 0..self.containers.len() {
            self.with(now, ix, out, |it, scope| it.pace(scope));
        }
        self.report_pressure(now, change, out);
    }

    pub(super) fn report_pressure(&self, now: Time, change: PressureChange, out: &mut Outbox) {
        if self.has_fast_probe() {
            let message = format!("{}: {}", change.reason(), change.message());
            push_line(now, out, LineBody::Warning { message });
        }
    }
}

/// The next number of a splitmix64 generator, as a fraction below one.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}
