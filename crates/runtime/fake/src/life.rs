//! When and how a scripted container ends: arithmetic only.

use std::time::Duration;

use pulselet_runtime::{Signal, exit_code};
use tokio::time::Instant;

use crate::script::LifeScript;

/// A stop that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop {
    /// When the stop signal was sent; `None` if it was SIGKILL from the start.
    pub(crate) signalled: Option<Instant>,
    pub(crate) deadline: Instant,
}

impl Stop {
    /// A further request can only bring the deadline forward.
    pub(crate) fn again(before: Option<Self>, now: Instant, grace: Duration, signal: Signal) -> Self {
        let deadline = now + grace;
        match before {
            Some(before) => Self {
                deadline: before.deadline.min(deadline),
                ..before
            },
            None if grace.is_zero() || signal.is_kill() => Self {
                signalled: None,
                deadline: now,
            },
            None => Self {
                signalled: Some(now),
                deadline,
            },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) at: Instant,
    pub(crate) code: i32,
    pub(crate) killed_after_grace: bool,
}

/// How it will end, as far as is known now; `None` if it does not end by itself.
pub(crate) fn ending(
    script: &LifeScript,
    started: Instant,
    signal: Signal,
    stop: Option<Stop>,
) -> Option<Ending> {
    let natural = script.exits.map(|(age, code)| Ending {
        at: started + age,
        code,
        killed_after_grace: false,
    });
    let stopped = stop.map(|stop| match stop.signalled {
        None => Ending {
            at: stop.deadline,
            code: exit_code::KILLED,
            killed_after_grace: false,
        },
        Some(at) if script.obeys(signal) && at + script.stops_in <= stop.deadline => Ending {
            at: at + script.stops_in,
            code: 0,
            killed_after_grace: false,
        },
        Some(_) => Ending {
            at: stop.deadline,
            code: exit_code::KILLED,
            killed_after_grace: true,
        },
    });
    [natural, stopped]
        .into_iter()
        .flatten()
        .min_by_key(|ending| ending.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_earliest_end_counts() {
        let now = Instant::now();
        let check = |script: &LifeScript, grace: u32, signal: Signal| {
            let stop = Stop::again(None, now, SECOND * grace, signal);
            ending(script, now, signal, Some(stop))
                .map(|end| (end.at - now, end.code, end.killed_after_grace))
        };
        let slow = LifeScript {
            stops_in: 5 * SECOND,
            ..LifeScript::default()
        };
        assert_eq!(check(&slow, 30, Signal::TERM), Some((5 * SECOND, 0, false)));
        assert_eq!(check(&slow, 3, Signal::TERM), Some((3 * SECOND, 137, true)));
        assert_eq!(check(&slow, 0, Signal::TERM), Some((Duration::ZERO, 137, false)));
        assert_eq!(check(&slow, 30, Signal::KILL), Some((Duration::ZERO, 137, false)));
        assert_eq!(
            check(&LifeScript::stubborn(), 30, Signal::TERM),
            Some((30 * SECOND, 137, true))
        );
        assert_eq!(
            check(&LifeScript::exiting(2 * SECOND, 4), 30, Signal::TERM),
            Some((Duration::ZERO, 0, false))
        );
        assert_eq!(
            ending(&LifeScript::exiting(2 * SECOND, 4), now, Signal::TERM, None).map(|end| end.code),
            Some(4)
        );
        assert_eq!(ending(&LifeScript::default(), now, Signal::TERM, None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_shortened_never_lengthened() {
        let now = Instant::now();
        let first = Stop::again(None, now, 30 * SECOND, Signal::TERM);
        let longer = Stop::again(Some(first), now, 90 * SECOND, Signal::TERM);
        assert_eq!(longer, first);
        let none = Stop::again(Some(first), now, Duration::ZERO, Signal::TERM);
        assert_eq!(
            none,
            Stop {
                signalled: Some(now),
                deadline: now
            }
        );
    }
}
