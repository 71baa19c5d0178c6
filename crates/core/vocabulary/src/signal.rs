//! Linux signals under the names Kubernetes gives them.
//!
//! A [`Signal`] is a name from the list the API accepts; aliases (`SIGIOT` for `SIGABRT`) are names of their own,
//! because status repeats the name a user wrote. Numbers are those of x86 and Arm; real-time signals count from 34,
//! as C libraries keep 32 and 33 to themselves.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const RTMIN: u8 = 34;
const RTMAX: u8 = 64;

/// One of the signals that can be a stop signal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(
    /// Index in [`NAMES`].
    u8,
);

/// What the kernel does with a signal that a process neither handles, blocks nor ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    /// The process ends, with or without a core file.
    Terminate,
    Ignore,
    /// The process is halted, and goes on after SIGCONT.
    Stop,
    /// A halted process goes on; one that runs notices nothing.
    Continue,
}

impl DefaultAction {
    pub const fn ends_process(self) -> bool {
        match self {
            Self::Terminate => true,
            Self::Ignore | Self::Stop | Self::Continue => false,
        }
    }
}

/// Every name with its number. The order is that of the upstream API, the canonical name of a number before its aliases
/// where that matters: see [`Signal::from_number`].
#[rustfmt::skip]
const NAMES: [(&str, u8); 65] = [
    ("SIGABRT", 6), ("SIGALRM", 14), ("SIGBUS", 7), ("SIGCHLD", 17), ("SIGCLD", 17), ("SIGCONT", 18), ("SIGFPE", 8),
    ("SIGHUP", 1), ("SIGILL", 4), ("SIGINT", 2), ("SIGIO", 29), ("SIGIOT", 6), ("SIGKILL", 9), ("SIGPIPE", 13),
    ("SIGPOLL", 29), ("SIGPROF", 27), ("SIGPWR", 30), ("SIGQUIT", 3), ("SIGSEGV", 11), ("SIGSTKFLT", 16),
    ("SIGSTOP", 19), ("SIGSYS", 31), ("SIGTERM", 15), ("SIGTRAP", 5), ("SIGTSTP", 20), ("SIGTTIN", 21),
    ("SIGTTOU", 22), ("SIGURG", 23), ("SIGUSR1", 10), ("SIGUSR2", 12), ("SIGVTALRM", 26), ("SIGWINCH", 28),
    ("SIGXCPU", 24), ("SIGXFSZ", 25),
    ("SIGRTMIN", 34), ("SIGRTMIN+1", 35), ("SIGRTMIN+2", 36), ("SIGRTMIN+3", 37), ("SIGRTMIN+4", 38),
    ("SIGRTMIN+5", 39), ("SIGRTMIN+6", 40), ("SIGRTMIN+7", 41), ("SIGRTMIN+8", 42), ("SIGRTMIN+9", 43),
    ("SIGRTMIN+10", 44), ("SIGRTMIN+11", 45), ("SIGRTMIN+12", 46), ("SIGRTMIN+13", 47), ("SIGRTMIN+14", 48),
    ("SIGRTMIN+15", 49), ("SIGRTMAX-14", 50), ("SIGRTMAX-13", 51), ("SIGRTMAX-12", 52), ("SIGRTMAX-11", 53),
    ("SIGRTMAX-10", 54), ("SIGRTMAX-9", 55), ("SIGRTMAX-8", 56), ("SIGRTMAX-7", 57), ("SIGRTMAX-6", 58),
    ("SIGRTMAX-5", 59), ("SIGRTMAX-4", 60), ("SIGRTMAX-3", 61), ("SIGRTMAX-2", 62), ("SIGRTMAX-1", 63),
    ("SIGRTMAX", 64),
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a signal")]
pub struct ParseSignalError(pub String);

impl Signal {
    pub const TERM: Self = Self::named("SIGTERM");
    pub const KILL: Self = Self::named("SIGKILL");

    /// The signals that Windows containers know.
    pub const WINDOWS: [Self; 2] = [Self::KILL, Self::TERM];

    /// All names, in the order of the upstream API.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..NAMES.len()).map(Self::at)
    }

    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)].0
    }

    pub fn number(self) -> i32 {
        i32::from(NAMES[usize::from(self.0)].1)
    }

    /// Whether the kernel, not the process, carries it out, so that no grace is needed or possible.
    pub fn is_kill(self) -> bool {
        self == Self::KILL
    }

    /// Whether a process can decide what happens.
    pub fn can_be_caught(self) -> bool {
        self.number() != 9 && self.number() != 19
    }

    pub fn default_action(self) -> DefaultAction {
        match self.number() {
            17 | 23 | 28 => DefaultAction::Ignore,
            18 => DefaultAction::Continue,
            19..=22 => DefaultAction::Stop,
            _ => DefaultAction::Terminate,
        }
    }

    /// The canonical name of a number; none for 0, 32, 33 and what is out of range.
    pub fn from_number(number: i32) -> Option<Self> {
        NAMES
            .iter()
            .position(|&(_, n)| i32::from(n) == number)
            .map(Self::at)
    }

    /// Reads an image's `STOPSIGNAL`: a number, or a name in any case, with or without `SIG`, real-time signals with
    /// any offset.
    pub fn from_image(text: &str) -> Result<Self, ParseSignalError> {
        let unknown = || ParseSignalError(text.to_owned());
        let trimmed = text.trim();
        if let Ok(number) = trimmed.parse::<i32>() {
            return Self::from_number(number).ok_or_else(unknown);
        }
        let upper = trimmed.to_ascii_uppercase();
        let short = upper.strip_prefix("SIG").unwrap_or(&upper);
        if let Some(index) = NAMES.iter().position(|(name, _)| name[3..] == *short) {
            return Ok(Self::at(index));
        }
        real_time_number(short)
            .and_then(|number| Self::from_number(i32::from(number)))
            .ok_or_else(unknown)
    }

    const fn named(name: &str) -> Self {
        let mut index: u8 = 0;
        loop {
            if same(NAMES[index as usize].0.as_bytes(), name.as_bytes()) {
                return Self(index);
            }
            index += 1;
        }
    }

    fn at(index: usize) -> Self {
        Self(u8::try_from(index).expect("the list of signals is shorter than 256"))
    }
}

