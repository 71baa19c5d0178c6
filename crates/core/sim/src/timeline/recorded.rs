//! Event lines as they are read again, from a store or over a socket: by `history` and by the dashboard.
//!
//! An agent of another version may have written them: a type that is not known here is `Other`, and a word that is not
//! known keeps its letters.

use pulselet_engine::line::{GraceFrom, HookOutcome, KillReason, LineOutcome};
use pulselet_engine::plan::{Hook, ProbeKind};
use serde::Deserialize;

use super::wording;

/// A line as somebody wrote it.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedLine {
    /// Seconds since the pod was accepted.
    pub t: f64,
    /// Wall-clock time, RFC 3339; empty where the line has none.
    #[serde(default)]
    pub time: String,
    /// `namespace/name`
    pub pod: String,
    /// `None` if it concerns the pod.
    pub container: Option<String>,
    #[serde(flatten)]
    pub body: RecordedBody,
}

/// What a line says, as far as ends are told from it.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RecordedBody {
    Created {},
    Running {
        #[serde(default)]
        restart_count: u32,
    },
    Probe {
        kind: RecordedWord<ProbeKind>,
        outcome: RecordedWord<LineOutcome>,
        #[serde(default)]
        detail: String,
        #[serde(default)]
        latency_ms: f64,
        /// Equal results in a row; 0 if nobody knows.
        #[serde(default)]
        run: u32,
        counted: bool,
    },
    Killing {
        reason: RecordedWord<KillReason>,
        grace_period_seconds: f64,
        grace_from: RecordedWord<GraceFrom>,
    },
    Hook {
        hook: RecordedWord<Hook>,
        outcome: RecordedWord<HookOutcome>,
        seconds: f64,
    },
    Signal {
        signal: String,
    },
    GraceExceeded {},
    Exited {
        exit_code: i32,
        reason: String,
        /// Since the stop signal; `None` if none was sent.
        seconds: Option<f64>,
    },
    Backoff {
        seconds: f64,
    },
    #[serde(other)]
    Other,
}

/// One of our words, or one that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum RecordedWord<T> {
    Known(T),
    Other(String),
}

impl<T: Copy + PartialEq> RecordedWord<T> {
    pub fn is(&self, word: T) -> bool {
        self.known() == Some(word)
    }

    /// `None` if this version does not know it.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(word) => Some(*word),
            Self::Other(_) => None,
        }
    }

    /// As people read it; a word that is not known stays as it is.
    fn told(&self, words: impl FnOnce(T) -> &'static str) -> &str {
        match self {
            Self::Known(word) => words(*word),
            Self::Other(text) => text,
        }
    }
}

impl RecordedWord<KillReason> {
    pub fn in_words(&self) -> &str {
        self.told(wording::reason)
    }
}

impl RecordedWord<GraceFrom> {
    pub fn in_words(&self) -> &str {
        self.told(wording::grace_source)
    }
}

impl RecordedWord<ProbeKind> {
    pub fn in_words(&self) -> &str {
        self.told(ProbeKind::as_str)
    }
}

impl RecordedWord<LineOutcome> {
    pub fn in_words(&self) -> &str {
        self.told(LineOutcome::as_str)
    }
}

impl RecordedWord<Hook> {
    pub fn in_words(&self) -> &str {
        self.told(wording::hook)
    }
}

impl RecordedWord<HookOutcome> {
    pub fn in_words(&self) -> &str {
        self.told(wording::hook_outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pulselet_engine::line::{LineBody, LineRecord};
    use pulselet_engine::time::Span;
    use pulselet_vocabulary::PodName;
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> RecordedLine {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_an_agent_writes_is_read_again() {
        let pod = PodName::new("default", "web");
        let body = LineBody::Killing {
            reason: KillReason::LivenessProbe,
            grace_period_seconds: Span::from_secs(5),
            grace_from: GraceFrom::Probe,
        };
        let container: Arc<str> = "app".into();
        let written = LineRecord {
            t: 1.5,
            time: None,
            pod: &pod,
            container: Some(&container),
            body: &body,
        };
        let line = read(serde_json::to_value(&written).unwrap());
        let RecordedBody::Killing {
            reason,
            grace_period_seconds,
            grace_from,
        } = line.body
        else {
            panic!("{line:?}");
        };
        assert!(reason.is(KillReason::LivenessProbe));
        assert_eq!((line.t, grace_period_seconds), (1.5, 5.0));
        assert_eq!(
            (reason.in_words(), grace_from.in_words()),
            ("liveness probe failed", "of the probe")
        );
    }

    #[test]
    fn what_another_version_writes_keeps_its_words() {
        let line = read(
            json!({"t": 1.0, "pod": "default/web", "container": "app", "type": "killing",
            "reason": "solarFlare", "gracePeriodSeconds": 5.0, "graceFrom": "pod", "weather": "bad"}),
        );
        let RecordedBody::Killing { reason, .. } = line.body else {
            panic!("{line:?}");
        };
        assert_eq!((reason.known(), reason.in_words()), (None, "solarFlare"));
        let line = read(json!({"t": 1.0, "pod": "default/web", "type": "teleported", "to": "Mars"}));
        assert!(matches!(line.body, RecordedBody::Other));
    }
}
