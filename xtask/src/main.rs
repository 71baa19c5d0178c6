//! `cargo xtask TIER`: checks and tests, from those that take a minute to those that take a machine.
//!
//! A tier is a list of commands that are run one after the other until one fails. Tests that the machine cannot run
//! write themselves into a file, which is printed at the end, so that nobody takes them for passed.

mod fields;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask TIER [ARGUMENTS]

  check        formatting, lints, and every test that needs neither root nor a network
  integration  the tests of every crate against real parts: processes, containers, containerd, registries (root)
  e2e          the tests of the command as users run it, on every runtime (root)
  docs         documentation without warnings, and its examples
  deny         licences, bans and sources of dependencies (needs cargo-deny)
  faults       servers under faults drawn by a seed, for six minutes; counts are printed (root, after a build)
  vm           emulated machines; alone the part that `all` has, arguments are those of scripts/vm (root, qemu)
  bench        the measurements of docs/BENCHMARKS.md
  all          everything but the measurements, as scripts/test runs it
  fields       writes the table of the fields of Kubernetes objects; its argument is a work tree of Kubernetes

Arguments go to `cargo nextest run`, with `bench`, `faults` and `vm` to the script of that name.";

/// Crates whose tests need nothing of the machine, beside the unit tests of all others.
const PURE: [&str; 6] = [
    "pulselet-vocabulary",
    "pulselet-engine",
    "pulselet-plan",
    "pulselet-sim",
    "pulselet-model",
    "pulselet-probe",
];
const CLI: &str = "pulselet-cli";
/// Where tests that could not run write their names.
const SKIPPED: &str = "target/skipped-tests.txt";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let tier = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    if let ("fields", [checkout]) = (tier.as_str(), rest.as_slice()) {
        return match fields::write(Path::new(checkout), &repository()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("xtask: {why}");
                ExitCode::FAILURE
            }
        };
    }
    let Some(steps) = steps(&tier, &rest) else {
        eprintln!("{USAGE}");
        return ExitCode::from(if tier.is_empty() { 0 } else { 2 });
    };
    let root = repository();
    let skipped = root.join(SKIPPED);
    let _ = fs::remove_file(&skipped);
    for step in &steps {
        match step.run(&root, &skipped) {
            Ok(true) => {}
            Ok(false) => {
                eprintln!("xtask: failed: {}", step.0.join(" "));
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("xtask: cannot run {}: {error}", step.0[0]);
                return ExitCode::FAILURE;
            }
        }
    }
    report(&skipped);
    ExitCode::SUCCESS
}

/// A command and its arguments.
struct Step(Vec<String>);

impl Step {
    fn new(words: &[&str]) -> Self {
        Self(words.iter().map(|&word| word.to_owned()).collect())
    }

    fn with(mut self, arguments: &[String]) -> Self {
        self.0.extend_from_slice(arguments);
        self
    }

    fn run(&self, root: &Path, skipped: &Path) -> io::Result<bool> {
        eprintln!("xtask: {}", self.0.join(" "));
        let status = Command::new(&self.0[0])
            .args(&self.0[1..])
            .current_dir(root)
            .env("PULSELET_SKIPPED", skipped)
            .env("RUSTDOCFLAGS", "-D warnings")
            .status()?;
        Ok(status.success())
    }
}

/// `None` if there is no such tier.
fn steps(tier: &str, arguments: &[String]) -> Option<Vec<Step>> {
    let tests = |filter: &str| {
        Step::new(&[
            "cargo",
            "nextest",
            "run",
            "--workspace",
            "--no-tests=pass",
            "-E",
            filter,
        ])
        .with(arguments)
    };
    let steps = match tier {
        "check" => {
            let pure = PURE.map(|name| format!("package({name})")).join(" | ");
            let mut steps = lints();
            steps.push(tests(&format!("kind(lib) | kind(bin) | {pure}")));
            steps
        }
        "integration" => vec![tests(&format!("not package({CLI})"))],
        "e2e" => vec![tests(&format!("package({CLI})"))],
        "docs" => docs(),
        "deny" => deny(),
        "faults" => vec![faults().with(arguments)],
        "vm" if arguments.is_empty() => vec![vm()],
        "vm" => vec![Step::new(&["scripts/vm"]).with(arguments)],
        "bench" => vec![Step::new(&["scripts/bench"]).with(arguments)],
        "all" => {
            let mut steps = lints();
            steps.extend(deny());
            steps.push(tests("all()"));
            steps.push(vm());
            steps.push(faults());
            steps.extend(docs());
            steps
        }
        _ => return None,
    };
    Some(steps)
}

fn lints() -> Vec<Step> {
    vec![
        Step::new(&["cargo", "fmt", "--all", "--check"]),
        Step::new(&[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    ]
}

fn docs() -> Vec<Step> {
    vec![
        Step::new(&["cargo", "doc", "--workspace", "--no-deps", "--quiet"]),
        Step::new(&["cargo", "test", "--workspace", "--doc", "--quiet"]),
    ]
}

/// With the program that the tests have built. The draw is the same each time: what a new one finds is news about the code
/// and not about the change that is tested. `scripts/faults` alone draws anew.
fn faults() -> Step {
    Step::new(&["scripts/faults", "--for", "360", "--seed", "1"])
}

/// What the machine at hand is not: cgroup version 2 alone, with `AppArmor`. Skipped where no machine can be emulated.
fn vm() -> Step {
    Step::new(&["scripts/vm", "brief"])
}

/// Advisories are left out: their database is a repository that not every machine can reach. What is looked at are the crates
/// of every platform, of which a machine that has only built has its own.
fn deny() -> Vec<Step> {
    vec![
        Step::new(&["cargo", "fetch", "--locked"]),
        Step::new(&[
            "cargo",
            "deny",
            "--offline",
            "check",
            "licenses",
            "bans",
            "sources",
        ]),
    ]
}

fn report(skipped: &Path) {
    let Ok(text) = fs::read_to_string(skipped) else {
        return;
    };
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    eprintln!(
        "xtask: {} tests were skipped, because this machine lacks something:",
        lines.len()
    );
    for line in lines {
        eprintln!("  {line}");
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the manifest is one level below the repository")
        .to_owned()
}
