//! Which devices the processes of a container may open, wherever their files are.
//!
//! Everything that is not allowed is refused. Making device files is allowed, as with other runtimes: a file of a device
//! that cannot be opened is of no use. With version 1 the `devices` controller has a list, with version 2 a program
//! decides, made here from the same rules.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use pulselet_runtime::Device;
use pulselet_sys::BpfInstruction;
use rustix::fs::{FileType, major, minor};

/// Devices in one directory that a pod names; no machine has nearly as many.
const MAX_DEVICES: usize = 1024;

// Bits of what is done to a device, as the kernel gives them to a program.
const MKNOD: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 4;
const ALL: u32 = MKNOD | READ | WRITE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceKind {
    Block,
    Character,
}

/// One sort of device, and what may be done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRule {
    kind: DeviceKind,
    /// `None` stands for all.
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
}

/// What every container may use: null, zero, full, random, urandom, tty, console, ptmx and terminals.
const DEFAULT: [(u32, Option<u32>); 9] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(1)),
    (5, Some(2)),
    (136, None),
];

/// The rules of a container that is not privileged, with the devices that its pod names.
pub fn rules(of_pod: &[Device]) -> Vec<DeviceRule> {
    let make_any = [DeviceKind::Character, DeviceKind::Block].map(|kind| DeviceRule {
        kind,
        major: None,
        minor: None,
        access: MKNOD,
    });
    let default = DEFAULT.map(|(major, minor)| DeviceRule {
        kind: DeviceKind::Character,
        major: Some(major),
        minor,
        access: ALL,
    });
    let of_pod = of_pod.iter().flat_map(rules_of_device);
    make_any.into_iter().chain(default).chain(of_pod).collect()
}

/// A directory stands for the devices in it. What is not there fails when it is mounted.
fn rules_of_device(device: &Device) -> Vec<DeviceRule> {
    let access = |letter: char, bit: u32| {
        if device.permissions.contains(letter) {
            bit
        } else {
            0
        }
    };
    let access = access('r', READ) | access('w', WRITE) | access('m', MKNOD);
    let paths: Vec<PathBuf> = match fs::read_dir(&device.host_path) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.path())
            .take(MAX_DEVICES)
            .collect(),
        Err(_) => vec![device.host_path.clone()],
    };
    paths
        .iter()
        .filter_map(|path| rule_of_file(path, access).ok())
        .collect()
}

fn rule_of_file(path: &Path, access: u32) -> io::Result<DeviceRule> {
    let metadata = fs::metadata(path)?;
    let kind = match FileType::from_raw_mode(metadata.mode()) {
        FileType::BlockDevice => DeviceKind::Block,
        FileType::CharacterDevice => DeviceKind::Character,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok(DeviceRule {
        kind,
        major: Some(major(metadata.rdev())),
        minor: Some(minor(metadata.rdev())),
        access,
    })
}

/// As a line of version 1.
impl fmt::Display for DeviceRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Block => 'b',
            DeviceKind::Character => 'c',
        };
        let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        write!(formatter, "{kind} {}:{} ", number(self.major), number(self.minor))?;
        let letters = [(READ, "r"), (WRITE, "w"), (MKNOD, "m")];
        let granted = letters.iter().filter(|(bit, _)| self.access & bit != 0);
        granted
            .map(|(_, letter)| *letter)
            .try_for_each(|letter| formatter.write_str(letter))
    }
}

// Registers: what the program returns, where the kernel's question is, and what it is about.
const RESULT: u8 = 0;
const QUESTION: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const SCRATCH: u8 = 6;

// Codes of instructions.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const COPY: u8 = 0xbf;
const SET: u8 = 0xb7;
const JUMP_UNLESS: u8 = 0x55;
const JUMP_UNLESS_SAME: u8 = 0x5d;
const EXIT: u8 = 0x95;

/// As a program of version 2: it returns 1 if a rule allows what is asked, else 0. The question is three words: what is
/// done in the upper half of the first and the kind of device in the lower one, then both numbers.
pub(crate) fn program(rules: &[DeviceRule]) -> Vec<BpfInstruction> {
    let mut program = vec![
        instruction(LOAD_WORD, KIND, QUESTION, 0, 0),
        instruction(LOAD_WORD, MAJOR, QUESTION, 4, 0),
        instruction(LOAD_WORD, MINOR, QUESTION, 8, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
    ];
    for rule in rules {
        program.extend(rule.instructions());
    }
    program.extend([instruction(SET, RESULT, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    program
}

impl DeviceRule {
    /// Ends the program if the rule allows what is asked.
    fn instructions(self) -> Vec<BpfInstruction> {
        let kind = match self.kind {
            DeviceKind::Block => 1,
            DeviceKind::Character => 2,
        };
        let mut checks = vec![
            instruction(JUMP_UNLESS, KIND, 0, 0, kind),
            instruction(COPY, SCRATCH, ACCESS, 0, 0),
            instruction(AND, SCRATCH, 0, 0, self.access),
            instruction(JUMP_UNLESS_SAME, SCRATCH, ACCESS, 0, 0),
        ];
        let numbers = [(MAJOR, self.major), (MINOR, self.minor)];
        let given = numbers
            .into_iter()
            .filter_map(|(register, number)| Some((register, number?)));
        checks.extend(given.map(|(register, number)| instruction(JUMP_UNLESS, register, 0, 0, number)));
        checks.extend([instruction(SET, RESULT, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)]);
        // A jump goes to the next rule: it skips what comes after it here.
        let length = checks.len();
        for (index, check) in checks.iter_mut().enumerate() {
            if matches!(check.code, JUMP_UNLESS | JUMP_UNLESS_SAME) {
                check.offset = i16::try_from(length - index - 1).expect("a rule has few instructions");
            }
        }
        checks
    }
}

fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: u32) -> BpfInstruction {
    BpfInstruction {
        code,
        registers: destination | source << 4,
        offset,
        immediate: immediate.cast_signed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_the_devices_controller_reads_them() {
        let rule = |minor, access| DeviceRule {
            kind: DeviceKind::Character,
            major: Some(1),
            minor,
            access,
        };
        assert_eq!(rule(Some(3), ALL).to_string(), "c 1:3 rwm");
        assert_eq!(rule(None, READ).to_string(), "c 1:* r");
        let device = Device {
            host_path: "/dev/null".into(),
            container_path: "/dev/x".into(),
            permissions: "rw".into(),
        };
        assert_eq!(rules_of_device(&device), [rule(Some(3), READ | WRITE)]);
    }

    #[test]
    fn a_check_that_fails_goes_to_the_next_rule() {
        let rule = DeviceRule {
            kind: DeviceKind::Block,
            major: Some(8),
            minor: None,
            access: READ,
        };
        let program = program(&[rule]);
        assert_eq!(program.len(), 6 + 7 + 2);
        let ends: Vec<usize> = (0..program.len())
            .filter(|index| program[*index].offset > 0 && program[*index].code != LOAD_WORD)
            .map(|index| index + 1 + usize::from(program[index].offset.cast_unsigned()))
            .collect();
        assert_eq!(ends, [13, 13, 13]);
    }
}