/// `RTMIN+n` and `RTMAX-n` beyond the offsets that have names.
fn real_time_number(short: &str) -> Option<u8> {
    let in_range = |number: u8| (RTMIN..=RTMAX).contains(&number).then_some(number);
    if let Some(offset) = short.strip_prefix("RTMIN+") {
        return in_range(RTMIN.checked_add(offset.parse().ok()?)?);
    }
    in_range(RTMAX.checked_sub(short.strip_prefix("RTMAX-")?.parse().ok()?)?)
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Exactly the names of the API.
impl FromStr for Signal {
    type Err = ParseSignalError;

    fn from_str(text: &str) -> Result<Self, ParseSignalError> {
        NAMES
            .iter()
            .position(|&(name, _)| name == text)
            .map(Self::at)
            .ok_or_else(|| ParseSignalError(text.to_owned()))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_has_a_number() {
        for signal in Signal::all() {
            assert_eq!(signal.name().parse(), Ok(signal));
            assert_eq!(Signal::from_image(signal.name()), Ok(signal));
            assert!((1..=64).contains(&signal.number()));
            let canonical = Signal::from_number(signal.number()).expect("its number is known");
            assert_eq!(canonical.number(), signal.number());
        }
        assert_eq!((Signal::TERM.number(), Signal::KILL.number()), (15, 9));
    }

    #[test]
    fn numbers_get_canonical_names() {
        for (number, name) in [
            (6, "SIGABRT"),
            (17, "SIGCHLD"),
            (29, "SIGIO"),
            (34, "SIGRTMIN"),
            (64, "SIGRTMAX"),
        ] {
            assert_eq!(Signal::from_number(number).map(Signal::name), Some(name));
        }
        for number in [-1, 0, 32, 33, 65, i32::MAX] {
            assert_eq!(Signal::from_number(number), None);
        }
    }

    #[test]
    fn images_may_write_signals_in_many_ways() {
        for (text, name) in [
            ("10", "SIGUSR1"),
            ("usr1", "SIGUSR1"),
            ("SigUsr1", "SIGUSR1"),
            ("RTMIN+3", "SIGRTMIN+3"),
            ("SIGRTMIN+16", "SIGRTMAX-14"),
            ("rtmax-15", "SIGRTMIN+15"),
            ("SIGRTMIN+30", "SIGRTMAX"),
            (" 15 ", "SIGTERM"),
            ("37", "SIGRTMIN+3"),
        ] {
            assert_eq!(Signal::from_image(text).map(Signal::name), Ok(name), "{text}");
        }
        for text in [
            "",
            "0",
            "33",
            "65",
            "-9",
            "SIG",
            "SIGFOO",
            "RTMIN+31",
            "RTMAX-31",
            "RTMIN+300",
            "SIGSIGTERM",
        ] {
            assert!(Signal::from_image(text).is_err(), "{text}");
        }
    }

    #[test]
    fn default_actions_are_the_kernels() {
        let not_ending: Vec<_> = Signal::all()
            .filter(|signal| !signal.default_action().ends_process())
            .map(Signal::name)
            .collect();
        assert_eq!(
            not_ending,
            [
                "SIGCHLD", "SIGCLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG",
                "SIGWINCH"
            ]
        );
        let uncatchable: Vec<_> = Signal::all().filter(|signal| !signal.can_be_caught()).collect();
        assert_eq!(uncatchable, [Signal::KILL, Signal::named("SIGSTOP")]);
    }

    #[test]
    fn the_api_wants_exact_names() {
        for text in ["", "TERM", "sigterm", "15", "SIGRTMIN+16", "SIGRTMIN+0"] {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
    }
}
