//! How long to wait before a container is started again.
//!
//! The back-off is not counted in restarts: it moves on with every start that follows an ended life, doubling from
//! its first value to its greatest, and is forgotten when it has not changed for a while.

use serde::{Deserialize, Serialize};

use crate::time::{Span, Time};

/// A back-off that has not changed for this long is nothing again.
const FORGOTTEN_AFTER: Span = Span::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct BackOff {
    current: Span,
    changed_at: Time,
}

/// Two ends of lives that a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The life that has just ended.
    pub(crate) newest: Time,
    /// The last life that had ended when the decision was made: the newest itself after an exit, the one before it
    /// after a probe's kill.
    pub(crate) decided_on: Option<Decided>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    OnNewest,
    OnEarlier(Time),
}

impl BackOff {
    /// When the next life may begin; none if at once.
    pub(crate) fn wait_until(&self, ends: Ends, now: Time) -> Option<Time> {
        let current = self.current_at(now);
        let waits = match ends.decided_on? {
            Decided::OnNewest => !current.is_zero(),
            Decided::OnEarlier(earlier) => ends.newest.since(earlier) < current,
        };
        waits.then(|| ends.newest + current).filter(|until| *until > now)
    }

    /// A life that followed an ended one begins.
    pub(crate) fn advance(&mut self, now: Time, initial: Span, max: Span) {
        let current = self.current_at(now);
        let next = if current.is_zero() { initial } else { current * 2 };
        self.current = next.min(max);
        self.changed_at = now;
    }

    fn current_at(&self, now: Time) -> Span {
        if now.since(self.changed_at) >= FORGOTTEN_AFTER {
            Span::ZERO
        } else {
            self.current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: Span = Span::from_secs(10);
    const MAX: Span = Span::from_secs(300);

    fn at(secs: u64) -> Time {
        Time::ZERO + Span::from_secs(secs)
    }

    /// A container that exits `life` seconds after each start: the seconds it waits before each restart.
    fn waits(life: u64, restarts: usize) -> Vec<u64> {
        let mut backoff = BackOff::default();
        let mut now = at(0);
        (0..restarts)
            .map(|_| {
                now = now + Span::from_secs(life);
                let exit = now;
                let ends = Ends {
                    newest: exit,
                    decided_on: Some(Decided::OnNewest),
                };
                now = backoff.wait_until(ends, now).unwrap_or(now);
                backoff.advance(now, INITIAL, MAX);
                now.since(exit).as_micros() / 1_000_000
            })
            .collect()
    }

    #[test]
    fn exits_wait_longer_each_time_up_to_the_greatest() {
        assert_eq!(waits(2, 8), [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_container_that_ran_for_ten_minutes_starts_afresh() {
        assert_eq!(waits(601, 3), [0, 0, 0]);
    }

    #[test]
    fn a_probe_kill_is_measured_against_the_life_before() {
        let mut backoff = BackOff::default();
        let first = Ends {
            newest: at(4),
            decided_on: None,
        };
        assert_eq!(backoff.wait_until(first, at(4)), None);
        let second = Ends {
            newest: at(8),
            decided_on: Some(Decided::OnEarlier(at(4))),
        };
        assert_eq!(backoff.wait_until(second, at(8)), None);
        backoff.advance(at(8), INITIAL, MAX);
        let third = Ends {
            newest: at(12),
            decided_on: Some(Decided::OnEarlier(at(8))),
        };
        assert_eq!(backoff.wait_until(third, at(12)), Some(at(22)));
        let served_long = Ends {
            newest: at(19),
            decided_on: Some(Decided::OnEarlier(at(8))),
        };
        assert_eq!(backoff.wait_until(served_long, at(19)), None);
    }
}
