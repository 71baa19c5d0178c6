//! When a worker probes: a grid of counted ticks, and the looks before the first of them.
//!
//! It always holds:
//! - counted ticks stand at `anchor + n x period`, n = 1, 2, ...: they do not drift, and each grid point is used at
//!   most once, so `threshold` failures take at least `threshold x period`;
//! - looks stand only before the first counted tick, and the first that reaches the program is the last;
//! - at most one probe is under way; one that overran grid points is followed by a single tick at once.

use serde::{Deserialize, Serialize};

use crate::plan::Handler;
use crate::time::{Span, Time};

/// Looks after the clock's start, while nobody is there. A command reaches the program whatever it finds, so it looks
/// once.
const LOOKS: [Span; 7] = [
    Span::ZERO,
    Span::from_millis(25),
    Span::from_millis(50),
    Span::from_millis(100),
    Span::from_millis(200),
    Span::from_millis(400),
    Span::from_millis(800),
];

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
            Self::First | Self::Exec => &LOOKS[..1],
            Self::Network => &LOOKS,
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

/// How long a look may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookLimits {
    /// Until it is connected: then the next look is due.
    pub connect: Span,
    /// Until its answer: then the first counted tick is due.
    pub answer: Span,
}

/// How a probe went, as far as its schedule goes by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// The program has seen nothing of it.
    None,
    Failure,
    Success,
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

    /// What bounds a look that begins at `now`.
    pub fn look_limits(&self, now: Time) -> LookLimits {
        LookLimits {
            connect: self.next_look().unwrap_or(self.next).since(now),
            answer: self.next.since(now),
        }
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
        } else {
            let past = self.looks_until(now);
            self.go_to_look(past);
        }
    }

    /// How many looks stand at or before `now`.
    fn looks_until(&self, now: Time) -> usize {
        match self.looks {
            Looks::Over => 0,
            Looks::Next { start, list, .. } => {
                let spans = list.spans().iter();
                spans.take_while(|span| start + **span <= now).count()
            }
        }
    }

    fn go_to_look(&mut self, number: usize) {
        if let Looks::Next { place, .. } = &mut self.looks {
            *place = u8::try_from(number).unwrap_or(u8::MAX).max(*place);
        }
    }

    fn grid_point_after(&self, now: Time) -> Time {
        let passed = now.since(self.anchor).as_micros() / self.period.as_micros().max(1);
        self.anchor + self.period * (passed + 1)
    }

    /// Ends the probe under way.
    pub fn complete(&mut self, now: Time, contact: Contact) -> Option<Due> {
        let done = self.under_way.take()?;
        match done.turn {
            Turn::Look => self.end_look(now, contact),
            Turn::Tick => {
                if self.next <= now {
                    self.owed = Some(Due {
                        at: now,
                        turn: Turn::Tick,
                    });
                }
                self.pass(now);
            }
        }
        Some(done)
    }

    /// A look that nobody saw makes room for the next one, which may be due already; of several that are, one is taken.
    /// The grid stays as it is: a look ends when the first tick is due.
    fn end_look(&mut self, now: Time, contact: Contact) {
        match contact {
            Contact::Failure | Contact::Success => self.looks = Looks::Over,
            Contact::None if self.next <= now => self.looks = Looks::Over,
            Contact::None => {
                let overdue = self.looks_until(now).saturating_sub(1);
                self.go_to_look(overdue);
            }
        }
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

    /// Goes on with another period from the last tick on, for a reason that no probe gave. Looks are left as they are. Grid
    /// points that would be over are left out: many clocks may change at once, and all their ticks with them.
    pub fn change_period(&mut self, now: Time, period: Span) {
        self.anchor = self.next - self.period;
        self.period = period;
        self.next = self.anchor + period;
        if self.next <= now {
            self.next = self.grid_point_after(now);
        }
    }

    /// Whether the clock has started at `now`.
    pub fn has_started(&self, now: Time) -> bool {
        // Before the first tick the anchor is the start itself.
        self.anchor <= now
    }

    /// The agent was away: a tick that was under way or is overdue comes once more, `delay` from now, and the grid is kept.
    /// What is due at this very moment is on time. A clock that was running takes no more looks: whether the program has
    /// seen one is not known.
    pub fn resume(&mut self, now: Time, delay: Span) {
        let interrupted = self.under_way.take();
        if let Looks::Next { start, .. } = self.looks
            && start <= now
        {
            self.looks = Looks::Over;
        }
        // An agent of an earlier version could owe a look.
        self.owed.take_if(|owed| owed.turn == Turn::Look);
        let waits = self.owed.is_some_and(|owed| owed.at >= now);
        let is_overdue = interrupted.is_some_and(|due| due.turn == Turn::Tick)
            || self.owed.is_some_and(|owed| owed.at < now)
            || self.next < now;
        if waits || !is_overdue {
            return;
        }
        self.pass(now);
        let at = now + delay;
        self.owed = Some(Due { at, turn: Turn::Tick });
        // The owed tick stands for the grid points before it.
        if self.next <= at {
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
            schedule.complete(now, Contact::None);
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
        assert_eq!(starts(exec, 0, 1000), ["0?", "1000"]);
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
    fn a_look_that_overran_others_is_followed_by_one_at_once() {
        let schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        assert_eq!(
            starts(schedule, 60, 1000),
            ["0?", "60?", "120?", "200?", "400?", "800?", "1000"]
        );
    }

    #[test]
    fn a_look_has_until_the_next_one_to_connect_and_until_the_tick_to_answer() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        schedule.begin(at(0)).expect("the first look");
        let limits = |connect, answer| LookLimits {
            connect: Span::from_millis(connect),
            answer: Span::from_millis(answer),
        };
        assert_eq!(schedule.look_limits(at(0)), limits(25, 1000));
        schedule.complete(at(25), Contact::None);
        assert_eq!(schedule.begin(at(26)).map(|due| due.at), Some(at(25)));
        assert_eq!(schedule.look_limits(at(26)), limits(24, 974));
    }

    #[test]
    fn a_look_that_nobody_saw_until_the_first_tick_is_followed_by_the_tick() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        schedule.begin(at(0)).expect("the first look");
        schedule.complete(at(1000), Contact::None);
        assert_eq!(schedule.due().map(|due| due.turn), Some(Turn::Tick));
    }

    #[test]
    fn the_first_look_that_the_program_sees_is_the_last() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        for (millis, contact) in [(0, Contact::None), (25, Contact::Failure)] {
            schedule.begin(at(millis)).expect("a look");
            schedule.complete(at(millis), contact);
        }
        let tick = Due {
            at: at(1000),
            turn: Turn::Tick,
        };
        assert_eq!(schedule.due(), Some(tick));
    }

    #[test]
    fn a_look_that_hangs_until_the_first_tick_does_not_move_the_grid() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::All(Handler::Http));
        schedule.begin(at(0)).expect("the first look");
        schedule.complete(at(1003), Contact::Failure);
        let due = schedule.begin(at(1003)).expect("the first tick");
        assert_eq!((due.at, due.turn), (at(1000), Turn::Tick));
        schedule.complete(at(1010), Contact::Failure);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(2000)));
    }

    #[test]
    fn a_late_agent_runs_one_tick_for_all_it_missed() {
        let mut schedule = Schedule::new(Time::ZERO, PERIOD, LookPolicy::None);
        let due = schedule.begin(at(5300)).expect("overdue");
        assert_eq!(due.at, at(1000));
        schedule.complete(at(5300), Contact::Failure);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(6000)));
    }

    #[test]
    fn a_clock_that_ran_takes_no_look_after_a_restart() {
        let mut schedule = Schedule::new(at(10), PERIOD, LookPolicy::All(Handler::Http));
        schedule.resume(at(9), Span::from_millis(100));
        assert_eq!(
            schedule.due(),
            Some(Due {
                at: at(10),
                turn: Turn::Look
            })
        );
        schedule.begin(at(10)).expect("the first look");
        schedule.resume(at(40), Span::from_millis(100));
        assert_eq!(
            schedule.due(),
            Some(Due {
                at: at(1010),
                turn: Turn::Tick
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
        schedule.complete(at(4200), Contact::Failure);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(5000)));
    }

    #[test]
    fn a_period_that_nothing_caused_counts_from_the_last_tick() {
        let mut schedule = Schedule::new(Time::ZERO, Span::from_millis(500), LookPolicy::None);
        for millis in [500, 1000] {
            schedule.begin(at(millis)).expect("due");
            schedule.complete(at(millis), Contact::Failure);
        }
        schedule.change_period(at(1200), PERIOD);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(2000)));
        schedule.change_period(at(1400), Span::from_millis(500));
        assert_eq!(schedule.due().map(|due| due.at), Some(at(1500)));
        schedule.change_period(at(1450), PERIOD);
        schedule.change_period(at(1700), Span::from_millis(500));
        assert_eq!(schedule.due().map(|due| due.at), Some(at(2000)), "1500 is over");
    }

    #[test]
    fn another_period_counts_from_the_probe_that_caused_it() {
        let mut schedule = Schedule::new(Time::ZERO, Span::from_millis(500), LookPolicy::None);
        let due = schedule.begin(at(500)).expect("due");
        schedule.complete(at(520), Contact::Success);
        schedule.set_period(due.at, at(520), PERIOD);
        assert_eq!(schedule.due().map(|due| due.at), Some(at(1500)));
    }
}
