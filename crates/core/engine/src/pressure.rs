//! Whether fast probing gives way: how late a node's own probes begin, against two thresholds.
//!
//! A node that cannot begin its probes in time has too much to do, and probes below one second are what it can do
//! without. It always holds:
//! - probing is stretched when the p99 of the lateness of the last [`WINDOW`] is above [`STRETCH_ABOVE`], and only then;
//! - it stays so until the p99 was below [`RECOVER_BELOW`] for all of [`RECOVER_AFTER`]: a p99 between the two ends nothing;
//! - memory is bounded, however many probes there are.
//!
//! Of a window in which nothing began, nothing is late. What stretching means for a probe is `probe_runner`'s to say; who
//! measures lateness calls [`ProbePressure::observe`] when it is known, and [`ProbePressure::advance`] when the deadline
//! has come.

use std::collections::VecDeque;

use crate::plan::ProbePace;
use crate::time::{Span, Time};

/// The lateness of this long is looked at.
pub const WINDOW: Span = Span::from_secs(10);
/// A p99 above this stretches fast probing.
pub const STRETCH_ABOVE: Span = Span::from_millis(100);
/// A p99 below this, for [`RECOVER_AFTER`], ends that.
pub const RECOVER_BELOW: Span = Span::from_millis(50);
pub const RECOVER_AFTER: Span = Span::from_secs(30);

/// What began within this long leaves the window together, so that the window has about a hundred parts.
const SLICE: Span = Span::from_millis(100);

/// The lateness of a node's probes and what follows from it.
#[derive(Clone, Debug, Default)]
pub struct ProbePressure {
    /// Those in which a probe began, in order of time.
    slices: VecDeque<Slice>,
    /// Of all slices together.
    total: Counts,
    state: PressureState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PressureState {
    #[default]
    Calm,
    Stretched {
        /// Since when the p99 is below [`RECOVER_BELOW`]; `None` if it is not.
        below_since: Option<Time>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    began: Time,
    counts: Counts,
}

/// Probes, counted by what they mean for the thresholds.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    probes: u64,
    /// Those not below [`RECOVER_BELOW`].
    slow: u64,
    /// Those above [`STRETCH_ABOVE`].
    late: u64,
}

/// Fast probing gives way, or comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureChange {
    Stretched,
    Recovered,
}

impl PressureChange {
    /// How fast probes are from now on.
    pub const fn pace(self) -> ProbePace {
        match self {
            Self::Stretched => ProbePace::Stretched,
            Self::Recovered => ProbePace::Planned,
        }
    }

    /// The reason of the node's event.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Stretched => "ProbesStretched",
            Self::Recovered => "ProbesRecovered",
        }
    }

    /// For people. It has no figures of the moment, so that equal events can be counted.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Stretched => {
                "probes with a period below one second are made every periodSeconds for now: the node is late, the p99 of \
                 its probes' lateness over 10 s is above 100 ms"
            }
            Self::Recovered => {
                "probes with a period below one second have their own period again: the p99 of the node's probe lateness \
                 was below 50 ms for 30 s"
            }
        }
    }
}

impl ProbePressure {
    /// One that goes on where an agent left off that is gone: fast probing stays stretched until it was calm long enough.
    pub fn stretched(now: Time) -> Self {
        let below_since = Some(now);
        Self {
            state: PressureState::Stretched { below_since },
            ..Self::default()
        }
    }

    pub fn pace(&self) -> ProbePace {
        match self.state {
            PressureState::Calm => ProbePace::Planned,
            PressureState::Stretched { .. } => ProbePace::Stretched,
        }
    }

    /// A probe began `late` after its turn, which became known at `now`.
    pub fn observe(&mut self, now: Time, late: Span) -> Option<PressureChange> {
        // What has left the window before is judged first: it may have been calm long enough before this.
        let earlier = self.advance(now);
        let began = slice_of(now);
        if self.slices.back().is_none_or(|slice| slice.began < began) {
            let counts = Counts::default();
            self.slices.push_back(Slice { began, counts });
        }
        if let Some(slice) = self.slices.back_mut() {
            slice.counts.add(late);
            self.total.add(late);
        }
        let later = self.judge(now);
        // Both at one moment are no change.
        match (earlier, later) {
            (Some(_), Some(_)) => None,
            (change, None) | (None, change) => change,
        }
    }

