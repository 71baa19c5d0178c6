//! What a process has written, and what of it a power cut would leave.
//!
//! A small library that is loaded before the C library writes every change of a file down, in order ([`record`]). From
//! that, [`FileTrace::images`] makes the directory as it would be found if the power had gone after any of them:
//! with everything that was done until then, or with the names as they were then and of the files only what had been
//! brought to the disk. File systems may do either, so a program must be able to start from both.
//!
//! Memory that is mapped is not seen: `SQLite` makes what it keeps there anew.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("file_trace.c");

/// One change.
#[derive(Debug, Clone)]
enum Step {
    Created {
        inode: u64,
        path: PathBuf,
    },
    Cut {
        inode: u64,
        length: usize,
    },
    Written {
        inode: u64,
        offset: usize,
        bytes: Vec<u8>,
    },
    Synced {
        inode: u64,
    },
    MadeDirectory {
        path: PathBuf,
    },
    Removed {
        path: PathBuf,
    },
    Renamed {
        from: PathBuf,
        to: PathBuf,
    },
}

/// Everything that a process has changed below a directory.
#[derive(Debug)]
pub struct FileTrace {
    directory: PathBuf,
    steps: Vec<Step>,
}

/// What is lost with the power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: everything up to the cut is on the disk.
    Nothing,
    /// Bytes that were not brought to the disk. Names are as they were.
    Unsynced,
}

/// The content of a file: as the process saw it, and as the disk has it for certain.
#[derive(Debug, Clone, Default)]
struct Content {
    seen: Vec<u8>,
    synced: Vec<u8>,
}

/// The directory at one point.
#[derive(Debug, Clone, Default)]
struct Image {
    directories: Vec<PathBuf>,
    names: BTreeMap<PathBuf, usize>,
    contents: Vec<Content>,
    inodes: HashMap<u64, usize>,
}

/// Runs a command to its end and records what it does below a directory; `None` without a C compiler.
pub fn record(command: &mut Command, directory: &Path) -> Option<FileTrace> {
    let tools = tempfile::tempdir().expect("a directory");
    let (source, library) = (tools.path().join("trace.c"), tools.path().join("trace.so"));
    fs::write(&source, SOURCE).expect("writes");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output();
    let compiled = compiled.is_ok_and(|output| output.status.success());
    if !crate::requires("a C compiler", compiled) {
        return None;
    }
    let trace = tools.path().join("trace");
    let output = command
        .env("LD_PRELOAD", &library)
        .env("TRACE_BELOW", directory)
        .env("TRACE_TO", &trace)
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the command that is recorded failed: {said}"
    );
    let bytes = fs::read(&trace).expect("there is a trace");
    Some(FileTrace {
        directory: directory.to_owned(),
        steps: parse(&bytes),
    })
}

fn parse(mut bytes: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 1..];
        let (kind, rest) = line.split_once(' ').expect("a record has a kind");
        let mut words = rest.split(' ');
        let mut number = || -> u64 { words.next().expect("a number").parse().expect("a number") };
        let size = |number: u64| usize::try_from(number).expect("a size");
        steps.push(match kind {
            "C" => {
                let (inode, path) = rest.split_once(' ').expect("a path");
                Step::Created {
                    inode: inode.parse().expect("a number"),
                    path: path.into(),
                }
            }
            "T" => Step::Cut {
                inode: number(),
                length: size(number()),
            },
            "W" => {
                let (inode, offset, count) = (number(), size(number()), size(number()));
                let (written, left) = bytes.split_at(count);
                bytes = left;
                Step::Written {
                    inode,
                    offset,
                    bytes: written.to_vec(),
                }
            }
            "S" => Step::Synced { inode: number() },
            "M" => Step::MadeDirectory { path: rest.into() },
            "U" => Step::Removed { path: rest.into() },
            "R" => {
                let (from, to) = rest.split_once('\t').expect("two paths");
                Step::Renamed {
                    from: from.into(),
                    to: to.into(),
                }
            }
            // Names are taken as kept in any case.
            "D" => continue,
            other => panic!("a record of an unknown kind: {other}"),
        });
    }
    steps
}

impl FileTrace {
    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Calls `look` with the directory as a power cut after each change would leave it, in both ways; with it the number
    /// of changes until then. Each directory is a copy of its own.
    pub fn images(&self, mut look: impl FnMut(&Path, usize, Loss)) {
        let mut image = Image::default();
        for (index, step) in self.steps.iter().enumerate() {
            image.apply(step);
            for loss in [Loss::Nothing, Loss::Unsynced] {
                let copy = tempfile::tempdir().expect("a directory");
                image.write(&self.directory, copy.path(), loss);
                look(copy.path(), index + 1, loss);
            }
        }
    }

    /// The number of changes after which a file's content has a text: when something was acknowledged.
    pub fn first_with(&self, path: &Path, text: &str) -> Option<usize> {
        let mut image = Image::default();
        self.steps.iter().enumerate().find_map(|(index, step)| {
            image.apply(step);
            let content = image
                .names
                .get(path)
                .map(|content| &image.contents[*content].seen)?;
            let has = String::from_utf8_lossy(content).lines().any(|line| line == text);
            has.then_some(index + 1)
        })
    }
}

impl Image {
    fn content(&mut self, inode: u64) -> &mut Content {
        let contents = &mut self.contents;
        let index = *self.inodes.entry(inode).or_insert_with(|| {
            contents.push(Content::default());
            contents.len() - 1
        });
        &mut contents[index]
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Created { inode, path } => {
                self.contents.push(Content::default());
                let index = self.contents.len() - 1;
                self.inodes.insert(*inode, index);
                self.names.insert(path.clone(), index);
            }
            Step::Cut { inode, length } => self.content(*inode).seen.resize(*length, 0),
            Step::Written { inode, offset, bytes } => {
                let seen = &mut self.content(*inode).seen;
                let end = offset + bytes.len();
                if seen.len() < end {
                    seen.resize(end, 0);
                }
                seen[*offset..end].copy_from_slice(bytes);
            }
            Step::Synced { inode } => {
                let content = self.content(*inode);
                content.synced = content.seen.clone();
            }
            Step::MadeDirectory { path } => self.directories.push(path.clone()),
            Step::Removed { path } => {
                self.names.remove(path);
                self.directories.retain(|directory| directory != path);
            }
            Step::Renamed { from, to } => {
                if let Some(content) = self.names.remove(from) {
                    self.names.insert(to.clone(), content);
                }
            }
        }
    }

    fn write(&self, from: &Path, to: &Path, loss: Loss) {
        let place = |path: &Path| to.join(path.strip_prefix(from).expect("all paths are below it"));
        for directory in &self.directories {
            fs::create_dir_all(place(directory)).expect("makes");
        }
        for (path, content) in &self.names {
            let content = &self.contents[*content];
            let bytes = match loss {
                Loss::Nothing => &content.seen,
                Loss::Unsynced => &content.synced,
            };
            let path = place(path);
            fs::create_dir_all(path.parent().expect("it is below a directory")).expect("makes");
            fs::write(path, bytes).expect("writes");
        }
    }
}
