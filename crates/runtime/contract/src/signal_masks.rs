//! What a process does about signals, as the kernel shows it.

use std::fs;

use crate::Signal;

/// The signal masks of a container's main process. Bit n - 1 stands for signal n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignalMasks {
    pub caught: u64,
    pub ignored: u64,
    pub blocked: u64,
    /// It is PID 1 of its namespace: default actions do not apply to it.
    pub is_init: bool,
}

impl SignalMasks {
    /// Reads a process of this host; `None` if it is gone or not ours to see.
    pub fn of_process(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    /// Whether the signal does something to the process that can end it. One that blocks a signal waits for it.
    pub fn handles(self, signal: Signal) -> bool {
        if signal.is_kill() {
            return true;
        }
        let bit = 1_u64 << (signal.number() - 1);
        if self.ignored & bit != 0 {
            return false;
        }
        (self.caught | self.blocked) & bit != 0 || (!self.is_init && signal.default_action().ends_process())
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let mask = |name| u64::from_str_radix(field(name)?.trim(), 16).ok();
        Some(Self {
            caught: mask("SigCgt:")?,
            ignored: mask("SigIgn:")?,
            blocked: mask("SigBlk:")?,
            // From the outermost namespace to the process's own.
            is_init: field("NSpid:")?.split_whitespace().next_back() == Some("1"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that traps SIGUSR1 (10) and SIGCHLD (17) and ignores SIGQUIT (3), as PID 1.
    const SHELL: &str = "Name:\tsh\nNSpid:\t4711\t1\nSigPnd:\t0000000000000000\nSigBlk:\t0000000000000000\n\
                         SigIgn:\t0000000000000004\nSigCgt:\t0000000000010200\n";

    fn signal(name: &str) -> Signal {
        name.parse().expect("a signal")
    }

    #[test]
    fn pid_1_handles_what_it_catches_or_blocks() {
        let masks = SignalMasks::parse(SHELL).expect("masks");
        assert!(masks.is_init);
        assert!(masks.handles(signal("SIGUSR1")) && masks.handles(Signal::KILL));
        for name in ["SIGTERM", "SIGQUIT", "SIGUSR2", "SIGSTOP", "SIGRTMAX"] {
            assert!(!masks.handles(signal(name)), "{name}");
        }
        let blocked = SHELL.replace("SigBlk:\t0000000000000000", "SigBlk:\t8000000000004000");
        let masks = SignalMasks::parse(&blocked).expect("masks");
        assert!(masks.handles(Signal::TERM) && masks.handles(signal("SIGRTMAX")));
    }

    #[test]
    fn default_actions_end_the_others() {
        let masks = SignalMasks::parse(&SHELL.replace("4711\t1\n", "4711\n")).expect("masks");
        assert!(masks.handles(Signal::TERM) && masks.handles(signal("SIGRTMIN")));
        for name in ["SIGQUIT", "SIGSTOP", "SIGWINCH", "SIGURG", "SIGCONT"] {
            assert!(!masks.handles(signal(name)), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        assert_eq!(SignalMasks::parse(""), None);
        assert_eq!(SignalMasks::parse(&SHELL.replace("00010200", "nonsense")), None);
        assert_eq!(SignalMasks::of_process(-1), None);
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(SignalMasks::of_process(own).is_some());
    }
}
