//! Whether the agent itself was kept from running, for `overloadGuard`.
//!
//! A liveness time-out is the container's fault only if the agent could run to take the answer. Every timer that
//! fires late is noted; a time-out is forgiven when one was late by more than the probe's period while it was under
//! way.

use std::collections::VecDeque;
use std::time::Duration;

use pulselet_engine::{Span, Time};

/// How often a timer is set only to see whether it fires in time.
pub(super) const BEAT: Duration = Duration::from_millis(100);
/// Stalls remembered; older ones concern probes that have long ended.
const STALLS: usize = 64;
/// Shorter delays are the ordinary noise of a busy machine; no period is as short.
const NOISE: Span = Span::from_millis(150);

#[derive(Debug)]
pub(super) struct Starvation {
    last_beat: Time,
    stalls: VecDeque<Stall>,
}

#[derive(Debug)]
struct Stall {
    ended: Time,
    late: Span,
}

impl Starvation {
    pub(super) fn new(now: Time) -> Self {
        Self {
            last_beat: now,
            stalls: VecDeque::new(),
        }
    }

    /// The loop came round at `now`.
    pub(super) fn beat(&mut self, now: Time) {
        let late = now.since(self.last_beat).saturating_sub(BEAT.into());
        self.last_beat = now;
        if late > NOISE {
            if self.stalls.len() == STALLS {
                self.stalls.pop_front();
            }
            self.stalls.push_back(Stall { ended: now, late });
        }
    }

    /// Whether the agent was late by more than `period` at some moment since `began`.
    pub(super) fn was_late(&self, began: Time, period: Span) -> bool {
        self.stalls
            .iter()
            .any(|stall| stall.ended >= began && stall.late > period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stall_longer_than_the_period_and_during_the_probe_counts() {
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let mut starvation = Starvation::new(at(0));
        for millis in (100..=1_000).step_by(100) {
            starvation.beat(at(millis));
        }
        assert!(!starvation.was_late(at(0), Span::from_millis(200)));
        starvation.beat(at(4_000));
        assert!(starvation.was_late(at(900), Span::from_secs(1)));
        assert!(!starvation.was_late(at(900), Span::from_secs(3)));
        assert!(!starvation.was_late(at(4_100), Span::from_secs(1)));
        for millis in (4_100..40_000).step_by(1_000) {
            starvation.beat(at(millis));
        }
        assert!(starvation.stalls.len() <= STALLS);
    }
}
