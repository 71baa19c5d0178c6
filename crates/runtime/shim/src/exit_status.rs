//! The exit code of a process that was waited for.

use pulselet_runtime::exit_code;
use rustix::process::WaitStatus;

/// The process's own code, or the one that shells show for the signal that ended it.
pub fn exit_code_of(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(exit_code::of_signal_number))
        .unwrap_or(exit_code::UNKNOWN)
}