    /// Lets what is too old leave the window, one slice after the other, up to `now`.
    pub fn advance(&mut self, now: Time) -> Option<PressureChange> {
        let before = self.pace();
        while let Some(slice) = self.slices.front().copied() {
            let leaves = slice.leaves();
            if leaves > now {
                break;
            }
            self.slices.pop_front();
            self.total.subtract(slice.counts);
            self.judge(leaves);
        }
        self.judge(now);
        match (before, self.pace()) {
            (ProbePace::Planned, ProbePace::Stretched) => Some(PressureChange::Stretched),
            (ProbePace::Stretched, ProbePace::Planned) => Some(PressureChange::Recovered),
            (ProbePace::Planned, ProbePace::Planned) | (ProbePace::Stretched, ProbePace::Stretched) => None,
        }
    }

    /// When time alone may change something; `None` if only another late probe can.
    pub fn next_deadline(&self) -> Option<Time> {
        let leaves = self.slices.front().map(Slice::leaves);
        match self.state {
            // With the punctual ones gone the late ones may be too many.
            PressureState::Calm => leaves.filter(|_| self.total.late > 0),
            PressureState::Stretched { below_since: None } => leaves,
            PressureState::Stretched {
                below_since: Some(since),
            } => Some(since + RECOVER_AFTER),
        }
    }

    /// Compares the window as it is at `now`.
    fn judge(&mut self, now: Time) -> Option<PressureChange> {
        let is_late = self.total.exceeds(self.total.late);
        let is_slow = self.total.exceeds(self.total.slow);
        match &mut self.state {
            PressureState::Calm if is_late => {
                self.state = PressureState::Stretched { below_since: None };
                Some(PressureChange::Stretched)
            }
            PressureState::Calm => None,
            PressureState::Stretched { below_since } if is_slow => {
                *below_since = None;
                None
            }
            PressureState::Stretched { below_since } => {
                let since = *below_since.get_or_insert(now);
                if now.since(since) < RECOVER_AFTER {
                    return None;
                }
                self.state = PressureState::Calm;
                Some(PressureChange::Recovered)
            }
        }
    }
}

impl Slice {
    /// When all that began in it is older than the window.
    fn leaves(&self) -> Time {
        self.began + SLICE + WINDOW
    }
}

impl Counts {
    fn add(&mut self, late: Span) {
        self.probes += 1;
        self.slow += u64::from(late >= RECOVER_BELOW);
        self.late += u64::from(late > STRETCH_ABOVE);
    }

    fn subtract(&mut self, other: Self) {
        self.probes -= other.probes;
        self.slow -= other.slow;
        self.late -= other.late;
    }

    /// Whether the p99 is among these: at most one in a hundred lie above it.
    fn exceeds(self, count: u64) -> bool {
        count > self.probes / 100
    }
}

