//! The shim of a container as a program of its own, for tests.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    pulselet_runtime_oci::shim_main(env::args_os().skip(1))
}
