//! One life of a container, as the runtime sees it.

use std::sync::Arc;

use pulselet_engine::io::{Exit, Input, LifeKey, StopRecord};
use pulselet_engine::plan::{Hook, ProbeKind};
use pulselet_engine::time::{Span, Time};
use pulselet_vocabulary::{Signal, exit_code};

use crate::scenario::{HookScript, ScriptedHealth, ScriptedLife};

#[derive(Debug)]
pub(crate) struct Process {
    id: Arc<str>,
    stop_signal: Signal,
    /// It is PID 1 of its namespace, to which nothing happens that it does not handle.
    is_init: bool,
    script: ScriptedLife,
    state: State,
}

/// What the stop signal does to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It handles the signal and leaves.
    Leaves,
    /// The signal itself ends it, with this code.
    Ends(i32),
    /// It goes on, or is halted until the kill.
    Stays,
}

#[derive(Debug)]
enum State {
    Created,
    Running {
        since: Time,
        leaves: Option<Leaving>,
        stop: Option<Stopping>,
    },
    Exited {
        since: Option<Time>,
        exit: Exit,
    },
}

/// The exit a container is heading for.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    at: Time,
    code: i32,
}

#[derive(Clone, Debug)]
struct Stopping {
    record: StopRecord,
    kill_at: Time,
}

/// What became of an attempt to stop a container.
pub(crate) enum Signalling {
    /// It was no longer there, or did not survive the signal itself.
    Gone(Exit),
    Sent {
        record: StopRecord,
        exit_at: Option<Time>,
        kill_at: Time,
    },
}

impl Process {
    pub(crate) fn new(id: Arc<str>, stop_signal: Signal, is_init: bool, script: ScriptedLife) -> Self {
        Self {
            id,
            stop_signal,
            is_init,
            script,
            state: State::Created,
        }
    }

    pub(crate) fn is_new(&self) -> bool {
        matches!(self.state, State::Created)
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// None unless it runs.
    pub(crate) fn age(&self, now: Time) -> Option<Span> {
        match self.state {
            State::Running { since, .. } => Some(now.since(since)),
            State::Created | State::Exited { .. } => None,
        }
    }

    pub(crate) fn health(&self, kind: ProbeKind) -> ScriptedHealth {
        self.script.health(kind)
    }

    pub(crate) fn hook(&self, hook: Hook) -> HookScript {
        match hook {
            Hook::PostStart => self.script.hooks.post_start.clone(),
            Hook::PreStop => self.script.hooks.pre_stop.clone(),
        }
    }

    /// When it leaves, as far as that is settled.
    pub(crate) fn exit_at(&self) -> Option<Time> {
        match self.state {
            State::Running { leaves, .. } => leaves.map(|leaving| leaving.at),
            State::Created | State::Exited { .. } => None,
        }
    }

    pub(crate) fn start(&mut self, now: Time) {
        let leaves = self.script.exit.map(|exit| Leaving {
            at: now + exit.at,
            code: exit.code,
        });
        self.state = State::Running {
            since: now,
            leaves,
            stop: None,
        };
    }

    /// Sends the stop signal, once; a later call can only bring the kill forward.
    pub(crate) fn stop(&mut self, now: Time, grace: Span) -> Signalling {
        let effect = self.effect(self.stop_signal);
        let State::Running { leaves, stop, .. } = &mut self.state else {
            return Signalling::Gone(self.kill(now));
        };
        let first = stop.is_none();
        let stopping = stop.get_or_insert_with(|| Stopping {
            record: StopRecord {
                signal: self.stop_signal,
                at: now,
                forced: false,
            },
            kill_at: now + grace,
        });
        stopping.kill_at = stopping.kill_at.min(now + grace);
        let leaving = match effect {
            Effect::Leaves => Some(Leaving {
                at: now + self.script.stops_in,
                code: 0,
            }),
            Effect::Ends(code) => Some(Leaving { at: now, code }),
            Effect::Stays => None,
        };
        if let Some(leaving) = leaving.filter(|_| first)
            && leaves.is_none_or(|other| leaving.at < other.at)
        {
            *leaves = Some(leaving);
        }
        Signalling::Sent {
            record: stopping.record.clone(),
            exit_at: leaves.map(|leaving| leaving.at),
            kill_at: stopping.kill_at,
        }
    }

    /// As the kernel has it: SIGKILL always ends, a handler is asked next, then it matters who the process is.
    fn effect(&self, signal: Signal) -> Effect {
        let handles = match &self.script.handles {
            None => true,
            Some(signals) => signals.contains(&signal),
        };
        if signal.is_kill() {
            Effect::Ends(exit_code::KILLED)
        } else if handles && signal.can_be_caught() {
            Effect::Leaves
        } else if !self.is_init && signal.default_action().ends_process() {
            Effect::Ends(exit_code::of_signal(signal))
        } else {
            Effect::Stays
        }
    }

    /// Ends it whatever it does. One that never ran is taken apart without having run.
    pub(crate) fn kill(&mut self, now: Time) -> Exit {
        match &self.state {
            State::Exited { exit, .. } => exit.clone(),
            State::Created => self.end(now, None, exit_code::KILLED, None),
            State::Running { since, stop, .. } => {
                let since = Some(*since);
                let record = match stop.clone() {
                    Some(Stopping { record, .. }) => StopRecord {
                        forced: true,
                        ..record
                    },
                    None => StopRecord {
                        signal: Signal::KILL,
                        at: now,
                        forced: false,
                    },
                };
                self.end(now, since, exit_code::KILLED, Some(record))
            }
        }
    }

    /// Leaves if this is the moment to.
    pub(crate) fn leave(&mut self, now: Time) -> Option<Exit> {
        let State::Running {
            since,
            leaves: Some(leaving),
            stop,
        } = &self.state
        else {
            return None;
        };
        if leaving.at > now {
            return None;
        }
        let (since, code) = (*since, leaving.code);
        let record = stop.clone().map(|stopping| stopping.record);
        Some(self.end(now, Some(since), code, record))
    }

    /// Whether the runtime itself has to end it now.
    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        match &self.state {
            State::Running {
                stop: Some(stopping), ..
            } => stopping.kill_at <= now,
            State::Running { stop: None, .. } | State::Created | State::Exited { .. } => false,
        }
    }

    fn end(&mut self, now: Time, since: Option<Time>, code: i32, stop: Option<StopRecord>) -> Exit {
        let exit = Exit {
            code,
            at: now,
            oom_killed: false,
            message: None,
            stop,
        };
        self.state = State::Exited {
            since,
            exit: exit.clone(),
        };
        exit
    }

    pub(crate) fn created(&self, life: LifeKey) -> Input {
        Input::Created {
            life,
            id: self.id.clone(),
            stop_signal: Some(self.stop_signal),
        }
    }

    /// All that can be known about it, in the order in which it happened.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Created)
    }

    pub(crate) fn observations(&self, life: LifeKey) -> Vec<Input> {
        let mut inputs = vec![self.created(life)];
        let (since, stop, exit) = match &self.state {
            State::Created => (None, None, None),
            State::Running { since, stop, .. } => {
                (Some(*since), stop.as_ref().map(|stop| &stop.record), None)
            }
            State::Exited { since, exit } => (*since, None, Some(exit.clone())),
        };
        if let Some(at) = since {
            inputs.push(Input::Running { life, at });
        }
        if let Some(record) = stop {
            inputs.push(super::signalled(life, record));
        }
        if let Some(exit) = exit {
            inputs.push(Input::Exited { life, exit });
        }
        inputs
    }
}
