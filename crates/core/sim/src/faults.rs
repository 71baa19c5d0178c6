//! What goes wrong around the agent: a slow or failing runtime, late and repeated reports, crashes, stalls.
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

/// `SplitMix64`: one step of a generator whose every output depends on every bit of its input.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
