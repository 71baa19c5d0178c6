//! Seccomp: which system calls a container may make.
//!
//! A profile is turned into the kernel's filter program once, by the agent, so that a bad one is an error when the
//! container is created. `RuntimeDefault` allows what other runtimes' default profiles allow, depending on the
//! container's capabilities, and nothing else. `Localhost` profiles are files in the format of the OCI runtime
//! specification. Calls of other architectures (32 bit programs) are not there for a confined program: by one of them,
//! `socketcall`, arguments would pass that no filter can see.

mod calls;
mod default;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashSet},
    fs::File,
    io::Read,
    path::Path,
};

use pulselet_sys::FilterInstruction;
use serde::{Deserialize, Serialize};

pub(crate) use default::default_filter;

/// Bytes of a profile that are read; the usual ones have some ten thousand.
const MAX_PROFILE: u64 = 1 << 20;

/// The kernel takes no longer program.
const MAX_INSTRUCTIONS: usize = 4096;

/// Arguments a system call can have.
const ARGUMENTS: u32 = 6;

// Numbers of the kernel's interface: classic BPF, seccomp's data and its answers.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const TRACE: u32 = 0x7ff0_0000;
const ERRNO: u32 = 0x0005_0000;
const TRAP: u32 = 0x0003_0000;
const KILL_THREAD: u32 = 0;
const KILL_PROCESS: u32 = 0x8000_0000;
const ENOSYS: u32 = 38;
const EPERM: u32 = 1;
const MAX_ERRNO: u32 = 4095;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// From here on numbers are those of another way to call the same kernel (x32).
const FOREIGN_NUMBERS: u32 = 0x4000_0000;

/// A program for the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Filter(pub(crate) Vec<FilterInstruction>);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SeccompError {
    #[error("cannot read seccomp profile {path}: {source}", path = path.display())]
    Read {
        path: std::path::PathBuf,
        source: std::io::Error,
    },
    #[error("seccomp profile {path} cannot be understood: {source}", path = path.display())]
    Parse {
        path: std::path::PathBuf,
        source: serde_json::Error,
    },
    #[error("seccomp profile: action {0:?} is not supported")]
    Action(String),
    #[error("seccomp profile: error number {0} is not one")]
    ErrorNumber(u32),
    #[error("seccomp profile: comparison {0:?} is not supported")]
    Comparison(String),
    #[error("seccomp profile: system calls have no argument {0}")]
    Argument(u32),
    #[error("seccomp profile: rules with {0:?} are not supported")]
    Condition(&'static str),
    #[error("seccomp profile: it has too many rules")]
    TooLong,
}

/// The parts of a profile that matter; what else it has is for other programs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Vec<String>,
    action: String,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    includes: Option<serde_json::Value>,
    excludes: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Reads a profile file.
pub(crate) fn filter_from_file(path: &Path) -> Result<Filter, SeccompError> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_PROFILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|source| SeccompError::Read {
        path: path.to_owned(),
        source,
    })?;
    let profile: Profile = serde_json::from_slice(&bytes).map_err(|source| SeccompError::Parse {
        path: path.to_owned(),
        source,
    })?;
    compile(&profile)
}

/// For a fuzzer: a program is no longer than the kernel takes, leads nowhere but on, and ends with an answer.
pub(crate) fn fuzz_profile(bytes: &[u8]) {
    let Ok(profile) = serde_json::from_slice::<Profile>(bytes) else {
        return;
    };
    let Ok(Filter(program)) = compile(&profile) else {
        return;
    };
    assert!(program.len() <= MAX_INSTRUCTIONS);
    for (at, instruction) in program.iter().enumerate() {
        let furthest = usize::from(instruction.yes.max(instruction.no));
        assert!(
            instruction.code == RETURN || at + 1 + furthest < program.len(),
            "instruction {at} leads out of the program"
        );
    }
}

