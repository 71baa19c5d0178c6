//! Reading manifests: files and stdin.
//!
//! Reading is bounded and says what it expected. Judging, in `verdict`, is the same for every command that takes manifests.

mod verdict;

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pulselet_model::{Profile, decode_documents};

use crate::exit::Failure;
use verdict::judge;
pub(crate) use verdict::{Gatekeeper, Outcome, Subject, Verdict};

/// Bytes of one file or of stdin. A single document has its own, smaller bound.
const MAX_INPUT_BYTES: u64 = 512 * 1024 * 1024;
const EXPECTED: &str = "expected Kubernetes manifests as YAML or JSON";

/// The bytes of one argument.
#[derive(Debug)]
pub(crate) struct Source {
    /// As the user wrote it; `-` is stdin.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// Where each line starts, once somebody has asked for one.
    line_starts: OnceCell<Vec<usize>>,
}

impl Source {
    /// Reads manifests.
    pub(crate) fn read(name: &str) -> Result<Self, Failure> {
        Self::read_as(name, EXPECTED)
    }

    /// Reads a text file; `expected` says what it should hold.
    pub(crate) fn read_as(name: &str, expected: &str) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::usage(format_args!("cannot read {name}: {error}; {expected}"));
        let mut bytes = Vec::new();
        if name == "-" {
            io::stdin()
                .lock()
                .take(MAX_INPUT_BYTES + 1)
                .read_to_end(&mut bytes)
                .map_err(failed)?;
        } else {
            if Path::new(name).is_dir() {
                return Err(Failure::usage(format_args!("{name} is a directory; {expected}")));
            }
            let file = File::open(name).map_err(failed)?;
            file.take(MAX_INPUT_BYTES + 1)
                .read_to_end(&mut bytes)
                .map_err(failed)?;
        }
        if bytes.len() as u64 > MAX_INPUT_BYTES {
            let failure = Failure::usage(format_args!("{name} has more than {MAX_INPUT_BYTES} bytes"));
            return Err(failure.with_hint("split it into several files"));
        }
        if bytes.contains(&0) || std::str::from_utf8(&bytes).is_err() {
            return Err(Failure::usage(format_args!(
                "{name} is not text; {expected} in UTF-8"
            )));
        }
        Ok(Self {
            name: name.to_owned(),
            bytes,
            line_starts: OnceCell::new(),
        })
    }

    /// The whole of it. Reading has made sure that it is text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap_or_default()
    }

    /// Judges every object in turn. An input without any is an error.
    pub(crate) fn judge(
        &self,
        profile: Profile,
        gatekeeper: Gatekeeper,
        mut each: impl FnMut(Verdict) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut documents = decode_documents(&self.bytes);
        let mut any = false;
        while let Some(document) = documents.next() {
            any = true;
            each(match document {
                Ok(document) => judge(&document, profile, gatekeeper),
                Err(error) => Verdict {
                    document: documents.documents_read() - 1,
                    item: None,
                    kind: String::new(),
                    name: String::new(),
                    outcome: Outcome::Undecodable(error.into()),
                },
            })?;
        }
        if any {
            Ok(())
        } else {
            Err(Failure::usage(format_args!("{} is empty; {EXPECTED}", self.name)))
        }
    }

    /// The text of a line, counted from one.
    pub(crate) fn line(&self, number: u32) -> Option<&str> {
        let starts = self.line_starts.get_or_init(|| {
            let breaks = self.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            std::iter::once(0)
                .chain(breaks.map(|(index, _)| index + 1))
                .collect()
        });
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let line =
            &self.bytes[*starts.get(index)?..starts.get(index + 1).map_or(self.bytes.len(), |next| next - 1)];
        std::str::from_utf8(line)
            .ok()
            .map(|line| line.trim_end_matches('\r'))
    }
}
