//! The pages for users: every block of shell commands is run as it is printed, or says in place why it is not.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use pulselet_testing::{is_root, requires};

use crate::command::{repository, usual_places};

/// Before a block that is not run, with the reason.
const MARK: &str = "<!-- not run: ";
/// Blocks in these languages are for a shell.
const SHELL: [&str; 2] = ["sh", "console"];

/// Pages whose blocks follow each other.
const AS_A_WHOLE: [&str; 3] = ["quick-start.md", "recipes.md", "api.md"];

/// A block of commands on a page.
#[derive(Debug)]
struct Block {
    page: String,
    line: usize,
    text: String,
    /// Why it is not run.
    reason: Option<String>,
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(repository());
    let docs = std::fs::read_dir(root.join("docs")).unwrap().flatten();
    let mut pages: Vec<PathBuf> = docs
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        // Generated from the commands, whose examples name files that readers have.
        .filter(|path| !path.ends_with("cli.md"))
        .collect();
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    pages.sort();
    pages
}

fn blocks_of(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).unwrap();
    let name = page.file_name().unwrap().to_string_lossy().into_owned();
    let mut blocks = Vec::new();
    let mut reason = None;
    let mut open: Option<(String, Block)> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some((_, block)), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (Some(_), Some(_)) => {
                let (language, block) = open.take().unwrap();
                assert!(
                    !language.is_empty(),
                    "{name}:{} has a block without a language",
                    block.line
                );
                if SHELL.contains(&language.as_str()) {
                    blocks.push(block);
                }
            }
            (None, Some(language)) => {
                let block = Block {
                    page: name.clone(),
                    line: index + 1,
                    text: String::new(),
                    reason: reason.take(),
                };
                open = Some((language.to_owned(), block));
            }
            (None, None) => {
                let marked = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->"));
                if let Some(why) = marked {
                    reason = Some(why.to_owned());
                } else if !line.is_empty() {
                    reason = None;
                }
            }
        }
    }
    blocks
}

/// A directory that looks like a clone of the project to commands.
fn clone() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["examples", "docs"] {
        std::os::unix::fs::symlink(Path::new(repository()).join(name), directory.path().join(name)).unwrap();
    }
    directory
}

/// A command that finds `pulselet` on its path.
fn with_pulselet(program: &str, directory: &Path) -> Command {
    let own = Path::new(env!("CARGO_BIN_EXE_pulselet")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(program);
    command.env("PATH", path).current_dir(directory);
    command
}

#[test]
fn every_block_works_as_it_is_printed_or_says_why_it_is_not_run() {
    let mut run = 0;
    let mut not_run = String::new();
    for block in pages().iter().flat_map(|page| blocks_of(page)) {
        let Block {
            page,
            line,
            text,
            reason,
        } = block;
        match reason {
            Some(reason) => writeln!(not_run, "{page}: {reason}").unwrap(),
            // It is run as a whole, below.
            None if AS_A_WHOLE.contains(&page.as_str()) => run += 1,
            None => {
                let directory = clone();
                let output = with_pulselet("bash", directory.path())
                    .args(["-euc", &text])
                    .output()
                    .unwrap();
                assert!(
                    output.status.success(),
                    "{page}:{line} does not work; mark it with `{MARK}REASON -->` if it cannot be run here: {output:?}"
                );
                run += 1;
            }
        }
    }
    assert!(run > 6, "{run}");
    let listed = include_str!("../data/blocks-not-run.txt");
    assert_eq!(
        not_run, listed,
        "tests/data/blocks-not-run.txt lists what is not run"
    );
}

/// Runs all blocks of a page, one after the other, and returns what they printed. In namespaces of its own the page has the
/// machine's usual places and ports for itself.
fn run_page(page: &str) -> String {
    let _turn = usual_places();
    let blocks = blocks_of(&Path::new(repository()).join("docs").join(page));
    // An agent that a page leaves behind would keep the output open.
    let mut script = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\nset -eux\nmount -t tmpfs tmpfs /var/lib\nip link set lo up\n".to_owned();
    for block in blocks.iter().filter(|block| block.reason.is_none()) {
        script += &block.text;
    }
    let directory = clone();
    let mut command = with_pulselet("timeout", directory.path());
    command.args(["--kill-after=5", "120", "unshare", "--mount", "--net"]);
    let output = command.args(["bash", "-c", &script]).output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{page}: {stdout}\n{stderr}");
    stdout.into_owned()
}

#[test]
fn the_quick_start_works_as_it_is_printed() {
    if !requires("root", is_root()) {
        return;
    }
    let printed = run_page("quick-start.md");
    for part in [
        "accepted",
        "app | hello",
        "default/web",
        "restart asked for",
        "Stopped",
        "is gone",
    ] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
}

/// The recording is of the page as it is: `scripts/record` makes another.
#[test]
fn the_recording_has_every_command_of_the_quick_start() {
    let docs = Path::new(repository()).join("docs");
    let picture = std::fs::read_to_string(docs.join("pictures/quick-start.svg")).unwrap();
    let texts = picture.split('<').filter(|part| part.starts_with("tspan"));
    let shown: String = texts
        .filter_map(|part| part.split_once('>'))
        .map(|(_, text)| text)
        .collect();
    let shown = shown
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    let without_space = |text: &str| text.split_whitespace().collect::<String>();
    let shown = without_space(&shown);
    for block in blocks_of(&docs.join("quick-start.md")) {
        for line in block.text.lines() {
            assert!(
                shown.contains(&without_space(line)),
                "{line} is not recorded: run scripts/record"
            );
        }
    }
}

#[test]
fn the_recipes_work_as_they_are_printed() {
    if !requires("root", is_root()) {
        return;
    }
    let printed = run_page("recipes.md");
    for part in ["liveness probe failed", "SIGQUIT", "accepted"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
}

#[test]
fn the_first_session_with_kubectl_works_as_it_is_printed() {
    let has_kubectl = Command::new("kubectl").arg("help").output().is_ok();
    if !requires("root", is_root()) || !requires("kubectl", has_kubectl) {
        return;
    }
    let printed = run_page("api.md");
    for part in [
        "API at https://127.0.0.1:6443, kubeconfig: ",
        "pod/web created",
        "pod/web condition met",
        "1/1     Running",
        "is gone",
    ] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
}

#[test]
fn units_are_understood() {
    let units = std::fs::read_dir(Path::new(repository()).join("dist"))
        .unwrap()
        .flatten();
    let units = units.map(|entry| entry.path());
    for unit in units.filter(|path| path.extension().is_some_and(|kind| kind == "service")) {
        let text = std::fs::read_to_string(&unit).unwrap();
        let start = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="))
            .unwrap();
        let args: Vec<&str> = start.split(' ').skip(1).chain(["--help"]).collect();
        let understood = crate::command::pulselet(&args);
        assert_eq!(understood.code, Some(0), "{}", understood.stderr);
        let has_systemd = Command::new("systemd-analyze").arg("--version").output().is_ok();
        if !requires("systemd-analyze", has_systemd) {
            continue;
        }
        // The program need not be installed for it.
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join(unit.file_name().unwrap());
        std::fs::write(&copy, text.replace("/usr/local/bin/pulselet", "/bin/true")).unwrap();
        let verified = Command::new("systemd-analyze")
            .arg("verify")
            .arg(&copy)
            .output()
            .unwrap();
        assert!(verified.status.success(), "{verified:?}");
    }
}
