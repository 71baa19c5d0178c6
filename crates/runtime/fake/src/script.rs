//! What containers and images do.

use std::time::Duration;

use pulselet_runtime::{ImageErrorKind, ImageSummary, RuntimeImageError, Signal, SignalMasks};

/// One life of a container. The default runs until it is stopped, obeys its stop signal at once, and all commands in it
/// succeed.
#[derive(Debug, Clone, Default)]
pub struct LifeScript {
    pub start: StartScript,
    /// The age at which it leaves by itself, and its exit code.
    pub exits: Option<(Duration, i32)>,
    /// From a signal it handles to its exit, with code 0.
    pub stops_in: Duration,
    /// Signals that make it leave; `None` if only its stop signal does. Others do nothing.
    pub handles: Option<Vec<Signal>>,
    /// What reading its main process shows; `None` if it cannot be read.
    pub masks: Option<SignalMasks>,
    /// What commands answer from an age on. Sorted by age; before the first they succeed.
    pub exec: Vec<(Duration, ExecAnswer)>,
}

/// What becomes of a start.
#[derive(Debug, Clone, Default)]
pub enum StartScript {
    #[default]
    Starts,
    /// Takes this long.
    StartsAfter(Duration),
    /// Its command cannot be executed; the message says why.
    CannotRun(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecAnswer {
    /// Exit code and output.
    Exits(i32, Vec<u8>),
    /// Takes this long, then exits.
    ExitsAfter(Duration, i32),
    /// The command cannot be executed.
    CannotRun(String),
    /// Never ends by itself.
    Hangs,
}

impl LifeScript {
    pub fn exiting(age: Duration, code: i32) -> Self {
        Self {
            exits: Some((age, code)),
            ..Self::default()
        }
    }

    /// Ignores every signal that can be ignored.
    pub fn stubborn() -> Self {
        Self {
            handles: Some(Vec::new()),
            ..Self::default()
        }
    }

    pub(crate) fn exec_at(&self, age: Duration) -> ExecAnswer {
        let answer = self.exec.iter().rev().find(|(from, _)| *from <= age);
        answer.map_or(ExecAnswer::Exits(0, Vec::new()), |(_, answer)| answer.clone())
    }

    pub(crate) fn obeys(&self, signal: Signal) -> bool {
        self.handles
            .as_ref()
            .is_none_or(|signals| signals.contains(&signal))
    }
}

/// What becomes of a pull.
#[derive(Debug, Clone)]
pub enum ImageScript {
    /// It is there already.
    Present(ImageSummary),
    /// It takes this long to come.
    Pulled(Duration, ImageSummary),
    Fails(ImageErrorKind, String),
}

impl ImageScript {
    /// What an image of which the test says nothing is.
    pub(crate) fn unremarkable(reference: &str) -> Self {
        let tags = vec![reference.to_owned()];
        let image = ImageSummary {
            id: format!("sha256:{reference}"),
            tags,
            stop_signal_known: true,
            ..ImageSummary::default()
        };
        Self::Pulled(Duration::ZERO, image)
    }

    pub(crate) fn error(kind: ImageErrorKind, reference: &str, message: &str) -> RuntimeImageError {
        RuntimeImageError {
            reference: reference.to_owned(),
            kind,
            message: message.to_owned(),
        }
    }
}
