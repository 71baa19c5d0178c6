//! Exit codes that no program chose: a runtime or an agent makes them up for an end that has no code of its own.

use crate::Signal;

/// The program could not be started.
pub const START_ERROR: i32 = 128;
/// Nobody saw how the container ended: its shim was killed, or the machine went down.
pub const UNKNOWN: i32 = 255;
/// The code of a process that SIGKILL ended.
pub const KILLED: i32 = of_signal_number(9);

/// The code of a process that a signal ended, as shells and runtimes write it.
pub fn of_signal(signal: Signal) -> i32 {
    of_signal_number(signal.number())
}

/// The same for any number: the kernel has signals that no [`Signal`] names.
pub const fn of_signal_number(number: i32) -> i32 {
    128 + number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_makes_the_code_that_shells_show() {
        assert_eq!(of_signal(Signal::KILL), KILLED);
        assert_eq!(of_signal(Signal::TERM), 143);
    }
}
