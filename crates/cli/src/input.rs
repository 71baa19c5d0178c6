//! Reading manifests: files and stdin, and what admission makes of each object in them.
//!
//! Reading is bounded and says what it expected. Judging is the same for every command that takes manifests.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pulselet_agent::LocalObject;
use pulselet_model::{
    Admission, DecodeErrors, Document, FieldError, GateSet, ManifestObject, Pod, Position, Profile, Warning,
};
use pulselet_model::{
    admit_config_map, admit_create, admit_local, admit_secret, apply_probes_annotation, decode_documents,
    decode_object, probes_annotation,
};

use crate::exit::Failure;

/// Bytes of one file or of stdin. A single document has its own, smaller bound.
const MAX_INPUT_BYTES: u64 = 512 * 1024 * 1024;
const EXPECTED: &str = "expected Pod manifests as YAML or JSON";

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

/// What admission says about one object.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) document: usize,
    pub(crate) item: Option<usize>,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The Pod, and the place of the field of each warning.
    Accepted(Box<Admission>, Vec<Option<Position>>),
    /// A config map or a secret, for the pods beside it.
    Object(LocalObject),
    /// Every error, with the place of the field it is about.
    Invalid(Vec<(FieldError, Option<Position>)>),
    Undecodable(DecodeErrors),
}

/// Who admits a Pod, with its gates.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gatekeeper {
    /// An API, which removes or refuses what a closed gate hides.
    Api(GateSet),
    /// A node that runs the Pod without an API.
    Node(GateSet),
}

fn judge(document: &Document<'_>, profile: Profile, gatekeeper: Gatekeeper) -> Verdict {
    let decoded = decode_object(document, profile);
    let outcome = match decoded.object {
        Ok(ManifestObject::Pod(pod)) => judge_pod(document, *pod, profile, gatekeeper),
        Ok(ManifestObject::ConfigMap(map)) => object_outcome(document, admit_config_map(*map), |map| {
            LocalObject::ConfigMap(Box::new(map))
        }),
        Ok(ManifestObject::Secret(secret)) => object_outcome(document, admit_secret(*secret), |secret| {
            LocalObject::Secret(Box::new(secret))
        }),
        Err(errors) => Outcome::Undecodable(errors),
    };
    Verdict {
        document: document.index,
        item: document.item,
        kind: decoded.kind,
        name: decoded.name,
        outcome,
    }
}

/// A pod as a node will run it: with the probe fields of its annotation. A bad one is among the warnings.
fn with_annotation(mut admission: Admission) -> Admission {
    if let Some(text) = probes_annotation(&admission.pod).map(str::to_owned) {
        let _ = apply_probes_annotation(&mut admission.pod, &text);
    }
    admission
}

fn judge_pod(document: &Document<'_>, pod: Pod, profile: Profile, gatekeeper: Gatekeeper) -> Outcome {
    let admitted = match gatekeeper {
        Gatekeeper::Api(gates) => admit_create(pod, profile, gates),
        Gatekeeper::Node(gates) => admit_local(pod, profile, gates),
    };
    match admitted.map(with_annotation) {
        Ok(admission) if admission.warnings.is_empty() => Outcome::Accepted(Box::new(admission), Vec::new()),
        Ok(admission) => {
            let places = document.locate_all(admission.warnings.iter().map(Warning::field));
            Outcome::Accepted(Box::new(admission), places)
        }
        Err(errors) => invalid(document, errors),
    }
}

fn object_outcome<T>(
    document: &Document<'_>,
    admitted: Result<T, Vec<FieldError>>,
    object: impl FnOnce(T) -> LocalObject,
) -> Outcome {
    match admitted {
        Ok(admitted) => Outcome::Object(object(admitted)),
        Err(errors) => invalid(document, errors),
    }
}

fn invalid(document: &Document<'_>, errors: Vec<FieldError>) -> Outcome {
    let places = document.locate_all(errors.iter().map(|error| error.field.as_str()));
    Outcome::Invalid(errors.into_iter().zip(places).collect())
}
