//! When a worker probes: a grid of counted ticks, and the looks before the first of them.
//!
//! It always holds:
//! - counted ticks stand at `anchor + n x period`, n = 1, 2, ...: they do not drift, and each grid point is used at
//!   most once, so `threshold` failures take at least `threshold x period`;
//! - looks stand only before the first counted tick;
//! - at most one probe is under way; one that overran grid points is followed by a single tick at once.

use serde::{Deserialize, Serialize};

use crate::plan::Handler;
use crate::time::{Span, Time};

/// Looks after the clock's start, while they fail. A command costs more, so it looks less often.
const LOOKS: [Span; 7] = [
    Span::ZERO,
    Span::from_millis(25),
    Span::from_millis(50),
    Span::from_millis(100),
    Span::from_millis(200),
    Span::from_millis(400),
    Span::from_millis(800),
];
const EXEC_LOOKS: [Span; 2] = [Span::ZERO, Span::from_millis(500)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    anchor: Time,
    period: Span,
    /// The next grid point; always after the last one used.
    next: Time,
    looks: Looks,
    /// A probe that is due out of turn.
    owed: Option<Due>,
    under_way: Option<Due>,
}

/// The looks still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Looks {
    Over,
    /// The place of the next one in its list.
    Next {
        start: Time,
        list: LookList,
        place: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum LookList {
    /// Only the one at the clock's start.
    First,
    Network,
    Exec,
}

impl LookList {
    fn spans(self) -> &'static [Span] {
        match self {
            Self::First => &LOOKS[..1],
            Self::Network => &LOOKS,
            Self::Exec => &EXEC_LOOKS,
        }
    }
}

/// A probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    /// The moment it stands for: its place on the grid, or when it was found to be owed.
    pub at: Time,
    pub turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turn {
    /// Its success counts, its failure does not.
    Look,
    Tick,
}

/// Which looks a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookPolicy {
    None,
    FirstOnly,
    All(Handler),
}

impl Schedule {
    /// A clock that starts at `start`.
    pub fn new(start: Time, period: Span, policy: LookPolicy) -> Self {
        let list = match policy {
            LookPolicy::None => None,
            LookPolicy::FirstOnly => Some(LookList::First),
            LookPolicy::All(Handler::Exec) => Some(LookList::Exec),
            LookPolicy::All(Handler::Http | Handler::Tcp | Handler::Grpc) => Some(LookList::Network),
        };
        let looks = list.map_or(Looks::Over, |list| Looks::Next {
            start,
            list,
            place: 0,
        });
        Self {
            anchor: start,
            period,
            next: start + period,
            looks,
            owed: None,
            under_way: None,
        }
    }

    pub fn period(&self) -> Span {
        self.period
    }

    /// The next probe; none while one is under way.
    pub fn due(&self) -> Option<Due> {
        if self.under_way.is_some() {
            return None;
        }
        if let Some(owed) = self.owed {
            return Some(owed);
        }
        let look = self.next_look().map(|at| Due { at, turn: Turn::Look });
        Some(look.unwrap_or(Due {
            at: self.next,
            turn: Turn::Tick,
        }))
    }

    fn next_look(&self) -> Option<Time> {
        let Looks::Next { start, list, place } = self.looks else {
            return None;
        };
        let at = start + *list.spans().get(usize::from(place))?;
        (at < self.next).then_some(at)
    }

    /// Takes the probe that is due at `now`, if there is one.
    pub fn begin(&mut self, now: Time) -> Option<Due> {
        let due = self.due().filter(|due| due.at <= now)?;
        self.owed = None;
        self.under_way = Some(due);
        self.pass(now);
        Some(due)
    }

    /// Leaves grid points and looks up to `now` behind. Those in between are not made up for: a tick stands for all.
    fn pass(&mut self, now: Time) {
        if self.next <= now {
            self.looks = Looks::Over;
            self.next = self.grid_point_after(now);
        } else if let Looks::Next { start, list, place } = &mut self.looks {
            let past = list
                .spans()
                .iter()
                .take_while(|span| *start + **span <= now)
                .count();
            *place = u8::try_from(past).unwrap_or(u8::MAX);
        }
    }

    fn grid_point_after(&self, now: Time) -> Time {
        let passed = now.since(self.anchor).as_micros() / self.period.as_micros().max(1);
        self.anchor + self.period * (passed + 1)
    }

    /// Ends the probe under way.
    pub fn complete(&mut self, now: Time, succeeded: bool) -> Option<Due> {
        let done = self.under_way.take()?;
        if succeeded {
            self.looks = Looks::Over;
        }
        if self.next <= now {
            self.owed = Some(Due {
                at: now,
                turn: Turn::Tick,
            });
        }
        self.pass(now);
        Some(done)
    }

    /// Restarts the grid with another period at the tick or look that caused the change.
    pub fn set_period(&mut self, anchor: Time, now: Time, period: Span) {
        self.looks = Looks::Over;
        self.anchor = anchor;
        self.period = period;
        self.next = anchor + period;
        self.owed = None;
        if self.next <= now {
            self.owed = Some(Due {
                at: now,
                turn: Turn::Tick,
            });
            self.pass(now);
        }
    }

