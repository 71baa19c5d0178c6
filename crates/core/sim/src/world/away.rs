//! A runtime that does not answer, and time stamps read by a clock that has jumped.

use pulselet_engine::io::{Action, CreateError, ImageFailure, Input};
use pulselet_engine::time::Time;

use super::{Arrival, Happening, Process, Rank, World};

const AWAY: &str = "the runtime does not answer";

impl World {
    /// What becomes of an action while the runtime is away until `back`; false if it does not need the runtime. Beginnings
    /// fail, ends are tried until they happen.
    pub(super) fn carry_out_later(&mut self, now: Time, back: Time, action: &Action) -> bool {
        match action {
            Action::RunSandbox { .. } => {
                let message = AWAY.to_owned();
                self.answer(now, Input::SandboxFailed { message });
            }
            Action::EnsureImage { container } => {
                let failed = Input::ImageFailed {
                    container: *container,
                    error: ImageFailure::ErrImagePull,
                    message: AWAY.to_owned(),
                };
                self.answer(now, failed);
            }
            Action::Create { life } => {
                let failed = Input::CreateFailed {
                    life: *life,
                    reason: CreateError::CreateContainerError,
                    message: AWAY.to_owned(),
                };
                self.answer(now, failed);
            }
            Action::Start { .. } | Action::StopSandbox | Action::Kill { .. } => {
                self.ask_later(back, action.clone());
            }
            Action::Stop { life, grace } => {
                let (life, grace) = (*life, grace.saturating_sub(back.since(now)));
                let later = if grace.is_zero() {
                    Action::Kill { life }
                } else {
                    Action::Stop { life, grace }
                };
                self.ask_later(back, later);
            }
            // Commands know that they cannot be run; all else goes to the pod itself.
            Action::Probe { .. }
            | Action::Hook { .. }
            | Action::CancelHook { .. }
            | Action::Remove { .. } => {
                return false;
            }
        }
        true
    }

    fn ask_later(&mut self, back: Time, action: Action) {
        let agent = self.agent;
        self.queue
            .push(back, Rank::World, Happening::TryAgain { agent, action });
    }

    /// The runtime is back. What may have begun after all is ended before the agent is told that it did not begin.
    pub(super) fn try_again(&mut self, now: Time, action: &Action) -> Arrival {
        if let Action::Start { life } = action {
            let life = *life;
            if self.processes.get(&life).is_some_and(Process::is_new) {
                self.processes.remove(&life);
            }
            let message = AWAY.to_owned();
            self.answer(now, Input::StartFailed { life, message });
        } else {
            self.carry_out(now, action);
        }
        Arrival::Silence
    }

    /// An observation as the agent takes it, whose wall clock may not be the one that the stamps were made with.
    pub(super) fn with_read_stamps(&self, now: Time, mut input: Input) -> Input {
        match &mut input {
            Input::Running { at, .. } => *at = self.faults.read_stamp(now, *at),
            Input::Exited { exit, .. } => exit.at = self.faults.read_stamp(now, exit.at),
            Input::SandboxReady
            | Input::SandboxFailed { .. }
            | Input::VolumesNotReady
            | Input::SandboxLost
            | Input::SandboxStopped
            | Input::ImagePulling { .. }
            | Input::ImageReady { .. }
            | Input::ImageFailed { .. }
            | Input::Created { .. }
            | Input::CreateFailed { .. }
            | Input::StartFailed { .. }
            | Input::ProbeDone { .. }
            | Input::HookDone { .. }
            | Input::Signalled { .. }
            | Input::StopSignalUnhandled { .. }
            | Input::Delete { .. }
            | Input::Stop { .. }
            | Input::Evict { .. }
            | Input::NodeShutdown { .. }
            | Input::ShutdownCancelled
            | Input::Restart { .. }
            | Input::AgentRestarted
            | Input::Replan { .. }
            | Input::Pressure { .. } => {}
        }
        input
    }
}
