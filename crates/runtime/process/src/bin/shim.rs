//! The shim of a host-process container as a program of its own, for tests.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    pulselet_runtime_process::shim_main(env::args_os().skip(1))
}
