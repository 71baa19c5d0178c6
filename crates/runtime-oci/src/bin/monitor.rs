//! The monitor of a container as a program of its own, for tests.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    pulselet_runtime_oci::monitor_main(env::args_os().skip(1))
}