fn compile(profile: &Profile) -> Result<Filter, SeccompError> {
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    let mut program = Program::new();
    for rule in &profile.syscalls {
        for (name, value) in [("includes", &rule.includes), ("excludes", &rule.excludes)] {
            let empty = value.as_ref().is_none_or(|value| {
                value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
            });
            if !empty {
                return Err(SeccompError::Condition(name));
            }
        }
        let answer = action(&rule.action, rule.errno_ret)?;
        let checks = rule
            .args
            .iter()
            .flatten()
            .map(check)
            .collect::<Result<Vec<_>, _>>()?;
        // A call that this machine does not have cannot be made.
        for number in rule.names.iter().filter_map(|name| calls::number(name)) {
            if repeats_an_argument(&checks) {
                // As other runtimes have it: one of them is enough.
                for check in &checks {
                    program.rule(number, std::slice::from_ref(check), answer);
                }
            } else {
                program.rule(number, &checks, answer);
            }
        }
    }
    program.finish(default)
}

fn repeats_an_argument(checks: &[Check]) -> bool {
    let mut seen = HashSet::new();
    !checks.iter().all(|check| seen.insert(check.index))
}

fn action(name: &str, errno: Option<u32>) -> Result<u32, SeccompError> {
    Ok(match name {
        "SCMP_ACT_ALLOW" => ALLOW,
        "SCMP_ACT_LOG" => LOG,
        "SCMP_ACT_TRAP" => TRAP,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => KILL_PROCESS,
        "SCMP_ACT_ERRNO" => ERRNO | error_number(errno, MAX_ERRNO)?,
        // The number goes to whoever traces; without him the call is not there.
        "SCMP_ACT_TRACE" => TRACE | error_number(errno, u32::from(u16::MAX))?,
        other => return Err(SeccompError::Action(other.to_owned())),
    })
}

fn error_number(given: Option<u32>, max: u32) -> Result<u32, SeccompError> {
    let number = given.unwrap_or(EPERM);
    (number <= max)
        .then_some(number)
        .ok_or(SeccompError::ErrorNumber(number))
}

/// One condition on an argument.
#[derive(Debug, Clone, Copy)]
struct Check {
    index: u32,
    mask: u64,
    comparison: Comparison,
    value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
}

fn check(argument: &Argument) -> Result<Check, SeccompError> {
    if argument.index >= ARGUMENTS {
        return Err(SeccompError::Argument(argument.index));
    }
    let (mask, comparison, value) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (u64::MAX, Comparison::Equal, argument.value),
        "SCMP_CMP_NE" => (u64::MAX, Comparison::NotEqual, argument.value),
        "SCMP_CMP_GT" => (u64::MAX, Comparison::Greater, argument.value),
        "SCMP_CMP_GE" => (u64::MAX, Comparison::GreaterEqual, argument.value),
        "SCMP_CMP_LT" => (u64::MAX, Comparison::Less, argument.value),
        "SCMP_CMP_LE" => (u64::MAX, Comparison::LessEqual, argument.value),
        "SCMP_CMP_MASKED_EQ" => (argument.value, Comparison::Equal, argument.value_two),
        other => return Err(SeccompError::Comparison(other.to_owned())),
    };
    Ok(Check {
        index: argument.index,
        mask,
        comparison,
        value,
    })
}

/// A filter under construction: rules are tried in turn, the first that fits answers.
struct Program(Vec<FilterInstruction>);

/// Where a comparison leads.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The next instruction.
    Next,
    /// The check is passed.
    Pass,
    /// The rule does not fit.
    Fail,
}

impl Program {
    fn new() -> Self {
        let unknown = ERRNO | ENOSYS;
        Self(vec![
            statement(LOAD, ARCHITECTURE_OFFSET),
            jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
            statement(RETURN, unknown),
            statement(LOAD, NUMBER_OFFSET),
            jump(JUMP_GREATER_EQUAL, FOREIGN_NUMBERS, 0, 1),
            statement(RETURN, unknown),
        ])
    }

    /// Calls with a higher number are answered as a kernel does that does not have them.
    fn bound(&mut self, last: u32) {
        self.0.push(jump(JUMP_GREATER, last, 0, 1));
        self.0.push(statement(RETURN, ERRNO | ENOSYS));
    }

