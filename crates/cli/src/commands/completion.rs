//! `pulselet completion`: a script that has the shell ask this binary, which knows the flags and, from the local agent, the
//! pods.

use std::io::Write;

use clap_complete::env::Shells;

use crate::cli::CompletionArgs;
use crate::completing;
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn run(args: &CompletionArgs) -> Result<Exit, Failure> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(&args.shell.to_string())
        .expect("every shell of the flag can be completed for");
    let mut script = Vec::new();
    let name = "pulselet";
    shell
        .write_registration(completing::VARIABLE, name, name, name, &mut script)
        .expect("writing to memory does not fail");
    let mut stdout = output::stdout();
    output::written(stdout.write_all(&script).and_then(|()| stdout.flush()))?;
    Ok(Exit::Done)
}
