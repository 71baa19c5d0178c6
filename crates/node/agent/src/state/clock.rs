//! The engine's time line on this machine.
//!
//! Engine time is microseconds since 1970 as the wall clock had it when the line began, moved on by the kernel's boot
//! clock: it never jumps when someone sets the wall clock, goes on while the machine sleeps, and goes on across agents
//! as long as the boot is the same. After a reboot it goes on from the wall clock, never backwards.

use std::time::Duration;

use jiff::Timestamp;
use pulselet_engine::time::{Span, Time};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// What ties engine time to this boot. Persisted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    boot_id: String,
    /// Engine time minus the boot clock, in microseconds; it can be negative only if the wall clock is before 1970.
    offset: i64,
}

/// Reads the time. Cheap to copy around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: i64,
}

/// What an agent finds when it looks for its time line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// The first agent here, or the line was lost.
    New,
    SameBoot,
    Rebooted,
}

impl Clock {
    /// Goes on with the line of an earlier agent, which had reached `last`.
    pub(crate) fn resume(base: Option<&Base>, last: Time) -> (Self, Base, Continuity) {
        Self::resume_at(base, last, &boot_id(), boot_micros(), wall_micros())
    }

    fn resume_at(
        base: Option<&Base>,
        last: Time,
        boot_id: &str,
        boot: i64,
        wall: i64,
    ) -> (Self, Base, Continuity) {
        if let Some(base) = base.filter(|base| !boot_id.is_empty() && base.boot_id == boot_id) {
            let clock = Self { offset: base.offset };
            return (clock, base.clone(), Continuity::SameBoot);
        }
        let last = i64::try_from(last.as_micros()).unwrap_or(i64::MAX);
        let offset = wall.max(last).saturating_sub(boot);
        let continuity = if base.is_some() {
            Continuity::Rebooted
        } else {
            Continuity::New
        };
        let base = Base {
            boot_id: boot_id.to_owned(),
            offset,
        };
        (Self { offset }, base, continuity)
    }

    pub(crate) fn now(self) -> Time {
        let micros = boot_micros().saturating_add(self.offset);
        Time::from_micros(u64::try_from(micros).unwrap_or_default())
    }

    /// What the wall clock would have shown at a moment, judged by what it shows now.
    pub(crate) fn wall(self, at: Time) -> Timestamp {
        let now = self.now();
        let wall = wall_micros();
        let at_wall = if at > now {
            wall.saturating_add(signed(at.since(now)))
        } else {
            wall.saturating_sub(signed(now.since(at)))
        };
        Timestamp::from_microsecond(at_wall).unwrap_or(Timestamp::MAX)
    }

    /// The moment a runtime's time stamp speaks of; never in the future.
    pub(crate) fn engine(self, stamp: Timestamp) -> Time {
        let ago = wall_micros().saturating_sub(stamp.as_microsecond());
        let now = self.now();
        u64::try_from(ago).map_or(now, |ago| now - Span::from_micros(ago))
    }

    /// How long to sleep until a moment.
    pub(crate) fn until(self, at: Time) -> Duration {
        at.since(self.now()).into()
    }
}

fn signed(span: Span) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn boot_micros() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

fn wall_micros() -> i64 {
    Timestamp::now().as_microsecond()
}

/// Empty where the kernel does not say; such a boot is never taken for an earlier one.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn the_line_goes_on_within_a_boot_whatever_the_wall_clock_does() {
        let (first, base, continuity) =
            Clock::resume_at(None, Time::ZERO, "boot-a", 100 * SECOND, 5_000 * SECOND);
        assert_eq!(continuity, Continuity::New);
        let (second, same, continuity) =
            Clock::resume_at(Some(&base), Time::ZERO, "boot-a", 160 * SECOND, 9 * SECOND);
        assert_eq!((second.offset, continuity), (first.offset, Continuity::SameBoot));
        assert_eq!(same, base);
    }

    #[test]
    fn after_a_reboot_the_line_follows_the_wall_clock_but_never_goes_back() {
        let (_, base, _) = Clock::resume_at(None, Time::ZERO, "boot-a", 100 * SECOND, 5_000 * SECOND);
        let last = Time::from_micros(5_060_000_000);
        let at_start = |wall: i64| {
            let (clock, _, continuity) = Clock::resume_at(Some(&base), last, "boot-b", 3 * SECOND, wall);
            assert_eq!(continuity, Continuity::Rebooted);
            clock.offset + 3 * SECOND
        };
        assert_eq!(at_start(6_000 * SECOND), 6_000 * SECOND);
        assert_eq!(at_start(10 * SECOND), 5_060 * SECOND);
    }

    #[test]
    fn stamps_convert_both_ways() {
        let (clock, _, _) = Clock::resume(None, Time::ZERO);
        let at = clock.now() - Span::from_secs(60);
        let back = clock.engine(clock.wall(at));
        let error = at.since(back).as_micros().max(back.since(at).as_micros());
        assert!(error < 1_000_000, "{error}");
        assert!(clock.engine(Timestamp::MAX) <= clock.now());
    }
}
