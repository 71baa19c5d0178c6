//! The node's own lateness, and what follows from it: probes below one second give way first.
//!
//! When to stretch is the engine's to decide ([`ProbePressure`]); here lateness is measured, pods that it concerns are told,
//! and the decision is made known as a metric, an event of the node and a line of its log.
//!
//! [`ProbePressure`]: pulselet_engine::ProbePressure

use std::time::Duration;

use pulselet_engine::plan::ProbePace;
use pulselet_engine::{Input, PodKey, PodMachine, PressureChange, ProbePressure, Settings, Time};
use pulselet_vocabulary::Severity;

use super::Agent;
use crate::publish::feed::NodeEvent;

/// What the agent keeps about its lateness.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    pressure: ProbePressure,
    /// That probes are stretched was made known as an event.
    is_announced: bool,
}

impl Lateness {
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.pressure.next_deadline()
    }
}

impl Agent {
    /// What new plans and new pods go by.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            pace: self.lateness.pressure.pace(),
            ..self.config.settings
        }
    }

    /// A probe began so long after its turn, which its report tells.
    pub(super) fn probe_was_late(&mut self, late: Duration) {
        self.metrics.lateness(late);
        let now = self.jobs.clock.now();
        let change = self.lateness.pressure.observe(now, late.into());
        self.follow_pressure(change);
    }

    /// Time alone may end the pressure.
    pub(super) fn advance_pressure(&mut self, now: Time) {
        if self.lateness.next_deadline().is_some_and(|due| due <= now) {
            let change = self.lateness.pressure.advance(now);
            self.follow_pressure(change);
        }
    }

    fn follow_pressure(&mut self, change: Option<PressureChange>) {
        let Some(change) = change else { return };
        let reason = change.reason();
        match change {
            PressureChange::Stretched => tracing::warn!(reason, "{}", change.message()),
            PressureChange::Recovered => tracing::info!(reason, "{}", change.message()),
        }
        self.metrics.pace(change.pace());
        let concerned = self.pods.iter().filter(|(_, pod)| pod.has_fast_probe());
        let concerned: Vec<PodKey> = concerned.map(|(key, _)| key).collect();
        match change {
            PressureChange::Stretched if concerned.is_empty() => {}
            PressureChange::Stretched => self.announce_stretched(),
            PressureChange::Recovered if self.lateness.is_announced => {
                self.lateness.is_announced = false;
                self.announce(Severity::Normal, change);
            }
            PressureChange::Recovered => {}
        }
        for key in concerned {
            self.feed(key, Input::Pressure { change });
        }
    }

    /// A pod has come to a node that may be late.
    pub(super) fn begins_under_pressure(&mut self, pod: &PodMachine) {
        if pod.is_stretched() && pod.has_fast_probe() {
            self.announce_stretched();
        }
    }

    /// An agent that is gone had stretched the probes of this pod, and announced it: this goes on.
    pub(super) fn resume_pressure(&mut self, pod: &PodMachine) {
        let goes_on = match self.lateness.pressure.pace() {
            ProbePace::Planned => pod.is_stretched() && pod.has_fast_probe(),
            ProbePace::Stretched => false,
        };
        if goes_on {
            self.lateness = Lateness {
                pressure: ProbePressure::stretched(self.jobs.clock.now()),
                is_announced: true,
            };
            self.metrics.pace(ProbePace::Stretched);
        }
    }

    fn announce_stretched(&mut self) {
        if !self.lateness.is_announced {
            self.lateness.is_announced = true;
            self.announce(Severity::Warning, PressureChange::Stretched);
        }
    }

    fn announce(&self, severity: Severity, change: PressureChange) {
        if let Some(feed) = &self.api_feed {
            let clock = self.jobs.clock;
            feed.node_event(NodeEvent {
                severity,
                reason: change.reason(),
                message: change.message().to_owned(),
                at: clock.wall(clock.now()),
            });
        }
    }
}
