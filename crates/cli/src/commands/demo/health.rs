//! When a demo is healthy: never before it is up, not between its failure and its recovery.

use std::time::Duration;

use tokio::time::Instant;

use crate::cli::DemoArgs;

/// How the demo answers at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Good,
    /// It answers that it is not well.
    Failing,
    /// It takes connections and says nothing.
    Deadlocked,
}

#[derive(Debug)]
pub(super) struct Timeline {
    started: Instant,
    start_after: Duration,
    fail_at: Option<Duration>,
    deadlock_at: Option<Duration>,
    recover_at: Option<Duration>,
}

impl Timeline {
    pub(super) fn new(started: Instant, args: &DemoArgs) -> Self {
        Self {
            started,
            start_after: args.start_after,
            fail_at: args.fail_at,
            deadlock_at: args.deadlock_at,
            recover_at: args.recover_at,
        }
    }

    pub(super) fn now(&self) -> Health {
        self.at(self.started.elapsed())
    }

    fn at(&self, age: Duration) -> Health {
        let reached = |at: Option<Duration>| at.is_some_and(|at| at <= age);
        if reached(self.recover_at) {
            Health::Good
        } else if reached(self.deadlock_at) {
            Health::Deadlocked
        } else if reached(self.fail_at) {
            Health::Failing
        } else {
            Health::Good
        }
    }

    /// The moments at which it becomes healthy (true) or unhealthy, in order.
    pub(super) fn switches(&self) -> Vec<(Instant, bool)> {
        let sick = [self.fail_at, self.deadlock_at].into_iter().flatten().min();
        let well_again = self.recover_at.filter(|at| sick.is_some_and(|sick| sick < *at));
        let mut switches = vec![(self.start_after, true)];
        switches.extend(sick.map(|at| (at.max(self.start_after), false)));
        switches.extend(well_again.map(|at| (at.max(self.start_after), true)));
        switches
            .into_iter()
            .map(|(age, healthy)| (self.started + age, healthy))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(fail_at: Option<u64>, deadlock_at: Option<u64>, recover_at: Option<u64>) -> Timeline {
        Timeline {
            started: Instant::now(),
            start_after: Duration::from_secs(1),
            fail_at: fail_at.map(Duration::from_secs),
            deadlock_at: deadlock_at.map(Duration::from_secs),
            recover_at: recover_at.map(Duration::from_secs),
        }
    }

    #[test]
    fn it_fails_deadlocks_and_recovers_in_turn() {
        let timeline = timeline(Some(5), Some(8), Some(10));
        let at = |secs| timeline.at(Duration::from_secs(secs));
        assert_eq!(
            [at(4), at(5), at(8), at(10)],
            [Health::Good, Health::Failing, Health::Deadlocked, Health::Good]
        );
        let healthy: Vec<bool> = timeline
            .switches()
            .into_iter()
            .map(|(_, healthy)| healthy)
            .collect();
        assert_eq!(healthy, [true, false, true]);
    }

    #[test]
    fn a_recovery_without_a_failure_is_no_switch() {
        assert_eq!(timeline(None, None, Some(3)).switches().len(), 1);
    }
}