    /// The agent was away: what was under way or is overdue comes once more, `delay` from now, and the grid is kept.
    /// What is due at this very moment is on time.
    pub fn resume(&mut self, now: Time, delay: Span) {
        if self.due().is_some_and(|due| due.at >= now) {
            return;
        }
        let interrupted = self.under_way.take();
        let turn = if self.next <= now {
            Turn::Tick
        } else if let Some(due) = interrupted.or(self.owed) {
            due.turn
        } else if self.next_look().is_some_and(|at| at <= now) {
            Turn::Look
        } else {
            return;
        };
        self.pass(now);
        let at = now + delay;
        self.owed = Some(Due { at, turn });
        // The owed tick stands for the grid points before it.
        if turn == Turn::Tick && self.next <= at {
            self.next = self.grid_point_after(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Span = Span::from_secs(1);

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    /// Runs probes that take `latency` and never succeed until `end`; returns their starts with the look marked.
    fn starts(mut schedule: Schedule, latency: u64, end: u64) -> Vec<String> {
        let mut seen = Vec::new();
        let mut now = Time::ZERO;
        while let Some(due) = schedule.due() {
            now = now.max(due.at);
            if now > at(end) {
                break;
            }
            let begun = schedule.begin(now).expect("it is due");
            let mark = if begun.turn == Turn::Look { "?" } else { "" };
            seen.push(format!("{}{mark}", now.as_micros() / 1000));
            now = now + Span::from_millis(latency);
            schedule.complete(now, false);
        }
        seen
    }

    #[test]
    fn looks_come_before_the_first_tick_only() {
        let network = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        assert_eq!(
            starts(network, 0, 2000),
            ["0?", "25?", "50?", "100?", "200?", "400?", "800?", "1000", "2000"]
        );
        let quick = Schedule::new(Time::ZERO, Span::from_millis(200), LookPolicy::All(Handler::Tcp));
        assert_eq!(starts(quick, 0, 400), ["0?", "25?", "50?", "100?", "200", "400"]);
        let exec = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Exec));
        assert_eq!(starts(exec, 0, 1000), ["0?", "500?", "1000"]);
        let exec_floor = Schedule::new(Time::ZERO, Span::from_millis(500), LookPolicy::All(Handler::Exec));
        assert_eq!(starts(exec_floor, 0, 1000), ["0?", "500", "1000"]);
        let first = Schedule::new(Time::ZERO, PERIOD, LookPolicy::FirstOnly);
        assert_eq!(starts(first, 0, 1000), ["0?", "1000"]);
        let none = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        assert_eq!(starts(none, 0, 1000), ["1000"]);
    }

    #[test]
    fn an_overrun_is_followed_by_one_tick_at_once_and_the_grid_is_kept() {
        let schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        assert_eq!(starts(schedule, 2500, 10_000), ["1000", "3500", "6000", "8500"]);
        let slightly = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        assert_eq!(starts(slightly, 999, 3000), ["1000", "2000", "3000"]);
    }

    #[test]
    fn a_look_that_missed_other_looks_does_not_make_up_for_them() {
        let schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        assert_eq!(
            starts(schedule, 60, 1000),
            ["0?", "100?", "200?", "400?", "800?", "1000"]
        );
    }

    #[test]
    fn a_late_agent_runs_one_tick_for_all_it_missed() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        let due = schedule.begin(at(5300)).expect("overdue");
        assert_eq!(due.at, at(1000));
        schedule.complete(at(5300), false);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(6000)));
    }

    #[test]
    fn after_a_restart_a_look_stays_a_look() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        schedule.begin(at(0)).expect("the first look");
        schedule.resume(at(40), Span::from_millis(100));
        assert_eq!(
            schedule.due(),
            Some(Due {
                at: at(140),
                turn: Turn::Look
            })
        );
        schedule.begin(at(140)).expect("due");
        schedule.complete(at(140), false);
        assert_eq!(
            schedule.due(),
            Some(Due {
                at: at(200),
                turn: Turn::Look
            })
        );
    }

    #[test]
    fn a_tick_at_the_moment_of_a_restart_is_on_time() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        schedule.resume(at(1000), Span::from_millis(300));
        assert_eq!(
            schedule.due(),
            Some(Due {
                at: at(1000),
                turn: Turn::Tick
            })
        );
    }

    #[test]
    fn after_a_restart_an_overdue_tick_comes_once() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        schedule.resume(at(3900), Span::from_millis(300));
        assert_eq!(
            schedule.due(),
            Some(Due {
                at: at(4200),
                turn: Turn::Tick
            })
        );
        schedule.begin(at(4200)).expect("due");
        schedule.complete(at(4200), false);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(5000)));
    }

    #[test]
    fn another_period_counts_from_the_probe_that_caused_it() {
        let mut schedule = Schedule::new(Time::ZERO, Span::from_millis(500), LookPolicy::None);
        let due = schedule.begin(at(500)).expect("due");
        schedule.complete(at(520), true);
        schedule.set_period(due.at, at(520), PERIOD);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(1500)));
    }
}