    fn rule(&mut self, number: u32, checks: &[Check], answer: u32) {
        let mut body = Vec::new();
        for check in checks {
            body.push(compile_check(check));
        }
        let length: usize = body.iter().map(Vec::len).sum();
        // Behind the checks: the answer, and with checks the number again for the next rule.
        let reload = usize::from(!checks.is_empty());
        let skip = length + 1 + reload;
        self.0.push(jump(JUMP_EQUAL, number, 0, distance(skip)));
        let mut left = length;
        for check in body {
            let size = check.len();
            for (index, (code, k, yes, no)) in check.into_iter().enumerate() {
                let target = |then| match then {
                    Then::Next => 0,
                    Then::Pass => distance(size - index - 1),
                    // Over the rest of the checks and the answer.
                    Then::Fail => distance(left - index),
                };
                self.0.push(jump(code, k, target(yes), target(no)));
            }
            left -= size;
        }
        self.0.push(statement(RETURN, answer));
        if reload == 1 {
            self.0.push(statement(LOAD, NUMBER_OFFSET));
        }
    }

    /// Allows calls whatever their arguments are: one test for each run of numbers.
    fn allow(&mut self, numbers: BTreeSet<u32>) {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                Some(_) | None => runs.push((number, number)),
            }
        }
        for (first, last) in runs {
            self.0.push(jump(JUMP_GREATER_EQUAL, first, 0, 2));
            self.0.push(jump(JUMP_GREATER, last, 1, 0));
            self.0.push(statement(RETURN, ALLOW));
        }
    }

    fn finish(mut self, default: u32) -> Result<Filter, SeccompError> {
        self.0.push(statement(RETURN, default));
        if self.0.len() > MAX_INSTRUCTIONS {
            return Err(SeccompError::TooLong);
        }
        Ok(Filter(self.0))
    }
}

/// At most six checks of eight instructions each: it always fits.
fn distance(count: usize) -> u8 {
    u8::try_from(count).expect("rules are short")
}

type Step = (u16, u32, Then, Then);

/// Compares an argument, whose halves are separate words, the lower first.
fn compile_check(check: &Check) -> Vec<Step> {
    let half = |word: u64| u32::try_from(word & 0xffff_ffff).expect("is a half");
    let (high, low) = (half(check.value >> 32), half(check.value));
    let offset = ARGUMENTS_OFFSET + 8 * check.index;
    let load = |offset| (LOAD, offset, Then::Next, Then::Next);
    let mask = |word| (AND, word, Then::Next, Then::Next);
    let (high_steps, low_step): (Vec<Step>, Step) = match check.comparison {
        Comparison::Equal => (
            vec![(JUMP_EQUAL, high, Then::Next, Then::Fail)],
            (JUMP_EQUAL, low, Then::Pass, Then::Fail),
        ),
        Comparison::NotEqual => (
            vec![(JUMP_EQUAL, high, Then::Next, Then::Pass)],
            (JUMP_EQUAL, low, Then::Fail, Then::Pass),
        ),
        Comparison::Greater | Comparison::GreaterEqual => {
            let code = if check.comparison == Comparison::Greater {
                JUMP_GREATER
            } else {
                JUMP_GREATER_EQUAL
            };
            (
                vec![
                    (JUMP_GREATER, high, Then::Pass, Then::Next),
                    (JUMP_EQUAL, high, Then::Next, Then::Fail),
                ],
                (code, low, Then::Pass, Then::Fail),
            )
        }
        Comparison::Less | Comparison::LessEqual => {
            let code = if check.comparison == Comparison::Less {
                JUMP_GREATER_EQUAL
            } else {
                JUMP_GREATER
            };
            (
                vec![
                    (JUMP_GREATER, high, Then::Fail, Then::Next),
                    (JUMP_EQUAL, high, Then::Next, Then::Pass),
                ],
                (code, low, Then::Fail, Then::Pass),
            )
        }
    };
    let mut steps = vec![load(offset + 4), mask(half(check.mask >> 32))];
    steps.extend(high_steps);
    steps.extend([load(offset), mask(half(check.mask)), low_step]);
    steps
}

fn statement(code: u16, k: u32) -> FilterInstruction {
    jump(code, k, 0, 0)
}

fn jump(code: u16, k: u32, yes: u8, no: u8) -> FilterInstruction {
    FilterInstruction { code, yes, no, k }
}