/// The begin of the slice that holds `now`.
fn slice_of(now: Time) -> Time {
    Time::from_micros(now.as_micros() / SLICE.as_micros() * SLICE.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    /// Lets a probe begin every `every` milliseconds with the lateness that `late` gives, and returns what changed when.
    /// Deadlines in between are kept.
    fn changes(end: u64, every: u64, late: impl Fn(u64) -> Option<u64>) -> Vec<(u64, PressureChange)> {
        let mut pressure = ProbePressure::default();
        let mut seen = Vec::new();
        let mut note = |now: Time, change: Option<PressureChange>| {
            seen.extend(change.map(|change| (now.as_micros() / 1_000, change)));
        };
        for millis in (0..=end).step_by(usize::try_from(every).expect("small")) {
            while let Some(due) = pressure.next_deadline().filter(|due| *due < at(millis)) {
                let change = pressure.advance(due);
                note(due, change);
            }
            if let Some(late) = late(millis) {
                let change = pressure.observe(at(millis), Span::from_millis(late));
                note(at(millis), change);
            }
        }
        seen
    }

    #[test]
    fn a_punctual_node_is_never_stretched() {
        assert_eq!(changes(120_000, 10, |_| Some(100)), []);
        assert_eq!(changes(120_000, 500, |_| None), []);
        let mut pressure = ProbePressure::default();
        pressure.observe(at(0), Span::from_millis(100));
        assert_eq!(pressure.next_deadline(), None, "nothing to wait for");
    }

    #[test]
    fn one_in_a_hundred_may_be_late_and_two_may_not() {
        // Probes every 10 ms: a thousand in the window, of which ten may be late.
        let late_until =
            |until: u64| move |now: u64| Some(if now >= 20_000 && now < until { 101 } else { 0 });
        assert_eq!(changes(40_000, 10, late_until(20_100)), []);
        assert_eq!(
            changes(40_000, 10, late_until(20_110)),
            [(20_100, PressureChange::Stretched)]
        );
    }

    #[test]
    fn it_recovers_when_the_late_ones_have_left_the_window_for_thirty_seconds() {
        let load = |now: u64| Some(if (20_000..25_000).contains(&now) { 300 } else { 0 });
        assert_eq!(
            changes(100_000, 500, load),
            [
                (20_000, PressureChange::Stretched),
                (24_600 + 10_000 + 30_000, PressureChange::Recovered)
            ]
        );
    }

    #[test]
    fn a_lateness_between_the_thresholds_neither_stretches_nor_recovers() {
        assert_eq!(changes(60_000, 500, |_| Some(70)), []);
        let eases = |now: u64| Some(if now < 5_000 { 300 } else { 50 });
        assert_eq!(changes(300_000, 500, eases), [(0, PressureChange::Stretched)]);
    }

    #[test]
    fn a_late_probe_begins_the_thirty_seconds_anew() {
        let relapse = |now: u64| Some(if now < 1_000 || now == 30_000 { 300 } else { 0 });
        assert_eq!(
            changes(120_000, 500, relapse),
            [
                (0, PressureChange::Stretched),
                (30_100 + 10_000 + 30_000, PressureChange::Recovered)
            ]
        );
    }

    #[test]
    fn a_node_that_has_nothing_left_to_probe_recovers_too() {
        let once = |now: u64| (now == 1_000).then_some(300);
        assert_eq!(
            changes(100_000, 1_000, once),
            [
                (1_000, PressureChange::Stretched),
                (41_100, PressureChange::Recovered)
            ]
        );
    }

    #[test]
    fn late_ones_are_too_many_once_the_punctual_ones_have_left() {
        // 198 punctual probes at once, then two late ones: one in a hundred, until the 198 leave.
        let mut pressure = ProbePressure::default();
        for _ in 0..198 {
            pressure.observe(at(0), Span::ZERO);
        }
        for _ in 0..2 {
            assert_eq!(pressure.observe(at(5_000), Span::from_millis(150)), None);
        }
        assert_eq!(pressure.next_deadline(), Some(at(10_100)));
        assert_eq!(pressure.advance(at(10_100)), Some(PressureChange::Stretched));
    }

    #[test]
    fn an_agent_that_comes_back_goes_on_stretched() {
        let mut pressure = ProbePressure::stretched(at(7_000));
        assert_eq!(pressure.pace(), ProbePace::Stretched);
        assert_eq!(pressure.next_deadline(), Some(at(37_000)));
        assert_eq!(pressure.advance(at(36_999)), None);
        assert_eq!(pressure.advance(at(37_000)), Some(PressureChange::Recovered));
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_judged_moment_by_moment() {
        let mut pressure = ProbePressure::default();
        pressure.observe(at(0), Span::from_millis(300));
        // Nobody came back for an hour: the window was empty after ten seconds.
        assert_eq!(pressure.advance(at(3_600_000)), Some(PressureChange::Recovered));
        let mut pressure = ProbePressure::default();
        pressure.observe(at(0), Span::from_millis(300));
        assert_eq!(pressure.observe(at(3_600_000), Span::from_millis(300)), None);
        assert_eq!(pressure.pace(), ProbePace::Stretched);
    }

    #[test]
    fn memory_is_bounded() {
        let mut pressure = ProbePressure::default();
        for micros in (0..60_000_000).step_by(500) {
            pressure.observe(Time::from_micros(micros), Span::ZERO);
        }
        assert!(pressure.slices.len() <= 102);
    }
}
