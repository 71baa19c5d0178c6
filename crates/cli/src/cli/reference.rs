//! The reference in `docs/cli.md` is what the commands say about themselves.
//!
//! After a change of the command line, `UPDATE_REFERENCE=1 cargo test -p pulselet-cli reference` writes it anew.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::Cli;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
/// Columns of the help texts, whatever terminal the test runs on.
const WIDTH: usize = 100;

fn reference() -> String {
    let mut text =
        "# The command line\n\nThis page is generated from the command itself; a test keeps it current.\n"
            .to_owned();
    let mut command = Cli::command().term_width(WIDTH);
    command.build();
    describe(&mut text, &mut command, "pulselet");
    text
}

fn describe(text: &mut String, command: &mut Command, name: &str) {
    let level = name.split(' ').count() + 1;
    let help = command.clone().term_width(WIDTH).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let help = lines.join("\n");
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "\n{} `{name}`\n\n```text\n{}\n```\n",
        "#".repeat(level.min(4)),
        help.trim_end()
    );
    let shown = |command: &&mut Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands_mut().filter(shown) {
        let name = format!("{name} {}", command.get_name());
        describe(text, command, &name);
    }
}

#[test]
fn the_reference_is_current() {
    let current = reference();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(PATH, &current).expect("the reference is written");
    }
    let written = std::fs::read_to_string(PATH).expect("there is a reference");
    assert!(
        written == current,
        "docs/cli.md is not what the commands say; UPDATE_REFERENCE=1 cargo test -p pulselet-cli reference"
    );
}
