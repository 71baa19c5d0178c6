//! What goes wrong around the agent: a slow or failing runtime, late and repeated reports, crashes, stalls, outages of what
//! the agent needs, a wall clock that jumps.
//!
//! Every choice is a function of the seed and of what the choice is about, never of the choices made before. So
//! taking one kind of fault away leaves all others as they were, which is what makes a failing seed shrinkable.

use pulselet_engine::io::LifeKey;
use pulselet_engine::time::{Span, Time};

/// The faults of one simulation; the default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub seed: u64,
    /// From this moment on everything works.
    pub until: Time,
    pub rates: Rates,
    /// The longest a runtime operation takes.
    pub runtime_latency: Span,
    /// The longest a report is on its way. Reports overtake each other.
    pub report_delay: Span,
    pub crashes: Vec<Crash>,
    pub stalls: Vec<Stall>,
    pub outages: Vec<Outage>,
    pub clock_jumps: Vec<ClockJump>,
}

/// How many of a hundred go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub sandbox_fails: u8,
    pub image_fails: u8,
    pub create_fails: u8,
    pub start_fails: u8,
    pub exec_errors: u8,
    /// Observations that are reported twice.
    pub repeated: u8,
}

/// The agent dies and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    pub at: Time,
    pub down: Span,
    pub moment: CrashMoment,
    /// The database does not survive it: the agent goes on from the spare copy, which is as old as the last change that
    /// others could see.
    pub loses_database: bool,
}

/// How far the agent had come with the step it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMoment {
    BetweenSteps,
    /// So long after its last step that all of it had reached the disk.
    AtRest,
    /// It had decided, and nobody will ever know.
    BeforePersisting,
    BeforeActing,
    /// Half of the actions had been carried out.
    WhileActing,
}

impl CrashMoment {
    pub const ALL: [Self; 5] = [
        Self::BetweenSteps,
        Self::AtRest,
        Self::BeforePersisting,
        Self::BeforeActing,
        Self::WhileActing,
    ];
}

/// The agent does not run for a while, as on a machine that is overloaded or suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    pub at: Time,
    pub lasts: Span,
}

/// Something that the agent needs is not there for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    pub of: Dependency,
    pub from: Time,
    pub lasts: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The disk refuses every write: it is full, or it fails.
    Store,
    /// Every call fails, and nothing is heard of containers. They run on, and grace periods are kept.
    Runtime,
    /// Requests arrive when it is back.
    Api,
}

impl Dependency {
    pub const ALL: [Self; 3] = [Self::Store, Self::Runtime, Self::Api];
}

/// From this moment on the wall clock is so many seconds ahead, or behind; until the next jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    pub at: Time,
    pub ahead: i64,
}

/// What a choice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    SandboxFails,
    ImageFails,
    CreateFails,
    StartFails,
    ExecError,
    Repeated,
    Latency,
    Delay,
    SecondDelay,
}

/// Which of many equal choices: a life, or none for the sandbox, and a running number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) life: Option<LifeKey>,
    pub(crate) number: u64,
}

impl FaultPlan {
    pub(crate) fn happens(&self, now: Time, choice: Choice, subject: Subject) -> bool {
        let rate = match choice {
            Choice::SandboxFails => self.rates.sandbox_fails,
            Choice::ImageFails => self.rates.image_fails,
            Choice::CreateFails => self.rates.create_fails,
            Choice::StartFails => self.rates.start_fails,
            Choice::ExecError => self.rates.exec_errors,
            Choice::Repeated => self.rates.repeated,
            Choice::Latency | Choice::Delay | Choice::SecondDelay => 0,
        };
        now < self.until && self.draw(choice, subject) % 100 < u64::from(rate)
    }

    /// When an outage is over; none if there is none at this moment.
    pub(crate) fn outage_end(&self, of: Dependency, now: Time) -> Option<Time> {
        let covers = |outage: &&Outage| outage.of == of && outage.from <= now && now < outage.end();
        let ends = self.outages.iter().filter(covers).map(Outage::end);
        let end = ends.max()?;
        // Another one may have begun before this one ends.
        Some(self.outage_end(of, end).unwrap_or(end))
    }

    /// When something reaches the other side that was sent at this moment.
    pub(crate) fn passes(&self, through: Dependency, at: Time) -> Time {
        self.outage_end(through, at).unwrap_or(at)
    }

    /// What the agent takes a runtime's time stamp for: it compares it with the wall clock, which may have jumped since.
    /// Never in the future.
    pub(crate) fn read_stamp(&self, now: Time, stamp: Time) -> Time {
        let jumped = self.clock_ahead(now) - self.clock_ahead(stamp);
        let by = Span::from_secs(jumped.unsigned_abs());
        let read = if jumped > 0 { stamp - by } else { stamp + by };
        read.min(now)
    }

    fn clock_ahead(&self, at: Time) -> i64 {
        let before = self
            .clock_jumps
            .iter()
            .filter(|jump| jump.at <= at && at < self.until);
        before.max_by_key(|jump| jump.at).map_or(0, |jump| jump.ahead)
    }

    /// How long something takes, from nothing to the longest.
    pub(crate) fn span(&self, now: Time, choice: Choice, subject: Subject) -> Span {
        let longest = match choice {
            Choice::Latency => self.runtime_latency,
            Choice::Delay | Choice::SecondDelay => self.report_delay,
            Choice::SandboxFails
            | Choice::ImageFails
            | Choice::CreateFails
            | Choice::StartFails
            | Choice::ExecError
            | Choice::Repeated => Span::ZERO,
        };
        if now >= self.until || longest.is_zero() {
            return Span::ZERO;
        }
        Span::from_micros(self.draw(choice, subject) % (longest.as_micros() + 1))
    }

    fn draw(&self, choice: Choice, subject: Subject) -> u64 {
        let life = subject.life.map_or(0, |life| {
            ((life.container as u64 + 1) << 32) | u64::from(life.attempt)
        });
        [choice as u64, life, subject.number]
            .into_iter()
            .fold(mix(self.seed), |hash, part| mix(hash ^ mix(part)))
    }
}

impl Outage {
    pub(crate) fn end(&self) -> Time {
        self.from + self.lasts
    }
}

/// `SplitMix64`: one step of a generator whose every output depends on every bit of its input.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
